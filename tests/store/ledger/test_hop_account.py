"""What the ledger says of a subscription: against a real catalog, with readers that count right, wrongly or not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobpipe.coordinator.ledger_replies import hop_counts
from jobpipe.errors import DataLoss, SpoolError
from jobpipe.operations.messages.ledger_messages import HopCounts
from jobpipe.store.catalog.position import Position
from jobpipe.store.ledger.account_values import COUNTED, REMOVED, UNREAD, CountedCursor, Difference, Totals
from jobpipe.store.ledger.hop_account import GRACE_SECONDS, MAX_DIFFERENCES, MAX_UNSETTLED
from jobpipe.store.ledger.range_counts import MAX_PIECES, CountedPiece
from jobpipe.store.log.retention import Retention
from tests.store.build import open_log, seal

LAYOUT = ((30, 30), (40,))  # rows of the record batches of each partition: 100 rows


class Reader:
    """A subscription, and what its reader does."""

    def __init__(self, home: Path, batches: int = 0, layout: Sequence[Sequence[int]] = LAYOUT) -> None:
        self.home = home
        self.log = open_log(home)
        self.log.subscriptions.subscribe("s")
        self.log.subscriptions.first_position("s", self.log.batches.head())
        self.grant = self.log.subscriptions.grant("s", {"pid": 1})
        for number in range(batches):
            seal(self.log, number, layout)

    def at(self, n: int, r: int = 0) -> Position:
        return self.log.batches.at(n, r)

    def plan(
        self,
        n: int,
        r: int = 0,
        *,
        read: int | None = None,
        counts: bool = False,
        wanted: tuple[int, ...] | None = None,
    ) -> None:
        """Acknowledge as a reader that plans what follows."""
        self.log.plans.acknowledge("s", self.grant, self.at(n, r), read=read, counts=counts, wanted=wanted)

    def ack(self, n: int, r: int = 0, **more: Any) -> None:
        """Acknowledge alone."""
        self.log.subscriptions.acknowledge("s", self.grant, self.at(n, r), **more)

    def count(
        self,
        start: tuple[int, int],
        end: tuple[int, int],
        rows: Sequence[int],
        *,
        reading: str = "1",
        epoch: int | None = None,
    ) -> None:
        """Report as one task for each partition does; ``rows`` by partition."""
        first, last = self.at(*start), self.at(*end)
        last = last if epoch is None else replace(last, epoch=epoch)
        for partition, number in enumerate(rows):
            self.log.ledger.counted("s", first, last, reading, [CountedPiece(partition, partition, number)])

    def tick(self, seconds: float = 1.0) -> None:
        self.log.clock.tick(seconds)
        self.log.ledger.advance(seconds)
        self.log.subscriptions.flush()

    def restart(self, *, crash: bool = False) -> None:
        """Let the next coordinator open the log."""
        if crash:
            self.log._db.close()
        else:
            self.log.close()
        self.log = open_log(self.home)

    @property
    def totals(self) -> Totals:
        found = self.log.ledger.summary("s")
        assert found is not None
        return found[0]

    @property
    def differences(self) -> list[tuple[int, int, int, int, tuple[int, ...], str]]:
        (account,) = self.log.ledger.reports(["s"], ())
        return [
            (each.first, each.end, each.published, each.read, each.partitions, each.reason)
            for each in account.differences
        ]


# -- a reader that counts itself ---------------------------------------------------------------------------------------


def test_a_reader_that_counts_what_was_published_is_proven(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 3)
    reader.plan(0, read=0)
    reader.plan(1, read=100)
    reader.plan(3, read=300)
    assert (reader.totals, reader.totals.read) == (Totals(committed=300), 300)
    assert not reader.differences


@pytest.mark.parametrize(("read", "lost", "doubled"), [(199, 1, 0), (100, 100, 0), (0, 200, 0), (201, 0, 1)])
def test_other_rows_are_a_difference_that_names_the_range(tmp_path: Path, read: int, lost: int, doubled: int) -> None:
    reader = Reader(tmp_path, 4)
    reader.plan(0, read=0)
    reader.plan(1, read=100)
    reader.plan(3, read=100 + read)
    assert reader.differences == [(1, 3, 200, read, (), COUNTED)]
    assert reader.totals == Totals(committed=300, lost=lost, doubled=doubled, differences=1)
    assert reader.totals.read == 100 + read
    reader.plan(4, read=200 + read)
    assert len(reader.differences) == 1


def test_an_acknowledgement_that_is_lost_or_late_makes_no_difference(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 4)
    reader.plan(0, read=0)
    reader.plan(2, read=200)  # that of batch 1 was lost
    reader.plan(1, read=100)  # and comes now
    reader.plan(3, read=300)
    assert reader.totals == Totals(committed=300)


def test_a_reader_that_returns_counts_from_where_it_is(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 3)
    reader.plan(0, read=0)
    reader.plan(1, read=100)
    reader.grant = reader.log.subscriptions.grant("s", {"pid": 2})
    reader.plan(1, read=0)
    reader.plan(3, read=200)
    assert reader.totals == Totals(committed=300)


def test_what_a_dead_coordinator_was_not_told_is_unproven(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 3)
    reader.plan(0, read=0)
    reader.plan(1, read=100)
    reader.restart()
    reader.plan(2, read=200)  # it goes on over a new link
    assert reader.totals == Totals(committed=200, unproven=100)
    reader.plan(3, read=300)
    assert reader.totals == Totals(committed=300, unproven=100)


def test_an_older_reader_is_unproven(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2)
    reader.plan(0)
    reader.plan(2)
    reader.tick(GRACE_SECONDS)
    assert reader.totals == Totals(committed=200, unproven=200)
    assert not reader.differences


# -- a reader whose tasks count ----------------------------------------------------------------------------------------


def test_tasks_that_count_what_was_published_prove_it(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 3)
    reader.plan(0, counts=True)
    reader.count((0, 0), (2, 0), [120, 80])
    reader.plan(2, counts=True)
    assert not reader.log.ledger.is_waiting
    reader.count((2, 0), (3, 0), [60, 40])
    reader.plan(3, counts=True)
    reader.tick(GRACE_SECONDS)
    assert reader.totals == Totals(committed=300)


def test_what_is_told_again_is_counted_once(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 1)
    reader.plan(0, counts=True)
    for _ in range(3):  # a task that is tried again, a second action on the frame
        reader.count((0, 0), (1, 0), [60, 40])
    reader.count((0, 0), (1, 0), [60], reading="a run that was killed")
    reader.count((0, 0), (1, 0), [60, 40], reading="the next run")
    reader.plan(1, counts=True)
    assert reader.totals == Totals(committed=100)
    assert not reader.log.ledger.is_waiting


@pytest.mark.parametrize(
    ("rows", "partitions"), [([60, 39], (1,)), ([59, 41], (0, 1)), ([60], (1,)), ([61, 40], (0,)), ([120, 80], (0, 1))]
)
def test_other_rows_of_tasks_are_a_difference(tmp_path: Path, rows: list[int], partitions: tuple[int, ...]) -> None:
    reader = Reader(tmp_path, 2)
    reader.plan(0, counts=True)
    reader.count((0, 0), (1, 0), rows)
    reader.plan(1, counts=True)
    reader.tick(GRACE_SECONDS - 1)
    assert not reader.differences, "a count may be late"
    reader.tick()
    read = sum(rows)
    assert reader.differences == [(0, 1, 100, read, partitions, COUNTED)]
    more = [number - published for number, published in zip([*rows, 0], (60, 40), strict=False)]
    doubled, lost = sum(each for each in more if each > 0), -sum(each for each in more if each < 0)
    assert reader.totals == Totals(committed=100, lost=lost, doubled=doubled, differences=1)


def test_a_count_that_is_late_is_no_difference(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 3)
    reader.plan(0, counts=True)
    reader.count((0, 0), (1, 0), [60])
    reader.plan(3, counts=True)  # the acknowledgement of the first batch did not come
    reader.tick(GRACE_SECONDS - 1)
    assert reader.log.ledger.is_waiting
    reader.log.ledger.counted("s", reader.at(0), reader.at(1), "1", [CountedPiece(1, 1, 40)])
    reader.count((1, 0), (3, 0), [120, 80])
    reader.tick()
    assert not reader.log.ledger.is_waiting
    assert reader.totals == Totals(committed=300)


def test_what_no_task_has_read_is_a_difference_if_it_was_planned_here(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 3)
    reader.plan(0, counts=True)
    reader.count((1, 0), (2, 0), [60, 40])
    reader.plan(3, counts=True)
    reader.tick(GRACE_SECONDS)
    assert reader.differences == [(0, 1, 100, 0, (), UNREAD), (2, 3, 100, 0, (), UNREAD)]
    assert reader.totals == Totals(committed=300, lost=200, differences=2)


def test_what_was_planned_by_a_dead_coordinator_is_unproven(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 3)
    reader.plan(0, counts=True)
    reader.count((0, 0), (1, 0), [60, 40])
    reader.restart(crash=True)
    reader.plan(1, counts=True)
    reader.count((1, 0), (2, 0), [60, 40])
    reader.plan(2, counts=True)
    reader.plan(3, counts=True)
    reader.tick(GRACE_SECONDS)
    assert reader.totals == Totals(committed=300, unproven=100, lost=100, differences=1)
    assert reader.differences == [(2, 3, 100, 0, (), UNREAD)]


def test_doubled_rows_are_a_difference_whoever_planned_them(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 1)
    reader.count((0, 0), (1, 0), [60, 80])
    reader.plan(1, counts=True)
    reader.tick(GRACE_SECONDS)
    assert reader.differences == [(0, 1, 100, 140, (1,), COUNTED)]


def test_ranges_may_end_inside_of_a_batch(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2)  # record batches in order: 30, 40, 30
    reader.plan(0, counts=True)
    reader.count((0, 0), (0, 2), [30, 40])
    reader.plan(0, 2, counts=True)
    assert reader.totals == Totals(committed=70)
    reader.count((0, 2), (1, 1), [59, 0])
    reader.plan(1, 1, counts=True)
    reader.count((1, 1), (2, 0), [30, 40])
    reader.plan(2, counts=True)
    reader.tick(GRACE_SECONDS)
    assert reader.differences == [(0, 2, 60, 59, (0,), COUNTED)]
    assert reader.totals == Totals(committed=200, lost=1, differences=1)


def test_pieces_of_a_partition_add_up(tmp_path: Path) -> None:
    """And a piece that two tasks were given counts twice."""
    reader = Reader(tmp_path, 2)
    reader.plan(0, counts=True)
    for number, (partition, rows) in enumerate(((0, 30), (0, 30), (1, 40))):
        reader.log.ledger.counted("s", reader.at(0), reader.at(1), "1", [CountedPiece(number, partition, rows)])
    reader.plan(1, counts=True)
    assert not reader.log.ledger.is_waiting
    for number, (partition, rows) in enumerate(((0, 60), (1, 40), (1, 40))):
        reader.log.ledger.counted("s", reader.at(1), reader.at(2), "2", [CountedPiece(number, partition, rows)])
    reader.plan(2, counts=True)
    reader.tick(GRACE_SECONDS)
    assert reader.differences == [(1, 2, 100, 140, (1,), COUNTED)]


def test_a_reader_of_some_partitions_is_compared_with_these(tmp_path: Path) -> None:
    """The rows of others are passed over; a batch that has none for it is no difference."""
    reader = Reader(tmp_path, 2)
    seal(reader.log, 2, ((10,), ()))
    seal(reader.log, 3, LAYOUT)
    reader.plan(0, counts=True, wanted=(1,))
    reader.count((0, 0), (1, 0), [0, 40])
    reader.plan(1, counts=True, wanted=(1,))
    assert not reader.log.ledger.is_waiting
    reader.count((1, 0), (2, 0), [0, 39])
    reader.plan(2, counts=True, wanted=(1,))
    reader.plan(3, counts=True, wanted=(1,))
    reader.count((3, 0), (4, 0), [1, 40])
    reader.plan(4, counts=True, wanted=(1,))
    reader.tick(GRACE_SECONDS)
    assert reader.differences == [(1, 2, 40, 39, (1,), COUNTED), (3, 4, 40, 41, (0,), COUNTED)]
    assert reader.totals == Totals(committed=120, moved=190, lost=1, doubled=1, differences=2)


def test_what_a_peer_reports_is_bounded(tmp_path: Path) -> None:
    """Ranges that are not there are not kept; where one is forgotten, nothing counts as lost."""
    reader = Reader(tmp_path, 1)
    ledger = reader.log.ledger
    reader.plan(0, counts=True)
    ledger.counted("nobody's", reader.at(0), reader.at(1), "1", [CountedPiece(0, 0, 60)])
    assert ledger.summary("nobody's") is None
    counts = ledger.account("s")._counts
    for start, end in (
        ((0, 0), (0, 0)),
        ((1, 0), (0, 0)),
        ((0, 1), (0, 1)),
        ((0, 0), (2**62, 2**62)),
        ((0, 0), (2, 0)),
    ):
        reader.count(start, end, [2**62, 2**62])
    assert not counts
    many = [CountedPiece(number, 0, 2**40) for number in range(MAX_PIECES + 10)]
    ledger.counted("s", reader.at(0), reader.at(1), "1", many)
    for number in range(1_000):
        ledger.counted("s", reader.at(0, number), reader.at(1), str(number), [CountedPiece(0, 0, 1)])
    assert (len(counts._ranges), counts._pieces) <= (256, MAX_PIECES)
    reader.count((0, 0), (1, 0), [60, 40], reading="true")
    reader.plan(1, counts=True)
    reader.tick(GRACE_SECONDS)
    assert not [each for each in reader.differences if each[3] < each[2]], reader.differences


def test_no_number_of_a_peer_is_too_large_for_an_answer(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 4)
    for n in range(4):
        reader.plan(n, counts=True)
        reader.count((n, 0), (n + 1, 0), [2**62, 2**62])
    reader.plan(4, counts=True)
    reader.tick(GRACE_SECONDS)
    counts = hop_counts(reader.totals, None)
    assert HopCounts.from_json(counts.to_json()) == counts
    assert reader.totals.doubled > 2**59


def test_a_task_that_may_not_tell_makes_nothing_look_lost(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2)
    reader.plan(0, counts=True)
    reader.count((0, 0), (1, 0), [60, 40])
    reader.plan(1, counts=True)
    reader.log.ledger.doubt(["s", "nobody's"])
    reader.plan(2)
    reader.tick(GRACE_SECONDS)
    assert reader.totals == Totals(committed=200, unproven=100)


def test_a_query_that_reads_nothing_grows_nothing(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 0)
    reader.plan(0, counts=True)
    for number in range(MAX_UNSETTLED + 5):
        seal(reader.log, number, ((1,),))
        reader.plan(number + 1, counts=True)
    assert reader.totals == Totals(committed=5, unproven=5, waiting=MAX_UNSETTLED)
    reader.tick(GRACE_SECONDS)
    assert reader.totals.differences == MAX_UNSETTLED
    assert len(reader.differences) == MAX_DIFFERENCES


# -- positions that are moved ------------------------------------------------------------------------------------------


def test_a_moved_position_is_no_loss(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 4)
    reader.plan(0, read=0)
    reader.plan(1, read=100)
    reader.log.subscriptions.seek("s", reader.at(3))
    assert reader.totals == Totals(committed=100, moved=200)
    reader.plan(3, read=100)
    reader.plan(4, read=200)
    assert (reader.totals, reader.totals.read) == (Totals(committed=200, moved=200), 200)
    reader.log.subscriptions.seek("s", reader.at(1))
    reader.plan(1, read=200)
    reader.plan(4, read=500)
    assert reader.totals == Totals(committed=500, moved=200)
    assert not reader.differences


def test_what_is_removed_before_it_is_read_is_lost(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 4)
    reader.plan(0, counts=True)
    reader.log.cleaner.drop_oldest(1)
    tail = reader.log.batches.tail_n()
    assert tail > 0
    reader.plan(tail, counts=True)  # failOnDataLoss=false
    reader.tick(GRACE_SECONDS)
    assert reader.differences == [(0, tail, 100 * tail, 0, (), REMOVED)]


def test_retention_of_what_was_read_is_no_loss(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 4)
    reader.plan(0, counts=True)
    reader.count((0, 0), (3, 0), [180, 120])
    reader.plan(3, counts=True)
    reader.log.clock.tick(100)
    reader.log.cleaner.retain(Retention(time=0.0, ack_grace=0.0, bytes=0, subscription_expiry=1e9))
    assert reader.log.batches.tail_n() > 0
    reader.count((3, 0), (4, 0), [60, 40])
    reader.plan(4, counts=True)
    reader.tick(GRACE_SECONDS)
    assert reader.totals == Totals(committed=400)
    reader.restart()
    assert reader.totals == Totals(committed=400)


def test_a_dropped_subscription_has_no_account(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2)
    reader.plan(0, read=0)
    reader.plan(1, read=99)
    reader.tick()
    reader.log.subscriptions.drop("s")
    assert reader.log.ledger.summary("s") is None
    reader.restart()
    reader.log.subscriptions.subscribe("s")
    reader.log.subscriptions.first_position("s", reader.at(1))
    assert reader.totals == Totals()


# -- flows -------------------------------------------------------------------------------------------------------------


def flow(reader: Reader, n: int, *cursors: tuple[tuple[int, int], int | None]) -> None:
    """Acknowledge as a flow whose cursors stand at places, after so many rows."""
    told = [CountedCursor(partition, 1, place, rows) for partition, (place, rows) in enumerate(cursors)]
    reader.log.subscriptions.acknowledge("s", reader.grant, reader.at(n), cursors=told)


def test_a_flow_is_proven_in_each_partition(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 3)
    flow(reader, 0, ((0, 0), 5), ((0, 0), 7))
    flow(reader, 0, ((0, 1), 35), ((2, 0), 87))  # one partition is ahead, the other inside of a batch
    flow(reader, 1, ((1, 2), 125), ((3, 0), 127))
    flow(reader, 3, ((3, 0), 185), ((3, 0), 127))
    assert reader.totals == Totals(committed=300)
    assert not reader.differences


@pytest.mark.parametrize(("rows", "read"), [(124, 89), (126, 91)])
def test_other_rows_of_a_flow_are_a_difference(tmp_path: Path, rows: int, read: int) -> None:
    reader = Reader(tmp_path, 3)
    flow(reader, 0, ((0, 0), 5), ((0, 0), 7))
    flow(reader, 0, ((0, 1), 35), ((2, 0), 87))
    flow(reader, 1, ((1, 2), rows), ((3, 0), 127))
    flow(reader, 3, ((3, 0), rows + 60), ((3, 0), 127))
    assert reader.differences == [(0, 2, 90, read, (0,), COUNTED)]


def test_a_flow_is_unproven_where_its_cursors_are_new_or_do_not_count(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 5)
    flow(reader, 1, ((1, 0), 60), ((1, 0), 40))  # the coordinator knows of no cursor before
    assert reader.totals == Totals(committed=100, unproven=100)
    flow(reader, 2, ((2, 0), None), ((2, 0), 80))  # an older task
    flow(reader, 3, ((3, 0), 60), ((3, 0), 120))
    assert reader.totals == Totals(committed=300, unproven=300)
    flow(reader, 4, ((4, 0), 120), ((4, 0), 160))
    assert reader.totals == Totals(committed=400, unproven=300)
    flow(reader, 5, ((5, 0), 0), ((5, 0), 200))  # made again
    assert reader.totals == Totals(committed=500, unproven=400)
    assert not reader.differences


# -- restarts of the coordinator ---------------------------------------------------------------------------------------


def test_what_was_proven_stays_so_after_a_crash(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 3)
    reader.plan(0, read=0)
    reader.plan(2, read=200)
    reader.tick()
    reader.restart(crash=True)
    assert reader.totals == Totals(committed=200)
    (account,) = reader.log.ledger.reports(["s"], reader.log.ledger.minutes(60))
    (minute,) = account.minutes
    assert minute is not None
    assert (minute.published, minute.committed, minute.read, minute.unproven) == (300, 200, 200, 0)


def test_differences_stay_after_a_crash(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2)
    reader.plan(0, read=0)
    reader.plan(1, read=99)
    reader.tick()
    found = reader.log.ledger.reports(["s"], ())
    reader.restart(crash=True)
    assert reader.log.ledger.reports(["s"], ()) == found
    assert isinstance(found[0].differences[0], Difference)


def test_what_was_waited_for_is_unproven_after_a_crash(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 3)
    reader.plan(0, counts=True)
    reader.count((0, 0), (1, 0), [60])
    reader.plan(1, counts=True)
    reader.tick()
    reader.restart(crash=True)
    assert reader.totals == Totals(committed=100, unproven=100)
    reader.tick(GRACE_SECONDS)
    assert reader.totals == Totals(committed=100, unproven=100)


def test_an_acknowledgement_that_was_lost_with_the_coordinator_is_judged_again(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 3)
    reader.plan(0, read=0)
    reader.plan(1, read=100)
    reader.tick()
    reader.plan(2, read=199)  # in memory alone
    assert len(reader.differences) == 1
    reader.restart(crash=True)
    assert reader.totals == Totals(committed=100)
    reader.plan(1, read=100)
    reader.plan(2, read=199)
    assert reader.differences == [(1, 2, 100, 99, (), COUNTED)]


def test_a_batch_that_is_taken_back_and_sealed_again_is_unproven(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2)
    reader.plan(0, read=0)
    reader.plan(2, read=200)
    reader.tick()
    reader.log.take_over(reader.log.epoch + 1, "publisher")
    reader.log.take_back("q", 1)
    seal(reader.log, 1, ((60,), (41,)), run="again")
    assert reader.totals == Totals(committed=100)
    seal(reader.log, 2, LAYOUT, run="again")
    reader.log.subscriptions.acknowledge("s", reader.grant, reader.at(2), read=200)
    reader.log.subscriptions.acknowledge("s", reader.grant, reader.at(3), read=300)
    reader.tick(GRACE_SECONDS)
    assert reader.totals == Totals(committed=301, unproven=101)
    assert not reader.differences


# -- what a review has found -------------------------------------------------------------------------------------------


def test_a_count_that_may_be_lost_is_not_a_loss(tmp_path: Path) -> None:
    """The link of a task broke, or a process between it and the ledger ended."""
    reader = Reader(tmp_path, 3)
    reader.plan(0, counts=True)
    reader.count((0, 0), (1, 0), [60])
    reader.plan(1, counts=True)
    reader.log.ledger.doubt()
    reader.plan(2, counts=True)
    reader.plan(3, counts=True)
    reader.tick(GRACE_SECONDS)
    assert reader.totals == Totals(committed=300, unproven=100, lost=200, differences=2) or reader.totals == Totals(
        committed=300, unproven=200, lost=100, differences=1
    )


def test_no_time_passes_while_no_count_can_come(tmp_path: Path) -> None:
    """A coordinator, or its data process, that stood still: the log's clock runs on."""
    reader = Reader(tmp_path, 1)
    reader.plan(0, counts=True)
    reader.plan(1, counts=True)
    reader.log.clock.tick(1_000)
    reader.log.subscriptions.flush()
    reader.count((0, 0), (1, 0), [60, 40])
    reader.tick(GRACE_SECONDS)
    assert reader.totals == Totals(committed=100)


@pytest.mark.parametrize("by", ["an older checkpoint", "a person"])
def test_a_reader_that_goes_on_earlier_is_not_judged_again(tmp_path: Path, by: str) -> None:
    reader = Reader(tmp_path, 5)
    reader.plan(0, counts=True)
    if by == "a person":
        reader.count((0, 0), (1, 0), [60, 40])
        reader.plan(1, counts=True)
        reader.log.subscriptions.seek("s", reader.at(3))
    else:
        reader.count((0, 0), (3, 0), [180, 120])
        reader.plan(3, counts=True)
        reader.grant = reader.log.subscriptions.grant("s", {"pid": 2})
    reader.plan(1, counts=True)
    reader.count((1, 0), (5, 0), [240, 160])
    reader.plan(5, counts=True)
    reader.tick(GRACE_SECONDS)
    assert not reader.differences
    assert reader.totals.unproven == 200


def test_counts_that_come_after_retention_are_not_a_loss(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 4)
    reader.plan(0, counts=True)
    reader.plan(3, counts=True)
    reader.log.clock.tick(100)
    reader.log.cleaner.retain(Retention(time=0.0, ack_grace=0.0, bytes=0, subscription_expiry=1e9))
    assert reader.log.batches.tail_n() == 3
    for n in range(3):
        reader.count((n, 0), (n + 1, 0), [60, 40])
    reader.tick(GRACE_SECONDS)
    assert not reader.differences


def test_counts_of_a_copy_that_was_taken_back_prove_nothing(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2)
    reader.plan(0, counts=True)
    reader.count((0, 0), (1, 0), [60, 40])
    reader.plan(1, counts=True)
    reader.count((1, 0), (2, 0), [60, 40], reading="old")
    old = reader.at(2).epoch
    reader.log.take_over(reader.log.epoch + 1, "publisher")
    reader.log.take_back("q", 1)
    seal(reader.log, 1, ((30,), (30,)), run="again")
    reader.count((1, 0), (2, 0), [60, 40], reading="late", epoch=old)
    reader.plan(2, counts=True)
    reader.tick(GRACE_SECONDS)
    assert not reader.differences
    assert reader.totals == Totals(committed=160, unproven=60)


@pytest.mark.parametrize("crash", [True, False])
def test_what_is_removed_unread_is_lost_after_a_restart_too(tmp_path: Path, crash: bool) -> None:
    """The row of the position is stored with it: the log knows it no more."""
    reader = Reader(tmp_path, 9)
    reader.plan(0, read=0)
    reader.plan(5, read=500)
    reader.tick()
    while reader.log.batches.tail_n() < 7:
        reader.log.cleaner.drop_oldest(1)
    reader.restart(crash=crash)
    assert reader.totals == Totals(committed=500)
    with pytest.raises(DataLoss, match="5 to 6 are missing"):
        reader.log.plans.acknowledge("s", reader.grant, Position(reader.log.log_id, 1, 5), counts=True)
    reader.plan(7, counts=True)
    reader.count((7, 0), (9, 0), [120, 80])
    reader.plan(9, counts=True)
    reader.tick(GRACE_SECONDS)
    assert reader.differences == [(5, 7, 200, 0, (), REMOVED)]
    assert reader.totals == Totals(committed=900, lost=200, differences=1)


def test_of_overlapping_ranges_the_proven_ones_count(tmp_path: Path) -> None:
    """A run was killed in a longer range; the next one has read shorter ones, and passed over a lost batch."""
    reader = Reader(tmp_path, 3)
    reader.plan(0, counts=True)
    reader.count((0, 0), (3, 0), [180], reading="killed")
    reader.count((0, 0), (1, 0), [60, 40], reading="next")
    reader.count((2, 0), (3, 0), [60, 40], reading="next")
    reader.plan(3, counts=True)
    reader.tick(GRACE_SECONDS)
    assert reader.differences == [(1, 2, 100, 0, (), UNREAD)]


def test_an_older_reader_takes_over(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2)
    reader.plan(0, counts=True)
    reader.grant = reader.log.subscriptions.grant("s", {"pid": 2})
    reader.ack(1)
    reader.plan(2)
    reader.tick(GRACE_SECONDS)
    assert reader.totals == Totals(committed=200, unproven=200)
    assert not reader.log.ledger.is_waiting


def test_rows_that_come_again_without_progress_are_doubled(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2)
    reader.plan(0, read=0)
    reader.plan(1, read=100)
    reader.plan(1, read=200)
    reader.plan(2, read=300)
    assert reader.differences == [(1, 2, 0, 100, (), COUNTED)]
    assert reader.totals == Totals(committed=200, doubled=100, differences=1)


def test_a_flow_that_leaves_a_partition_out_is_not_proven(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2)
    flow(reader, 0, ((0, 0), 0))
    flow(reader, 2, ((2, 0), 120))
    assert reader.totals == Totals(committed=200, unproven=200)


def test_a_sum_hides_nothing_in_many_batches(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for number in range(1_100):
        seal(reader.log, number, ((1,), (1,)))
    reader.plan(0, counts=True)
    reader.count((0, 0), (1_100, 0), [0, 2_200])
    reader.plan(1_100, counts=True)
    reader.tick(GRACE_SECONDS)
    assert reader.differences == [(0, 1_100, 2_200, 2_200, (0, 1), COUNTED)]


@pytest.mark.parametrize("crash", [True, False])
def test_a_move_is_stored_with_its_position(tmp_path: Path, crash: bool) -> None:
    reader = Reader(tmp_path, 4)
    reader.plan(0, read=0)
    reader.plan(1, read=100)
    reader.tick()
    reader.log.subscriptions.seek("s", reader.at(3))
    before = reader.totals
    reader.restart(crash=crash)
    assert reader.totals == before == Totals(committed=100, moved=200)


@pytest.mark.parametrize("crash", [True, False])
def test_what_was_taken_back_and_sealed_again_is_not_proven_by_a_restart(tmp_path: Path, crash: bool) -> None:
    reader = Reader(tmp_path, 2)
    reader.plan(0, read=0)
    reader.plan(2, read=200)
    reader.tick()
    reader.log.take_over(reader.log.epoch + 1, "publisher")
    reader.log.take_back("q", 1)
    seal(reader.log, 1, ((1_000,), (1,)), run="again")
    reader.restart(crash=crash)
    assert reader.totals == Totals(committed=1_101, unproven=1_001)


def test_a_new_subscription_that_stands_after_what_is_taken_back(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2)
    reader.log.subscriptions.seek("s", reader.at(2))
    reader.log.subscriptions.subscribe("new")
    reader.log.subscriptions.first_position("new", reader.at(2))
    reader.log.take_over(reader.log.epoch + 1, "publisher")
    reader.log.take_back("q", 1)
    found = reader.log.ledger.summary("new")
    assert found is not None
    assert HopCounts.from_json(hop_counts(*found).to_json()).committed == 0


def test_a_drop_that_fails_keeps_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path, 2)
    reader.plan(0, read=0)
    reader.plan(1, read=99)
    reader.tick()
    before = reader.totals

    def failing() -> None:
        raise SpoolError("the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(reader.log._db, "_commit", failing)
        with pytest.raises(SpoolError):
            reader.log.subscriptions.drop("s")
    assert reader.totals == before
    reader.restart()
    assert reader.totals == before


def test_lists_are_bounded_and_say_nothing_false(tmp_path: Path) -> None:
    """What lies before the oldest span or difference that is kept is not told of."""
    reader = Reader(tmp_path)
    reader.plan(0, read=0)
    count = 0
    for number in range(3 * MAX_DIFFERENCES):
        seal(reader.log, number, ((10,),))
        count += 10 if number % 2 else 9
        reader.plan(number + 1, read=count)
    assert len(reader.differences) == MAX_DIFFERENCES
    (account,) = reader.log.ledger.reports(["s"], reader.log.ledger.minutes(60))
    (minute,) = account.minutes
    assert minute is not None
    assert minute.published < 30 * MAX_DIFFERENCES
    assert minute.published - minute.read in (MAX_DIFFERENCES, MAX_DIFFERENCES - 1)


def test_a_disk_that_fails_hides_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's thread repeats what has failed; whatever is judged twice is judged once."""
    reader = Reader(tmp_path, 4)
    failures = [False]
    rows = type(reader.log.batches).partition_rows

    def failing(*args: Any, **more: Any) -> Any:
        if failures[0]:
            failures[0] = False
            raise SpoolError("the disk fails")
        return rows(*args, **more)

    monkeypatch.setattr(type(reader.log.batches), "partition_rows", failing)

    def twice(work: Callable[[], object]) -> None:
        failures[0] = True
        with contextlib.suppress(SpoolError):
            work()
        if not failures[0]:
            work()

    reader.plan(0, counts=True)
    reader.count((0, 0), (1, 0), [59, 40])
    twice(lambda: reader.plan(1, counts=True))
    reader.plan(2, counts=True)
    reader.count((1, 0), (2, 0), [60, 41])
    twice(lambda: reader.tick(GRACE_SECONDS))
    twice(lambda: reader.tick())
    assert sorted(reader.differences) == [(0, 1, 100, 99, (0,), COUNTED), (1, 2, 100, 101, (1,), COUNTED)]
    twice(lambda: flow(reader, 2, ((2, 0), 0), ((2, 0), 0)))
    twice(lambda: flow(reader, 3, ((3, 0), 59), ((3, 0), 40)))
    assert len(reader.differences) == 3


def test_a_move_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path, 4)
    reader.plan(0, counts=True)
    reader.plan(2, counts=True)
    reader.log.subscriptions.flush()

    def failing() -> None:
        raise SpoolError("the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(reader.log.ledger, "write", failing)
        with pytest.raises(SpoolError):
            reader.log.subscriptions.seek("s", reader.at(3))
    assert reader.log.ledger.is_waiting
    reader.tick(GRACE_SECONDS)
    assert reader.differences == [(0, 2, 200, 0, (), UNREAD)]


def test_a_flow_whose_partition_was_ahead_is_unproven_up_to_there(tmp_path: Path) -> None:
    """The account learns of a cursor that is further on already: what lies before it was not compared."""
    reader = Reader(tmp_path, 6)
    flow(reader, 0, ((0, 0), 0), ((0, 0), 0))
    reader.restart()
    reader.grant = reader.log.subscriptions.grant("s", {"pid": 2})
    flow(reader, 0, ((4, 0), 60), ((0, 0), 0))  # 180 rows of partition 0 are lost
    flow(reader, 2, ((4, 0), 60), ((2, 0), 80))
    flow(reader, 6, ((6, 0), 180), ((6, 0), 240))
    assert not reader.differences
    assert reader.totals == Totals(committed=600, unproven=400)


def test_a_batch_that_is_taken_back_right_before_a_crash(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2)
    reader.plan(0, read=0)
    reader.plan(2, read=200)
    reader.tick()
    reader.log.take_over(reader.log.epoch + 1, "publisher")
    reader.log.take_back("q", 1)
    reader.restart(crash=True)
    seal(reader.log, 1, ((1_000,), ()), run="again")
    seal(reader.log, 2, LAYOUT, run="again")
    reader.ack(2, read=1_100)
    reader.ack(3, read=1_200)
    assert not reader.differences
    assert reader.totals.unproven >= 1_000


def test_a_plan_for_another_log_changes_nothing(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2)
    with pytest.raises(DataLoss):
        reader.log.plans.acknowledge("s", reader.grant, Position("f" * 16, 1, 7), counts=True)
    reader.plan(0, counts=True)
    reader.plan(2, counts=True)
    reader.tick(GRACE_SECONDS)
    assert reader.differences == [(0, 2, 200, 0, (), UNREAD)]


def test_what_is_not_judged_yet_is_open(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 2)
    reader.plan(0, counts=True)
    reader.plan(2, counts=True)
    assert (reader.totals, reader.totals.read) == (Totals(waiting=200), 0)
    (account,) = reader.log.ledger.reports(["s"], reader.log.ledger.minutes(60))
    (minute,) = account.minutes
    assert minute is not None
    assert (minute.published, minute.committed, minute.read) == (200, 0, 0)
