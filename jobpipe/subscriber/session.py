"""All the links of one subscriber: one follower for each topic; topics may come while it lives."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

from jobpipe.config import Config
from jobpipe.discovery.locate import Location, TopicLocator
from jobpipe.discovery.security import dial_tls
from jobpipe.store import Boundary, Position
from jobpipe.subscriber.follower import FollowerState, TopicFollower
from jobpipe.subscriber.waiting import connect

__all__ = ["SubscriberSession", "removed_before"]

log = logging.getLogger(__name__)

PLAN_SECONDS = 10.0
HELD_SECONDS = 0.1


class SubscriberSession:
    """Follows some topics under one name. Thread safe; ``close()`` lets the name go, positions stay.

    Attributes:
        skip_removed: Where a first position was removed, begin at the tail (``failOnDataLoss=false``).
        losses: By topic, how often that happened.
    """

    def __init__(self, config: Config, locator: TopicLocator, name: str, *, skip_removed: bool = False) -> None:
        self.config = config
        self.locator = locator
        self.skip_removed = skip_removed
        self.losses: dict[str, int] = {}
        self._name = name
        self._bell = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._acknowledged: dict[str, Position] = {}  # by the last plan of each topic
        self._followers: dict[str, TopicFollower] = {}  # never changed in place: other threads iterate it

    @classmethod
    def open(cls, config: Config, topics: Sequence[str], name: str, *, skip_removed: bool = False) -> SubscriberSession:
        """Connect to all topics, in name order; if one refuses, all are let go.

        Raises:
            TopicNotFound: a publisher did not come within ``discovery.timeout``, and never was there before.
            NameTaken: another live subscriber has the name.
        """
        session = cls(config, TopicLocator(config), name, skip_removed=skip_removed)
        deadline = time.monotonic() + config.discovery_timeout
        try:
            for topic in sorted(topics):
                session.follow(topic)
                left = max(deadline - time.monotonic(), 0.1)
                connect(session._followers[topic], config, session.locator, left, patient=True)
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
                topic, self._name, locator=self.locator, tls=partial(dial_tls, self.config), on_news=self._bell.set
            )
            follower.start()
            self._followers = {**self._followers, topic: follower}

    def close(self) -> None:
        """End all links."""
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
            ConfigError: nothing was published since the time of ``start``, or it lies behind ``end``.
        """
        return self._first(topic, start, end, timeout=self.config.read_timeout)

    def first_position_now(self, topic: str, start: Boundary, end: Boundary | None = None) -> Position:
        """Return the same without waiting for a link.

        Raises:
            LinkError: there is none now.
        """
        return self._first(topic, start, end, timeout=PLAN_SECONDS, wait=False)

    def _first(self, topic: str, start: Boundary, end: Boundary | None, **how: Any) -> Position:
        args = {
            "start": start.to_json(),
            "end": None if end is None else end.to_json(),
            "skip_removed": self.skip_removed,
        }
        reply = self._followers[topic].call("first", args, **how).result
        position = Position.from_json(reply["position"])
        if reply["lost"]:
            log.warning("%s", removed_before(topic, position, int(reply["lost"])))
            self.losses[topic] = self.losses.get(topic, 0) + 1
        return position

    def standing(self, topic: str) -> str | None:
        """Return how our name stands in ``topic``; does not wait for a link.

        Returns:
            None if nowhere, ``first`` while its first position holds, ``moved`` once something was acknowledged behind.
        """
        found: str | None = self._bounds(topic, {"name": self._name}, wait=False)["standing"]
        return found

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
        reply = self._followers[topic].call("schema", {"id": number}, timeout=timeout, wait=wait)
        return None if reply.result["id"] is None else (reply.blob, reply.result["spark"])

    def head(self, topic: str) -> Position:
        """Return the position behind the newest batch, asked now."""
        return Position.from_json(self._bounds(topic)["head"])

    def tail(self, topic: str) -> Position:
        """Return the earliest position that can be read, asked now."""
        return Position.from_json(self._bounds(topic)["tail"])

    def end(self, topic: str, boundary: Boundary, *, wait: bool = True) -> Position:
        """Return where a read that takes what is there ends: at ``boundary``, or at the head if that lies beyond it.

        Raises:
            LinkError: there is no link, and ``wait`` is off.
        """
        reply = self._bounds(topic, {"end": boundary.to_json()}, wait=wait)
        return Position.from_json(reply["end"] or reply["head"])

    def _bounds(self, topic: str, args: dict[str, Any] | None = None, *, wait: bool = True) -> dict[str, Any]:
        timeout = self.config.read_timeout if wait else PLAN_SECONDS
        return self._followers[topic].call("bounds", args, timeout=timeout, wait=wait).result

    def plan(
        self,
        topic: str,
        start: Position,
        *,
        end: Boundary | None,
        max_rows: int | None,
        max_bytes: int | None,
        count: bool = False,
    ) -> dict[str, Any]:
        """Acknowledge ``start`` and plan what follows, at most to ``end``; ``stop`` in the answer is its position.

        ``stop`` is None while the end is open: nothing that is there lies behind it.

        Args:
            count: Let ``ahead`` tell too how much there is behind ``start``, whatever the limits are.

        Raises:
            LinkError: there is no link now.
            DataLoss: ``start`` does not fit.
        """
        args = {
            "start": start.to_json(),
            "end": None if end is None else end.to_json(),
            "max_rows": max_rows,
            "max_bytes": max_bytes,
            **({"count": True} if count else {}),
        }
        result = self._followers[topic].call("plan", args, timeout=PLAN_SECONDS, wait=False).result
        self._acknowledged[topic] = start
        return result

    def describe(self, topic: str, start: Position, end: Position) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the plans of a range that was planned before, and the batches in it that lost host servers kept.

        Waits for the publisher up to ``read.timeout``.

        Raises:
            DataLoss: the range does not fit any more.
        """
        args = {"start": start.to_json(), "end": end.to_json()}
        reply = self._followers[topic].call("range", args, timeout=self.config.read_timeout)
        return reply.result["plans"], reply.result["lost"]

    def cut(self, topic: str, args: dict[str, Any]) -> dict[str, Any]:
        """Have a planned range cut into pieces; waits for the publisher up to ``read.timeout``.

        Args:
            topic: whose range.
            args: of the operation ``cut``.

        Raises:
            DataLoss: the range does not fit any more.
            ConfigError: it would come to too many pieces.
        """
        return self._followers[topic].call("cut", args, timeout=self.config.read_timeout).result

    def next_slot(self, topic: str, args: dict[str, Any]) -> dict[str, Any]:
        """Acknowledge the slot before, whose batch is committed, and make the next one; does not wait for a link.

        Args:
            topic: whose slots.
            args: of the operation ``slot``.

        Raises:
            LinkError: there is no link now.
            DataLoss: the slot before is not known, or does not fit.
            ConfigError: the topic's publisher uses ``acks=all``.
        """
        return self._followers[topic].call("slot", args, timeout=PLAN_SECONDS, wait=False).result

    def settle(self, topic: str, start: Position, slot: str, *, committed: bool) -> Position:
        """Return where a slot of the checkpoint ends; waits for the publisher up to ``read.timeout``.

        Raises:
            DataLoss: it is not known, or does not fit.
        """
        args = {"start": start.to_json(), "slot": slot, "committed": committed}
        reply = self._followers[topic].call("settle", args, timeout=self.config.read_timeout)
        return Position.from_json(reply.result["end"])

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
        self._followers[topic].call("ack", {"position": position.to_json()}, timeout=PLAN_SECONDS, wait=False)

    def wait(self, positions: dict[str, Position], timeout: float, *, held: Collection[str] = ()) -> bool:
        """Wait until some topic's head lies beyond its position; tell whether one does.

        Args:
            held: topics of which we hold rows back. That their publisher waits for somebody is news too; other news can
                wait for a moment, or a trickle of rows would keep everybody busy with counting them.
        """
        began = time.monotonic()
        deadline, quiet = began + timeout, began + (HELD_SECONDS if held else 0.0)
        while True:
            self._bell.clear()
            if any(self._publisher_waits(topic) for topic in held):
                return True
            now = time.monotonic()
            if now >= quiet and any(self.has_more(topic, position) for topic, position in positions.items()):
                return True
            if now >= deadline:
                return False
            self._bell.wait((deadline if now >= quiet else min(deadline, quiet)) - now)

    def has_more(self, topic: str, position: Position) -> bool:
        """Tell whether the head, as we know it, lies beyond ``position``, and there is a link to read on by."""
        follower = self._followers[topic]
        news = follower.wait_beyond(position, 0.0)
        # Without a link nothing can be planned, so that there are news is none.
        return follower.state is FollowerState.CONNECTED and news is not None and news.is_beyond(position)

    def _publisher_waits(self, topic: str) -> bool:
        follower = self._followers[topic]
        news = follower.news
        return follower.state is FollowerState.CONNECTED and news is not None and news.waiting is not None

    def data_endpoint(self, topic: str) -> str:
        """Return the hint of where ``topic``'s segments are served."""
        known = self.locator.current(topic) or self._followers[topic].location  # a link outlives its registration
        return str((known or self.locator.wait(topic, self.config.read_timeout)).data)

    def parallelism(self) -> dict[str, int]:
        """Return how many partitions each topic's publisher has registered, as far as that is known."""
        places = {topic: follower.location for topic, follower in self._followers.items()}
        return {topic: place.parallelism for topic, place in places.items() if place is not None}

    def report(self, topics: Iterable[str] | None = None) -> dict[str, Any] | None:
        """Return head, ``ended`` and the link's state of all topics, or of these, for Spark's progress.

        None before the first news. A topic that nobody has served since the start has no head, and has not ended.
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
