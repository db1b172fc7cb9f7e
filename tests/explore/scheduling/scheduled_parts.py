"""What the seeded runs put in the place of processes, sockets and ZooKeeper: coordinators, and the registry in memory.

Real are ``Coordinator`` and ``AdminHandlers``, with topics and the store (SQLite and files), the wire, links of
both sides, claims and hand-overs, and the registry's keeper. Replaced are processes, threads and time
(:mod:`scheduled_time`), sockets without TLS (:mod:`scheduled_net`), and the data process: readers look segments up
themselves, as it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import jobpipe.coordinator.coordinator
import jobpipe.coordinator.registration.topic_claim
import jobpipe.publishing.coordinator_channel
import jobpipe_registry.node_watch
import jobpipe_registry.tree.registration_keeper
import jobpipe_registry.tree.topic_changes
from jobpipe.config import Config
from jobpipe.coordinator.coordinator import Coordinator
from jobpipe.coordinator.handlers.admin_handlers import AdminHandlers
from jobpipe.coordinator.topic_liveness import WatchedParent
from jobpipe.discovery.peer_authentication import PeerAuthentication
from jobpipe.errors import JobpipeError, LinkClosed
from jobpipe.net.address import Endpoint
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.net.servers.served_link import ServedLink
from jobpipe.operations.status_operations import HostStatus
from jobpipe_registry.memory import MemoryRegisterServerHandler, MemoryTree, _MemoryNodes
from jobpipe_registry.registry_errors import Unavailable
from tests.explore.interleaving.interleave_steps import Changed
from tests.explore.scheduling.scheduled_net import Network
from tests.explore.scheduling.scheduled_process import PROCESS, Process
from tests.explore.scheduling.scheduled_threads import Event, pause, virtual_threading, virtual_time
from tests.explore.scheduling.scheduled_time import VirtualLoop

SESSION_SECONDS = 4.0
KEEP_SECONDS = 3.0  # of the registry's keeper, which really looks each 10 s
TIDY_SECONDS = 0.5
TICK_SECONDS = 0.5  # most of a run would be ticks of the coordinators, which really tick each 0.2 s
HOST = "h1"
TIMED = (
    "jobpipe.coordinator",
    "jobpipe.net",
    "jobpipe.publishing",
    "jobpipe_registry.tree.topic_changes",
    "jobpipe_registry.tree.tree_",
)


class _Nodes(_MemoryNodes):
    """Nodes of a tree beyond a network: each call takes time, and fails while the registry is away."""

    def __init__(self, tree: MemoryTree, loop: VirtualLoop) -> None:
        super().__init__(tree)
        self._loop = loop

    def _travel(self) -> None:
        rng = self._loop.rng
        pause(rng.uniform(0.0, 0.003) if rng.random() < 0.9 else rng.uniform(0.0, 0.3 + self._loop.slow))
        process = PROCESS.get()
        if process is not None and process.registry_away:
            raise Unavailable("the registry", "away")

    def get(self, path: str, notify: Any = None) -> Any:
        self._travel()
        return super().get(path, notify)

    def get_all(self, paths: Any, notify: Any = None) -> Any:
        self._travel()
        return super().get_all(paths, notify)

    def folder(self, path: str, notify: Any = None) -> Any:
        self._travel()
        return super().folder(path, notify)

    def ensure(self, path: str) -> None:
        self._travel()
        super().ensure(path)

    def commit(self, operations: Any) -> None:
        self._travel()
        super().commit(operations)
        self._travel()


class Handler(MemoryRegisterServerHandler):
    """A session of one process."""

    def __init__(self, tree: MemoryTree, loop: VirtualLoop) -> None:
        super().__init__(tree)
        self._loop = loop

    def _open(self, options: Any) -> Any:
        self._memory_nodes = _Nodes(self._tree, self._loop)
        return self._memory_nodes


def host_folder(config: Config, topic: str) -> Path:
    """Return where the host server keeps files of a topic."""
    return config.spool_dir.parent / "hosts" / topic


class _Hosts:
    """The one host server, which is always there, as a coordinator sees it; tidied more often than the real one."""

    registered: ClassVar[list[str]] = [HOST]
    lost: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: Config, data: Any) -> None:
        self._config = config
        self._tidied = 0.0

    def is_due(self, topics: list[Any]) -> bool:
        now = asyncio.get_running_loop().time()
        due = now - self._tidied > TIDY_SECONDS and any(topic.uses_hosts for topic in topics)
        self._tidied = now if due else self._tidied
        return due

    async def refresh(self, topics: list[Any]) -> None:
        for topic in topics:
            host_folder(self._config, topic.topic).mkdir(parents=True, exist_ok=True)

    async def refresh_and_tidy(self, topics: list[Any]) -> None:
        await self.refresh(topics)
        for topic in topics:
            await self.tidy(topic)

    async def tidy(self, topic: Any) -> None:
        folder = host_folder(self._config, topic.topic)
        if topic.publishing and topic.uses_hosts:
            names = sorted(path.name for path in folder.iterdir())
            with contextlib.suppress(JobpipeError):
                for name in await topic.run(topic.store.cleaner.orphans, names, topic.writing):
                    (folder / name).unlink(missing_ok=True)

    def describe(self, kept: Any) -> dict[str, HostStatus]:
        return {}

    async def served(self, topic: Any) -> dict[str, Any]:
        return {}

    async def close(self) -> None:
        pass


class _Data:
    """The data process, as its coordinator sees it."""

    alive = True

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def start(self) -> None:
        pass

    def announce_topic(self, topic: str, directory: Path, *more: Any) -> None:
        pass


class CoordinatorProcess:
    """One coordinator, as ``python -m jobpipe.coordinator`` makes one.

    Attributes:
        host: None until it is ready.
        fault: How it ended, if by an error.
    """

    def __init__(
        self, name: str, loop: VirtualLoop, network: Network, tree: MemoryTree, config: Config, parent: Process
    ) -> None:
        self.process = Process(name, loop)
        self.instance = f"instance-{name}-{self.process.pid}"
        self.secret = f"secret-{name}"
        self.begun = Event()  # or ended before
        self.gone = Event()
        self.host: Coordinator | None = None
        self.fault: str | None = None
        self.handler = Handler(tree, loop)
        self.links: dict[ServedLink, None] = {}
        self._network = network
        self._config = config
        self._parent = parent
        self._service: AdminHandlers | None = None
        port = network.listen(self.process, self._accept)
        self.endpoint = Endpoint("127.0.0.1", port)
        self._main = self.process.spawn(self._run(), name)

    @property
    def alive(self) -> bool:
        return self.process.alive

    def kill(self) -> None:
        """End at once; the registry hears nothing of it for now."""
        self.process.kill()
        self._network.killed(self.process)
        self.begun.set()
        self.gone.set()

    def expire(self) -> None:
        """Let the registry session end."""
        with contextlib.suppress(Exception):
            nodes = self.handler.memory_nodes()
            if self.alive:
                nodes.expire()
            else:
                self.handler._tree.end_session(nodes.session)

    def _accept(self) -> ServedLink:
        assert self._service is not None
        link = ServedLink(self._service, LinkTimeouts(), lambda link: self.links.pop(link, None))
        self.links[link] = None
        asyncio.get_running_loop().create_task(self._greet(link))
        return link

    async def _greet(self, link: ServedLink) -> None:
        """As the server's, without what it does for sockets."""
        try:
            await link.admit()
        except JobpipeError as error:
            link.refuse(error)
        except asyncio.CancelledError:
            link.refuse(LinkClosed("the server closes", peer=link.peer))
            raise

    async def _run(self) -> None:
        try:
            options = {"connect": "memory", "topic.storage": self._config.namespace}
            await asyncio.to_thread(self.handler.start, options)
            self.host = Coordinator(
                self._config,
                self.handler,
                control=self.endpoint,
                data=_Data(self.endpoint),  # type: ignore[arg-type]
                parent=WatchedParent(self._parent.pid, self._parent.started),
                instance=self.instance,
            )
            self._service = AdminHandlers(self.host, PeerAuthentication(self._config), self.secret)
            self.begun.set()
            try:
                await self.host.live()
            finally:
                await self.host.close()
                for link in list(self.links):
                    link.leave("the server closes")
                await asyncio.sleep(0.5)
        except Exception as error:
            self.fault = f"coordinator {self.process} ended by {error!r}"[:300]
        finally:
            if self.alive:
                self.kill()


@contextlib.contextmanager
def standing_in(loop: VirtualLoop, processes: dict[int, Process], seed: int) -> Iterator[None]:
    """Let the parts use the loop's time, threads and processes, inside the block."""

    def lives(pid: int, *which: Any) -> bool | None:
        process = processes.get(pid)
        return None if process is None else process.alive

    def getpid() -> int:
        process = PROCESS.get()
        return 1 if process is None else process.pid

    virtual = virtual_time(loop)
    jobpipe_registry.tree.registration_keeper._jitter.seed(seed)
    jobpipe_registry.tree.topic_changes._jitter.seed(seed)
    jobpipe_registry.node_watch._jitter.seed(seed)
    jobpipe.coordinator.registration.topic_claim._jitter.seed(seed)
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            mine = name.startswith(TIMED)
            if mine and getattr(module, "time", None) is time:
                stack.enter_context(mock.patch.object(module, "time", virtual))
        for module in (jobpipe_registry.tree.registration_keeper, jobpipe.publishing.coordinator_channel):
            stack.enter_context(mock.patch.object(module, "threading", virtual_threading(loop)))
        stack.enter_context(mock.patch.object(jobpipe_registry.tree.registration_keeper, "_KEEP_SECONDS", KEEP_SECONDS))
        stack.enter_context(mock.patch.object(jobpipe.coordinator.coordinator, "TICK_SECONDS", TICK_SECONDS))
        stack.enter_context(mock.patch.object(jobpipe.coordinator.coordinator, "LOOK_EVERY", 2))
        stands_in: dict[str, Any] = {
            "HostServers": _Hosts,
            "lives": lives,
            "is_alive": lambda host, *which: lives(*which),
            "this_process": lambda: {"host": "here", "started": 0.0, "pid": getpid()},
            "start_ticks": lambda pid: 1,
        }
        for name, module in list(sys.modules.items()):
            if name.startswith("jobpipe.coordinator"):
                for what in stands_in.keys() & vars(module).keys():
                    stack.enter_context(mock.patch.object(module, what, stands_in[what]))
                if getattr(module, "os", None) is os:
                    stack.enter_context(mock.patch.object(module, "os", Changed(os, getpid=getpid)))
        yield
