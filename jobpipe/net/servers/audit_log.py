"""One line for each refusal and each change by an administrator: who, from where, what, with what result; no payload.

What a stranger can make happen as often as it likes is logged at a bounded rate.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence

from jobpipe.net.servers.identity_quota import identity_of

log = logging.getLogger("jobpipe.audit")

LEFT_OUT = "log lines refused"
"""What ``status`` calls the lines that :func:`audit` did not log."""

SHOWN = 200  # characters of what a peer says
REFUSALS_A_SECOND = 1.0  # of one identity, after a burst
REFUSALS_AT_ONCE = 100
CHANGES_A_SECOND = 10.0  # the same of what it has changed: a reader may move its own subscription all day
CHANGES_AT_ONCE = 1000
MAX_LIMITED = 256  # identities whose rate is remembered; the one longest not refused goes first
_limited: OrderedDict[str, RateLimitedLog] = OrderedDict()
_changes: OrderedDict[str, RateLimitedLog] = OrderedDict()


class RateLimitedLog:
    """Logs at most ``burst`` lines at once and ``rate`` a second; the next line counts those left out.

    Attributes:
        left_out: Lines since the last one that was logged.
        left_out_ever: All of them.
    """

    def __init__(self, log: logging.Logger, *, rate: float = 1.0, burst: int = 20) -> None:
        self._log = log
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._then = time.monotonic()
        self.left_out = 0
        self.left_out_ever = 0

    def log(self, level: int, text: str, *args: object, error: BaseException | None = None) -> None:
        """Log a line, with a traceback if there is an ``error``, or leave it out."""
        if not self._log.isEnabledFor(level) or not self.admits():
            return
        if self.left_out:
            text, args = f"{text} (%d lines of this kind were left out before)", (*args, self.left_out)
            self.left_out = 0
        self._log.log(level, text, *args, exc_info=error)

    def admits(self) -> bool:
        """Whether a line may be logged now; counts it, or that it is left out."""
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._then) * self._rate)
        self._then = now
        if self._tokens < 1.0:
            self.left_out += 1
            self.left_out_ever += 1
            return False
        self._tokens -= 1.0
        return True


def audit(
    names: Sequence[str],
    peer: str,
    what: str,
    result: str,
    *,
    topic: str | None = None,
    subscription: str | None = None,
    instance: str = "",
    changed: bool = False,
) -> None:
    """Write the line; what the peer says is quoted and shortened, so that it forges no other.

    The lines of one identity are held to a rate, those about what it has changed to a higher one of their own, which no
    refusal uses up. How many were left out stands in its next line.

    Args:
        names: of its verified certificate; none before there is one, and in plaintext.
        peer: its address.
        what: the operation, or the right that it wants.
        result: ``refused``, ``failed`` or ``done``, followed by the reason or what was done.
        instance: what it calls itself, to find it in its own log.
        changed: it has changed something: neither refused, nor failed, nor a dry run.
    """
    facts = {"what": what, "topic": topic, "subscription": subscription, "instance": instance or None, "result": result}
    said = " ".join(f"{key}={json.dumps(value[:SHOWN])}" for key, value in facts.items() if value is not None)
    principal = json.dumps(who(names))
    level = logging.WARNING if result.startswith("refused") else logging.INFO
    _limited_log(identity_of(names, peer), changed=changed).log(level, "principal=%s peer=%s %s", principal, peer, said)


def _limited_log(identity: str, *, changed: bool) -> RateLimitedLog:
    """Return what holds an identity's lines to a rate: it can be refused thousands of times a second."""
    known = _changes if changed else _limited
    if identity not in known:
        rate, burst = (CHANGES_A_SECOND, CHANGES_AT_ONCE) if changed else (REFUSALS_A_SECOND, REFUSALS_AT_ONCE)
        known[identity] = RateLimitedLog(log, rate=rate, burst=burst)
        if len(known) > MAX_LIMITED:
            known.popitem(last=False)
    known.move_to_end(identity)
    return known[identity]


def lines_left_out() -> Counter[str]:
    """Return how many lines about each identity this process did not log, of those that it had lines about last."""
    left_out: Counter[str] = Counter()
    for known in (_limited, _changes):
        for identity, limited in known.items():
            left_out[identity] += limited.left_out_ever
    return +left_out


def who(names: Sequence[str]) -> str:
    """Return the names of a certificate for people."""
    return ", ".join(names)[:SHOWN] if names else "an unknown peer"
