"""Keeps one control link to a topic's coordinator: finds it, holds the subscription's name, knows the newest position.

Runs as a task of the process's portal; every public method is for other threads. A lost link is made again with
back-off, the endpoint looked up anew; only an unrecoverable cause (no permission, name taken, fenced) ends it for good.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jobpipe.discovery.locate import Location, TopicLocator
from jobpipe.errors import (
    JobpipeError,
    LinkClosed,
    LinkEnded,
    LinkError,
    PeerNotTrusted,
    RemoteProtocolError,
    TopicNotFound,
)
from jobpipe.net.address import Endpoint
from jobpipe.net.link import Link
from jobpipe.net.portal import Portal
from jobpipe.net.retry import PROTOCOL_TRIES, RENEW, RETRYABLE, backoff, is_renewal
from jobpipe.store import Position
from jobpipe.subscriber.dialler import Dialler
from jobpipe.wire.messages import Hello, Reply

__all__ = ["FollowerState", "News", "TopicFollower"]

log = logging.getLogger(__name__)

POLL_SECONDS = 15.0
CALL_SECONDS = 30.0
BACKOFF_CAP_SECONDS = 2.0
ERROR_CHARACTERS = 200  # of the last error in a report
TRUST_SECONDS = 5.0  # between two looks at whether the link's certificates are still those of the files
STEADY_SECONDS = 10.0  # a link that lived so long starts the back-off anew


class FollowerState(enum.Enum):
    """Life of a control link."""

    DISCOVERING = "discovering"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True)
class News:
    """What the coordinator said last: the newest position, whether the topic has ended, what it waits for."""

    head: Position
    ended: bool
    waiting: str | None

    def is_beyond(self, position: Position) -> bool:
        """True when there may be something to plan behind ``position``: a head that lies before it is no news."""
        behind = self.head.log == position.log and self.head.place < position.place
        return self.head != position and not behind


class TopicFollower:
    """Follows one topic under one subscription name."""

    def __init__(
        self,
        topic: str,
        name: str,
        *,
        locator: TopicLocator,
        tls: Callable[[Endpoint], ssl.SSLContext | None],
        on_news: Callable[[], object] | None = None,
    ) -> None:
        self.topic = topic
        self.name = name
        self.instance = uuid.uuid4().hex
        self.reconnects = 0
        self._dialler = Dialler(topic, locator, tls)
        self._on_news = on_news
        self._changed = threading.Condition()
        self._state = FollowerState.DISCOVERING
        self._since = time.monotonic()  # of the state
        self._pause: float | None = None  # between two attempts, while one is waited for
        self._dial_at = 0.0  # when that pause ends
        self._error: JobpipeError | None = None
        self._news: News | None = None
        self._grant = 0
        self._link: Link | None = None
        self._location: Location | None = None
        self._epoch_seen = 0
        self._log_seen = ""
        self._portal = Portal.get()
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> FollowerState:
        """The link's present state."""
        return self._state

    @property
    def news(self) -> News | None:
        """What was heard last, None before the first word."""
        return self._news

    @property
    def location(self) -> Location | None:
        """Where the present, or last, link was made to."""
        return self._location

    @property
    def grant(self) -> int:
        """The number of the right to use the name; 0 before the first link."""
        return self._grant

    def report(self) -> dict[str, Any]:
        """Return the link's state as JSON, since when it is so, the next attempt and the last error; in seconds."""
        with self._changed:
            now, pause = time.monotonic(), self._pause
            return {
                "state": self._state.value,
                "since": round(now - self._since, 3),
                "reconnects": self.reconnects,
                "backoff": None if pause is None else round(pause, 3),
                "next_attempt": None if pause is None else round(max(0.0, self._dial_at - now), 3),
                "last_error": None if self._error is None else str(self._error)[:ERROR_CHARACTERS],
            }

    def start(self) -> None:
        """Begin to follow; returns at once."""

        async def begin() -> None:
            self._dialler.begin()
            self._task = asyncio.create_task(self._follow(), name=f"follow-{self.topic}")

        self._portal.run(begin(), 5.0)

    def close(self) -> None:
        """End the link; the subscription stays."""

        async def end() -> None:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            if self._link is not None:
                await self._link.close("subscriber closed")

        try:
            self._portal.run(end(), 5.0)
        finally:
            self._set(FollowerState.CLOSED)

    def connected(self, timeout: float) -> News:
        """Wait for the link, and return the news.

        Raises:
            TopicNotFound: no publisher in ``timeout`` seconds.
            JobpipeError: the reason that ended the follower for good.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._state is not FollowerState.CONNECTED or self._news is None:
                self._raise_if_over()
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    if isinstance(self._error, PeerNotTrusted):
                        raise self._error
                    raise TopicNotFound(
                        f"topic {self.topic!r}: no publisher was reached within {timeout:.3g} s"
                        + (f" ({self._error})" if isinstance(self._error, LinkError) else "")
                        + "; start it, check the name with `jobpipe topics`, or raise discoveryTimeout",
                        topic=self.topic,
                        timeout=timeout,
                    )
                self._changed.wait(remaining)
            return self._news

    def wait_beyond(self, position: Position, timeout: float) -> News | None:
        """Return the news as soon as the head lies beyond ``position``, or the latest known after ``timeout`` seconds.

        None while nothing was heard yet.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                self._raise_if_over()
                if self._news is not None and self._news.is_beyond(position):
                    return self._news
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return self._news
                self._changed.wait(remaining)

    def call(self, op: str, args: dict[str, Any] | None = None, *, timeout: float, wait: bool = True) -> Reply:
        """Ask the coordinator, over as many links as it takes within ``timeout`` seconds; repeatable operations only.

        Args:
            wait: without it a missing link raises :class:`LinkError` at once.
        """
        deadline = time.monotonic() + timeout
        while True:
            with self._changed:
                self._raise_if_over()
                link = self._link if self._state is FollowerState.CONNECTED else None
            if link is None and not wait:
                raise LinkClosed(f"topic {self.topic!r}: no link to its publisher now", topic=self.topic)
            if link is None:
                self.connected(max(deadline - time.monotonic(), 0.0))
                continue
            body = dict(args or {}, grant=self._grant)
            seconds = min(CALL_SECONDS, max(deadline - time.monotonic(), 0.1))
            try:
                return self._portal.run(link.call(op, body, timeout=seconds), seconds + 5.0)
            except RETRYABLE as error:
                answered = isinstance(error, RemoteProtocolError) and link.ended is None  # a refusal, no damaged frame
                if answered or not wait or time.monotonic() >= deadline:
                    raise
                with self._changed:  # until the follower has seen the end of that link too
                    self._changed.wait_for(lambda gone=link: self._link is not gone, min(1.0, seconds))  # type: ignore[misc]

    # -- in the portal's loop ------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        delays, garbled = backoff(cap=BACKOFF_CAP_SECONDS), 0
        try:
            while True:
                began, links = time.monotonic(), self.reconnects
                try:
                    await self._once()
                except (*RETRYABLE, PeerNotTrusted) as error:
                    if self._dialler.is_final(error):
                        raise
                    garbled = garbled + 1 if isinstance(error, RemoteProtocolError) and links == self.reconnects else 0
                    if garbled >= PROTOCOL_TRIES:
                        raise
                    if is_renewal(error):
                        delays = backoff(cap=BACKOFF_CAP_SECONDS)  # nothing is wrong
                    self._set(FollowerState.RECONNECTING if self.reconnects or self._news else self._state, error)
                    log.info("topic %s: %s", self.topic, error)
                if time.monotonic() - began > STEADY_SECONDS:
                    delays = backoff(cap=BACKOFF_CAP_SECONDS)
                pause = self._pause = next(delays)
                self._dial_at = time.monotonic() + pause
                await self._dialler.pause(pause)
                self._pause = None
        except JobpipeError as error:
            self._set(FollowerState.FAILED, error)
        except Exception as error:
            log.exception("topic %s: follower", self.topic)
            self._set(FollowerState.FAILED, JobpipeError(f"topic {self.topic!r}: {error!r}"))

    async def _once(self) -> None:
        hello = Hello(
            topic=self.topic,
            role="subscriber",
            name=self.name,
            instance=self.instance,
            epoch=self._epoch_seen,
            log=self._log_seen,
        )
        link = await self._dialler.dial(hello)
        try:
            where = {"host": socket.gethostname(), "pid": os.getpid()}
            reply = await link.call("grant", where, timeout=CALL_SECONDS)
            self._epoch_seen = link.welcome.epoch
            self._log_seen = link.welcome.log
            with self._changed:
                if self._news is not None:
                    self.reconnects += 1
                self._link, self._location, self._grant = link, self._dialler.location, int(reply.result["grant"])
            self._heard(reply.result)
            self._set(FollowerState.CONNECTED)
            looked = time.monotonic()
            while True:
                if time.monotonic() - looked > TRUST_SECONDS:
                    looked = time.monotonic()
                    if await self._dialler.is_outdated():
                        raise LinkEnded(f"topic {self.topic!r}: the certificate files have changed", reason=RENEW)
                known = {key: reply.result[key] for key in ("head", "ended", "waiting")}
                reply = await link.call("poll", {**known, "wait": POLL_SECONDS}, timeout=POLL_SECONDS + 10.0)
                self._heard(reply.result)
        finally:
            with self._changed:
                self._link = None
                if self._state is FollowerState.CONNECTED:
                    self._state, self._since = FollowerState.RECONNECTING, time.monotonic()
                self._changed.notify_all()
            await link.close()

    def _heard(self, result: dict[str, Any]) -> None:
        with self._changed:
            self._news = News(Position.from_json(result["head"]), bool(result["ended"]), result["waiting"])
            self._changed.notify_all()
        if self._on_news is not None:
            self._on_news()

    def _set(self, state: FollowerState, error: JobpipeError | None = None) -> None:
        with self._changed:
            if self._state in (FollowerState.FAILED, FollowerState.CLOSED) and state is not FollowerState.CLOSED:
                return
            if state is not self._state:
                self._state, self._since = state, time.monotonic()
            self._error = error or self._error
            self._changed.notify_all()
        if self._on_news is not None:
            self._on_news()

    def _raise_if_over(self) -> None:
        if self._state is FollowerState.FAILED and self._error is not None:
            raise self._error
        if self._state is FollowerState.CLOSED:
            raise LinkClosed(f"topic {self.topic!r}: this subscriber is closed", topic=self.topic)
