"""The secrets of a pipeline's job, for the code of its own that runs in it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping

from jobpipe.config.types.secrets import Secret
from jobpipe.errors import ConfigError

_given: Mapping[str, Secret] | None = None  # of the job that runs in this process


def export(secrets: Mapping[str, Secret]) -> None:
    """Say which secrets the job has that runs in this process."""
    global _given
    _given = dict(secrets)


def secret(name: str) -> str:
    """Return a secret that the job's ``secrets`` in the pipeline's file refer to.

    For the driver: a program of your own, a DataFrame or batch function. Where no pipeline runs, as when you try your
    program by hand, it is the environment's variable of that name.

    Args:
        name: as in the file: ``secrets: {name: "file:PATH"}``.

    Raises:
        ConfigError: the job has no such secret, or there is nothing where its reference leads.
    """
    if _given is None:
        if not (found := os.environ.get(name)):
            what = f"no pipeline runs in this process, and its environment has no {name}"
            raise ConfigError(f"secret {name}: {what}; set it, or run the program as a pipeline's job", secret=name)
        return found
    reference = _given.get(name)
    if reference is None:
        near = difflib.get_close_matches(name, _given, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        remedy = f'give it in the file: secrets: {{{name}: "file:PATH"}}'
        raise ConfigError(f"secret {name}: the job has no such secret{hint}; {remedy}", secret=name)
    return reference.reveal()
