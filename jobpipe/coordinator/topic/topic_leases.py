"""The leases of one topic: bounded reads that keep batches from retention while they go on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from jobpipe.coordinator.topic.topic_state import TopicState
from jobpipe.errors import DataLoss, LinkError, RemoteProtocolError, TopicNotFound
from jobpipe.net.links.async_link import Link
from jobpipe.net.servers.identity_quota import IdentityQuotas, identity_of
from jobpipe.operations.admin_operations import LeaseReply
from jobpipe.operations.reader_operations import LeaseRequest, lease_name
from jobpipe.store.subscriptions.leases import Lease

log = logging.getLogger(__name__)

LEASE_GRACE_SECONDS = 900.0
"""That a lease lives on without a link of its reader, unless it is renewed: tasks of a read that wait for a core."""

MAX_LEASES = 4000
"""Of one topic, of all identities."""


@dataclass
class ReadLease:
    """One lease, from the first request for it until the log forgets it.

    Attributes:
        owner: the identity that it counts to: the one that took it.
        since, ends: monotonic seconds.
        link: took or renewed it last; None once that ended.
        stored: the log has it. Until then ``ends`` is ``since``.
        call: the one call to the log about this lease that is under way.
    """

    owner: str
    since: float
    ends: float
    link: Link | None
    stored: bool = False
    call: asyncio.Task[None] | None = None


class TopicLeases:
    """Counts leases by identity, and ends them; the batches are held by the log.

    A lease is known by its name, a hash of the secret that its reader made. Any reader that shows the secret may renew
    it and give it back: tasks of a read run on other hosts, and under other certificates, than the driver that took it.

    An entry is kept until the log has answered, whatever becomes of the request: each call to the log about an entry
    is a task of its own, and there is one at a time.

    Args:
        topic: whose leases.
        quotas: what each identity holds.
    """

    def __init__(self, topic: TopicState, quotas: IdentityQuotas) -> None:
        self._topic = topic
        self._quotas = quotas
        self._known: dict[str, ReadLease] = {}
        # By name, when it ends: of those that end sooner than the log knows. A renewal takes its name out in the log's
        # thread, where the log learns of it too, so none is shortened that was renewed since.
        self._sooner: dict[str, float] = {}

    async def take(self, link: Link, asked: LeaseRequest) -> None:
        """Hold batches, or renew what is held under that secret.

        Raises:
            LinkError: the identity, or the topic, has too many.
            DataLoss: the first batches are gone.
        """
        if asked.last < asked.first:
            raise RemoteProtocolError(f"a lease of offsets {asked.first} to {asked.last}", field="last", op="lease")
        name = lease_name(asked.secret)
        known = await self._idle(name)
        if known is None:
            known = self._add(name, link)
        await self._call(known, self._hold(name, known, link, asked))

    async def release(self, secret: str) -> None:
        """Give a lease back, also one that an earlier coordinator stored; one that is not there is none."""
        await self._end(lease_name(secret))

    async def drop(self, name: str, *, dry_run: bool) -> LeaseReply:
        """Take a lease away, for an administrator; return what it held.

        Raises:
            TopicNotFound: there is no such lease.
        """
        stored = await self._topic.run(self._topic.store.leases.get, name)
        if stored is None:
            raise TopicNotFound(
                f"topic {self._topic.topic!r} has no lease {name!r}", topic=self._topic.topic, lease=name
            )
        reply = self.status(stored)
        if not dry_run:
            await self._end(name)
        return reply

    def disconnected(self, link: Link) -> None:
        """Let what a link has taken end soon, unless its reader comes back and renews it."""
        for name, known in self._known.items():
            if known.link is link:
                known.link = None
                if known.call is None:  # else when that is over: it may renew it over another link
                    self._cut(name, known)

    def expire(self) -> None:
        """Forget what has ended; the log does so by itself."""
        now = time.monotonic()
        for name, known in list(self._known.items()):
            if known.ends <= now and known.call is None:
                self._forget(name, known)

    def write_to_store(self) -> None:
        """Tell the log which leases end sooner; in the topic's thread."""
        for name, ends in list(self._sooner.items()):
            self._topic.store.leases.shorten(name, ends - time.monotonic())
            if self._sooner.get(name) == ends:
                self._sooner.pop(name, None)

    def status(self, stored: Lease) -> LeaseReply:
        """Return how a lease of the log stands.

        The owner of one that was made at an earlier coordinator, and not renewed since, is not known.
        """
        known = self._known.get(stored.id)
        return LeaseReply(
            **vars(stored),
            owner=None if known is None else known.owner,
            since=None if known is None else round(time.monotonic() - known.since, 3),
            connected=known is not None and known.link is not None,
        )

    def close(self) -> None:
        """Give all back to the quotas: the topic is no longer served here."""
        for name, known in list(self._known.items()):
            self._forget(name, known)

    # -- one lease -----------------------------------------------------------------------------------------------------

    async def _idle(self, name: str) -> ReadLease | None:
        """Wait for the call that is under way, if one is; return the entry. The next call may start at once."""
        while (known := self._known.get(name)) is not None and known.call is not None:
            await asyncio.wait({known.call})
        return known

    def _add(self, name: str, link: Link) -> ReadLease:
        if len(self._known) >= MAX_LEASES:
            raise LinkError(
                f"topic {self._topic.topic!r} has {MAX_LEASES} leases, and accepts no new one; "
                "`jobpipe topics leases list` shows their owners",
                topic=self._topic.topic,
                limit=MAX_LEASES,
            )
        owner, now = identity_of(link.peer_names, link.peer), time.monotonic()
        self._quotas.acquire(owner, "leases", 1)
        known = self._known[name] = ReadLease(owner, now, now, link)
        return known

    async def _call(self, known: ReadLease, work: Coroutine[Any, Any, None]) -> None:
        """Ask the log about an idle entry; if the caller is cancelled, the call goes on to its end."""

        def over(call: asyncio.Task[None]) -> None:
            known.call = None
            if not call.cancelled():
                call.exception()  # told to the caller, if that is still there

        known.call = asyncio.create_task(work)
        known.call.add_done_callback(over)
        await asyncio.shield(known.call)

    async def _hold(self, name: str, known: ReadLease, link: Link, asked: LeaseRequest) -> None:
        def work() -> None:
            self._sooner.pop(name, None)
            self._topic.store.leases.hold(name, asked.first, asked.last, asked.seconds)

        try:
            await self._topic.run(work)
            known.ends = time.monotonic() + asked.seconds
        except DataLoss:  # the log is as it was
            if not known.stored:
                self._forget(name, known)
            elif known.link is None:
                self._cut(name, known)
            raise
        except BaseException:  # a commit that failed may have stored it all the same, so it counts
            known.ends = max(known.ends, time.monotonic() + asked.seconds)
            self._stored(name, known, link)
            raise
        self._stored(name, known, link)

    def _stored(self, name: str, known: ReadLease, link: Link) -> None:
        known.stored, known.link = True, link
        if link.ended is not None:
            known.link = None
            self._cut(name, known)

    async def _end(self, name: str) -> None:
        known = await self._idle(name)
        if known is None:
            await self._release(name)
        else:
            await self._call(known, self._release(name, known))

    async def _release(self, name: str, known: ReadLease | None = None) -> None:
        await self._topic.run(self._topic.store.leases.release, name)
        if known is not None:
            self._forget(name, known)
        self._topic.acked.notify_all()  # a publisher may wait for room

    def _cut(self, name: str, known: ReadLease) -> None:
        known.ends = self._sooner[name] = min(known.ends, time.monotonic() + LEASE_GRACE_SECONDS)

    def _forget(self, name: str, known: ReadLease) -> None:
        if self._known.get(name) is known:
            del self._known[name]
            self._sooner.pop(name, None)
            self._quotas.release(known.owner, "leases", 1)
