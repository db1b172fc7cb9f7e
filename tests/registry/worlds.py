"""The two worlds the contract suite runs in, each with the faults that only its owner can cause."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient

from jobpipe_registry.handler import RegisterServerHandler
from jobpipe_registry.memory import MemoryRegisterServerHandler, MemoryTree
from jobpipe_registry.topic_records import OwnerRecord, RegisterRecord
from jobpipe_registry.zookeeper.zookeeper_handler import ZooKeeperRegisterServerHandler

DEADLINE = 15.0


def eventually(question: Callable[[], Any]) -> Any:
    """Return the first true answer; fail after the deadline."""
    deadline = time.monotonic() + DEADLINE
    while not (answer := question()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)
    return answer


def record(index: int = 1, *, epoch: int = 1, instance: str = "a", parallelism: int = 4, port: int = 28444) -> Any:
    return RegisterRecord(
        host="127.0.0.1",
        port=port,
        parallelism=parallelism,
        index=index,
        coordinator=f"127.0.0.1:{port}",
        data=f"127.0.0.1:{port + 1}",
        epoch=epoch,
        instance=instance,
        ssl=True,
    )


def owner(instance: str = "a", *, epoch: int = 1, name: str = "job") -> OwnerRecord:
    return OwnerRecord("host-1", 4711, 1.5e9, "127.0.0.1:28444", epoch, instance, name)


class Recorder:
    """A watch's callback that remembers and can be waited for."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.lists: list[list[RegisterRecord]] = []
        self.overlaps = 0
        self._inside = False

    def __call__(self, records: list[RegisterRecord]) -> None:
        with self._condition:
            self.overlaps += self._inside
            self._inside = True
        with self._condition:
            self.lists.append(records)
            self._inside = False
            self._condition.notify_all()

    def wait(self, wanted: list[RegisterRecord]) -> None:
        with self._condition:
            assert self._condition.wait_for(lambda: self.lists and self.lists[-1] == wanted, DEADLINE), self.lists

    def wait_count(self, count: int) -> None:
        with self._condition:
            assert self._condition.wait_for(lambda: len(self.lists) >= count, DEADLINE), self.lists


class World(ABC):
    """Handlers that see each other, below a namespace of their own."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.handlers: list[RegisterServerHandler] = []

    def handler(self, *, start: bool = True) -> Any:
        handler = self._make()
        self.handlers.append(handler)
        if start:
            handler.start(self.options())
        return handler

    def topic_path(self, topic: str) -> str:
        return f"{self.namespace}/{topic}"

    def close(self) -> None:
        for handler in self.handlers:
            handler.shutdown()

    @abstractmethod
    def options(self) -> dict[str, str]: ...

    @abstractmethod
    def _make(self) -> RegisterServerHandler: ...

    @abstractmethod
    def expire(self, handler: Any) -> None:
        """End the handler's session; it gets another one in its own time."""

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a persistent node, as a foreign program would."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a node and all below it."""

    @abstractmethod
    def is_ephemeral(self, path: str) -> bool:
        """Say whether a session holds the node; False also if there is none."""


class MemoryWorld(World):
    def __init__(self, namespace: str) -> None:
        super().__init__(namespace)
        self.tree = MemoryTree()

    def options(self) -> dict[str, str]:
        return {"topic.storage": self.namespace, "connect.timeout": "5"}

    def _make(self) -> RegisterServerHandler:
        return MemoryRegisterServerHandler(self.tree)

    def expire(self, handler: Any) -> None:
        self.tree.expire(handler)

    def put(self, path: str, data: bytes) -> None:
        self.tree.put(path, data)

    def delete(self, path: str) -> None:
        self.tree.delete(path)

    def is_ephemeral(self, path: str) -> bool:
        node = self.tree.get(path, None)
        return node is not None and node.session != 0


class ZooKeeperWorld(World):
    def __init__(self, namespace: str, hosts: str, foreign: KazooClient) -> None:
        super().__init__(namespace)
        self.hosts = hosts
        self.foreign = foreign

    def options(self) -> dict[str, str]:
        return {
            "connect": self.hosts,
            "topic.storage": self.namespace,
            "session.timeout": "4",
            "connect.timeout": "5",
        }

    def _make(self) -> RegisterServerHandler:
        return ZooKeeperRegisterServerHandler()

    @staticmethod
    def client_of(handler: Any) -> Any:
        """The kazoo client inside a handler."""
        return handler._started.nodes._session._client

    def expire(self, handler: Any) -> None:
        client_id = eventually(lambda: self.client_of(handler).client_id)
        twin = KazooClient(hosts=self.hosts, timeout=4.0, client_id=client_id)
        twin.start()
        twin.stop()
        twin.close()

    def put(self, path: str, data: bytes) -> None:
        if self.foreign.exists(path):
            self.foreign.set(path, data)
        else:
            self.foreign.create(path, data, makepath=True)

    def delete(self, path: str) -> None:
        self.foreign.delete(path, recursive=True)

    def is_ephemeral(self, path: str) -> bool:
        stat = self.foreign.exists(path)
        return stat is not None and stat.ephemeralOwner != 0
