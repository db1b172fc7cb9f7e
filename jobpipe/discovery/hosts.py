"""Where host servers are found: each is registered, like a topic of its own, in ``<namespace>.hosts``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jobpipe.config import Config
from jobpipe.discovery.handler import map_registry_errors, open_handler
from jobpipe.net.address import Endpoint
from registry.records import RegisterRecord

__all__ = ["HostDirectory"]


class HostDirectory:
    """One registry session, to register a host server or to look all of them up. Blocking; for any thread.

    Raises:
        RegistryUnavailable: from every method, when the registry does not answer in time.
    """

    def __init__(self, config: Config) -> None:
        self._handler = open_handler(dataclasses.replace(config, namespace=f"{config.namespace}.hosts"))

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
        """Return the endpoints of all host servers that are registered now, by their ids."""
        found = {}
        with map_registry_errors():
            for host in self._handler.topics():
                for record in self._handler.records(host):
                    found[host] = record.data
        return found

    def close(self) -> None:
        """End the session; a registration goes with it."""
        self._handler.shutdown()
