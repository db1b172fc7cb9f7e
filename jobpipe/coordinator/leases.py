"""The leases of one topic: bounded reads that keep batches from retention while they go on."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from jobpipe.coordinator.topic_state import TopicState
from jobpipe.errors import LinkError, NotAuthorized, RemoteProtocolError, TopicNotFound
from jobpipe.net.budget import Budgets, identity_of
from jobpipe.net.link import Link
from jobpipe.operations.administration import LeaseReply
from jobpipe.operations.reading import LeaseRequest

__all__ = ["LEASE_GRACE_SECONDS", "MAX_LEASES", "Leases"]

log = logging.getLogger(__name__)

LEASE_GRACE_SECONDS = 900.0
"""That a lease lives on without a link of its owner, unless it is renewed: tasks of a read that wait for a core."""

MAX_LEASES = 4000
"""Of one topic, of all identities."""


@dataclass
class Lease:
    """One lease. ``since`` and ``ends`` are monotonic seconds; ``link`` took it last, None once that ended."""

    owner: str
    first: int
    last: int
    since: float
    ends: float
    link: Link | None


class Leases:
    """Knows whose each lease is; the batches are held by the log, where they are known by their ids.

    Args:
        topic: whose leases.
        budgets: what each identity holds.
    """

    def __init__(self, topic: TopicState, budgets: Budgets) -> None:
        self._topic = topic
        self._budgets = budgets
        self._known: dict[str, Lease] = {}
        self._shorter: dict[str, float] = {}  # ids whose link ended, and when they end; the log does not know yet

    async def take(self, link: Link, asked: LeaseRequest) -> None:
        """Hold batches, or renew what is held under that id.

        Raises:
            NotAuthorized: the id is of a lease of another identity.
            LinkError: the identity, or the topic, has too many.
            DataLoss: the first batches are gone.
        """
        if asked.last < asked.first:
            raise RemoteProtocolError(f"a lease of offsets {asked.first} to {asked.last}", field="last", op="lease")
        owner, now = identity_of(link.peer_names, link.peer), time.monotonic()
        known = self._of(asked.id, owner)
        if known is None:
            if len(self._known) >= MAX_LEASES:
                raise LinkError(
                    f"topic {self._topic.topic!r} has {MAX_LEASES} leases, and takes no new one; `jobpipe leases list` "
                    "tells whose they are",
                    topic=self._topic.topic,
                    limit=MAX_LEASES,
                )
            self._budgets.take(owner, "leases", 1)
            known = self._known[asked.id] = Lease(owner, asked.first, asked.last, now, now, link)
        try:
            await self._topic.run(self._topic.store.leases.hold, asked.id, asked.first, asked.last, asked.seconds)
        except BaseException:
            if known.ends == known.since and self._known.get(asked.id) is known:
                self._forget(asked.id)
                self._shorter[asked.id] = now  # cancelled here, the log may hold it all the same
            raise
        known.first, known.last, known.link, known.ends = asked.first, asked.last, link, now + asked.seconds
        self._shorter.pop(asked.id, None)
        if link.ended is not None:
            self.disconnected(link)

    async def release(self, link: Link, key: str) -> None:
        """Give a lease back; one that is not there is none.

        Raises:
            NotAuthorized: it is of another identity.
        """
        if self._of(key, identity_of(link.peer_names, link.peer)) is not None:
            await self._end(key)

    async def drop(self, key: str, *, dry_run: bool) -> LeaseReply:
        """Take a lease away, for an administrator; return what it held.

        Raises:
            TopicNotFound: there is no such lease.
        """
        for line in self.lines(await self._topic.run(self._topic.store.leases.all)):
            if line["id"] == key:
                if not dry_run:
                    await self._end(key)
                return LeaseReply(**line)
        raise TopicNotFound(f"topic {self._topic.topic!r} has no lease {key!r}", topic=self._topic.topic, lease=key)

    def disconnected(self, link: Link) -> None:
        """Let what a link has taken end soon, unless its owner comes back and renews it."""
        ends = time.monotonic() + LEASE_GRACE_SECONDS
        for key, known in self._known.items():
            if known.link is link:
                known.link = None
                if ends < known.ends:
                    known.ends = self._shorter[key] = ends

    def expire(self) -> None:
        """Forget what has ended; the log does so by itself."""
        now = time.monotonic()
        for key in [key for key, known in self._known.items() if known.ends <= now and known.ends > known.since]:
            self._forget(key)

    def tell_store(self) -> None:
        """Tell the log which leases end sooner; in the topic's thread."""
        for key, ends in list(self._shorter.items()):
            self._topic.store.leases.shorten(key, ends - time.monotonic())
            self._shorter.pop(key, None)

    def lines(self, stored: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return what ``status`` tells of leases: offsets, owner, and since when, and for how long, in seconds.

        Args:
            stored: as :meth:`Leases.all` gives them. The owner of one that was made at an earlier coordinator, and
                not renewed since, is not known.
        """
        now, lines = time.monotonic(), []
        for line in stored:
            known = self._known.get(line["id"])
            lines.append(
                {
                    **line,
                    "owner": None if known is None else known.owner,
                    "since": None if known is None else round(now - known.since, 3),
                    "connected": known is not None and known.link is not None,
                }
            )
        return lines

    def _of(self, key: str, owner: str) -> Lease | None:
        known = self._known.get(key)
        if known is not None and known.owner != owner:
            raise NotAuthorized(
                f"topic {self._topic.topic!r}: lease {key} is of {known.owner}, not of {owner}",
                topic=self._topic.topic,
                lease=key,
            )
        return known

    async def _end(self, key: str) -> None:
        await self._topic.run(self._topic.store.leases.release, key)
        self._forget(key)
        self._topic.acked.ring()  # a publisher may wait for room

    def _forget(self, key: str) -> None:
        known = self._known.pop(key, None)
        self._shorter.pop(key, None)
        if known is not None:
            self._budgets.give(known.owner, "leases", 1)

    def close(self) -> None:
        """Give all back to the budgets: the topic is served here no more."""
        for key in list(self._known):
            self._forget(key)
