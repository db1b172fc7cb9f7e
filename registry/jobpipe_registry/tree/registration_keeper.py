"""What one handler wants to be in the registry, and the thread that keeps it there.

A registration or a claim is *wanted* from the call that made it until it is given up. ZooKeeper deletes them with the
session, and an operator may do so by hand. The keeper compares wanted and found: of one topic after it was written and
at each notice that one of its nodes changed; of all topics after each new session, and about each 10 s. It recreates
what is missing, unless another handler has the place by then: that is *lost*, is given up, and is reported.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from jobpipe_registry.names import MAX_PARALLELISM, Paths
from jobpipe_registry.nodes import Nodes
from jobpipe_registry.registry_errors import RegistryError, TooManyTopics, TopicOwned, Unavailable
from jobpipe_registry.registry_options import RegistryOptions
from jobpipe_registry.topic_records import OwnerRecord, RegisterRecord
from jobpipe_registry.tree.last_call_wins import LastCallWins
from jobpipe_registry.tree.topic_changes import TopicChanges

logger = logging.getLogger(__name__)

MAX_TOPICS = 1000
"""Of one session. Its end is one record in ZooKeeper's log, with all paths that it held."""

MAX_PATH_BYTES = 1 << 20
"""Of all nodes of one session: half of the record that ZooKeeper, by default, can read again when it starts."""

_KEEP_SECONDS = 10.0
_SETTLE_SECONDS = 0.2  # one look for many notices; and who deletes a tree may come to its end
_RETURN_SECONDS = 2.0  # at most, before all is made again: all sessions of a registry that was away come back at once
_RETRY_SECONDS = 2.0  # before another look at topics of which the registry did not answer
_MOST_FAILURES = 3  # in a row, before a pass ends
_PASS_TOPICS = 64  # looked at between two chances for others to change something
_jitter = random.Random()  # noqa: S311 - own, so that our threads do not disturb a program that seeds the global one


@dataclass(frozen=True)
class _Notice:
    """What a node of a topic calls when it changes. Equal ones of a node are called once."""

    look_at: Callable[[str], None]
    topic: str

    def __call__(self, _: object = None) -> None:
        self.look_at(self.topic)


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
        self._registrations: dict[str, dict[int, RegisterRecord]] = {}  # by topic and index
        self._claims: dict[str, OwnerRecord] = {}
        self._topics: set[str] = set()
        self._leftovers: dict[str, set[str]] = {}  # by topic: paths that may be ours and must not stay
        self._noticed: set[str] = set()  # topics to look at
        self._returned = False  # after a loss of the session: look at all
        self._asked: LastCallWins[str] = LastCallWins()  # by path: its node is to be there, or gone
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="registry-keeper", daemon=True)

    def start(self) -> None:
        self._nodes.listen(self._on_return)
        self._thread.start()

    def stop(self) -> None:
        """Begin no further pass. Does not wait."""
        self._stop.set()
        self._wake.set()
        self._nodes.unlisten(self._on_return)

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
        self._require_room(topic, 0)
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
                    self._registrations.pop(topic, None)
            return gone

    def register(self, topic: str, records: Sequence[RegisterRecord]) -> None:
        self._require_room(topic, len(records))
        calls = {record.index: self._asked.begin(self._paths.registration(topic, record.index)) for record in records}

        def newest(record: RegisterRecord) -> bool:
            return self._asked.is_newest(self._paths.registration(topic, record.index), calls[record.index])

        with self.changing() as changes:
            wanted = [record for record in records if newest(record)]
            if not wanted:
                return
            try:
                changes.write_registrations(topic, wanted, asked=True)
            except RegistryError:
                with self._state:  # an answer is missing, or one of several steps was refused: nodes may be there
                    known = self._registrations.get(topic, {})
                    paths = [self._paths.registration(topic, each.index) for each in wanted if each.index not in known]
                    self._leave(topic, paths)
                self._look_at(topic)
                raise
            with self._state:
                self._topics.add(topic)
                registered = {record.index: record for record in wanted if newest(record)}
                self._registrations.setdefault(topic, {}).update(registered)
                self._clear(topic, [self._paths.registration(topic, index) for index in registered])
        self._look_at(topic)  # a look leaves the notices on the new nodes

    def unregister(self, topic: str, index: int) -> None:
        self._give_up(topic, [self._paths.registration(topic, index)], partial(_remove, topic))

    def claim(self, topic: str, owner: OwnerRecord) -> None:
        self._require_room(topic, 0)
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
                        self._leave(topic, [path])
                self._look_at(topic)
                raise
            with self._state:
                if self._asked.is_newest(path, call):
                    self._claims[topic] = owner
                    self._clear(topic, [path])
        self._look_at(topic)

    def release(self, topic: str) -> None:
        self._give_up(topic, [self._paths.owner(topic)], partial(_remove, topic))

    def withdraw_topic(self, topic: str, parallelism: int) -> bool:
        """Give up claim and registrations in one step, and the topic's node; say whether that is gone."""
        gone = False

        def withdraw(changes: TopicChanges, paths: Sequence[str]) -> None:
            nonlocal gone
            with self._state:
                left = self._leftovers.get(topic, set()).difference(paths)
            gone = changes.withdraw(topic, [*paths, *sorted(left)])
            if gone:
                with self._state:
                    self._topics.discard(topic)

        with self._state:
            indexes = sorted({*range(1, parallelism + 1), *self._registrations.get(topic, ())})
        registrations = [self._paths.registration(topic, index) for index in indexes]
        self._give_up(topic, [self._paths.owner(topic), *registrations], withdraw)
        return gone

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
                topics = set(self._topics)
                every = {*topics, *self._claims, *self._registrations, *self._leftovers}
                ours = {topic: self._paths_of(topic) for topic in every}
                self._registrations.clear()
                self._claims.clear()
                self._asked.clear()
            for topic in ours.keys() - topics:
                _remove(topic, changes, ours[topic])
            for topic in changes.withdraw_all({topic: ours[topic] for topic in sorted(topics)}):
                logger.info("topic %s stays: others are registered in it", topic)

    def _give_up(
        self, topic: str, paths: Sequence[str], remove: Callable[[TopicChanges, Sequence[str]], object]
    ) -> None:
        """Remove nodes of ours that are no longer wanted, but for those that are wanted again since."""
        calls = {path: self._asked.begin(path) for path in paths}

        def newest() -> list[str]:
            return [path for path in paths if self._asked.is_newest(path, calls[path])]

        try:
            with self.changing() as changes:
                if not (unwanted := newest()):
                    return
                with self._state:
                    self._forget(topic, unwanted)  # not before it is our turn: a call under way would want it again
                remove(changes, unwanted)
        except Unavailable:
            with self._state:
                unwanted = newest()
                self._forget(topic, unwanted)
                self._leave(topic, unwanted)
            self._look_at(topic)
            raise
        for path, call in calls.items():
            self._asked.end(path, call)

    # what is wanted; with the state's lock

    def _paths_of(self, topic: str) -> list[str]:
        """Return the nodes of a topic that are ours, or may be."""
        claimed = [self._paths.owner(topic)] if topic in self._claims else []
        registered = [self._paths.registration(topic, index) for index in self._registrations.get(topic, {})]
        return list(dict.fromkeys([*claimed, *registered, *self._leftovers.get(topic, ())]))

    def _forget(self, topic: str, paths: Sequence[str]) -> None:
        """Want nodes no longer."""
        if self._paths.owner(topic) in paths:
            self._claims.pop(topic, None)
        known = self._registrations.get(topic, {})
        for index in [index for index in known if self._paths.registration(topic, index) in paths]:
            del known[index]
        if not known:
            self._registrations.pop(topic, None)

    def _leave(self, topic: str, paths: Sequence[str]) -> None:
        """Note nodes that may be there and must not stay."""
        if paths:
            self._leftovers.setdefault(topic, set()).update(paths)

    def _clear(self, topic: str, paths: Sequence[str]) -> None:
        """Take back what :meth:`_leave` noted."""
        left = self._leftovers.get(topic, set()).difference(paths)
        if left:
            self._leftovers[topic] = left
        else:
            self._leftovers.pop(topic, None)

    def _require_room(self, topic: str, registrations: int) -> None:
        """Raise TooManyTopics if the session would hold more than its end may say.

        Calls of several threads may pass the limit together; it is far below what ZooKeeper cannot read.
        """
        with self._state:
            topics = {*self._claims, *self._registrations, topic}  # a topic's own node outlives the session
            counts = {each: len(self._registrations.get(each, ())) for each in topics}
        counts[topic] = max(counts[topic], registrations)
        size = sum((1 + count) * len(self._paths.registration(each, MAX_PARALLELISM)) for each, count in counts.items())
        if len(topics) > MAX_TOPICS:
            raise TooManyTopics(topic, f"{len(topics)} topics, of at most {MAX_TOPICS}")
        if size > MAX_PATH_BYTES:
            nodes = sum(1 + count for count in counts.values())
            raise TooManyTopics(topic, f"{nodes} nodes with paths of {size} bytes, of at most {MAX_PATH_BYTES}")

    # the thread

    def _look_at(self, topic: str) -> None:
        with self._state:
            self._noticed.add(topic)
        self._wake.set()

    def _on_return(self, _: object = None) -> None:
        with self._state:
            self._returned = True
        self._wake.set()

    def _keep(self) -> None:
        due = time.monotonic() + _KEEP_SECONDS * _jitter.uniform(0.8, 1.2)
        retry = due
        while True:
            if self._wake.wait(max(0.0, min(due, retry) - time.monotonic())):
                self._stop.wait(
                    _jitter.uniform(_SETTLE_SECONDS, _RETURN_SECONDS) if self._returned else _SETTLE_SECONDS
                )
            self._wake.clear()
            if self._stop.is_set():
                return
            if not self._nodes.ready:  # notices come when the connection is lost, too; _on_return when it is back
                due = retry = time.monotonic() + _KEEP_SECONDS
                continue
            with self._state:
                everything, self._returned = self._returned or time.monotonic() >= due, False
                noticed, self._noticed = self._noticed, set()
            if everything:
                due = time.monotonic() + _KEEP_SECONDS * _jitter.uniform(0.8, 1.2)
            lost: set[str] = set()
            try:
                self._repair(lost, None if everything else noticed)
            except RegistryError as error:
                if not self._stop.is_set():
                    logger.warning("cannot look after our registrations: %s", error)
            with self._state:
                retry = time.monotonic() + _RETRY_SECONDS * _jitter.uniform(0.8, 1.2) if self._noticed else due
            for topic in lost:
                try:
                    self._on_lost(topic)
                except Exception:
                    logger.exception("topic %s: on_lost failed", topic)

    def _repair(self, lost: set[str], topics: set[str] | None = None) -> None:
        """Make again what is wanted and missing, remove debris; add the topics that others took to ``lost``.

        Args:
            lost: gets the names.
            topics: to look at; None for all.
        """
        with self._state:
            ours = {*self._claims, *self._registrations, *self._leftovers}
        chosen = sorted(ours if topics is None else ours & topics)
        failures = 0
        for first in range(0, len(chosen), _PASS_TOPICS):
            if self._stop.is_set():
                return
            with self.changing() as changes:
                for number, topic in enumerate(chosen[first : first + _PASS_TOPICS], first):
                    try:
                        self._repair_topic(changes, topic, lost)
                        failures = 0
                    except Unavailable as error:  # of this topic's nodes alone, or of all
                        failures += 1
                        with self._state:
                            self._noticed.add(topic)
                        if failures == _MOST_FAILURES or not self._nodes.ready:
                            with self._state:
                                self._noticed.update(chosen[number:])
                            raise
                        logger.warning("topic %s: cannot look after its registrations: %s", topic, error)
                    except RegistryError as error:
                        logger.warning("topic %s: cannot look after its registrations: %s", topic, error)

    def _repair_topic(self, changes: TopicChanges, topic: str, lost: set[str]) -> None:
        try:
            self._rewrite(changes, topic)
        except TopicOwned as error:
            self._lose(topic, error, lost)
        with self._state:
            leftovers = set(self._leftovers.get(topic, ()))
        for path in leftovers:
            changes.remove(topic, path)
            with self._state:
                self._clear(topic, [path])

    def _rewrite(self, changes: TopicChanges, topic: str) -> None:
        """Make again what is wanted of a topic and is not as it should be. Raises TopicOwned."""
        with self._state:
            owner, records = self._claims.get(topic), list(self._registrations.get(topic, {}).values())
        claims = {} if owner is None else {self._paths.owner(topic): owner.to_bytes()}
        registrations = {self._paths.registration(topic, record.index): record.to_bytes() for record in records}
        intact = self._intact(topic, {**claims, **registrations})
        if len(intact) == len(claims) + len(registrations):
            return
        if owner is not None and self._paths.owner(topic) not in intact:
            changes.write_claim(topic, owner, asked=False)
        missing = [record for record in records if self._paths.registration(topic, record.index) not in intact]
        changes.write_registrations(topic, missing, asked=False)
        self._look_at(topic)  # what was recreated needs a notice, too

    def _intact(self, topic: str, wanted: dict[str, bytes]) -> set[str]:
        """Return which of the nodes are there, ours, and hold what they should; leave notices on those."""
        session, paths = self._nodes.session, list(wanted)
        found = zip(paths, self._nodes.get_all(paths, _Notice(self._look_at, topic)), strict=True)
        return {path for path, node in found if node and node.session == session and node.data == wanted[path]}

    def _lose(self, topic: str, error: TopicOwned, lost: set[str]) -> None:
        logger.warning("lost while our session was away: %s", error)
        lost.add(topic)
        with self._state:
            paths = self._paths_of(topic)
            self._forget(topic, paths)
            self._leave(topic, paths)


def _remove(topic: str, changes: TopicChanges, paths: Sequence[str]) -> None:
    for path in paths:
        changes.remove(topic, path)
