"""The ledger of a topic: minutes of what was published, what is stored of it, and catalogs of an older format."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import pytest

from jobpipe.store.catalog.catalog_tables import FORMAT, OLDER
from jobpipe.store.catalog.position import Position
from jobpipe.store.ledger.account_values import MinuteCounts, Totals
from jobpipe.store.ledger.hop_account import GRACE_SECONDS
from jobpipe.store.ledger.range_counts import CountedPiece
from jobpipe.store.ledger.topic_ledger import KEPT_MINUTES, PublishedMinute
from jobpipe.store.log.retention import Retention
from jobpipe.store.log.spool_folders import read_status
from jobpipe.store.log.topic_log import TopicLog
from tests.store.build import TOPIC, open_log, seal

HOUR = 29_933_400  # minutes since 1970


class Clock:
    """A wall clock that is set."""

    def __init__(self) -> None:
        self.minute = float(HOUR)

    def __call__(self) -> float:
        return self.minute * 60


def committing(log: TopicLog) -> int:
    """Return the grant of a reader that counts itself, from the beginning."""
    log.subscriptions.subscribe("s")
    log.subscriptions.first_position("s", log.batches.at(0))
    grant = log.subscriptions.grant("s", {"pid": 1})
    log.plans.acknowledge("s", grant, log.batches.at(0), read=0)
    return grant


def minutes(log: TopicLog, count: int = 60) -> list[MinuteCounts | None]:
    (account,) = log.ledger.reports(["s"], log.ledger.minutes(count))
    return list(account.minutes)


def test_a_minute_has_what_was_published_in_it_and_how_far_it_is_committed(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, wall=clock)
    grant = committing(log)
    for batch_id, minute in enumerate((0.0, 0.5, 1.0, 3.9)):
        clock.minute = HOUR + minute
        seal(log, batch_id, ((10,), (5,)))
    assert log.ledger.minutes(60) == (
        PublishedMinute(HOUR, 0, 2, 0, 30),
        PublishedMinute(HOUR + 1, 2, 3, 30, 45),
        PublishedMinute(HOUR + 3, 3, 4, 45, 60),
    )
    assert minutes(log) == [MinuteCounts(rows, 0, 0, 0, 0, False) for rows in (30, 15, 15)]
    log.plans.acknowledge("s", grant, log.batches.at(1), read=15)
    assert minutes(log)[0] == MinuteCounts(30, 15, 15, 0, 0, False)
    log.plans.acknowledge("s", grant, log.batches.at(3), read=44)  # one is lost, in a range of two minutes
    assert minutes(log) == [
        MinuteCounts(30, 30, 30, 0, 0, False),
        MinuteCounts(15, 15, 14, 0, 0, True),  # where the range ends
        MinuteCounts(15, 0, 0, 0, 0, False),
    ]
    assert minutes(log, 1) == [MinuteCounts(15, 0, 0, 0, 0, False)]


def test_what_is_lost_or_doubled_counts_to_its_minutes(tmp_path: Path) -> None:
    """The last rows of a range are taken for those that were lost; no other minute looks as if it differed."""
    clock = Clock()
    log = open_log(tmp_path, wall=clock)
    grant = committing(log)
    for batch_id in range(4):
        seal(log, batch_id, ((10,), (5,)))
        clock.minute += 1
    log.plans.acknowledge("s", grant, log.batches.at(3), read=25)  # 20 of 45 are lost
    log.plans.acknowledge("s", grant, log.batches.at(4), read=70)  # 15 come three times
    assert minutes(log) == [
        MinuteCounts(15, 15, 15, 0, 0, False),
        MinuteCounts(15, 15, 10, 0, 0, True),
        MinuteCounts(15, 15, 0, 0, 0, True),
        MinuteCounts(15, 15, 45, 0, 0, True),
    ]


def test_what_was_moved_over_is_not_committed(tmp_path: Path) -> None:
    log = open_log(tmp_path, wall=Clock())
    grant = committing(log)
    for batch_id in range(3):
        seal(log, batch_id, ((10,), (5,)))
    log.plans.acknowledge("s", grant, log.batches.at(1), read=15)
    log.subscriptions.seek("s", log.batches.at(2))
    log.plans.acknowledge("s", grant, log.batches.at(2), read=15)
    assert minutes(log) == [MinuteCounts(45, 15, 15, 0, 15, False)]
    log.plans.acknowledge("s", grant, log.batches.at(3), read=30)
    assert minutes(log) == [MinuteCounts(45, 30, 30, 0, 15, False)]


def test_what_was_published_before_an_account_began_is_not_its_own(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, wall=clock)
    seal(log, 0, ((10,), (5,)))
    clock.minute += 1
    seal(log, 1, ((10,), (5,)))
    log.subscriptions.subscribe("s")
    log.subscriptions.first_position("s", log.batches.head())
    seal(log, 2, ((10,), (5,)))
    assert minutes(log) == [None, MinuteCounts(15, 0, 0, 0, 0, False)]


def test_minutes_are_there_after_retention_and_restart(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, wall=clock)
    grant = committing(log)
    for batch_id in range(3):
        seal(log, batch_id, ((10,), (5,)))
        clock.minute += 1
    log.plans.acknowledge("s", grant, log.batches.at(3), read=45)
    log.clock.tick(100)
    log.cleaner.retain(Retention(time=0.0, ack_grace=0.0, bytes=0, subscription_expiry=1e9))
    log.clock.tick(100)
    log.cleaner.retain(Retention(time=0.0, ack_grace=0.0, bytes=0, subscription_expiry=1e9))
    assert log.batches.tail_n() == 3
    found = log.ledger.minutes(60), minutes(log)
    assert [each.end_row - each.first_row for each in found[0]] == [15, 15, 15]
    log._db.close()
    again = open_log(tmp_path, wall=clock)
    assert (again.ledger.minutes(60), minutes(again)) == found
    seal(again, 3, ((1,), (1,)))
    assert again.ledger.minutes(60)[-1] == PublishedMinute(HOUR + 3, 3, 4, 45, 47)


def test_a_day_of_minutes_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobpipe.store.ledger.topic_ledger.KEPT_MINUTES", 5)
    clock = Clock()
    log = open_log(tmp_path, wall=clock)
    committing(log)
    for batch_id in range(9):
        seal(log, batch_id, ((1,), (1,)))
        clock.minute += 1
    assert KEPT_MINUTES == 1440
    assert len(log.ledger._minutes) == 5
    assert [each.minute for each in log.ledger.minutes(60)] == [HOUR + 5, HOUR + 6, HOUR + 7, HOUR + 8]
    assert log._db.value("SELECT count(*) FROM ledger_minutes") <= 6


def downgrade(catalog: Path) -> None:
    """Make a catalog one of format 9."""
    database = sqlite3.connect(catalog)
    with database:
        database.execute("DROP TABLE ledger_accounts")
        database.execute("DROP TABLE ledger_minutes")
        database.execute("ALTER TABLE cursors DROP COLUMN rows")
        database.execute("ALTER TABLE subscriptions DROP COLUMN acked_row")
        database.execute("ALTER TABLE queries DROP COLUMN note")
        database.execute(f"PRAGMA user_version = {OLDER[0]}")
    database.close()


def test_an_older_catalog_gets_a_ledger(tmp_path: Path) -> None:
    """Where it is only read it stays as it is."""
    log = open_log(tmp_path)
    grant = committing(log)
    seal(log, 0, ((10,), (5,)))
    log.plans.acknowledge("s", grant, log.batches.at(1), read=15)
    seal(log, 1, ((10,), (5,)))
    log.close()
    downgrade(log.directory / "catalog.db")
    (line,) = read_status(log.directory, TOPIC).subscriptions
    assert (line.acked and line.acked.n, line.totals) == (1, None)
    again = open_log(tmp_path)
    assert again._db.value("PRAGMA user_version") == FORMAT
    assert minutes(again) == [MinuteCounts(15, 0, 0, 0, 0, False)]
    again.plans.acknowledge("s", grant, again.batches.at(1), read=15)
    again.plans.acknowledge("s", grant, again.batches.at(2), read=30)
    (account,) = again.ledger.reports(["s"], ())
    assert account.totals == Totals(committed=15)


@pytest.mark.parametrize("run", range(6))
def test_no_history_makes_a_false_alarm_and_each_fault_makes_one(tmp_path: Path, run: int) -> None:
    """Seals, ranges of any cut, retries, replays, lost acknowledgements, crashes; then a reader that errs once."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    log = open_log(tmp_path)
    log.subscriptions.subscribe("s")
    log.subscriptions.first_position("s", log.batches.at(0))
    grant = log.subscriptions.grant("s", {"pid": 1})
    at, batch_id, reading, crashes = log.batches.at(0), 0, 0, 0
    for _ in range(60):
        for _ in range(chance.randrange(3)):
            seal(log, batch_id, [[chance.randrange(1, 9) for _ in range(chance.randrange(4))] for _ in range(3)])
            batch_id += 1
        if chance.random() < 0.9:
            log.plans.acknowledge("s", grant, at, counts=True)
        plan = log.planner.plan(at, max_rows=chance.choice([None, 3, 20, 50]))
        if plan.end.place == plan.start.place:
            continue
        for _ in range(chance.choice([1, 1, 2])):  # a replay
            reading += 1
            _count(log, plan.start, plan.end, str(reading), chance)
        at = plan.end
        if chance.random() < 0.1:
            crashes += 1
            log._db.close()
            log = open_log(tmp_path)
            log.subscriptions.grant("s", {"pid": 1})
            grant = log.subscriptions.get("s").grant
        log.ledger.advance(chance.choice([0.1, 1.0, GRACE_SECONDS]))
        log.subscriptions.flush()
    log.plans.acknowledge("s", grant, at, counts=True)
    log.ledger.advance(GRACE_SECONDS)
    log.subscriptions.flush()
    (account,) = log.ledger.reports(["s"], ())
    totals = account.totals
    assert not account.differences
    assert totals.committed == log._db.value("SELECT total_rows FROM meta") - log.planner.ahead(at).rows
    assert totals.unproven == 0 or crashes
    assert totals.read + totals.unproven == totals.committed
    seal(log, batch_id, ((5,), (5,), (5,)))
    start, end = at, log.batches.head()
    rows = log.ledger._rows.by_partition(start.place, end.place) or {}
    wrong = chance.choice(sorted(partition for partition, count in rows.items() if count))
    _count(log, start, end, "wrong", chance, {wrong: chance.choice([-1, 1])})
    log.plans.acknowledge("s", grant, end, counts=True)
    log.ledger.advance(GRACE_SECONDS)
    log.subscriptions.flush()
    (found,) = log.ledger.reports(["s"], ())[0].differences
    assert (found.first, found.end, found.partitions) == (start.n, end.n, (wrong,))


def _count(
    log: TopicLog,
    start: Position,
    end: Position,
    reading: str,
    chance: random.Random,
    wrong: Mapping[int, int] | None = None,
) -> None:
    """Report of all partitions of a range, in any order, some twice."""
    told = [
        CountedPiece(partition, partition, rows + (wrong or {}).get(partition, 0))
        for partition, rows in (log.ledger._rows.by_partition(start.place, end.place) or {}).items()
    ]
    told += chance.sample(told, chance.randrange(len(told) + 1))
    chance.shuffle(told)
    for piece in told:
        log.ledger.counted("s", start, end, reading, [piece])
