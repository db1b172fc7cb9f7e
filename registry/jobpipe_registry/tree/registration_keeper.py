"""What one handler wants to be in the registry, and the thread that keeps it there.

A registration or a claim is *wanted* from the call that made it until it is given up. ZooKeeper deletes them with the
session, and an operator may do so by hand; the keeper compares wanted and found after each new session, at each notice
that one of its nodes changed, and about each 10 s, and recreates what is missing, unless another handler has the
place by then: that is *lost*, is given up, and is reported.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jobpipe_registry.names import Paths
from jobpipe_registry.nodes import Nodes
from jobpipe_registry.registry_errors import RegistryError, TopicOwned, Unavailable
from jobpipe_registry.registry_options import RegistryOptions
from jobpipe_registry.topic_records import OwnerRecord, RegisterRecord
from jobpipe_registry.tree.last_call_wins import LastCallWins
from jobpipe_registry.tree.topic_changes import TopicChanges

logger = logging.getLogger(__name__)

_KEEP_SECONDS = 10.0
_SETTLE_SECONDS = 0.2  # one look for many notices; and who deletes a tree may come to its end
_jitter = random.Random()  # noqa: S311 - own, so that our threads do not disturb a program that seeds the global one


class RegistrationKeeper:
    """Makes all changes of a handler, one at a time, and repeats them where needed. Owns one thread until ``stop``."""

    def __init__(
        self,
        nodes: Nodes,
        paths: Paths,
        changes: TopicChanges,
        options: RegistryOptions,
        on_lost: Callable[[str], None],
    ) -> None:
        self._nodes = nodes
        self._paths = paths
        self._changes = changes
        self._options = options
        self._on_lost = on_lost
        self._changing = threading.RLock()  # one change, or one pass of the thread, at a time
        self._state = threading.Lock()  # the fields below; never held during a call to the registry
        self._registrations: dict[tuple[str, int], RegisterRecord] = {}
        self._claims: dict[str, OwnerRecord] = {}
        self._topics: set[str] = set()
        self._leftovers: set[tuple[str, str]] = set()  # (topic, path) that may be ours and must not stay
        self._asked: LastCallWins[str] = LastCallWins()  # by path: its node is to be there, or gone
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="registry-keeper", daemon=True)

    def start(self) -> None:
        self._nodes.listen(self._notify)
        self._thread.start()

    def stop(self) -> None:
        """Begin no further pass. Does not wait."""
        self._stop.set()
        self._wake.set()
        self._nodes.unlisten(self._notify)

    def join(self, timeout: float) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    @contextmanager
    def changing(self, timeout: float | None = None) -> Iterator[TopicChanges]:
        """Hold the right to change. Raises Unavailable if another change does not end."""
        if not self._changing.acquire(timeout=self._options.connect_timeout + 1.0 if timeout is None else timeout):
            raise Unavailable(self._options.connect, "another change by this handler still waits for an answer")
        try:
            yield self._changes
        finally:
            self._changing.release()

    def create_topic(self, topic: str) -> None:
        path = self._paths.topic(topic)
        with self.changing():
            self._nodes.ensure(path)
            with self._state:
                self._topics.add(topic)

    def delete_topic(self, topic: str) -> bool:
        with self.changing() as changes:
            gone = changes.delete_topic(topic)
            if gone:
                with self._state:
                    self._topics.discard(topic)
                    for key in [key for key in self._registrations if key[0] == topic]:
                        del self._registrations[key]
            return gone

    def register(self, topic: str, record: RegisterRecord) -> None:
        key, path = (topic, record.index), self._paths.registration(topic, record.index)
        call = self._asked.begin(path)
        with self.changing() as changes:
            if not self._asked.is_newest(path, call):
                return
            try:
                changes.write_registration(topic, record, asked=True)
            except Unavailable:
                with self._state:
                    if key not in self._registrations:
                        self._leftovers.add((topic, path))  # the answer is missing, the node may be there
                raise
            with self._state:
                self._topics.add(topic)
                if self._asked.is_newest(path, call):
                    self._registrations[key] = record
                    self._leftovers.discard((topic, path))
        self._notify()  # a look leaves the notice on the new node

    def unregister(self, topic: str, index: int) -> None:
        self._give_up(topic, self._paths.registration(topic, index), lambda: self._registrations.pop((topic, index), 0))

    def claim(self, topic: str, owner: OwnerRecord) -> None:
        path = self._paths.owner(topic)
        call = self._asked.begin(path)
        with self.changing() as changes:
            if not self._asked.is_newest(path, call):
                return
            try:
                changes.write_claim(topic, owner, asked=True)
            except Unavailable:
                with self._state:
                    if topic not in self._claims:
                        self._leftovers.add((topic, path))
                raise
            with self._state:
                if self._asked.is_newest(path, call):
                    self._claims[topic] = owner
                    self._leftovers.discard((topic, path))
        self._notify()

    def release(self, topic: str) -> None:
        self._give_up(topic, self._paths.owner(topic), lambda: self._claims.pop(topic, 0))

    def forget(self, topic: str) -> None:
        """Remove all nodes of a topic that is ours alone."""
        path = self._paths.owner(topic)
        call = self._asked.begin(path)
        with self.changing() as changes:
            if not self._asked.is_newest(path, call):
                return  # claimed again since
            changes.forget(topic)
            with self._state:
                self._claims.pop(topic, None)
                self._topics.discard(topic)
                self._asked.end(path, call)

    def withdraw(self, timeout: float) -> None:
        """Remove all that is ours, and the topic nodes that are empty then."""
        with self.changing(timeout) as changes:
            with self._state:
                ours = {(topic, self._paths.registration(topic, index)) for topic, index in self._registrations}
                ours |= {(topic, self._paths.owner(topic)) for topic in self._claims} | self._leftovers
                topics = sorted(self._topics)
                self._registrations.clear()
                self._claims.clear()
                self._asked.clear()
            for topic, path in sorted(ours):
                changes.remove(topic, path)
            for topic in topics:
                if not changes.delete_topic(topic):
                    logger.info("topic %s stays: others are registered in it", topic)

    def _give_up(self, topic: str, path: str, forget: Callable[[], object]) -> None:
        """Remove a node of ours that is no longer wanted; ``forget`` takes it from what is wanted."""
        call = self._asked.begin(path)
        try:
            with self.changing() as changes:
                if not self._asked.is_newest(path, call):
                    return  # wanted again since
                with self._state:
                    forget()  # not before it is our turn: a call under way would want it again
                changes.remove(topic, path)
        except Unavailable:
            with self._state:
                if self._asked.is_newest(path, call):
                    forget()
                    self._leftovers.add((topic, path))
            raise
        self._asked.end(path, call)

    # the thread

    def _notify(self, _: object = None) -> None:
        self._wake.set()

    def _keep(self) -> None:
        while True:
            if self._wake.wait(_KEEP_SECONDS * _jitter.uniform(0.8, 1.2)):
                self._stop.wait(_SETTLE_SECONDS)
            self._wake.clear()
            if self._stop.is_set():
                return
            lost: set[str] = set()
            try:
                self._repair(lost)
            except RegistryError as error:
                if not self._stop.is_set():
                    logger.warning("cannot look after our registrations: %s", error)
            for topic in lost:
                try:
                    self._on_lost(topic)
                except Exception:
                    logger.exception("topic %s: on_lost failed", topic)

    def _repair(self, lost: set[str]) -> None:
        """Make again what is wanted and missing, remove debris; add the topics that others took to ``lost``."""
        with self.changing() as changes:
            with self._state:
                claims, registrations = dict(self._claims), dict(self._registrations)
            wanted = {self._paths.owner(topic): owner.to_bytes() for topic, owner in claims.items()}
            wanted |= {self._paths.registration(*key): record.to_bytes() for key, record in registrations.items()}
            intact = self._intact(wanted)
            for topic, owner in claims.items():
                if self._paths.owner(topic) in intact:
                    continue
                try:
                    changes.write_claim(topic, owner, asked=False)
                except TopicOwned as error:
                    self._lose(topic, error, lost)
            for (topic, index), record in registrations.items():
                try:
                    if topic not in lost and self._paths.registration(topic, index) not in intact:
                        changes.write_registration(topic, record, asked=False)
                except TopicOwned as error:
                    self._lose(topic, error, lost)
            with self._state:
                leftovers = set(self._leftovers)
            for topic, path in leftovers:
                changes.remove(topic, path)
                with self._state:
                    self._leftovers.discard((topic, path))
            if len(intact) < len(wanted):
                self._notify()  # what was recreated needs a notice, too

    def _intact(self, wanted: dict[str, bytes]) -> set[str]:
        """Return which of the nodes are there, ours, and hold what they should; leave notices on those."""
        session, paths = self._nodes.session, list(wanted)
        found = zip(paths, self._nodes.get_all(paths, self._notify), strict=True)
        return {path for path, node in found if node and node.session == session and node.data == wanted[path]}

    def _lose(self, topic: str, error: TopicOwned, lost: set[str]) -> None:
        logger.warning("lost while our session was away: %s", error)
        lost.add(topic)
        with self._state:
            if self._claims.pop(topic, None) is not None:
                self._leftovers.add((topic, self._paths.owner(topic)))
            for key in [key for key in self._registrations if key[0] == topic]:
                del self._registrations[key]
                self._leftovers.add((topic, self._paths.registration(*key)))
