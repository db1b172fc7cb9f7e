"""The coordinator's handlers for subscribers and readers: one method an operation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from jobpipe.coordinator.data.segment_files import held_part
from jobpipe.coordinator.handlers.dispatch import Context, Handlers, pair
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.errors import DataLoss
from jobpipe.net.links.async_link import Link
from jobpipe.operations import reader_operations, subscriber_operations
from jobpipe.operations.messages.message_fields import EmptyReply, Fields, SharedReply
from jobpipe.operations.range_messages import LostBatch, News, PlannedRange
from jobpipe.store.ledger.account_values import CountedCursor
from jobpipe.store.reading.offset_resolution import ResolvedRange
from jobpipe.store.reading.read_plan import ReadPlan
from jobpipe.store.reading.shared_plans import Planned, PlanQuery

if TYPE_CHECKING:
    from jobpipe.coordinator.coordinator import Coordinator

MAX_REPLIES = 4  # made of one plan: with the news of now and without, and some of earlier news


class ReaderHandlers:
    """What subscribers and readers get.

    Args:
        coordinator: the topics.
        owner_of: tells the identity of a link that may hold a share of a topic's names only, "" for any other.
    """

    def __init__(self, coordinator: Coordinator, owner_of: Callable[[Link], str] = lambda _: "") -> None:
        self._coordinator = coordinator
        self._owner_of = owner_of

    def answers(self) -> Handlers:
        """Return the methods, by what they answer."""
        return dict(
            (
                pair(subscriber_operations.GrantRequest, self._grant),
                pair(subscriber_operations.FirstRequest, self._first),
                pair(subscriber_operations.PollRequest, self._poll),
                pair(subscriber_operations.PlanRequest, self._plan),
                pair(subscriber_operations.AckRequest, self._ack),
                pair(subscriber_operations.SlotRequest, self._slot),
                pair(subscriber_operations.SettleRequest, self._settle),
                pair(reader_operations.BoundsRequest, self._bounds),
                pair(reader_operations.RangeRequest, self._range),
                pair(reader_operations.BindRequest, self._bind),
                pair(reader_operations.CutRequest, self._cut),
                pair(reader_operations.LeaseRequest, self._lease),
                pair(reader_operations.ReleaseRequest, self._release),
                pair(reader_operations.SchemaRequest, self._schema),
            )
        )

    # -- subscriber ----------------------------------------------------------------------------------------------------

    async def _grant(self, at: Context, asked: subscriber_operations.GrantRequest) -> subscriber_operations.GrantReply:
        where: dict[str, Any] = {"host": asked.host, "pid": asked.pid}
        if asked.application is not None:
            where["application"] = asked.application.to_json()
        owner = self._owner_of(at.link)
        holder = await at.topic.subscribers.grant(at.name, at.link.hello.instance, at.link, where, owner)
        topic = at.topic
        return subscriber_operations.GrantReply(
            head=topic.head, ended=topic.ended, waiting=topic.waiting, grant=holder.grant
        )

    async def _first(self, at: Context, asked: subscriber_operations.FirstRequest) -> subscriber_operations.FirstReply:
        at.topic.subscribers.held(at.name, asked.grant)
        position, lost = await at.topic.subscribers.first_position(
            at.name, asked.start, asked.end, skip_removed=asked.skip_removed
        )
        return subscriber_operations.FirstReply(position=position, lost=lost)

    async def _poll(self, at: Context, asked: subscriber_operations.PollRequest) -> News:
        topic = at.topic
        if asked.head_wait:
            await self._other_news(topic, asked)
        elif (asked.head, asked.ended, asked.waiting) == (topic.head, topic.ended, topic.waiting):
            await topic.news.wait(asked.wait)
        topic.require_served()
        return News(head=topic.head, ended=topic.ended, waiting=topic.waiting)

    async def _other_news(self, topic: ServedTopic, asked: subscriber_operations.PollRequest) -> None:
        """Wait until there is more to tell than that the head has moved, or that it has, after a while."""
        began = time.monotonic()
        while not topic.closed and (asked.ended, asked.waiting) == (topic.ended, topic.waiting):
            seconds = asked.wait if topic.head == asked.head else min(asked.wait, asked.head_wait)
            left = began + seconds - time.monotonic()
            if left <= 0:
                return
            await topic.news.wait(left)

    async def _plan(self, at: Context, asked: subscriber_operations.PlanRequest) -> Fields:
        topic, order = at.topic, PlanQuery(asked.start, asked.limits, asked.count, asked.held)
        topic.subscribers.held(at.name, asked.grant)
        found = await topic.subscribers.plans.next(
            at.name, asked.grant, order, asked.wait, read=asked.read, counts=asked.counts, wanted=asked.wanted
        )
        if asked.wait:
            topic.subscribers.held(at.name, asked.grant)
        news = News(head=topic.head, ended=topic.ended, waiting=topic.waiting) if asked.wait else None
        lost = await self._lost(topic, [found.plan])
        if lost or asked.count:
            return self._planned(topic, found, news, lost)
        key = news, self._coordinator.data_endpoint
        reply: SharedReply | None = found.replies.get(key)
        if reply is None:
            if len(found.replies) >= MAX_REPLIES:
                found.replies.clear()
            reply = found.replies[key] = SharedReply.of(self._planned(topic, found, news, lost))
        return reply

    def _planned(
        self, topic: ServedTopic, found: Planned, news: News | None, lost: tuple[LostBatch, ...]
    ) -> subscriber_operations.PlanReply:
        ahead = None
        if found.ahead is not None:
            ahead = subscriber_operations.Backlog(
                rows=found.ahead.rows,
                bytes=found.ahead.bytes,
                end=found.ahead.end,
                final=found.ahead.final,
                waiting=topic.waiting is not None,
            )
        return subscriber_operations.PlanReply.of(
            found.plan,
            stop=found.stop,
            ahead=ahead,
            lost=lost,
            data=str(self._coordinator.data_endpoint),
            news=news,
            held=None if found.held is None else tuple(map(held_part, found.held)),
        )

    async def _lost(self, topic: ServedTopic, plans: list[ReadPlan]) -> tuple[LostBatch, ...]:
        if not plans or plans[0].start.place == plans[-1].end.place:
            return ()
        end = plans[-1].end
        return await topic.lost(plans[0].start.n, end.n + (1 if end.r else 0))

    async def _ack(self, at: Context, asked: subscriber_operations.AckRequest) -> EmptyReply:
        cursors = tuple(
            CountedCursor(each.partition, each.claim, each.position.place, each.rows) for each in asked.cursors
        )
        await at.topic.subscribers.acknowledge(at.name, asked.grant, asked.position, read=asked.read, cursors=cursors)
        return EmptyReply()

    async def _slot(self, at: Context, asked: subscriber_operations.SlotRequest) -> subscriber_operations.SlotReply:
        found = await at.topic.slots.next(
            at.name,
            asked.grant,
            start=asked.start,
            last=asked.last,
            slot=asked.slot,
            end=asked.end,
            witnessed=asked.witnessed,
            counts=asked.counts,
        )
        here = found.plan.start
        return subscriber_operations.SlotReply.of(
            found.plan,
            made=found.made,
            stop=found.stop,
            over=found.over,
            newest=found.schema_id,
            lost=() if found.plan.end.place == here.place else await at.topic.lost(here.n, here.n + 1),
        )

    async def _settle(
        self, at: Context, asked: subscriber_operations.SettleRequest
    ) -> subscriber_operations.SettleReply:
        settle = at.topic.slots.resolve_slot_end
        return subscriber_operations.SettleReply(
            end=await settle(at.name, asked.grant, asked.start, asked.slot, committed=asked.committed)
        )

    # -- readers -------------------------------------------------------------------------------------------------------

    async def _bounds(self, at: Context, asked: reader_operations.BoundsRequest) -> reader_operations.Bounds:
        start, end, topic = asked.start, asked.end, at.topic

        def work() -> reader_operations.Bounds:
            known = topic.store.subscriptions.find(asked.name)
            acked, tail = None if known is None else known.acked, topic.store.batches.tail()
            if start is None:
                window = ResolvedRange(tail, None if end is None else topic.store.resolver.end(end), 0)
            else:
                window = topic.store.resolver.resolve(
                    start, end, committed=acked or tail, skip_removed=asked.skip_removed
                )
            return reader_operations.Bounds(
                standing=None if known is None or acked is None else "first" if known.holds_first else "moved",
                tail=tail,
                head=topic.store.batches.head(),
                ended=topic.store.batches.ended(),
                start=window.start,
                end=window.end,
                lost=window.lost,
                removed_ms=topic.store.batches.removed_ms(),
            )

        return await topic.run(work)

    async def _range(self, at: Context, asked: reader_operations.RangeRequest) -> reader_operations.RangeReply:
        start, end, topic = asked.start, asked.end, at.topic

        def work() -> list[ReadPlan]:
            topic.store.batches.check(start)
            topic.store.batches.check(end)
            return topic.store.planner.describe(start, end)

        if at.link.hello.role == "subscriber":  # a replay after a restart
            plans = await topic.subscribers.describe(at.name, _grant(asked), start, end)
        else:
            plans = await topic.run(work)
        return reader_operations.RangeReply(
            plans=tuple(PlannedRange.of(plan) for plan in plans),
            lost=await self._lost(topic, plans),
            data=str(self._coordinator.data_endpoint),
        )

    async def _bind(self, at: Context, asked: reader_operations.BindRequest) -> reader_operations.BindReply:
        topic = at.topic
        plans = await topic.slots.bind(
            *(asked.name, asked.grant, asked.slot, asked.limits), schemas=frozenset(asked.schemas), wait=asked.wait
        )
        if len(plans) > 1:
            raise DataLoss(
                f"topic {topic.topic!r}: slot {asked.slot} crosses a change of partitions or schema that was "
                "not there when it was bound",
                topic=topic.topic,
                slot=asked.slot,
            )
        lost = await self._lost(topic, plans)
        return reader_operations.BindReply.of(plans[0], data=str(self._coordinator.data_endpoint), lost=lost)

    async def _cut(self, at: Context, asked: reader_operations.CutRequest) -> reader_operations.CutReply:
        start, end, topic = asked.start, asked.end, at.topic
        make = partial(
            topic.store.planner.splitter, wanted=asked.partitions, max_rows=asked.max_rows, at_least=asked.at_least
        )
        if at.link.hello.role == "subscriber":
            splitter = await topic.subscribers.splitter(at.name, _grant(asked), start, end, make)
        else:
            splitter = await topic.run(make, start, end)
        while (split := await topic.run(splitter.step)) is None:
            pass  # what else the log's thread is to do comes in between
        pieces: list[reader_operations.CutPiece] = []
        for piece in split:
            pieces.append(reader_operations.CutPiece(piece.end, tuple(piece.partitions)))
            if len(pieces) % 1000 == 0:
                await asyncio.sleep(0)  # there may be 100,000
        return reader_operations.CutReply(pieces=tuple(pieces))

    async def _lease(self, at: Context, asked: reader_operations.LeaseRequest) -> EmptyReply:
        await at.topic.leases.take(at.link, asked)
        return EmptyReply()

    async def _release(self, at: Context, asked: reader_operations.ReleaseRequest) -> EmptyReply:
        await at.topic.leases.release(asked.secret)
        return EmptyReply()

    async def _schema(self, at: Context, asked: reader_operations.SchemaRequest) -> reader_operations.SchemaReply:
        wanted, topic = asked.id, at.topic

        def work() -> tuple[int, bytes, str | None] | None:
            return topic.store.schemas.newest() if wanted is None else topic.store.schemas.get(wanted)

        found = await topic.run(work)
        if found is None and await topic.news.wait(asked.wait):
            found = await topic.run(work)
        if found is None:
            return reader_operations.SchemaReply()
        number, arrow, spark = found
        return reader_operations.SchemaReply(id=number, spark=spark, arrow=arrow)


def _grant(asked: reader_operations.RangeRequest | reader_operations.CutRequest) -> int:
    """Return the grant that a subscriber shows; one that shows none holds no name."""
    return -1 if asked.grant is None else asked.grant
