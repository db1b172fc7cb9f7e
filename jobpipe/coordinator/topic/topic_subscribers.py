"""The live subscribers of one topic: who holds which name, and what they may do with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from jobpipe.coordinator.topic.session_owner import Connection, SessionOwner, application_of, process_of
from jobpipe.coordinator.topic.topic_plans import TopicPlans
from jobpipe.coordinator.topic.topic_state import TopicState
from jobpipe.errors import (
    ConfigError,
    Fenced,
    JobpipeError,
    LinkEnded,
    LinkError,
    NameTaken,
    SubscriptionNotFound,
    TopicNotFound,
)
from jobpipe.net.links.async_link import Link
from jobpipe.net.servers.identity_quota import asking
from jobpipe.operations.admin_operations import MovedReply, RequiredReply
from jobpipe.operations.publisher_operations import MAX_REQUIRED
from jobpipe.store.catalog.position import Position
from jobpipe.store.ledger.account_values import CountedCursor
from jobpipe.store.log.catalog_status import SubscriptionLine
from jobpipe.store.reading.boundary import Boundary
from jobpipe.store.reading.range_splitting import RangeSplitter
from jobpipe.store.reading.read_plan import ReadPlan
from jobpipe.store.subscriptions.subscription import StoredSubscription

log = logging.getLogger(__name__)

UNDECIDED_SECONDS = 5.0  # for one whose link broke before it asked where to begin
PING_SECONDS = 2.0  # for the holder of a name that another subscriber wants


class TopicSubscribers:
    """Knows the holder of each subscription's name; every change to the log goes through the topic's thread.

    Attributes:
        plans: what they read next.
    """

    def __init__(self, topic: TopicState) -> None:
        self._topic = topic
        self._name = topic.topic
        self._session_owners: dict[str, SessionOwner] = {}
        self._left: set[str] = set()  # names whose holder's link has ended since the log was told
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by name, while in use
        self.plans = TopicPlans(topic)

    async def grant(self, name: str, instance: str, link: Link, where: dict[str, Any], owner: str = "") -> SessionOwner:
        """Give the subscription's name to a reader.

        Args:
            name: the subscription's.
            instance: the reader's.
            link: over which it asks.
            where: its host, process and application, for people.
            owner: the identity whose names are bounded; "" for one whose are not.

        Raises:
            NameTaken: another live reader has it, found out by a ping.
            ConfigError: the name is new, and there are too many.
        """
        identity = asking.get() if link.peer_names else ""
        async with self._lock(name):
            if (holder := self._back(name, instance, identity, link)) is not None:
                return holder
        async with self._free(name):  # of two newcomers one must see the other
            if (holder := self._back(name, instance, identity, link)) is not None:
                return holder
            return await self._grant(name, instance, identity, link, where, owner)

    def _back(self, name: str, instance: str, identity: str, link: Link) -> SessionOwner | None:
        """Return the holder, if it comes back over a new link."""
        holder = self._session_owners.get(name)
        if holder is None or (holder.instance, holder.identity) != (instance, identity):
            return None
        holder.link, holder.halted = link, False
        holder.seen = holder.since = time.monotonic()
        holder.reconnects += 1
        return holder

    async def _grant(
        self, name: str, instance: str, identity: str, link: Link, where: dict[str, Any], owner: str
    ) -> SessionOwner:
        def work() -> tuple[int, int]:
            # In one turn: a subscription without a holder, left by a call that was cancelled, would keep the whole log.
            store = self._topic.store
            self._subscribe(name, owner)
            known = store.subscriptions.get(name)
            before = known.holder or {}
            if (before.get("instance"), before.get("identity", "")) == (instance, identity):
                store.slots.witness(name)
                return known.grant, 1  # it outlived an earlier coordinator
            store.slots.close_unbound(name)  # while it can be told; tasks of the reader before bind nothing more
            whose = {"owner": owner} if owner else {}
            whose |= {"identity": identity} if identity else {}
            return store.subscriptions.grant(name, {"instance": instance, **where, **whose}), 0

        def granted(given: tuple[int, int]) -> None:
            ended = link.ended  # it would not be told again
            here = link if ended is None else None
            fresh = SessionOwner(instance, given[0], here, where, identity, reconnects=given[1])
            fresh.broken = ended is not None and not isinstance(ended, LinkEnded)
            self._session_owners[name] = fresh
            if ended is not None:
                self._left.add(name)
            self.plans.wake(name)

        await self._topic.run_then(work, granted)
        return self._session_owners[name]

    def _subscribe(self, name: str, owner: str) -> None:
        """Make the subscription, if it is new and there is room for it; in the log's thread."""
        store = self._topic.store
        self._require_room(name, owner)
        store.subscriptions.subscribe(name, required=name in store.required.names())

    def _require_room(self, name: str, owner: str = "") -> None:
        """See that there is room for a subscription, unless it is there; in the log's thread.

        One identity gets no more than half of the names: else a reader that may read under a pattern keeps out others.
        """
        store, most = self._topic.store, self._topic.config.max_subscriptions
        names = store.subscriptions.names()
        if name not in names and len(names) >= most:
            raise ConfigError(
                f"topic {self._name!r} has {len(names)} subscriptions, and accepts no new one: its publisher's "
                f"jobpipe.subscription.max is {most}. Drop unused ones with `jobpipe subscriptions drop`, or "
                "raise it",
                topic=self._name,
                name=name,
                limit=most,
            )
        share = max(1, most // 2)
        if name not in names and owner and (held := store.subscriptions.owners()[owner]) >= share:
            raise ConfigError(
                f"topic {self._name!r}: {owner} holds {held} subscriptions, and gets no new one: one identity may "
                f"hold half of what its publisher's jobpipe.subscription.max allows, which is {most}. Drop unused "
                "ones with `jobpipe subscriptions drop`, or raise it",
                topic=self._name,
                name=name,
                identity=owner,
                limit=share,
            )

    def _lock(self, name: str) -> asyncio.Lock:
        """Return the lock of a name, held for no longer than a turn of the log's thread."""
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    @contextlib.asynccontextmanager
    async def _free(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of a name that no live reader holds. A silent one is waited for without the lock.

        Raises:
            NameTaken: a live reader holds it.
        """
        while True:
            silent = await self._require_silent(name)
            async with self._lock(name):
                holder = self._session_owners.get(name)
                if holder is None or holder.link is None or holder.link is silent:
                    yield
                    return

    async def _require_silent(self, name: str) -> Link | None:
        """Return the holder's link, which answers no ping; None if there is no link.

        Raises:
            NameTaken: it answers.
        """
        holder = self._session_owners.get(name)
        if holder is None or (link := holder.link) is None:
            return None
        try:
            await link.ping(PING_SECONDS)
        except (LinkError, TimeoutError):
            log.info("topic %s: the holder of %s does not answer, its name passes on", self._name, name)
            return link
        raise NameTaken(
            f"topic {self._name!r}: subscription {name!r} is held by a live subscriber ({holder.place}); give "
            "this query, flow or client another name, or stop that one",
            topic=self._name,
            name=name,
            holder={key: value for key, value in holder.where.items() if key != "application"},
        )

    def held(self, name: str, grant: int) -> SessionOwner:
        """Return the holder to itself, checking its grant number; a status shows that number to each reader.

        Raises:
            Fenced: the name was given to another subscriber since, or another identity asks.
        """
        holder = self.held_for_task(name, grant)
        if holder.identity and holder.identity != asking.get():
            raise Fenced(
                f"topic {self._name!r}: subscription {name!r} is held by another certificate ({holder.place}); only "
                "that one may read under this grant, acknowledge, or stop its tasks",
                topic=self._name,
                name=name,
                grant=grant,
            )
        return holder

    def held_for_task(self, name: str, grant: int) -> SessionOwner:
        """Return the holder to a task of it, which may show another certificate, that of its node.

        Raises:
            Fenced: the name was given to another subscriber since.
        """
        holder = self._session_owners.get(name)
        if holder is None or holder.grant != grant:
            raise Fenced(
                f"topic {self._name!r}: subscription {name!r} was taken over by another subscriber"
                + (f" ({holder.place})" if holder else ""),
                topic=self._name,
                name=name,
                grant=grant,
            )
        holder.seen = time.monotonic()
        return holder

    async def first_position(
        self, name: str, start: Boundary, end: Boundary | None, *, skip_removed: bool
    ) -> tuple[Position, int]:
        """Return where a new checkpoint of this subscription begins; the answer is stored and repeated.

        Also how many batches of what was asked for are lost, which only ``skip_removed`` allows. Raises as
        :meth:`jobpipe.store.reading.offset_resolution.OffsetResolver.resolve`.
        """

        def decide() -> tuple[Position, int]:
            store = self._topic.store
            if start.kind != "committed" and store.recovery.undecided:
                raise TopicNotFound(
                    f"topic {self._name!r}: its spool was lost; where it continues is known once its publisher has "
                    "sealed the next batch",
                    topic=self._name,
                )
            known = store.subscriptions.get(name)
            if known.first is not None and known.holds_first:
                if end is not None and not skip_removed:  # else what lay before the end may be gone
                    store.resolver.require_order(known.first, end)
                return known.first, 0
            committed = store.batches.head() if known.acked is None else known.acked
            window = store.resolver.resolve(start, end, committed=committed, skip_removed=skip_removed)
            return store.subscriptions.first_position(name, window.start), window.lost

        return await self._topic.run(decide)

    async def acknowledge(
        self,
        name: str,
        grant: int,
        position: Position,
        *,
        read: int | None = None,
        cursors: Sequence[CountedCursor] = (),
    ) -> None:
        """Take an acknowledgement; it reaches the disk with the next seal or tick.

        Args:
            name, grant: of the subscription, and of its holder.
            position: before which all is committed.
            read, cursors: for the ledger, see :meth:`jobpipe.store.subscriptions.positions.Subscriptions.acknowledge`.
        """
        self.held(name, grant)

        def work() -> bool:
            here, subscriptions = self._topic.store.recovery.resolve(position), self._topic.store.subscriptions
            return here is not None and subscriptions.acknowledge(name, grant, here, read=read, cursors=cursors)

        await self._topic.run_then(work, lambda advanced: self._topic.note_progress() if advanced else None)

    async def describe(self, name: str, grant: int, start: Position, end: Position) -> list[ReadPlan]:
        """Return the plans of a range that an earlier run planned; what lies in it is kept for the holder.

        Raises:
            TopicNotFound: the range is not there yet, the publisher is about to repeat its last batch.
            DataLoss: the range does not fit.
        """
        self.held(name, grant)

        def work() -> list[ReadPlan]:
            store = self._topic.store
            first, last = self._resolved(start, end)
            store.subscriptions.declare(name, grant, first)
            store.batches.check(last)
            return store.planner.describe(first, last)

        return await self._topic.run(work)

    async def splitter(
        self, name: str, grant: int, start: Position, end: Position, make: Callable[[Position, Position], RangeSplitter]
    ) -> RangeSplitter:
        """Return what cuts a planned range; ``make`` is :meth:`ReadPlanner.splitter` with its limits.

        Raises:
            TopicNotFound, DataLoss: as :meth:`describe`.
        """
        self.held(name, grant)
        return await self._topic.run(lambda: make(*self._resolved(start, end)))

    def _resolved(self, start: Position, end: Position) -> tuple[Position, Position]:
        first, last = self._topic.store.recovery.resolve(start), self._topic.store.recovery.resolve(end)
        if first is None or last is None:
            raise TopicNotFound(
                f"topic {self._name!r}: its spool was lost; batch {end.n - 1} is there again once its publisher "
                "has repeated it",
                topic=self._name,
            )
        return first, last

    async def seek(self, name: str, to: Boundary, *, dry_run: bool) -> MovedReply:
        """Move a subscription that has no holder.

        Raises:
            NameTaken: a live subscriber holds it.
            DataLoss, ConfigError: as :meth:`jobpipe.store.reading.offset_resolution.OffsetResolver.resolve`.
        """

        def work() -> MovedReply:
            store, known = self._topic.store, self._known(name)
            target = store.resolver.resolve(to, None, committed=known.acked or store.batches.tail()).start
            if not dry_run:
                store.subscriptions.seek(name, target)
            return MovedReply(name, None if known.acked is None else known.acked.n, target.n)

        async with self._free(name):  # else a reader may take the name between the two
            return await self._topic.run_then(work, lambda _: self._topic.acked.notify_all())

    async def drop(self, name: str, *, dry_run: bool) -> MovedReply:
        """Delete a subscription that has no holder; what only it kept may go from now on.

        Raises:
            NameTaken: a live subscriber holds it.
        """

        def work() -> MovedReply:
            known = self._known(name)
            if not dry_run:
                self._topic.store.subscriptions.drop(name)
            return MovedReply(name, None if known.acked is None else known.acked.n, None)

        def dropped(_: MovedReply) -> None:
            if not dry_run:
                self._forget(name)
            self._topic.acked.notify_all()

        async with self._free(name):
            return await self._topic.run_then(work, dropped)

    async def require(self, name: str, *, required: bool, dry_run: bool) -> RequiredReply:
        """Make a subscription required, created at the tail if it is missing, or not required any more.

        A publisher that waits for it, or for what it keeps, looks again at once.

        Raises:
            ConfigError: there is no room for another subscription, or for another required one.
        """

        def work() -> tuple[bool, frozenset[str]]:
            known = self._topic.store.required.names()
            if required and name not in known:
                self._require_room(name)
                if len(known) >= MAX_REQUIRED:
                    raise ConfigError(
                        f"topic {self._name!r} has {len(known)} required subscriptions, and accepts no new one",
                        topic=self._name,
                        name=name,
                        limit=MAX_REQUIRED,
                    )
            changed = known | {name} if required else known - {name}
            if not dry_run:
                changed = self._topic.store.required.change(name, required=required)
            return name in known, changed

        def changed(_: object) -> None:
            if not dry_run:
                self._topic.acked.notify_all()

        async with self._lock(name):  # else it may be forgotten as one that never began
            before, now = await self._topic.run_then(work, changed)
        return RequiredReply(before, tuple(sorted(now)))

    def _known(self, name: str) -> StoredSubscription:
        if (known := self._topic.store.subscriptions.find(name)) is not None:
            return known
        raise SubscriptionNotFound(f"topic {self._name!r} has no subscription {name!r}", topic=self._name, name=name)

    def disconnected(self, link: Link, why: JobpipeError) -> None:
        """Forget a link; names and positions stay."""
        for name, holder in self._session_owners.items():
            if holder.link is link:
                self._left.add(name)
                holder.link = None
                holder.seen = holder.since = time.monotonic()
                holder.broken = not isinstance(why, LinkEnded)

    def connection(self, line: SubscriptionLine) -> Connection:
        """Return how a subscription is connected. A holder that only an earlier coordinator has seen is absent."""
        owner = self._session_owners.get(line.name)
        if owner is not None:
            return owner.connection()
        stored = line.holder or {}
        seen = round(line.silent, 3) if stored else None
        return Connection("absent", None, 0, seen, process_of(stored), application_of(stored))

    async def forget_undecided(self) -> None:
        """Drop names that were claimed and released without a position, as by a reader that rejects the schema.

        It would keep the whole log.
        """
        for known in await self._topic.run(self._topic.store.subscriptions.all):
            if self._is_undecided(known) and not self._lock(known.name).locked():  # else another time
                async with self._lock(known.name):  # a reader that comes back just now must find its name
                    await self._forget_undecided(known.name)

    def _is_undecided(self, known: StoredSubscription) -> bool:
        left = self._session_owners.get(known.name)
        if known.acked is not None or known.required or left is None or left.link is not None:
            return False
        return time.monotonic() - left.seen > UNDECIDED_SECONDS

    async def _forget_undecided(self, name: str) -> None:
        known = await self._topic.run(lambda: self._topic.store.subscriptions.find(name))
        if known is not None and self._is_undecided(known):
            log.info("topic %s: subscription %s never began, and its reader is gone", self._name, name)
            await self._topic.run_then(partial(self._topic.store.subscriptions.drop, name), partial(self._forget, name))

    def _forget(self, name: str, _: object = None) -> None:
        self._session_owners.pop(name, None)
        self.plans.wake(name)

    def write_to_store(self) -> None:
        """Tell the log who is alive, and who does not come back to what it was reading; in the topic's thread."""
        for name, holder in list(self._session_owners.items()):
            if holder.link is not None:
                self._topic.store.subscriptions.touch(name)
            elif time.monotonic() - holder.seen > self._topic.config.read_timeout:
                self._topic.store.subscriptions.drop_declared(name)
        for name in list(self._left):
            self._topic.store.slots.close_unbound(name)
            self._left.discard(name)
