"""Finds the endpoints that serve a topic. A registration is a hint: the server must still prove the topic."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from jobpipe.config import Config
from jobpipe.config.definitions.key_names import closest
from jobpipe.discovery.registry_handler import map_registry_errors, open_handler
from jobpipe.errors import JobpipeError, TopicNotFound
from jobpipe.net.address import Endpoint
from jobpipe.net.retry import Deadline
from jobpipe_registry.handler import RegisterServerHandler
from jobpipe_registry.node_watch import Watch
from jobpipe_registry.topic_records import RegisterRecord


@dataclass(frozen=True)
class Location:
    """What the registry says of one topic."""

    topic: str
    control: Endpoint
    data: Endpoint
    epoch: int
    instance: str
    parallelism: int
    ssl: bool


def all_from_records(topic: str, records: list[RegisterRecord]) -> list[Location]:
    """Return the locations whose registrations are complete (all parallel-1..n of one epoch), highest epoch first.

    Below a complete one, those of which it only took places: anybody with write permission may have made it up.
    """
    found: list[Location] = []
    taken: set[int] = set()
    for epoch in sorted({record.epoch for record in records}, reverse=True):
        same = {record.index: record for record in records if record.epoch == epoch}
        first = next(iter(same.values()))
        wanted = set(range(1, first.parallelism + 1))
        if wanted <= same.keys() | taken:
            found.append(
                Location(
                    topic=topic,
                    control=Endpoint.parse(first.coordinator),
                    data=Endpoint.parse(first.data),
                    epoch=epoch,
                    instance=first.instance,
                    parallelism=first.parallelism,
                    ssl=first.ssl,
                )
            )
            taken |= wanted & same.keys()
    return found


def from_records(topic: str, records: list[RegisterRecord]) -> Location | None:
    """Return the location of the highest epoch whose registration is complete."""
    return next(iter(all_from_records(topic, records)), None)


@dataclass
class _Known:
    """What is known of one topic."""

    looked_at: bool = False
    locations: list[Location] = field(default_factory=list)
    doubted: set[Location] = field(default_factory=set)

    def best(self) -> Location | None:
        return next((location for location in self.locations if location not in self.doubted), None)


class TopicLocator:
    """Follows the registrations of some topics and knows the best location of each: of the highest epoch not doubted.

    Thread safe. ``close()`` ends the registry session if the locator opened it.
    """

    def __init__(self, config: Config, handler: RegisterServerHandler | None = None) -> None:
        self._config = config
        self._owned = handler is None
        self._handler = handler if handler is not None else open_handler(config)
        self._changed = threading.Condition()
        self._known: dict[str, _Known] = {}
        self._listeners: dict[str, list[Callable[[], object]]] = {}
        self._watches: dict[str, Watch] = {}  # by topic
        self._names: Watch | None = None
        self._closed = False

    @property
    def session_timeout(self) -> float:
        """Seconds for which a registration may outlive its server."""
        return self._config.registry_session_timeout

    @property
    def handler(self) -> RegisterServerHandler:
        """The registry session."""
        return self._handler

    def follow(self, topic: str) -> None:
        """Begin to watch ``topic``, which need not exist yet."""
        with self._changed:
            if topic in self._known or self._closed:
                return
            known = self._known[topic] = _Known()

        def on_change(records: list[RegisterRecord]) -> None:
            found = all_from_records(topic, records)
            with self._changed:
                known.looked_at = True
                known.locations = found
                known.doubted &= set(found)
                listeners = list(self._listeners.get(topic, ()))
                self._changed.notify_all()
            for listener in listeners:
                listener()

        try:
            with map_registry_errors():
                self._watches[topic] = self._handler.watch(topic, on_change)
        except BaseException:
            with self._changed:
                self._known.pop(topic, None)  # the next call tries it again
            raise

    def unfollow(self, topic: str) -> None:
        """End what :meth:`follow` and :meth:`listen` began."""
        with self._changed:
            self._known.pop(topic, None)
            self._listeners.pop(topic, None)
            watch = self._watches.pop(topic, None)
        if watch is not None:
            watch.close()

    def follow_names(self, on_names: Callable[[list[str]], None]) -> None:
        """Call ``on_names`` with the names of all topics: soon, and when one comes or goes. To be called once.

        It is called from a thread of the registry.
        """
        with map_registry_errors():
            self._names = self._handler.watch_topics(on_names)

    def has_looked_at(self, topic: str) -> bool:
        """Tell whether the registry has said by now whether ``topic``, which is followed, is served."""
        with self._changed:
            return topic in self._known and self._known[topic].looked_at

    def listen(self, topic: str, listener: Callable[[], object]) -> None:
        """Call ``listener``, from a thread of the registry, after each change of the registrations of ``topic``."""
        with self._changed:
            self._listeners.setdefault(topic, []).append(listener)

    def current(self, topic: str) -> Location | None:
        """Return the best known location, None when the topic is not served now."""
        with self._changed:
            known = self._known.get(topic)
            return None if known is None else known.best()

    def doubt(self, location: Location) -> None:
        """Note that no server there answered and proved itself: the others come first, until all have failed."""
        with self._changed:
            known = self._known.get(location.topic)
            if known is not None and location in known.locations:
                known.doubted.add(location)
                if known.best() is None:
                    known.doubted.clear()

    def was_published(self, topic: str) -> bool:
        """Tell whether the topic has, or ever had, a publisher; False if the registry does not answer."""
        try:
            with map_registry_errors():
                return self._handler.epoch(topic) > 0 or self._handler.is_claimed(topic)
        except JobpipeError:
            return False

    def why_absent(self, topic: str) -> str:
        """Return what the registry knows of a topic that is not served, and what to do; empty if it does not answer."""
        place = self.current(topic)
        if place is not None:
            return f"it is registered at {place.control}, which does not serve it: gone a moment ago, or cut off"
        try:
            with map_registry_errors():
                epoch, owner = self._handler.epoch(topic), self._handler.owner(topic)
                claimed = owner is not None or self._handler.is_claimed(topic)
                known = self._handler.known_topics() if epoch == 0 and not claimed else []
        except JobpipeError:
            return ""
        if owner is not None:
            return f"{owner.name!r} on {owner.host}, coordinator pid {owner.pid}, is about to serve it"
        if claimed:
            return (
                "a publisher has claimed it, whose record in the registry cannot be read: a later version of jobpipe "
                "has written it, or another program"
            )
        if epoch == 0:
            meant = closest(topic, known)
            return (
                f"nobody has ever published it under {self._config.namespace}: "
                f"{'is the name right?' if meant is None else f'did you mean {meant}?'} `jobpipe topics --all` lists "
                "all topics"
            )
        place_of_spool = self._config.spool_dir / topic
        where = f"from {place_of_spool}" if place_of_spool.exists() else "on the host of its spool"
        return (
            f"no publisher is registered now, the last one had epoch {epoch}; start it again, or serve its "
            f"sealed batches with `jobpipe topics serve {topic}`, {where}"
        )

    def wait(self, topic: str, timeout: float) -> Location:
        """Return the location, waiting up to ``timeout`` seconds for a publisher.

        Raises:
            TopicNotFound: none came in time.
        """
        self.follow(topic)
        deadline = Deadline(timeout)
        with self._changed:
            while (found := self._known[topic].best() if topic in self._known else None) is None:
                if deadline.passed or self._closed:
                    raise TopicNotFound(
                        f"topic {topic!r}: no publisher registered it under {self._config.namespace} within "
                        f"{timeout:.3g} s (registry {self._config.registry_connect}); start the publisher, check the "
                        "name with `jobpipe topics`, or raise discoveryTimeout",
                        topic=topic,
                        namespace=self._config.namespace,
                        timeout=timeout,
                    )
                self._changed.wait(deadline.left(1.0))
            return found

    def close(self) -> None:
        """Stop all watches, and the registry session if this locator opened it."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        for watch in (*self._watches.values(), *([] if self._names is None else [self._names])):
            watch.close()
        if self._owned:
            self._handler.shutdown()


def locate(config: Config, topic: str, timeout: float, doubted: Location | None = None) -> Location:
    """Look one topic up with a registry session of its own, closed at the end.

    Args:
        doubted: What was found before, and failed: another one is preferred.

    Raises:
        TopicNotFound: no publisher came in time.
        RegistryUnavailable: the registry does not answer.
    """
    locator = TopicLocator(config)
    try:
        found = locator.wait(topic, timeout)
        if found == doubted:
            locator.doubt(found)
            found = locator.current(topic) or found
        return found
    finally:
        locator.close()
