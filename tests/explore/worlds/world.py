"""A whole bus in one process, without TLS, JVM and network: registry in memory, coordinators, their logs on a disk.

Time is virtual, thread work has its turn when the explorer lets it, and each call of the disk, of SQLite and of the
registry is a place where the explorer may act (:mod:`tests.explore.worlds.world_disk`). Nothing depends on the
machine's pace, so a run with the same choices is the same run.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from jobpipe.config import Config, load
from jobpipe.coordinator import coordinator as coordinators
from jobpipe.coordinator.handlers.admin_handlers import AdminHandlers
from jobpipe.coordinator.registration import host_servers, topic_claim
from jobpipe.coordinator.registration.host_servers import HostServers
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.discovery.peer_authentication import PeerAuthentication
from jobpipe.errors import JobpipeError, LinkBroken, LinkTimeout
from jobpipe.net.address import Endpoint
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.catalog_reader import CatalogReader, SegmentRange
from jobpipe.store.spool.partition_writer import PartitionedWriter
from jobpipe.store.spool.segment import SegmentFile
from jobpipe.store.spool.segment_index import INLINE_MAX, SegmentInfo
from jobpipe.store.spool.spool_files import SEGMENTS, file_name
from jobpipe.testing import SCHEMA
from jobpipe.wire.wire_messages import Hello, Reply, Request
from jobpipe_registry.memory import MemoryRegisterServerHandler, MemoryTree, _MemoryNodes
from jobpipe_registry.nodes import Folder, Node, Nodes, Notify, Operation
from jobpipe_registry.registry_errors import Unavailable
from jobpipe_registry.registry_options import RegistryOptions
from tests.explore import sqlite_files
from tests.explore.worlds.world_disk import Fault, GuardedConnection, Sites, SQLiteFiles, patched_os
from tests.explore.worlds.world_loop import WorldLoop, YieldingRLock
from tests.store.build import decode, pieces_of

T = TypeVar("T")
SECRET = "the job's"
TOPIC = "orders"
HOST, HOST_ENDPOINT = "host-1", Endpoint("127.0.0.1", 9_999)  # the host server
_DISK = "/dev/shm"  # an explorer makes thousands of folders


class FakeLink:
    """A peer's link, as a service sees it; and, with a coordinator at its other end, as the peer does."""

    def __init__(self, hello: Hello, to: Coordinator | None = None) -> None:
        self.hello = hello
        self.peer_names: tuple[str, ...] = ()
        self.peer = "explorer"
        self.silence = 0.0
        self.alive = True
        self.ended: JobpipeError | None = None
        self._to = to

    async def ping(self, seconds: float) -> None:
        await asyncio.sleep(0)
        if not self.alive:
            await asyncio.sleep(seconds)
            raise LinkTimeout("no answer")

    async def call(
        self, op: str, args: dict[str, Any] | None = None, blob: bytes = b"", *, timeout: float, upload: bytes = b""
    ) -> Reply:
        assert self._to is not None
        async with asyncio.timeout(timeout):
            task = asyncio.ensure_future(self._to.answer(self, op, args or {}, blob))
            try:
                result, data = await asyncio.shield(task)
            except asyncio.CancelledError:  # the link ends, and its requests with it
                task.cancel()
                raise
        return Reply(1, result, data)

    async def close(self) -> None:
        await asyncio.sleep(0)


class _ExploredNodes(_MemoryNodes):
    """A session whose calls the explorer sees."""

    def __init__(self, tree: MemoryTree, sites: Sites) -> None:
        super().__init__(tree)
        self._sites = sites

    def _meet(self, name: str, what: str, *, after: bool) -> None:
        if self._sites.meet("registry", name, what, after=after) is not None:
            raise Unavailable("memory", f"no answer to {name} of {what}")

    def get(self, path: str, notify: Notify | None = None) -> Node | None:
        self._meet("get", path, after=False)
        return super().get(path, notify)

    def get_all(self, paths: Sequence[str], notify: Notify | None = None) -> list[Node | None]:
        self._meet("get_all", f"{len(paths)} nodes", after=False)
        return super().get_all(paths, notify)

    def folder(self, path: str, notify: Notify | None = None) -> Folder | None:
        self._meet("folder", path, after=False)
        return super().folder(path, notify)

    def ensure(self, path: str) -> None:
        self._meet("ensure", path, after=False)
        super().ensure(path)

    def commit(self, operations: Sequence[Operation]) -> None:
        what = ", ".join(f"{type(one).__name__} {one.path.rpartition('/')[2]}" for one in operations)
        self._meet("commit", what, after=False)
        super().commit(operations)
        self._meet("commit", what, after=True)


class Handler(MemoryRegisterServerHandler):
    """A registry session. What its keeper's thread would do, :meth:`mend` does when the explorer says."""

    def __init__(self, tree: MemoryTree, sites: Sites, loop: WorldLoop) -> None:
        super().__init__(tree)
        self._tree_of_all = tree
        self._sites = sites
        self._loop = loop

    def _open(self, options: RegistryOptions) -> Nodes:
        self._memory_nodes = _ExploredNodes(self._tree_of_all, self._sites)
        return self._memory_nodes

    def begin(self, options: dict[str, str]) -> None:
        """Start, without the keeper's thread."""
        self.start(options)
        keeper = self._parts().keeper
        keeper.stop()
        keeper.join(10.0)
        keeper._stop.clear()
        keeper._changing = YieldingRLock(self._loop)  # type: ignore[assignment]

    def mend(self) -> None:
        """Look after our nodes once, as the keeper's thread does after each notice."""
        lost: set[str] = set()
        try:
            self._parts().keeper._repair(lost)
        finally:
            for topic in lost:
                self._on_topic_lost(topic)


class _Data:
    """The data process: in these worlds logs are read by :func:`read_rows`."""

    alive = True

    def __init__(self) -> None:
        self.endpoint = Endpoint("127.0.0.1", 9)

    def start(self) -> None:
        self.endpoint = Endpoint("127.0.0.1", self.endpoint.port + 1)

    def announce_topic(self, *what: Any) -> None:
        pass

    def announce_hosts(self, hosts: dict[str, str | None]) -> None:
        pass

    def end(self) -> None:
        pass


class Coordinator:
    """One coordinator: the host, its service, and its registry session."""

    def __init__(self, world: World, number: int, config: Config) -> None:
        self.world = world
        self.config = config
        self.endpoint = Endpoint("127.0.0.1", 10_000 + number)
        self.handler = Handler(world.tree, world.sites, world.loop)
        self.handler.begin({"topic.storage": config.namespace})
        self.host = coordinators.Coordinator(
            config,
            self.handler,
            control=self.endpoint,
            data=_Data(),  # type: ignore[arg-type]
            parent=None,
            instance=f"coordinator-{number}",
        )
        self.service = AdminHandlers(self.host, PeerAuthentication(config), SECRET)
        self.ended = False

    def link(self, role: str, name: str | None = None, *, topic: str = TOPIC, instance: str = "i") -> FakeLink:
        """Return a link to this coordinator, as its service sees it."""
        return FakeLink(Hello(topic=topic, role=role, name=name, instance=instance))

    async def answer(self, link: Any, op: str, args: dict[str, Any], blob: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Answer one request as the service does."""
        job = {"job": SECRET} if link.hello.role == "publisher" else {}
        return await self.service.handle(link, Request(1, op, {**args, **job}, blob))

    @property
    def topic(self) -> ServedTopic | None:
        """The topic, if it is served here."""
        return self.host.topics.get(TOPIC)

    async def end(self) -> None:
        """End as the process does."""
        self.ended = True
        self.host.finished.set()
        await self.host.close()


@functools.cache
def _plain_config() -> Config:
    pa.array([0])  # the first one imports pandas, which takes a while
    return load(overrides={"jobpipe.ssl.enabled": "false"}, environ={})


class _HostLink(FakeLink):
    """A link to the world's host server, whose files are in one folder."""

    def __init__(self, hello: Hello, folder: Path) -> None:
        super().__init__(hello)
        self._folder = folder

    async def call(
        self, op: str, args: dict[str, Any] | None = None, blob: bytes = b"", *, timeout: float, upload: bytes = b""
    ) -> Reply:
        await asyncio.sleep(0)
        asked = args or {}
        if op == "files":
            return Reply(1, {"files": sorted(one.name for one in self._folder.iterdir() if one.name > asked["after"])})
        if op == "remove":
            for name in asked["files"]:
                (self._folder / name).unlink()
            return Reply(1, {"removed": len(asked["files"])})
        return Reply(1, {"forgotten": []})


class World:
    """The world; a context manager.

    Args:
        settings: fields of the configuration that differ from the defaults.

    Attributes:
        loop, sites, tree: time and turns, the places to act, the registry's nodes.
        root: the folder of all files, below which calls of the disk are seen.
        coordinators: all that were made.
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.sites = Sites()
        self.tree = MemoryTree()
        self.coordinators: list[Coordinator] = []
        self.failures: list[str] = []

    def __enter__(self) -> World:
        with contextlib.ExitStack() as stack:
            self.root = Path(tempfile.mkdtemp(prefix="explore-", dir=_DISK if os.path.isdir(_DISK) else None))
            stack.callback(shutil.rmtree, self.root, ignore_errors=True)
            self.sites.root = str(self.root)
            self.loop = WorldLoop()
            stack.callback(self.loop.close)
            self.loop.now = time.monotonic()
            self.loop.set_exception_handler(self._note)
            places = {"home": self.root / "home", "spool_dir": self.root / "spool"}
            self.config = dataclasses.replace(_plain_config(), **places, **self.settings)
            stack.enter_context(patched_os(self.sites))
            stack.enter_context(sqlite_files.watched(SQLiteFiles(self.sites, self._busy)))
            guarded = functools.partial(sqlite3.connect, factory=GuardedConnection)
            stack.enter_context(replaced(sqlite3, "connect", guarded))
            stack.enter_context(replaced(GuardedConnection, "on_clash", self._clash))
            stack.enter_context(replaced(GuardedConnection, "on_statement", self._statement))
            stack.enter_context(replaced(time, "monotonic", self.loop.time))
            stack.enter_context(replaced(time, "sleep", self.loop.sleep))
            stack.enter_context(replaced(topic_claim, "connect", self._connect))
            stack.enter_context(replaced(host_servers, "dial", lambda _, *where: self._connect(*where)))
            stack.enter_context(replaced(HostServers, "_ask", lambda servers: {HOST: str(HOST_ENDPOINT)}))
            self.host_folder = self.root / HOST
            self.host_folder.mkdir()
            stack.enter_context(_quiet())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self.sites.act = None
        self._stack.close()

    def _note(self, loop: Any, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _busy(self, seconds: float) -> None:
        """SQLite waits for a lock: whoever has it and has paused goes on."""
        if not self.loop.finish_paused():
            self.loop.now += seconds

    def _statement(self, query: str) -> Fault | None:
        return self.sites.meet("statement", query.split()[0], " ".join(query.split()[:6]), after=False)

    def _clash(self, what: str) -> None:
        self.failures.append(f"{what!r}, while another thread uses the same connection to the catalog")
        self.loop.finish_paused()

    async def _connect(self, endpoint: Endpoint, hello: Hello, **how: Any) -> FakeLink:
        await asyncio.sleep(0)
        if endpoint == HOST_ENDPOINT:
            return _HostLink(hello, self.host_folder)
        for coordinator in self.coordinators:
            if coordinator.endpoint == endpoint and not coordinator.ended:
                return FakeLink(hello, coordinator)
        raise LinkBroken(f"{endpoint} does not answer")

    # -- what explorers do ---------------------------------------------------------------------------------------------

    def coordinator(self, **settings: Any) -> Coordinator:
        """Start another coordinator, with some fields of the configuration changed."""
        config = dataclasses.replace(self.config, **settings)

        async def make() -> Coordinator:
            return Coordinator(self, len(self.coordinators), config)

        self.coordinators.append(self.run(make()))
        return self.coordinators[-1]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to its end."""
        return self.loop.run_until_complete(work)

    def settle(self, seconds: float = 0.0) -> None:
        """Let everything come to its end that is under way, and some time pass."""
        self.run(asyncio.sleep(seconds))
        while self.loop.queue or self.loop.paused:
            self.run(asyncio.sleep(0.001))
        self.run(asyncio.sleep(0.001))

    def abandon(self) -> None:
        """End what a run has left that failed."""
        self.settle()
        for task in self.tasks():
            task.cancel()
        for coordinator in self.coordinators:
            if not coordinator.ended:
                self.run(coordinator.end())

    def tasks(self) -> set[asyncio.Task[Any]]:
        """The tasks that have not ended."""
        return {task for task in asyncio.all_tasks(self.loop) if not task.done()}

    @property
    def directory(self) -> Path:
        """The topic's."""
        return self.config.spool_dir / TOPIC


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let an attribute be another for the length of the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What is logged of made faults is no news."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def open_files(below: Path) -> list[str]:
    """Return this process's open files below a folder."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(name for name in found if name.startswith(str(below)))


# -- rows --------------------------------------------------------------------------------------------------------------


def written(
    directory: Path, write_id: str, tables: Sequence[pa.Table], *, inline: bool, host_folder: Path | None = None
) -> list[SegmentInfo]:
    """Write the segments of one batch as its tasks do, to the host server's folder if there is one."""
    file = SegmentFile.create(directory / SEGMENTS, file_name(write_id, "0"), inline_max=INLINE_MAX if inline else 0)
    writer = PartitionedWriter(SCHEMA, file, partitions=len(tables))
    for partition, table in enumerate(tables):
        for batch in table.to_batches():
            writer.write(batch, partition)
    found = writer.finish(fsync=False)
    if host_folder is None or inline:
        return found
    for name in {one.file for one in found if one.file is not None}:
        (directory / SEGMENTS / name).rename(host_folder / name)
    return [one if one.file is None else dataclasses.replace(one, host=HOST) for one in found]


def read_rows(directory: Path, host_folder: Path, *, start: Position | None = None) -> list[pa.Table]:
    """Read all rows of the topic as a subscriber's worker does; one table for each stored piece, in order."""

    def read(piece: SegmentRange) -> pa.Table:
        if piece.host is not None and piece.path is not None:
            piece = dataclasses.replace(piece, path=host_folder / piece.path.name)
        return decode(piece)

    reader = CatalogReader.open(directory, TOPIC)
    try:
        head = reader.batches.head()
        position = reader.batches.tail() if start is None else start
        found = []
        while position.n < head.n:
            following = reader.batches.at(position.n + 1)
            shape = reader.batches.shape(position.n)
            for partition in range(shape.partitions if shape else 0):
                found += [read(piece) for piece in pieces_of(reader, position, following, partition)]
            position = following
        return found
    finally:
        reader.close()
