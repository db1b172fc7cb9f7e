"""The registry on ZooKeeper, through kazoo."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from kazoo.exceptions import InvalidACLError, NoAuthError, NodeExistsError, NoNodeError, ZookeeperError

from jobpipe_registry.nodes import Conflict, Create, Folder, Node, Nodes, Notify, Operation, SetData
from jobpipe_registry.registry_errors import RegistryError
from jobpipe_registry.registry_options import RegistryOptions
from jobpipe_registry.topic_records import MAX_RECORD_BYTES
from jobpipe_registry.tree.tree_handler import TreeHandler
from jobpipe_registry.zookeeper.acl import ExposedNode, exposed, to_kazoo
from jobpipe_registry.zookeeper.kazoo_client import check_options
from jobpipe_registry.zookeeper.zookeeper_session import ZooKeeperSession

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PIPELINED = 64  # requests; each answer may have 1 MiB, which others wrote


class _ZooKeeperNodes(Nodes):
    def __init__(self, options: RegistryOptions) -> None:
        self._session = ZooKeeperSession(options)
        self._grants = options.acl
        self._acl = to_kazoo(options.acl)  # of every node we make: ZooKeeper inherits none, so each create passes it

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
        return self._pipelined(paths, lambda client, path: client.get_async(path, watch=notify), _node)

    def folders(self, paths: Sequence[str]) -> list[Folder | None]:
        return self._pipelined(paths, lambda client, path: client.get_children_async(path, include_data=True), _folder)

    def _pipelined(
        self, paths: Sequence[str], ask: Callable[[Any, str], Any], made: Callable[..., T]
    ) -> list[T | None]:
        """Ask for many paths at once; return what ``made`` makes of each answer, None for a missing node."""

        def read(client: Any, timeout: float) -> list[T | None]:
            found: list[T | None] = []
            for first in range(0, len(paths), _PIPELINED):
                for answer in [ask(client, path) for path in paths[first : first + _PIPELINED]]:
                    try:
                        found.append(made(*answer.get(timeout=timeout)))
                    except NoNodeError:
                        found.append(None)
            return found

        return self._session.call(read) if paths else []

    def folder(self, path: str, notify: Notify | None = None) -> Folder | None:
        def read(client: Any, timeout: float) -> Folder | None:
            while True:
                try:
                    answer = client.get_children_async(path, watch=notify, include_data=True)
                    return _folder(*answer.get(timeout=timeout))
                except NoNodeError:
                    if notify is None or client.exists_async(path, watch=notify).get(timeout=timeout) is None:
                        return None

        return self._session.call(read)

    def ensure(self, path: str) -> None:
        def make(client: Any, timeout: float) -> None:
            if client.exists_async(path).get(timeout=timeout) is not None:
                return  # the ancestors may forbid us to create
            with contextlib.suppress(NoNodeError, NodeExistsError):
                client.create_async(path, b"", acl=self._acl).get(timeout=timeout)
                return
            for ancestor in _ancestors(path):
                try:
                    client.create_async(ancestor, b"", acl=self._acl).get(timeout=timeout)
                except NodeExistsError:
                    continue
                except NoAuthError:
                    if client.exists_async(ancestor).get(timeout=timeout) is None:
                        raise

        self._session.call(make)

    def walk(self, path: str) -> Iterator[str]:
        """Yield the path and those of all nodes below it, as far as we may see them."""

        def read(client: Any, timeout: float) -> list[str]:
            try:
                return list(client.get_children_async(path).get(timeout=timeout))
            except (NoNodeError, NoAuthError):
                return []

        yield path
        for name in self._session.call(read):
            yield from self.walk(f"{path}/{name}")

    def exposed(self, path: str) -> ExposedNode | None:
        """Compare a node's ACL with ours; None, too, if it is gone."""

        def read(client: Any, timeout: float) -> list[Any]:
            try:
                return list(client.get_acls_async(path).get(timeout=timeout)[0])
            except (NoNodeError, NoAuthError):  # what we may not even look at, strangers may not either
                return []

        return exposed(path, self._session.call(read), self._grants)

    def protect(self, path: str) -> None:
        def change(client: Any, timeout: float) -> None:
            with contextlib.suppress(NoNodeError):
                client.set_acls_async(path, self._acl).get(timeout=timeout)

        self._session.call(change)

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
        for answer in failed:
            if isinstance(answer, NoAuthError | InvalidACLError):
                raise self._session.refused(answer)
        if failed:
            raise Conflict(", ".join(type(answer).__name__ for answer in failed))


class ZooKeeperRegisterServerHandler(TreeHandler):
    """The registry on the ensemble named by ``connect``: "host:port,host:port", with a chroot if there is one."""

    def _open(self, options: RegistryOptions) -> Nodes:
        check_options(options)
        nodes = _ZooKeeperNodes(options)
        nodes.start()
        return nodes

    def _before_first_node(self) -> None:
        """Warn of strangers who may change what we are about to rely on."""
        try:
            for node in self.exposed_nodes(deep=False):
                if node.writable:
                    text = "strangers may change %s (permissions %s), for example one made before the ACL was set"
                    logger.warning(text, node.path, node.permissions)
        except RegistryError as error:
            logger.warning("cannot look at the ACLs: %s", error)

    def exposed_nodes(self, *, deep: bool = True) -> list[ExposedNode]:
        """Return the nodes with which strangers may do more than the option ``acl`` says.

        Strangers are those who prove nothing: ``world`` and ``ip``. Looked at are the namespace with what belongs to
        it, all nodes above it but the root, and with ``deep`` all that is below.

        Raises:
            Unavailable: no answer in time.
            NotStarted: as all methods.
        """
        parts = self._parts()
        nodes, paths = cast("_ZooKeeperNodes", parts.nodes), parts.paths
        roots = (paths.namespace, paths.owners, paths.epochs, paths.recoveries, paths.jobs)
        found = [path for root in roots for path in (nodes.walk(root) if deep else [root])]
        answers = [nodes.exposed(path) for path in (*_ancestors(paths.namespace)[:-1], *found)]
        return [answer for answer in answers if answer is not None]

    def protect(self, path: str) -> None:
        """Give a node the ACL of the option ``acl``; nothing happens if it is gone.

        Raises:
            Unavailable: no answer in time, or its present ACL does not let us.
            NotStarted: as all methods.
        """
        cast("_ZooKeeperNodes", self._parts().nodes).protect(path)


def _ancestors(path: str) -> list[str]:
    """Return the paths of a node's ancestors and of itself, the root left out."""
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(2, len(parts) + 1)]


def _folder(names: list[str], stat: Any) -> Folder:
    return Folder(tuple(names), stat.pzxid)


def _node(data: bytes | None, stat: Any) -> Node:
    return Node((data or b"")[: MAX_RECORD_BYTES + 1], stat.version, stat.ephemeralOwner or 0, stat.czxid)
