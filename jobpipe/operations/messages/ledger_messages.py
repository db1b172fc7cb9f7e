"""What the ledger of a topic tells: for each subscription and minute, rows that were published, read and committed.

The terms are those of :mod:`jobpipe.store.ledger`.
"""

from __future__ import annotations

from typing import Annotated

from jobpipe.operations.messages.checked_values import Boolean, Integer, Items, Number, OrNull, Text
from jobpipe.operations.messages.message_fields import MAX_PARTITION, OMITTED, Count, Fields, Name, Nested, message

MAX_MINUTES = 1_440
"""Minutes of a ledger: a day."""

MAX_CELLS = 100_000
"""Minutes of all subscriptions in one answer: a topic with more subscriptions tells of fewer minutes."""

MAX_DIFFERENCES = 100
"""That are kept of one subscription, the newest ones."""

MAX_NAMED = 16
"""Partitions that a difference names."""


@message(kw_only=True)
class RowDifference(Fields):
    """A range of the log of which a subscription has committed other rows than were published.

    Attributes:
        first, end: the offsets of its first batch, and after its last one.
        published, read: rows.
        partitions: the publisher's that differ, as far as that is known; () where it is not.
        found: when, in seconds since 1970.
        reason: ``counted`` (its readers counted other rows), ``unread`` (no reader has said that it read them),
            or ``removed`` (they were removed before they were read).
    """

    first: Count
    end: Count
    published: Count
    read: Count
    partitions: Annotated[tuple[int, ...], Items(Integer(0, MAX_PARTITION), MAX_NAMED), OMITTED] = ()
    found: Annotated[float, Number(0.0, 1e12)]
    reason: Annotated[str, Text(32)]


@message(kw_only=True)
class HopCounts(Fields):
    """Rows of one subscription, since its account began.

    Attributes:
        committed: that it has acknowledged, without those that were moved over.
        read: of these, what its readers have counted.
        unproven: committed, and not known whether they were read: a coordinator ended meanwhile, or the reader
            is an older one, which does not count.
        moved: passed over, since a person or a new checkpoint has moved the position; or of partitions that it is not
            to read.
        waiting: committed a moment ago, and not judged yet: they count to none of the others.
        lost, doubled: that were read less, or more, than published: the sums of all differences.
        differences: how many ranges differ.
        newest: the newest of these.
    """

    committed: Count
    read: Count
    unproven: Count = 0
    moved: Count = 0
    waiting: Annotated[int, Integer(), OMITTED] = 0
    lost: Count = 0
    doubled: Count = 0
    differences: Count = 0
    newest: Annotated[RowDifference | None, Nested(RowDifference), OMITTED] = None


@message
class LedgerMinute(Fields):
    """What was published in a minute: minutes since 1970, the offsets of its first batch and after its last, rows."""

    minute: Count
    first: Count
    end: Count
    rows: Count


@message
class HopMinute(Fields):
    """The rows that were published in a minute, as one subscription has them now.

    Attributes:
        published: of them, what the subscription is to have: all, unless its account began in this minute.
        committed, read, unproven, moved: as in :class:`HopCounts`, of these rows.
        differs: a range that differs ends in this minute.
    """

    published: Count
    committed: Count
    read: Count
    unproven: Annotated[int, Integer(), OMITTED] = 0
    moved: Annotated[int, Integer(), OMITTED] = 0
    differs: Annotated[bool, Boolean(), OMITTED] = False


@message(kw_only=True)
class HopLedger(Fields):
    """The ledger of one subscription.

    Attributes:
        name: the subscription's.
        position: the offset of the next batch that it has not acknowledged; None before the first.
        counts: since its account began.
        minutes: one for each minute of the reply; None for what was published before the account began.
        differences: the newest ones, oldest first; fewer where there are many subscriptions.
    """

    name: Name
    position: Annotated[int | None, Integer()] = None
    counts: Annotated[HopCounts, Nested(HopCounts)]
    minutes: Annotated[tuple[HopMinute | None, ...], Items(OrNull(Nested(HopMinute)), MAX_MINUTES)]
    differences: Annotated[tuple[RowDifference, ...], Items(Nested(RowDifference), MAX_DIFFERENCES)] = ()
