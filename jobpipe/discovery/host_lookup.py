"""Where host servers are found: each is registered, like a topic of its own, in ``<namespace>.hosts``."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable

from jobpipe.config import Config
from jobpipe.discovery.registry_handler import map_registry_errors, open_handler
from jobpipe.net.address import Endpoint
from jobpipe_registry.node_watch import Watch
from jobpipe_registry.topic_records import RegisterRecord


class HostDirectory:
    """One registry session, to register a host server or to look all of them up. Blocking; for one caller at a time.

    Raises:
        RegistryUnavailable: from every method, when the registry does not answer in time.
    """

    def __init__(self, config: Config) -> None:
        self._handler = open_handler(dataclasses.replace(config, namespace=f"{config.namespace}.hosts"))
        self._lock = threading.Lock()
        self._found: dict[str, str] = {}
        self._watches: dict[str, Watch] = {}

    def register(
        self, host: str, endpoint: Endpoint, *, starts: int, ssl: bool, on_lost: Callable[[str], None]
    ) -> None:
        """Register a host server until :meth:`close`; an earlier one of the same folder, with fewer starts, gives way.

        Args:
            on_lost: called, from another thread, when a later server of the same folder has registered.
        """
        self._handler.on_lost = on_lost
        record = RegisterRecord(
            host=endpoint.host,
            port=endpoint.port,
            parallelism=1,
            index=1,
            coordinator=str(endpoint),
            data=str(endpoint),
            epoch=starts,
            instance=host,
            ssl=ssl,
        )
        with map_registry_errors():
            self._handler.register(host, record)

    def hosts(self) -> dict[str, str]:
        """Return the endpoints of all host servers that are registered now, by their ids.

        It costs one request: the registry tells by itself when a known one comes, goes or moves.
        """
        with map_registry_errors():
            names = set(self._handler.topics())
            for host in names - self._watches.keys():
                self._note(host, self._handler.records(host))
                self._watches[host] = self._handler.watch(host, functools.partial(self._note, host))
        for host in self._watches.keys() - names:
            self._watches.pop(host).close()
            self._note(host, [])
        with self._lock:
            return dict(self._found)

    def _note(self, host: str, records: list[RegisterRecord]) -> None:
        with self._lock:
            self._found.pop(host, None)
            for record in records:
                self._found[host] = record.data

    def close(self) -> None:
        """End the session; a registration goes with it."""
        for watch in self._watches.values():
            watch.close()
        self._handler.shutdown()
