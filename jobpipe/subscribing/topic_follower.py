"""Keeps one control link to a topic's coordinator: finds it, holds the subscription's name, knows the topic's head.

Runs as a task on the process's event-loop thread (:class:`EventLoopThread`); other threads call the public methods.
After a lost link it looks the endpoint up and dials again, with back-off. It ends for good after an unrecoverable cause
(no permission, name taken, fenced), an unexpected error, or ``PROTOCOL_TRIES`` protocol errors in a row without a new
link in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from jobpipe.discovery.topic_lookup import Location, TopicLocator
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
from jobpipe.net.links.async_link import Link
from jobpipe.net.links.event_loop_thread import EventLoopThread
from jobpipe.net.links.socket_options import copy_of
from jobpipe.net.retry import PROTOCOL_TRIES, RENEW, RETRYABLE, Deadline, backoff, is_renewal
from jobpipe.operations.messages.calls import ask
from jobpipe.operations.messages.message_fields import R, RequestFor
from jobpipe.operations.range_messages import News
from jobpipe.operations.subscriber_operations import GrantRequest, PollRequest
from jobpipe.own_application import own_application
from jobpipe.store.catalog.position import Position
from jobpipe.subscribing.topic_dialler import TopicDialler
from jobpipe.wire.wire_messages import Hello

log = logging.getLogger(__name__)

POLL_SECONDS = 15.0
ANSWER_SECONDS = 10.0  # allowed for an answer, on top of the wait that the request asks for
CLOSE_SECONDS = 5.0
LINK_SECONDS = 0.2  # between two checks for a new link
CALL_SECONDS = 30.0
BACKOFF_CAP_SECONDS = 2.0  # RECONNECT_SECONDS of coordinator/topic/session_owner.py relies on it
ERROR_CHARACTERS = 200  # of the last error in a report
TRUST_SECONDS = 5.0  # minimum between two checks whether the link's certificates are still those in the files
STEADY_SECONDS = 10.0  # if dialling and the link's life took longer than this, the back-off starts over


class FollowerState(enum.Enum):
    """States of a control link."""

    DISCOVERING = "discovering"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    FAILED = "failed"
    CLOSED = "closed"


class TopicFollower:
    """Follows one topic under one subscription name.

    Args:
        topic: what is followed.
        name: of the subscription.
        locator: finds where it is served.
        tls: gives the context for links to an endpoint.
        on_news: called when news, or the link's state, has changed.
        polls: keep the news current by long polls. If false, the caller asks, by :meth:`poll` or other requests.
        head_wait: seconds for which it need not be told that the head has moved, if nothing else is new.
        application: Spark's name of the one that reads, if it is known.
    """

    def __init__(
        self,
        topic: str,
        name: str,
        *,
        locator: TopicLocator,
        tls: Callable[[Endpoint], ssl.SSLContext | None],
        on_news: Callable[[], object] | None = None,
        polls: bool = True,
        head_wait: float = 0.0,
        application: str = "",
    ) -> None:
        self.topic = topic
        self.name = name
        self.instance = uuid.uuid4().hex
        self.reconnects = 0
        self._dialler = TopicDialler(topic, locator, tls)
        self._on_news = on_news
        self._polls = polls
        self._head_wait = head_wait
        self._application = own_application(application)
        self._changed = threading.Condition()
        self._state = FollowerState.DISCOVERING
        self._since = time.monotonic()  # of the state
        self._pause: float | None = None  # seconds before the next attempt; None unless it waits for one
        self._dial_at = 0.0  # when that pause ends
        self._error: JobpipeError | None = None
        self._news: News | None = None
        self._grant = 0
        self._link: Link | None = None
        self._location: Location | None = None
        self._epoch_seen = 0
        self._log_seen = ""
        self._loop_thread = EventLoopThread.get()
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> FollowerState:
        """The link's present state."""
        return self._state

    @property
    def news(self) -> News | None:
        """The latest news; None before the first."""
        return self._news

    @property
    def location(self) -> Location | None:
        """The location of the current link, or of the last one."""
        return self._location

    @property
    def grant(self) -> int:
        """The grant of the subscription's name; 0 before the first link."""
        return self._grant

    def report(self) -> dict[str, Any]:
        """Return as JSON the link's state, the next attempt and the last error; times in seconds."""
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

        self._loop_thread.run(begin, 5.0, doing=f"topic {self.topic!r}: beginning to follow it")

    def close(self) -> None:
        """End the link; the subscription stays. What cannot be ended in some seconds ends with the process.

        So nothing is raised that would take the place of what ends the caller, as Ctrl-C.
        """

        async def end() -> None:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            if self._link is not None:
                await self._link.close("subscriber closed")

        try:
            self._loop_thread.run(end, CLOSE_SECONDS, doing=f"topic {self.topic!r}: closing its link")
        except JobpipeError as error:
            log.warning("%s", error)
        finally:
            self._set(FollowerState.CLOSED)

    def connected(self, timeout: float) -> News:
        """Wait for the link, and return the news.

        Raises:
            TopicNotFound, PeerNotTrusted: no publisher was reached in ``timeout`` seconds.
            JobpipeError: the reason that ended the follower for good.
        """
        deadline = Deadline(timeout)
        with self._changed:
            while self._state is not FollowerState.CONNECTED or self._news is None:
                self._raise_if_over()
                if deadline.passed:
                    if isinstance(self._error, PeerNotTrusted):
                        raise self._error
                    raise TopicNotFound(
                        f"topic {self.topic!r}: no publisher was reached within {timeout:.3g} s"
                        + (f" ({self._error})" if isinstance(self._error, LinkError) else "")
                        + "; start it, check the name with `jobpipe topics`, or raise discoveryTimeout",
                        topic=self.topic,
                        timeout=timeout,
                    )
                self._changed.wait(deadline.left())
            return self._news

    def wait_beyond(self, position: Position, timeout: float) -> News | None:
        """Return the news as soon as the head lies beyond ``position``, or the latest known after ``timeout`` seconds.

        None if nothing has been heard yet.
        """
        deadline = Deadline(timeout)
        with self._changed:
            while True:
                self._raise_if_over()
                if self._news is not None and self._news.is_beyond(position):
                    return self._news
                if deadline.passed:
                    return self._news
                self._changed.wait(deadline.left())

    def call(self, make: Callable[[int], RequestFor[R]], *, timeout: float, wait: bool = True) -> R:
        """Ask the coordinator, dialling again as needed within ``timeout`` seconds. It may be asked more than once.

        Args:
            make: returns the request, given the grant of the link that it will go over.
            timeout: seconds.
            wait: without it a missing link raises :class:`LinkError` at once.
        """
        deadline = Deadline(timeout)
        while True:
            with self._changed:
                self._raise_if_over()
                link, grant = self._link if self._state is FollowerState.CONNECTED else None, self._grant
            if link is None and not wait:
                raise LinkClosed(f"topic {self.topic!r}: no link to its publisher now", topic=self.topic)
            if link is None:
                self.connected(deadline.left())
                continue
            seconds = deadline.left(CALL_SECONDS, least=0.1)
            try:
                return self._ask(link, make(grant), seconds)
            except RETRYABLE as error:
                # a refusal, not a damaged frame
                answered = isinstance(error, RemoteProtocolError) and link.ended is None
                if answered or not wait or deadline.passed:
                    raise
                if isinstance(error, TopicNotFound):
                    self._hang_up(link)
                with self._changed:  # until the follower has noticed that the link ended
                    self._changed.wait_for(lambda gone=link: self._link is not gone, min(1.0, seconds))  # type: ignore[misc]

    def poll(self, position: Position, timeout: float) -> News | None:
        """Ask for news beyond ``position`` and wait for it; without a link, wait for one. Use it with ``polls=False``.

        Returns:
            The news that is known when the call returns, None if there is none yet. It returns after ``timeout``
            seconds, or later if an answer of the coordinator is still due.
        """
        deadline = Deadline(timeout)
        while True:
            news = self.wait_beyond(position, 0.0)
            if deadline.passed or (news is not None and (news.is_beyond(position) or news.ended)):
                return news
            wait = deadline.left(POLL_SECONDS)
            if news is None:
                asked = PollRequest(wait=0.0)
            else:
                asked = PollRequest(head=news.head, ended=news.ended, waiting=news.waiting, wait=wait)
            answer = self.ask_once(lambda _, poll=asked: poll, timeout=wait + ANSWER_SECONDS)  # type: ignore[misc]
            if answer is None:
                self.wait_beyond(position, deadline.left(LINK_SECONDS))
            else:
                self.note_news(answer)

    def ask_once(self, make: Callable[[int], RequestFor[R]], *, timeout: float) -> R | None:
        """Ask over the current link. Return None if there is none, or if it gives no answer; it is replaced then.

        Raises:
            JobpipeError: what the coordinator answered, or the reason that ended the follower for good.
        """
        with self._changed:
            self._raise_if_over()
            link, grant = self._link if self._state is FollowerState.CONNECTED else None, self._grant
        if link is None:
            return None
        try:
            return self._ask(link, make(grant), timeout)
        except RETRYABLE as error:
            if isinstance(error, RemoteProtocolError) and link.ended is None:  # a refusal, not a damaged frame
                raise
            log.info("topic %s: %s", self.topic, error)
        self._hang_up(link)
        with self._changed:
            self._changed.wait_for(lambda: self._link is not link, CLOSE_SECONDS)
        return None

    def _ask(self, link: Link, request: RequestFor[R], timeout: float) -> R:
        asking = partial(ask, link, request, timeout=timeout)
        return self._loop_thread.run(asking, timeout + 5.0, doing=f"topic {self.topic!r}: asking {link.peer}")

    def _hang_up(self, link: Link) -> None:
        """Close a link that may still be alive but no longer answers for the topic."""
        with contextlib.suppress(JobpipeError):
            closing = partial(link.close, "no answer")
            self._loop_thread.run(
                closing, CLOSE_SECONDS, doing=f"topic {self.topic!r}: closing the link to {link.peer}"
            )

    # -- in the event loop ---------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        delays, garbled = backoff(cap=BACKOFF_CAP_SECONDS), 0
        try:
            while True:
                began, links = time.monotonic(), self.reconnects
                try:
                    await self._follow_one_link()
                except (*RETRYABLE, PeerNotTrusted) as error:
                    if self._dialler.is_final(error):
                        raise
                    # damaged frames in a row, with no new link in between
                    garbled = garbled + 1 if isinstance(error, RemoteProtocolError) and links == self.reconnects else 0
                    if garbled >= PROTOCOL_TRIES:
                        raise
                    if is_renewal(error):
                        delays = backoff(cap=BACKOFF_CAP_SECONDS)  # a renewal is no failure
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

    async def _follow_one_link(self) -> None:
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
            asked = GrantRequest(socket.gethostname(), os.getpid(), self._application)
            granted = await ask(link, asked, timeout=CALL_SECONDS)
            self._epoch_seen = link.welcome.epoch
            self._log_seen = link.welcome.log
            with self._changed:
                if self._news is not None:
                    self.reconnects += 1
                self._link, self._location, self._grant = link, self._dialler.location, granted.grant
            self.note_news(granted)
            self._set(FollowerState.CONNECTED)
            looked = time.monotonic()
            while True:
                if time.monotonic() - looked > TRUST_SECONDS:
                    looked = time.monotonic()
                    if await self._dialler.is_outdated():
                        raise LinkEnded(f"topic {self.topic!r}: the certificate files have changed", reason=RENEW)
                await (self._poll_once(link) if self._polls else self._watch(link))
        finally:
            with self._changed:
                self._link = None
                if self._state is FollowerState.CONNECTED:
                    self._state, self._since = FollowerState.RECONNECTING, time.monotonic()
                self._changed.notify_all()
            await link.close()

    async def _poll_once(self, link: Link) -> None:
        news = self._news
        assert news is not None  # noqa: S101 - the grant brought news
        poll = PollRequest(
            head=news.head, ended=news.ended, waiting=news.waiting, wait=POLL_SECONDS, head_wait=self._head_wait
        )
        self.note_news(await ask(link, poll, timeout=POLL_SECONDS + ANSWER_SECONDS))

    async def _watch(self, link: Link) -> None:
        """Raise the reason when the link ends; return when its certificates must be checked again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TRUST_SECONDS):
                raise copy_of(await link.wait_closed())

    def note_news(self, news: News) -> None:
        """Note news that came with an answer."""
        with self._changed:
            self._news = news
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
