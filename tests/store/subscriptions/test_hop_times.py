"""How long batches take from their seal to their acknowledgement: each counted once, none that is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.store.subscriptions import hop_times
from jobpipe.store.subscriptions.hop_times import BUCKETS, HopTimes, TimeHistogram
from tests.store.build import look_into, open_log, seal


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_batch_is_counted_by_its_own_time() -> None:
    clock, histogram = Clock(), TimeHistogram()
    times = HopTimes(clock)
    for n in range(4):  # at 0, 1, 2, 3 s
        clock.now = float(n)
        times.sealed(n, n + 1)
    times.acknowledged(histogram, 1, 3)
    assert histogram.seconds == (3.0 - 1.0) + (3.0 - 2.0)
    assert {BUCKETS[at]: count for at, count in enumerate(histogram.counts[:-1]) if count} == {1.0: 1, 2.5: 1}
    times.acknowledged(histogram, 3, 3)
    assert sum(histogram.counts) == 2
    clock.now = 1_000.0
    times.acknowledged(histogram, 3, 4)
    assert histogram.counts[-1] == 1


def test_several_batches_of_one_transaction() -> None:
    clock, histogram = Clock(), TimeHistogram()
    times = HopTimes(clock)
    times.sealed(7, 10)
    times.acknowledged(histogram, 7, 10)
    assert sum(histogram.counts) == 3
    clock.now = 600.0
    times.sealed(9, 10)  # taken back, and sealed again: its time begins again
    times.sealed(10, 10)  # a batch without rows takes no offset
    times.sealed(10, 11)
    times.acknowledged(histogram, 10, 11)
    assert sum(histogram.counts) == 4
    again = TimeHistogram()
    times.acknowledged(again, 9, 11)
    assert (sum(again.counts), again.seconds) == (2, 0.0)


def test_what_was_sealed_before_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an earlier coordinator: its time is not known."""
    monkeypatch.setattr(hop_times, "KEPT", 3)
    histogram, times = TimeHistogram(), HopTimes(Clock())
    for n in range(10, 20):
        times.sealed(n, n + 1)
    assert len(times._heads) < 6
    times.acknowledged(histogram, 0, 10)
    assert sum(histogram.counts) == 0
    times.acknowledged(histogram, 8, 20)
    assert sum(histogram.counts) == 10
    assert histogram.counts[-1] > 4  # sealed by us too long ago: they took longer than any that is known
    times.sealed(1_000, 2_000)
    assert len(times._heads) < 9


def test_a_status_tells_the_hops_of_each_subscription(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for name in ("fast", "slow"):
        log.subscriptions.subscribe(name)
    grants = {name: log.subscriptions.grant(name, {}) for name in ("fast", "slow")}
    start = log.batches.head()
    for name, grant in grants.items():
        log.subscriptions.first_position(name, start)
        log.subscriptions.acknowledge(name, grant, start)
    positions = [seal(log, batch) for batch in range(3)]
    for position in (positions[0], positions[2]):
        log.subscriptions.acknowledge("fast", grants["fast"], position)
    log.subscriptions.acknowledge("slow", grants["slow"], positions[0])
    log.subscriptions.acknowledge("slow", grants["slow"], positions[0])  # repeated
    log.subscriptions.flush()
    log.subscriptions.reload()
    found = {line.name: sum(line.hops) for line in log.status().subscriptions}
    assert found == {"fast": 3, "slow": 1}
    assert all(line.hop_seconds >= 0.0 for line in log.status().subscriptions)
    other = look_into(tmp_path)  # a coordinator that comes later does not know when they were sealed
    other.take_over(log.epoch + 1, "other")
    other.subscriptions.acknowledge("slow", grants["slow"], positions[2])
    assert {line.name: sum(line.hops) for line in other.status().subscriptions} == {"fast": 0, "slow": 0}
