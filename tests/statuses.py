"""Statuses of topics, for what reads them: all as of an empty topic, except for what a test gives."""

from __future__ import annotations

from typing import Any

from jobpipe.operations.status_operations import Lag, SubscriptionStatus, TopicStatus


def topic_status(topic: str = "t", **given: Any) -> TopicStatus:
    """Return the status of a topic that a publisher has."""
    numbers = ("epoch", "catalog_bytes", "head", "tail", "batches", "rows", "lease_count", "stored_bytes", "bytes")
    nothing: dict[str, Any] = {
        **dict.fromkeys(numbers, 0),
        **dict.fromkeys(("subscriptions", "leases", "holds", "flows", "required"), ()),
        "log": 16 * "0",
        "uptime": 0.0,
        "ended": False,
        "publisher": "p",
        "parallelism": 1,
    }
    return TopicStatus(topic=topic, **{**nothing, **given})


def subscription_status(name: str = "s", *, batches: int = 0, rows: int = 0, **given: Any) -> SubscriptionStatus:
    """Return the status of a subscription that is connected, and lags by so much."""
    nothing: dict[str, Any] = {"required": False, "grant": 1, "silent": 0.0, "stale": 0, "reconnects": 0}
    lag = Lag(batches, rows, 0, 0.0)
    return SubscriptionStatus(name=name, lag=lag, **{**nothing, "state": "connected", **given})
