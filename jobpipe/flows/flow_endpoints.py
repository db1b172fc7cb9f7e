"""The two ends of a flow: the subscription that it reads under, and the topic that it publishes."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pyarrow as pa

from jobpipe.arrow.ipc_validation import parse_arrow_schema
from jobpipe.discovery.configured_tls import dial_tls
from jobpipe.discovery.topic_lookup import TopicLocator
from jobpipe.errors import DataLoss, FlowFailed, JobpipeError
from jobpipe.flows.flow_schema import input_schema
from jobpipe.flows.flow_settings import FlowOptions
from jobpipe.flows.flow_task import TaskOrder
from jobpipe.flows.part_committer import PART_BYTES, PublishedTopic
from jobpipe.operations.flow_operations import PARTITIONER, BeginFlowRequest, CursorObject, CursorsRequest, HaltRequest
from jobpipe.operations.publisher_operations import Schema
from jobpipe.operations.range_messages import News
from jobpipe.operations.reader_operations import Bounds, BoundsRequest, SchemaRequest
from jobpipe.operations.subscriber_operations import AckRequest, CursorCount, FirstRequest, PlanRequest, PollRequest
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.flow_cursors import Cursor, FlowKey
from jobpipe.store.reading.boundary import Boundary
from jobpipe.subscribing.topic_follower import TopicFollower
from jobpipe.subscribing.wait_logging import connect

log = logging.getLogger(__name__)

CALL_SECONDS = 10.0
HEAD_SECONDS = 0.25  # that the known head may be old: tasks learn of each batch by themselves
SPOOL_PARTS = 8  # parts of a task that a spool holds at least
COMMITTED = Boundary("committed")


class FlowEndpoints:
    """Opens both ends, and knows where the cursors are. Close it.

    Attributes:
        key: the flow, and the log of its source.
        follower: the subscription's link.
        publisher: of the topic that is published; None for none.
        partitions: of the source, the most it ever had.
        cursors: as they were last heard of.
        full: what is published has no room, as was last heard of.
    """

    def __init__(self, options: FlowOptions, on_news: Callable[[News | None], object]) -> None:
        self._options = options
        self._token = secrets.token_hex(32)
        self._lock = threading.Lock()
        self._begun_at = ""  # instance of the coordinator that has the cursors
        self.cursors: list[Cursor] = []
        self.full = False
        self.publisher: Publisher | None = None
        self._locator = TopicLocator(options.config)
        self.follower = TopicFollower(
            options.subscribe,
            options.name,
            locator=self._locator,
            tls=partial(dial_tls, options.config),
            on_news=lambda: on_news(self.follower.news),
            head_wait=HEAD_SECONDS,
        )
        try:
            bounds = self._find_source()
            self.partitions = self._source_partitions()
            if options.publish is not None:
                self.publisher = self._open_publisher(options.publish)
            self.key, self._start = self._find_start(bounds)
            self.begin(self.partitions)
            self._schema = self._learn_schema()
        except BaseException:
            self.close(final=False)
            raise

    def _find_source(self) -> Bounds:
        options, config = self._options, self._options.config
        self.follower.start()
        connect(self.follower, config, self._locator, config.discovery_timeout, patient=True)
        return self.follower.call(lambda _: BoundsRequest(name=options.name), timeout=config.read_timeout)

    def _find_start(self, bounds: Bounds) -> tuple[FlowKey, Position]:
        """Return whose cursors, and where those begin that are missing; the subscription stands there.

        That is where the lowest cursor is, if the subscription was dropped; and where the subscription stands, if the
        cursors are lost with what was published.
        """
        options = self._options
        starting = options.starting
        if bounds.standing == "moved":
            starting = COMMITTED
        else:
            cursors = self._ask_cursors(FlowKey(options.name, options.subscribe, bounds.head.log))
            if cursors:
                starting = Boundary("position", self._low(cursors))
        first = self.follower.call(
            lambda grant: FirstRequest(grant, starting, skip_removed=not options.fail_on_data_loss),
            timeout=options.config.read_timeout,
        )
        start = Position(first.position.log, first.position.epoch, first.position.n)
        return FlowKey(options.name, options.subscribe, start.log), start

    def _ask_cursors(self, key: FlowKey) -> list[Cursor]:
        asked = CursorsRequest(key.flow, key.topic, key.log)
        if self.publisher is None:
            reply = self.follower.call(lambda _: asked, timeout=CALL_SECONDS, wait=False)
        else:
            reply = self.publisher.ask(asked)
        self.full = reply.full
        return list(map(_cursor, reply.cursors))

    def _learn_schema(self) -> pa.Schema | None:
        """Return the schema in which the function gets its batches; None while the source has none."""
        newest = self._published_schema(None)
        if newest is None:
            return None
        following, at = None, self._low(self.cursors)
        try:
            plan = self.follower.call(
                lambda grant: PlanRequest(grant, at, max_rows=1), timeout=self._options.config.read_timeout
            )
            if plan.start != plan.end and plan.schema_id is not None:
                following = self._published_schema(plan.schema_id)
        except DataLoss as error:  # told by the first task, or skipped there
            log.debug("flow %s: %s", self._options.name, error)
        return input_schema(newest, following, self._options.schema_evolution)

    def _published_schema(self, number: int | None) -> pa.Schema | None:
        asked = SchemaRequest(id=number)
        found = self.follower.call(lambda _: asked, timeout=self._options.config.read_timeout).schema
        return None if found is None else parse_arrow_schema(self._options.subscribe, found[0])

    @staticmethod
    def _low(cursors: Sequence[Cursor]) -> Position:
        low = min((each.position for each in cursors), key=lambda at: at.place)
        return Position(low.log, low.epoch, low.n)

    def _source_partitions(self) -> int:
        location = self._locator.current(self._options.subscribe) or self.follower.location
        return 1 if location is None else max(1, location.parallelism)

    def _open_publisher(self, topic: str) -> Publisher:
        schema = self._options.schema
        assert schema is not None  # noqa: S101 - jobpipe.flow has looked
        return Publisher(
            topic,
            config=self._options.config,
            name=self._options.name,
            parallelism=self._options.partitions or self.partitions,
            partitioner=PARTITIONER,
            required_subscribers=self._options.required_subscribers,
            plain=True,
        )

    def begin(self, partitions: int) -> None:
        """Begin at the coordinator that keeps the cursors, or go on there.

        Cursors that are missing are made where the subscription stands: it has not had those of further partitions,
        nor those that were lost with a catalog.
        """
        options, schema = self._options, self._options.schema
        instance = self._instance
        with self._lock:
            key, start = self.key, self._start
        if self.publisher is None:
            reply = self.follower.call(
                lambda grant: BeginFlowRequest(key.flow, key.topic, start, partitions, grant=grant),
                timeout=options.config.read_timeout,
            )
        else:
            assert schema is not None  # noqa: S101 - jobpipe.flow has looked
            reply = self.publisher.ask(
                BeginFlowRequest(
                    key.flow,
                    key.topic,
                    start,
                    partitions,
                    token=self._token,
                    schema=Schema(schema.serialize().to_pybytes()),
                    parallelism=self.publisher.parallelism,
                )
            )
        self._begun_at = instance
        self._note(list(map(_cursor, reply.cursors)))

    def _note(self, cursors: list[Cursor]) -> None:
        with self._lock:
            self.cursors = cursors
            self.partitions = max(self.partitions, len(cursors))

    @property
    def _instance(self) -> str:
        """That of the coordinator which has the cursors, as far as is known."""
        if self.publisher is not None:
            return self.publisher.coordinator.instance
        location = self.follower.location
        return "" if location is None else location.instance

    def newest(self) -> News | None:
        """Return what the source tells of itself now; what it told last if it cannot be asked."""
        try:
            return self.follower.call(lambda _: PollRequest(), timeout=CALL_SECONDS, wait=False)
        except (JobpipeError, TimeoutError) as error:
            log.debug("flow %s: %s", self._options.name, error)
            return self.follower.news

    @contextmanager
    def while_active(self, active: Callable[[], bool]) -> Iterator[None]:
        """Let no question about what is published last once ``active()`` is false: it raises WaitTimeout then."""
        if self.publisher is None:
            yield
            return
        with self.publisher.while_active(active):
            yield

    def order(self, lane: tuple[int, ...], partitions: int) -> TaskOrder:
        """Return the order to the task of some of the source's partitions.

        Raises:
            JobpipeError: the source's schema is not known yet, and cannot be asked for.
        """
        if self._schema is None:
            self._schema = self._learn_schema()
        publisher, options = self.publisher, self._options
        publishes = None
        if publisher is not None:
            assert options.schema is not None  # noqa: S101 - jobpipe.flow has looked
            config = options.config
            part_bytes = min(PART_BYTES, config.spool_max_bytes // SPOOL_PARTS)
            publishes = PublishedTopic(publisher.target(), options.schema, self._token, config.acks_timeout, part_bytes)
        return TaskOrder(
            config=options.config,
            key=self.key,
            grant=self.follower.grant,
            lane=lane,
            partitions=partitions,
            publishes=publishes,
            skip_removed=not options.fail_on_data_loss,
            schema=self._schema,
            schema_evolution=options.schema_evolution,
        )

    def repartition(self, partitions: int) -> bool:
        """Go on with more partitions: each task learns of that by itself, when all before is done.

        Returns:
            Whether they have cursors now.
        """
        known = self.partitions
        try:
            cursors = self.refresh()
            with self._lock:
                self._start = self._low(cursors)
            self.begin(max(known, partitions))
        except (JobpipeError, TimeoutError) as error:
            log.warning("flow %s: %s", self._options.name, error)
            return False
        if partitions > known:
            log.info("flow %s: topic %s has %d partitions now", self._options.name, self._options.subscribe, partitions)
        return True

    def refresh(self) -> list[Cursor]:
        """Ask where the cursors are.

        Raises:
            FlowFailed: there are none any more, and they were not lost with their catalog.
        """
        cursors = self._ask_cursors(self.key)
        if cursors:
            self._note(cursors)
            return cursors
        if not self.begin_again():
            raise FlowFailed(f"flow {self._options.name!r} was reset while it ran; start it again")
        return self.cursors

    def acknowledge(self, cursors: Sequence[Cursor]) -> Position:
        """Acknowledge to the source what every partition has done."""
        at = self._low(cursors)
        counts = tuple(
            CursorCount(each.partition, each.claim, each.position, each.rows)
            for each in cursors
            if each.rows is not None
        )
        counts = counts if len(counts) == len(cursors) else ()
        self.follower.call(lambda grant: AckRequest(grant, at, cursors=counts), timeout=CALL_SECONDS, wait=False)
        with self._lock:
            self._start = at
        return at

    def halt(self) -> None:
        try:
            self.follower.call(HaltRequest, timeout=1.0, wait=False)
        except (JobpipeError, TimeoutError) as error:
            log.debug("flow %s: its tasks were not told to end: %s", self._options.name, error)

    def begin_again(self) -> bool:
        """Begin at a coordinator that has taken the place of the one before; return whether there is one."""
        if self._instance == self._begun_at:
            return False
        if self.publisher is None:  # a source that was restored may know nothing of the subscription
            self.acknowledge(self.cursors)
        self.begin(self.partitions)
        return True

    def close(self, *, final: bool) -> None:
        """Let both ends go; with ``final`` an end mark is published first. Idempotent.

        Raises:
            JobpipeError: the end mark could not be published.
        """
        try:
            if self.publisher is not None:
                self.publisher.close(final=final)
        finally:
            self.follower.close()
            self._locator.close()


def _cursor(found: CursorObject) -> Cursor:
    return Cursor(found.partition, found.claim, found.position, found.rows)
