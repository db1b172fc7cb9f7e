"""The live subscribers of one topic: who holds which name, and what they may do with it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

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
from jobpipe.net.link import Link
from jobpipe.store import Ahead, Boundary, Cutter, Plan, Position, Subscription

if TYPE_CHECKING:
    from jobpipe.coordinator.topic import ServedTopic

__all__ = ["Holder", "Subscribers"]

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 30.0  # a reader whose link broke dials each 2 s: after so long it is gone
UNDECIDED_SECONDS = 5.0  # for one whose link broke before it asked where to begin
PING_SECONDS = 2.0  # for the holder of a name that somebody else wants


@dataclass
class Holder:
    """The live holder of one subscription's name."""

    instance: str
    grant: int
    link: Link | None
    where: dict[str, Any]
    reconnects: int = 0
    seen: float = field(default_factory=time.monotonic)
    since: float = field(default_factory=time.monotonic)  # that it has, or has not, its link
    broken: bool = False  # its link ended without a goodbye


class Subscribers:
    """Knows the holder of each subscription's name; every change to the log goes through the topic's thread."""

    def __init__(self, topic: ServedTopic) -> None:
        self._topic = topic
        self._name = topic.topic
        self._holders: dict[str, Holder] = {}
        self._granting = asyncio.Lock()

    async def grant(self, name: str, instance: str, link: Link, where: dict[str, Any]) -> Holder:
        """Give the subscription's name to a reader.

        Raises:
            NameTaken: another live reader has it, found out by a ping.
        """
        async with self._granting:  # of two newcomers one must see the other
            return await self._grant(name, instance, link, where)

    async def _grant(self, name: str, instance: str, link: Link, where: dict[str, Any]) -> Holder:
        holder = self._holders.get(name)
        if holder is not None and holder.instance == instance:
            holder.link = link
            holder.seen = holder.since = time.monotonic()
            holder.reconnects += 1
            return holder
        await self._demand_free(name)

        def work() -> tuple[int, int]:
            # In one turn: a subscription without a holder, left by a call that was cancelled, would keep the whole log.
            store = self._topic.store
            self._subscribe(name)
            known = next((s for s in store.subscriptions() if s.name == name), None)
            if known is not None and known.holder is not None and known.holder.get("instance") == instance:
                return known.grant, 1  # it outlived an earlier coordinator
            return store.grant(name, {"instance": instance, **where}), 0

        def granted(given: tuple[int, int]) -> None:
            ended = link.ended  # nobody would tell of it again
            fresh = Holder(instance, given[0], link if ended is None else None, where, reconnects=given[1])
            fresh.broken = ended is not None and not isinstance(ended, LinkEnded)
            self._holders[name] = fresh

        await self._topic.run_then(work, granted)
        return self._holders[name]

    def _subscribe(self, name: str) -> None:
        """Make the subscription, if it is new and there is room for it; in the log's thread."""
        store, most = self._topic.store, self._topic.config.max_subscriptions
        names = {known.name for known in store.subscriptions()}
        if name not in names and len(names) >= most:
            raise ConfigError(
                f"topic {self._name!r} has {len(names)} subscriptions, and takes no new one: its publisher's "
                f"jobpipe.subscription.max is {most}. Drop those that nobody needs by `jobpipe subscriptions drop`, or "
                "raise it",
                topic=self._name,
                name=name,
                limit=most,
            )
        store.subscribe(name, required=name in self._topic.settings.required)

    async def _demand_free(self, name: str) -> None:
        holder = self._holders.get(name)
        if holder is None or holder.link is None:
            return
        try:
            await holder.link.ping(PING_SECONDS)
        except (LinkError, TimeoutError):
            log.info("topic %s: the holder of %s does not answer, its name passes on", self._name, name)
            return
        raise NameTaken(
            f"topic {self._name!r}: subscription {name!r} is held by a live subscriber ({_where(holder.where)}); give "
            "this query another name, or stop that one",
            topic=self._name,
            name=name,
            holder=holder.where,
        )

    def held(self, name: str, grant: int) -> Holder:
        """Return the holder, checking its grant number.

        Raises:
            Fenced: the name was given to somebody else since.
        """
        holder = self._holders.get(name)
        if holder is None or holder.grant != grant:
            raise Fenced(
                f"topic {self._name!r}: subscription {name!r} was taken over by another subscriber"
                + (f" ({_where(holder.where)})" if holder else ""),
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
        :meth:`jobpipe.store.locate.Locator.window`.
        """

        def decide() -> tuple[Position, int]:
            store = self._topic.store
            if start.kind != "committed" and store.waits_for_publisher:
                raise TopicNotFound(
                    f"topic {self._name!r}: its spool was lost; where it goes on is known once its publisher has "
                    "sealed the next batch",
                    topic=self._name,
                )
            known = {s.name: s for s in store.subscriptions()}.get(name)
            if known is None:
                raise Fenced(
                    f"topic {self._name!r}: subscription {name!r} was dropped or expired",
                    topic=self._name,
                    name=name,
                )
            if known.first is not None and known.holds_first:
                if end is not None and not skip_removed:  # else what lay before the end may be gone
                    store.demand_order(known.first, end)
                return known.first, 0
            committed = store.head() if known.acked is None else known.acked
            window = store.window(start, end, committed=committed, skip_removed=skip_removed)
            return store.first_position(name, window.start), window.lost

        return await self._topic.run(decide)

    async def acknowledge(self, name: str, grant: int, position: Position) -> None:
        """Take an acknowledgement; it reaches the disk with the next seal or tick."""
        self.held(name, grant)

        def work() -> bool:
            here = self._topic.store.resolve(position)
            return here is not None and self._topic.store.acknowledge(name, grant, here)

        await self._topic.run_then(work, lambda advanced: self._topic.note_progress() if advanced else None)

    async def plan(
        self,
        name: str,
        grant: int,
        start: Position,
        end: Boundary | None,
        max_rows: int | None,
        max_bytes: int | None,
        *,
        count: bool = False,
    ) -> tuple[Plan, Position | None, Ahead | None]:
        """Acknowledge ``start``, whose batch is committed, and plan what follows it, at most to ``end``.

        Args:
            count: Tell too how much there is behind ``start``, whatever the limits are.

        Returns:
            The plan, and the position of ``end`` once that is decided; nothing is planned if it lies before ``start``.
        """
        self.held(name, grant)

        def work() -> tuple[Plan, Position | None, Ahead | None, bool]:
            store = self._topic.store
            here = store.resolve(start)
            if here is None:  # it has the batch that the publisher is about to repeat
                ahead = Ahead(0, 0, start, final=False) if count else None
                return Plan(start, start, 0, 0, 0, None, False), None, ahead, False
            store.declare(name, grant, here)
            advanced = store.acknowledge(name, grant, here)
            stop = None if end is None else store.end_of(end)
            until = here if stop is not None and stop.place < here.place else stop
            ahead = store.ahead(here, until) if count else None
            return store.plan(here, until=until, max_rows=max_rows, max_bytes=max_bytes), stop, ahead, advanced

        plan, stop, ahead, _ = await self._topic.run_then(
            work, lambda found: self._topic.note_progress() if found[3] else None
        )
        return plan, stop, ahead

    async def describe(self, name: str, grant: int, start: Position, end: Position) -> list[Plan]:
        """Return the plans of a range that an earlier run planned; what lies in it is kept for the holder.

        Raises:
            TopicNotFound: the range is not there yet, the publisher is about to repeat its last batch.
            DataLoss: the range does not fit.
        """
        self.held(name, grant)

        def work() -> list[Plan]:
            store = self._topic.store
            first, last = self._resolved(start, end)
            store.declare(name, grant, first)
            store.check(last)
            return store.describe_range(first, last)

        return await self._topic.run(work)

    async def cutter(
        self, name: str, grant: int, start: Position, end: Position, make: Callable[[Position, Position], Cutter]
    ) -> Cutter:
        """Return what cuts a planned range; ``make`` is :meth:`TopicLog.cutter` with its limits.

        Raises:
            TopicNotFound, DataLoss: as :meth:`describe`.
        """
        self.held(name, grant)
        return await self._topic.run(lambda: make(*self._resolved(start, end)))

    def _resolved(self, start: Position, end: Position) -> tuple[Position, Position]:
        first, last = self._topic.store.resolve(start), self._topic.store.resolve(end)
        if first is None or last is None:
            raise TopicNotFound(
                f"topic {self._name!r}: its spool was lost; batch {end.n - 1} is there again once its publisher "
                "has repeated it",
                topic=self._name,
            )
        return first, last

    async def seek(self, name: str, to: Boundary, *, dry_run: bool) -> dict[str, Any]:
        """Move a subscription nobody holds.

        Raises:
            NameTaken: a live subscriber holds it.
            DataLoss, ConfigError: as :meth:`jobpipe.store.locate.Locator.window`.
        """

        def work() -> dict[str, Any]:
            store, known = self._topic.store, self._known(name)
            target = store.window(to, None, committed=known.acked or store.tail()).start
            if not dry_run:
                store.seek(name, target)
            return {"name": name, "from": None if known.acked is None else known.acked.n, "to": target.n}

        async with self._granting:  # else a reader may take the name between the two
            await self._demand_free(name)
            return await self._topic.run_then(work, lambda _: self._topic.acked.ring())

    async def drop(self, name: str, *, dry_run: bool) -> dict[str, Any]:
        """Delete a subscription nobody holds; what only it kept may go from now on.

        Raises:
            NameTaken: a live subscriber holds it.
        """

        def work() -> dict[str, Any]:
            known = self._known(name)
            if not dry_run:
                self._topic.store.drop(name)
            return {"name": name, "from": None if known.acked is None else known.acked.n, "to": None}

        def dropped(_: dict[str, Any]) -> None:
            if not dry_run:
                self._holders.pop(name, None)
            self._topic.acked.ring()

        async with self._granting:
            await self._demand_free(name)
            return await self._topic.run_then(work, dropped)

    def _known(self, name: str) -> Subscription:
        for known in self._topic.store.subscriptions():
            if known.name == name:
                return known
        raise SubscriptionNotFound(f"topic {self._name!r} has no subscription {name!r}", topic=self._name, name=name)

    def disconnected(self, link: Link, why: JobpipeError) -> None:
        """Forget a link; names and positions stay."""
        for holder in self._holders.values():
            if holder.link is link:
                holder.link = None
                holder.seen = holder.since = time.monotonic()
                holder.broken = not isinstance(why, LinkEnded)

    def state(self, line: dict[str, Any]) -> dict[str, Any]:
        """Return what ``describe`` says of a subscription beside its position: whether and whence it is connected.

        ``since`` and ``last_seen`` are seconds ago. A holder that only an earlier coordinator has seen is absent.
        """
        holder, now = self._holders.get(line["name"]), time.monotonic()
        if holder is None:
            stored = line["holder"] or {}
            return {
                "state": "absent",
                "since": None,
                "reconnects": 0,
                "last_seen": round(line["silent"], 3) if stored else None,
                "where": {"host": stored["host"], "pid": stored["pid"]} if "pid" in stored else None,
            }
        if holder.link is not None:
            state, seen = "connected", holder.link.silence
        else:
            back = holder.broken and now - holder.since < RECONNECT_SECONDS
            state, seen = "reconnecting" if back else "absent", now - holder.seen
        return {
            "state": state,
            "since": round(now - holder.since, 3),
            "reconnects": holder.reconnects,
            "last_seen": round(seen, 3),
            "where": holder.where,
        }

    async def forget_undecided(self) -> None:
        """Drop what was taken and left before it stood anywhere, as by a reader that does not like the schema.

        It would keep the whole log.
        """
        if self._granting.locked():
            return  # another time
        async with self._granting:  # a reader that comes back just now must find its name
            for known in await self._topic.run(self._topic.store.subscriptions):
                left = self._holders.get(known.name)
                if known.acked is not None or known.required or left is None or left.link is not None:
                    continue
                if time.monotonic() - left.seen > UNDECIDED_SECONDS:
                    log.info("topic %s: subscription %s never began, and its reader is gone", self._name, known.name)
                    await self._topic.run_then(
                        partial(self._topic.store.drop, known.name), partial(self._forget, known.name)
                    )

    def _forget(self, name: str, _: object) -> None:
        self._holders.pop(name, None)

    def tell_store(self) -> None:
        """Tell the log who is alive, and who does not come back to what it was reading; in the topic's thread."""
        for name, holder in list(self._holders.items()):
            if holder.link is not None:
                self._topic.store.touch(name)
            elif time.monotonic() - holder.seen > self._topic.config.read_timeout:
                self._topic.store.drop_declared(name)


def _where(where: dict[str, Any]) -> str:
    return f"host {where.get('host', '?')}, pid {where.get('pid', '?')}"
