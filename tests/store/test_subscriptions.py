from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jobpipe.errors import ConfigError, DataLoss, Fenced
from jobpipe.store import Position, Subscription, TopicLog
from tests.store.build import TOPIC, open_log, seal


def only(log: TopicLog) -> Subscription:
    (subscription,) = log.subscriptions()
    return subscription


def held(log: TopicLog, name: str = "s") -> int:
    log.subscribe(name)
    return log.grant(name, {"pid": 1})


def test_a_new_subscription_stands_nowhere_and_a_required_one_at_the_tail(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    assert log.subscribe("free").acked is None
    must = log.subscribe("must", required=True)
    assert (must.acked, must.required) == (log.tail(), True)
    assert log.subscribe("must").required
    assert log.subscribe("free", required=True).acked == log.tail()
    log.require(["free", "more"])
    assert {s.name: s.required for s in log.subscriptions()} == {"free": True, "must": False, "more": True}
    log.close()


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 129, "a b", "-a"])
def test_names_are_checked(tmp_path: Path, name: str) -> None:
    log = open_log(tmp_path)
    with pytest.raises(ConfigError):
        log.subscribe(name)
    log.close()


def test_the_first_position_is_repeated_until_something_beyond_it_is_acknowledged(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    grant = held(log)
    first = log.first_position("s", log.head())
    assert first.n == 1
    seal(log, 1)
    assert log.first_position("s", log.head()) == first
    assert not log.acknowledge("s", grant, first)
    log.close()
    log = open_log(tmp_path)
    assert log.first_position("s", log.head()) == first
    assert log.acknowledge("s", grant, log.head())
    fresh = log.first_position("s", log.tail())
    assert fresh == log.tail()
    seal(log, 2)
    assert log.first_position("s", log.head()) == fresh  # a new checkpoint asks twice, too
    assert only(log).acked == fresh
    with pytest.raises(DataLoss):
        log.first_position("s", Position(log.log_id, 1, 99))
    log.close()


def test_only_the_newest_grant_acknowledges(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    head = seal(log, 0)
    old = held(log)
    young = log.grant("s", {"pid": 2})
    assert young == old + 1
    assert only(log).holder == {"pid": 2}
    for grant in (old, young + 1, 0, -1):
        with pytest.raises(Fenced):
            log.acknowledge("s", grant, head)
        with pytest.raises(Fenced):
            log.declare("s", grant, head)
    assert log.acknowledge("s", young, head)
    log.close()
    log = open_log(tmp_path)
    assert only(log).grant == young
    assert log.grant("s", {}) == young + 1
    log.close()


def test_a_dropped_subscription_fails_loudly(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    head = seal(log, 0)
    grant = held(log)
    assert log.drop("s")
    assert not log.drop("s")
    for work in (
        lambda: log.acknowledge("s", grant, head),
        lambda: log.declare("s", grant, head),
        lambda: log.grant("s", {}),
        lambda: log.first_position("s", head),
        lambda: log.seek("s", head),
    ):
        with pytest.raises(Fenced):
            work()
    assert log.subscriptions() == []
    log.close()


def test_positions_of_another_log_or_epoch_acknowledge_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path, epoch=3)
    grant = held(log)
    log.first_position("s", log.tail())
    head = seal(log, 0)
    for wrong in (Position("0" * 16, 3, 1), Position(log.log_id, 2, 1), Position(log.log_id, 3, 2)):
        with pytest.raises(DataLoss):
            log.acknowledge("s", grant, wrong)
    acked = only(log).acked
    assert acked is not None
    assert acked.n == 0
    assert log.acknowledge("s", grant, head)
    log.close()


def test_an_acknowledgement_of_removed_batches_still_counts(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    grant = held(log)
    log.first_position("s", log.tail())
    middle = seal(log, 0)
    seal(log, 1)
    seal(log, 2)
    log.drop_oldest(log.used_bytes() * 2 // 3)
    assert log.tail().n == 2
    assert log.acknowledge("s", grant, middle)
    log.close()


def test_seek_moves_both_ways(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    grant = held(log)
    log.first_position("s", log.tail())
    for batch_id in range(3):
        seal(log, batch_id)
    log.acknowledge("s", grant, log.head())
    back = log._batches.at(1)
    log.seek("s", back)
    assert only(log).acked == back
    assert only(log).first is None
    assert log.first_position("s", back) == back
    log.seek("s", log.head())
    assert only(log).acked == log.head()
    log.close()


def test_acknowledgements_reach_the_disk_with_flush(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    grant = held(log)
    log.first_position("s", log.tail())
    head = seal(log, 0)
    log.acknowledge("s", grant, head)
    other = TopicLog.open(log.directory, TOPIC, fsync=False)
    before = only(other).acked
    log.flush()
    other.close()
    other = TopicLog.open(log.directory, TOPIC, fsync=False)
    assert before is not None
    assert before.n == 0
    assert only(other).acked == head == only(log).acked
    other.close()
    log.close()


def test_an_idle_flush_writes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    grant = held(log)
    log.first_position("s", log.tail())
    log.flush()
    changes = log._db._connection.total_changes
    for _ in range(20):
        log.tick(0.2)
        log.declare("s", grant, log.tail())
        log.acknowledge("s", grant, log.tail())
        log.flush()
    assert log._db._connection.total_changes == changes
    log.close()


def test_uptime_survives_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.tick(12.5)
    log.close()
    log = open_log(tmp_path)
    assert log.uptime == 12.5
    log.close()


def test_lag_is_what_is_not_acknowledged(tmp_path: Path) -> None:
    log = open_log(tmp_path, wall=lambda: 1000.0)
    grant = held(log)
    log.first_position("s", log.tail())
    first = seal(log, 0, [[3], [4]])
    seal(log, 1, [[5], [6]])
    log.acknowledge("s", grant, first)
    log._wall = lambda: 1007.0
    (line,) = log.status()["subscriptions"]
    assert line["lag"] == {"batches": 1, "rows": 11, "bytes": log.plan(first).bytes, "seconds": 7.0}
    log._wall = lambda: 0.0  # the clock went back
    assert log.status()["subscriptions"][0]["lag"]["seconds"] == 0.0
    log.close()


class Acknowledging(RuleBasedStateMachine):
    """Acknowledgements in any order, of any grant, with restarts: the position only grows, and never past the head."""

    @initialize()
    def start(self) -> None:
        self.home = tempfile.TemporaryDirectory()
        self.log = open_log(Path(self.home.name))
        self.log.subscribe("s")
        self.log.first_position("s", self.log.tail())
        self.grant = 0
        self.acked = self.durable = 0
        self.sealed = 0

    @rule()
    def seal(self) -> None:
        seal(self.log, self.sealed, [[1, 1]])
        self.sealed += 1
        self.durable = self.acked

    @rule()
    def take_grant(self) -> None:
        assert self.log.grant("s", {}) == self.grant + 1
        self.grant += 1
        self.durable = self.acked

    @precondition(lambda self: self.grant)
    @rule(n=st.integers(0, 12), r=st.integers(0, 1), back=st.integers(0, 2))
    def acknowledge(self, n: int, r: int, back: int) -> None:
        position = self.log._batches.at(n, r)
        if back:
            with pytest.raises(Fenced):
                self.log.acknowledge("s", self.grant - back, position)
        elif n <= self.acked:
            assert not self.log.acknowledge("s", self.grant, position)
        elif n > self.sealed or (n == self.sealed and r):
            with pytest.raises(DataLoss):
                self.log.acknowledge("s", self.grant, position)
        else:
            assert self.log.acknowledge("s", self.grant, position)
            self.acked = n

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.durable = self.acked

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.log.close()
            self.durable = self.acked
        else:
            self.log._db.close()
        self.log = open_log(Path(self.home.name))
        self.acked = self.durable

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "log"):
            acked = only(self.log).acked
            assert acked is not None
            assert acked.n == self.acked
            assert self.log.head().n == self.sealed

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
            self.home.cleanup()


TestAcknowledging = Acknowledging.TestCase
TestAcknowledging.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
