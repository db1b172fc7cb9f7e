from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jobpipe.errors import ConfigError, DataLoss, Fenced, SpoolError
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.catalog_status import StoredLag
from jobpipe.store.log.spool_folders import read_status
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.subscriptions.subscription import StoredSubscription
from tests.store.build import TOPIC, open_log, seal


def only(log: TopicLog) -> StoredSubscription:
    (subscription,) = log.subscriptions.all()
    return subscription


def held(log: TopicLog, name: str = "s") -> int:
    log.subscriptions.subscribe(name)
    return log.subscriptions.grant(name, {"pid": 1})


def test_a_new_subscription_stands_nowhere_and_a_required_one_at_the_tail(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    assert log.subscriptions.subscribe("free").acked is None
    must = log.subscriptions.subscribe("must", required=True)
    assert (must.acked, must.required) == (log.batches.tail(), True)
    assert log.subscriptions.subscribe("must").required
    assert log.subscriptions.subscribe("free", required=True).acked == log.batches.tail()
    log.required.declare(["free", "more"])
    assert {s.name: s.required for s in log.subscriptions.all()} == {"free": True, "must": False, "more": True}
    log.close()


def test_many_at_one_place_cost_one_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand subscriptions stand at a few places: the epoch of each place is asked for once."""
    log = open_log(tmp_path)
    for name in ("a", "b", "c"):
        log.subscriptions.subscribe(name, required=True)
    seal(log, 0)
    log.subscriptions.subscribe("first")
    log.subscriptions.first_position("first", log.batches.head())
    asked: list[int] = []
    epoch_before = type(log.batches).epoch_before
    monkeypatch.setattr(
        type(log.batches), "epoch_before", lambda batches, n: (asked.append(n), epoch_before(batches, n))[1]
    )
    assert [known.acked.n for known in log.subscriptions.all() if known.acked] == [0, 0, 0, 1]
    assert asked == [0, 1]
    log.close()


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 129, "a b", "-a"])
def test_names_are_checked(tmp_path: Path, name: str) -> None:
    log = open_log(tmp_path)
    with pytest.raises(ConfigError):
        log.subscriptions.subscribe(name)
    log.close()


def test_the_first_position_is_repeated_until_something_beyond_it_is_acknowledged(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    grant = held(log)
    first = log.subscriptions.first_position("s", log.batches.head())
    assert first.n == 1
    seal(log, 1)
    assert log.subscriptions.first_position("s", log.batches.head()) == first
    assert not log.subscriptions.acknowledge("s", grant, first)
    log.close()
    log = open_log(tmp_path)
    assert log.subscriptions.first_position("s", log.batches.head()) == first
    assert log.subscriptions.acknowledge("s", grant, log.batches.head())
    fresh = log.subscriptions.first_position("s", log.batches.tail())
    assert fresh == log.batches.tail()
    seal(log, 2)
    assert log.subscriptions.first_position("s", log.batches.head()) == fresh  # a new checkpoint asks twice, too
    assert only(log).acked == fresh
    with pytest.raises(DataLoss):
        log.subscriptions.first_position("s", Position(log.log_id, 1, 99))
    log.close()


def test_only_the_newest_grant_acknowledges(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    head = seal(log, 0)
    old = held(log)
    young = log.subscriptions.grant("s", {"pid": 2})
    assert young == old + 1
    assert only(log).holder == {"pid": 2}
    for grant in (old, young + 1, 0, -1):
        with pytest.raises(Fenced):
            log.subscriptions.acknowledge("s", grant, head)
        with pytest.raises(Fenced):
            log.subscriptions.declare("s", grant, head)
    assert log.subscriptions.acknowledge("s", young, head)
    log.close()
    log = open_log(tmp_path)
    assert only(log).grant == young
    assert log.subscriptions.grant("s", {}) == young + 1
    log.close()


def test_a_dropped_subscription_fails_loudly(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    head = seal(log, 0)
    grant = held(log)
    assert log.subscriptions.drop("s")
    assert not log.subscriptions.drop("s")
    for work in (
        lambda: log.subscriptions.acknowledge("s", grant, head),
        lambda: log.subscriptions.declare("s", grant, head),
        lambda: log.subscriptions.grant("s", {}),
        lambda: log.subscriptions.first_position("s", head),
        lambda: log.subscriptions.seek("s", head),
    ):
        with pytest.raises(Fenced):
            work()
    assert log.subscriptions.all() == []
    log.close()


@pytest.mark.parametrize("required", [False, True])
def test_a_grant_from_before_a_drop_is_never_valid_again(tmp_path: Path, required: bool) -> None:
    """A reader that stood still while its name was dropped must not acknowledge for the one that has it now."""
    log = open_log(tmp_path)
    head = seal(log, 0)
    old = held(log)
    log.subscriptions.drop("s")
    log.subscriptions.subscribe("s", required=required)
    with pytest.raises(Fenced):  # also while nobody has it
        log.subscriptions.acknowledge("s", old, head)
    young = held(log)
    with pytest.raises(Fenced):
        log.subscriptions.acknowledge("s", old, head)
    assert log.subscriptions.acknowledge("s", young, head)
    log.close()


def test_positions_of_another_log_or_epoch_acknowledge_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path, epoch=3)
    grant = held(log)
    log.subscriptions.first_position("s", log.batches.tail())
    head = seal(log, 0)
    for wrong in (Position("0" * 16, 3, 1), Position(log.log_id, 2, 1), Position(log.log_id, 3, 2)):
        with pytest.raises(DataLoss):
            log.subscriptions.acknowledge("s", grant, wrong)
    acked = only(log).acked
    assert acked is not None
    assert acked.n == 0
    assert log.subscriptions.acknowledge("s", grant, head)
    log.close()


def test_an_acknowledgement_of_removed_batches_still_counts(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    grant = held(log)
    log.subscriptions.first_position("s", log.batches.tail())
    middle = seal(log, 0)
    seal(log, 1)
    seal(log, 2)
    log.cleaner.drop_oldest(log.used_bytes() * 2 // 3)
    assert log.batches.tail().n == 2
    assert log.subscriptions.acknowledge("s", grant, middle)
    log.close()


def test_seek_moves_both_ways(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    grant = held(log)
    log.subscriptions.first_position("s", log.batches.tail())
    for batch_id in range(3):
        seal(log, batch_id)
    log.subscriptions.acknowledge("s", grant, log.batches.head())
    back = log.batches.at(1)
    log.subscriptions.seek("s", back)
    assert only(log).acked == back
    assert only(log).first is None
    assert log.subscriptions.first_position("s", back) == back
    log.subscriptions.seek("s", log.batches.head())
    assert only(log).acked == log.batches.head()
    log.close()


def test_acknowledgements_reach_the_disk_with_flush(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    grant = held(log)
    log.subscriptions.first_position("s", log.batches.tail())
    head = seal(log, 0)
    log.subscriptions.acknowledge("s", grant, head)
    other = TopicLog.open(log.directory, TOPIC, fsync=False)
    before = only(other).acked
    log.subscriptions.flush()
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
    log.subscriptions.first_position("s", log.batches.tail())
    log.subscriptions.flush()
    changes = log._db._connection.total_changes
    for _ in range(20):
        log.clock.tick(0.2)
        log.subscriptions.declare("s", grant, log.batches.tail())
        log.subscriptions.acknowledge("s", grant, log.batches.tail())
        log.subscriptions.flush()
    assert log._db._connection.total_changes == changes
    log.close()


def test_uptime_survives_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.clock.tick(12.5)
    log.close()
    log = open_log(tmp_path)
    assert log.clock.uptime == 12.5
    log.close()


def test_lag_is_what_is_not_acknowledged(tmp_path: Path) -> None:
    log = open_log(tmp_path, wall=lambda: 1000.0)
    grant = held(log)
    log.subscriptions.first_position("s", log.batches.tail())
    first = seal(log, 0, [[3], [4]])
    seal(log, 1, [[5], [6]])
    log.subscriptions.acknowledge("s", grant, first)
    log.clock.wall = lambda: 1007.0
    (line,) = log.status().subscriptions
    assert line.lag == StoredLag(batches=1, rows=11, bytes=log.planner.plan(first).bytes, seconds=7.0)
    log.clock.wall = lambda: 0.0  # the clock went back
    assert log.status().subscriptions[0].lag.seconds == 0.0
    log.close()


def test_the_status_of_a_spool_is_that_of_its_log(tmp_path: Path) -> None:
    log = open_log(tmp_path, wall=lambda: 1000.0)
    log.subscriptions.subscribe("s", required=True)
    seal(log, 0, [[3], [4]])
    status = log.status()
    log.close()
    found = read_status(log.directory, TOPIC)
    (line,), (expected,) = found.subscriptions, status.subscriptions
    lag = replace(line.lag, seconds=expected.lag.seconds)  # by the wall clock
    assert replace(line, lag=lag) == expected
    assert vars(replace(found, subscriptions=status.subscriptions)).items() <= vars(status).items()
    with pytest.raises(SpoolError, match="does not exist"):
        read_status(tmp_path / "another", "another")


class Acknowledging(RuleBasedStateMachine):
    """Acknowledgements in any order, of any grant, with restarts: the position only grows, and never past the head."""

    @initialize()
    def start(self) -> None:
        self.home = tempfile.TemporaryDirectory()
        self.log = open_log(Path(self.home.name))
        self.log.subscriptions.subscribe("s")
        self.log.subscriptions.first_position("s", self.log.batches.tail())
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
        assert self.log.subscriptions.grant("s", {}) == self.grant + 1
        self.grant += 1
        self.durable = self.acked

    @precondition(lambda self: self.grant)
    @rule(n=st.integers(0, 12), r=st.integers(0, 1), back=st.integers(0, 2))
    def acknowledge(self, n: int, r: int, back: int) -> None:
        position = self.log.batches.at(n, r)
        if back:
            with pytest.raises(Fenced):
                self.log.subscriptions.acknowledge("s", self.grant - back, position)
        elif n <= self.acked:
            assert not self.log.subscriptions.acknowledge("s", self.grant, position)
        elif n > self.sealed or (n == self.sealed and r):
            with pytest.raises(DataLoss):
                self.log.subscriptions.acknowledge("s", self.grant, position)
        else:
            assert self.log.subscriptions.acknowledge("s", self.grant, position)
            self.acked = n

    @rule()
    def flush(self) -> None:
        self.log.subscriptions.flush()
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
            assert self.log.batches.head().n == self.sealed

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
            self.home.cleanup()


TestAcknowledging = pytest.mark.slow(Acknowledging.TestCase)
TestAcknowledging.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
