"""One line for each refusal and each change by an administrator: who, whence, what, with what result; no payload."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Sequence

from jobpipe.net.quiet import Quiet

__all__ = ["audit", "who"]

log = logging.getLogger("jobpipe.audit")

SHOWN = 200  # characters of what a peer says
REFUSALS_A_SECOND = 1.0  # of one identity, after a burst
REFUSALS_AT_ONCE = 100
MAX_QUIET = 256  # identities whose rate is remembered; the one longest not refused goes first
_quiet: OrderedDict[str, Quiet] = OrderedDict()


def audit(
    names: Sequence[str],
    peer: str,
    what: str,
    result: str,
    *,
    topic: str | None = None,
    subscription: str | None = None,
    instance: str = "",
) -> None:
    """Write the line; what the peer says is quoted and shortened, so that it forges no other.

    Refusals of one identity are held to a rate; how many lines were left out stands in its next one.

    Args:
        names: of its verified certificate; none before there is one, and in plaintext.
        peer: its address.
        what: the operation, or the right that it wants.
        result: ``refused`` or ``done``, with the reason or what was done behind it.
        instance: what it calls itself, to find it in its own log.
    """
    facts = {"what": what, "topic": topic, "subscription": subscription, "instance": instance or None, "result": result}
    said = " ".join(f"{key}={json.dumps(value[:SHOWN])}" for key, value in facts.items() if value is not None)
    principal = json.dumps(who(names))
    if not result.startswith("refused"):
        log.info("principal=%s peer=%s %s", principal, peer, said)
        return
    _quiet_of(principal).log(logging.WARNING, "principal=%s peer=%s %s", principal, peer, said)


def _quiet_of(principal: str) -> Quiet:
    """Return what holds an identity's refusals to a rate: it can be refused thousands of times a second."""
    if principal not in _quiet:
        _quiet[principal] = Quiet(log, rate=REFUSALS_A_SECOND, burst=REFUSALS_AT_ONCE)
        if len(_quiet) > MAX_QUIET:
            _quiet.popitem(last=False)
    _quiet.move_to_end(principal)
    return _quiet[principal]


def who(names: Sequence[str]) -> str:
    """Return the names of a certificate for people."""
    return ", ".join(names)[:SHOWN] if names else "nobody known"
