"""The flow jobs of one topic: those that publish it, and those that read it without publishing anything.

See :mod:`jobpipe.operations.flow_operations` for who may ask what, and :mod:`jobpipe.store.log.flow_cursors` for what
is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jobpipe.coordinator.topic.fair_executor import FairQueue, resolve_future
from jobpipe.coordinator.topic.topic_state import TopicState
from jobpipe.coordinator.topic.topic_subscribers import TopicSubscribers
from jobpipe.errors import (
    ConfigError,
    FlowFailed,
    FlowNotFound,
    JobpipeError,
    NotAuthorized,
    RemoteProtocolError,
    SpoolError,
)
from jobpipe.net.links.async_link import Link
from jobpipe.net.servers.access_list import PUBLISH
from jobpipe.net.servers.identity_quota import asking
from jobpipe.operations.flow_operations import (
    PARTITIONER,
    BeginFlowRequest,
    ClaimRequest,
    CursorsRequest,
    SealPartsRequest,
)
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.flow_commits import PartOutcome, SegmentPart
from jobpipe.store.log.flow_cursors import Cursor, FlowKey
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.spool.segment_index import SegmentInfo
from jobpipe.store.spool.spool_files import new_write_id
from jobpipe_registry.names import MAX_PARALLELISM

log = logging.getLogger(__name__)

MAX_FLOWS = 64  # of one publisher
GROUP = 128  # parts that share a transaction
MAX_WRITING = 8  # files of one partition that are written at once; a task writes one after the other

Unsealed: TypeAlias = tuple[SegmentPart, asyncio.Future[PartOutcome | JobpipeError]]
OfCursors: TypeAlias = BeginFlowRequest | CursorsRequest | ClaimRequest | SealPartsRequest


@dataclass(frozen=True)
class PublishingFlow:
    """A flow that publishes this topic, as its driver has begun it."""

    key: FlowKey
    token: str
    schema_id: int
    parallelism: int


class OpenWriteIds(Container[str]):
    """The write ids that are in one of two sets, whenever it is asked."""

    def __init__(self, first: set[str], second: set[str]) -> None:
        self._sets = first, second

    def __contains__(self, item: object) -> bool:
        return any(item in each for each in self._sets)


class TopicFlows:
    """Claims, cursors and seals of a topic's flow jobs.

    Attributes:
        writing: write ids of the files that tasks write now.
    """

    def __init__(self, topic: TopicState, subscribers: TopicSubscribers) -> None:
        self._topic = topic
        self._subscribers = subscribers
        self._publishing: dict[str, PublishingFlow] = {}
        self._writing: dict[tuple[FlowKey, int, int], list[str]] = {}  # by cursor and claim
        self._waiting: FairQueue[Unsealed] = FairQueue()
        self._sealing: asyncio.Task[None] | None = None
        self.writing: set[str] = set()

    # -- cursors -------------------------------------------------------------------------------------------------------

    async def begin(self, link: Link, asked: BeginFlowRequest) -> list[Cursor]:
        """Begin a flow, or go on with it.

        Raises:
            ConfigError: the topic has too many flows, or waits for acknowledgements of its subscribers; a flow would
                publish what it reads.
            Fenced, NotAuthorized: as :meth:`claim`.
            RemoteProtocolError: a driver does not ask so.
        """
        key = self._key(link, asked)
        if link.hello.role != "publisher":
            if key.log != self._topic.log_id:  # a catalog keeps what it gets
                raise RemoteProtocolError(
                    f"a flow that publishes nothing has its cursors with its source, log {self._topic.log_id} of topic "
                    f"{self._topic.topic!r}",
                    op="begin_flow",
                )
            return await self._topic.run(self._begin_here, key, asked)
        if asked.schema is None or not asked.token:
            raise RemoteProtocolError("a flow that publishes has a schema and a token", op="begin_flow")
        if key.topic == self._topic.topic:  # who may read it could move those cursors
            raise ConfigError(f"a flow cannot publish the topic that it reads, {key.topic!r}", topic=key.topic)
        if self._topic.config.acks == "all":
            raise ConfigError(
                f"topic {self._topic.topic!r}: a flow cannot publish with acks=all, since many tasks seal at once; use "
                "acks=stored",
                topic=self._topic.topic,
            )
        if asked.flow not in self._publishing and len(self._publishing) >= MAX_FLOWS:
            raise ConfigError(f"topic {self._topic.topic!r} has {MAX_FLOWS} flows, which is the limit")
        schema, store = asked.schema, self._topic.store

        def work() -> tuple[int, list[Cursor]]:
            number = store.schemas.add(schema.arrow, schema.spark)
            return number, store.cursors.begin(key, asked.start, asked.partitions)

        def begun(found: tuple[int, list[Cursor]]) -> None:
            before = self._publishing.get(asked.flow)
            if before is not None and before.key != key:  # what was made of another log is no longer sealed
                self._forget_writing(before.key, range(MAX_PARALLELISM))
            self._publishing[asked.flow] = PublishingFlow(key, asked.token, found[0], asked.parallelism)
            self._topic.news.notify_all()  # the schema is known

        _, cursors = await self._topic.run_then(work, begun)
        return cursors

    def _begin_here(self, key: FlowKey, asked: BeginFlowRequest) -> list[Cursor]:
        """Begin a flow that publishes nothing; in the log's thread. What a reader may make here is bounded."""
        store, config = self._topic.store, self._topic.config
        if store.subscriptions.get(key.flow).acked is None:
            raise RemoteProtocolError("a flow begins where its subscription stands, which is nowhere", op="begin_flow")
        flows = store.cursors.forget(key.topic, key.log)
        if key.flow not in flows and len(flows) >= config.max_subscriptions:
            raise ConfigError(
                f"topic {key.topic!r} has cursors of {len(flows)} flows, and accepts no new one: its publisher's "
                f"jobpipe.subscription.max is {config.max_subscriptions}. Delete those of unused ones with `jobpipe "
                "flow reset`, or raise it",
                topic=key.topic,
                flow=key.flow,
                limit=config.max_subscriptions,
            )
        most = max(self._topic.asked.parallelism, store.batches.most_partitions(), len(store.cursors.all(key)))
        if asked.partitions > most:
            raise RemoteProtocolError(f"topic {key.topic!r} has {most} partitions at most", op="begin_flow")
        return store.cursors.begin(key, asked.start, asked.partitions)

    async def cursors(self, link: Link, asked: CursorsRequest) -> list[Cursor]:
        """Return a flow's cursors.

        Raises:
            NotAuthorized: as :meth:`claim`.
        """
        return await self._topic.run(self._topic.store.cursors.all, self._key(link, asked))

    async def claim(self, link: Link, asked: ClaimRequest) -> list[Cursor]:
        """Give partitions to a task; what older tasks have begun to write may go.

        Raises:
            NotAuthorized: a task of a flow that publishes does not show its token; or a reader asks for the cursors of
                such a flow.
            Fenced: the subscription was given to another.
            FlowNotFound: the driver has not begun the flow here (yet), it reads another log by now, or it was reset.
        """
        key = self._key(link, asked)
        partitions = set(asked.partitions)

        def claimed(_: list[Cursor]) -> None:
            self._forget_writing(key, partitions)

        return await self._topic.run_then(lambda: self._topic.store.cursors.claim(key, partitions), claimed)

    def _forget_writing(self, key: FlowKey, partitions: Container[int]) -> None:
        for place in [place for place in self._writing if place[0] == key and place[1] in partitions]:
            self.writing.difference_update(self._writing.pop(place))

    def _key(self, link: Link, asked: OfCursors) -> FlowKey:
        """Return whose cursors a peer asks for, if it may have them. Only this makes a key of what comes over a link.

        A grant gives the cursors of a flow that reads this topic, and no others. A flow that publishes this topic holds
        its subscription at its source, so here its name is free for each peer that may read under it. Its cursors are
        for those who show its token, or, as its driver does, the job's secret, which
        :class:`jobpipe.coordinator.handlers.admin_handlers.AdminHandlers` has checked.
        """
        key = FlowKey(asked.flow, asked.topic, asked.log)
        if link.hello.role != "publisher":
            self._require_own(key, asked)
        elif isinstance(asked, ClaimRequest | SealPartsRequest):
            known = self.publishing(asked.flow, asked.token)
            if known.key != key:
                raise _other_log(key, known.key.topic, known.key.log)
        return key

    def _require_own(self, key: FlowKey, asked: OfCursors) -> None:
        here = self._topic
        if key.topic != here.topic:
            raise NotAuthorized(
                f"topic {here.topic!r}: the cursors of flow {key.flow!r}, which reads topic {key.topic!r}, are for its "
                "driver and its tasks, as a publisher; to read is no right to them",
                topic=here.topic,
                flow=key.flow,
                right=PUBLISH,
            )
        if isinstance(asked, CursorsRequest):
            return
        if isinstance(asked, BeginFlowRequest):
            self._subscribers.held(key.flow, asked.grant)
            return
        self._subscribers.held_for_task(key.flow, asked.grant)
        if key.log != here.log_id:
            raise _other_log(key, here.topic, here.log_id)

    def publishing(self, flow: str, token: str) -> PublishingFlow:
        """Return a flow that publishes this topic, to who shows its token.

        Raises:
            FlowNotFound: the driver has not begun it here.
            NotAuthorized: it is another token.
        """
        known = self._publishing.get(flow)
        if known is None:
            raise FlowNotFound(
                f"flow {flow!r} has not begun at this coordinator of topic {self._topic.topic!r}", flow=flow
            )
        if not hmac.compare_digest(known.token.encode(), token.encode()):
            raise NotAuthorized(
                f"topic {self._topic.topic!r}: flow {flow!r} takes rows only from tasks of the driver that began it",
                flow=flow,
            )
        return known

    async def begin_write(self, known: PublishingFlow, partition: int, claim: int) -> str:
        """Return a write id for a file of a task; the file is kept until it is sealed, or the claim is over.

        Raises:
            Fenced: another task has claimed the partition since.
        """
        write_id, place = new_write_id(), (known.key, partition, claim)
        held = self._topic.store.cursors.held

        def begun(_: Cursor) -> None:
            ids = self._writing.setdefault(place, [])
            ids.append(write_id)
            self.writing.add(write_id)
            if len(ids) > MAX_WRITING:
                self.writing.discard(ids.pop(0))

        await self._topic.run_then(lambda: held(known.key, partition, claim), begun)
        return write_id

    # -- sealing -------------------------------------------------------------------------------------------------------

    async def seal(self, link: Link, asked: SealPartsRequest, limit: int) -> list[PartOutcome | JobpipeError]:
        """Publish parts and move their cursors; those of many tasks share a transaction.

        Args:
            link: of the task.
            asked: its parts.
            limit: bytes that one part may have.

        Raises:
            NotAuthorized, FlowNotFound, Fenced: as :meth:`claim`.
            JobpipeError: none of the parts that shared a transaction is sealed: the topic is closed, another publisher
                has it, the disk fails. The request may be repeated.
        """
        parts = self._parts(link, asked, limit)
        loop = asyncio.get_running_loop()
        waiting: list[Unsealed] = [(part, loop.create_future()) for part in parts]
        if not waiting:
            return []
        # Nothing is awaited before: a task's requests keep their order.
        self._waiting.extend(asking.get(), waiting)
        if self._sealing is None:
            self._sealing = asyncio.create_task(self._seal_waiting(), name=f"seal-parts-{self._topic.topic}")
        await asyncio.wait([done for _, done in waiting])
        return [done.result() for _, done in waiting]

    def _parts(self, link: Link, asked: SealPartsRequest, limit: int) -> list[SegmentPart]:
        key = self._key(link, asked)
        known = self._publishing[asked.flow] if link.hello.role == "publisher" else None
        if known is None and asked.segments:
            raise RemoteProtocolError("a flow that publishes nothing seals no segments", op="seal_parts")
        parts, first = [], 0
        for part in asked.parts:
            segments: list[SegmentInfo] = list(asked.segments[first : first + part.segments])
            first += part.segments
            size = sum(segment.length for segment in segments)
            if size > limit:
                raise FlowFailed(  # it waits for no room, since there will be none
                    f"topic {self._topic.topic!r}: what flow {asked.flow!r} returned for partition {part.partition} "
                    f"has {size} bytes, more than jobpipe.spool.max_bytes={limit}; return less at once, or raise it",
                    topic=self._topic.topic,
                    size=size,
                    limit=limit,
                )
            batch = NewBatch(
                query_id="",
                batch_id=-1,
                run_id=f"flow {asked.flow}",
                write_id=part.write_id,
                schema_id=None if known is None else known.schema_id,
                partitions=1 if known is None else known.parallelism,
                partitioner=PARTITIONER,
            )
            parts.append(SegmentPart(key, part.partition, part.claim, part.start, part.to, batch, segments, part.read))
        return parts

    async def _seal_waiting(self) -> None:
        try:
            while self._waiting:
                await self._seal_group(self._next_group())
        finally:
            self._sealing = None

    def _next_group(self) -> list[Unsealed]:
        """Take parts that share a transaction, of each identity in turn: one with many delays no other."""
        group: list[Unsealed] = []
        while self._waiting and len(group) < GROUP:
            group.append(self._waiting.take())
        return group

    async def _seal_group(self, group: Sequence[Unsealed]) -> None:
        parts = [part for part, _ in group]

        def work() -> tuple[list[PartOutcome | JobpipeError], Position, bool]:
            store, writing = self._topic.store, self.writing
            outcomes = store.seal_parts(parts, writing=writing)
            with contextlib.suppress(SpoolError):  # sealed it is
                return outcomes, store.batches.head(), store.batches.ended()
            return outcomes, store.batches.head(), store.batches.ended()

        def sealed(found: tuple[list[PartOutcome | JobpipeError], Position, bool]) -> None:
            outcomes, head, ended = found
            visible = [part for part, outcome in zip(parts, outcomes, strict=True) if _rows(outcome)]
            for part in visible:
                self.writing.discard(part.batch.write_id)
            if visible:
                self._topic.note_sealed(head, ended, [segment for part in visible for segment in part.segments])
            elif (head, ended) != (self._topic.head, self._topic.ended):  # sealed by a commit that seemed to fail
                self._topic.note_sealed(head, ended, None)

        sealing = asyncio.ensure_future(self._topic.run_then(work, sealed, reserve=False, whose=""))
        await asyncio.wait({sealing})
        if (error := sealing.exception()) is not None:
            for _, done in group:
                resolve_future(done, error)
            return
        for (_, done), outcome in zip(group, sealing.result()[0], strict=True):
            done.set_result(outcome)  # what is wrong with one part is its outcome

    async def reset(self, flow: str, *, dry_run: bool) -> list[FlowKey]:
        """Delete a flow's cursors; its tasks are refused from now on.

        Raises:
            FlowNotFound: it has none here.
        """

        def done(found: list[FlowKey]) -> None:
            if not dry_run:
                self._publishing.pop(flow, None)
                for key in found:
                    self._forget_writing(key, range(MAX_PARALLELISM))

        work = self._topic.store.cursors.reset
        found = await self._topic.run_then(lambda: work(flow, dry_run=dry_run), done)
        if not found:
            raise FlowNotFound(f"topic {self._topic.topic!r} has no cursors of a flow {flow!r}", flow=flow)
        return found


def _rows(outcome: PartOutcome | JobpipeError) -> int:
    return 0 if isinstance(outcome, JobpipeError) else outcome.rows


def _other_log(key: FlowKey, topic: str, log_id: str) -> FlowNotFound:
    return FlowNotFound(f"flow {key.flow!r} reads log {log_id} of topic {topic!r} now, not {key.log}", flow=key.flow)
