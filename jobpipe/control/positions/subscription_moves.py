"""Moves subscriptions to other positions, and takes the last move of each back: planned first, then done as planned.

The coordinator moves a subscription only while no subscriber is connected to it. That it still stands where the plan
saw it is compared here, right before: the coordinator knows no such condition. So there is a window of one request, in
which a subscriber would have to connect, acknowledge and leave, or another administrator to move it. The coordinator
answers at which offset it stood; if that is another one, the caller gets an error that says so, and no undo is offered.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from jobpipe.admin import AWAY, Distance
from jobpipe.config.types.value_types import BadValueError
from jobpipe.control.positions.move_plan import (
    Move,
    MovePlan,
    meaning,
    place_text,
    position_text,
    read_position_text,
)
from jobpipe.control.positions.move_store import MoveRow, MoveStore
from jobpipe.errors import (
    ConfigError,
    ControlConflict,
    DataLoss,
    JobpipeError,
    NameTaken,
    SubscriptionNotFound,
    TopicNotFound,
    short_repr,
)
from jobpipe.jobs.storage.job_rows import JobRow, JobSubscription
from jobpipe.jobs.storage.job_store import Store
from jobpipe.operations.admin_operations import MovedReply
from jobpipe.operations.status_operations import SubscriptionStatus, TopicStatus
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import EARLIEST, Boundary
from jobpipe.store.spool.spool_files import is_topic

log = logging.getLogger(__name__)

MOVED = "moved"  # the event
WORDS = ("earliest", "latest")
CONNECTED, RECONNECTING = "connected", "reconnecting"  # states of a subscription


class PositionAdmin(Protocol):
    """What is asked here of :class:`jobpipe.admin.Admin`."""

    def status(self, topic: str) -> TopicStatus: ...

    def distance(self, topic: str, name: str, to: Boundary) -> Distance: ...

    def flow_keeper(self, topic: str, name: str) -> str | None: ...

    def seek(self, topic: str, name: str, to: Boundary) -> MovedReply: ...


@dataclass(frozen=True)
class _Look:
    plan: MovePlan
    distance: Distance
    job: JobRow | None


class SubscriptionMoves:
    """Plans, makes and undoes moves. Methods block, and may be called from any thread.

    All raise ``TopicNotFound`` and ``SubscriptionNotFound`` for what is not there or not served, ``NotAuthorized`` if
    the server may not read the topic or move the subscription, and ``LinkError`` if the coordinator does not answer.

    Args:
        clock: seconds since 1970.
    """

    def __init__(self, store: Store, admin: PositionAdmin, clock: Callable[[], float]) -> None:
        self._store = store
        self._moves = MoveStore(store)
        self._admin = admin
        self._clock = clock
        self._lock = threading.Lock()
        self._busy: set[tuple[str, str]] = set()

    def last(self, topic: str) -> Mapping[str, Move]:
        """Return the last move of each subscription of a topic, as far as they are kept."""
        return {name: _move(row) for name, row in self._moves.of_topic(topic).items()}

    def plan(self, topic: str, subscription: str, to: str | int) -> MovePlan:
        """Return what a move means, and what is in its way; change nothing.

        Args:
            to: ``earliest``, ``latest``, an offset, or a time in ISO 8601 with its zone.

        Raises:
            ConfigError: ``to`` is anything else, or nothing was published since that time.
            DataLoss: what lies there was removed, or never was there.
        """
        return self._look(topic, subscription, _boundary(to)).plan

    def move(self, topic: str, subscription: str, to: str | int, *, expected: str, by: str) -> Move:
        """Move a subscription; it can be undone.

        Args:
            to: as of :meth:`plan`. A word may mean another offset than when it was planned: give the plan's offset.
            expected: ``at`` of the plan.
            by: who asks for it.

        Raises:
            ControlConflict: it does not stand where the plan saw it, or something is in the way; nothing was changed.
            LinkError: it is not known whether it was moved; so with ``TopicAway``.
        """
        wanted = _boundary(to)
        with self._alone(topic, subscription):
            return self._do(self._look(topic, subscription, wanted), expected, by)

    def plan_undo(self, topic: str, subscription: str) -> MovePlan:
        """Return what it means to take the last move back, and what is in the way.

        Raises:
            ControlConflict: there is no move, or no way back: its rows are not kept any more.
        """
        return self._look_back(topic, subscription).plan

    def undo(self, topic: str, subscription: str, *, number: int, expected: str, by: str) -> Move:
        """Take the last move back, if the subscription still stands where that left it; the undo can be undone.

        Args:
            number: of the move that the plan takes back; two moves may leave a subscription at the same place.
            expected, by: as of :meth:`move`.

        Raises:
            ControlConflict: as :meth:`move` and :meth:`plan_undo`; its reader has gone on, or another move was made
                since the plan, for instance.
        """
        with self._alone(topic, subscription):
            look = self._look_back(topic, subscription)
            if look.plan.undoes is None or look.plan.undoes.number != number:
                raise ControlConflict(
                    f"another move of {subscription} was made since the plan: its undo goes to offset "
                    f"{look.plan.to:,}. Nothing was changed; look at the plan again",
                    topic=topic,
                    name=subscription,
                )
            return self._do(look, expected, by)

    @contextlib.contextmanager
    def _alone(self, topic: str, subscription: str) -> Iterator[None]:
        key = (topic, subscription)
        with self._lock:
            if key in self._busy:
                raise ControlConflict(f"another move of {subscription} is under way; try again", topic=topic)
            self._busy.add(key)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(key)

    def _look_back(self, topic: str, subscription: str) -> _Look:
        row = self._moves.last(topic, subscription)
        if row is not None and row.in_doubt:
            row = _settled(row, self._admin.distance(topic, subscription, EARLIEST).position)
        if row is None:
            raise ControlConflict(f"no move of {subscription} of topic {topic} is kept: nothing to undo", topic=topic)
        if row.before is None:
            raise ControlConflict(
                f"{subscription} had no position before it was moved, so there is none to go back to", topic=topic
            )
        try:
            look = self._look(topic, subscription, Boundary("position", row.before))
        except DataLoss as loss:
            raise ControlConflict(f"the move cannot be undone: {loss.message}", **loss.fields) from loss
        look = replace(look, plan=replace(look.plan, undoes=_move(row)))
        if look.distance.position != row.after:
            here, there = place_text(look.distance.position), place_text(row.after)
            why = f"it stands at {here}, and not at {there}, where the move left it: it was read or moved since"
            return replace(look, plan=replace(look.plan, obstacles=(*look.plan.obstacles, why)))
        return look

    def _look(self, topic: str, subscription: str, to: Boundary) -> _Look:
        line = self._line(topic, subscription)
        distance = self._admin.distance(topic, subscription, to)
        before, target = distance.position, distance.target
        job = self._job(topic, line)
        plan = MovePlan(
            topic=topic,
            subscription=subscription,
            at=position_text(before),
            before=None if before is None else before.n,
            to=target.n,
            rows=distance.rows,
            again=before is not None and target.place < before.place,
            said=meaning(subscription, distance),
            obstacles=tuple(self._obstacles(topic, line, distance, job)),
            remarks=tuple(_remarks(distance, job)),
        )
        return _Look(plan, distance, job)

    def _line(self, topic: str, subscription: str) -> SubscriptionStatus:
        if not is_topic(topic):
            raise TopicNotFound(f"{short_repr(topic)} is not the name of a topic", topic=topic[:200])
        for line in self._admin.status(topic).subscriptions:
            if line.name == subscription:
                return line
        raise SubscriptionNotFound(
            f"topic {topic!r} has no subscription {short_repr(subscription)}", topic=topic, name=subscription
        )

    def _job(self, topic: str, line: SubscriptionStatus) -> JobRow | None:
        """Return the job of this server that reads by a subscription; None for another reader."""
        wanted = JobSubscription(topic=topic, name=line.name)
        for job in self._store.jobs():
            if wanted in job.subscriptions:
                return job
        said = line.application
        return None if said is None or not said.job else self._store.job(said.pipeline, said.job)

    def _obstacles(self, topic: str, line: SubscriptionStatus, distance: Distance, job: JobRow | None) -> Iterator[str]:
        if distance.position == distance.target:
            yield "it stands there already"
        called = "its subscriber" if job is None else f"job {job.pipeline}.{job.name}"
        run = None if job is None else self._store.run(job.run)
        if line.state == CONNECTED:
            where = "" if line.where is None else f" from {line.where.host}, pid {line.where.pid}"
            yield f"a subscriber is connected{where}: stop {called} first"
        elif line.state == RECONNECTING:  # if it comes back, it goes on where it was
            yield "its subscriber has just lost its link, and may come back: try again in half a minute"
        elif run is not None and not run.is_over and run.state is not JobState.LOST:
            yield f"{called} is {run.state}, and may connect at any moment: stop it first"
        if (keeper := self._admin.flow_keeper(topic, line.name)) is not None:
            yield (
                f"{line.name} is a flow: it goes on at its cursors, which topic {keeper} keeps. Stop it, and run "
                f"`jobpipe topics flows reset {line.name}` first"
            )

    def _do(self, look: _Look, expected: str, by: str) -> Move:
        """Make a move as planned: its row is stored first, in doubt, so that one that is killed tells what it began."""
        plan, distance = look.plan, look.distance
        topic, name, before = plan.topic, plan.subscription, distance.position
        if before != (wanted := read_position_text(expected)):
            raise ControlConflict(
                f"{name} stands at {place_text(before)}, and the plan saw it at {place_text(wanted)}: it was read or "
                "moved since. Nothing was changed; look at the plan again",
                topic=topic,
                name=name,
                at=plan.at,
                expected=expected,
            )
        if plan.obstacles:
            raise ControlConflict(f"{name} of topic {topic} is not moved: {'; '.join(plan.obstacles)}", topic=topic)
        known = self._moves.last(topic, name)
        row = MoveRow(
            topic=topic,
            subscription=name,
            time=self._clock(),
            by=by[:100],
            before=before,
            after=distance.target,
            in_doubt=True,
            earlier=None if known is None else _settled(known, before),
        )
        number = self._moves.put(row)
        try:
            reply = self._admin.seek(topic, name, Boundary("position", distance.target))
        except AWAY:  # it may have been done
            raise
        except JobpipeError as error:
            self._put_back(topic, name, known)
            if isinstance(error, NameTaken):
                raise ControlConflict(f"{name} is not moved: {error.message}", **error.fields) from error
            raise
        self._tell(row, reply, look.job)
        if reply.before != plan.before:
            self._moves.forget(topic, name)
            raise ControlConflict(
                f"{name} was at offset {reply.before}, and not at {place_text(before)}, when it was moved to "
                f"{place_text(distance.target)}: it was read or moved at the same moment. It is moved, and that "
                "cannot be undone here",
                topic=topic,
                name=name,
            )
        self._moves.made(topic, name)
        return _move(replace(row, number=number, in_doubt=False))

    def _put_back(self, topic: str, name: str, known: MoveRow | None) -> None:
        if known is None:
            self._moves.forget(topic, name)
        else:
            self._moves.put(known)

    def _tell(self, row: MoveRow, reply: MovedReply, job: JobRow | None) -> None:
        topic, way = row.topic, f"from {_offset(reply.before)} to {_offset(reply.to)}"
        log.info("topic %s: %s moved %s %s", topic, row.by, row.subscription, way)
        self._store.add_event(
            "" if job is None else job.pipeline,
            None if job is None else job.name,
            MOVED,
            detail=f"{row.subscription} of topic {topic} {way}, by {row.by}",
            fields={
                "topic": topic,
                "subscription": row.subscription,
                "from": reply.before,
                "to": reply.to,
                "by": row.by,
            },
        )


def _boundary(to: str | int) -> Boundary:
    try:
        return Boundary.read(str(to), WORDS)
    except BadValueError:
        expected = f"{', '.join(WORDS)}, an offset, or a time such as 2026-11-21T10:00:00Z"
        raise ConfigError(f"to: {short_repr(to)} is not one of {expected}", key="to") from None


def _move(row: MoveRow) -> Move:
    return Move(
        topic=row.topic,
        subscription=row.subscription,
        number=row.number or 0,
        time=row.time,
        by=row.by,
        before=None if row.before is None else row.before.n,
        to=row.after.n,
        in_doubt=row.in_doubt,
    )


def _settled(row: MoveRow, position: Position | None) -> MoveRow | None:
    """Return the last move that was made, as far as the place where the subscription stands tells.

    The store keeps what it has: a move whose answer was lost may still be made later.
    """
    if row.in_doubt and position == row.before:
        return row.earlier
    return replace(row, in_doubt=False, earlier=None) if position == row.after else row


def _remarks(distance: Distance, job: JobRow | None) -> Iterator[str]:
    if job is not None and job.kind == "query":
        yield (
            f"Job {job.pipeline}.{job.name} goes on from its own checkpoint, if that has committed a batch. The move "
            f"then counts only for a new checkpoint: submit with --new-checkpoint {job.name}"
        )
    elif job is None or job.kind == "application":
        yield (
            "A Spark query goes on from its own checkpoint, if that has committed a batch. The move then counts only "
            "for a new checkpoint"
        )
    if distance.position is None or distance.position.place < distance.target.place:
        yield "Rows that it skips may be removed once no other reader needs them; then the move cannot be undone"


def _offset(value: int | None) -> str:
    return "no offset" if value is None else f"offset {value:,}"
