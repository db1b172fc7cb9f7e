"""The jobs of a namespace on a tree of nodes.

Orders, leases and end records are those of :mod:`jobpipe_registry.registry_jobs`. A lease is an attempt's right to run
its job. (The leases of a topic's log, which keep batches for a batch read, are another thing.) To change a lease, a
process first reads the order's node, then the lease's. Its transaction also writes the order's node, and fails if the
version of that node is no longer the one it has read. So if two processes decide at once, one of them gets a conflict
and must read again.

The version of the lease's node alone would not do: it starts again when the node is deleted and made again. But making
a lease also moves the order's version, so a lease that was deleted and made again is noticed. One exception: if the
order's node was made again as well, the versions may be the same.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jobpipe_registry.job_records import EndRecord, Lease, Order
from jobpipe_registry.names import Paths
from jobpipe_registry.node_watch import TreeWatch, Watch
from jobpipe_registry.nodes import Conflict, Create, Delete, Node, Nodes, Notify, Operation, SetData
from jobpipe_registry.registry_errors import LeaseHeld, NotOrdered, OrderChanged, RegistryError, Unavailable
from jobpipe_registry.registry_jobs import JobRecords, Jobs, LeaseLost, StateCallback
from jobpipe_registry.registry_options import RegistryOptions
from jobpipe_registry.tree.last_call_wins import LastCallWins
from jobpipe_registry.tree.topic_changes import attempts
from jobpipe_registry.tree.tree_reader import TreeReader

logger = logging.getLogger(__name__)

_KEEP_SECONDS = 10.0
_jitter = random.Random()  # noqa: S311 - own, so that our threads do not disturb a program that seeds the global one

_Key = tuple[str, str]


@dataclass(frozen=True)
class _Held:
    lease: Lease
    on_lost: LeaseLost


@dataclass(frozen=True)
class _Found:
    """The nodes of a job, and what they say."""

    order_node: Node | None
    lease_node: Node | None
    end_node: Node | None
    order: Order | None
    lease: Lease | None
    end: EndRecord | None

    @property
    def state(self) -> JobRecords:
        lease = self.lease if self.lease_node is not None and self.lease_node.session != 0 else None
        return JobRecords(self.order, lease, self.end, -1 if self.order_node is None else self.order_node.version)

    def names(self, run: str, attempt: int) -> bool:
        """Say whether the order names this attempt."""
        return self.order is not None and (self.order.run, self.order.attempt) == (run, attempt)


class TreeJobs(Jobs):
    """What one handler reads and writes. From its first lease until :meth:`stop`, a thread keeps its leases."""

    def __init__(
        self,
        nodes: Nodes,
        paths: Paths,
        reader: TreeReader,
        options: RegistryOptions,
        add: Callable[[TreeWatch[JobRecords]], None],
    ) -> None:
        self._nodes = nodes
        self._paths = paths
        self._reader = reader
        self._options = options
        self._add = add
        self._changing = threading.RLock()  # one change of a lease, or one pass of the thread, at a time
        self._state = threading.Lock()  # the fields below; never held during a call to the registry
        self._held: dict[_Key, _Held] = {}
        # leases that are no longer wanted, whose nodes may still be there; with the end record to write then
        self._leftovers: dict[_Key, tuple[Lease, EndRecord | None]] = {}
        self._asked: LastCallWins[_Key] = LastCallWins()  # by job: the last call of take_lease or release_lease decides
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stop = threading.Event()

    # reading

    def names(self) -> list[tuple[str, str]]:
        return self._reader.jobs()

    def state(self, pipeline: str, job: str) -> JobRecords:
        return self._read_job((pipeline, job)).state

    def watch(self, pipeline: str, job: str, callback: StateCallback) -> Watch:
        key = (pipeline, job)
        self._paths.job(*key)
        watch = TreeWatch(
            self._nodes, f"job {pipeline}/{job}", lambda notify: self._read_job(key, notify).state, callback
        )
        self._add(watch)
        return watch

    def _read_job(self, key: _Key, notify: Notify | None = None) -> _Found:
        """Return the nodes as they stood together.

        Making or removing a lease, and leaving an end record, moves the order's version. So if the version is the same
        before and after, what was read in between belongs together, with one exception. Two changes do not move the
        version: a session's end, which removes its lease, and :meth:`remove_end`. If both happen after we read the
        lease and before we read the end record, we return a lease that is gone, without the end record that was there
        at the same time. That does no harm: the record was of an earlier attempt than the one that had the lease.
        """
        path = self._paths.job(*key)
        paths = [path, f"{path}/lease", f"{path}/end", path]
        for _ in attempts(self._options.connect_timeout):
            if notify is None:
                order, lease, end, after = self._nodes.get_all(paths)
            else:
                # get registers `notify` for a missing node too; get_all does not promise that
                order, lease, end, after = (self._nodes.get(each, notify) for each in paths)
            if order == after:
                return _Found(
                    order,
                    lease,
                    end,
                    self._reader.decode(Order, paths[0], order),
                    self._reader.decode(Lease, paths[1], lease),
                    self._reader.decode(EndRecord, paths[2], end),
                )
        raise self._contended(key)

    # orders

    def set_order(self, pipeline: str, job: str, order: Order, version: int) -> int:
        path, data = self._paths.job(pipeline, job), order.to_bytes()
        if version < 0:
            self._nodes.ensure(self._paths.pipeline(pipeline))
        operation = Create(path, data, ephemeral=False) if version < 0 else SetData(path, data, version)
        try:
            self._nodes.commit([operation])
        except Conflict:
            node = self._nodes.get(path)
            if node is None or node.data != data or node.version != version + 1:
                raise OrderChanged(pipeline, job) from None
        return version + 1

    def remove_order(self, pipeline: str, job: str, version: int) -> None:
        path = self._paths.job(pipeline, job)
        found = self._read_job((pipeline, job))
        if found.order_node is None or found.order_node.version != version:
            raise OrderChanged(pipeline, job)
        if found.lease_node is not None and found.lease_node.session != 0:
            raise LeaseHeld(pipeline, job, found.lease)
        operations: list[Operation] = [
            Delete(f"{path}/{name}", node.version)
            for name, node in (("lease", found.lease_node), ("end", found.end_node))
            if node is not None
        ]
        try:
            self._nodes.commit([*operations, Delete(path, version)])
        except Conflict:
            if self._nodes.get(path) is not None:
                raise OrderChanged(pipeline, job) from None

    def remove_end(self, pipeline: str, job: str, end: EndRecord) -> None:
        path = f"{self._paths.job(pipeline, job)}/end"
        for _ in attempts(self._options.connect_timeout):
            node = self._nodes.get(path)
            if node is None or node.data != end.to_bytes():
                return
            try:
                self._nodes.commit([Delete(path, node.version)])
            except Conflict:
                continue
            return
        raise self._contended((pipeline, job))

    # leases

    def take_lease(self, pipeline: str, job: str, lease: Lease, on_lost: LeaseLost) -> None:
        key = (pipeline, job)
        call = self._asked.begin(key)
        with self._exclusive():
            if not self._asked.is_newest(key, call):
                return  # a newer call decides
            try:
                self._write(key, lease, asked=True)
            except Unavailable:
                with self._state:
                    if key not in self._held:
                        self._leftovers[key] = lease, None  # the answer is missing, the node may be there
                raise
            with self._state:
                if self._asked.is_newest(key, call):
                    self._held[key] = _Held(lease, on_lost)
                    self._leftovers.pop(key, None)
                else:
                    self._leftovers[key] = lease, None  # the newer call deals with it, or our thread
                if self._thread is None and not self._stop.is_set():
                    self._thread = threading.Thread(target=self._keep, name="registry-leases", daemon=True)
                    self._nodes.listen(self._notify)
                    self._thread.start()
        self._notify()

    def release_lease(self, pipeline: str, job: str, end: EndRecord | None = None) -> None:
        key = (pipeline, job)
        call = self._asked.begin(key)
        try:
            with self._exclusive():
                lease = self._ours(key)
                if lease is not None and self._asked.is_newest(key, call):  # otherwise a newer call decides
                    self._remove(key, lease, end)
                    with self._state:
                        self._held.pop(key, None)
                        self._leftovers.pop(key, None)
        except Unavailable:
            lease = self._ours(key)
            with self._state:
                if lease is not None and self._asked.is_newest(key, call):
                    self._held.pop(key, None)  # our thread must not take it again
                    self._leftovers[key] = lease, end
            raise
        self._asked.end(key, call)

    def _ours(self, key: _Key) -> Lease | None:
        with self._state:
            held, leftovers = self._held.get(key), self._leftovers.get(key)
        return held.lease if held is not None else None if leftovers is None else leftovers[0]

    def evict_lease(self, pipeline: str, job: str, instance: str) -> None:
        key, path = (pipeline, job), self._paths.job(pipeline, job)
        for _ in attempts(self._options.connect_timeout):
            found = self._read_job(key)
            if found.lease_node is None or found.lease is None or found.lease.instance != instance:
                return
            if self._commit(path, found, [Delete(f"{path}/lease", found.lease_node.version)]):
                return
        raise self._contended(key)

    def _write(self, key: _Key, lease: Lease, *, asked: bool) -> None:
        path, data = self._paths.job(*key), lease.to_bytes()
        for _ in attempts(self._options.connect_timeout):
            found = self._read_job(key)
            if not found.names(lease.run, lease.attempt):
                raise NotOrdered(*key, _ordered(found.order))
            node, operations = found.lease_node, []
            if node is not None:
                if node.session == self._nodes.session and node.data == data:
                    return
                # A persistent node (session 0) is no valid lease: replace it, too.
                ours = self._nodes.had_session(node.session) or node.session == 0
                same = found.lease is not None and found.lease.instance == lease.instance and asked
                if not ours and not same:
                    raise LeaseHeld(*key, found.lease)
                operations.append(Delete(f"{path}/lease", node.version))
            if self._commit(path, found, [*operations, Create(f"{path}/lease", data)]):
                return
        raise self._contended(key)

    def _remove(self, key: _Key, lease: Lease, end: EndRecord | None) -> None:
        """Delete a lease of ours, and leave an end record in the same step."""
        path = self._paths.job(*key)
        data = None if end is None else end.to_bytes()
        for _ in attempts(self._options.connect_timeout):
            found = self._read_job(key)
            node, before = found.lease_node, found.end_node
            ours = node is not None and self._nodes.had_session(node.session)
            if not ours and (data is None or (before is not None and before.data == data)):
                return  # nothing is left to do; perhaps our earlier commit succeeded and only its answer was lost
            if not ours and (node is not None or not found.names(lease.run, lease.attempt)):
                raise NotOrdered(*key, _ordered(found.order))
            operations: list[Operation] = []
            if node is not None:
                operations.append(Delete(f"{path}/lease", node.version))
            if data is not None and before is None:
                operations.append(Create(f"{path}/end", data, ephemeral=False))
            elif data is not None and before is not None:
                operations.append(SetData(f"{path}/end", data, before.version))
            if self._commit(path, found, operations):
                return
        raise self._contended(key)

    def _commit(self, path: str, found: _Found, operations: list[Operation]) -> bool:
        """Commit, and raise the version of the order's node; return False if the nodes have changed since ``found``."""
        guard = found.order_node
        if guard is not None:
            operations = [SetData(path, guard.data, guard.version), *operations]
        try:
            self._nodes.commit(operations)
        except Conflict:
            return False
        return True

    def _contended(self, key: _Key) -> Unavailable:
        return Unavailable(self._options.connect, f"job {'/'.join(key)} kept changing")

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the lock of changes; raise Unavailable if another change holds it for too long."""
        if not self._changing.acquire(timeout=self._options.connect_timeout + 1.0):
            raise Unavailable(self._options.connect, "another change by this handler still waits for an answer")
        try:
            yield
        finally:
            self._changing.release()

    # the thread

    def stop(self) -> None:
        """Let the thread begin no further pass. Does not wait."""
        self._stop.set()
        self._wake.set()
        self._nodes.unlisten(self._notify)

    def join(self, timeout: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def withdraw(self) -> None:
        """Remove the held leases without writing end records. Remove the debris, and write its end records."""
        with self._exclusive():
            with self._state:
                ours = [*self._leftovers.items(), *((key, (held.lease, None)) for key, held in self._held.items())]
                self._held.clear()
                self._leftovers.clear()
                self._asked.clear()
            for key, (lease, end) in ours:
                self._clear_away(key, lease, end)

    def _notify(self, _: object = None) -> None:
        self._wake.set()

    def _keep(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            lost: list[tuple[_Held, str]] = []
            try:
                with self._exclusive():
                    self._repair(lost)
            except RegistryError as error:
                if not self._stop.is_set():
                    logger.warning("cannot look after our leases: %s", error)
            for held, why in lost:
                try:
                    held.on_lost(why)
                except Exception:
                    logger.exception("on_lost of a lease failed")
            self._wake.wait(_KEEP_SECONDS * _jitter.uniform(0.8, 1.2))

    def _repair(self, lost: list[tuple[_Held, str]]) -> None:
        """Take again those of our leases that are missing, and remove the debris.

        Append to ``lost`` each lease that another instance has, or that the order no longer allows.
        """
        with self._state:
            held, leftovers = dict(self._held), dict(self._leftovers)
        for key, each in held.items():
            try:
                self._write(key, each.lease, asked=False)
            except (NotOrdered, LeaseHeld) as error:
                with self._state:
                    if self._held.get(key) is each:
                        del self._held[key]
                        lost.append((each, str(error)))
                continue
            self._nodes.get(f"{self._paths.job(*key)}/lease", self._notify)
        for key, (lease, end) in leftovers.items():
            self._clear_away(key, lease, end)
            with self._state:
                self._leftovers.pop(key, None)

    def _clear_away(self, key: _Key, lease: Lease, end: EndRecord | None) -> None:
        try:
            self._remove(key, lease, end)
        except NotOrdered as error:
            logger.info("job %s: its end is not noted: %s", "/".join(key), error)


def _ordered(order: Order | None) -> str:
    if order is None:
        return "there is no order for the job"
    return f"attempt {order.attempt} of run {order.run} may run"
