"""A subscription as the catalog has it: a value. :mod:`jobpipe.store.subscriptions.positions` keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jobpipe.store.catalog.position import Position
from jobpipe.store.subscriptions.hop_times import TimeHistogram


@dataclass(frozen=True)
class StoredSubscription:
    """A named position.

    Attributes:
        acked: What lies before it is committed by the subscriber; None until the first position is known.
        first: Where the present checkpoint began; None if that was never asked.
        grant: The number of the newest grant; 0 while the name was never held.
        holder: Who got that grant.
        declared: Where the live holder reads now; may lie before ``acked``.
        stale: Acknowledgements ignored since the log was opened, because they were late or repeated.
        hops: How long batches took until they were acknowledged, since the log was opened.
        created_up, seen_up: Coordinator uptime, in seconds, when it was made and last heard of.
    """

    name: str
    acked: Position | None
    first: Position | None
    grant: int
    holder: dict[str, Any] | None
    required: bool
    created_up: float
    seen_up: float
    declared: Position | None
    stale: int
    hops: TimeHistogram

    @property
    def holds_first(self) -> bool:
        """True while the stored first position holds: nothing beyond it was acknowledged."""
        return self.acked is not None and self.first is not None and self.acked.n <= self.first.n
