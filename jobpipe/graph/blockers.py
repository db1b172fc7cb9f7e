"""Whom the publisher of a topic waits for."""

from __future__ import annotations

from jobpipe.operations.status_operations import ACKS_WAIT, MAX_WAITING, TopicStatus

KINDS = SUBSCRIPTION, LEASE, HOLD = "subscription", "lease", "hold"


def blockers(status: TopicStatus) -> list[tuple[str, str]]:
    """Return whom a publisher waits for: the kind, one of :data:`KINDS`, and the name of each.

    Those that the publisher names; if it names none, what stands at the lowest offset.
    """
    if status.waiting is None:
        return []
    if status.waiting.startswith(ACKS_WAIT):
        named = set(status.waiting.removeprefix(ACKS_WAIT).split(", "))
        if len(status.waiting) >= MAX_WAITING:  # it was cut within its last name
            named.discard(status.waiting.rpartition(", ")[2])
        known = [*(line.name for line in status.subscriptions), *status.required]
        return [(SUBSCRIPTION, name) for name in dict.fromkeys(known) if name in named]
    places = [
        *((line.position, SUBSCRIPTION, line.name) for line in status.subscriptions if line.lag.batches > 0),
        *((lease.first, LEASE, lease.id) for lease in status.leases),
        *((hold.offset, HOLD, hold.name) for hold in status.holds if hold.gap is None),
    ]
    words = set(status.waiting.replace(",", " ").replace(";", " ").split())
    if named_places := [(kind, name) for _, kind, name in places if name in words or repr(name) in words]:
        return named_places
    lowest = min((-1 if at is None else at for at, _, _ in places), default=-1)
    return [(kind, name) for at, kind, name in places if (-1 if at is None else at) == lowest]
