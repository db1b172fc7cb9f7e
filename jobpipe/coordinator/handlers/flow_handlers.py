"""The coordinator's handlers for flow jobs: one method an operation."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from jobpipe.coordinator.data.segment_files import held_part
from jobpipe.coordinator.handlers.dispatch import Context, Handlers, pair
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.coordinator.topic.session_owner import SessionOwner
from jobpipe.coordinator.topic.topic_state import wait_for_any
from jobpipe.errors import Fenced, JobpipeError, SpoolError, TopicNotFound
from jobpipe.net.servers.write_tokens import write_ticket
from jobpipe.operations import flow_operations
from jobpipe.operations.messages.message_fields import EmptyReply
from jobpipe.store.log.flow_commits import PartOutcome
from jobpipe.store.log.flow_cursors import Cursor
from jobpipe.store.reading.change_feed import ChangeFeedPage

if TYPE_CHECKING:
    from jobpipe.coordinator.coordinator import Coordinator

QUIET_SECONDS = 0.5  # after which a task learns that its partitions got nothing up to here


class FlowHandlers:
    """What drivers and tasks of flow jobs get.

    Args:
        coordinator: the topics.
        secret: the job's; the tickets of tasks are derived from it.
    """

    def __init__(self, coordinator: Coordinator, secret: str) -> None:
        self._coordinator = coordinator
        self._secret = secret

    def answers(self) -> Handlers:
        """Return the methods, by what they answer."""
        return dict(
            (
                pair(flow_operations.BeginFlowRequest, self._begin),
                pair(flow_operations.CursorsRequest, self._cursors),
                pair(flow_operations.HaltRequest, self._halt),
                pair(flow_operations.FollowRequest, self._follow),
                pair(flow_operations.ClaimRequest, self._claim),
                pair(flow_operations.AdmitPartRequest, self._admit),
                pair(flow_operations.SealPartsRequest, self._seal),
                pair(flow_operations.ResetFlowRequest, self._reset),
            )
        )

    # -- cursors -------------------------------------------------------------------------------------------------------

    async def _begin(self, at: Context, asked: flow_operations.BeginFlowRequest) -> flow_operations.CursorsReply:
        return _cursors(await at.topic.flows.begin(at.link, asked))

    async def _cursors(self, at: Context, asked: flow_operations.CursorsRequest) -> flow_operations.CursorsReply:
        found = _cursors(await at.topic.flows.cursors(at.link, asked))
        full = at.link.hello.role == "publisher" and not await _has_room(at.topic)
        return replace(found, full=full)

    async def _claim(self, at: Context, asked: flow_operations.ClaimRequest) -> flow_operations.CursorsReply:
        return _cursors(await at.topic.flows.claim(at.link, asked))

    async def _reset(self, at: Context, asked: flow_operations.ResetFlowRequest) -> flow_operations.ResetFlowReply:
        found = await at.topic.flows.reset(asked.flow, dry_run=asked.dry_run)
        return flow_operations.ResetFlowReply(tuple(key.topic for key in found))

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _halt(self, at: Context, asked: flow_operations.HaltRequest) -> EmptyReply:
        holder = at.topic.subscribers.held(at.name, asked.grant)
        if not holder.halted:  # else no task waits under this grant
            holder.halted = True
            at.topic.acked.notify_all()
            at.topic.news.notify_all()
        return EmptyReply()

    async def _follow(self, at: Context, asked: flow_operations.FollowRequest) -> flow_operations.FollowReply:
        topic = at.topic
        holder = topic.subscribers.held_for_task(asked.name, asked.grant)
        waiting = _Waiting(topic, holder, frozenset(part.partition for part in asked.parts), asked.wait)
        while True:
            if topic.closed:
                raise TopicNotFound(f"topic {topic.topic!r} is no longer served here", topic=topic.topic)
            topic.subscribers.held_for_task(asked.name, asked.grant)
            waiting.snapshot()
            found = _nothing_yet(topic, asked) or await topic.flow_reads.read(asked)
            done = holder.halted or found.partitions > asked.partitions or any(each.has_rows for each in found.ranges)
            if found.ranges and (found.at_change or topic.waiting is not None):
                done = True  # its cursors are waited for
            if topic.waiting is not None and not asked.hurries:
                done = True
            if done or not await waiting.news(moved=bool(found.ranges), at_change=found.at_change):
                return self._followed(found, over=holder.halted, hurry=topic.waiting is not None)

    def _followed(self, found: ChangeFeedPage, *, over: bool, hurry: bool) -> flow_operations.FollowReply:
        return flow_operations.FollowReply(
            parts=tuple(
                flow_operations.FollowedPart(
                    each.partition, each.start, each.end, each.fetch, tuple(held_part(piece) for piece in each.held)
                )
                for each in found.ranges
            ),
            partitions=found.partitions,
            over=over,
            hurry=hurry,
            data=str(self._coordinator.data_endpoint),
        )

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def _admit(self, at: Context, asked: flow_operations.AdmitPartRequest) -> flow_operations.AdmitPartReply:
        topic = at.topic
        _require_publishing(topic)
        known = topic.flows.publishing(asked.flow, asked.token)
        full = await topic.room(asked.wait, has_room=await topic.run(topic.has_room))
        if full is not None:
            return flow_operations.AdmitPartReply(log=topic.log_id, full=full)
        write_id = await topic.flows.begin_write(known, asked.partition, asked.claim)
        return flow_operations.AdmitPartReply(
            log=topic.log_id,
            admitted=self._coordinator.admitted(topic, write_id),
            ticket=write_ticket(self._secret, topic.topic, write_id),
            log_token=topic.store.write_token,
        )

    async def _seal(self, at: Context, asked: flow_operations.SealPartsRequest) -> flow_operations.SealPartsReply:
        topic = at.topic
        if at.link.hello.role == "publisher":
            _require_publishing(topic)
        outcomes = await topic.flows.seal(at.link, asked, topic.config.spool_max_bytes)
        try:
            room = not asked.segments or await _has_room(topic)
        except SpoolError:  # sealed it is
            room = False
        return flow_operations.SealPartsReply(parts=tuple(map(_sealed, outcomes)), room=room)


class _Waiting:
    """The wait of one task, for what matters to its partitions.

    Args:
        topic: that it reads.
        holder: of the subscription; what it halts ends the wait.
        partitions: the task's.
        seconds: it is answered after so long in any case.
    """

    def __init__(self, topic: ServedTopic, holder: SessionOwner, partitions: frozenset[int], seconds: float) -> None:
        self._topic = topic
        self._holder = holder
        self._partitions = partitions
        self._until = time.monotonic() + seconds
        self._quiet = False  # it gets an answer soon: nothing for it up to the head
        self.snapshot()

    def snapshot(self) -> None:
        """Note what there is, right before it is looked at."""
        topic = self._topic
        self._head, self._waits, self._acks = topic.head, topic.waiting, topic.acked.notifications

    async def news(self, *, moved: bool, at_change: bool) -> bool:
        """Wait; tell whether to look again. If not, the task is answered with what was found.

        Args:
            moved: something was found, though no rows: the task gets a reply soon.
            at_change: what comes next is given when the flow's other cursors are here too.
        """
        topic = self._topic
        if self._quiet:
            return False
        if moved:
            self._soon()
        while True:
            if topic.closed or self._holder.halted or topic.waiting != self._waits:
                return True
            if at_change and topic.acked.notifications != self._acks:
                return True
            if topic.head != self._head:
                sealed_again = topic.head.epoch != self._head.epoch and topic.head.n <= self._head.n
                if topic.ended or sealed_again or topic.has_rows_since(self._head.n, self._partitions):
                    return True
                self._soon()
            left = self._until - time.monotonic()
            if left <= 0:
                return topic.head != self._head
            if at_change:
                await wait_for_any((topic.news, topic.acked), left)
            else:
                await topic.news.wait(left)

    def _soon(self) -> None:
        if not self._quiet:
            self._quiet, self._until = True, min(self._until, time.monotonic() + QUIET_SECONDS)


def _nothing_yet(topic: ServedTopic, asked: flow_operations.FollowRequest) -> ChangeFeedPage | None:
    """Return that there is nothing, where no disk need be asked: each cursor is at the head. None if it must."""
    if topic.ended or not asked.parts or any(part.at != topic.head for part in asked.parts):
        return None
    return ChangeFeedPage((), topic.head, at_change=False, partitions=asked.partitions)


async def _has_room(topic: ServedTopic) -> bool:
    """Tell whether what a flow publishes has room. If so, none waits for it, though a task that did may be gone."""
    has_room = await topic.run(topic.has_room)
    return has_room and await topic.room(0.0, has_room=True) is None


def _require_publishing(topic: ServedTopic) -> None:
    if not topic.publishing:
        raise Fenced(f"topic {topic.topic!r}: this publisher was closed or replaced", topic=topic.topic)


def _cursors(found: list[Cursor]) -> flow_operations.CursorsReply:
    return flow_operations.CursorsReply(
        tuple(flow_operations.CursorObject(each.partition, each.claim, each.position, each.rows) for each in found)
    )


def _sealed(outcome: PartOutcome | JobpipeError) -> flow_operations.PartSealed:
    if isinstance(outcome, PartOutcome):
        return flow_operations.PartSealed(outcome.cursor.position)
    return flow_operations.PartSealed(
        code=type(outcome).__name__, message=outcome.message, again=bool(outcome.fields.get("again"))
    )
