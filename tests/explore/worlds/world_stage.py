"""The stage of the explorers: a topic with some batches and a subscriber, what may be asked of it, and what must hold.

Invariants are those of a coordinator that is at rest, whatever was cancelled or failed before: memory is what the disk
says, the registry's claim belongs to who serves the topic, nothing is left behind.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import sqlite3
from typing import Any

from jobpipe.errors import JobpipeError
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.boundary import Boundary
from jobpipe.store.spool.spool_files import CATALOG
from jobpipe.testing import SCHEMA, Checker, Journal, NumberedRows
from tests.explore.worlds.world import TOPIC, Coordinator, FakeLink, World, open_files, read_rows, written

BASE = 3  # batches that the stage begins with
QUERY = "query"
SUBSCRIBER = "billing"
READER = "reader-of-billing"
PARTITIONS = 2
GIVEN_UP = "given-up"  # a topic that is claimed and released at once
EARLIEST = Boundary("earliest").to_json()


class Violation(AssertionError):
    """Something does not hold."""


class Stage:
    """One topic in one world.

    Attributes:
        a: the coordinator that has the topic first.
        journal: what was sealed, as the publisher was told.
        batch_id: of the batch that comes next.
        grant, position: the subscriber's.
        kept: what an operation prepared for itself.
    """

    def __init__(self, world: World, *, acks: str = "stored") -> None:
        self.world = world
        self.acks = acks
        self.rows = NumberedRows(TOPIC, partitions=PARTITIONS, rows=4)
        self.journal = Journal()
        self.batch_id = 0
        self.grant = 0
        self.position: Position | None = None
        self.kept: dict[str, Any] = {}
        self.final = False
        self.a = world.coordinator()

    # -- asking --------------------------------------------------------------------------------------------------------

    async def publish(self, to: Coordinator, op: str, args: dict[str, Any] | None = None, blob: bytes = b"") -> Any:
        """Ask as the publisher."""
        return (await to.answer(to.link("publisher", "p"), op, args or {}, blob))[0]

    async def read(self, op: str, args: dict[str, Any] | None = None, *, name: str = SUBSCRIBER) -> Any:
        """Ask the first coordinator as the subscriber."""
        return (await self.a.answer(self.subscriber(name), op, args or {}))[0]

    async def look(self, op: str, args: dict[str, Any] | None = None, *, role: str = "reader") -> Any:
        """Ask the first coordinator as a reader without a name, or an administrator."""
        return (await self.a.answer(self.a.link(role, "someone"), op, args or {}))[0]

    def subscriber(self, name: str = SUBSCRIBER, instance: str = READER) -> FakeLink:
        """Return the subscriber's link: the same for each name and instance."""
        key = f"link {name} {instance}"
        if key not in self.kept:
            self.kept[key] = self.a.link("subscriber", name, instance=instance)
        link: FakeLink = self.kept[key]
        return link

    def open_order(self, **more: Any) -> dict[str, Any]:
        """Return the arguments of ``open``."""
        required = [SUBSCRIBER] if self.acks == "all" else []
        config = dataclasses.replace(self.a.config, acks=self.acks).to_dict()
        return {"name": "p", "parallelism": PARTITIONS, "required": required, "config": config, "opener": "ab", **more}

    async def open(self, at: Coordinator, **more: Any) -> Any:
        """Open the topic as the publisher does."""
        return await self.publish(at, "open", self.open_order(**more))

    async def begin(self, at: Coordinator, batch_id: int, *, run: str = "run") -> Any:
        """Ask for a batch's write id; the answer."""
        return await self.publish(at, "begin", {"query_id": QUERY, "batch_id": batch_id, "run_id": run, "wait": 0.1})

    async def seal(self, at: Coordinator, batch_id: int, write_id: str, segments: Any, *, run: str = "run") -> Any:
        """Seal a batch whose segments are written, noting it in the journal."""
        self.journal.intend(batch_id, self.rows.ranges(batch_id))
        result = await self.publish(at, "seal", *_sealing(QUERY, batch_id, run, write_id, segments))
        self.journal.seal(batch_id)
        return result

    async def append(
        self, at: Coordinator, link: Any, query: str, batch_id: int, write_id: str, segments: Any, marks: Any
    ) -> None:
        """Seal a batch as a process that is not the publisher."""
        self.journal.intend(batch_id, self.rows.ranges(batch_id))
        args, blob = _sealing(query, batch_id, write_id, write_id, segments)
        await at.answer(link, "seal", {**args, "redriven": marks}, blob)
        self.journal.seal(batch_id)

    def write(self, write_id: str, batch_id: int, *, inline: bool = True) -> Any:
        """Write a batch's segments, as the tasks do."""
        folder = self.world.host_folder if self.world.config.spool_placement == "host" else None
        tables = self.rows.tables(batch_id)
        return written(self.world.directory, write_id, tables, inline=inline, host_folder=folder)

    async def batch(self, at: Coordinator, batch_id: int, *, run: str = "run", inline: bool = True) -> None:
        """Publish a whole batch, unless it is sealed already, as the sink does."""
        answer = await self.begin(at, batch_id, run=run)
        if answer["last"] is not None and answer["last"]["batch_id"] >= batch_id:
            self.journal.intend(batch_id, self.rows.ranges(batch_id))
            self.journal.seal(batch_id)
            return
        write_id = answer["admitted"]["write_id"]
        await self.seal(at, batch_id, write_id, self.write(write_id, batch_id, inline=inline), run=run)

    # -- the beginning -------------------------------------------------------------------------------------------------

    def set_up(self) -> None:
        """Publish the first batches, subscribe, and read the first of them."""
        self.world.run(self._set_up())
        self.world.settle()

    async def _set_up(self) -> None:
        await self.open(self.a)
        for _ in range(BASE):
            await self.batch(self.a, self.batch_id, inline=self.batch_id != 1)
            self.batch_id += 1
        self.grant = (await self.read("grant", {"host": "h", "pid": 1}))["grant"]
        self.position = Position.from_json((await self.read("first", self.first_args()))["position"])
        tail = self.position
        await self.read("plan", self.plan_args(tail))
        self.position = Position(tail.log, 1, tail.n + 1, 0)
        await self.read("ack", {"grant": self.grant, "position": self.position.to_json()})

    def first_args(self) -> dict[str, Any]:
        """Return the arguments of ``first``."""
        return {"grant": self.grant, "start": EARLIEST, "end": None, "skip_removed": False}

    def plan_args(self, start: Position, **more: Any) -> dict[str, Any]:
        """Return the arguments of ``plan``."""
        return {
            "grant": self.grant,
            "start": start.to_json(),
            "end": None,
            "max_rows": None,
            "max_bytes": None,
            **more,
        }

    # -- what must hold ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the invariants; the world is at rest.

        Raises:
            Violation: with all that does not hold.
        """
        wrong: list[str] = list(self.world.failures)
        alone = len(self.world.coordinators) == 1
        for coordinator in self.world.coordinators:
            if not coordinator.ended:
                if not alone:  # it hears by its ticks of what another one did
                    self.world.run(self.live(coordinator))
                try:
                    coordinator.handler.mend()
                except Exception as error:
                    wrong.append(f"the keeper fails: {error!r}")
        self.world.settle()
        for coordinator in self.world.coordinators:
            if not coordinator.ended:
                wrong += [f"{coordinator.host.instance}: {text}" for text in self._wrong_at(coordinator)]
        left = self.world.tasks()
        if left:
            wrong.append(f"{len(left)} tasks are left: {sorted(str(task.get_coro()) for task in left)}")
        if wrong:
            raise Violation("; ".join(wrong))

    async def live(self, coordinator: Coordinator) -> None:
        """Let it tick for a while."""
        live = asyncio.ensure_future(coordinator.host.live())
        await asyncio.wait({live}, timeout=1.3)
        if live.done():
            live.result()
            if coordinator.topic is not None and coordinator.topic.publishing:
                raise Violation(f"{coordinator.host.instance} ended by itself, and publishes")
        coordinator.host.finished.set()
        await live
        coordinator.host.finished.clear()

    def _wrong_at(self, at: Coordinator) -> list[str]:
        wrong = []
        host, topic = at.host, at.topic
        if host.opening:
            wrong.append("the lock of opening is held")
        owner = at.handler.owner(TOPIC)
        ours = owner is not None and owner.instance == host.instance
        other = at.handler.owner(GIVEN_UP)
        if other is not None:
            wrong.append(f"the topic {GIVEN_UP} is claimed, and was given up: it is blocked")
        records = [record for record in at.handler.records(TOPIC) if record.instance == host.instance]
        if topic is None:
            if ours:
                wrong.append("the topic is claimed, and not served: it is blocked")
            if records:
                wrong.append(f"{len(records)} registrations of a topic that is not served")
            return wrong
        if not ours:
            wrong.append(f"the topic is served, and claimed by {None if owner is None else owner.instance}")
        elif owner is not None and owner.epoch != topic.epoch:
            wrong.append(f"the claim has epoch {owner.epoch}, the topic {topic.epoch}")
        if {(record.index, record.epoch) for record in records} != {
            (index, topic.epoch) for index in range(1, topic.asked.parallelism + 1)
        }:
            wrong.append(f"registered: {[(record.index, record.epoch) for record in records]}")
        if topic.closed:
            return [*wrong, "a closed topic is served"]
        store = topic.store
        for what, memory, disk in (
            ("head", topic.head.place, store.batches.head().place),
            ("ended", topic.ended, store.batches.ended()),
            ("epoch", (topic.epoch, store.epoch), (store.epoch, store._db.value("SELECT epoch FROM meta"))),
            ("uptime", store.clock.uptime >= float(store._db.value("SELECT uptime FROM meta")), True),
        ):
            if memory != disk:
                wrong.append(f"{what} is {memory} in memory and {disk} on disk")
        if at.handler.epoch(TOPIC) < topic.epoch:
            wrong.append(f"the registry's epoch is {at.handler.epoch(TOPIC)}, the topic's {topic.epoch}")
        if held := [name for name, lock in topic.subscribers._locks.items() if lock.locked()]:
            wrong.append(f"the locks of the names {held} are held")
        counted = topic.leases._known
        orphans = {row["id"] for row in store._db.all("SELECT id FROM leases")} - counted.keys()
        if orphans and topic.epoch == 1:  # else they may be of a coordinator before
            wrong.append(f"{len(orphans)} leases that the log holds, and nobody counts")
        if topic.leases._quotas.held("", "leases") != len(counted):
            wrong.append(f"{len(counted)} leases, {topic.leases._quotas.held('', 'leases')} in the budget")
        known = {one.name: one for one in store.subscriptions.all()}
        for name, holder in topic.subscribers._session_owners.items():
            if name in known and holder.grant != known[name].grant:
                wrong.append(f"subscription {name}: grant {holder.grant} in memory, {known[name].grant} on disk")
        return wrong

    def check_disk(self) -> None:
        """Check the catalog's integrity with a connection of its own."""
        connection = sqlite3.connect(self.world.directory / CATALOG)
        try:
            found = connection.execute("PRAGMA integrity_check").fetchone()[0]
        finally:
            connection.close()
        if found != "ok":
            raise Violation(f"the catalog is damaged: {found}")

    def go_on(self) -> None:
        """A publisher goes on, at the coordinator that serves the topic, or at a new one."""
        rival = self.kept.get("rival")
        if rival is not None:
            rival.handler.release(TOPIC)
        served = [one for one in self.world.coordinators if not one.ended and one.topic is not None]
        if not served or not served[0].topic.publishing:  # type: ignore[union-attr]
            served = [self.world.coordinator()]
            self.world.run(self.open(served[0]))
        self.world.run(self.batch(served[0], self.batch_id, run="another run"))
        self.world.settle()
        self.check()

    # -- the end -------------------------------------------------------------------------------------------------------

    def deliver(self) -> int:
        """Read all that is sealed, as a subscriber does, and let the oracle judge; return the rows."""
        checker = Checker(self.rows, self.journal, clock=self.world.loop.time)
        for table in read_rows(self.world.directory, self.world.host_folder):
            checker.take(table)
        checker.check()
        return checker.rows

    def finish(self) -> int:
        """End all coordinators, look for what is left, and let the oracle judge; return the rows that arrived."""
        end_marks = 0
        for coordinator in self.world.coordinators:
            if not coordinator.ended:
                self.world.run(coordinator.end())
        self.world.settle()
        left = self.world.tasks()
        files = open_files(self.world.root)
        if left or files:
            names = sorted({name.rpartition("/")[2] for name in files})
            raise Violation(f"left: {[str(task.get_coro()) for task in left]}, files {names}")
        observer = self.world.coordinator()
        owner = observer.handler.owner(TOPIC)
        if owner is not None:
            raise Violation(f"the topic is claimed by {owner.instance}, which has ended")
        self.world.run(observer.end())
        self.check_disk()
        log = TopicLog.open(self.world.directory, TOPIC)
        try:
            marks = "SELECT count(*) FROM batches WHERE is_end"
            end_marks = int(log._db.value(marks))
        finally:
            log.close()
        if end_marks > (1 if self.final else 0):
            raise Violation(f"{end_marks} end marks, {1 if self.final else 0} wanted")
        return self.deliver()


def meaning(error: Exception) -> str:
    """Return how an error is named in a report."""
    return f"{type(error).__name__}: {error.message if isinstance(error, JobpipeError) else error}"


def _sealing(query: str, batch_id: int, run: str, write_id: str, segments: Any) -> tuple[dict[str, Any], bytes]:
    """Return the arguments and bytes of a request that seals a batch."""
    args = {
        "query_id": query,
        "batch_id": batch_id,
        "run_id": run,
        "write_id": write_id,
        "schema": {"arrow": base64.b64encode(SCHEMA.serialize().to_pybytes()).decode(), "spark": None},
        "partitions": PARTITIONS,
        "partitioner": "rr",
        "segments": [{**info.to_json(), "inline": None if info.data is None else len(info.data)} for info in segments],
    }
    return args, b"".join(info.data for info in segments if info.data is not None)
