"""All the links of one subscriber: one follower for each topic; topics may come while it lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from jobpipe.config import Config
from jobpipe.discovery.locate import TopicLocator
from jobpipe.discovery.security import dial_tls
from jobpipe.store import Position
from jobpipe.subscriber.follower import FollowerState, TopicFollower
from jobpipe.subscriber.waiting import awaiting_publisher

__all__ = ["SubscriberSession"]

PLAN_SECONDS = 10.0


class SubscriberSession:
    """Follows some topics under one name. Thread safe; ``close()`` lets the name go, positions stay."""

    def __init__(self, config: Config, locator: TopicLocator, name: str) -> None:
        self.config = config
        self.locator = locator
        self._name = name
        self._bell = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._followers: dict[str, TopicFollower] = {}  # never changed in place: other threads iterate it

    @classmethod
    def open(cls, config: Config, topics: Sequence[str], name: str) -> SubscriberSession:
        """Connect to all topics, in name order; if one refuses, all are let go.

        Raises:
            TopicNotFound: a publisher did not come within ``discovery.timeout``.
            NameTaken: another live subscriber has the name.
        """
        session = cls(config, TopicLocator(config), name)
        deadline = time.monotonic() + config.discovery_timeout
        try:
            for topic in sorted(topics):
                session.follow(topic)
                with awaiting_publisher(topic, config, session.locator):
                    session._followers[topic].connected(max(deadline - time.monotonic(), 0.1))
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

    def first_position(self, topic: str, starting: str) -> Position:
        """Return where a new checkpoint begins."""
        reply = self._followers[topic].call("first", {"starting": starting}, timeout=self.config.discovery_timeout)
        return Position.from_json(reply.result["position"])

    def first_position_now(self, topic: str, starting: str) -> Position:
        """Return the same without waiting for a link.

        Raises:
            LinkError: there is none now.
        """
        reply = self._followers[topic].call("first", {"starting": starting}, timeout=PLAN_SECONDS, wait=False)
        return Position.from_json(reply.result["position"])

    def has_begun(self, topic: str) -> bool:
        """Tell whether a first position is stored that nothing was acknowledged behind; does not wait for a link."""
        bounds = self._followers[topic].call("bounds", {"name": self._name}, timeout=PLAN_SECONDS, wait=False)
        return bool(bounds.result["begun"])

    def newest_schema(self, topic: str) -> tuple[bytes, str | None] | None:
        """Return the schema as Arrow and Spark have it, None if no batch is there yet; does not wait for a link."""
        reply = self._followers[topic].call("schema", {"wait": 0}, timeout=PLAN_SECONDS, wait=False)
        return None if reply.result["id"] is None else (reply.blob, reply.result["spark"])

    def head(self, topic: str) -> Position:
        """Return the position behind the newest batch, asked now."""
        return self._bound(topic, "head")

    def tail(self, topic: str) -> Position:
        """Return the earliest position that can be read, asked now."""
        return self._bound(topic, "tail")

    def _bound(self, topic: str, which: str) -> Position:
        reply = self._followers[topic].call("bounds", timeout=self.config.read_timeout)
        return Position.from_json(reply.result[which])

    def plan(
        self, topic: str, start: Position, *, stop: Position | None, max_rows: int | None, max_bytes: int | None
    ) -> dict[str, Any]:
        """Acknowledge ``start`` and plan what follows, at most to ``stop``.

        Raises:
            LinkError: there is no link now.
            DataLoss: ``start`` does not fit.
        """
        args = {
            "start": start.to_json(),
            "stop": None if stop is None else stop.to_json(),
            "max_rows": max_rows,
            "max_bytes": max_bytes,
        }
        return self._followers[topic].call("plan", args, timeout=PLAN_SECONDS, wait=False).result

    def describe(self, topic: str, start: Position, end: Position) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the plans of a range that was planned before, and the batches in it that lost host servers kept.

        Waits for the publisher up to ``read.timeout``.

        Raises:
            DataLoss: the range does not fit any more.
        """
        args = {"start": start.to_json(), "end": end.to_json()}
        reply = self._followers[topic].call("range", args, timeout=self.config.read_timeout)
        return reply.result["plans"], reply.result["lost"]

    def acknowledge(self, topic: str, position: Position) -> None:
        """Acknowledge without waiting for a link.

        Raises:
            LinkError: there is no link now; the next plan acknowledges.
        """
        self._followers[topic].call("ack", {"position": position.to_json()}, timeout=PLAN_SECONDS, wait=False)

    def wait(self, positions: dict[str, Position], timeout: float) -> bool:
        """Wait until some topic's head lies beyond its position; tell whether one does."""
        deadline = time.monotonic() + timeout
        while True:
            self._bell.clear()
            if any(self._beyond(topic, position) for topic, position in positions.items()):
                return True
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self._bell.wait(remaining)

    def _beyond(self, topic: str, position: Position) -> bool:
        follower = self._followers[topic]
        news = follower.wait_beyond(position, 0.0)
        # Without a link nothing can be planned, so that there are news is none.
        return follower.state is FollowerState.CONNECTED and news is not None and news.is_beyond(position)

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
