"""The registry on ZooKeeper, through kazoo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError, ZookeeperError
from kazoo.security import OPEN_ACL_UNSAFE

from registry.errors import Unavailable
from registry.nodes import Conflict, Create, Node, Nodes, Notify, Operation, SetData
from registry.options import Options
from registry.session import Session
from registry.tree import TreeHandler

__all__ = ["ZooKeeperRegisterServerHandler"]


def node_acl() -> list[Any]:
    """Return the ACL of every node we make. ZooKeeper inherits none, so each create passes it."""
    return list(OPEN_ACL_UNSAFE)


class _ZooKeeperNodes(Nodes):
    def __init__(self, options: Options) -> None:
        self._hosts = options.connect
        self._session = Session(options)
        self._acl = node_acl()

    def start(self) -> None:
        self._session.start()

    @property
    def session(self) -> int:
        return self._session.session

    def had_session(self, session: int) -> bool:
        return self._session.had_session(session)

    @property
    def ready(self) -> bool:
        return self._session.ready

    def limit(self, deadline: float) -> None:
        self._session.limit(deadline)

    def listen(self, notify: Notify) -> None:
        self._session.listen(notify)

    def unlisten(self, notify: Notify) -> None:
        self._session.unlisten(notify)

    def close(self, timeout: float) -> None:
        self._session.close(timeout)

    def get(self, path: str, notify: Notify | None = None) -> Node | None:
        def read(client: Any, timeout: float) -> Node | None:
            while True:
                try:
                    return _node(*client.get_async(path, watch=notify).get(timeout=timeout))
                except NoNodeError:
                    if notify is None or client.exists_async(path, watch=notify).get(timeout=timeout) is None:
                        return None  # made between the two: read again

        return self._session.call(read)

    def get_all(self, paths: Sequence[str], notify: Notify | None = None) -> list[Node | None]:
        def read(client: Any, timeout: float) -> list[Node | None]:
            answers = [client.get_async(path, watch=notify) for path in paths]  # pipelined
            found: list[Node | None] = []
            for answer in answers:
                try:
                    found.append(_node(*answer.get(timeout=timeout)))
                except NoNodeError:
                    found.append(None)
            return found

        return self._session.call(read) if paths else []

    def children(self, path: str, notify: Notify | None = None) -> list[str] | None:
        def read(client: Any, timeout: float) -> list[str] | None:
            while True:
                try:
                    return list(client.get_children_async(path, watch=notify).get(timeout=timeout))
                except NoNodeError:
                    if notify is None or client.exists_async(path, watch=notify).get(timeout=timeout) is None:
                        return None

        return self._session.call(read)

    def ensure(self, path: str) -> None:
        parts = path.split("/")
        ancestors = ["/".join(parts[:length]) for length in range(2, len(parts) + 1)]

        def make(client: Any, timeout: float) -> None:
            if client.exists_async(path).get(timeout=timeout) is not None:
                return  # the ancestors may forbid us to create
            for ancestor in ancestors:
                try:
                    client.create_async(ancestor, b"", acl=self._acl).get(timeout=timeout)
                except NodeExistsError:
                    continue
                except NoAuthError:
                    if client.exists_async(ancestor).get(timeout=timeout) is None:
                        raise

        self._session.call(make)

    def commit(self, operations: Sequence[Operation]) -> None:
        def change(client: Any, timeout: float) -> list[Any]:
            transaction = client.transaction()
            for operation in operations:
                if isinstance(operation, Create):
                    transaction.create(operation.path, operation.data, acl=self._acl, ephemeral=operation.ephemeral)
                elif isinstance(operation, SetData):
                    transaction.set_data(operation.path, operation.data, operation.version)
                else:
                    transaction.delete(operation.path, operation.version)
            return list(transaction.commit_async().get(timeout=timeout))

        failed = [answer for answer in self._session.call(change) if isinstance(answer, ZookeeperError)]
        if any(isinstance(answer, NoAuthError) for answer in failed):
            raise Unavailable(self._hosts, "no permission (ACL)")
        if failed:
            raise Conflict(", ".join(type(answer).__name__ for answer in failed))


class ZooKeeperRegisterServerHandler(TreeHandler):
    """The registry on the ensemble named by ``connect``: "host:port,host:port", with a chroot if there is one."""

    def _open(self, options: Options) -> Nodes:
        nodes = _ZooKeeperNodes(options)
        nodes.start()
        return nodes


def _node(data: bytes | None, stat: Any) -> Node:
    return Node(data or b"", stat.version, stat.ephemeralOwner or 0, stat.czxid)
