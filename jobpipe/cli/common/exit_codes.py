"""Exit codes, and which error gives which."""

from __future__ import annotations

from enum import IntEnum

from jobpipe.errors import (
    ConfigError,
    JobpipeError,
    LinkError,
    NotAuthorized,
    RegistryUnavailable,
    WaitTimeout,
)


class Exit(IntEnum):
    """What scripts may rely on; :data:`EXIT_CODES` says it to people."""

    OK = 0
    UNHEALTHY = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_AUTHORIZED = 4
    DIFFERENT = 5
    INTERRUPTED = 130


EXIT_CODES = """\
\b
Exit codes:
  0    success; also when the reader of the output went away (| head)
  1    not found, not healthy, or another error
  2    usage error, or invalid configuration
  3    the registry or the publisher cannot be reached
  4    not authorized: a certificate or a permission is missing
  5    rows were lost or doubled, as `jobpipe ledger` shows
  130  interrupted by Ctrl-C
"""

_BY_KIND: tuple[tuple[type[JobpipeError], Exit], ...] = (
    (ConfigError, Exit.USAGE),
    (NotAuthorized, Exit.NOT_AUTHORIZED),
    (RegistryUnavailable, Exit.UNREACHABLE),
    (LinkError, Exit.UNREACHABLE),
    (WaitTimeout, Exit.UNREACHABLE),
)


def exit_of(error: JobpipeError) -> Exit:
    """Return the exit code of an error."""
    return next((code for kind, code in _BY_KIND if isinstance(error, kind)), Exit.UNHEALTHY)
