"""A registry's handler for subscribers that shall go through the proxies of a harness; see there."""

from __future__ import annotations

from dataclasses import replace

from jobpipe.net.address import Endpoint
from registry.handler import Watch, WatchCallback
from registry.records import RegisterRecord
from registry.zookeeper import ZooKeeperRegisterServerHandler

__all__ = ["PROXIED_HOST", "ReroutedZooKeeper"]

PROXIED_HOST = "127.0.0.2"
"""Where the proxies listen, each at the port of what it stands before."""


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
