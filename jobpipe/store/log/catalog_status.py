"""What the catalog contributes to a topic's status (``jobpipe describe``). Costs the same for any number of batches."""

from __future__ import annotations

from typing import Any

from jobpipe.store.catalog.batches import Batches
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.log_clock import LogClock
from jobpipe.store.subscriptions.positions import Subscriptions
from jobpipe.store.subscriptions.subscription import StoredSubscription


def describe_log(db: Database, batches: Batches, subscriptions: Subscriptions, clock: LogClock) -> dict[str, Any]:
    """Return head, tail, sizes, and each subscription with its lag; inside a transaction."""
    wall = clock.wall()
    head, tail = batches.head(), batches.tail()
    rows, size = batches.before(head.n)
    tail_rows, tail_bytes = batches.before(tail.n)

    def line(known: StoredSubscription) -> dict[str, Any]:
        n = tail.n if known.acked is None else known.acked.n
        before_rows, before_bytes = batches.before(n)
        oldest = db.value("SELECT sealed_ms FROM batches WHERE n >= ? ORDER BY n LIMIT 1", n)
        return {
            "name": known.name,
            "acked": None if known.acked is None else known.acked.to_json(),
            "declared": None if known.declared is None else known.declared.to_json(),
            "required": known.required,
            "grant": known.grant,
            "holder": None
            if known.holder is None
            else {key: each for key, each in known.holder.items() if key != "identity"},
            "silent": max(0.0, clock.uptime - known.seen_up),
            "stale": known.stale,
            "lag": {
                "batches": head.n - n,
                "rows": rows - before_rows,
                "bytes": size - before_bytes,
                "seconds": 0.0 if oldest is None else round(max(0.0, wall - oldest / 1000), 3),
            },
        }

    return {
        "head": head.to_json(),
        "tail": tail.to_json(),
        "batches": head.n - tail.n,
        "rows": rows - tail_rows,
        "bytes": size - tail_bytes,
        "total_rows": rows,
        "total_bytes": size,
        "ended": batches.ended(),
        "subscriptions": [line(known) for known in subscriptions.all()],
    }
