"""Asks coordinators how their topics stand, or for their ledgers: one link a coordinator, for all of its topics.

All coordinators are asked at once, so that the silent ones cost their time together. Links are kept for a minute after
their last use: who asks again every few seconds does not dial again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from jobpipe.config import Config
from jobpipe.discovery.configured_tls import dial_tls
from jobpipe.discovery.topic_lookup import Location
from jobpipe.errors import JobpipeError, LinkError, LinkTimeout, NotAuthorized, RemoteProtocolError, TopicNotFound
from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import Link, connect
from jobpipe.net.links.event_loop_thread import EventLoopThread
from jobpipe.net.links.socket_options import copy_of
from jobpipe.net.tls.peer_names import bears_topic
from jobpipe.operations.messages.calls import ask
from jobpipe.operations.messages.message_fields import RequestFor
from jobpipe.operations.status_operations import LedgerReply, LedgerRequest, StatusRequest, TopicStatus
from jobpipe.wire.wire_messages import Hello

log = logging.getLogger(__name__)

COORDINATORS_AT_ONCE = 500  # that are dialled
LINKS_KEPT = 250  # with those that are dialled fewer than 1,024: a process may have no more files by default
TOPICS_AT_ONCE = 8  # of one coordinator
CLOSE_SECONDS = 5.0
UNUSED_SECONDS = 60.0  # after which a link is not kept any more

Answer = TopicStatus | JobpipeError
"""How a topic stands, or why that is not known."""

LedgerAnswer = LedgerReply | JobpipeError
"""The ledger of a topic, or why it is not known."""

T = TypeVar("T", TopicStatus, LedgerReply)
_Question: TypeAlias = Callable[[str | None], RequestFor[T]]  # of a topic; None: the one that the link is for


@dataclass
class _Kept:
    """A link to a coordinator, its context, how many ask over it now, and when one did last."""

    link: Link
    tls: ssl.SSLContext | None
    users: int = 0
    used: float = 0.0


class StatusWalk:
    """Links to coordinators. Thread safe: all work is done in the process's event loop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._loop_thread: EventLoopThread | None = None  # most of those who administer never ask
        self._links: dict[Endpoint, _Kept] = {}  # of the loop
        self._closed = False

    def ask(self, places: Sequence[Location], timeout: float) -> dict[str, Answer]:
        """Return what the coordinators say of topics, or why they do not.

        Args:
            places: where each topic is served.
            timeout: seconds in which a coordinator must be reached, and then for each of its answers.
        """
        return self._run(places, timeout, lambda topic: StatusRequest(topic=topic), "asking how topics stand")

    def ledgers(
        self, places: Sequence[Location], timeout: float, *, minutes: int, name: str | None = None
    ) -> dict[str, LedgerAnswer]:
        """Return the ledgers of topics, or why there is none.

        Args:
            places, timeout: as of :meth:`ask`.
            minutes: the newest ones in which something was published.
            name: of the one subscription to ask for; None: all.
        """

        def question(topic: str | None) -> LedgerRequest:
            return LedgerRequest(minutes=minutes, name=name, topic=topic)

        return self._run(places, timeout, question, "asking for ledgers")

    def _run(
        self, places: Sequence[Location], timeout: float, question: _Question[T], doing: str
    ) -> dict[str, T | JobpipeError]:
        if not places:
            return {}
        self._loop_thread = EventLoopThread.get()
        return self._loop_thread.run(lambda: self._ask_all(places, timeout, question), None, doing=doing)

    def close(self) -> None:
        """End all links."""

        async def end() -> None:
            self._closed = True
            links = [kept.link for kept in self._links.values()]
            self._links.clear()
            await asyncio.gather(*(link.close() for link in links), return_exceptions=True)

        if self._loop_thread is not None and self._loop_thread.alive:
            with contextlib.suppress(JobpipeError):
                self._loop_thread.run(end, CLOSE_SECONDS, doing="closing the links to coordinators")

    async def _ask_all(
        self, places: Sequence[Location], timeout: float, question: _Question[T]
    ) -> dict[str, T | JobpipeError]:
        by_coordinator: dict[Endpoint, list[Location]] = {}
        for place in places:
            by_coordinator.setdefault(place.control, []).append(place)
        turns = asyncio.Semaphore(COORDINATORS_AT_ONCE)
        found: dict[str, T | JobpipeError] = {}

        async def walk(endpoint: Endpoint, topics: list[str]) -> None:
            async with turns:
                try:
                    found.update(await self._ask_coordinator(endpoint, topics, timeout, question))
                except Exception as error:
                    log.exception("%s: asking about its topics", endpoint)
                    found.update({topic: JobpipeError(f"{endpoint}: {error!r}") for topic in topics})

        async with asyncio.TaskGroup() as group:
            for endpoint, served in by_coordinator.items():
                group.create_task(walk(endpoint, [place.topic for place in served]))
        self._end_unused()
        return found

    def _end_unused(self) -> None:
        """End the links that were not asked for a time: their coordinators may serve nothing any more."""
        before = time.monotonic() - UNUSED_SECONDS
        for endpoint, kept in list(self._links.items()):
            if kept.users == 0 and kept.used < before:
                self._links.pop(endpoint).link.abort()

    async def _ask_coordinator(
        self, endpoint: Endpoint, topics: list[str], timeout: float, question: _Question[T]
    ) -> dict[str, T | JobpipeError]:
        """Ask one coordinator for its topics; over a further link for those that the first link does not prove."""
        found: dict[str, T | JobpipeError] = {}
        left = list(topics)
        while left:
            try:
                link = await self._link(endpoint, left[0], timeout)
            except (NotAuthorized, TopicNotFound) as error:  # of this topic: the others may be had
                found[left.pop(0)] = error
                continue
            except JobpipeError as error:
                return {**found, **{topic: copy_of(error) for topic in left}}
            proven = [topic for topic in left if _proves(link, topic)]
            with self._using(endpoint, link):
                found.update(await _ask_topics(link, proven, timeout, question))
            left = [topic for topic in left if topic not in proven]
        return found

    async def _link(self, endpoint: Endpoint, topic: str, timeout: float) -> Link:
        """Return a link to the coordinator that proves the topic: the one that is kept, if it does."""
        tls = await asyncio.to_thread(dial_tls, self._config, endpoint)
        kept = self._links.get(endpoint)
        if kept is not None and (kept.link.ended is not None or kept.tls is not tls):  # certificates have changed
            del self._links[endpoint]
            if kept.users == 0:
                kept.link.abort()
            kept = None
        if kept is not None and _proves(kept.link, topic):
            return kept.link
        hello = Hello(topic=topic, role="admin", instance=f"admin-{os.getpid()}")
        try:
            async with asyncio.timeout(timeout):
                link = await connect(endpoint, hello, tls=tls)
        except TimeoutError as error:
            raise LinkTimeout(f"{endpoint} does not answer within {timeout:g} s", peer=str(endpoint)) from error
        if not self._closed and endpoint not in self._links and len(self._links) < LINKS_KEPT:
            self._links[endpoint] = _Kept(link, tls, used=time.monotonic())
        return link

    @contextlib.contextmanager
    def _using(self, endpoint: Endpoint, link: Link) -> Iterator[None]:
        """Count a use of a kept link; end one that is not kept, or no longer, after its last use."""
        kept = self._links.get(endpoint)
        kept = kept if kept is not None and kept.link is link else _Kept(link, None)
        kept.users += 1
        try:
            yield
        finally:
            kept.users -= 1
            kept.used = time.monotonic()
            if self._links.get(endpoint) is not kept and kept.users == 0:
                link.abort()


def _proves(link: Link, topic: str) -> bool:
    """Tell whether the server of a link has shown that it may serve a topic; in plaintext nothing is shown."""
    return link.hello.topic == topic or not link.peer_names or bears_topic(link.peer_names, topic)


async def _ask_topics(
    link: Link, topics: Sequence[str], timeout: float, question: _Question[T]
) -> dict[str, T | JobpipeError]:
    """Ask for some topics at a time; once the link has ended, or none of them was answered, no others."""
    found: dict[str, T | JobpipeError] = {}
    for first in range(0, len(topics), TOPICS_AT_ONCE):
        part = topics[first : first + TOPICS_AT_ONCE]
        answers = await asyncio.gather(*(_ask_topic(link, topic, timeout, question) for topic in part))
        found.update(zip(part, answers, strict=True))
        silence = answers[-1]
        if isinstance(silence, LinkError) and (
            link.ended is not None or all(isinstance(answer, LinkTimeout) for answer in answers)
        ):
            return {topic: found.get(topic) or copy_of(silence) for topic in topics}
    return found


async def _ask_topic(link: Link, topic: str, timeout: float, question: _Question[T]) -> T | JobpipeError:
    try:
        answer = await ask(link, question(None if topic == link.hello.topic else topic), timeout=timeout)
    except JobpipeError as error:
        return error
    if answer.topic == topic:
        return answer
    text = f"{link.peer} answers for topic {answer.topic!r}, and was asked for {topic!r}"
    return RemoteProtocolError(text, peer=link.peer, topic=topic, served=answer.topic)
