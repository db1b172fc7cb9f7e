"""Read topics, registrations, owners and epochs from a tree of nodes that others may have filled with anything."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from jobpipe_registry.names import Paths, check_job_name, check_name, child_index
from jobpipe_registry.nodes import Folder, Node, Nodes, Notify
from jobpipe_registry.registry_errors import BadRecord, InvalidName
from jobpipe_registry.topic_records import OwnerRecord, Record, RegisterRecord, parse_epoch

logger = logging.getLogger(__name__)

_Kind = TypeVar("_Kind", bound=Record)
Registrations = list[tuple[int, RegisterRecord]]
_MAX_WARNED = 1000


class TreeReader:
    """Reads; a node it cannot read is logged once for each state of it, and passes for missing. Thread-safe."""

    def __init__(self, nodes: Nodes, paths: Paths) -> None:
        self._nodes = nodes
        self._paths = paths
        self._lock = threading.Lock()
        self._warned: set[tuple[str, int, int]] = set()

    def topics(self, notify: Notify | None = None) -> list[str]:
        found = self._nodes.folder(self._paths.namespace, notify)
        return [] if found is None else sorted(name for name in found.names if _is_name(name))

    def known_topics(self) -> list[str]:
        """Return the topics, and those that have an epoch."""
        names = sorted(name for name in self._nodes.children(self._paths.epochs) or () if _is_name(name))
        guards = self._nodes.get_all([self._paths.epoch(name) for name in names])
        had = {name for name, node in zip(names, guards, strict=True) if node is not None and node.data != b"0"}
        return sorted(had.union(self.topics()))

    def jobs(self) -> list[tuple[str, str]]:
        """Return (pipeline, job) of each order, sorted."""
        pipelines = [name for name in self._nodes.children(self._paths.jobs) or [] if _is_name(name, check_job_name)]
        found = ((pipeline, self._nodes.children(self._paths.pipeline(pipeline)) or ()) for pipeline in pipelines)
        return sorted((pipeline, name) for pipeline, names in found for name in names if _is_name(name, check_job_name))

    def registration(self, topic: str, index: int) -> RegisterRecord | None:
        path = self._paths.registration(topic, index)
        return self.decode_registration(path, self._nodes.get(path), index)

    def registrations(self, topic: str) -> list[tuple[str, Node, RegisterRecord]]:
        """Return (path, node, record) of each registration, sorted by index."""
        return self._read(topic, _indexes(self._nodes.children(self._paths.topic(topic)) or ()))

    def records_of(self, topics: Sequence[str]) -> dict[str, list[RegisterRecord]]:
        """Return the registrations of many topics, sorted by index, in few round trips.

        Of a topic whose registrations can be of one publisher the first one is read, as by :meth:`first_or_all`.
        """
        folders = self._nodes.folders([self._paths.topic(topic) for topic in topics])
        indexes = {
            topic: [] if folder is None else _indexes(folder.names)
            for topic, folder in zip(topics, folders, strict=True)
        }
        found = self._records({topic: each[:1] for topic, each in indexes.items()})
        rest: dict[str, list[int]] = {}
        for topic, records in found.items():
            if records and _is_one_set(indexes[topic], records[0]):
                found[topic] = [dataclasses.replace(records[0], index=index) for index in indexes[topic]]
            elif len(indexes[topic]) > 1:
                rest[topic] = indexes[topic][1:]
        for topic, records in self._records(rest).items():
            found[topic] += records
        return found

    def _records(self, indexes: Mapping[str, Sequence[int]]) -> dict[str, list[RegisterRecord]]:
        places = [(topic, index) for topic, each in indexes.items() for index in each]
        paths = [self._paths.registration(topic, index) for topic, index in places]
        found: dict[str, list[RegisterRecord]] = {topic: [] for topic in indexes}
        for (topic, index), path, node in zip(places, paths, self._nodes.get_all(paths), strict=True):
            if (record := self.decode_registration(path, node, index)) is not None:
                found[topic].append(record)
        return found

    def _read(
        self, topic: str, indexes: Sequence[int], notify: Notify | None = None
    ) -> list[tuple[str, Node, RegisterRecord]]:
        paths = [self._paths.registration(topic, index) for index in indexes]
        listed = []
        for index, path, node in zip(indexes, paths, self._nodes.get_all(paths, notify), strict=True):
            record = self.decode_registration(path, node, index)
            if node is not None and record is not None:
                listed.append((path, node, record))
        return listed

    def follow(self, topic: str) -> FollowedTopic:
        """Return what reads the registrations again and again."""
        return FollowedTopic(self, self._nodes, self._paths.topic(topic), topic)

    def first_or_all(self, topic: str, names: Iterable[str], notify: Notify) -> Registrations:
        """Return the registrations after a read of the first: those of a publisher are equal but for their index.

        All are read if they cannot be of one publisher.
        """
        indexes = _indexes(names)
        first = self._read(topic, indexes[:1], notify)
        if first and _is_one_set(indexes, first[0][2]):
            return [(first[0][1].serial, dataclasses.replace(first[0][2], index=index)) for index in indexes]
        return [(node.serial, record) for _, node, record in self._read(topic, indexes, notify)]

    def owner(self, topic: str) -> OwnerRecord | None:
        path = self._paths.owner(topic)
        return self.decode_owner(path, self._nodes.get(path))

    def epoch(self, topic: str) -> int:
        node = self._nodes.get(self._paths.epoch(topic))
        return 0 if node is None else parse_epoch(node.data)

    def decode_owner(self, path: str, node: Node | None) -> OwnerRecord | None:
        return self.decode(OwnerRecord, path, node)

    def decode_registration(self, path: str, node: Node | None, index: int) -> RegisterRecord | None:
        record = self.decode(RegisterRecord, path, node)
        if node is not None and record is not None and record.index != index:
            self._warn(path, node, BadRecord("index", str(index)))
            return None
        return record

    def decode(self, kind: type[_Kind], path: str, node: Node | None) -> _Kind | None:
        """Return what a node holds; None if it is missing, or cannot be read."""
        if node is None:
            return None
        try:
            return kind.from_bytes(node.data)
        except BadRecord as error:
            self._warn(path, node, error)
            return None

    def _warn(self, path: str, node: Node, error: BadRecord) -> None:
        key = (path, node.serial, node.version)
        with self._lock:
            known = key in self._warned
            if len(self._warned) >= _MAX_WARNED:
                self._warned.clear()
            self._warned.add(key)
        if not known:
            logger.warning("%s is ignored: %s", path, error)


class FollowedTopic:
    """The registrations of a topic, read again and again, each with what tells two makings of it apart.

    Records are read only if one was made or deleted since, or a notice came that one has changed in place.
    """

    def __init__(self, reader: TreeReader, nodes: Nodes, path: str, topic: str) -> None:
        self._reader = reader
        self._nodes = nodes
        self._path = path
        self._topic = topic
        self._notify: Notify | None = None
        self._known: Folder | None = None
        self._listed: Registrations = []

    def read(self, notify: Notify) -> Registrations:
        """Return what there is; leave notices."""
        self._notify = notify
        before, found = self._known, self._nodes.folder(self._path, notify)
        if found is None or before is None or found.serial != before.serial:
            self._known = found  # before the records are read: one of them may change meanwhile
            try:
                self._listed = self._reader.first_or_all(
                    self._topic, () if found is None else found.names, self._changed
                )
            except BaseException:
                self._known = None
                raise
        return self._listed

    def _changed(self, event: object) -> None:
        self._known = None
        if self._notify is not None:
            self._notify(event)


def _indexes(names: Iterable[str]) -> list[int]:
    """Return the indexes of the registrations among a topic's nodes, sorted."""
    return sorted(index for name in names if (index := child_index(name)) is not None)


def _is_one_set(indexes: list[int], first: RegisterRecord) -> bool:
    """Tell whether the nodes there are can be those of the publisher whose first registration this is."""
    return indexes == list(range(1, first.parallelism + 1))


def _is_name(name: str, check: Callable[[str], str] = check_name) -> bool:
    try:
        check(name)
    except InvalidName:
        return False
    return True
