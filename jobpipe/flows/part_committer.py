"""Publishes what the function returned, and moves the cursors: in a thread of its own, while the function goes on.

One request is under way at a time. What the function returns meanwhile goes with the next one: so a task that keeps up
seals each record batch at once, and one that has a backlog seals many together.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from jobpipe.errors import Fenced, FlowNotFound, SpoolFull, from_fault
from jobpipe.flows.task_links import ControlLink
from jobpipe.net.retry import Deadline
from jobpipe.operations.flow_operations import (
    MAX_PARTS,
    AdmitPartReply,
    AdmitPartRequest,
    ClaimRequest,
    PartSeal,
    PartSealed,
    SealPartsRequest,
)
from jobpipe.publishing.batch_target import WriteTarget
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.flow_cursors import FlowKey
from jobpipe.store.spool.segment_index import SegmentInfo
from jobpipe.store.spool.spool_files import new_write_id

log = logging.getLogger(__name__)

CALL_SECONDS = 60.0
ROOM_SECONDS = 0.5  # of one question whether there is room: a stop waits so long
EMPTY_SECONDS = 0.5  # between two moves of a cursor for which nothing was published, unless its source waits
HELD_BYTES = 8 * 1024 * 1024  # that wait to be sealed; then the function waits
PART_BYTES = 4 * 1024 * 1024  # of one partition that are sealed together, unless the function returned more at once
SMALL_BYTES = 48 * 1024  # of one partition: these travel with the seal
REQUEST_BYTES = 4 * 1024 * 1024  # that travel with one seal, of all partitions together


class ClaimLost(Exception):
    """Another task has these partitions now; this one is about to be killed."""


@dataclass(frozen=True)
class PublishedTopic:
    """What is published, as tasks need it.

    Attributes:
        target: where files go; what changes from file to file is filled in by each task.
        schema: of every row.
        token: of the flow.
        room_timeout: seconds without room after which that is an error.
        part_bytes: what is returned for several record batches is sealed together up to so many.
    """

    target: WriteTarget
    schema: pa.Schema
    token: str = field(repr=False)
    room_timeout: float
    part_bytes: int = PART_BYTES


@dataclass
class _FinishedCall:
    """What the function returned for some record batches, to be sealed together; ``to`` is the place after them.

    ``read``: rows that it was given for it.
    """

    to: Position
    rows: list[pa.RecordBatch]
    size: int
    read: int


@dataclass
class _Partition:
    """One partition of the source.

    Attributes:
        claim: ours.
        at: what is durable.
        to: what the function has done.
        waiting: what it returned in between, and is not being sealed yet.
    """

    claim: int
    at: Position
    to: Position
    waiting: deque[_FinishedCall] = field(default_factory=deque)
    moved: float = field(default_factory=time.monotonic)

    def add(self, done: _FinishedCall, limit: int) -> None:
        """Note what the function has done; it joins what waits already, up to so many bytes."""
        last = self.waiting[-1] if self.waiting else None
        if last is not None and last.size + done.size <= limit:
            last.to, last.size, last.read = done.to, last.size + done.size, last.read + done.read
            last.rows += done.rows
        else:
            self.waiting.append(done)
        self.to = done.to

    @property
    def has_rows(self) -> bool:
        """Whether something is to be published."""
        return any(done.rows for done in self.waiting)


@dataclass(frozen=True)
class _Taken:
    """What one request is about, of one partition."""

    partition: int
    claim: int
    start: Position
    to: Position
    rows: list[pa.RecordBatch]
    read: int


class PartCommitter:
    """Seals for one task.

    Args:
        link: to the coordinator that has the cursors; used by one thread at a time, by :meth:`claim` first.
        key: whose cursors.
        grant: of the subscription, where nothing is published.
        publishes: what is; None for nothing.
        stopped: asked while there is no room: a flow that is stopped does not wait for it.
    """

    def __init__(
        self,
        link: ControlLink,
        key: FlowKey,
        grant: int,
        publishes: PublishedTopic | None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stopped = stopped
        self._link = link
        self._key = key
        self._grant = grant
        self._publishes = publishes
        self._token = "" if publishes is None else publishes.token
        self._part_bytes = PART_BYTES if publishes is None else publishes.part_bytes
        self._changed = threading.Condition()
        self._partitions: dict[int, _Partition] = {}
        self._held = 0
        self._flushing = False
        self._hurries = False
        self._has_room = False  # as far as is known
        self._closed = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"seal-{key.flow}", daemon=True)

    def claim(self, partitions: Iterable[int]) -> dict[int, Position]:
        """Claim partitions; return where each goes on.

        Raises:
            FlowNotFound: the flow was reset, or its driver is gone.
        """
        asked = ClaimRequest(
            *(self._key.flow, self._key.topic, self._key.log, tuple(partitions)), grant=self._grant, token=self._token
        )
        for each in self._link.ask(asked, timeout=CALL_SECONDS).cursors:
            self._partitions[each.partition] = _Partition(each.claim, each.position, each.position)
        self._thread.start()
        return {partition: known.at for partition, known in self._partitions.items()}

    def done(self, partition: int, to: Position, rows: list[pa.RecordBatch], read: int) -> None:
        """Note that the function has done what lies before ``to``; wait while too much is to be sealed.

        Args:
            partition: of the source.
            to: the place after what the function was given.
            rows: what it returned.
            read: how many rows it was given.

        Raises:
            ClaimLost: another task has the partition.
            JobpipeError: what keeps the thread from sealing.
        """
        size = sum(batch.nbytes for batch in rows)
        with self._changed:
            self._changed.wait_for(lambda: self._held <= HELD_BYTES or self._failure is not None)
            self._raise_failure()
            known = self._partitions[partition]
            is_first = known.at == known.to
            known.add(_FinishedCall(to, list(rows), size, read), self._part_bytes)
            self._held += size
            if rows or is_first or self._hurries:  # else the thread moves the cursor when that is due
                self._changed.notify_all()

    def hurry(self, on: bool) -> None:
        """Move cursors at once from now on, also where nothing was published; or no longer."""
        with self._changed:
            self._hurries = on
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all that was done is sealed, and the cursors are there; raises as :meth:`done`."""
        with self._changed:
            self._flushing = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._failure is not None or all(each.at == each.to for each in self._partitions.values())
            )
            self._flushing = False
            self._raise_failure()

    def close(self) -> None:
        """End the thread; what is not sealed is forgotten. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(CALL_SECONDS)

    @property
    def failed(self) -> bool:
        """Whether something keeps the thread from sealing, which :meth:`flush` raises."""
        return self._failure is not None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (taken := self._take()) is not None:
                if taken:
                    self._seal(taken)
        except Exception as error:
            log.debug("sealing ended", exc_info=True)
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _take(self) -> list[_Taken] | None:
        """Wait for something to seal; None when the thread is to end."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                waiting = [(number, each) for number, each in self._partitions.items() if each.at != each.to]
                due = [(n, each) for n, each in waiting if each.has_rows or self._is_due(each, now)]
                if due:
                    return self._taken(due)
                seconds = min((each.moved + EMPTY_SECONDS - now for _, each in waiting), default=None)
                self._changed.wait(seconds)
        return None

    def _is_due(self, each: _Partition, now: float) -> bool:
        return self._flushing or self._hurries or now - each.moved >= EMPTY_SECONDS

    def _taken(self, due: list[tuple[int, _Partition]]) -> list[_Taken]:
        taken: list[_Taken] = []
        for number, each in due[:MAX_PARTS]:
            done = each.waiting.popleft()
            taken.append(_Taken(number, each.claim, each.at, done.to, done.rows, done.read))
        return taken

    def _seal(self, taken: list[_Taken]) -> None:
        while taken:
            taken = self._sealed_some(taken)

    def _sealed_some(self, taken: list[_Taken]) -> list[_Taken]:
        """Seal as much as one request carries; return the rest, and what must be written again."""
        first = next((each for each in taken if each.rows), None)
        if first is not None and not self._has_room:
            self._admit(first.partition, first.claim)
        parts: list[PartSeal] = []
        segments: list[SegmentInfo] = []
        size = 0
        for each in taken:
            write_id, written = self._written(each)
            size += sum(len(info.data) for info in written if info.data is not None)
            parts.append(PartSeal(each.partition, each.claim, each.start, each.to, write_id, len(written), each.read))
            segments += written
            if size > REQUEST_BYTES:
                break
        asked = SealPartsRequest(
            *(self._key.flow, self._key.topic, self._key.log, tuple(parts), tuple(segments)),
            grant=self._grant,
            token=self._token,
        )
        reply = self._link.ask(asked, timeout=CALL_SECONDS)
        if segments:  # to others it says that more of them may come, whether or not there is room
            self._has_room = reply.room
        again = [each for each, outcome in zip(taken, reply.parts, strict=False) if not self._note(each, outcome)]
        return again + taken[len(parts) :]

    def _note(self, each: _Taken, outcome: PartSealed) -> bool:
        """Note what became of a part; False if it must be written again."""
        if outcome.again:
            return False
        if outcome.code == Fenced.__name__:
            raise ClaimLost(outcome.message)
        if outcome.code or outcome.position is None:
            raise from_fault(outcome.code, outcome.message, {})
        if outcome.position.place < each.to.place or outcome.position.log != each.to.log:
            raise FlowNotFound(
                f"flow {self._key.flow!r}, partition {each.partition}: the cursor is at {outcome.position.place}, not "
                f"at {each.start.place}: the flow was reset, or its catalog is an old copy",
                flow=self._key.flow,
                partition=each.partition,
            )
        with self._changed:
            known = self._partitions[each.partition]
            known.at, known.moved = each.to, time.monotonic()
            self._held -= sum(batch.nbytes for batch in each.rows)
            self._changed.notify_all()
        return True

    # -- writing -------------------------------------------------------------------------------------------------------

    def _written(self, each: _Taken) -> tuple[str, list[SegmentInfo]]:
        """Return the rows as segments, with their write id: in memory, or in a file if they are many."""
        if not each.rows or self._publishes is None:
            return new_write_id(), []
        publishes, small = self._publishes, sum(batch.nbytes for batch in each.rows) <= SMALL_BYTES
        rows = [pa.concat_batches(each.rows)] if small and len(each.rows) > 1 else each.rows  # type: ignore[attr-defined]
        held = replace(publishes.target, write_id=new_write_id(), inline_max=REQUEST_BYTES)
        target = held if small else self._admitted(each)
        partition = each.partition % target.partitions
        return target.write_id, target.write(publishes.schema, ((batch, partition) for batch in rows), "0", small=small)

    def _admitted(self, each: _Taken) -> WriteTarget:
        assert self._publishes is not None  # noqa: S101 - the caller looked
        reply = self._admit(each.partition, each.claim)
        admitted = reply.admitted
        assert admitted is not None  # noqa: S101 - there is room
        return replace(
            self._publishes.target,
            write_id=admitted.write_id,
            instance=admitted.instance,
            data=admitted.data,
            hosts=admitted.hosts,
            ticket=reply.ticket,
            log=reply.log,
            log_token=reply.log_token,
        )

    def _admit(self, partition: int, claim: int) -> AdmitPartReply:
        """Wait for room, as long as it takes; return what lets us write a file.

        Raises:
            SpoolFull: there was none, and the flow is stopped.
        """
        assert self._publishes is not None  # noqa: S101 - the caller looked
        deadline = Deadline(self._publishes.room_timeout)
        while True:
            asked = AdmitPartRequest(self._key.flow, self._token, partition, claim, ROOM_SECONDS)
            try:
                reply = self._link.ask(asked, timeout=CALL_SECONDS)
            except Fenced as error:
                raise ClaimLost(error.message) from error
            if reply.admitted is not None:
                return reply
            topic = self._publishes.target.topic
            if self._closed or self._stopped():
                raise SpoolFull(f"topic {topic!r} has no room: {reply.full}", topic=topic, reason=reply.full)
            if deadline.passed:
                log.warning(
                    "flow %s waits: topic %s has had no room for %g s: %s. Let its reader catch up, drop the "
                    "subscription, or raise jobpipe.spool.max_bytes",
                    *(self._key.flow, topic, self._publishes.room_timeout, reply.full),
                )
                deadline = Deadline(self._publishes.room_timeout)
