"""What an old and a new coordinator do with one topic's log, and what must be true of it in the end.

Real are the store, SQLite and the files; there is no event loop, no link and no registry. A coordinator is a
:class:`Side`: its ``TopicLog``, its write id in progress and what it was answered. The rows are those of
``jobpipe.testing``, whose checker judges what can be read in the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import pyarrow as pa

from jobpipe.errors import JobpipeError, SpoolError
from jobpipe.store.catalog.position import Position
from jobpipe.store.catalog.recovery import RecoveryPoint
from jobpipe.store.log.flow_commits import SegmentPart
from jobpipe.store.log.flow_cursors import Cursor, FlowKey
from jobpipe.store.log.retention import Retention
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.spool.segment import SegmentFile
from jobpipe.store.spool.segment_index import INLINE_MAX, SegmentInfo
from jobpipe.store.spool.spool_files import Reserve, file_name, new_write_id
from jobpipe.testing import Journal, NumberedRows
from jobpipe.testing.numbered_rows import SCHEMA
from tests.explore.interleaving.interleave_steps import mend_disk

TOPIC = "orders"
QUERY = "q"
HOST = "h1"
PARTITIONS = 2
HISTORY = 4  # batches there are before
LAST = 5  # the last batch that the new coordinator's publisher seals
PLACEMENTS = ("driver", "shared", "host")
ALL_GOES = Retention(time=0, bytes=0, ack_grace=0, subscription_expiry=1e9)
ROWS = NumberedRows(TOPIC, partitions=PARTITIONS, rows=3)
SLOT = "ab" * 16
FLOW = FlowKey("flow", "source", "00112233445566aa")
FIRST_PART = 50  # the number of the oracle's batch whose rows are those of a flow's first part


def part_tables(n: int) -> list[pa.Table]:
    """Return what a flow returns for batch ``n`` of its source."""
    return ROWS.tables(FIRST_PART + n)


@dataclass
class World:
    """One topic's files and what was promised to anybody.

    Attributes:
        seals: (batch id, position) of each seal that was answered.
        acked: By subscription, the furthest acknowledgement whose flush was answered.
        slots: (slot, end) of each that was answered.
        grants: (name, number) of each that was answered, in order.
        leased: First offsets of answered leases and holds.
        parts: How many parts of a flow were answered as sealed.
        epoch: The highest that the registry has given.
        mended: A batch was taken back, so its first seal does not count any more.
    """

    home: Path
    placement: str
    journal: Journal = field(default_factory=Journal)
    seals: list[tuple[int, Position]] = field(default_factory=list)
    acked: dict[str, int] = field(default_factory=dict)
    slots: list[tuple[str, Position]] = field(default_factory=list)
    grants: list[tuple[str, int]] = field(default_factory=list)
    leased: list[int] = field(default_factory=list)
    parts: int = 0
    epoch: int = 0
    mended: bool = False

    @property
    def directory(self) -> Path:
        return self.home / TOPIC

    @property
    def hosts(self) -> Path:
        return self.home / "hosts"

    def next_epoch(self, at_least: int) -> int:
        """What the registry answers."""
        self.epoch = max(self.epoch + 1, at_least)
        return self.epoch

    def open(self) -> TopicLog:
        return TopicLog.open(self.directory, TOPIC, fsync=True, shared=self.placement == "shared", wall=lambda: 1e9)


class Side:
    """One coordinator."""

    def __init__(self, world: World, run_id: str, log: TopicLog | None = None) -> None:
        self.world = world
        self.run_id = run_id
        self.writing = ""
        self._log = log

    @property
    def epoch(self) -> int:
        """0 without a log."""
        return 0 if self._log is None else self._log.epoch

    @property
    def log(self) -> TopicLog:
        assert self._log is not None
        return self._log

    def begin(self) -> None:
        """Be the topic's coordinator, as a take-over makes one."""
        self._log = self.world.open()
        self._log.keep_to("/jobpipe/topics")
        self.take_over()
        self._log.required.declare(())
        self._log.cleaner.sweep({self.writing})

    def take_over(self) -> None:
        self.log.take_over(self.world.next_epoch(self.log.epoch + 1), self.run_id)

    def do(self, work: Callable[[Side], None]) -> None:
        """Run an operation as the topic's thread does: once more after a commit of unknown outcome."""
        try:
            work(self)
        except SpoolError as error:
            if not error.fields.get("reopen"):
                raise
            mend_disk()
            if self._log is not None:  # else it failed while it was opened for the first time
                self._log.reopen()
            work(self)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def end(self) -> None:
        """Close the log, also if it was opened again by a close whose commit failed."""
        with contextlib.suppress(JobpipeError):
            self.close()
        if self._log is not None:
            self._log._db.close()

    # -- operations ----------------------------------------------------------------------------------------------------

    def publish(self, batch_id: int, *, inline: bool = True) -> None:
        """Write and seal one batch, unless the query has it already."""
        last = self.log.batches.last_sealed(QUERY)
        if last is not None and last.batch_id >= batch_id:
            return
        self.writing = self.writing or new_write_id()
        segments = self._written(self.writing, ROWS.tables(batch_id), inline=inline)
        ranges = ROWS.ranges(batch_id)
        self.world.journal.intend(batch_id, ranges)
        number = self.log.schemas.add(SCHEMA.serialize().to_pybytes(), None)
        batch = NewBatch(QUERY, batch_id, self.run_id, self.writing, number, PARTITIONS, "rr")
        position = self.log.seal(batch, segments)
        self.world.journal.seal(batch_id)
        self.world.seals.append((batch_id, position))
        self.writing = ""

    def _written(self, write_id: str, tables: Sequence[pa.Table], *, inline: bool) -> list[SegmentInfo]:
        host = self.world.placement == "host" and not inline
        folder = self.world.hosts if host else self.log.segments
        name = file_name(write_id, new_write_id())  # of another attempt each time
        file = SegmentFile.create(folder, name, inline_max=INLINE_MAX if inline else 0)
        for part, table in enumerate(tables):
            for batch in table.to_batches():
                file.begin(part, SCHEMA).write(batch)
        return [replace(info, host=HOST) if host else info for info in file.finish(fsync=True)]

    def publish_part(self, cursor: Cursor, *, inline: bool) -> Cursor:
        """Publish what a flow returned for the batch at its cursor; return where that is then."""
        write_id, start = new_write_id(), cursor.position
        segments = self._written(write_id, part_tables(start.n), inline=inline)
        number = self.log.schemas.add(SCHEMA.serialize().to_pybytes(), None)
        batch = NewBatch("", -1, FLOW.flow, write_id, number, PARTITIONS, "rr")
        to = replace(start, n=start.n + 1)
        part = SegmentPart(FLOW, cursor.partition, cursor.claim, start, to, batch, segments)
        (outcome,) = self.log.seal_parts([part], writing={write_id})
        if isinstance(outcome, JobpipeError):
            raise outcome
        self.world.parts = max(self.world.parts, outcome.cursor.position.n)
        return outcome.cursor

    def publish_rest(self) -> None:
        """What the query of a new publisher does: repeat what may not be sealed, go on from there."""
        last = self.log.batches.last_sealed(QUERY)
        for batch_id in range(0 if last is None else last.batch_id + 1, LAST + 1):
            self.do(lambda side, number=batch_id: side.publish(number, inline=number % 2 == 0))  # type: ignore[misc]

    def acknowledge(self, name: str, n: int) -> None:
        log = self.log
        if n > log.batches.next_n():
            return  # taken back: the coordinator's `recovery.resolve` lets the acknowledgement wait
        grant = next(known.grant for known in log.subscriptions.all() if known.name == name)
        log.subscriptions.acknowledge(name, grant, log.batches.at(n))
        log.subscriptions.flush()
        self.world.acked[name] = max(self.world.acked.get(name, 0), n)

    def tidy(self) -> None:
        """Remove files of the host server that nobody needs, as the coordinator does by listings."""
        names = sorted(os.listdir(self.world.hosts))
        for name in self.log.cleaner.orphans(names, {self.writing}):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.world.hosts / name)


def _seal_inline(side: Side) -> None:
    side.publish(HISTORY - 1)  # which may have been taken back
    side.publish(HISTORY)


def _seal_files(side: Side) -> None:
    side.publish(HISTORY - 1, inline=False)
    side.publish(HISTORY, inline=False)


def _end(side: Side) -> None:
    side.publish(HISTORY - 1)  # which may have been taken back
    side.log.seal(replace(NewBatch.end_mark(PARTITIONS), write_id="e" * 16), [])


def _acknowledge(side: Side) -> None:
    side.acknowledge("s", HISTORY)


def _grant(side: Side) -> None:
    side.log.subscriptions.subscribe("u")
    number = side.log.subscriptions.grant("u", {"instance": side.run_id})
    side.world.grants.append(("u", number))
    side.log.subscriptions.first_position("u", side.log.batches.at(3))


def _slot(side: Side) -> None:
    log = side.log
    grant = next(known.grant for known in log.subscriptions.all() if known.name == "s")
    log.slots.add("s", grant, SLOT, log.batches.at(3))
    end = log.slots.bind("s", grant, SLOT, log.batches.head()).end
    assert end is not None
    side.world.slots.append((SLOT, end))


def _retain(side: Side) -> None:
    side.acknowledge("s", 3)
    side.log.clock.tick(1)
    side.log.cleaner.retain(ALL_GOES)


def _sweep(side: Side) -> None:
    side.log.cleaner.sweep({side.writing})
    side.tidy()


def _take_back(side: Side) -> None:
    side.take_over()
    side.world.mended = True
    if side.log.batches.is_newest(QUERY, HISTORY - 1):
        side.log.take_back(QUERY, HISTORY - 1)
    side.publish(HISTORY - 1)


def _lease(side: Side) -> None:
    side.log.leases.hold("l", 3, HISTORY, 1e6)
    side.world.leased.append(3)


def _hold(side: Side) -> None:
    side.log.holds.take("h", "control", side.log.batches.at(3), 1e9)
    side.world.leased.append(3)


def _make_room(side: Side) -> None:
    side.log.make_room(reserve=False)
    _seal_inline(side)


def _part(side: Side) -> None:
    side.publish(HISTORY - 1)  # which may have been taken back
    (cursor,) = side.log.cursors.claim(FLOW, [0])
    for inline in (True, False):
        cursor = side.publish_part(cursor, inline=inline)


def _seek(side: Side) -> None:
    if any(known.name == "t" for known in side.log.subscriptions.all()):
        side.log.subscriptions.seek("t", side.log.batches.at(3))
        side.log.subscriptions.drop("t")


def _close(side: Side) -> None:
    side.log.clock.tick(1)
    side.log.close()


OPERATIONS: dict[str, Callable[[Side], None]] = {
    "seal": _seal_inline,
    "files": _seal_files,
    "end": _end,
    "ack": _acknowledge,
    "grant": _grant,
    "slot": _slot,
    "retain": _retain,
    "sweep": _sweep,
    "take-back": _take_back,
    "lease": _lease,
    "hold": _hold,
    "make-room": _make_room,
    "part": _part,
    "seek": _seek,
    "close": _close,
}
"""Of either coordinator; "restore" is a pair of its own, as it needs a topic without a catalog."""


def restore(side: Side) -> None:
    """Make a lost log anew where its last recovery point says, as the take-over with ``acks=all`` does."""
    point = RecoveryPoint("0123456789abcdef", 1, HISTORY, 1, HISTORY + 1, QUERY, HISTORY)
    side._log = side.world.open()
    if side.log.is_new:
        side.log.restore(point)
    side.take_over()
    side.publish_rest()


def operations(placement: str) -> list[str]:
    """The names of what either side may do."""
    return [name for name in OPERATIONS if placement == "host" or name != "take-back"]


@contextlib.contextmanager
def small_reserve() -> Iterator[None]:
    """Let a topic keep little room in reserve, as thousands are made."""
    with mock.patch.object(Reserve, "BYTES", 4096), mock.patch.object(Reserve, "_SPARE", 0):
        yield


def template(home: Path, placement: str, *, empty: bool = False) -> Path:
    """Make a topic with some history, to be copied for each run; return its home."""
    world = World(home / ("empty" if empty else placement), placement)
    world.hosts.mkdir(parents=True)
    if not empty:
        side = Side(world, "first")
        with small_reserve():
            side.begin()
            for batch_id in range(HISTORY):
                side.publish(batch_id, inline=batch_id % 2 == 0)
            for name, n in (("s", 1), ("t", HISTORY)):
                side.log.subscriptions.subscribe(name)
                side.log.subscriptions.grant(name, {})
                side.log.subscriptions.first_position(name, side.log.batches.at(n))
            side.log.cursors.begin(FLOW, Position(FLOW.log, 1, 0), 1)
            left = Side(world, "lost", side.log)
            left.writing = "f" * 16
            (side.log.segments / file_name(left.writing, "0")).write_bytes(b"left")  # files of a lost attempt
            (world.hosts / file_name(left.writing, "0")).write_bytes(b"left")
            side.close()
    return world.home


def copy(source: Path, target: Path, placement: str) -> World:
    """Return a world of its own, as the template left it."""
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target)
    world = World(target, placement)
    for batch_id in range(HISTORY):
        world.journal.intend(batch_id, ROWS.ranges(batch_id))
        world.journal.seal(batch_id)
    return world
