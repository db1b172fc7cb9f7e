"""Slots of streams that read ahead: made for the driver, bound to a range of the log for the workers, once each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from jobpipe.coordinator.topic.topic_state import TopicState
from jobpipe.coordinator.topic.topic_subscribers import TopicSubscribers
from jobpipe.errors import ConfigError, DataLoss, TopicNotFound
from jobpipe.net.retry import Deadline
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import Boundary, ReadLimits
from jobpipe.store.reading.read_plan import ReadPlan

MAX_BIND_SECONDS = 1.0  # that a slot waits for news; then it is bound empty, and Spark asks for the next one


@dataclass(frozen=True)
class NextSlot:
    """Where a stream goes on.

    Attributes:
        made: The slot was added. False where the read is over and the slot before it begins at the same place.
        plan: What lies there now, whatever the limits are; begins where the slot does.
        stop: Where the read ends, None while that is open.
        over: Nothing more will come: the read ends there, or an end mark is the newest batch. The slot is bound empty,
            so that the stream has an end offset that is the end.
        schema_id: Of what lies there; if nothing does, the newest; None while none is known.
    """

    made: bool
    plan: ReadPlan
    stop: Position | None
    over: bool
    schema_id: int | None


class SlotBinder:
    """Makes and binds the slots of one topic; every change to the log goes through the topic's thread."""

    def __init__(self, topic: TopicState, subscribers: TopicSubscribers) -> None:
        self._topic = topic
        self._subscribers = subscribers
        self._name = topic.topic

    async def next(
        self,
        name: str,
        grant: int,
        *,
        start: Position,
        last: str | None,
        slot: str,
        end: Boundary | None,
        witnessed: bool,
        counts: bool = False,
    ) -> NextSlot:
        """Acknowledge what the slot ``last`` was bound to, whose batch is committed, and make the next one after it.

        Args:
            start: where ``last`` begins; without it, where to begin.
            slot: id of the next one.
            end: where the read ends.
            witnessed: the asker had ``last`` made itself, as its newest one, and has run ever since.
            counts: for the ledger, its tasks count what they read.

        Raises:
            ConfigError: the topic's publisher uses ``acks=all``.
            DataLoss: ``start`` does not fit, or ``last`` is not known.
            Fenced: the name was given to another subscriber.
        """
        if self._topic.config.acks == "all":
            raise ConfigError(
                f"topic {self._name!r}: readAhead=true cannot be combined with the publisher's jobpipe.acks=all: if "
                "the spool were lost, the topic would continue where all have read, and positions alone could not tell "
                "whether the last range that was read ahead has been read. Leave readAhead out",
                topic=self._name,
            )

        def work() -> tuple[NextSlot, bool]:
            store = self._topic.store
            begin = start if last is None else self._slot_end(name, grant, start, last, committed=not witnessed)
            here = self._resolved(begin)
            store.subscriptions.declare(name, grant, here)
            advanced = store.subscriptions.acknowledge(name, grant, here)
            if counts:
                store.ledger.account(name).counts_from(here.place)
            stop = None if end is None else store.resolver.end(end)
            plan = store.planner.plan(here, until=_until(here, stop))
            over = plan.end.place == here.place and _is_over(here, stop, ended=store.batches.ended())
            newest = None if plan.schema_id is not None else store.schemas.newest()
            schema_id = plan.schema_id if newest is None else newest[0]
            made = not over or here.place != start.place
            if made:
                store.slots.add(name, grant, slot, here, empty=over)  # once all is read, the topic may be gone
            return NextSlot(made, plan, stop, over, schema_id), advanced

        self._subscribers.held(name, grant)
        found, _ = await self._topic.run_then(work, lambda done: self._topic.note_progress() if done[1] else None)
        return found

    async def resolve_slot_end(self, name: str, grant: int, start: Position, slot: str, *, committed: bool) -> Position:
        """Return where a slot ends; one that was never bound gets no row, and its end from now on.

        Args:
            start: where it begins.
            committed: Spark has committed its batch; so if it is not bound, no task has read it.

        Raises:
            DataLoss: it is not known, or whether it was bound cannot be told.
            Fenced: the name was given to another subscriber.
        """
        self._subscribers.held(name, grant)
        return await self._topic.run(
            lambda: self._resolved(self._slot_end(name, grant, start, slot, committed=committed))
        )

    async def bind(
        self, name: str, grant: int, slot: str, limits: ReadLimits, *, schemas: Collection[int], wait: float
    ) -> list[ReadPlan]:
        """Return what a slot was bound to, or bind it: to what is there, as soon as something is.

        Concurrent calls get the same answer, and so do all later ones, also from the next coordinator.

        Args:
            grant: checked against the log alone: a worker may be here before its driver is back.
            slot: its id.
            limits: of the range.
            schemas: ids of those that fit what the query reads; the binding stops before any other.
            wait: seconds after which it is bound without a row, at most :data:`MAX_BIND_SECONDS`.

        Returns:
            One plan, without a row if there is none; of two or more, the log is not what it was.

        Raises:
            DataLoss: the slot is not known, or its range does not fit any more.
            Fenced: the name was given to another subscriber.
        """
        deadline = Deadline(min(wait, MAX_BIND_SECONDS))
        while True:
            patient, head = not deadline.passed, self._topic.head
            found = await self._topic.run(self._bound, name, grant, slot, limits, schemas, patient=patient)
            if found is not None:
                return found
            if self._topic.head == head:  # else there is news since
                await self._topic.news.wait(deadline.left())

    # -- in the topic's thread -----------------------------------------------------------------------------------------

    def _bound(
        self, name: str, grant: int, slot: str, limits: ReadLimits, schemas: Collection[int], *, patient: bool
    ) -> list[ReadPlan] | None:
        store = self._topic.store
        known = store.slots.get(name, grant, slot)
        end = known.end
        start = self._resolved(known.start)
        if end is None:
            wanted = self._choose(start, limits, schemas)
            if wanted is None and patient:
                return None
            end = store.slots.bind(name, grant, slot, wanted or start).end
        assert end is not None  # noqa: S101 - it is bound
        end = self._resolved(end)
        store.batches.check(start)
        return store.planner.describe(start, end) or [store.planner.plan(start, until=start)]

    def _choose(self, start: Position, limits: ReadLimits, schemas: Collection[int]) -> Position | None:
        """Return up to where a slot is bound, None while there is nothing and something may come."""
        store = self._topic.store
        stop = None if limits.end is None else store.resolver.end(limits.end)
        until = _until(start, stop)
        plan = store.planner.plan(start, until=until, max_rows=limits.max_rows, max_bytes=limits.max_bytes)
        if plan.end.place == start.place:
            return start if _is_over(start, stop, ended=store.batches.ended()) else None
        if plan.schema_id is not None and plan.schema_id not in schemas:
            return start  # the driver judges it
        lost = store.hosts.lost(plan.start.n, plan.end.n + (1 if plan.end.r else 0), self._topic.gone)
        if not lost:
            return plan.end
        return start if lost[0].n <= start.n else store.batches.at(lost[0].n)

    def _slot_end(self, name: str, grant: int, start: Position, slot: str, *, committed: bool) -> Position:
        """Return where a slot ends; bind it, empty, if it is not bound, and that can be told.

        An older copy of the catalog may lack a binding that tasks went by. So where the batch is ``committed``, and the
        slot is of an earlier epoch, it stays open, unless the query that had it made has lived through all of that: a
        copy of the moments between would have had to be made, lost and restored within one micro-batch.
        """
        store = self._topic.store
        known = store.slots.get(name, grant, slot)
        if (known.start.log, known.start.place) != (start.log, start.place):
            raise self._loss(name, slot, f"it begins at offset {known.start.n}, and by the checkpoint at {start.n}")
        if known.end is not None:
            return known.end
        if committed and known.epoch != store.epoch:
            raise self._loss(
                name,
                slot,
                "its batch is committed, and the spool does not know what it read: it may be an older copy",
            )
        end = store.slots.bind(name, grant, slot, known.start).end
        assert end is not None  # noqa: S101 - it is bound
        return end

    def _loss(self, name: str, slot: str, why: str) -> DataLoss:
        return DataLoss(
            f"topic {self._name!r}: slot {slot} of subscription {name!r} does not fit: {why}. Begin with a new "
            "checkpoint",
            topic=self._name,
            reason="slot",
            name=name,
            slot=slot,
        )

    def _resolved(self, position: Position) -> Position:
        here = self._topic.store.recovery.resolve(position)
        if here is None:
            raise TopicNotFound(
                f"topic {self._name!r}: batch {position.n - 1} is there again once its publisher has repeated it",
                topic=self._name,
            )
        return here


def _until(start: Position, stop: Position | None) -> Position | None:
    return start if stop is not None and stop.place < start.place else stop


def _is_over(here: Position, stop: Position | None, *, ended: bool) -> bool:
    """Tell whether nothing will come after ``here``, where nothing lies now."""
    return ended if stop is None else stop.place <= here.place or ended
