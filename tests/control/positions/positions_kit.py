"""A topic in memory whose subscriptions are moved: as its coordinator answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jobpipe.admin import Distance
from jobpipe.errors import DataLoss, JobpipeError, NameTaken, TopicNotFound
from jobpipe.operations.admin_operations import MovedReply
from jobpipe.operations.messages.application import Application
from jobpipe.operations.status_operations import ReaderProcess, TopicStatus
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import Boundary
from tests.statuses import subscription_status, topic_status

LOG = 16 * "a"
BATCH_ROWS = 100  # of each batch


def at(n: int) -> Position:
    """Return the position before a batch of the log."""
    return Position(LOG, min(n, 1), n)


@dataclass
class OneTopic:
    """The topic ``flights``: batches from ``tail`` to ``head``, and where its subscriptions stand."""

    tail: int = 0
    head: int = 20
    places: dict[str, Position | None] = field(default_factory=dict)
    connected: set[str] = field(default_factory=set)
    states: dict[str, str] = field(default_factory=dict)  # where the status says something else
    keeper: str | None = None  # the topic that has cursors of the flow
    applications: dict[str, Application] = field(default_factory=dict)
    before_seek: Callable[[], None] = lambda: None
    fails: JobpipeError | None = None
    asked: int = 0
    times: list[int] = field(default_factory=list)  # that were asked for, in milliseconds

    def status(self, topic: str) -> TopicStatus:
        self.asked += 1
        if topic != "flights":
            raise TopicNotFound(f"no topic {topic}", topic=topic)
        lines = [
            subscription_status(
                name,
                position=None if place is None else place.n,
                application=self.applications.get(name),
                state=self.states.get(name, "connected" if name in self.connected else "absent"),
                where=ReaderProcess("alpha", 4711),
            )
            for name, place in self.places.items()
        ]
        return topic_status(topic, log=LOG, subscriptions=tuple(lines), head=self.head, tail=self.tail)

    def distance(self, topic: str, name: str, to: Boundary) -> Distance:
        place, target = self.places[name], self._resolved(to)
        if place is None:
            return Distance(None, target, None, problem="it has no position yet")
        lost = max(0, self.tail - place.n)
        return Distance(place, target, abs(target.n - max(place.n, self.tail)) * BATCH_ROWS, lost)

    def _resolved(self, to: Boundary) -> Position:
        if to.kind == "earliest":
            return at(self.tail)
        if to.kind == "latest":
            return at(self.head)
        if to.kind == "time":
            self.times.append(int(str(to.value)))
            return at(self.tail)
        n = to.value.n if isinstance(to.value, Position) else int(to.value or 0)
        if not self.tail <= n <= self.head:
            raise DataLoss(f"batches {n} to {self.tail - 1} are missing", reason="removed")
        return to.value if isinstance(to.value, Position) else at(n)

    def flow_keeper(self, topic: str, name: str) -> str | None:
        return self.keeper

    def seek(self, topic: str, name: str, to: Boundary) -> MovedReply:
        self.before_seek()
        if self.fails is not None:
            raise self.fails
        if name in self.connected:
            raise NameTaken("it is held", holder={"host": "alpha", "pid": 4711})
        before, target = self.places[name], self._resolved(to)
        self.places[name] = target
        return MovedReply(name, None if before is None else before.n, target.n)
