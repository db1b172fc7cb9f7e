"""The coordinator's handlers for publishers: one method an operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from jobpipe.coordinator.handlers.dispatch import Context, Handlers, pair
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.errors import ConfigError, Fenced, JobpipeError, NotAuthorized, RemoteProtocolError
from jobpipe.net.servers.audit_log import audit
from jobpipe.net.servers.write_tokens import check_write_ticket
from jobpipe.operations import publisher_operations
from jobpipe.operations.messages.message_fields import EmptyReply
from jobpipe.operations.publisher_operations import APPENDER
from jobpipe.store.catalog.batches import APPENDERS, LastSeal, LogDivision
from jobpipe.store.catalog.position import Position
from jobpipe.store.catalog.redrive_marks import SourceRow
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.spool.segment_index import SegmentInfo
from jobpipe.store.spool.spool_files import new_write_id

if TYPE_CHECKING:
    from jobpipe.coordinator.coordinator import Coordinator


MAX_ID = 128  # characters of an appender's query id


def _require_publishing(topic: ServedTopic) -> None:
    if not topic.publishing:
        raise Fenced(f"topic {topic.topic!r}: this publisher was closed or replaced", topic=topic.topic)


def _require_own_id(at: Context, query_id: str) -> None:
    """See that appenders and publishers use no ids of each other: else a publisher's batch may count as sealed.

    Raises:
        NotAuthorized: it is one of the others.
    """
    appends = at.link.hello.role == APPENDER
    if appends == query_id.startswith(APPENDERS) and (not appends or len(query_id) <= MAX_ID):
        return
    rule = f"begins with {APPENDERS!r}, and has at most {MAX_ID} characters"
    raise NotAuthorized(
        f"topic {at.topic.topic!r}: the query id {query_id[:MAX_ID]!r} is not for the role {at.link.hello.role!r}: the "
        f"id of an appender {rule}, and no publisher's begins so. Use another id, or name",
        topic=at.topic.topic,
        query_id=query_id[:MAX_ID],
    )


def _require_notable(at: Context) -> None:
    """See that a note can be kept as long as the topic's log goes on.

    Raises:
        ConfigError: the log goes on after the loss of its spool, from what the registry knows, and that has no notes.
        RemoteProtocolError: it is an appender's, which goes on nowhere.
    """
    if at.link.hello.role == APPENDER:
        raise RemoteProtocolError("an appender's batch has no note", field="note")
    if at.topic.config.acks == "all":
        raise ConfigError(
            f"topic {at.topic.topic!r}: a note needs acks=local. With acks=all the topic goes on after the loss of its "
            "spool, and the note would be lost with the spool; nothing of this batch was published",
            topic=at.topic.topic,
            key="acks",
        )


class PublisherHandlers:
    """What a publisher gets, and an appender."""

    def __init__(self, coordinator: Coordinator, secret: str) -> None:
        self._coordinator = coordinator
        self._secret = secret

    def answers(self) -> Handlers:
        """Return the methods, by what they answer."""
        return dict(
            (
                pair(publisher_operations.BeginRequest, self._begin),
                pair(publisher_operations.PrepareRequest, self._prepare),
                pair(publisher_operations.RoomRequest, self._room),
                pair(publisher_operations.SealRequest, self._seal),
                pair(publisher_operations.DeclareRequest, self._declare),
                pair(publisher_operations.SourceRequest, self._source),
                pair(publisher_operations.RedrivenRequest, self._redriven),
                pair(publisher_operations.AckedRequest, self._acked),
                pair(publisher_operations.DrainedRequest, self._drained),
                pair(publisher_operations.CloseRequest, self._close),
            )
        )

    async def _begin(self, at: Context, asked: publisher_operations.BeginRequest) -> publisher_operations.BeginReply:
        _require_own_id(at, asked.query_id)
        if at.link.hello.role == APPENDER:
            return await self._begin_append(at, asked)
        topic = at.topic
        newest: publisher_operations.NewestQuery | None = None

        def work() -> tuple[LastSeal | None, Position | None, bool]:
            nonlocal newest
            topic.store.check_epoch()  # first: a replaced publisher must hear of that, not of its old checkpoint
            last = topic.store.batches.last_sealed(asked.query_id)
            found = topic.store.batches.newest_query() if last is None else None
            newest = None if found is None else publisher_operations.NewestQuery(**vars(found))
            return last, None if last is None else topic.store.batches.at(last.n), topic.has_room()

        _require_publishing(topic)
        last, position, room = await topic.run(work)
        if last is not None and await self._take_back(topic, last, asked):
            last, position, room = await topic.run(work)
        sealed, full, admitted = None, None, None
        epoch = topic.epoch
        if last is not None and position is not None:
            sealed = publisher_operations.LastSealed(
                batch_id=last.batch_id, position=position, run_id=last.run_id, note=last.note
            )
        if not asked.written and (last is None or last.batch_id < asked.batch_id):
            full = await topic.room(asked.wait, has_room=room)
            admitted = self._coordinator.admitted(topic, topic.begin_write()) if full is None else None
        return publisher_operations.BeginReply(epoch=epoch, last=sealed, newest=newest, full=full, admitted=admitted)

    async def _begin_append(
        self, at: Context, asked: publisher_operations.BeginRequest
    ) -> publisher_operations.BeginReply:
        """Tell an appender what its batch must look like. It gets no write id, since it writes no file."""
        topic = at.topic
        topic.require_appendable()

        def work() -> tuple[LastSeal | None, Position | None, LogDivision | None, bool]:
            store = topic.store
            store.check_epoch()
            last = store.batches.last_sealed(asked.query_id)
            position = None if last is None else store.batches.at(last.n)
            return last, position, store.batches.shape(store.batches.next_n()), topic.has_room()

        last, position, shape, room = await topic.run(work)
        if last is not None and position is not None and asked.batch_id <= last.batch_id:
            sealed = publisher_operations.LastSealed(batch_id=last.batch_id, position=position, run_id=last.run_id)
            return publisher_operations.BeginReply(epoch=topic.epoch, last=sealed)
        if topic.asked.serve and not room:  # it is served without its publisher, and nothing of it is removed
            full: str | None = f"the spool is full ({topic.config.spool_max_bytes} bytes), and its publisher is away"
        else:
            full = await topic.room(asked.wait, has_room=room, announce=False)
        if full is not None:
            return publisher_operations.BeginReply(epoch=topic.epoch, full=full)
        appending = publisher_operations.Appending(
            partitions=topic.asked.parallelism if shape is None else shape.partitions,
            partitioner="" if shape is None else shape.partitioner,
        )
        return publisher_operations.BeginReply(epoch=topic.epoch, appending=appending)

    async def _prepare(
        self, at: Context, asked: publisher_operations.PrepareRequest
    ) -> publisher_operations.PrepareReply:
        topic = at.topic

        def work() -> bool:
            topic.store.check_epoch()
            return topic.has_room()

        _require_publishing(topic)
        full = await topic.room(0.0, has_room=await topic.run(work))
        admitted = self._coordinator.admitted(topic, topic.begin_write(asked.writer))
        return publisher_operations.PrepareReply(
            admitted=admitted, control=str(self._coordinator.control_endpoint), full=full
        )

    async def _room(self, at: Context, asked: publisher_operations.RoomRequest) -> publisher_operations.RoomReply:
        topic = at.topic
        check_write_ticket(self._secret, topic.topic, asked.write_id, asked.ticket)
        _require_publishing(topic)
        return publisher_operations.RoomReply(await topic.room(asked.wait, has_room=await topic.run(topic.has_room)))

    async def _take_back(self, topic: ServedTopic, last: LastSeal, asked: publisher_operations.BeginRequest) -> bool:
        """Let a batch that Spark repeats be written again, if host servers were lost that kept some of it."""
        if last.batch_id != asked.batch_id or last.run_id == asked.run_id:
            return False
        if not await topic.must_be_sealed_again(asked.query_id, asked.batch_id):
            return False
        await self._coordinator.take_back(topic, asked.query_id, asked.batch_id)
        return True

    async def _seal(self, at: Context, asked: publisher_operations.SealRequest) -> publisher_operations.SealReply:
        _require_own_id(at, asked.query_id)
        batch = NewBatch(
            query_id=asked.query_id,
            batch_id=asked.batch_id,
            run_id=asked.run_id,
            write_id=asked.write_id,
            schema_id=None,
            partitions=asked.partitions,
            partitioner=asked.partitioner,
            end=False,
            note=asked.note,
        )
        if asked.note is not None:
            _require_notable(at)
        schema = asked.schema.arrow, asked.schema.spark
        marks = tuple({row.source: None for row in asked.redriven})
        rows = sum(segment.rows for segment in asked.segments)
        if asked.redriven and len(marks) != rows:  # else marks, which count to no cap, could fill the disk
            raise RemoteProtocolError(f"a batch of {rows} rows marks {len(marks)}", field="redriven")
        if at.link.hello.role == APPENDER:
            return await self._append(at, batch, list(asked.segments), schema, marks)
        position, room = await at.topic.seal(batch, list(asked.segments), schema, marks)
        admitted = None
        if room and at.topic.publishing:
            admitted = self._coordinator.admitted(at.topic, at.topic.begin_write())
        return publisher_operations.SealReply(position=position, admitted=admitted)

    async def _append(
        self,
        at: Context,
        batch: NewBatch,
        segments: list[SegmentInfo],
        schema: tuple[bytes, str | None],
        marks: Sequence[SourceRow],
    ) -> publisher_operations.SealReply:
        size, rows = sum(segment.length for segment in segments), sum(segment.rows for segment in segments)
        if any(segment.data is None for segment in segments):  # files would have to be counted, kept and swept
            raise RemoteProtocolError("all segments of an appender travel with the request", field="segments")
        if (
            not rows
            or size > publisher_operations.MAX_APPENDED
            or len(segments) > publisher_operations.MAX_SEGMENTS_APPENDED
        ):
            raise RemoteProtocolError(
                f"an appender's batch of {rows} rows in {len(segments)} segments of {size} bytes: it has some, and at "
                f"most {publisher_operations.MAX_APPENDED} bytes in "
                f"{publisher_operations.MAX_SEGMENTS_APPENDED} segments",
                field="segments",
            )
        write_id = new_write_id()  # not the asker's: it may be that of another batch; the batch's number tells a repeat
        batch = replace(batch, write_id=write_id, run_id=write_id)
        position = await at.topic.append(batch, segments, schema, marks)
        audit(
            at.link.peer_names,
            at.link.peer,
            "append",
            f"done: {rows} rows, up to offset {position.n}",
            topic=at.topic.topic,
            instance=at.link.hello.instance,
            changed=True,
        )
        return publisher_operations.SealReply(position=position)

    async def _redriven(
        self, at: Context, asked: publisher_operations.RedrivenRequest
    ) -> publisher_operations.RedrivenReply:
        rows = [row.source for row in asked.rows]
        found = await at.topic.run(at.topic.store.redriven.marked, rows)
        return publisher_operations.RedrivenReply(tuple(map(publisher_operations.RedrivenRow.of, found)))

    async def _declare(
        self, at: Context, asked: publisher_operations.DeclareRequest
    ) -> publisher_operations.DeclareReply:
        add = partial(at.topic.store.schemas.add, asked.arrow, asked.spark)
        return publisher_operations.DeclareReply(id=await at.topic.run_then(add, lambda _: at.topic.news.notify_all()))

    async def _source(self, at: Context, asked: publisher_operations.SourceRequest) -> EmptyReply:
        _require_publishing(at.topic)
        at.topic.note_source(asked.report)
        return EmptyReply()

    async def _acked(self, at: Context, asked: publisher_operations.AckedRequest) -> publisher_operations.AckedReply:
        topic = at.topic
        missing = await topic.missing_acks(asked.n)
        if missing:
            topic.mark_ack_wait(missing)  # a flow acknowledges at once when it hears of that
            if await topic.acked.wait(asked.wait):
                missing = await topic.missing_acks(asked.n)
        topic.mark_ack_wait(missing)
        lost = await topic.lost(asked.n - 1, asked.n) if missing else ()
        gone = {host for batch in lost for host in batch.hosts}
        return publisher_operations.AckedReply(missing=tuple(missing), gone=tuple(sorted(gone)))

    async def _drained(
        self, at: Context, asked: publisher_operations.DrainedRequest
    ) -> publisher_operations.DrainedReply:
        lagging = await at.topic.lagging()
        if lagging and await at.topic.acked.wait(asked.wait):
            lagging = await at.topic.lagging()
        return publisher_operations.DrainedReply(lagging=lagging)

    async def _close(self, at: Context, asked: publisher_operations.CloseRequest) -> publisher_operations.CloseReply:
        await self._coordinator.close_publisher(at.topic, final=asked.final)
        try:
            status = await at.topic.status()
        except JobpipeError:  # a disk that fails does not keep a publisher from closing
            return publisher_operations.CloseReply(head=at.topic.head)
        lagging = {line.name: line.lag.batches for line in status.subscriptions}
        return publisher_operations.CloseReply(head=at.topic.head, kept=status.batches, lagging=lagging)
