"""A coordinator inside the test's process: registry in memory, no server, no data process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from jobpipe.config import Config, load
from jobpipe.coordinator.coordinator import Coordinator
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.coordinator.topic_liveness import WatchedParent
from jobpipe.net.address import Endpoint
from jobpipe.operations.publisher_operations import OpenRequest
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.seal import NewBatch
from jobpipe_registry.memory import MemoryRegisterServerHandler, MemoryTree
from tests.store.build import SCHEMA, rows, written

R = TypeVar("R")
NAMESPACE = "/test/topics"
DEADLINE = 20.0


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run a test's coroutine, with a deadline."""

    async def limited() -> R:
        async with asyncio.timeout(DEADLINE):
            return await work

    return asyncio.run(limited())


async def until(condition: Callable[[], Any]) -> Any:
    """Wait until the condition holds; the deadline is the caller's."""
    while not (value := condition()):  # noqa: ASYNC110 - of threads and other tasks, which set no event of ours
        await asyncio.sleep(0.005)
    return value


class World:
    """A registry that all coordinators of a test share, and a folder for their spools."""

    def __init__(self, folder: Path) -> None:
        self.tree = MemoryTree()
        self.folder = folder
        self.handlers: list[MemoryRegisterServerHandler] = []
        self.hosts: list[Coordinator] = []

    def config(self, **changes: str) -> Config:
        """Return a configuration; each folder is a host of its own."""
        keys = {
            "jobpipe.home": str(self.folder / "home"),
            "jobpipe.registerserver.topic.storage": NAMESPACE,
            "jobpipe.registerserver.session.timeout": "4s",
            "jobpipe.spool.dir": str(self.folder / "spool"),
            "jobpipe.spool.fsync": "false",
        }
        named = {f"jobpipe.{name.replace('__', '.')}": value for name, value in changes.items()}
        return load(overrides={**keys, **named}, environ={})

    def handler(self) -> MemoryRegisterServerHandler:
        """Return a started session."""
        made = MemoryRegisterServerHandler(self.tree)
        made.start({"topic.storage": NAMESPACE, "connect.timeout": "5"})
        self.handlers.append(made)
        return made

    def host(self, instance: str = "one", *, parent: WatchedParent | None = None, **changes: str) -> Coordinator:
        """Return a coordinator without a server. Inside a running loop."""
        data = SimpleNamespace(
            endpoint=Endpoint("127.0.0.1", 2),
            alive=True,
            announce_topic=lambda *_: None,
            announce_hosts=lambda *_: None,
        )
        host = Coordinator(
            self.config(**changes),
            self.handler(),
            control=Endpoint("127.0.0.1", 1),
            data=cast("Any", data),
            parent=parent,
            instance=instance,
        )
        self.hosts.append(host)
        return host

    def order(self, name: str = "job", required: tuple[str, ...] = (), **changes: str) -> OpenRequest:
        """Return the arguments of a publisher's ``open``."""
        return OpenRequest(name=name, parallelism=2, config=self.config(**changes), required=required)

    def close(self) -> None:
        """End all sessions; close the catalogs of coordinators that were left as if killed."""
        for topic in (each for host in self.hosts for each in host.topics.values()):
            topic.store._db.close()
        for handler in self.handlers:
            handler.shutdown()


async def seal(topic: ServedTopic, number: int, count: int = 1) -> Position:
    """Seal a batch of one query, with so many rows."""
    write_id, segments = await topic.run(written, topic.store, [(0, rows(0, number * 100, count))])
    batch = NewBatch("q", number, f"run-{number}", write_id, None, 2, "as they come")
    return (await topic.seal(batch, segments, (SCHEMA.serialize().to_pybytes(), None)))[0]


class Gate:
    """Holds a thread at a call until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.calls = 0

    def wrap(self, call: Callable[..., R], *, after: bool = False) -> Callable[..., R]:
        """Return ``call`` with the gate before, or after, its first run."""

        def gated(*args: Any, **kwargs: Any) -> R:
            self.calls += 1
            first = self.calls == 1
            result = call(*args, **kwargs) if after or not first else None
            if first:
                self.reached.set()
                assert self.go_on.wait(DEADLINE)
            return cast("R", result) if after or not first else call(*args, **kwargs)

        return gated

    async def arrived(self) -> None:
        """Wait until a thread stands at the gate."""
        await until(self.reached.is_set)
