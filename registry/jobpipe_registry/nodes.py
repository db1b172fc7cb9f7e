"""The little that a registry needs of a coordination service: nodes, sessions, atomic changes, one-shot notices.

:mod:`.tree` builds the whole registry on this interface; :mod:`.memory` and :mod:`.zookeeper`
implement it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Notify = Callable[[object], None]
"""Must return at once: it only sets an event. The argument says nothing. Equal callables are kept once per node."""


@dataclass(frozen=True)
class Node:
    """A node as it was read. ``session`` is 0 for a persistent one; ``serial`` differs for each making of a node.

    Of data that are too long for any node of ours there is only the beginning, long enough to tell.
    """

    data: bytes
    version: int
    session: int
    serial: int


@dataclass(frozen=True)
class Folder:
    """What is below a node: the names, in any order. ``serial`` changes when one of them is made or deleted."""

    names: tuple[str, ...]
    serial: int


@dataclass(frozen=True)
class Create:
    path: str
    data: bytes
    ephemeral: bool = True


@dataclass(frozen=True)
class SetData:
    path: str
    data: bytes
    version: int


@dataclass(frozen=True)
class Delete:
    path: str
    version: int = -1


Operation = Create | SetData | Delete


class Conflict(Exception):
    """The tree is not as the commit supposed: a node exists, is missing, has another version or has children."""


class Nodes(ABC):
    """One session with a tree of nodes. All but ``close`` raise ``Unavailable`` after a bounded time."""

    @property
    @abstractmethod
    def session(self) -> int:
        """The present session's id, never 0 once started."""

    @abstractmethod
    def had_session(self, session: int) -> bool:
        """Say whether this was a session of ours, the present one included."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether a call has a chance now."""

    @abstractmethod
    def limit(self, deadline: float) -> None:
        """Let no call wait past this moment of ``time.monotonic`` from now on."""

    @abstractmethod
    def listen(self, notify: Notify) -> None:
        """Call ``notify`` each time the session is ready again: notices may be lost and nodes gone."""

    @abstractmethod
    def unlisten(self, notify: Notify) -> None: ...

    @abstractmethod
    def get(self, path: str, notify: Notify | None = None) -> Node | None:
        """Return the node, None if missing; ``notify`` once when it is made, changed or deleted."""

    @abstractmethod
    def get_all(self, paths: Sequence[str], notify: Notify | None = None) -> list[Node | None]:
        """Do :meth:`get` for many paths at once; a missing node needs no notice here: its parent gives it."""

    @abstractmethod
    def folder(self, path: str, notify: Notify | None = None) -> Folder | None:
        """Return what is below a node, None if it is missing; ``notify`` once when that changes."""

    @abstractmethod
    def folders(self, paths: Sequence[str]) -> list[Folder | None]:
        """Do :meth:`folder` for many paths at once."""

    def children(self, path: str) -> tuple[str, ...] | None:
        """Return the names below a node, None if it is missing."""
        found = self.folder(path)
        return None if found is None else found.names

    @abstractmethod
    def ensure(self, path: str) -> None:
        """Make a persistent node and its parents where missing."""

    @abstractmethod
    def commit(self, operations: Sequence[Operation]) -> None:
        """Do all operations or none.

        An answer may get lost and the commit be tried again, so a conflict may come from our own first attempt: read
        again, and compare sessions.

        Raises:
            Conflict: read and decide again.
        """

    @abstractmethod
    def close(self, timeout: float) -> None:
        """End the session and its threads within ``timeout`` seconds. Raises nothing."""
