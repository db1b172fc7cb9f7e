"""Whether the peer of a link is alive: a state machine without a clock, ``now`` is passed in (seconds, monotonic)."""

from __future__ import annotations

from enum import Enum

from jobpipe.net.links.link_timeouts import LinkTimeouts


class LinkHealth(Enum):
    """What the link should do."""

    FINE = "fine"
    PING = "ping"
    SILENT = "silent"
    """Nothing heard for ``silence``: dead."""
    STALLED = "stalled"
    """The peer took nothing for ``write``: dead or too slow."""
    IDLE = "idle"
    """A client that answers no PING wanted nothing for ``idle``."""


class Keepalive:
    """Judges one link.

    Args:
        timing: The deadlines.
        now: The time of its start.
        beats: The peer answers PING at any time. Without it (a blocking client) only ``idle`` and ``write`` count.
    """

    def __init__(self, timing: LinkTimeouts, now: float, *, beats: bool) -> None:
        self._timing = timing
        self._beats = beats
        self._heard = now
        self._pinged = now - timing.heartbeat
        self._checked = now
        self._stalled_since: float | None = None
        self._deaf = False
        shortest = timing.heartbeat if beats else timing.idle
        self.interval = min(shortest, timing.write) / 4
        """How often :meth:`check` wants to be called, in seconds."""

    def heard(self, now: float) -> None:
        """Bytes came."""
        self._heard = now

    def writing(self, now: float, *, stalled: bool) -> None:
        """The write buffer became too full, or has room again."""
        self._stalled_since = now if stalled else None

    def reading(self, now: float, *, paused: bool) -> None:
        """We stopped reading ourselves, or went on: silence meanwhile is no fault of the peer."""
        self._deaf = paused
        self._heard = now

    def silence(self, now: float) -> float:
        """Return for how many seconds nothing was heard."""
        return max(0.0, now - self._heard)

    def check(self, now: float, *, waiting: bool) -> LinkHealth:
        """Judge.

        Args:
            now: The time.
            waiting: The peer has to wait for us: a request of it is unanswered, and no upload is on its way.
        """
        late = now - self._checked - self.interval
        self._checked = now
        if late > self.interval:  # our own process stood still: what the peer sent meanwhile may still lie unread
            self._heard += late
            if self._stalled_since is not None:
                self._stalled_since += late
        if self._stalled_since is not None and now - self._stalled_since >= self._timing.write:
            return LinkHealth.STALLED
        silence = now - self._heard
        if not self._beats:
            return LinkHealth.IDLE if silence >= self._timing.idle and not (waiting or self._deaf) else LinkHealth.FINE
        if silence >= self._timing.silence and not self._deaf:
            return LinkHealth.SILENT
        # While deaf we still ping: the peer, whose own pings we do not read, hears that we live.
        if silence >= self._timing.heartbeat and now - self._pinged >= self._timing.heartbeat:
            self._pinged = now
            return LinkHealth.PING
        return LinkHealth.FINE
