"""Finds the endpoints that serve a topic. A registration is a hint: the server must still prove the topic."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from jobpipe.config import Config
from jobpipe.discovery.handler import map_registry_errors, open_handler
from jobpipe.errors import TopicNotFound
from jobpipe.net.address import Endpoint
from registry.handler import RegisterServerHandler
from registry.records import RegisterRecord

__all__ = ["Location", "TopicLocator", "locate"]


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


def from_records(topic: str, records: list[RegisterRecord]) -> Location | None:
    """Return the location of the highest epoch whose registration is complete (all parallel-1..n of one instance)."""
    for epoch in sorted({record.epoch for record in records}, reverse=True):
        same = [record for record in records if record.epoch == epoch]
        first = same[0]
        if {record.index for record in same} >= set(range(1, first.parallelism + 1)):
            return Location(
                topic=topic,
                control=Endpoint.parse(first.coordinator),
                data=Endpoint.parse(first.data),
                epoch=epoch,
                instance=first.instance,
                parallelism=first.parallelism,
                ssl=first.ssl,
            )
    return None


class TopicLocator:
    """Follows the registrations of some topics and knows the newest location of each.

    Thread safe. ``close()`` ends the registry session if the locator opened it.
    """

    def __init__(self, config: Config, handler: RegisterServerHandler | None = None) -> None:
        self._config = config
        self._owned = handler is None
        self._handler = handler if handler is not None else open_handler(config)
        self._changed = threading.Condition()
        self._locations: dict[str, Location | None] = {}
        self._watches = []  # type: ignore[var-annotated]
        self._closed = False

    @property
    def handler(self) -> RegisterServerHandler:
        """The registry session."""
        return self._handler

    def follow(self, topic: str) -> None:
        """Begin to watch ``topic``, which need not exist yet."""
        with self._changed:
            if topic in self._locations or self._closed:
                return
            self._locations[topic] = None

        def on_change(records: list[RegisterRecord]) -> None:
            found = from_records(topic, records)
            with self._changed:
                self._locations[topic] = found
                self._changed.notify_all()

        with map_registry_errors():
            self._watches.append(self._handler.watch(topic, on_change))

    def current(self, topic: str) -> Location | None:
        """Return the newest known location, None when nobody serves the topic now."""
        with self._changed:
            return self._locations.get(topic)

    def wait(self, topic: str, timeout: float) -> Location:
        """Return the location, waiting up to ``timeout`` seconds for a publisher.

        Raises:
            TopicNotFound: none came in time.
        """
        self.follow(topic)
        deadline = time.monotonic() + timeout
        with self._changed:
            while (found := self._locations.get(topic)) is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or self._closed:
                    raise TopicNotFound(
                        f"topic {topic!r}: no publisher registered it under {self._config.namespace} within "
                        f"{timeout:.3g} s (registry {self._config.registry_connect}); start the publisher, check the "
                        "name with `jobpipe topics`, or raise discoveryTimeout",
                        topic=topic,
                        namespace=self._config.namespace,
                        timeout=timeout,
                    )
                self._changed.wait(min(remaining, 1.0))
            return found

    def close(self) -> None:
        """Stop all watches, and the registry session if this locator opened it."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        for watch in self._watches:
            watch.close()
        if self._owned:
            self._handler.shutdown()


def locate(config: Config, topic: str, timeout: float) -> Location:
    """Look one topic up with a registry session of its own, closed at the end.

    Raises:
        TopicNotFound: no publisher came in time.
        RegistryUnavailable: the registry does not answer.
    """
    locator = TopicLocator(config)
    try:
        return locator.wait(topic, timeout)
    finally:
        locator.close()
