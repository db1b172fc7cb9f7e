"""Change a topic's owner, registrations and epoch, so that no two sessions ever undo each other's work unseen.

Each change moves the version of the topic's epoch node, the *guard*, in the same transaction. Versions of a node begin
at 0 again when it is recreated, so "delete version 0" alone could hit the node of a successor; the guard's cannot.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from jobpipe_registry.names import Paths, child_name
from jobpipe_registry.nodes import Conflict, Create, Delete, Node, Nodes, Operation, SetData
from jobpipe_registry.registry_errors import BadRecord, TopicOwned, Unavailable
from jobpipe_registry.registry_options import RegistryOptions
from jobpipe_registry.topic_records import (
    MAX_EPOCH,
    MAX_RECORD_BYTES,
    MAX_STEP,
    OwnerRecord,
    RegisterRecord,
    parse_epoch,
)
from jobpipe_registry.tree.tree_reader import TreeReader

T = TypeVar("T")

_STEP_OPERATIONS = 500  # and a step's bytes: ZooKeeper takes requests of up to 1 MiB
_STEP_BYTES = 512 << 10
_NODE_BYTES = 1 << 10  # of a node besides its data: its path, its ACL
_jitter = random.Random()  # noqa: S311 - own, so that our threads do not disturb a program that seeds the global one


class TopicChanges:
    """Writes of one session. One at a time: the caller's duty. All raise Unavailable."""

    def __init__(self, nodes: Nodes, paths: Paths, reader: TreeReader, options: RegistryOptions) -> None:
        self._nodes = nodes
        self._paths = paths
        self._reader = reader
        self._hosts = options.connect
        self._timeout = options.connect_timeout

    def evict(self, topic: str, instance: str) -> None:
        """Delete the claim and the registrations of an instance."""
        path = self._paths.owner(topic)

        def decide() -> list[Operation]:
            operations: list[Operation] = []
            node = self._nodes.get(path)
            owner = self._reader.decode_owner(path, node)
            if node is not None and owner is not None and owner.instance == instance:
                operations.append(Delete(path, node.version))
            for child, found, record in self._reader.registrations(topic):
                if record.instance == instance:
                    operations.append(Delete(child, found.version))
            return operations

        if decide():
            self._commit(topic, decide)

    def next_epoch(self, topic: str, at_least: int) -> int:
        """Raise the epoch to at least ``at_least``, and by 1 at least."""
        for _ in attempts(self._timeout):
            guard = self._guard(topic)
            epoch = max(parse_epoch(guard.data) + 1, at_least)
            if epoch > MAX_EPOCH:
                raise BadRecord("epoch", f"at most {MAX_EPOCH}")
            try:
                self._nodes.commit([SetData(self._paths.epoch(topic), str(epoch).encode(), guard.version)])
            except Conflict:
                continue
            return epoch
        raise self._contended(topic)

    def repair_epoch(self, topic: str, epoch: int, *, remove_point: str | None = None) -> None:
        """Write the epoch over whatever its node holds, while the topic is not claimed; remove a recovery point."""
        path, claim = self._paths.epoch(topic), self._paths.owner(topic)
        for _ in attempts(self._timeout):
            guard = self._nodes.get(path)  # before the claim is looked at: a claim made since moves it
            owner = self._nodes.get(claim)
            if owner is not None and owner.session != 0:
                raise TopicOwned(topic, self._reader.decode_owner(claim, owner))
            data = str(epoch).encode()
            operations: list[Operation] = [
                Create(path, data, ephemeral=False) if guard is None else SetData(path, data, guard.version)
            ]
            if owner is not None:  # no session holds it: rubbish
                operations.append(Delete(claim, owner.version))
            point = None if remove_point is None else self._nodes.get(self._paths.recovery(topic))
            if point is not None and point_text(point.data) == remove_point:
                operations.append(Delete(self._paths.recovery(topic), point.version))
            try:
                self._nodes.commit(operations)
            except Conflict:
                self._nodes.ensure(self._paths.epochs)
                continue
            return
        raise self._contended(topic)

    def write_recovery_point(self, topic: str, epoch: int, data: bytes | None) -> None:
        """Replace the text; None removes it. Fenced: not against an epoch above ours."""
        if data is not None and len(data) > MAX_RECORD_BYTES:
            raise BadRecord("recovery point", f"at most {MAX_RECORD_BYTES} bytes")
        path = self._paths.recovery(topic)
        for _ in attempts(self._timeout):
            guard = self._guard(topic, epoch)
            if parse_epoch(guard.data) > epoch + MAX_STEP:
                raise BadRecord("epoch", f"at most {MAX_STEP} above {epoch}, which is the publisher's")
            if parse_epoch(guard.data) > epoch:
                raise TopicOwned(topic, self._reader.owner(topic))
            node = self._nodes.get(path)
            if (None if node is None else node.data) == data:
                return
            operations: list[Operation] = [SetData(self._paths.epoch(topic), guard.data, guard.version)]
            if node is None and data is not None:
                operations.append(Create(path, data, ephemeral=False))
            elif node is not None:
                operations.append(Delete(path, node.version) if data is None else SetData(path, data, node.version))
            try:
                self._nodes.commit(operations)
            except Conflict:
                self._nodes.ensure(self._paths.recoveries)  # it may have been deleted by hand
                continue
            return
        raise self._contended(topic)

    def forget(self, topic: str) -> None:
        """Delete the guard, and with it all nodes of a topic, unless another session has one there."""
        paths = [self._paths.owner(topic), self._paths.recovery(topic), self._paths.topic(topic)]
        for _ in attempts(self._timeout):
            guard = self._guard(topic)  # before the others are read: what comes after it moves the guard
            registered = self._reader.registrations(topic)
            nodes = self._nodes.get_all(paths)
            if registered or (nodes[0] is not None and not self._nodes.had_session(nodes[0].session)):
                raise TopicOwned(topic, self._reader.owner(topic), registered[0][2] if registered else None)
            found = [Delete(path, node.version) for path, node in zip(paths, nodes, strict=True) if node is not None]
            try:
                self._nodes.commit([Delete(self._paths.epoch(topic), guard.version), *found])
            except Conflict:
                continue
            return
        raise self._contended(topic)

    def delete_topic(self, topic: str) -> bool:
        path = self._paths.topic(topic)
        others = False

        def decide() -> list[Operation]:
            nonlocal others
            names = self._nodes.children(path)
            if names is None:
                return []
            children = [f"{path}/{name}" for name in names]
            found = self._nodes.get_all(children)
            others = any(node is not None and not self._nodes.had_session(node.session) for node in found)
            if others:
                return []
            return [*(Delete(child) for child, node in zip(children, found, strict=True) if node), Delete(path)]

        if self._nodes.get(path) is not None:
            self._commit(topic, decide)
        return not others

    def write_registrations(self, topic: str, records: Sequence[RegisterRecord], *, asked: bool) -> None:
        """Register all in one step, so that readers hear of it once; in several if they are more than a request takes.

        Raises:
            TopicOwned: another one has a place; those of earlier steps stay registered.
        """
        for part in _in_steps(records, lambda record: (2, len(record.to_bytes()) + _NODE_BYTES)):
            self._commit(topic, partial(self._registering, topic, part, asked), 0 if asked else part[0].epoch)

    def _registering(self, topic: str, records: Sequence[RegisterRecord], asked: bool) -> list[Operation]:
        """Return what registers the records, given what is there."""
        found = self._nodes.children(self._paths.topic(topic))
        if found is None:
            self._nodes.ensure(self._paths.topic(topic))
        names = set(found or ())
        taken = [record for record in records if child_name(record.index) in names]
        nodes = self._nodes.get_all([self._paths.registration(topic, record.index) for record in taken])
        there = {record.index: node for record, node in zip(taken, nodes, strict=True) if node is not None}
        operations: list[Operation] = []
        for record in records:
            path, data, node = self._paths.registration(topic, record.index), record.to_bytes(), there.get(record.index)
            if node is None:
                operations.append(Create(path, data))
                continue
            if node.session != self._nodes.session:
                self._require_ours_to_replace(topic, path, node, record, asked)
            elif node.data == data:
                continue
            operations += [Delete(path, node.version), Create(path, data)]  # readers see no change of data in place
        return operations

    def _require_ours_to_replace(self, topic: str, path: str, node: Node, record: RegisterRecord, asked: bool) -> None:
        """Raise TopicOwned unless our record may take the place of what another session registered."""
        rival = self._reader.decode_registration(path, node, record.index)
        if not (
            self._nodes.had_session(node.session)
            or rival is None
            or rival.epoch < record.epoch
            or (rival.instance == record.instance and asked)
            or self._claimed(topic)
        ):
            raise TopicOwned(topic, self._reader.owner(topic), rival)

    def _claimed(self, topic: str) -> bool:
        """Say whether the topic's claim is ours: then a registration of another one is made up, whatever its epoch."""
        owner = self._nodes.get(self._paths.owner(topic))
        return owner is not None and owner.session == self._nodes.session

    def write_claim(self, topic: str, owner: OwnerRecord, *, asked: bool) -> None:
        path, data = self._paths.owner(topic), owner.to_bytes()

        def decide() -> list[Operation]:
            node = self._nodes.get(path)
            if node is None:
                return [Create(path, data)]
            if node.data == data and node.session == self._nodes.session:
                return []
            present = self._reader.decode_owner(path, node)
            if node.session == 0:  # no session holds it: rubbish, whatever it says
                return [Delete(path, node.version), Create(path, data)]
            ours = present is not None and present.instance == owner.instance
            if not ours or not (asked or self._nodes.had_session(node.session)):
                raise TopicOwned(topic, present)
            if node.session == self._nodes.session:
                return [SetData(path, data, node.version)]
            return [Delete(path, node.version), Create(path, data)]

        self._commit(topic, decide, 0 if asked else owner.epoch)

    def remove(self, topic: str, path: str) -> None:
        """Delete a node if a session of ours made it."""

        def decide() -> list[Operation]:
            node = self._nodes.get(path)
            if node is None or not self._nodes.had_session(node.session):
                return []
            return [Delete(path, node.version)]

        if not decide():
            return  # do not make a guard for nothing
        try:
            self._commit(topic, decide)
        except BadRecord:
            self._commit_unguarded(decide)

    def _commit_unguarded(self, decide: Callable[[], list[Operation]]) -> None:
        """Delete what ``decide`` wants although others have made the guard unreadable.

        Then no node can be recreated, so these are still those that we have read; and they must not keep the topic
        from being repaired.
        """
        if operations := decide():
            with contextlib.suppress(Conflict):
                self._nodes.commit(operations)

    def withdraw(self, topic: str, paths: Sequence[str]) -> bool:
        """Delete those of the nodes that sessions of ours made, and the topic's node if nothing else is in it.

        In one step, or in several if they are more than a request takes. Return whether the topic's node is gone.
        """
        folder = self._paths.topic(topic)
        others = more = False

        def decide() -> list[Operation]:
            nonlocal others, more
            names = self._nodes.children(folder)
            found = zip(paths, self._nodes.get_all(paths), strict=True)
            ours = {path: node for path, node in found if node and self._nodes.had_session(node.session)}
            others = any(f"{folder}/{name}" not in ours for name in names or ())
            operations: list[Operation] = [Delete(path, node.version) for path, node in ours.items()]
            more = len(operations) > _STEP_OPERATIONS
            if more or others or names is None:
                return operations[:_STEP_OPERATIONS]
            return [*operations, Delete(folder)]

        if self._nodes.get(self._paths.epoch(topic)) is None and not decide():
            return not others  # do not make a guard for nothing
        try:
            self._commit(topic, decide)
            while more:
                self._commit(topic, decide)
        except BadRecord:
            self._commit_unguarded(decide)
        return not others

    def withdraw_all(self, ours: Mapping[str, Sequence[str]]) -> list[str]:
        """Do :meth:`withdraw` for many topics, many in one step; return those whose nodes stay, as others are in them.

        Args:
            ours: the nodes of each topic that may be ours.
        """
        stay = []
        parts = list(_in_steps(ours.items(), lambda each: (len(each[1]) + 2, sum(map(len, each[1])))))
        while parts:
            part = parts.pop()
            if len(part) == 1:
                stay += [topic for topic, paths in part if not self.withdraw(topic, paths)]
                continue
            try:
                self._nodes.commit(self._withdrawing(part))
            except Conflict:  # others are in one of the topics, or change it
                half = len(part) // 2
                parts += [part[:half], part[half:]]
        return stay

    def _withdrawing(self, topics: Sequence[tuple[str, Sequence[str]]]) -> list[Operation]:
        """Return what removes the topics if no one else is in them. Raises Conflict if that is known already."""
        guards = self._nodes.get_all([self._paths.epoch(topic) for topic, _ in topics])
        paths = [path for _, each in topics for path in each]
        nodes = dict(zip(paths, self._nodes.get_all(paths), strict=True))
        operations: list[Operation] = []
        for (topic, each), guard in zip(topics, guards, strict=True):
            if guard is None or len(guard.data) > MAX_RECORD_BYTES:
                raise Conflict(topic)
            operations.append(SetData(self._paths.epoch(topic), guard.data, guard.version))
            found = ((path, nodes[path]) for path in each)
            operations += [
                Delete(path, node.version)
                for path, node in found
                if node is not None and self._nodes.had_session(node.session)
            ]
            operations.append(Delete(self._paths.topic(topic)))
        return operations

    def _commit(self, topic: str, decide: Callable[[], list[Operation]], epoch: int = 0) -> None:
        """Commit what ``decide`` wants, moving the guard; decide again as long as others interfere.

        Args:
            epoch: the least that a deleted guard held.
        """
        for _ in attempts(self._timeout):
            guard = self._guard(topic, epoch)  # before decide reads: what comes after it moves the guard
            operations = decide()
            if not operations:
                return
            try:
                self._nodes.commit([SetData(self._paths.epoch(topic), guard.data, guard.version), *operations])
            except Conflict:
                self._nodes.ensure(self._paths.owners)  # missing before the first claim, and after a deletion by hand
                continue
            return
        raise self._contended(topic)

    def _guard(self, topic: str, epoch: int = 0) -> Node:
        path = self._paths.epoch(topic)
        for _ in attempts(self._timeout):
            node = self._nodes.get(path)
            if node is not None and len(node.data) > MAX_RECORD_BYTES:
                raise BadRecord("epoch", f"at most {MAX_RECORD_BYTES} bytes")  # and it is not written back cut short
            if node is not None:
                return node
            self._nodes.ensure(self._paths.epochs)
            made = Create(path, str(epoch).encode(), ephemeral=False)
            with contextlib.suppress(Conflict):
                self._nodes.commit([made])
                return Node(made.data, version=0, session=0, serial=0)
        raise self._contended(topic)

    def _contended(self, topic: str) -> Unavailable:
        return Unavailable(self._hosts, f"topic {topic!r} kept changing")


def _in_steps(things: Iterable[T], cost: Callable[[T], tuple[int, int]]) -> Iterator[list[T]]:
    """Yield the things in parts that one request takes.

    Args:
        things: what is to be changed.
        cost: returns how many operations one of them is, at most, and how many bytes.
    """
    part: list[T] = []
    operations = size = 0
    for thing in things:
        more, bytes_more = cost(thing)
        if part and (operations + more > _STEP_OPERATIONS or size + bytes_more > _STEP_BYTES):
            yield part
            part, operations, size = [], 0, 0
        part.append(thing)
        operations += more
        size += bytes_more
    if part:
        yield part


def point_text(data: bytes) -> str:
    """Return a recovery point's text; of one that is too long, more than may be there."""
    return data[: MAX_RECORD_BYTES + 1].decode("utf-8", "replace")


def attempts(timeout: float) -> Iterator[None]:
    """Yield once for each attempt at a change that others may be in the way of, for so many seconds."""
    deadline = time.monotonic() + timeout
    most = 0.001
    while True:
        yield
        if time.monotonic() > deadline:
            return
        time.sleep(_jitter.uniform(0, most))
        most = min(most * 2, 0.1)
