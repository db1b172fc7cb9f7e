"""Hops as lines of a listing: the numbers of each subscription of a topic, as people compare them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jobpipe.ledger.hop_states import HopState, hop_state, minute_state, open_rows_of
from jobpipe.operations.messages.ledger_messages import HopCounts, HopMinute, LedgerMinute, RowDifference
from jobpipe.operations.status_operations import LedgerReply, SubscriptionStatus, TopicStatus


@dataclass(frozen=True)
class MinuteLine:
    """A minute of a hop.

    Attributes:
        minute: when, and which offsets, it was published.
        rows: None: they were published before the account began.
    """

    minute: LedgerMinute
    rows: HopMinute | None
    state: HopState

    @property
    def open_rows(self) -> int | None:
        """Rows that are neither committed nor passed over; None before the account began."""
        return None if self.rows is None else open_rows_of(self.rows)


@dataclass(frozen=True)
class HopLine:
    """A hop.

    Attributes:
        position: the offset of the next batch that it has not acknowledged; None before the first.
        counts: None: it has no account.
        open_rows: its lag.
        differences: that are news, the newest first; the newest one alone if its ledger was not asked for.
        minutes: of its ledger, the newest first.
    """

    topic: str
    name: str
    state: HopState
    position: int | None
    counts: HopCounts | None
    open_rows: int
    differences: tuple[RowDifference, ...] = ()
    minutes: tuple[MinuteLine, ...] = ()

    @property
    def published(self) -> int | None:
        """Rows that were published up to its position, since its account began."""
        return None if self.counts is None else self.counts.committed + self.counts.moved


def hop_lines(
    status: TopicStatus, reply: LedgerReply | None = None, *, name: str | None = None, since: float = 0.0
) -> Iterator[HopLine]:
    """Yield the hops of a topic, by name.

    Args:
        status: of the topic.
        reply: its ledger, if it was asked for.
        name: of the one subscription that is wanted; None: all.
        since: differences that were found before are not news.
    """
    ledgers = {} if reply is None else {hop.name: hop for hop in reply.hops}
    for line in sorted(status.subscriptions, key=lambda line: line.name):
        if name not in (None, line.name):
            continue
        found = ledgers.get(line.name)
        if reply is None or found is None:
            yield _line(status.topic, line, line.counts, line.position, _newest(line.counts), since)
            continue
        minutes = [
            MinuteLine(minute, rows, minute_state(rows))
            for minute, rows in zip(reply.minutes, found.minutes, strict=False)  # a peer's: one may be shorter
        ]
        yield _line(
            status.topic, line, found.counts, found.position, reversed(found.differences), since, tuple(minutes[::-1])
        )


def _line(
    topic: str,
    line: SubscriptionStatus,
    counts: HopCounts | None,
    position: int | None,
    differences: Iterable[RowDifference],
    since: float,
    minutes: tuple[MinuteLine, ...] = (),
) -> HopLine:
    open_rows = max(0, line.lag.rows)
    news = tuple(each for each in differences if each.found >= since)
    state = HopState.DIFFERENT if news else hop_state(counts, open_rows, since)
    return HopLine(topic, line.name, state, position, counts, open_rows, news, minutes)


def _newest(counts: HopCounts | None) -> tuple[RowDifference, ...]:
    return () if counts is None or counts.newest is None else (counts.newest,)
