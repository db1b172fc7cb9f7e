"""One topic that this coordinator publishes: its log, its live subscribers, and the requests that wait for news."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Container, Sequence

from jobpipe.coordinator.ledger_replies import hop_counts
from jobpipe.coordinator.topic.flow_reads import FlowReads
from jobpipe.coordinator.topic.log_thread import LogThread
from jobpipe.coordinator.topic.topic_flows import OpenWriteIds, TopicFlows
from jobpipe.coordinator.topic.topic_holds import TopicHolds, hold_words
from jobpipe.coordinator.topic.topic_leases import TopicLeases
from jobpipe.coordinator.topic.topic_slots import SlotBinder
from jobpipe.coordinator.topic.topic_state import LogSnapshot, TopicState
from jobpipe.coordinator.topic.topic_subscribers import TopicSubscribers
from jobpipe.errors import ConfigError, Fenced, RegistryUnavailable, SpoolError, SpoolFull, TopicOwned
from jobpipe.net.servers.identity_quota import IdentityQuotas
from jobpipe.operations.admin_operations import HoldReply
from jobpipe.operations.messages.source_messages import SourceReport, SourceStatus
from jobpipe.operations.publisher_operations import MAX_WRITERS, NO_ROOM, NewestQuery, OpenRequest
from jobpipe.operations.status_operations import (
    ACKS_WAIT,
    MAX_WAITING,
    CursorStatus,
    FlowStatus,
    Holder,
    Lag,
    SubscriptionStatus,
    TopicStatus,
)
from jobpipe.store.catalog.batches import division_of
from jobpipe.store.catalog.position import Position
from jobpipe.store.catalog.recovery import RecoveryPoint
from jobpipe.store.catalog.redrive_marks import SourceRow
from jobpipe.store.log.catalog_status import LogStatus, SubscriptionLine
from jobpipe.store.log.flow_cursors import FlowPlace
from jobpipe.store.log.retention import Retention
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.spool.segment_index import SegmentInfo
from jobpipe.store.spool.spool_files import new_write_id
from jobpipe.store.subscriptions.holds import held_back

log = logging.getLogger(__name__)

LOW_BYTES = 64 * 1024 * 1024  # with less left on the disk, retention runs before each batch
BUSY_SECONDS = 0.3  # if the log's thread has not answered by then, status() returns the last known state
COMPLAINT_SECONDS = 60.0  # between two log entries about the same trouble with the disk
RECOVERY_POINT_SECONDS = 2.0  # how long a batch waits for the registry to store its recovery point
NO_POINT = "topic %s: %s; until a later batch has stored a recovery point, losing the spool loses rows"
NO_SUBSCRIPTION = "no subscription exists; batches can be removed when they are as old as retention.ack_grace"
SWEEP_SECONDS = 60.0  # between two searches for segment files that no batch refers to


class _NoRoomError(Exception):
    """No JobpipeError: a full spool, unlike a full disk, is no reason for the log's thread to try again."""


class ServedTopic(TopicState):
    """A topic and its parts. It seals batches, makes room and reports its status. The base has what the parts share."""

    def __init__(
        self,
        topic: str,
        thread: LogThread,
        asked: OpenRequest,
        keep_recovery_point: Callable[[str], None] | None,
        known: LogSnapshot,
        quotas: IdentityQuotas | None,
    ) -> None:
        """Use :meth:`open`."""
        super().__init__(topic, thread, asked, known)
        store = thread.store
        self.epoch = store.epoch
        self.epoch_drawn = store.epoch  # the highest one drawn from the registry; the log may not have it yet
        self.renewing = asyncio.Lock()  # held while the epoch is raised
        self.registering = asyncio.Lock()  # held while the topic is announced in the registry, or withdrawn
        # A publisher has the topic. False once closed or fenced. It stays true if the publisher dies; see ParentWatch.
        self.publishing = not asked.serve
        self.waiting: str | None = None
        self._source: tuple[SourceReport, float] | None = None  # as the publisher said last, and when
        self.subscribers = TopicSubscribers(self)
        self.slots = SlotBinder(self, self.subscribers)
        self.leases = TopicLeases(self, quotas or IdentityQuotas())
        self.holds = TopicHolds(self)
        self.flows = TopicFlows(self, self.subscribers)
        self.flow_reads = FlowReads(self)
        # Made once, so that it keeps its write id: sealing it again counts as a repeat.
        self._end_mark = NewBatch.end_mark(asked.parallelism)
        self.ticked_at = self.retained_at = time.monotonic()
        self._ran_at_tick = -1  # pieces of work that the log's thread had begun with the last tick that succeeded
        self._last_write = {**{each: each for each in asked.others}, "": asked.writing}  # by writer, oldest first
        self.writing = set(
            asked.in_progress
        )  # write ids of batches in progress; changed in place: a running sweep reads it
        self._swept_at = time.monotonic()
        self._status = known.status
        self._status_at = time.monotonic()
        self._asked_status: asyncio.Future[tuple[LogStatus, float]] | None = None
        self._keep_recovery_point = keep_recovery_point  # blocking; given when `acks=all`
        self._storing_point: asyncio.Future[None] | None = None
        self._trouble: str | None = None  # the disk's error, if the last tick saw one
        self._complained_at = -COMPLAINT_SECONDS

    @classmethod
    async def open(
        cls,
        topic: str,
        store: TopicLog,
        asked: OpenRequest,
        keep_recovery_point: Callable[[str], None] | None = None,
        quotas: IdentityQuotas | None = None,
    ) -> ServedTopic:
        """Return the served topic, which owns the log from now on.

        Raises:
            SpoolError: the log cannot be read; it is closed then.
        """
        thread = LogThread(topic, store)
        try:
            known = await thread.run(lambda: LogSnapshot.of(store))
            return cls(topic, thread, asked, keep_recovery_point, known, quotas)
        except BaseException:
            await thread.close(0.0)
            raise

    @property
    def retention(self) -> Retention:
        """The rules of retention as configured for this topic."""
        config = self.config
        return Retention(
            time=config.retention_time,
            bytes=config.retention_bytes,
            ack_grace=config.ack_grace,
            subscription_expiry=config.subscription_expiry,
            min_subscribers=self.asked.min_subscribers,
            expire_holds=not self.asked.serve,
        )

    @property
    def being_written(self) -> Container[str]:
        """A live view of the write ids in progress: each ``in`` looks at the present state."""
        return OpenWriteIds(self.writing, self.flows.writing)

    def begin_write(self, writer: str = "") -> str:
        """Begin a batch, and return its write id.

        From now on a sweep may remove files of this writer's earlier batch, unless it was sealed.

        Args:
            writer: tells several writers of one publisher apart; of more than ``MAX_WRITERS`` the oldest is forgotten.
        """
        write_id = new_write_id()
        self.writing.add(write_id)
        given_up = {self._last_write.pop(writer, "")}
        self._last_write[writer] = write_id
        while len(self._last_write) > MAX_WRITERS:
            given_up.add(self._last_write.pop(next(iter(self._last_write))))
        self.writing.difference_update(given_up)
        return write_id

    # -- publishing ----------------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Tell whether another batch fits without any clean-up. Call it in the log's thread."""
        limit = self.config.spool_max_bytes
        return self._store.free_bytes() >= min(LOW_BYTES, limit) and self._store.used_bytes() < limit

    async def room(self, wait: float, *, has_room: bool, announce: bool = True) -> str | None:
        """Return None if the spool has room, or can make some. Else wait for an acknowledgement; return why it is full.

        Args:
            wait: Seconds to wait at most.
            has_room: What :meth:`has_room` returned just now.
            announce: Let subscribers know why the publisher waits; not of an appender, whose wait they cannot end.
        """
        full = None if has_room else await self._make_room()
        if announce:
            self._set_waiting(full)
        if full is not None:
            await self.acked.wait(wait)
        return full

    async def _make_room(self) -> str | None:
        """Remove what may go, as far as it is needed; return why there is still no room, None if there is."""
        limit = self.config.spool_max_bytes
        short = min(LOW_BYTES, limit) - await self.run(self._store.free_bytes)
        if short > 0:  # the disk is nearly full: free what retention allows; if that is too little, go on
            with contextlib.suppress(SpoolFull):
                await self.run(self._store.cleaner.retain, self.retention, need=short)
        if await self.run(self._store.used_bytes) < limit:
            return None
        need = await self.run(self._store.used_bytes) - limit + 1
        await self.run(self._store.cleaner.retain, self.retention, need=need)
        if await self.run(self._store.used_bytes) < limit:
            return None
        if self.config.on_full == "drop_oldest":
            removed = await self.run(self._store.cleaner.drop_oldest, need)
            if removed.batches:
                log.warning("topic %s: spool full, dropped the oldest %d batches", self.topic, removed.batches)
            leased = None if removed.bytes >= need else await self.run(self._leased)
            if leased is None:
                return None
            slow = leased
        else:
            slow = await self.run(self._slowest)
        return f"the spool is full ({limit} bytes); {slow}"[:MAX_WAITING]

    def mark_ack_wait(self, missing: list[str]) -> None:
        """Tell subscribers which acknowledgements the publisher waits for; an empty list: for none."""
        self._set_waiting(f"{ACKS_WAIT}{', '.join(missing)}" if missing else None)

    def _leased(self, before: int | None = None) -> str | None:
        """Say which lease keeps most, if one keeps batches before an offset, or any. Call it in the log's thread."""
        for lease in map(self.leases.status, self._store.leases.all()[:1]):
            if before is None or lease.first < before:
                return (
                    f"lease {lease.id} of {lease.owner or 'an earlier reader'} keeps batches from "
                    f"offset {lease.first} on, for {lease.left:.0f} s more; `jobpipe topics leases drop` ends it"
                )
        return None

    def _slowest(self) -> str:
        """Say who keeps the log from shrinking. Call it in the log's thread."""
        status = self._store.status()
        subscriptions = status.subscriptions
        acked = min((line.acked.n for line in subscriptions if line.acked is not None), default=status.head.n)
        hold = held_back(self._store.holds.all(), acked)
        leased = self._leased(before=acked if hold is None else hold.offset)
        if leased is not None:  # neither a subscription nor a hold needs the first batches that it keeps
            return leased
        missing = self.asked.min_subscribers
        if hold is not None and (subscriptions or not missing):
            return hold_words(self.topic, hold)
        if not subscriptions:
            return f"no subscription exists yet and min_subscribers={missing}" if missing else NO_SUBSCRIPTION
        slow = max(subscriptions, key=lambda line: line.lag.batches)
        return f"subscription {slow.name!r} is slowest, {slow.lag.batches} batches behind"

    def _set_waiting(self, why: str | None) -> None:
        why = None if why is None else why[:MAX_WAITING]
        if why != self.waiting:
            self.waiting = why
            self.news.notify_all()

    async def seal(
        self,
        batch: NewBatch,
        segments: list[SegmentInfo],
        schema: tuple[bytes, str | None] | None = None,
        marks: Sequence[SourceRow] = (),
    ) -> tuple[Position, bool]:
        """Make the batch visible: the one commit point.

        Args:
            schema: of the batch, for Arrow and for Spark; None for an end mark.
            marks: which rows of the topic it publishes again.

        Returns:
            The position after it, and whether another batch may be written without asking for room.

        Raises:
            Fenced, CheckpointTooOld, DuplicateCall, AlreadyRedriven, SegmentCorrupt, SpoolError: see
                :meth:`TopicLog.seal`.
            SpoolFull: this batch alone exceeds the cap, or the disk is full.
        """
        if not self.publishing:
            raise Fenced(f"topic {self.topic!r}: this publisher was closed or replaced", topic=self.topic)
        self._require_size(batch, segments)
        await self._prepare_recovery(batch, segments)

        def work() -> Position:
            number = None if schema is None else self._store.schemas.add(*schema)
            batch_of_schema = dataclasses.replace(batch, schema_id=number)
            return self._store.seal(batch_of_schema, segments, writing=self.writing, marks=marks)

        return await self._sealing(batch, segments, work)

    async def append(
        self,
        batch: NewBatch,
        segments: list[SegmentInfo],
        schema: tuple[bytes, str | None],
        marks: Sequence[SourceRow] = (),
    ) -> Position:
        """Seal a batch of an appender, which publishes next to the topic's publisher; return the position after it.

        The publisher goes on, and need not live: who serves the log has its epoch.

        Raises:
            ConfigError: see :meth:`require_appendable`.
            SchemaMismatch: see :meth:`TopicLog.append`. The others are those of :meth:`seal`.
            SpoolFull: there is no room; ``fields["reason"]`` is ``NO_ROOM``.
        """
        self.require_appendable()
        self._require_size(batch, segments)

        def work() -> Position:
            if not self.has_room():
                raise _NoRoomError
            return self._store.append(batch, segments, schema, marks=marks, end_again=not self.publishing)

        try:
            return (await self._sealing(batch, segments, work))[0]
        except _NoRoomError as error:
            raise SpoolFull(
                f"topic {self.topic!r}: the spool is full ({self.config.spool_max_bytes} bytes), and nothing is "
                "published next to its publisher; ask for room first",
                topic=self.topic,
                reason=NO_ROOM,
            ) from error

    def require_appendable(self) -> None:
        """See that appenders may publish next to the topic's publisher.

        A recovery point says that all before a batch was committed by the required subscriptions, since their publisher
        waits for that between two batches. A batch of an appender in between would make it wrong.

        Raises:
            ConfigError: the publisher has ``acks=all``, and is not closed; or what is served here without its publisher
                is not the newest spool of the topic.
        """
        if self._store.superseded:
            raise ConfigError(
                f"topic {self.topic!r}: its spool in {self._store.directory} is not the newest one: the topic was "
                "published from another place since, or its coordinator failed to start; nothing was published. Run "
                "this on the host, and with the jobpipe.spool.dir, of its last publisher, or start its publisher here",
                topic=self.topic,
                key="spool.dir",
            )
        if self.publishing and self._keep_recovery_point is not None:
            raise ConfigError(
                f"topic {self.topic!r}: its publisher, {self.asked.name!r}, has acks=all, so nothing can be published "
                "next to it: where the log continues if its spool is lost would be wrong. Stop the publisher, publish "
                "these rows, and start it again",
                topic=self.topic,
                key="acks",
            )

    def _require_size(self, batch: NewBatch, segments: list[SegmentInfo]) -> None:
        size = sum(segment.length for segment in segments)
        if size > self.config.spool_max_bytes:
            raise SpoolFull(
                f"topic {self.topic!r}: batch {batch.batch_id} alone has {size} bytes, more than "
                f"jobpipe.spool.max_bytes={self.config.spool_max_bytes}; make micro-batches smaller or raise the cap",
                topic=self.topic,
                size=size,
                limit=self.config.spool_max_bytes,
            )

    async def _sealing(
        self, batch: NewBatch, segments: list[SegmentInfo], seal: Callable[[], Position]
    ) -> tuple[Position, bool]:
        def work() -> tuple[Position, Position, bool, bool]:
            store, position = self._store, seal()
            with contextlib.suppress(SpoolError):  # the batch is sealed already: report success
                return position, store.batches.head(), store.batches.ended(), self.has_room()
            return position, store.batches.head(), store.batches.ended(), False

        def sealed(found: tuple[Position, Position, bool, bool]) -> None:
            _, head, ended, _ = found
            # The catalog now names the files that are needed; a sweep may remove all others of this write id.
            self.writing.discard(batch.write_id)
            self._last_write = {writer: found for writer, found in self._last_write.items() if found != batch.write_id}
            self.note_sealed(head, ended, segments)

        # A batch must not use the disk's reserve. All in one turn of the log's thread: a turn costs 1 ms under load.
        position, _, _, room = await self._thread.run(work, sealed, reserve=False)
        return position, room

    async def seal_end(self) -> None:
        """Seal the end mark, unless the newest batch is one; raises as :meth:`seal`."""
        if not self.ended:
            await self.seal(self._end_mark, [])

    async def raise_epoch(self, epoch: int) -> None:
        """Give the log ``epoch``, drawn from the registry, so that later seals differ from earlier ones."""
        self.epoch_drawn = epoch

        def raised(_: None) -> None:
            self.epoch = epoch

        await self.run_then(lambda: self._store.take_over(epoch, self.asked.name), raised)

    async def _prepare_recovery(self, batch: NewBatch, segments: list[SegmentInfo]) -> None:
        """With ``acks=all``, store a recovery point: where the log continues if its spool is lost.

        If the registry does not answer, publishing continues without a new one. If the spool is then lost before a
        later batch has stored one, subscribers fail with DataLoss.
        """
        if self._keep_recovery_point is None:
            return

        def before() -> RecoveryPoint | None:
            parts = ((segment.partition, segment.rows, segment.index) for segment in segments)
            return self._store.recovery.before(
                *(batch.query_id, batch.batch_id),
                rows=any(segment.rows for segment in segments),
                end_mark=batch.end,
                division=division_of(batch.partitions, batch.partitioner, parts),
            )

        point = await self.run(before)
        if point is None:
            return
        if self._storing_point is None or self._storing_point.done():  # one at a time: else an older point may win
            self._storing_point = asyncio.ensure_future(asyncio.to_thread(self._keep_recovery_point, point.to_text()))
            await asyncio.wait({self._storing_point}, timeout=RECOVERY_POINT_SECONDS)
        if not self._storing_point.done():
            log.warning(NO_POINT, self.topic, "the registry does not answer")
            return
        try:
            self._storing_point.result()
        except TopicOwned as error:
            raise Fenced(f"topic {self.topic!r}: another publisher took it over: {error}", topic=self.topic) from error
        except RegistryUnavailable as error:
            log.warning(NO_POINT, self.topic, error)

    async def must_be_sealed_again(self, query_id: str, batch_id: int) -> bool:
        """Tell whether a repeated batch is partly lost and still needed.

        It is needed if a subscription has not acknowledged it, or if the topic has no subscription. A batch with a note
        is not sealed again: its publisher might be killed before that, and would not know where its source went on.
        """
        if not self.gone:
            return False

        def work() -> bool:
            batches, head = self._store.batches, self._store.batches.next_n()
            if not batches.is_newest(query_id, batch_id) or not self._store.hosts.lost(head - 1, head, self.gone):
                return False
            last = batches.last_sealed(query_id)
            if last is not None and last.note is not None:
                return False
            acked = [known.acked for known in self._store.subscriptions.all()]
            return not acked or any(position is None or position.n < head for position in acked)

        return await self.run(work)

    async def take_back(self, query_id: str, batch_id: int) -> None:
        """Undo the seal of the newest batch; the present epoch must be higher than the one it was sealed in."""

        def work() -> Position:
            self._store.take_back(query_id, batch_id)
            return self._store.batches.head()

        def taken_back(head: Position) -> None:
            self.head = head

        await self.run_then(work, taken_back)
        log.warning(
            "topic %s: part of batch %d of query %s was lost with host server %s; the batch is written again",
            *(self.topic, batch_id, query_id, ", ".join(sorted(self.gone))),
        )

    # -- state ---------------------------------------------------------------------------------------------------------

    def note_source(self, report: SourceReport) -> None:
        """Note how the publisher's source stands."""
        self._source = report, time.monotonic()

    def _source_status(self) -> SourceStatus | None:
        """Return what was said of the source last, and how long ago; None once the publisher has closed."""
        if self._source is None or not self.publishing:
            return None
        report, said_at = self._source
        return SourceStatus(age=round(time.monotonic() - said_at, 3), **vars(report))

    @property
    def kept_by_hosts(self) -> dict[str, dict[str, int]]:
        """Segments and bytes by host server, as :meth:`status` has them."""
        return self._status.kept

    async def status(self) -> TopicStatus:
        """Return how the topic stands, without what only the coordinator knows.

        It does not wait for a disk that hangs: it returns the last known state, and ``disk`` says so.
        """
        known, disk = await self._known_status()
        last = known.last_query
        return TopicStatus(
            topic=known.topic,
            log=known.log,
            epoch=known.epoch,
            uptime=known.uptime,
            catalog_bytes=known.catalog_bytes,
            last_query=None if last is None else NewestQuery(**vars(last)),
            head=known.head.n,
            tail=known.tail.n,
            batches=known.batches,
            rows=known.total_rows,
            ended=self.ended,
            subscriptions=tuple(map(self._subscription_status, known.subscriptions)),
            leases=tuple(map(self.leases.status, known.leases)),
            lease_count=known.lease_count,
            holds=tuple(HoldReply(**vars(hold)) for hold in known.holds),
            flows=tuple(map(_flow_status, known.flows)),
            required=known.required,
            disk=disk,
            stored_bytes=known.bytes,
            spool_limit=self.config.spool_max_bytes,
            bytes=known.total_bytes,
            publisher=self.asked.name,
            application=self.asked.by,
            parallelism=self.asked.parallelism,
            waiting=self.waiting,
            at=round(self._status_at, 3),
            source=self._source_status(),
        )

    def _subscription_status(self, line: SubscriptionLine) -> SubscriptionStatus:
        return SubscriptionStatus(
            name=line.name,
            declared=line.declared,
            required=line.required,
            grant=line.grant,
            holder=None if line.holder is None else Holder(**Holder.checked(line.holder)),
            silent=line.silent,
            stale=line.stale,
            hops=line.hops,
            hop_seconds=line.hop_seconds,
            lag=Lag(**vars(line.lag)),
            position=None if line.acked is None else line.acked.n,
            epoch=None if line.acked is None else line.acked.epoch,
            counts=None if line.totals is None else hop_counts(line.totals, line.difference),
            **vars(self.subscribers.connection(line)),
        )

    async def _known_status(self) -> tuple[LogStatus, str | None]:
        # One call at a time: else they pile up while a disk hangs. If the last answer came after its
        # callers had stopped waiting, it is out of date: ask again.
        if self._asked_status is None or self._asked_status.done():
            # Several callers share this answer. So the log's thread must not count it as work of the first caller
            # (whose="" is the server itself).
            self._asked_status = asyncio.ensure_future(self._thread.run(self._look, whose=""))
        asked = self._asked_status
        await asyncio.wait({asked}, timeout=BUSY_SECONDS)
        trouble = self._trouble
        if asked.done():
            if self._asked_status is asked:
                self._asked_status = None
            self._status, self._status_at = asked.result()
        else:
            seconds = time.monotonic() - self._status_at
            trouble = f"no answer from the disk for {seconds:.1f} s; this is the state from then"
        return self._status, trouble

    def _look(self) -> tuple[LogStatus, float]:
        """Return how the log stands, and when that was; in the log's thread."""
        return self._store.status(), time.monotonic()

    def tick_idle(self) -> bool:
        """Advance the log's clock alone, if no work was done on the log since the last tick; return whether it was so.

        The log's thread has nothing to do then, so its clock is ours until the loop gives it work.
        """
        if not self._thread.idle or self._thread.ran != self._ran_at_tick:
            return False
        self._store.clock.tick(self._seconds_since_tick())
        return True

    def _seconds_since_tick(self) -> float:
        now = time.monotonic()
        seconds, self.ticked_at = now - self.ticked_at, now
        return seconds

    async def tick(self, *, retain: bool) -> None:
        """Advance the log's clock, write acknowledgements, and with ``retain`` apply retention."""
        seconds = self._seconds_since_tick()
        if retain:
            self.retained_at = self.ticked_at

        ran = -1

        def work() -> tuple[Position, bool] | None:
            nonlocal ran
            if ran < 0:  # it may run twice, see LogThread.run
                self._store.clock.tick(seconds)
            ran = self._thread.ran
            self._store.subscriptions.flush()
            self._store.shorten()
            if not retain:
                return None
            self.subscribers.write_to_store()
            self.leases.write_to_store()
            self._store.cleaner.retain(self.retention)
            if not self.asked.serve and time.monotonic() - self._swept_at > SWEEP_SECONDS:
                self._swept_at = time.monotonic()
                self._store.cleaner.sweep(self.being_written)
            return self._store.batches.head(), self._store.batches.ended()

        def seen(found: tuple[Position, bool] | None) -> None:
            if found is not None and found != (self.head, self.ended):  # sealed by a commit that seemed to fail
                self.note_sealed(*found, None)

        try:
            await self.run_then(work, seen)
            self._ran_at_tick = ran
            if retain:
                self.leases.expire()
                await self.subscribers.forget_undecided()
        except SpoolError as error:
            now = time.monotonic()
            if str(error) != self._trouble or now - self._complained_at > COMPLAINT_SECONDS:
                self._complained_at = now
                log.error("topic %s: %s", self.topic, error)
            self._trouble = str(error)
        else:
            self._trouble = None

    async def close(self, seconds: float) -> None:
        """Serve nothing more, write what is pending and close the log; see :meth:`LogThread.close`. Idempotent."""
        self.publishing = False
        self.leases.close()
        self._thread.begin_close()
        self.news.notify_all()  # waiting requests ask the thread again, and fail
        self.acked.notify_all()
        await self._thread.close(seconds)


def _flow_status(place: FlowPlace) -> FlowStatus:
    cursors = tuple(CursorStatus(**vars(cursor)) for cursor in place.cursors)
    return FlowStatus(place.flow, place.topic, place.log, cursors)
