"""The ledger of one topic: the accounts of its subscriptions, and what was published in each minute of the last day.

It lies in the catalog, in tables of its own. What an account knows beyond the acknowledged position is stored in the
transaction that stores the position, so a position that is there after a crash was proven, or is said not to be.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jobpipe.errors import DataLoss
from jobpipe.store.catalog.batches import Batches
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.log_clock import LogClock
from jobpipe.store.catalog.position import Position
from jobpipe.store.ledger.account_values import Difference, MinuteCounts, Totals
from jobpipe.store.ledger.hop_account import HopAccount, LedgerClock
from jobpipe.store.ledger.log_rows import LogRows
from jobpipe.store.ledger.range_counts import CountedPiece, RangeCount

KEPT_MINUTES = 1_440  # a day of minutes in which something was published


@dataclass(frozen=True)
class PublishedMinute:
    """What was sealed in a minute: minutes since 1970, offsets and rows of what lies before its first and last batch.

    Attributes:
        first, end: the offset of the first batch, and after the last.
        first_row, end_row: the number of the first row, and after the last.
    """

    minute: int
    first: int
    end: int
    first_row: int
    end_row: int


@dataclass(frozen=True)
class AccountReport:
    """An account: ``minutes`` by those of the report, None for what lies before its beginning."""

    name: str
    totals: Totals
    minutes: tuple[MinuteCounts | None, ...]
    differences: tuple[Difference, ...]


class TopicLedger:
    """The ledger of one log. Each subscription that ever had a position has an account."""

    def __init__(self, database: Database, batches: Batches, clock: LogClock) -> None:
        self._db = database
        self._batches = batches
        self._clock = LedgerClock(clock.wall)
        self._rows = LogRows(batches)
        self._accounts: dict[str, HopAccount] = {}
        self._minutes: dict[int, PublishedMinute] = {}
        self._unwritten: set[int] = set()  # minutes
        self._noted = 0  # the offset before which all batches are in a minute
        self._written: dict[str, HopAccount] = {}  # by the last :meth:`write`

    # -- what happens in the log ---------------------------------------------------------------------------------------

    def load(self, positions: Mapping[str, tuple[int, int | None]]) -> None:
        """Take what is stored of the subscriptions that stand somewhere.

        Args:
            positions: by name, the acknowledged offset, and the number of rows before it, if that was stored with it.
        """
        self._rows.forget()
        self._accounts = {}
        if not self._db.value("SELECT 1 FROM sqlite_master WHERE name = 'ledger_accounts'"):
            return  # an older catalog, which is only read
        stored = {row["name"]: row["state"] for row in self._db.all("SELECT * FROM ledger_accounts")}
        for name, (n, row) in positions.items():
            account = self.account(name)
            if name in stored:
                account.load(json.loads(stored[name]), (n, 0), row)
            else:
                account.begin((n, 0))
        rows = self._db.all("SELECT * FROM ledger_minutes ORDER BY minute DESC LIMIT ?", KEPT_MINUTES)
        self._minutes = {row["minute"]: PublishedMinute(*row) for row in reversed(rows)}
        self._noted = max((each.end for each in self._minutes.values()), default=0)
        self.note_sealed()

    def begin_missing(self, positions: Mapping[str, tuple[int, int | None]]) -> None:
        """Make accounts of the subscriptions that have none, where they stand; ``positions`` as for :meth:`load`."""
        for name in positions.keys() - self._accounts.keys():
            self.account(name).begin((positions[name][0], 0))

    def rows_before(self, n: int) -> int | None:
        """Return the number of rows before an offset; None where that is not known any more."""
        return self._rows.before((n, 0))

    def begin_again(self, first: int) -> None:
        """Take the log as it is now: what was sealed from offset ``first`` on is not there any more. In a transaction.

        Subscriptions that had it stay where they are, and what is sealed there again is not read by them.
        """
        self._rows.forget()
        row = self._rows.before((first, 0)) or 0
        kept = [each for each in self._minutes.values() if each.first < first]
        self._minutes = {
            each.minute: replace(each, end=min(each.end, first), end_row=min(each.end_row, row)) for each in kept
        }
        self._db.execute("DELETE FROM ledger_minutes WHERE end_n > ?", first)
        self._unwritten = set(self._minutes)
        self._noted = max((each.end for each in self._minutes.values()), default=0)
        for account in self._accounts.values():
            account.stand_back((first, 0))

    def note_sealed(self) -> None:
        """Count the batches that were sealed since the last time to their minutes."""
        for row in self._db.all(
            "SELECT sealed_ms / 60000 AS minute, min(n) AS first_n, max(n) + 1 AS end_n, "
            "min(cum_rows - rows) AS first_row, max(cum_rows) AS end_row FROM batches WHERE n >= ? "
            "GROUP BY sealed_ms / 60000 ORDER BY minute DESC LIMIT ?",
            *(self._noted, KEPT_MINUTES),
        ):
            found = PublishedMinute(*row)
            known = self._minutes.get(found.minute)
            if known is not None:
                found = replace(found, first=known.first, first_row=known.first_row)
            self._minutes[found.minute] = found
            self._unwritten.add(found.minute)
            self._noted = max(self._noted, found.end)
        while len(self._minutes) > KEPT_MINUTES:
            del self._minutes[min(self._minutes)]

    # -- what happens to subscriptions ---------------------------------------------------------------------------------

    def account(self, name: str) -> HopAccount:
        """Return the account of a subscription, made if it has none."""
        found = self._accounts.get(name)
        if found is None:
            found = self._accounts[name] = HopAccount(self._rows, self._clock)
        return found

    def counted(self, name: str, start: Position, end: Position, reading: str, pieces: Sequence[CountedPiece]) -> None:
        """Take what a task of a subscription has counted.

        Nothing is kept of a subscription that is not known, nor of a range that is not in this log: of another one, of
        a copy that was lost, or beyond the head.
        """
        if (account := self._reader(name, start, end)) is not None:
            account.counted(RangeCount(start.place, end.place, reading, tuple(pieces)))

    def broken(self, name: str, start: Position, end: Position, reading: str, number: int) -> None:
        """Note that the link of a task broke which has got a piece, and has not counted it."""
        if (account := self._reader(name, start, end)) is not None:
            account.counted(RangeCount(start.place, end.place, reading, (), number))

    def _reader(self, name: str, start: Position, end: Position) -> HopAccount | None:
        account = self._accounts.get(name)
        if account is None or start.log != end.log:
            return None
        try:
            self._batches.check_origin(end)
        except DataLoss:
            return None
        return account

    def doubt(self, names: Iterable[str] | None = None) -> None:
        """Note that counts of some subscriptions, or of all, may be lost: what is missing is not taken for a loss."""
        for name in list(self._accounts) if names is None else names:
            if (account := self._accounts.get(name)) is not None:
                account.doubt()

    def advance(self, seconds: float) -> None:
        """Let time pass in which counts could come, and judge what was waited for long enough.

        That is the time of who brings the counts here. If that process stands still, so does the ledger's time.
        """
        self._clock.now += seconds
        for account in self._accounts.values():
            if account.is_waiting:
                account.settle()

    def forget(self, name: str) -> None:
        """Forget the account of a subscription that is gone; :meth:`delete` has deleted what is stored."""
        self._accounts.pop(name, None)

    def delete(self, name: str) -> None:
        """Delete what is stored of a subscription. Inside a transaction."""
        self._db.execute("DELETE FROM ledger_accounts WHERE name = ?", name)

    # -- stored and reported -------------------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """True while an account waits for counts: time is to pass. Any thread may ask."""
        return any(account.is_waiting for account in list(self._accounts.values()))

    @property
    def is_dirty(self) -> bool:
        """True while an account knows something that is not stored, and is not known after a crash."""
        return any(account.dirty for account in self._accounts.values())

    def write(self) -> None:
        """Store what changed. Inside a transaction; :meth:`written` when that committed."""
        self._written = {name: account for name, account in self._accounts.items() if account.dirty}
        states = [(name, account.to_json()) for name, account in self._written.items()]
        self._db.execute_many(
            "INSERT OR REPLACE INTO ledger_accounts VALUES (?, ?)",
            [(name, json.dumps(state)) for name, state in states if state is not None],
        )
        if self._unwritten:
            self._db.execute_many(
                "INSERT OR REPLACE INTO ledger_minutes VALUES (?, ?, ?, ?, ?)",
                [
                    (each.minute, each.first, each.end, each.first_row, each.end_row)
                    for minute in self._unwritten
                    if (each := self._minutes.get(minute)) is not None
                ],
            )
            self._db.execute("DELETE FROM ledger_minutes WHERE minute <= ?", max(self._unwritten) - KEPT_MINUTES)

    def written(self) -> None:
        """Let a committed :meth:`write` count."""
        for account in self._written.values():
            account.dirty = False
        self._written = {}
        self._unwritten.clear()

    def summary(self, name: str) -> tuple[Totals, Difference | None] | None:
        """Return the totals of a subscription, and its newest difference; None while it has no account."""
        account = self._accounts.get(name)
        if account is None or (totals := account.totals) is None:
            return None
        return totals, account.differences[-1] if account.differences else None

    def minutes(self, most: int) -> tuple[PublishedMinute, ...]:
        """Return the newest minutes of the last day in which something was published, oldest first."""
        now = int(self._clock.wall() // 60)
        return tuple([self._minutes[minute] for minute in sorted(self._minutes) if minute > now - KEPT_MINUTES][-most:])

    def names(self) -> list[str]:
        """Return the subscriptions that have an account, in order."""
        return sorted(self._accounts)

    def reports(self, names: Iterable[str], minutes: Sequence[PublishedMinute]) -> list[AccountReport]:
        """Return the accounts of some subscriptions, of those that have one."""
        rows = [(each.first_row, each.end_row) for each in minutes]
        found = []
        for name in names:
            account = self._accounts.get(name)
            if account is not None and (totals := account.totals) is not None:
                found.append(AccountReport(name, totals, tuple(account.minutes(rows)), account.differences))
        return found
