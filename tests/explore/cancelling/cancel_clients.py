"""The publisher's core and the plain subscriber, interrupted at each request, before it is done and after it.

Both are blocking code, so a cancellation reaches them as an interruption (Ctrl-C, or the end of the query) while they
wait for an answer, or as a link that breaks, which they dial again. An interrupted publisher is started again and
repeats the batch, as Spark does; an interrupted subscriber comes back under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from jobpipe.net.links.fork_guard import ForkGuard
from jobpipe.operations.coordinator_operations import CONTROL
from jobpipe.operations.messages.message_fields import R, RequestFor
from jobpipe.operations.publisher_operations import CloseReply, CloseRequest, OpenRequest
from jobpipe.operations.range_messages import News, PlannedRange
from jobpipe.operations.subscriber_operations import GrantRequest
from jobpipe.publishing import topic_publisher
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import Boundary
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.subscribing import python_client
from jobpipe.subscribing.python_client import Subscription
from jobpipe.subscribing.topic_follower import FollowerState
from jobpipe.testing import SCHEMA, Checker
from tests.explore.worlds.world import SECRET, TOPIC, World, replaced
from tests.explore.worlds.world_stage import BASE, Stage, Violation
from tests.store.build import decode, pieces_of

MODES = ("interrupted before", "interrupted after", "link before", "link after")
BATCHES = 2


class Interrupted(BaseException):
    """As Ctrl-C."""


@dataclass
class _Wire:
    """The requests of one client, of which one is disturbed.

    Attributes:
        at, mode: which one, counted from 1, and how; 0 for none.
        count: of requests so far.
    """

    stage: Stage
    at: int
    mode: str
    count: int = 0

    def ask(self, link: Any, request: RequestFor[R]) -> R:
        """Ask the coordinator; a link that breaks is dialled again, and the request repeated."""
        (operation,) = (each for each in CONTROL.values() if each.request is type(request))
        op, args, blob = operation.name, request.to_json(), request.blob
        self.count += 1
        here = self.count == self.at
        if here and self.mode == "interrupted before":
            raise Interrupted
        result = self._answer(link, op, args, blob)
        if here and self.mode == "interrupted after":
            raise Interrupted
        if here and self.mode == "link after":  # the answer is lost
            result = self._answer(link, op, args, blob)
        reply: R = operation.reply.from_json(*result)
        return reply

    def _answer(self, link: Any, op: str, args: dict[str, Any], blob: bytes) -> Any:
        return self.stage.world.run(self.stage.a.answer(link, op, args, blob))


# -- the publisher -----------------------------------------------------------------------------------------------------


class _Channel:
    """Stands for the publisher's channel: its requests go to the coordinator of this world."""

    wire: _Wire

    def __init__(self, topic: str, name: str, config: Any, order: Callable[[], OpenRequest], **how: Any) -> None:
        stage = self.wire.stage
        self.topic = topic
        self.owner = ForkGuard(topic)
        self.active: Callable[[], bool] = lambda: True
        self.coordinator = SimpleNamespace(instance=stage.a.host.instance, data=stage.a.endpoint, secret=SECRET)
        self._link = stage.a.link("publisher", name)
        opened = stage.world.run(stage.a.answer(self._link, "open", order().to_json()))[0]
        self.log_id, self.epoch, self.log_token = opened["log"], opened["epoch"], opened.get("log_token", "")

    def call(self, request: RequestFor[R]) -> R:
        return self.wire.ask(self._link, request)

    def leave(self, *, final: bool) -> CloseReply:
        return self.call(CloseRequest(final))

    def still(self, instance: str, note: Callable[[], None]) -> bool:
        note()
        return True

    @contextmanager
    def while_active(self, active: Callable[[], bool]) -> Iterator[None]:
        yield

    def close(self) -> None:
        pass


def publish(at: int, mode: str) -> int:
    """Publish some batches, interrupted at one request; return how many requests there were.

    Raises:
        Violation, AssertionError: something does not hold.
    """
    with World() as world:
        stage = Stage(world)
        wire = _Wire(stage, at, mode)
        _Channel.wire = wire
        with replaced(topic_publisher, "CoordinatorChannel", _Channel):
            done, run = 0, 0
            while done < BATCHES:
                run += 1
                publisher = Publisher(TOPIC, config=world.config, parallelism=stage.rows.partitions)
                try:
                    while done < BATCHES:
                        _publish_one(stage, publisher, done, f"run-{run}")
                        done += 1
                    stage.final = True
                    publisher.close(final=True)
                except Interrupted:
                    _close(publisher)
            if stage.a.topic is not None and not stage.a.topic.ended:
                publisher = Publisher(TOPIC, config=world.config, parallelism=stage.rows.partitions)
                publisher.close(final=True)
        stage.check()
        if stage.finish() != BATCHES * stage.rows.partitions * stage.rows.rows:
            raise Violation("not all rows arrived")
        return wire.count


def _publish_one(stage: Stage, publisher: Publisher, batch_id: int, run_id: str) -> None:
    stage.journal.intend(batch_id, stage.rows.ranges(batch_id))
    if publisher.begin(BatchKey("query", batch_id, run_id)) is None:
        target = publisher.target(stage.rows.partitions)
        segments = stage.write(target.write_id, batch_id)
        publisher.commit(BatchKey("query", batch_id, run_id), target, SCHEMA, None, segments)
    stage.journal.seal(batch_id)


def _close(publisher: Publisher) -> None:
    try:
        publisher.close()
    except Interrupted:
        publisher.close()


# -- the subscriber ----------------------------------------------------------------------------------------------------


class _Follower:
    """Stands for the follower of a topic."""

    wire: _Wire

    def __init__(self, topic: str, name: str, **how: Any) -> None:
        self._name = name
        self._grant = 0

    def start(self) -> None:
        self._link = self.wire.stage.a.link("subscriber", self._name, instance="i")
        self._grant = self.wire.ask(self._link, GrantRequest("h", 1)).grant

    def connected(self, timeout: float) -> None:
        pass

    def call(self, make: Callable[[int], RequestFor[R]], *, timeout: float, wait: bool = True) -> R:
        return self.wire.ask(self._link, make(self._grant))

    state = FollowerState.CONNECTED

    def ask_once(self, make: Callable[[int], RequestFor[R]], *, timeout: float) -> R:
        return self.call(make, timeout=timeout)

    def note_news(self, news: News) -> None:
        pass

    def poll(self, position: Position, timeout: float) -> News:
        return self.wait_beyond(position, timeout)

    def wait_beyond(self, position: Position, timeout: float) -> News:
        topic = self.wire.stage.a.topic
        assert topic is not None
        self.wire.stage.world.loop.sleep(timeout)
        return News(topic.head, topic.ended, None)

    def close(self) -> None:
        pass


def subscribe(at: int, mode: str) -> int:
    """Read a topic to its end, interrupted at one request; return how many requests there were.

    Raises:
        Violation, AssertionError: something does not hold.
    """
    with World() as world:
        stage = Stage(world)
        stage.set_up()
        stage.final = True
        world.run(stage.publish(stage.a, "close", {"final": True}))
        wire = _Wire(stage, at, mode)
        _Follower.wire = wire
        ahead = -1  # the last batch that was read whole
        with (
            replaced(python_client, "TopicFollower", _Follower),
            replaced(python_client, "TopicLocator", lambda config: SimpleNamespace(close=lambda: None)),
            replaced(python_client, "connect", lambda *what, **how: None),
            replaced(python_client, "fetch_plan", lambda topic, plan, data, config: _fetch(stage, plan)),
            replaced(Subscription, "_data_endpoint", lambda subscription: "nowhere"),
        ):
            while True:
                made = Subscription(TOPIC, name="plain", starting=Boundary("earliest"), config=world.config)
                checker = Checker(stage.rows, stage.journal, clock=world.loop.time)
                begun: int | None = None
                try:
                    for batch in made.batches():
                        first = int(batch.column("number")[0].as_py()) // stage.rows.rows
                        begun = first if begun is None else begun
                        checker.take(batch)
                        ahead = max(ahead, first - 1)
                    ahead = BASE - 1
                    made.close()
                    break
                except Interrupted:
                    world.settle()
                finally:
                    if begun is not None and begun > ahead + 1:
                        raise Violation(f"batch {begun} is the first, and {ahead + 1} was not read")
                    faults = {kind for kind in checker.report().faults if kind != "lost"}
                    if faults:
                        raise Violation(str(checker.report()))
        world.settle()
        stage.check()
        stage.finish()
        return wire.count


def _fetch(stage: Stage, plan: PlannedRange) -> Iterator[Any]:
    reader = CatalogReader.open(stage.world.directory, TOPIC)
    try:
        found = [
            piece
            for partition in range(plan.partitions)
            for piece in pieces_of(reader, plan.start, plan.end, partition)
        ]
        for piece in sorted(found, key=lambda one: (one.n, one.partition)):
            for batch in decode(piece).to_batches():
                yield SimpleNamespace(batch=batch, header=SimpleNamespace(n=piece.n, epoch=piece.epoch))
    finally:
        reader.close()
