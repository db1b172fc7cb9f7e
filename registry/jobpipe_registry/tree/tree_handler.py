"""The registry on any tree of nodes: the contract's methods, put together from reader, changes, keeper and watches."""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobpipe_registry.handler import RegisterServerHandler, TopicsCallback, WatchCallback
from jobpipe_registry.names import Paths, check_name
from jobpipe_registry.node_watch import TreeWatch, Watch
from jobpipe_registry.nodes import Nodes
from jobpipe_registry.registry_errors import NotStarted, RegistryError
from jobpipe_registry.registry_jobs import Jobs
from jobpipe_registry.registry_options import RegistryOptions
from jobpipe_registry.topic_records import MAX_RECORD_BYTES, OwnerRecord, RegisterRecord
from jobpipe_registry.tree.registration_keeper import RegistrationKeeper
from jobpipe_registry.tree.topic_changes import TopicChanges, point_text
from jobpipe_registry.tree.tree_jobs import TreeJobs
from jobpipe_registry.tree.tree_reader import TreeReader

logger = logging.getLogger(__name__)

_SHUTDOWN_SECONDS = 8.0  # for the polite part; closing the session has the rest of the 10 s


@dataclass(frozen=True)
class _Parts:
    nodes: Nodes
    paths: Paths
    reader: TreeReader
    keeper: RegistrationKeeper
    jobs: TreeJobs


class TreeHandler(RegisterServerHandler):
    """All of the contract; a subclass only opens the nodes."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._life = threading.Lock()  # held by start, and by the first part of shutdown
        self._ended = threading.Event()
        self._started: _Parts | None = None
        self._owns = False
        self._state = threading.Lock()
        self._watches: list[TreeWatch[Any]] = []

    @abstractmethod
    def _open(self, options: RegistryOptions) -> Nodes:
        """Return a session that is ready. Raises Unavailable, and leaves nothing open then."""

    def _before_first_node(self) -> None:
        """Do what only a session that owns nodes needs; most sessions are of readers, and own none."""

    def start(self, options: Mapping[str, str]) -> None:
        parsed = RegistryOptions.parse(options)
        paths = Paths(parsed.namespace)
        with self._life:
            if self._ended.is_set() or self._started is not None:
                raise RegistryError("the handler was started or shut down before")
            nodes = self._open(parsed)  # makes no node: the first to write owns the namespace, and that is no reader
            if self._ended.is_set():
                nodes.close(1.0)
                raise NotStarted("the handler was shut down while it started")
            reader = TreeReader(nodes, paths)
            keeper = RegistrationKeeper(
                nodes, paths, TopicChanges(nodes, paths, reader, parsed), parsed, self._on_topic_lost
            )
            self._pid = os.getpid()
            self._started = _Parts(nodes, paths, reader, keeper, TreeJobs(nodes, paths, reader, parsed, self._begin))
            keeper.start()

    def shutdown(self) -> None:
        if self._pid != os.getpid():
            return  # the session is the parent's
        self._ended.set()
        if not self._life.acquire(timeout=1.0):
            return  # start() runs in another thread, and closes what it opens
        parts, self._started = self._started, None
        self._life.release()
        if parts is None:
            return
        deadline = time.monotonic() + _SHUTDOWN_SECONDS
        parts.nodes.limit(deadline)
        parts.keeper.stop()
        parts.jobs.stop()
        with self._state:
            watches, self._watches = self._watches, []
        for watch in watches:
            watch.signal_close()
        polite = False
        try:
            if parts.nodes.ready:
                parts.jobs.withdraw()
                parts.keeper.withdraw(_SHUTDOWN_SECONDS / 2)
                polite = True
        except RegistryError as error:
            logger.warning("shutdown leaves the rest to the end of the session: %s", error)
        finally:
            # An unfinished farewell means that the session's will not be answered either.
            parts.nodes.close(max(1.0, deadline + 1.0 - time.monotonic()) if polite else 1.5)
            end = time.monotonic() + 0.5
            for watch in watches:
                watch.join(end - time.monotonic())
            parts.keeper.join(0.3)
            parts.jobs.join(0.3)

    def create_topic_node(self, topic: str) -> None:
        self._owning().keeper.create_topic(topic)

    def delete_topic_node(self, topic: str) -> bool:
        return self._parts().keeper.delete_topic(topic)

    def register(self, topic: str, record: RegisterRecord) -> None:
        self._owning().keeper.register(topic, [record])

    def register_all(self, topic: str, records: Sequence[RegisterRecord]) -> None:
        self._owning().keeper.register(topic, records)

    def withdraw(self, topic: str, parallelism: int) -> None:
        self._parts().keeper.withdraw_topic(topic, parallelism)

    def unregister(self, topic: str, index: int) -> None:
        self._parts().keeper.unregister(topic, index)

    def query(self, topic: str, index: int) -> RegisterRecord | None:
        return self._parts().reader.registration(topic, index)

    def is_exist(self, topic: str) -> bool:
        parts = self._parts()
        return parts.nodes.get(parts.paths.topic(topic)) is not None

    def topics(self) -> list[str]:
        return self._parts().reader.topics()

    def known_topics(self) -> list[str]:
        return self._parts().reader.known_topics()

    def records(self, topic: str) -> list[RegisterRecord]:
        return [record for _, _, record in self._parts().reader.registrations(topic)]

    def records_of(self, topics: Sequence[str]) -> dict[str, list[RegisterRecord]]:
        return self._parts().reader.records_of(topics)

    def watch(self, topic: str, callback: WatchCallback) -> Watch:
        parts = self._parts()

        check_name(topic)
        watch = TreeWatch(
            parts.nodes,
            f"topic {topic}",
            parts.reader.follow(topic).read,
            lambda listed: callback([record for _, record in listed]),
            self._count_watches,
        )
        self._begin(watch)
        return watch

    def watch_topics(self, callback: TopicsCallback) -> Watch:
        parts = self._parts()
        watch = TreeWatch(parts.nodes, "the topics", parts.reader.topics, callback, self._count_watches)
        self._begin(watch)
        return watch

    def _count_watches(self) -> int:
        return len(self._watches)

    def _begin(self, watch: TreeWatch[Any]) -> None:
        """Start a watch, which ends with us."""
        with self._state:
            self._watches = [other for other in self._watches if not other.ended]
            self._watches.append(watch)
            watch.start()
        if self._ended.is_set():  # shutdown may have looked before we were in the list
            watch.signal_close()

    @property
    def jobs(self) -> Jobs:
        return self._owning().jobs

    def claim(self, topic: str, owner: OwnerRecord) -> None:
        self._owning().keeper.claim(topic, owner)

    def owner(self, topic: str) -> OwnerRecord | None:
        return self._parts().reader.owner(topic)

    def is_claimed(self, topic: str) -> bool:
        parts = self._parts()
        node = parts.nodes.get(parts.paths.owner(topic))
        return node is not None and node.session != 0  # what no session holds is rubbish

    def notify_of_owner(self, topic: str, notify: Callable[[object], None]) -> None:
        parts = self._parts()
        parts.nodes.get(parts.paths.owner(topic), notify)

    def evict(self, topic: str, instance: str) -> None:
        with self._parts().keeper.changing() as changes:
            changes.evict(topic, instance)

    def release(self, topic: str) -> None:
        self._parts().keeper.release(topic)

    def forget(self, topic: str) -> None:
        self._parts().keeper.forget(topic)

    def set_recovery_point(self, topic: str, epoch: int, text: str | None) -> None:
        with self._parts().keeper.changing() as changes:
            changes.write_recovery_point(topic, epoch, None if text is None else text.encode())

    def recovery_point(self, topic: str) -> str | None:
        parts = self._parts()
        node = parts.nodes.get(parts.paths.recovery(topic))
        return None if node is None else point_text(node.data)

    def next_epoch(self, topic: str, at_least: int) -> int:
        with self._parts().keeper.changing() as changes:
            return changes.next_epoch(topic, at_least)

    def epoch(self, topic: str) -> int:
        return self._parts().reader.epoch(topic)

    def epoch_data(self, topic: str) -> bytes | None:
        """Return what the epoch's node holds, whatever that is, or its beginning; None if there is no node.

        Raises:
            Unavailable, NotStarted: as all methods.
        """
        parts = self._parts()
        node = parts.nodes.get(parts.paths.epoch(topic))
        return None if node is None else node.data[: MAX_RECORD_BYTES + 1]

    def repair_epoch(self, topic: str, epoch: int, *, remove_point: str | None = None) -> None:
        """Set the stored epoch, whatever it is; the one change that may lower it.

        Args:
            topic: It must not be claimed.
            epoch: Not below the one that the topic's log was last taken over with: else two publishers could get the
                same one.
            remove_point: What :meth:`recovery_point` gave; removed in the same step, unless it has changed since.

        Raises:
            TopicOwned: the topic is claimed.
            Unavailable, NotStarted: as all methods.
        """
        with self._parts().keeper.changing() as changes:
            changes.repair_epoch(topic, epoch, remove_point=remove_point)

    def _on_topic_lost(self, topic: str) -> None:
        if self.on_lost is not None:
            self.on_lost(topic)

    def _owning(self) -> _Parts:
        parts = self._parts()
        if not self._owns:
            self._owns = True
            self._before_first_node()
        return parts

    def _parts(self) -> _Parts:
        parts = self._started
        if parts is None:
            raise NotStarted("the handler is not started, or was shut down")
        if self._pid != os.getpid():
            raise NotStarted("the handler was started in another process: a session does not survive a fork")
        return parts
