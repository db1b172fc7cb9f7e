"""All the links of one subscriber: one follower for each topic; topics may come while it lives."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from jobpipe.config import Config
from jobpipe.discovery.configured_tls import dial_tls
from jobpipe.discovery.topic_lookup import Location, TopicLocator
from jobpipe.net.retry import Deadline
from jobpipe.operations.reader_operations import (
    Bounds,
    BoundsRequest,
    CutReply,
    CutRequest,
    RangeReply,
    RangeRequest,
    SchemaRequest,
)
from jobpipe.operations.subscriber_operations import (
    AckRequest,
    FirstRequest,
    PlanReply,
    PlanRequest,
    SettleRequest,
    SlotReply,
    SlotRequest,
)
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import COMMITTED, LATEST, Boundary, ReadLimits
from jobpipe.subscribing.topic_follower import FollowerState, TopicFollower
from jobpipe.subscribing.wait_logging import connect

log = logging.getLogger(__name__)

PLAN_SECONDS = 10.0
HELD_SECONDS = 0.1


class SubscriberSession:
    """Follows some topics under one name. Thread safe; ``close()`` lets the name go, positions stay.

    Attributes:
        skip_removed: Where a first position was removed, begin at the tail (``failOnDataLoss=false``).
        losses: By topic, how often that happened.
    """

    def __init__(
        self,
        config: Config,
        locator: TopicLocator,
        name: str,
        *,
        skip_removed: bool = False,
        application: str = "",
    ) -> None:
        self.config = config
        self.locator = locator
        self.skip_removed = skip_removed
        self.losses: dict[str, int] = {}
        self._name = name
        self._application = application
        self._wake_up = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._acknowledged: dict[str, Position] = {}  # by the last plan of each topic
        self._followers: dict[str, TopicFollower] = {}  # never changed in place: other threads iterate it

    @classmethod
    def open(
        cls, config: Config, topics: Sequence[str], name: str, *, skip_removed: bool = False, application: str = ""
    ) -> SubscriberSession:
        """Connect to all topics, in name order; if one refuses, all are let go.

        Raises:
            TopicNotFound: a publisher did not come within ``discovery.timeout``, and never was there before.
            NameTaken: another live subscriber has the name.
        """
        session = cls(config, TopicLocator(config), name, skip_removed=skip_removed, application=application)
        deadline = Deadline(config.discovery_timeout)
        try:
            for topic in sorted(topics):
                session.follow(topic)
                connect(session._followers[topic], config, session.locator, deadline.left(least=0.1), patient=True)
        except BaseException:
            session.close()
            raise
        return session

    def follow(self, topic: str) -> None:
        """Begin to follow ``topic``, unless it is followed; returns at once, whether anybody serves it or not."""
        with self._lock:
            if topic in self._followers or self._closed:
                return
            follower = TopicFollower(
                topic,
                self._name,
                locator=self.locator,
                tls=partial(dial_tls, self.config),
                on_news=self._wake_up.set,
                application=self._application,
            )
            follower.start()
            self._followers = {**self._followers, topic: follower}

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for follower in self._followers.values():
            follower.close()
        self.locator.close()

    @property
    def topics(self) -> list[str]:
        """What is followed, in name order."""
        return sorted(self._followers)

    def is_connected(self, topic: str) -> bool:
        """Tell whether ``topic`` has its link now.

        Raises:
            JobpipeError: the reason that ended its link for good: the name is taken, for example.
        """
        follower = self._followers[topic]
        if follower.state is FollowerState.FAILED:
            follower.connected(0.0)
        return follower.state is FollowerState.CONNECTED

    def first_position(self, topic: str, start: Boundary, end: Boundary | None = None) -> Position:
        """Return where a new checkpoint begins.

        Raises:
            DataLoss: what is to be read first is not there, and ``skip_removed`` is off, or it never was there.
            ConfigError: nothing was published since the time of ``start``, or it lies after ``end``.
        """
        return self._first(topic, start, end, timeout=self.config.read_timeout)

    def first_position_now(self, topic: str, start: Boundary, end: Boundary | None = None) -> Position:
        """Return the same without waiting for a link.

        Raises:
            LinkError: there is none now.
        """
        return self._first(topic, start, end, timeout=PLAN_SECONDS, wait=False)

    def _first(
        self, topic: str, start: Boundary, end: Boundary | None, *, timeout: float, wait: bool = True
    ) -> Position:
        reply = self._followers[topic].call(
            lambda grant: FirstRequest(grant, start, end, self.skip_removed), timeout=timeout, wait=wait
        )
        if reply.lost:
            log.warning("%s", removed_before(topic, reply.position, reply.lost))
            self.losses[topic] = self.losses.get(topic, 0) + 1
        return reply.position

    def position_state(self, topic: str) -> str | None:
        """Return whether our name has a position in ``topic``, and which kind; does not wait for a link.

        Returns:
            None if nowhere, ``first`` while its first position holds, ``moved`` once more was acknowledged.
        """
        return self._bounds(topic, BoundsRequest(name=self._name), wait=False).standing

    def is_known(self, topic: str) -> bool:
        """Tell whether our name has a position in a topic; waits for the publisher up to ``read.timeout``."""
        return self._bounds(topic, BoundsRequest(name=self._name)).standing is not None

    def begin(self, topic: str, start: Boundary) -> Position:
        """Return where a new checkpoint would begin that began now; nothing is stored.

        Waits for the publisher up to ``read.timeout``.

        Raises:
            DataLoss: what is to be read first is not there, and ``skip_removed`` is off, or it never was there.
            ConfigError: nothing was published since the time of ``start``.
        """
        if start == COMMITTED and not self.is_known(topic):
            start = LATEST
        asked = BoundsRequest(name=self._name, start=start, skip_removed=self.skip_removed)
        return self._bounds(topic, asked).start

    def schema(self, topic: str, number: int | None = None, *, wait: bool = False) -> tuple[bytes, str | None] | None:
        """Return a schema as Arrow and Spark have it, the newest or that of an id; None if it is not known (yet).

        Args:
            topic: whose schema.
            number: its id, as plans have it.
            wait: for the publisher, up to ``read.timeout``.

        Raises:
            LinkError: there is no link now.
        """
        timeout = self.config.read_timeout if wait else PLAN_SECONDS
        asked = SchemaRequest(id=number)
        return self._followers[topic].call(lambda _: asked, timeout=timeout, wait=wait).schema

    def head(self, topic: str) -> Position:
        """Return the position after the newest batch, asked now."""
        return self._bounds(topic, BoundsRequest()).head

    def tail(self, topic: str) -> Position:
        """Return the earliest position that can be read, asked now."""
        return self._bounds(topic, BoundsRequest()).tail

    def end(self, topic: str, boundary: Boundary, *, wait: bool = True) -> Position:
        """Return where a read that takes what is there ends: at ``boundary``, or at the head if that lies beyond it.

        Raises:
            LinkError: there is no link, and ``wait`` is off.
        """
        bounds = self._bounds(topic, BoundsRequest(end=boundary), wait=wait)
        return bounds.end or bounds.head

    def _bounds(self, topic: str, asked: BoundsRequest, *, wait: bool = True) -> Bounds:
        timeout = self.config.read_timeout if wait else PLAN_SECONDS
        return self._followers[topic].call(lambda _: asked, timeout=timeout, wait=wait)

    def plan(
        self,
        topic: str,
        start: Position,
        limits: ReadLimits,
        *,
        count: bool = False,
        wanted: tuple[int, ...] | None = None,
    ) -> PlanReply:
        """Acknowledge ``start`` and plan what follows, within limits; ``stop`` in the reply is the end's position.

        ``stop`` is None while the end is open: nothing that is there lies after it. The readers of the range
        report how many rows it had (:mod:`jobpipe.subscribing.fetching.count_report`).

        Args:
            topic: whose batches.
            start: what lies before it is committed.
            limits: of the plan.
            count: Let ``ahead`` tell too how much there is after ``start``, whatever the limits are.
            wanted: The publisher's partitions that are read; None for all.

        Raises:
            LinkError: there is no link now.
            DataLoss: ``start`` does not fit.
        """
        reply = self._followers[topic].call(
            lambda grant: PlanRequest(
                grant, start, limits.end, limits.max_rows, limits.max_bytes, count, counts=True, wanted=wanted
            ),
            timeout=PLAN_SECONDS,
            wait=False,
        )
        self._acknowledged[topic] = start
        return reply

    def describe(self, topic: str, start: Position, end: Position) -> RangeReply:
        """Return the plans of a range that was planned before; waits for the publisher up to ``read.timeout``.

        Raises:
            DataLoss: the range does not fit any more.
        """
        return self._followers[topic].call(
            lambda grant: RangeRequest(start, end, grant), timeout=self.config.read_timeout
        )

    def cut(self, topic: str, asked: CutRequest) -> CutReply:
        """Have a planned range cut into pieces; waits for the publisher up to ``read.timeout``.

        Raises:
            DataLoss: the range does not fit any more.
            ConfigError: it would come to too many pieces.
        """
        return self._followers[topic].call(lambda grant: replace(asked, grant=grant), timeout=self.config.read_timeout)

    def next_slot(
        self, topic: str, start: Position, last: str | None, slot: str, end: Boundary | None, *, witnessed: bool
    ) -> SlotReply:
        """Acknowledge the slot before, whose batch is committed, and make the next one; does not wait for a link.

        Args:
            topic: whose slots.
            start: where ``last`` begins; without it, where to begin.
            last: the slot before.
            slot: id of the next one.
            end: where the read ends.
            witnessed: this process had ``last`` made itself, as its newest one.

        Raises:
            LinkError: there is no link now.
            DataLoss: the slot before is not known, or does not fit.
            ConfigError: the topic's publisher uses ``acks=all``.
        """
        return self._followers[topic].call(
            lambda grant: SlotRequest(grant, start, slot, last, end, witnessed, counts=True),
            timeout=PLAN_SECONDS,
            wait=False,
        )

    def resolve_slot_end(self, topic: str, start: Position, slot: str, *, committed: bool) -> Position:
        """Return where a slot of the checkpoint ends; waits for the publisher up to ``read.timeout``.

        Raises:
            DataLoss: it is not known, or does not fit.
        """
        return (
            self._followers[topic]
            .call(lambda grant: SettleRequest(grant, start, slot, committed), timeout=self.config.read_timeout)
            .end
        )

    def place(self, topic: str) -> tuple[int, Location]:
        """Return our grant, and where the coordinator is, or was last; waits for it up to ``read.timeout``."""
        follower = self._followers[topic]
        if follower.location is None:
            follower.connected(self.config.read_timeout)
        known = self.locator.current(topic) or follower.location
        assert known is not None  # noqa: S101 - there was a link
        return follower.grant, known

    def acknowledge(self, topic: str, position: Position) -> None:
        """Acknowledge without waiting for a link; what the last plan has acknowledged is not said again.

        Raises:
            LinkError: there is no link now; the next plan acknowledges.
        """
        if self._acknowledged.get(topic) == position:
            return
        self._followers[topic].call(lambda grant: AckRequest(grant, position), timeout=PLAN_SECONDS, wait=False)

    def wait(self, positions: dict[str, Position], timeout: float, *, held: Collection[str] = ()) -> bool:
        """Wait until some topic's head lies beyond its position; tell whether one does.

        Args:
            held: topics of which we hold rows back. That their publisher waits is news too; other news can
                wait for a moment, or a trickle of rows would keep everybody busy with counting them.
        """
        began = time.monotonic()
        deadline, quiet = began + timeout, began + (HELD_SECONDS if held else 0.0)
        while True:
            self._wake_up.clear()
            if any(self._publisher_waits(topic) for topic in held):
                return True
            now = time.monotonic()
            if now >= quiet and any(self.has_more(topic, position) for topic, position in positions.items()):
                return True
            if now >= deadline:
                return False
            self._wake_up.wait((deadline if now >= quiet else min(deadline, quiet)) - now)

    def has_more(self, topic: str, position: Position) -> bool:
        """Tell whether the head, as we know it, lies beyond ``position``, and there is a link to read on by."""
        follower = self._followers[topic]
        news = follower.wait_beyond(position, 0.0)
        # Without a link nothing can be planned, so news do not count.
        return follower.state is FollowerState.CONNECTED and news is not None and news.is_beyond(position)

    def _publisher_waits(self, topic: str) -> bool:
        follower = self._followers[topic]
        news = follower.news
        return follower.state is FollowerState.CONNECTED and news is not None and news.waiting is not None

    def data_endpoint(self, topic: str) -> str:
        """Return where the registry says ``topic``'s segments are served; plans of a coordinator say it themselves."""
        known = self.locator.current(topic) or self._followers[topic].location  # a link outlives its registration
        return str((known or self.locator.wait(topic, self.config.read_timeout)).data)

    def parallelism(self) -> dict[str, int]:
        """Return how many partitions each topic's publisher has registered, as far as that is known."""
        places = {topic: follower.location for topic, follower in self._followers.items()}
        return {topic: place.parallelism for topic, place in places.items() if place is not None}

    def report(self, topics: Iterable[str] | None = None) -> dict[str, Any] | None:
        """Return head, ``ended`` and the link's state of all topics, or of these, for Spark's progress.

        None before the first news. A topic that was not served since the start has no head, and has not ended.
        """
        followers = self._followers
        report: dict[str, Any] = {}
        heard = False
        for topic in sorted(followers if topics is None else followers.keys() & set(topics)):
            news = followers[topic].news
            heard = heard or news is not None
            head = {} if news is None else news.head.to_json()
            report[topic] = {**head, "ended": news is not None and news.ended, **followers[topic].report()}
        return report if heard else None

    @property
    def connected(self) -> bool:
        """True while every topic has its link."""
        return all(follower.state is FollowerState.CONNECTED for follower in self._followers.values())


def removed_before(topic: str, begin: Position, lost: int) -> str:
    """Return what is said of ``lost`` batches that were to be read and are removed, so that reading begins later."""
    return (
        f"topic {topic!r}: batches {begin.n - lost} to {begin.n - 1} are missing; failOnDataLoss=false: reading begins "
        f"at offset {begin.n}"
    )
