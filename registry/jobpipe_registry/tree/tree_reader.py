"""Read topics, registrations, owners and epochs from a tree of nodes that others may have filled with anything."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from jobpipe_registry.names import Paths, check_job_name, check_name, child_index
from jobpipe_registry.nodes import Node, Nodes, Notify
from jobpipe_registry.registry_errors import BadRecord, InvalidName
from jobpipe_registry.topic_records import OwnerRecord, Record, RegisterRecord, parse_epoch

logger = logging.getLogger(__name__)

_Kind = TypeVar("_Kind", bound=Record)
_MAX_WARNED = 1000


class TreeReader:
    """Reads; a node it cannot read is logged once for each state of it, and passes for missing. Thread-safe."""

    def __init__(self, nodes: Nodes, paths: Paths) -> None:
        self._nodes = nodes
        self._paths = paths
        self._lock = threading.Lock()
        self._warned: set[tuple[str, int, int]] = set()

    def topics(self) -> list[str]:
        names = self._nodes.children(self._paths.namespace) or []
        return sorted(name for name in names if _is_name(name))

    def known_topics(self) -> list[str]:
        """Return the topics, and those that have an epoch."""
        names = sorted(name for name in self._nodes.children(self._paths.epochs) or [] if _is_name(name))
        guards = self._nodes.get_all([self._paths.epoch(name) for name in names])
        had = {name for name, node in zip(names, guards, strict=True) if node is not None and node.data != b"0"}
        return sorted(had.union(self.topics()))

    def jobs(self) -> list[tuple[str, str]]:
        """Return (pipeline, job) of each order, sorted."""
        pipelines = [name for name in self._nodes.children(self._paths.jobs) or [] if _is_name(name, check_job_name)]
        found = ((pipeline, self._nodes.children(self._paths.pipeline(pipeline)) or []) for pipeline in pipelines)
        return sorted((pipeline, name) for pipeline, names in found for name in names if _is_name(name, check_job_name))

    def registration(self, topic: str, index: int) -> RegisterRecord | None:
        path = self._paths.registration(topic, index)
        return self.decode_registration(path, self._nodes.get(path), index)

    def registrations(self, topic: str, notify: Notify | None = None) -> list[tuple[str, Node, RegisterRecord]]:
        """Return (path, node, record) of each registration, sorted by index; leave notices on all that was read."""
        names = self._nodes.children(self._paths.topic(topic), notify) or []
        indexes = sorted(index for name in names if (index := child_index(name)) is not None)
        paths = [self._paths.registration(topic, index) for index in indexes]
        listed = []
        for index, path, node in zip(indexes, paths, self._nodes.get_all(paths, notify), strict=True):
            record = self.decode_registration(path, node, index)
            if node is not None and record is not None:
                listed.append((path, node, record))
        return listed

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


def _is_name(name: str, check: Callable[[str], str] = check_name) -> bool:
    try:
        check(name)
    except InvalidName:
        return False
    return True
