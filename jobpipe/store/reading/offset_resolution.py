"""Which positions of a log the boundaries of a read mean: the one place that decides, for streams and bounded reads.

Publish times never fall with the offset (:meth:`jobpipe.store.log.seal.BatchSealer.insert` sees to it), so a time
is found by halving. An end by time is decided once no batch can follow that was published before: a batch of that time
is there, or the clock has passed it. The second lets the log remember the time, so that a clock set back cannot undo
it.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from datetime import UTC, datetime

from jobpipe.errors import ConfigError, DataLoss, RemoteProtocolError
from jobpipe.store.catalog.batches import Batches
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.log_clock import LogClock
from jobpipe.store.catalog.position import Position
from jobpipe.store.catalog.recovery import Recovery
from jobpipe.store.reading.boundary import Boundary

_LAST_MS = 253_402_300_799_999  # of year 9999, the last that datetime knows


@dataclass(frozen=True)
class ResolvedRange:
    """What a read covers of a topic.

    Attributes:
        start, end: Half-open; ``end`` is None while it is not decided yet.
        lost: Batches that were asked for and removed, which ``skip_removed`` passes over.
    """

    start: Position
    end: Position | None
    lost: int


class OffsetResolver:
    """Finds the boundaries of reads in one log."""

    def __init__(self, database: Database, batches: Batches, recovery: Recovery, clock: LogClock) -> None:
        self._db = database
        self._batches = batches
        self._resolve = recovery.resolve
        self._clock = clock

    def resolve(
        self, start: Boundary, end: Boundary | None, *, committed: Position, skip_removed: bool = False
    ) -> ResolvedRange:
        """Return what lies between two boundaries.

        Args:
            committed: what the word means.
            skip_removed: begin at the tail where ``start`` was removed.

        Raises:
            DataLoss: the log does not have the offset or position of the start.
            ConfigError: nothing was published since the time of the start, or it lies after the end.
        """
        lost = 0
        try:
            begin = self._start(start, committed)
        except DataLoss as loss:
            if not skip_removed or loss.fields["reason"] != "removed":
                raise
            begin = self._batches.tail()
            lost = begin.n - int(loss.fields["position"]["n"])
        stop = None if end is None else self.end(end)
        if stop is not None and stop.place < begin.place:
            if not lost:
                raise self._after_end(begin, stop)
            stop = begin
        return ResolvedRange(begin, stop, lost)

    def require_order(self, begin: Position, end: Boundary) -> None:
        """Check that a read does not end before it begins.

        Raises:
            ConfigError: it is decided where the read ends, and that lies before ``begin``.
        """
        stop = self.end(end)
        if stop is not None and stop.place < begin.place:
            raise self._after_end(begin, stop)

    def end(self, boundary: Boundary) -> Position | None:
        """Return the position of an end, None while it is not decided: nothing that is there lies after it.

        It may lie before what is there. Not inside a transaction.

        Raises:
            DataLoss: it is a position that the log never had.
        """
        batches, value = self._batches, boundary.value
        match boundary.kind:
            case "latest":
                return batches.head()
            case "offset" if isinstance(value, int):
                return batches.at(value) if value <= batches.next_n() else None
            case "position" if isinstance(value, Position):
                here = self._resolve(value)
                if here is not None:
                    batches.check_origin(here)
                return here
            case "time" if isinstance(value, int):
                return self._end_by_time(value)
        raise RemoteProtocolError(f"a read cannot end at {boundary.kind}", boundary=boundary.to_json())

    def _start(self, boundary: Boundary, committed: Position) -> Position:
        batches, value = self._batches, boundary.value
        match boundary.kind:
            case "earliest":
                return batches.tail()
            case "latest":
                return batches.head()
            case "time":
                return self._start_by_time(boundary)
            case "committed":
                position = committed
            case _ if isinstance(value, Position):
                position = self._resolve(value) or value
            case _:
                position = batches.at(int(value or 0))
        batches.check(position)
        return position

    def _start_by_time(self, boundary: Boundary) -> Position:
        batches, ms = self._batches, boundary.value
        assert isinstance(ms, int)  # noqa: S101 - a time
        n, newest = self._first_since(ms), batches.newest_ms()
        if n < batches.next_n() or (newest is not None and ms <= newest) or boundary.otherwise == "latest":
            return batches.at(n)
        known = "nothing was published yet" if newest is None else f"the newest batch is of {_when(newest)}"
        raise ConfigError(
            f"topic {batches.topic!r}: nothing was published at {_when(ms)} or later, {known}. Begin earlier, "
            "or at latest (in Spark by startingOffsetsByTimestampStrategy=latest)",
            topic=batches.topic,
            time=ms,
            newest=newest,
        )

    def _end_by_time(self, ms: int) -> Position | None:
        batches = self._batches
        n = self._first_since(ms)
        if n == batches.next_n() and batches.time_floor() < ms:
            if int(self._clock.wall() * 1000) < ms:
                return None
            with self._db.write():
                batches.raise_time_floor(ms)
        return batches.at(n)

    def _first_since(self, ms: int) -> int:
        """Return the offset of the first batch that is there and was published at ``ms`` or later; else the head's."""
        tail = self._batches.tail_n()
        there = range(tail, self._batches.next_n())
        return tail + bisect.bisect_left(there, ms, key=self._batches.sealed_ms)

    def _after_end(self, begin: Position, stop: Position) -> ConfigError:
        topic = self._batches.topic
        return ConfigError(
            f"topic {topic!r}: the read begins at {_place(begin)}, after its end at {_place(stop)}. Move one of "
            "them; a stream with a new name begins at latest by default",
            topic=topic,
            start=begin.to_json(),
            end=stop.to_json(),
        )


def _place(position: Position) -> str:
    return f"offset {position.n}" + (f", record batch {position.r}" if position.r else "")


def _when(ms: int) -> str:
    if ms > _LAST_MS:
        return f"{ms} ms"
    return f"{datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec='milliseconds')} ({ms} ms)"
