"""What the subscribers of one topic read next: planned in groups in the log's thread; waits are shared."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field

from jobpipe.coordinator.topic.fair_executor import FairQueue, resolve_future
from jobpipe.coordinator.topic.topic_state import TopicState
from jobpipe.errors import JobpipeError, SpoolError
from jobpipe.net.servers.identity_quota import asking
from jobpipe.operations.messages.message_fields import MAX_WAIT_SECONDS
from jobpipe.store.reading.shared_plans import Planned, PlanQuery

GROUP = 64  # plans that share a run in the log's thread
RUN_SECONDS = 0.002  # after which a run takes no further one: others wait for the thread, too
WOKEN = 64  # subscribers that are woken at once: a thousand answers take the loop a tenth of a second


@dataclass(eq=False)
class _PlanRequest:
    """An acknowledgement, and the plan that it asks for.

    Attributes:
        read, counts, wanted: for the ledger, as in :meth:`TopicPlans.next`.
        seconds: it waits for news at most, where there is nothing to read.
        notifications: of the news, before it was asked.
        done: the answer; None where the wait has ended, and ``found`` is the answer.
        found: that there is nothing to read.
        group: with which it waits.
        timer: ends its wait.
    """

    name: str
    grant: int
    order: PlanQuery
    read: int | None
    counts: bool
    wanted: tuple[int, ...] | None
    whose: str
    seconds: float
    notifications: int
    done: asyncio.Future[Planned | None]
    found: Planned | None = None
    group: _WaitingGroup | None = None
    timer: asyncio.TimerHandle | None = None


@dataclass
class _RoundResult:
    """What came of a run of a group: as much as it got through."""

    outcomes: list[Planned | JobpipeError] = field(default_factory=list)
    advanced: bool = False
    retried: bool = False  # it has failed once for the disk, and was begun again


@dataclass
class _WaitingGroup:
    """Those who wait for the same plan.

    Attributes:
        waiting: by when they came.
        notifications: of the news, when the log was looked at last.
        task: looks at the log when there is news; its work counts to the identity of the first one.
    """

    notifications: int
    waiting: dict[_PlanRequest, None] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


class TopicPlans:
    """Plans what comes next. Belongs to the event loop; what waits ends with its request."""

    def __init__(self, topic: TopicState) -> None:
        self._topic = topic
        self._asked: FairQueue[_PlanRequest] = FairQueue()
        self._working: asyncio.Task[None] | None = None
        self._groups: dict[PlanQuery, _WaitingGroup] = {}
        self._waits: dict[str, dict[_PlanRequest, None]] = {}  # by name

    async def next(
        self,
        name: str,
        grant: int,
        order: PlanQuery,
        seconds: float = 0.0,
        *,
        read: int | None = None,
        counts: bool = False,
        wanted: tuple[int, ...] | None = None,
    ) -> Planned:
        """Acknowledge where an order starts, whose batch is committed, and plan what follows.

        Args:
            name: of the subscription.
            grant: of its holder.
            order: what is planned.
            seconds: to wait for news at most, where there is nothing to read. Meanwhile nothing is acknowledged: what
                has changed the subscription, as a seek, stays. The wait ends, too, where the name passes on.
            read: for the ledger, rows that the holder has read before the start, where it counts itself.
            counts: its tasks count what they read.
            wanted: the partitions that they read; None for all.

        Raises:
            Fenced: the name was given to another subscriber, or the subscription was dropped.
            DataLoss: the start does not fit, or no longer.
            TopicNotFound: the topic is not served here any more.
        """
        done: asyncio.Future[Planned | None] = asyncio.get_running_loop().create_future()
        asked = _PlanRequest(
            name, grant, order, read, counts, wanted, asking.get(), seconds, self._topic.news.notifications, done
        )
        self._asked.extend(asked.whose, (asked,))
        if self._working is None:
            self._working = asyncio.create_task(self._work(), name=f"plans-{self._topic.topic}")
        try:
            outcome = await done
        finally:
            self._leave(asked)
        if outcome is None:
            assert asked.found is not None  # noqa: S101 - it has waited
            return asked.found
        return outcome

    async def _work(self) -> None:
        try:
            while self._asked:
                await self._run_group(self._next_group())
        finally:
            self._working = None
            while self._asked:  # only where we are cancelled: the loop ends
                self._asked.take().done.cancel()

    def _next_group(self) -> list[_PlanRequest]:
        """Take some, of each identity in turn."""
        group: list[_PlanRequest] = []
        while self._asked and len(group) < GROUP:
            asked = self._asked.take()
            if not asked.done.done():
                group.append(asked)
        return group

    async def _run_group(self, group: list[_PlanRequest]) -> None:
        if not group:
            return
        result = _RoundResult()

        def planned(_: None) -> None:
            if result.advanced:
                self._topic.note_progress()
            for asked, outcome in zip(group, result.outcomes, strict=False):
                if asked.seconds and isinstance(outcome, Planned) and outcome.is_open and not asked.done.done():
                    self._wait(asked, outcome)
                else:
                    resolve_future(asked.done, outcome)

        running = asyncio.ensure_future(
            self._topic.run_then(lambda: self._in_thread(group, result), planned, whose="")  # it is for all
        )
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            running.cancel()
            for asked in group:
                asked.done.cancel()
            raise
        if (error := running.exception()) is not None:
            for asked in group:
                resolve_future(asked.done, error)
            return
        # Serve those first in the next run that this one did not reach.
        self._asked.put_back((asked.whose, asked) for asked in group[len(result.outcomes) :])

    def _in_thread(self, group: list[_PlanRequest], result: _RoundResult) -> None:
        """Acknowledge and plan for a group, until the run is over; an error of one is its own.

        What a disk refuses is tried once more after the log's thread has mended it, from there on.
        """
        plans, until = self._topic.store.plans, time.monotonic() + RUN_SECONDS
        plans.drop_stale()
        for asked in group[len(result.outcomes) :]:
            try:
                result.advanced |= plans.acknowledge(
                    *(asked.name, asked.grant, asked.order.start),
                    read=asked.read,
                    counts=asked.counts,
                    wanted=asked.wanted,
                )
                result.outcomes.append(plans.plan(asked.order))
            except SpoolError as error:
                if not result.retried:
                    result.retried = True
                    raise
                result.outcomes.append(error)
            except JobpipeError as error:
                result.outcomes.append(error)
            if time.monotonic() > until:
                return

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait(self, asked: _PlanRequest, found: Planned) -> None:
        """Let one wait until there is something to read, with those who wait for the same."""
        asked.found = found
        group = self._groups.get(asked.order)
        if group is None:
            group = self._groups[asked.order] = _WaitingGroup(asked.notifications)
            group.task = asyncio.create_task(self._follow(asked.order, group), name=f"news-{self._topic.topic}")
        asked.group = group
        group.waiting[asked] = None
        self._waits.setdefault(asked.name, {})[asked] = None
        asked.timer = asyncio.get_running_loop().call_later(asked.seconds, resolve_future, asked.done, None)

    def _leave(self, asked: _PlanRequest) -> None:
        """Forget one that has its answer, or was cancelled."""
        group = asked.group
        if group is None or asked.timer is None:
            return
        asked.timer.cancel()
        group.waiting.pop(asked, None)
        if not group.waiting and self._groups.get(asked.order) is group:
            del self._groups[asked.order]
            if group.task is not None:
                group.task.cancel()
        waits = self._waits[asked.name]
        del waits[asked]
        if not waits:
            del self._waits[asked.name]

    def wake(self, name: str) -> None:
        """Answer those who wait under a name: another holds it now, or it was dropped."""
        for asked in self._waits.get(name, ()):
            resolve_future(asked.done, None)

    async def _follow(self, order: PlanQuery, group: _WaitingGroup) -> None:
        """Look at the log whenever there is news, until no request of the group waits."""
        topic = self._topic
        try:
            while group.waiting:
                if topic.news.notifications == group.notifications:
                    await topic.news.wait(MAX_WAIT_SECONDS)
                    continue
                group.notifications = topic.news.notifications
                found = await topic.run(topic.store.plans.plan_fresh, order)
                if not found.is_open:
                    await self._resolve_all(order, group, found)
        except Exception as error:  # noqa: BLE001 - told to all who wait
            await self._resolve_all(order, group, error)

    async def _resolve_all(self, order: PlanQuery, group: _WaitingGroup, outcome: Planned | Exception) -> None:
        """Tell a part of them at a time: requests of others come in between. Who comes now is in a new group."""
        if self._groups.get(order) is group:
            del self._groups[order]
        while group.waiting:
            for asked in list(itertools.islice(group.waiting, WOKEN)):
                group.waiting.pop(asked)
                resolve_future(asked.done, outcome)
            await asyncio.sleep(0)
