"""A registry inside this process: for tests, and for topics that never leave the process.

Handlers that share one :class:`MemoryTree` see each other; each is one session.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from jobpipe_registry.nodes import Conflict, Create, Delete, Folder, Node, Nodes, Notify, Operation, SetData
from jobpipe_registry.registry_errors import NotStarted, Unavailable
from jobpipe_registry.registry_options import RegistryOptions
from jobpipe_registry.tree.tree_handler import TreeHandler


@dataclass
class _Waiting:
    """One-shot notices, as ZooKeeper's: per path, gone once given."""

    node: dict[str, set[Notify]] = field(default_factory=dict)
    children: dict[str, set[Notify]] = field(default_factory=dict)


class MemoryTree:
    """Nodes, their sessions and notices. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._nodes: dict[str, Node] = {}
        self._changed: dict[str, int] = {}  # by path: when a node below it was made or deleted last
        self._numbers = itertools.count(1)
        self._waiting = _Waiting()

    def expire(self, handler: MemoryRegisterServerHandler) -> None:
        """End the handler's session, as if the service had not heard of it for too long; it gets a new one."""
        handler.memory_nodes().expire()

    def put(self, path: str, data: bytes) -> None:
        """Write a persistent node as a foreign program would, whatever its content, and its parents where missing."""
        with self._lock:
            self.ensure(path.rpartition("/")[0])
            before = self._nodes.get(path)
            operation = Create(path, data, ephemeral=False) if before is None else SetData(path, data, before.version)
            self.commit([operation], 0)

    def ensure(self, path: str) -> None:
        """Make a persistent node and its parents where missing."""
        parts = path.split("/")
        for length in range(2, len(parts) + 1):
            with contextlib.suppress(Conflict):
                self.commit([Create("/".join(parts[:length]), b"", ephemeral=False)], 0)

    def delete(self, path: str) -> None:
        """Remove a node and all below it, as an operator would."""
        with self._lock:
            paths = [other for other in self._nodes if other == path or other.startswith(f"{path}/")]
            self.commit([Delete(other) for other in sorted(paths, key=len, reverse=True)], 0)

    def new_session(self) -> int:
        return next(self._numbers)

    def end_session(self, session: int) -> None:
        with self._lock:
            self.commit([Delete(path) for path, node in self._nodes.items() if node.session == session], session)

    def get(self, path: str, notify: Notify | None) -> Node | None:
        with self._lock:
            if notify is not None:
                self._waiting.node.setdefault(path, set()).add(notify)
            return self._nodes.get(path)

    def folder(self, path: str, notify: Notify | None) -> Folder | None:
        with self._lock:
            node = self._nodes.get(path)
            if notify is not None:
                where = self._waiting.node if node is None else self._waiting.children
                where.setdefault(path, set()).add(notify)
            return None if node is None else Folder(tuple(self._below(path)), self._changed.get(path, node.serial))

    def commit(self, operations: Sequence[Operation], session: int) -> None:
        """Do all or nothing, then give the notices. Raises Conflict."""
        with self._lock:
            before = dict(self._nodes)
            try:
                for operation in operations:
                    self._do(operation, session)
            except Conflict:
                self._nodes = before
                raise
            told: set[Notify] = set()
            for operation in operations:
                if not isinstance(operation, SetData):
                    self._changed[_parent(operation.path)] = next(self._numbers)
                if isinstance(operation, Delete):
                    self._changed.pop(operation.path, None)
                told |= self._waiting.node.pop(operation.path, set())
                if not isinstance(operation, SetData):
                    told |= self._waiting.children.pop(_parent(operation.path), set())
                if isinstance(operation, Delete):
                    told |= self._waiting.children.pop(operation.path, set())
        for notify in told:
            notify(None)

    def _do(self, operation: Operation, session: int) -> None:
        path = operation.path
        node = self._nodes.get(path)
        if isinstance(operation, Create):
            if node is not None or (_parent(path) and _parent(path) not in self._nodes):
                raise Conflict(path)
            owner = session if operation.ephemeral else 0
            self._nodes[path] = Node(operation.data, 0, owner, next(self._numbers))
            return
        if node is None or operation.version not in (-1, node.version):
            raise Conflict(path)
        if isinstance(operation, SetData):
            self._nodes[path] = Node(operation.data, node.version + 1, node.session, node.serial)
        elif self._below(path):
            raise Conflict(path)
        else:
            del self._nodes[path]

    def _below(self, path: str) -> list[str]:
        start = f"{path}/"
        return [
            other[len(start) :] for other in self._nodes if other.startswith(start) and "/" not in other[len(start) :]
        ]


class _MemoryNodes(Nodes):
    def __init__(self, tree: MemoryTree) -> None:
        self._tree = tree
        self._sessions = [tree.new_session()]
        self._listeners: set[Notify] = set()
        self._closed = False

    @property
    def session(self) -> int:
        return self._sessions[-1]

    def had_session(self, session: int) -> bool:
        return session in self._sessions

    @property
    def ready(self) -> bool:
        return not self._closed

    def limit(self, deadline: float) -> None:
        pass  # nothing here ever waits

    def listen(self, notify: Notify) -> None:
        self._listeners.add(notify)

    def unlisten(self, notify: Notify) -> None:
        self._listeners.discard(notify)

    def expire(self) -> None:
        ended = self.session
        self._sessions.append(self._tree.new_session())
        self._tree.end_session(ended)
        for notify in list(self._listeners):
            notify(None)

    def get(self, path: str, notify: Notify | None = None) -> Node | None:
        return self._tree.get(path, notify)

    def get_all(self, paths: Sequence[str], notify: Notify | None = None) -> list[Node | None]:
        return [self._tree.get(path, notify) for path in paths]

    def folder(self, path: str, notify: Notify | None = None) -> Folder | None:
        return self._tree.folder(path, notify)

    def folders(self, paths: Sequence[str]) -> list[Folder | None]:
        return [self._tree.folder(path, None) for path in paths]

    def ensure(self, path: str) -> None:
        self._tree.ensure(path)

    def commit(self, operations: Sequence[Operation]) -> None:
        if self._closed:
            raise Unavailable("memory", "the session was closed")
        self._tree.commit(operations, self.session)

    def close(self, timeout: float) -> None:
        self._closed = True
        self._tree.end_session(self.session)


class MemoryRegisterServerHandler(TreeHandler):
    """The registry in memory; without a ``tree`` it is alone. ``connect`` and the time-outs mean nothing here."""

    def __init__(self, tree: MemoryTree | None = None) -> None:
        super().__init__()
        self._tree = tree if tree is not None else MemoryTree()
        self._memory_nodes: _MemoryNodes | None = None

    def _open(self, options: RegistryOptions) -> Nodes:
        self._memory_nodes = _MemoryNodes(self._tree)
        return self._memory_nodes

    def memory_nodes(self) -> _MemoryNodes:
        if self._memory_nodes is None:
            raise NotStarted("the handler is not started")
        return self._memory_nodes


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
