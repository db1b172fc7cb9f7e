"""Plans that many subscribers share: kept while the catalog stays as it is, and never longer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jobpipe.errors import DataLoss, Fenced
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading import shared_plans as module
from jobpipe.store.reading.boundary import LATEST, Boundary, ReadLimits
from jobpipe.store.reading.shared_plans import HELD_BYTES, Planned, PlanQuery
from jobpipe.store.spool.segment_index import INLINE_MAX
from tests.store.build import decode, open_log, seal

NO_LIMITS = ReadLimits()


@pytest.fixture
def log(tmp_path: Path) -> TopicLog:
    made = open_log(tmp_path)
    for batch_id in range(3):
        seal(made, batch_id, ((2, 1), (3,)))
    made.subscriptions.subscribe("a")
    made.subscriptions.grant("a", {"instance": "i"})
    made.subscriptions.first_position("a", made.batches.at(0))
    return made


def order(log: TopicLog, n: int, limits: ReadLimits = NO_LIMITS, **more: bool) -> PlanQuery:
    return PlanQuery(log.batches.at(n), limits, **more)


def drop_oldest(log: TopicLog) -> None:
    log.cleaner.drop_oldest(1)


CHANGES: dict[str, Callable[[TopicLog], object]] = {
    "a seal": lambda log: seal(log, 3),
    "an end mark": lambda log: log.seal(NewBatch.end_mark(2), []),
    "other partitions": lambda log: seal(log, 3, ((1,), (1,), (1,))),
    "retention": drop_oldest,
    "a schema": lambda log: log.schemas.add(b"another", None),
    "a seek": lambda log: log.subscriptions.seek("a", log.batches.at(2)),
    "a drop": lambda log: log.subscriptions.drop("a"),
    "a take-over": lambda log: log.take_over(9, "other"),
    "a reopened catalog": lambda log: log.reopen(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_catalog_voids_what_is_kept(log: TopicLog, change: str) -> None:
    """What is told then is what the planner says then."""
    wanted = order(log, 1, held=True)
    known = log.plans.plan_fresh(wanted)
    assert log.plans.plan_fresh(wanted) is known
    assert log.plans.plan(wanted) is known
    CHANGES[change](log)
    now = log.plans.plan(wanted)  # without a look: the change was ours
    assert now is not known
    assert now.plan == log.planner.plan(log.batches.at(1))
    log.close()


def test_a_change_of_another_process_is_seen_by_a_look(log: TopicLog, tmp_path: Path) -> None:
    wanted = order(log, 3)
    known = log.plans.plan_fresh(wanted)
    assert known.is_open
    other = open_log(tmp_path)  # takes it over
    seal(other, 3)
    now = log.plans.plan_fresh(wanted)
    assert now.plan.end.n == 4
    other.close()
    log._db.close()


def test_removed_batches_are_loss_for_who_was_told_of_them(log: TopicLog) -> None:
    log.plans.plan_fresh(order(log, 0))
    drop_oldest(log)
    with pytest.raises(DataLoss, match="missing"):
        log.plans.plan(order(log, 0))
    with pytest.raises(DataLoss, match="missing"):
        log.plans.acknowledge("a", 1, log.batches.at(0))
    log.close()


def test_limits_and_ends_are_kept_apart(log: TopicLog) -> None:
    ends = [
        log.plans.plan_fresh(order(log, 0, limits)).plan.end.n
        for limits in (
            NO_LIMITS,
            ReadLimits(max_rows=6),
            ReadLimits(max_rows=12),
            ReadLimits(Boundary("offset", 2)),
            NO_LIMITS,
        )
    ]
    assert ends == [3, 1, 2, 2, 3]
    log.close()


def test_what_is_kept_is_bounded(log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    monkeypatch.setattr(module, "MOST_CHECKED", 2)
    first = log.plans.plan_fresh(order(log, 0))
    for n in (1, 2, 3):
        log.plans.plan(order(log, n))
    assert len(log.plans._plans) <= 2
    assert len(log.plans._fitting) <= 2
    assert log.plans.plan(order(log, 0)) is not first
    assert log.plans.plan(order(log, 0)) == first
    log.close()


def test_a_count_and_an_end_are_of_now(log: TopicLog) -> None:
    counted = log.plans.plan_fresh(order(log, 1, count=True))
    assert counted.ahead is not None
    assert (counted.ahead.rows, counted.ahead.end.n) == (12, 3)
    assert log.plans.plan(order(log, 1, count=True)) is not counted
    ended = log.plans.plan(order(log, 3, ReadLimits(LATEST)))
    assert ended.stop == log.batches.at(3)
    assert not ended.is_open  # it is over, and not waited for
    log.close()


# -- acknowledging -----------------------------------------------------------------------------------------------------


def test_the_grant_is_checked_before_the_position(log: TopicLog) -> None:
    log.plans.drop_stale()
    assert log.plans.acknowledge("a", 1, log.batches.at(1))
    assert not log.plans.acknowledge("a", 1, log.batches.at(1))  # repeated
    for name, grant in (("a", 2), ("a", 0), ("b", 1)):
        with pytest.raises(Fenced):
            log.plans.acknowledge(name, grant, log.batches.at(2))
    assert log.subscriptions.get("a").acked == log.batches.at(1)
    assert log.subscriptions.get("a").declared == log.batches.at(1)
    log.close()


@pytest.mark.parametrize("start", [Position("0" * 16, 1, 1), Position("", 7, 1), Position("", 1, 9)])
def test_a_position_that_does_not_fit_is_refused_again_and_again(log: TopicLog, start: Position) -> None:
    start = Position(start.log or log.log_id, start.epoch, start.n)
    for _ in range(2):
        with pytest.raises(DataLoss):
            log.plans.acknowledge("a", 1, start)
    assert log.subscriptions.get("a").acked == log.batches.at(0)
    log.close()


# -- rows that come with the plan --------------------------------------------------------------------------------------


def held_rows(planned: Planned) -> list[tuple[int, int, int]]:
    """Return offset, partition and number of each row, in order."""
    assert planned.held is not None
    return [(piece.n, piece.partition, row) for piece in planned.held for row in decode(piece)["row"].to_pylist()]


def test_few_rows_come_by_batch_and_partition(log: TopicLog) -> None:
    planned = log.plans.plan_fresh(order(log, 0, held=True))
    rows = held_rows(planned)
    assert len(rows) == planned.plan.rows == 18
    assert rows == sorted(rows)
    assert log.plans.plan(order(log, 0)).held is None  # not asked for
    log.close()


def test_a_start_inside_of_a_batch_brings_what_is_left_of_it(log: TopicLog) -> None:
    inside = Position(log.log_id, 1, 1, 1)  # in the batch's order: the first record batch of partition 0 is read
    whole = held_rows(log.plans.plan_fresh(order(log, 1, held=True)))
    left = held_rows(log.plans.plan(PlanQuery(inside, NO_LIMITS, held=True)))
    assert left == [row for row in whole if row not in whole[:2]]
    assert len(left) == log.plans.plan(PlanQuery(inside)).plan.rows
    log.close()


@pytest.mark.parametrize("rows", [HELD_BYTES // 8, 10])
def test_much_is_fetched_and_so_is_what_lies_in_files(log: TopicLog, rows: int) -> None:
    seal(log, 3, ((rows,), ()), inline=rows > 10)
    planned = log.plans.plan_fresh(order(log, 3, held=True))
    assert planned.held is None
    assert planned.plan.rows == rows
    assert HELD_BYTES < INLINE_MAX
    log.close()


def test_a_file_that_is_gone_is_told_to_who_fetches_it(log: TopicLog) -> None:
    seal(log, 3, ((10,), ()), inline=False)
    for file in log.segments.iterdir():
        file.unlink()
    assert log.plans.plan_fresh(order(log, 3, held=True)).held is None
    log.close()


def test_an_end_mark_holds_nothing(log: TopicLog) -> None:
    log.seal(NewBatch.end_mark(2), [])
    planned = log.plans.plan_fresh(order(log, 3, held=True))
    assert (planned.held, planned.plan.ends, planned.is_open) == ((), True, False)
    over = log.plans.plan(order(log, 4, held=True))
    assert (over.plan.start, over.plan.ends, over.is_open) == (over.plan.end, True, False)
    log.close()
