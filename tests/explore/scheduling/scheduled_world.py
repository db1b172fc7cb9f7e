"""One seeded run: a world of jobs, faults drawn by the seed, and what must be true in the end."""

from __future__ import annotations

import asyncio
import contextvars
import random
import sqlite3
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from jobpipe.config import Config
from jobpipe.errors import JobpipeError
from jobpipe.testing import Journal, NumberedRows
from jobpipe_registry.memory import MemoryRegisterServerHandler, MemoryTree
from jobpipe_registry.registry_errors import RegistryError
from tests.explore.interleaving import interleave_steps
from tests.explore.interleaving.interleave_log import small_reserve
from tests.explore.interleaving.interleave_steps import stepping
from tests.explore.scheduling.scheduled_actors import Administrator, Auditor, Subscriber
from tests.explore.scheduling.scheduled_faults import FAULT_SECONDS, Trouble
from tests.explore.scheduling.scheduled_net import Network
from tests.explore.scheduling.scheduled_parts import CoordinatorProcess, host_folder, standing_in
from tests.explore.scheduling.scheduled_process import PROCESS, Process, owned
from tests.explore.scheduling.scheduled_publishers import Driver, publishing
from tests.explore.scheduling.scheduled_time import VirtualLoop
from tests.explore.virtual_time import Stuck

END_SECONDS = 300.0  # until all must have arrived
SETTLE_SECONDS = 9.0  # more, in which nothing may change any more: two looks of the registry's keeper
CLAIM_SECONDS = 8
NAMES = ("a", "b")


@dataclass
class Topic:
    """What the publishing query of one topic knows in its checkpoint, and who runs it.

    Attributes:
        committed: The last batch id that Spark has committed.
        finals: How often a publisher wanted an end mark.
        grants: How often an auditor was told that it has its name.
        holder: The last one that was told so; None if it may not be the last one that was given it.
    """

    name: str
    config: Config
    rows: NumberedRows
    move_at: int
    final: bool
    committed: int = -1
    finals: int = 0
    driver: Driver | None = None
    done: bool = False
    grants: int = 0
    holder: Auditor | None = None

    @property
    def directory(self) -> Path:
        return self.config.spool_dir / self.name

    @property
    def host_folder(self) -> Path | None:
        """What the host server keeps of it, with placement ``host``."""
        return host_folder(self.config, self.name) if self.config.spool_placement == "host" else None

    def closed(self, driver: Driver, *, final: bool) -> None:
        """Its driver has given it up."""
        self.driver = None
        self.done = True


@dataclass
class Outcome:
    """Of one run: what is wrong, what happened, and how long it was in virtual seconds."""

    faults: list[str]
    trace: list[str]
    seconds: float = 0.0
    jobs: int = 0
    rows: int = 0
    acts: int = 0


@dataclass
class World(Trouble):
    """Everything there is in one run."""

    seed: int
    home: Path
    base: Config
    rng: random.Random
    loop: VirtualLoop
    batches: int = 5
    names: tuple[str, ...] = ("s1", "s2")
    over: bool = False
    quiet: bool = False
    striking: float = 0.0
    slowest: float = 0.0
    acts: int = 0
    faults: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    topics: list[Topic] = field(default_factory=list)
    processes: dict[int, Process] = field(default_factory=dict)
    coordinators: list[CoordinatorProcess] = field(default_factory=list)
    drivers: list[Driver] = field(default_factory=list)
    subscribers: list[Subscriber] = field(default_factory=list)
    auditors: list[Auditor] = field(default_factory=list)
    journals: dict[str, Journal] = field(default_factory=dict)
    _dead: set[Driver] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.network = Network(self.loop)
        self.tree = MemoryTree()
        self.registry = MemoryRegisterServerHandler(self.tree)  # of all who only look
        self.loop.create_connection = self.network.connect  # type: ignore[assignment,method-assign]

    def new_id(self) -> str:
        return self.rng.randbytes(16).hex()

    def note(self, what: str) -> None:
        self.trace.append(f"{self.loop.time() - 1000.0:9.4f} {what}")

    def fail(self, what: str) -> None:
        self.note(f"FAULT {what}")
        self.faults.append(what)

    def unseen(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Of an error that nobody has taken."""
        if (error := context.get("exception")) is not None and not self.over:
            self.fail(f"nobody has seen {error!r}"[:300])

    def misused(self) -> None:
        """A thread uses a catalog's connection in the middle of another one's statement."""
        process = PROCESS.get()
        if not self.over and (process is None or process.alive):
            self.fail(f"two threads of {process} use one connection")

    def start_coordinator(self, parent: Process) -> CoordinatorProcess:
        made = CoordinatorProcess(f"c{len(self.coordinators)}", self.loop, self.network, self.tree, self.base, parent)
        self.processes[made.process.pid] = made.process
        self.coordinators.append(made)
        self.note(f"{made.process} starts for {parent}")
        return made

    def start_driver(self, topics: list[Topic]) -> Driver:
        driver = Driver(self, f"d{len(self.drivers)}")
        self.drivers.append(driver)
        self.note(f"{driver.process} publishes {[topic.name for topic in topics]}")
        for topic in topics:
            topic.driver, topic.done = driver, False
            first = topic.committed + 1 < topic.move_at < self.batches
            driver.publish(topic, topic.move_at if first else self.batches, final=topic.final)
        return driver

    def driver_died(self, driver: Driver) -> None:
        """The application has ended by an error, or is killed; its coordinator lives on for a while."""
        if driver in self._dead:
            return
        self._dead.add(driver)
        driver.process.kill()
        self.network.killed(driver.process)
        self.loop.create_task(self._next_driver(driver), context=contextvars.Context())  # of no process

    async def _next_driver(self, driver: Driver) -> None:
        await asyncio.sleep(self.rng.uniform(0.2, 3.0))
        orphans = [topic for topic in self.topics if topic.driver is driver]
        if orphans and not self.over:
            self.start_driver(orphans)

    # -- the story -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Publish and read while faults happen; then all must arrive, and nothing may be left undone."""
        await asyncio.to_thread(self.registry.start, {"connect": "memory", "topic.storage": self.base.namespace})
        for name in NAMES:
            self.topics.append(self._topic(name))
        self.start_driver(list(self.topics))
        for topic in self.topics:
            for name in self.names:
                subscriber = Subscriber(self, topic, name)
                self.subscribers.append(subscriber)
                subscriber.start()
        if self.rng.random() < 0.5:
            rivals = self.rng.choice((1, 1, 2))
            self.auditors = [
                Auditor(self, topic, "auditor", rival=rivals > 1) for topic in self.topics for _ in range(rivals)
            ]
            for auditor in self.auditors:
                auditor.start()
            Administrator(self).start()
        moving, watching = self.loop.create_task(self._move()), self.loop.create_task(self._watch_claims())
        begun = self.rng.random() < 0.3  # else the world is at work first: most of what is asked comes after that
        while not (begun or all(topic.committed >= 0 for topic in self.topics)):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.2)
        await self._trouble()
        self.quiet = True
        self.note("no more faults")
        deadline = self.loop.time() + END_SECONDS
        done = self.loop.time() + self.slowest + 1.0  # what was told to slow threads
        while not all(subscriber.has_all() for subscriber in self.subscribers):
            await asyncio.sleep(0.5)
            if self.faults or self.loop.time() > deadline:
                break
        if not self.faults:
            self._check_arrived()
            await asyncio.sleep(max(done - self.loop.time(), 0.0) + SETTLE_SECONDS)
            await self._check_at_rest()
        moving.cancel()
        watching.cancel()
        self.over = True

    def _topic(self, name: str) -> Topic:
        rng = self.rng
        acks = rng.choice(("stored", "all"))
        config = replace(self.base, acks=acks, ack_grace=0.0 if rng.random() < 0.5 else 2.0, retention_time=0.0)
        self.journals[name] = Journal()
        rows = NumberedRows(name, partitions=rng.choice((1, 2)), rows=3)
        return Topic(name, config, rows, rng.randrange(1, self.batches + 3), rng.random() < 0.5)

    async def _move(self) -> None:
        """A topic that its publisher has closed before the last batch is published on by another application."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.1, 2.0))
            for topic in self.topics:
                left = topic.committed + 1 < self.batches or (self.quiet and self._is_left(topic))
                if topic.done and left:
                    topic.move_at = self.batches
                    self.start_driver([topic])

    def _is_left(self, topic: Topic) -> bool:
        """Its coordinator was killed after the publisher had closed it: the next publisher serves what is left."""
        served = any(coordinator.host and topic.name in coordinator.host.topics for coordinator in self._living())
        return not served and not all(each.has_all() for each in self.subscribers if each.topic is topic)

    async def _watch_claims(self) -> None:
        """A coordinator may hold a claim only of what it serves, opens or gives up."""
        held: dict[tuple[str, str], int] = {}
        while True:
            await asyncio.sleep(1.0)
            for coordinator in self._living():
                host, process = coordinator.host, coordinator.process
                idle = host is not None and not host.opening and not getattr(host, "_drops", None)
                able = idle and not (process.paused or process.registry_away or self.loop.slow or process.busy)
                for path in self._nodes_of(coordinator):
                    key = str(process), path
                    wrong = host is not None and self._topic_of(path) not in host.topics
                    held[key] = held.get(key, 0) + 1 if wrong and able else 0
                    if held[key] == CLAIM_SECONDS:
                        self.fail(f"{process} holds {path} for {CLAIM_SECONDS} s, and does not serve it")

    def _nodes_of(self, coordinator: CoordinatorProcess) -> list[str]:
        try:
            session = coordinator.handler.memory_nodes().session
        except RegistryError:
            return []
        return [path for path, node in self.tree._nodes.items() if node.session == session]

    # -- the oracle ----------------------------------------------------------------------------------------------------

    def _check_arrived(self) -> None:
        for subscriber in self.subscribers:
            report = subscriber.checker.report()
            if report.faults or not subscriber.has_all():
                self.fail(
                    f"{subscriber.name} of {subscriber.topic.name}, up to batch {subscriber.topic.committed}: {report}"
                )

    async def _check_at_rest(self) -> None:
        for coordinator in self.coordinators:
            if coordinator.fault is not None:
                self.fail(coordinator.fault)
            if coordinator.alive and coordinator.host is not None:
                await self._check_coordinator(coordinator)
        for topic in self.topics:
            self._check_catalog(topic)
        for subscriber in self.subscribers:
            report = subscriber.checker.report()
            if report.faults:
                self.fail(f"{subscriber.name} of {subscriber.topic.name}, at rest: {report}")
        for auditor in self.auditors:
            auditor.judge()

    async def _check_coordinator(self, coordinator: CoordinatorProcess) -> None:
        host = coordinator.host
        assert host is not None
        for path in self._nodes_of(coordinator):
            if (topic := self._topic_of(path)) not in host.topics:
                self.fail(f"{coordinator.process} holds {path}, and does not serve {topic}")
        for served in host.topics.values():
            try:
                head, ended = await served.run(served.store.batches.head), await served.run(served.store.batches.ended)
            except JobpipeError as error:
                self.fail(f"{coordinator.process} {served.topic}: {error!r}")
                continue
            if served.epoch == self._catalog_epoch(served.topic) and (served.head, served.ended) != (head, ended):
                self.fail(
                    f"{coordinator.process} tells of head {served.head.n}, ended {served.ended}, in the catalog of "
                    f"{served.topic} they are {head.n}, {ended}"
                )

    def _topic_of(self, path: str) -> str:
        storage = self.base.namespace
        rest = path.removeprefix(f"{storage}.owners/").removeprefix(f"{storage}/")
        return rest.partition("/")[0]

    def _catalog(self, topic: Topic) -> sqlite3.Connection:
        return sqlite3.connect(topic.directory / "catalog.db")

    def _catalog_epoch(self, name: str) -> int:
        catalog = self._catalog(next(topic for topic in self.topics if topic.name == name))
        try:
            return int(catalog.execute("SELECT epoch FROM meta").fetchone()[0])
        finally:
            catalog.close()

    def _check_catalog(self, topic: Topic) -> None:
        if not (topic.directory / "catalog.db").exists():
            return  # it was never opened, which is told elsewhere
        catalog = self._catalog(topic)
        try:
            health = catalog.execute("PRAGMA integrity_check").fetchone()[0]
            marks = catalog.execute("SELECT next_n FROM meta").fetchone()[0] - self.batches
        except sqlite3.Error as error:
            self.fail(f"{topic.name}: its catalog cannot be read: {error}")
            return
        finally:
            catalog.close()
        if health != "ok":
            self.fail(f"{topic.name}: {health}")
        if marks > topic.finals:
            self.fail(f"{topic.name}: {marks} end marks, asked for {topic.finals}")


def play(seed: int, home: Path, base: Config) -> Outcome:
    """Run one seed in an empty folder."""
    rng = random.Random(seed)
    loop = VirtualLoop(rng, limit=END_SECONDS + FAULT_SECONDS + 2 * SETTLE_SECONDS)
    Process.reset()
    loop.at_once = rng.choice((0.2, 0.8, 0.95))
    placement: Any = rng.choice(("driver", "driver", "shared", "host"))
    config = replace(base, spool_dir=home / "spool", spool_placement=placement, home=home / "home")
    asyncio.set_event_loop(loop)
    world = World(seed, home, config, rng, loop)
    loop.set_exception_handler(world.unseen)
    ids = random.Random(seed)
    try:
        with (
            small_reserve(),
            stepping(),
            standing_in(loop, world.processes, seed),
            publishing(world),
            mock.patch.object(interleave_steps, "on_connect", [owned]),
            mock.patch.object(interleave_steps, "on_misuse", [world.misused]),
            mock.patch("secrets.token_hex", lambda n: ids.randbytes(n).hex()),
        ):
            try:
                loop.run_until_complete(world.run())
            except Stuck as error:
                world.fail(f"stuck: {error}")
            for process in world.processes.values():
                process.kill()
            loop.end_workers()
            loop.over = True
    finally:
        asyncio.set_event_loop(None)
    rows = sum(subscriber.checker.rows for subscriber in world.subscribers)
    return Outcome(world.faults, world.trace, loop.time() - 1000.0, loop.jobs, rows, world.acts)
