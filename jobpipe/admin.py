"""What an administrator asks: which topics there are, and how each one stands."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any

from jobpipe.config import Config
from jobpipe.deletion import Deleter, Deletion
from jobpipe.discovery.handler import map_registry_errors
from jobpipe.discovery.locate import Location, TopicLocator, from_records
from jobpipe.discovery.security import dial_tls
from jobpipe.errors import JobpipeError, TopicNotFound
from jobpipe.net.blocking import BlockingLink
from jobpipe.net.identity import topic_server_name
from jobpipe.store import Boundary
from jobpipe.wire.messages import Hello

__all__ = ["Admin", "TopicLine"]

log = logging.getLogger(__name__)

ASKED_AT_ONCE = 8


@dataclass(frozen=True)
class TopicLine:
    """One topic as the registry has it; ``location`` is None while nobody serves it."""

    name: str
    location: Location | None


class Admin:
    """A registry session and one-off questions to coordinators; a context manager."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._locator = TopicLocator(config)

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the registry session."""
        self._locator.close()

    def topics(self) -> list[TopicLine]:
        """Return all topics of the namespace, by name.

        Raises:
            RegistryUnavailable: the registry does not answer.
        """
        handler = self._locator.handler
        with map_registry_errors():
            return [TopicLine(name, from_records(name, handler.records(name))) for name in sorted(handler.topics())]

    def known_topics(self) -> list[str]:
        """Return the names of all topics that were ever published in the namespace and not deleted.

        Raises:
            RegistryUnavailable: the registry does not answer.
        """
        with map_registry_errors():
            return self._locator.handler.known_topics()

    def statuses(self, topics: Sequence[str], timeout: float) -> dict[str, dict[str, Any]]:
        """Return the status of each topic whose coordinator answers us in time; several are asked at once."""

        def ask(topic: str) -> dict[str, Any] | None:
            try:
                return self.status(topic, timeout)
            except JobpipeError as error:
                log.info("topic %s: no status (%s)", topic, error)
                return None

        with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="status") as pool:
            found = list(pool.map(ask, topics))
        return {topic: status for topic, status in zip(topics, found, strict=True) if status is not None}

    def locate(self, topic: str) -> Location:
        """Return where ``topic`` is served now.

        Raises:
            TopicNotFound: nobody serves it; says what the registry knows of it.
        """
        with map_registry_errors():
            found = from_records(topic, self._locator.handler.records(topic))
        if found is None:
            raise TopicNotFound(f"topic {topic!r} is not served: {self._locator.why_absent(topic)}", topic=topic)
        return found

    def status(self, topic: str, timeout: float = 5.0) -> dict[str, Any]:
        """Return the coordinator's status of ``topic``.

        Raises:
            TopicNotFound: nobody serves it.
            LinkError: its coordinator does not answer.
        """
        with self._link(topic) as link:
            return link.call("status", timeout=timeout).result

    def seek(
        self, topic: str, name: str, to: str | int | datetime | Boundary, *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Move a subscription that nobody holds to ``earliest``, ``latest``, an offset, or a time with its zone.

        Returns:
            ``{"name", "from", "to"}``, in offsets; with ``dry_run`` nothing is changed.

        Raises:
            NameTaken: a live subscriber holds it; the message names it.
            SubscriptionNotFound, DataLoss: there is no such subscription, or no such offset.
            ConfigError: nothing was published since that time.
        """
        args = {"name": name, "to": Boundary.of(to, "to").to_json(), "dry_run": dry_run}
        with self._link(topic) as link:
            return link.call("seek", args, timeout=10.0).result

    def drop(self, topic: str, name: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Delete a subscription that nobody holds; returns and raises as :meth:`seek`."""
        with self._link(topic) as link:
            return link.call("drop", {"name": name, "dry_run": dry_run}, timeout=10.0).result

    def delete(self, topic: str, *, unread: bool = False, dry_run: bool = False) -> Deletion:
        """Delete a topic that nobody serves: its spool on this host, its epoch and recovery point in the registry.

        Args:
            unread: delete also what subscriptions have not read, or may not have read: where no spool is here.
            dry_run: check, and change nothing.

        Raises:
            TopicNotFound: neither the registry nor the spool folder knows it.
            TopicOwned: it is served, or about to be.
            DataLoss: subscriptions have not read everything; names them.
            SpoolError: its spool is not here, of another namespace, or cannot be removed.
        """
        return Deleter(self.config, self._locator).delete(topic, unread=unread, dry_run=dry_run)

    def drop_lease(self, topic: str, lease: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Take a lease away, so that what it holds may be removed; the read that took it fails if that happens.

        Returns:
            What it held: ``{"id", "first", "last", "left", "owner", "since", "connected"}``; times in seconds. With
            ``dry_run`` nothing is changed.

        Raises:
            TopicNotFound: there is no such lease, or nobody serves the topic.
        """
        with self._link(topic) as link:
            return link.call("drop_lease", {"id": lease, "dry_run": dry_run}, timeout=10.0).result

    @contextmanager
    def _link(self, topic: str) -> Iterator[BlockingLink]:
        hello = Hello(topic=topic, role="admin", instance=f"admin-{os.getpid()}")
        endpoint = self.locate(topic).control
        tls = dial_tls(self.config, endpoint)
        link = BlockingLink.connect(endpoint, hello, tls=tls, server_hostname=topic_server_name(topic) if tls else None)
        try:
            yield link
        finally:
            link.close()
