"""All the links of one subscriber: one follower for each topic, all or none of the names."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from jobpipe.config import Config
from jobpipe.discovery.locate import TopicLocator
from jobpipe.discovery.security import client_tls
from jobpipe.store import Position
from jobpipe.subscriber.follower import FollowerState, TopicFollower
from jobpipe.subscriber.waiting import awaiting_publisher

__all__ = ["SubscriberSession"]

PLAN_SECONDS = 10.0


class SubscriberSession:
    """Follows some topics under one name. Thread safe; ``close()`` lets the name go, positions stay."""

    def __init__(
        self, config: Config, locator: TopicLocator, followers: dict[str, TopicFollower], bell: threading.Event
    ) -> None:
        self._config = config
        self._locator = locator
        self._followers = followers
        self._bell = bell

    @classmethod
    def open(cls, config: Config, topics: Sequence[str], name: str) -> SubscriberSession:
        """Connect to all topics, in name order; if one refuses, all are let go.

        Raises:
            TopicNotFound: a publisher did not come within ``discovery.timeout``.
            NameTaken: another live subscriber has the name.
        """
        locator = TopicLocator(config)
        bell = threading.Event()
        session = cls(config, locator, {}, bell)
        deadline = time.monotonic() + config.discovery_timeout
        try:
            for topic in sorted(topics):
                follower = TopicFollower(topic, name, locator=locator, tls=client_tls(config), on_news=bell.set)
                session._followers[topic] = follower
                follower.start()
                with awaiting_publisher(topic, config, locator):
                    follower.connected(max(deadline - time.monotonic(), 0.1))
        except BaseException:
            session.close()
            raise
        return session

    def close(self) -> None:
        """End all links."""
        for follower in self._followers.values():
            follower.close()
        self._locator.close()

    def first_position(self, topic: str, starting: str) -> Position:
        """Return where a new checkpoint begins."""
        reply = self._followers[topic].call("first", {"starting": starting}, timeout=self._config.discovery_timeout)
        return Position.from_json(reply.result["position"])

    def head(self, topic: str) -> Position:
        """Return the position behind the newest batch, asked now."""
        return self._bound(topic, "head")

    def tail(self, topic: str) -> Position:
        """Return the earliest position that can be read, asked now."""
        return self._bound(topic, "tail")

    def _bound(self, topic: str, which: str) -> Position:
        reply = self._followers[topic].call("bounds", timeout=self._config.read_timeout)
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

    def describe(self, topic: str, start: Position, end: Position) -> list[dict[str, Any]]:
        """Return the plans of a range that was planned before, waiting for the publisher up to ``read.timeout``.

        Raises:
            DataLoss: the range does not fit any more.
        """
        args = {"start": start.to_json(), "end": end.to_json()}
        reply = self._followers[topic].call("range", args, timeout=self._config.read_timeout)
        plans: list[dict[str, Any]] = reply.result["plans"]
        return plans

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
        known = self._locator.current(topic) or self._followers[topic].location  # a link outlives its registration
        return str((known or self._locator.wait(topic, self._config.read_timeout)).data)

    def report(self) -> dict[str, Any] | None:
        """Return by topic head, ``ended`` and the link's state for Spark's progress, None before the first news."""
        report = {}
        for topic, follower in sorted(self._followers.items()):
            news = follower.news
            if news is None:
                return None
            report[topic] = {**news.head.to_json(), "ended": news.ended, **follower.report()}
        return report

    @property
    def connected(self) -> bool:
        """True while every topic has its link."""
        return all(follower.state is FollowerState.CONNECTED for follower in self._followers.values())
