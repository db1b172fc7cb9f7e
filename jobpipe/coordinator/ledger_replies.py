"""What the coordinator answers of a topic's ledger: the store's values as messages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from jobpipe.operations.messages.ledger_messages import (
    MAX_CELLS,
    HopCounts,
    HopLedger,
    HopMinute,
    LedgerMinute,
    RowDifference,
)
from jobpipe.operations.status_operations import LedgerReply
from jobpipe.store.ledger.account_values import Difference, MinuteCounts, Totals
from jobpipe.store.ledger.topic_ledger import AccountReport, PublishedMinute

LEDGER_STEP = 50
"""Accounts that are looked at in one turn of the log's thread."""

MAX_TOLD = 5_000  # differences of one answer, of all accounts together


def most_minutes(asked: int, accounts: int) -> int:
    """Return of how many minutes one answer tells: of all accounts together it is bounded."""
    return max(1, min(asked, MAX_CELLS // max(1, accounts)))


def ledger_reply(
    topic: str,
    minutes: Sequence[PublishedMinute],
    accounts: Sequence[AccountReport],
    positions: Mapping[str, int | None],
) -> LedgerReply:
    """Return the answer to ``ledger``; ``positions``: the offset that each subscription has acknowledged."""
    most = max(1, MAX_TOLD // max(1, len(accounts)))
    return LedgerReply(
        topic=topic,
        at=round(time.time(), 3),
        minutes=tuple(
            LedgerMinute(each.minute, each.first, each.end, each.end_row - each.first_row) for each in minutes
        ),
        hops=tuple(_hop(each, positions.get(each.name), most) for each in accounts),
    )


def hop_counts(totals: Totals, newest: Difference | None) -> HopCounts:
    """Return the totals of an account, with its newest difference."""
    return HopCounts(**asdict(totals), read=totals.read, newest=None if newest is None else _difference(newest))


def _hop(account: AccountReport, position: int | None, most: int) -> HopLedger:
    return HopLedger(
        name=account.name,
        position=position,
        counts=hop_counts(account.totals, account.differences[-1] if account.differences else None),
        minutes=tuple(None if each is None else _minute(each) for each in account.minutes),
        differences=tuple(map(_difference, account.differences[-most:])),
    )


def _minute(counts: MinuteCounts) -> HopMinute:
    return HopMinute(**asdict(counts))


def _difference(found: Difference) -> RowDifference:
    return RowDifference(
        first=found.first,
        end=found.end,
        published=found.published,
        read=found.read,
        partitions=found.partitions,
        found=found.found,
        reason=found.reason,
    )
