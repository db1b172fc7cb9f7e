"""Proxies before every port of a bus, and a registry's handler for subscribers that shall go through them."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace

from jobpipe.net.address import Endpoint
from jobpipe.testing.proxy import FaultProxy
from jobpipe_registry.handler import Watch, WatchCallback
from jobpipe_registry.records import RegisterRecord
from jobpipe_registry.zookeeper import ZooKeeperRegisterServerHandler

__all__ = ["PROXIED_HOST", "ReroutedZooKeeper", "open_proxies"]

PROXIED_HOST = "127.0.0.2"
"""Where the proxies listen, each at the port of what it stands before."""

PORTS = 16  # coordinator and data process take two; as many more for each new pair while the old one lingers


class ReroutedZooKeeper(ZooKeeperRegisterServerHandler):
    """Reads every endpoint as one of :data:`PROXIED_HOST`; the configuration names it ``registerserver.handler``."""

    def query(self, topic: str, index: int) -> RegisterRecord | None:
        """Return a registration, rerouted."""
        record = super().query(topic, index)
        return None if record is None else _rerouted(record)

    def records(self, topic: str) -> list[RegisterRecord]:
        """Return all registrations, rerouted."""
        return [_rerouted(record) for record in super().records(topic)]

    def watch(self, topic: str, callback: WatchCallback) -> Watch:
        """Report all registrations, rerouted."""
        return super().watch(topic, lambda records: callback([_rerouted(record) for record in records]))


def _rerouted(record: RegisterRecord) -> RegisterRecord:
    control, data = (
        str(Endpoint(PROXIED_HOST, Endpoint.parse(text).port)) for text in (record.coordinator, record.data)
    )
    return replace(record, host=PROXIED_HOST, coordinator=control, data=data)


def open_proxies(proxies: list[FaultProxy]) -> tuple[dict[str, str], dict[str, str]]:
    """Stand before a range of ports.

    Args:
        proxies: Where to add the proxies, one by one: what is open when one fails can be closed.

    Returns:
        The settings that keep the bus to those ports, and those that lead subscribers to the proxies.
    """
    first = _free_ports(PORTS)
    ports = range(first, first + PORTS)
    proxies.extend(FaultProxy(f"127.0.0.1:{port}", host=PROXIED_HOST, port=port) for port in ports)
    handler = f"{ReroutedZooKeeper.__module__}:{ReroutedZooKeeper.__name__}"
    return {"sinkserver.port.range": f"{first}-{first + PORTS - 1}"}, {"registerserver.handler": handler}


def _free_ports(count: int) -> int:
    """Return the first of ``count`` ports in a row that are free, below those that the kernel gives away."""
    for first in range(20_000, 28_000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    for host in ("127.0.0.1", PROXIED_HOST):
                        probe = stack.enter_context(socket.socket())
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind((host, port))
                        probe.listen()
            except OSError:
                continue
            return first
    raise RuntimeError(f"no {count} free ports in a row")
