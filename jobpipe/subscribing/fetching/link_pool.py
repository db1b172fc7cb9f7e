"""Idle links to data and host servers, kept by endpoint and topic: a Spark worker reads many ranges."""

from __future__ import annotations

import atexit
import contextlib
import os
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from jobpipe.net.address import Endpoint
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.wire.wire_messages import Hello

POOL_PER_ENDPOINT = 4
SWEEP_SECONDS = 1.0  # between looks for links that have expired


@dataclass(frozen=True, slots=True)
class _Idle:
    """An unused link, since when (monotonic seconds), and the context it was made with, which has the certificates."""

    link: BlockingLink
    tls: ssl.SSLContext | None
    since: float

    @property
    def expires(self) -> float:
        """When its server has ended it too."""
        return self.since + self.link.timing.idle


class LinkPool:
    """Links of one process. No more than four are idle for an endpoint and topic, and none for longer than its server
    keeps an idle link: endpoints come and go as publishers do, a worker stays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[Endpoint, str], list[_Idle]] = {}
        self._sweep_at = 0.0

    @contextlib.contextmanager
    def link(self, endpoint: Endpoint, topic: str, tls: ssl.SSLContext | None) -> Iterator[BlockingLink]:
        """Yield an idle link, or a new one. It is kept for others if the block ends without an error.

        A link that is left in the middle of an answer cannot be used again, so any error cuts it.

        Raises:
            LinkError, NotAuthorized, TopicNotFound: no server there accepts us.
        """
        link = self._take(endpoint, topic, tls)
        try:
            yield link
        except BaseException:
            link.abort()
            raise
        self._keep(endpoint, topic, _Idle(link, tls, time.monotonic()))

    def close(self) -> None:
        """Cut all idle links. Links in use are cut by their users."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for entries in idle.values():
            for entry in entries:
                entry.link.abort()

    def _take(self, endpoint: Endpoint, topic: str, tls: ssl.SSLContext | None) -> BlockingLink:
        while (entry := self._pop(endpoint, topic)) is not None:
            if entry.tls is tls and entry.link.usable():
                return entry.link
            entry.link.abort()
        hello = Hello(topic=topic, role="reader", instance=f"reader-{os.getpid()}")
        return BlockingLink.connect(endpoint, hello, tls=tls)

    def _pop(self, endpoint: Endpoint, topic: str) -> _Idle | None:
        with self._lock:
            entries = self._idle.get((endpoint, topic))
            return entries.pop() if entries else None

    def _keep(self, endpoint: Endpoint, topic: str, entry: _Idle) -> None:
        with self._lock:
            expired = self._expired(entry.since)
            entries = self._idle.setdefault((endpoint, topic), [])
            if kept := len(entries) < POOL_PER_ENDPOINT:
                entries.append(entry)
        for old in expired:
            old.link.abort()
        if not kept:
            entry.link.close()

    def _expired(self, now: float) -> list[_Idle]:
        """Take out links that were not used for long; the first of a list is its oldest."""
        found: list[_Idle] = []
        if now < self._sweep_at:
            return found
        self._sweep_at = now + SWEEP_SECONDS
        for key, entries in list(self._idle.items()):
            while entries and entries[0].expires <= now:
                found.append(entries.pop(0))
            if not entries:
                del self._idle[key]
        return found


_pool = LinkPool()
"""The links of this process."""


def pooled(
    endpoint: Endpoint, topic: str, tls: ssl.SSLContext | None
) -> contextlib.AbstractContextManager[BlockingLink]:
    """:meth:`LinkPool.link` of this process."""
    return _pool.link(endpoint, topic, tls)


def _in_child() -> None:
    """A forked process has links of its own; of its parent's it closes its copies of the sockets."""
    global _pool
    parents, _pool = _pool, LinkPool()
    parents._lock = threading.Lock()  # a thread that is not here may have held it
    parents.close()


os.register_at_fork(after_in_child=_in_child)
atexit.register(lambda: _pool.close())
