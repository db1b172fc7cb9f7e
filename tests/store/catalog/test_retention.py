from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from jobpipe.errors import DataLoss
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.retention import Retention
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.store.subscriptions.low_watermark import LowWatermark
from tests.store.build import TOPIC, open_log, read, seal

ALL = Retention(time=0, bytes=0, ack_grace=0, subscription_expiry=1e9)  # whatever is acknowledged may go
NEVER = 1e9


def fill(log: TopicLog, count: int, *, first: int = 0, inline: bool = True) -> list[Position]:
    return [seal(log, batch_id, inline=inline) for batch_id in range(first, first + count)]


def follow(log: TopicLog, name: str = "s") -> int:
    log.subscriptions.subscribe(name)
    grant = log.subscriptions.grant(name, {})
    log.subscriptions.first_position(name, log.batches.tail())
    return grant


def test_nothing_goes_that_a_subscription_has_not_acknowledged(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fast, slow = follow(log, "fast"), follow(log, "slow")
    ends = fill(log, 4)
    log.subscriptions.acknowledge("fast", fast, ends[3])
    assert log.cleaner.retain(ALL, need=1 << 40).batches == 0
    log.subscriptions.acknowledge("slow", slow, ends[1])
    removed = log.cleaner.retain(ALL)
    assert (removed.batches, removed.rows) == (2, 4)
    assert log.batches.tail() == ends[1]
    assert log.used_bytes() == log.status().bytes == removed.bytes
    log.close()


def test_a_subscription_without_a_position_holds_all(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 2)
    log.subscriptions.subscribe("late")
    assert log.cleaner.retain(ALL).batches == 0
    log.subscriptions.first_position("late", log.batches.head())
    assert log.cleaner.retain(ALL).batches == 2
    log.close()


def test_a_live_declared_position_holds_what_is_acknowledged(tmp_path: Path) -> None:
    """An older checkpoint was restored: the holder reads again what it had acknowledged."""
    log = open_log(tmp_path)
    grant = follow(log)
    ends = fill(log, 4)
    log.subscriptions.acknowledge("s", grant, ends[3])
    log.subscriptions.declare("s", grant, ends[0])
    assert log.cleaner.retain(ALL).batches == 1
    assert not log.subscriptions.acknowledge("s", grant, ends[1])  # late, and yet it tells where the holder is now
    assert log.cleaner.retain(ALL).batches == 1
    log.subscriptions.drop_declared("s")
    assert log.cleaner.retain(ALL).batches == 2
    log.close()


def test_a_new_grant_voids_what_the_old_holder_declared(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    grant = follow(log)
    ends = fill(log, 2)
    log.subscriptions.acknowledge("s", grant, ends[1])
    log.subscriptions.declare("s", grant, log.batches.tail())
    log.subscriptions.grant("s", {})
    assert log.cleaner.retain(ALL).batches == 2
    log.close()


def test_grace_counts_from_the_last_acknowledgement_in_uptime(tmp_path: Path) -> None:
    policy = replace(ALL, ack_grace=60)
    log = open_log(tmp_path)
    one, two = follow(log, "one"), follow(log, "two")
    ends = fill(log, 3)
    log.subscriptions.acknowledge("one", one, ends[2])
    log.clock.tick(100)
    log.subscriptions.acknowledge("two", two, ends[0])
    assert log.cleaner.retain(policy, need=1 << 40).batches == 0
    log.clock.tick(30)
    log.subscriptions.acknowledge("two", two, ends[2])
    assert log.cleaner.retain(policy).batches == 0
    log.clock.tick(30)
    assert log.cleaner.retain(policy).batches == 1
    log.clock.tick(29)
    assert log.cleaner.retain(policy, need=1 << 40).batches == 0
    log.clock.tick(1)
    assert log.cleaner.retain(policy).batches == 2
    log.close()


def test_grace_starts_anew_after_a_restart(tmp_path: Path) -> None:
    policy = replace(ALL, ack_grace=60)
    log = open_log(tmp_path)
    grant = follow(log)
    log.subscriptions.acknowledge("s", grant, fill(log, 1)[0])
    log.cleaner.retain(policy)
    log.clock.tick(59)
    log.close()
    log = open_log(tmp_path)
    log.clock.tick(2)
    assert log.cleaner.retain(policy).batches == 0
    log.clock.tick(60)
    assert log.cleaner.retain(policy).batches == 1
    log.close()


def test_grace_starts_anew_when_a_holder_goes_back(tmp_path: Path) -> None:
    policy = replace(ALL, ack_grace=60)
    log = open_log(tmp_path)
    grant = follow(log)
    ends = fill(log, 2)
    log.subscriptions.acknowledge("s", grant, ends[1])
    log.cleaner.retain(policy)
    log.clock.tick(50)
    log.subscriptions.declare("s", grant, ends[0])
    log.subscriptions.acknowledge("s", grant, ends[1])
    log.clock.tick(10)
    assert log.cleaner.retain(policy).batches == 1  # only what lies before the place it went back to
    log.clock.tick(60)
    assert log.cleaner.retain(policy).batches == 1
    log.close()


def test_acknowledged_batches_stay_within_time_and_bytes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    policy = Retention(time=600, bytes=1 << 30, ack_grace=0, subscription_expiry=NEVER)
    fill(log, 2)
    log.clock.tick(300)
    fill(log, 2, first=2)
    assert log.cleaner.retain(policy).batches == 0
    log.clock.tick(300)
    assert log.cleaner.retain(policy).batches == 2
    each = log.used_bytes() // 2
    assert log.cleaner.retain(replace(policy, bytes=2 * each)).batches == 0
    assert log.cleaner.retain(replace(policy, bytes=2 * each - 1)).batches == 1
    assert log.cleaner.retain(policy, need=1).batches == 1
    assert log.used_bytes() == 0
    log.close()


def test_need_frees_no_more_than_it_must(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    policy = Retention(time=NEVER, bytes=1 << 40, ack_grace=0, subscription_expiry=NEVER)
    fill(log, 10)
    each = log.used_bytes() // 10
    removed = log.cleaner.retain(policy, need=3 * each - 1)
    assert (removed.batches, removed.bytes) == (3, 3 * each)
    log.close()


def test_nothing_goes_while_subscribers_are_missing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    policy = replace(ALL, min_subscribers=2)
    end = fill(log, 1)[0]
    log.subscriptions.acknowledge("a", follow(log, "a"), end)
    assert log.cleaner.retain(policy, need=1 << 40).batches == 0
    log.subscriptions.acknowledge("b", follow(log, "b"), end)
    assert log.cleaner.retain(policy).batches == 1
    log.close()


def test_a_lease_holds_until_it_is_over(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 4)
    log.leases.hold("read", 1, 3, 60)
    assert log.cleaner.retain(ALL, need=1 << 40).batches == 1
    assert log.cleaner.drop_oldest(1 << 40).batches == 0
    log.clock.tick(50)
    log.leases.hold("read", 2, 3, 60)  # renewed, and further on
    assert log.cleaner.retain(ALL).batches == 1
    log.clock.tick(59)
    assert log.cleaner.retain(ALL).batches == 0
    log.clock.tick(1)
    assert log.cleaner.retain(ALL).batches == 2
    fill(log, 1, first=4)
    log.leases.hold("other", 4, 4, 60)
    assert log.cleaner.retain(ALL).batches == 0
    log.leases.release("other")
    log.leases.release("unknown")
    assert log.cleaner.retain(ALL).batches == 1
    with pytest.raises(DataLoss):
        log.leases.hold("late", 3, 4, 60)
    log.close()


def test_drop_oldest_takes_what_is_not_acknowledged(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    follow(log)
    fill(log, 4)
    each = log.used_bytes() // 4
    assert log.cleaner.drop_oldest(each + 1).batches == 2
    acked = log.subscriptions.all()[0].acked
    assert acked is not None
    with pytest.raises(DataLoss) as caught:
        log.planner.plan(acked)
    assert caught.value.fields["reason"] == "removed"
    log.close()


def test_when_the_newest_removed_batch_was_published(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    follow(log)
    fill(log, 3)
    published = [log.batches.sealed_ms(n) for n in range(3)]
    assert log.batches.removed_ms() == 0
    log.cleaner.drop_oldest(log.used_bytes() // 3 + 1)
    assert log.batches.tail_n() == 2
    assert log.batches.removed_ms() == published[1]
    log.close()
    again = open_log(tmp_path)
    assert again.batches.removed_ms() == published[1]
    again.close()


def test_silent_subscriptions_expire_but_not_required_or_live_ones(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    policy = Retention(time=0, bytes=0, ack_grace=0, subscription_expiry=100)
    log.subscriptions.subscribe("required", required=True)
    follow(log, "silent")
    live, seen = follow(log, "live"), follow(log, "seen")
    log.subscriptions.declare("live", live, log.batches.tail())
    log.clock.tick(60)
    log.subscriptions.acknowledge("seen", seen, log.batches.tail())
    log.close()
    log = open_log(tmp_path)  # time while no coordinator was up does not count
    log.subscriptions.declare("live", live, log.batches.tail())
    assert log.cleaner.retain(policy).expired == ()
    log.clock.tick(41)
    assert log.cleaner.retain(policy).expired == ("silent",)
    log.subscriptions.touch("seen")
    log.clock.tick(100)
    assert log.cleaner.retain(policy).expired == ()
    log.clock.tick(1)
    assert log.cleaner.retain(policy).expired == ("seen",)
    assert [s.name for s in log.subscriptions.all()] == ["live", "required"]
    log.close()


def test_files_go_with_their_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 3, inline=False)
    assert len(list(log.segments.iterdir())) == 3
    log.cleaner.retain(replace(ALL, bytes=log.used_bytes() - 1, time=NEVER))
    assert len(list(log.segments.iterdir())) == 2
    reader = CatalogReader.open(log.directory, TOPIC)
    assert [n for n, _ in read(reader, log.batches.tail(), log.batches.head(), 0)] == [1, 2]
    reader.close()
    log.close()


def test_many_batches_go_in_steps(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 450)
    assert log.cleaner.retain(ALL).batches == 450
    assert log.batches.tail() == log.batches.head()
    assert log._db.value("SELECT count(*) FROM segments") == 0
    assert log._db.value("SELECT count(*) FROM shapes") == 1
    assert seal(log, 450).n == 451
    log.close()


def test_an_unreachable_file_does_not_stop_the_sweep(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 1, inline=False)
    next(log.segments.iterdir()).unlink()
    assert log.cleaner.retain(ALL).batches == 1
    log.close()


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20), st.booleans()), max_size=40),
    grace=st.integers(0, 12),
)
def test_the_frontier_equals_its_definition(steps: list[tuple[int, int, bool]], grace: int) -> None:
    """settled(t) = what lay below every frontier seen since t - grace, with one seen at or before t - grace."""
    watermark, now, seen = LowWatermark(), 0.0, []
    for wait, n, ask in steps:
        now += wait
        watermark.note(now, n)
        seen.append((now, n))
        if ask:
            model = 0
            for start, (since, _) in enumerate(seen):
                if since + grace <= now:
                    model = max(model, min(low for _, low in seen[start:]))
            assert watermark.settled(now, grace) == model


def test_the_frontier_stays_small() -> None:
    watermark = LowWatermark()
    for number in range(100_000):
        watermark.note(number / 1000, number)
        watermark.settled(number / 1000, 60)
    assert len(watermark._notes) <= LowWatermark.NOTES + 60 / LowWatermark.RESOLUTION + 1


class Retaining(RuleBasedStateMachine):
    """Whatever happens, what a subscription still needs, or acknowledged within the grace, is there."""

    GRACE = 10

    @initialize()
    def start(self) -> None:
        self.home = tempfile.TemporaryDirectory()
        self.log = open_log(Path(self.home.name))
        self.batches = 0
        self.acked: dict[str, int] = {}
        self.needs: dict[str, int] = {}
        self.grants: dict[str, int] = {}
        self.history: list[tuple[float, int]] = []  # (uptime, lowest need) after each step since the last opening

    @rule(count=st.integers(1, 3), inline=st.booleans())
    def seal(self, count: int, inline: bool) -> None:
        fill(self.log, count, first=self.batches, inline=inline)
        self.batches += count

    @rule(name=st.sampled_from("ab"), latest=st.booleans())
    def subscribe(self, name: str, latest: bool) -> None:
        if name not in self.acked:
            self.grants[name] = follow(self.log, name) if not latest else self._latest(name)
            position = self.log.subscriptions.all()[sorted([*self.acked, name]).index(name)].acked
            assert position is not None
            self.acked[name] = self.needs[name] = position.n

    def _latest(self, name: str) -> int:
        self.log.subscriptions.subscribe(name)
        self.log.subscriptions.first_position(name, self.log.batches.head())
        return self.log.subscriptions.grant(name, {})

    @rule(name=st.sampled_from("ab"), ahead=st.integers(0, 4))
    def acknowledge(self, name: str, ahead: int) -> None:
        if name in self.acked:
            n = min(self.needs[name] + ahead, self.batches)
            self.log.subscriptions.acknowledge(name, self.grants[name], self.log.batches.at(n))
            self.acked[name] = max(self.acked[name], n)
            self.needs[name] = max(self.needs[name], n)

    @rule(name=st.sampled_from("ab"), back=st.integers(0, 3))
    def declare(self, name: str, back: int) -> None:
        if name in self.acked:
            n = max(self.acked[name] - back, self.log.batches.tail().n)
            self.log.subscriptions.declare(name, self.grants[name], self.log.batches.at(n))
            self.needs[name] = min(self.acked[name], n)

    @rule(seconds=st.integers(1, 6))
    def tick(self, seconds: int) -> None:
        self.log.clock.tick(seconds)
        self.log.subscriptions.flush()

    @rule(need=st.sampled_from([0, 1, 1 << 40]), over=st.booleans())
    def retain(self, need: int, over: bool) -> None:
        policy = Retention(time=NEVER, bytes=0 if over else 1 << 40, ack_grace=self.GRACE, subscription_expiry=NEVER)
        before, tail = self.log.used_bytes(), self.log.batches.tail().n
        removed = self.log.cleaner.retain(policy, need=need)
        assert self.log.used_bytes() == before - removed.bytes
        assert self.log.batches.tail().n == tail + removed.batches
        if not over and not need:
            assert removed.batches == 0
        recent = [n for since, n in self.history if since > self.log.clock.uptime - self.GRACE]
        allowed = min([*recent, *self.needs.values()], default=self.batches)
        assert self.log.batches.tail().n <= max(allowed, tail)

    @rule()
    def restart(self) -> None:
        self.log.subscriptions.flush()
        self.log._db.close()
        self.log = open_log(Path(self.home.name))
        self.needs = dict(self.acked)  # nobody has declared anything yet

    @invariant()
    def all_that_is_needed_is_there(self) -> None:
        if not hasattr(self, "log"):
            return
        need = min(self.needs.values(), default=self.batches)
        self.history.append((self.log.clock.uptime, need))
        tail = self.log.batches.tail()
        assert tail.n <= need
        reader = CatalogReader.open(self.log.directory, TOPIC)
        assert [n for n, _ in read(reader, tail, self.log.batches.head(), 0)] == list(range(tail.n, self.batches))
        reader.close()
        files = {path.name for path in self.log.segments.iterdir()}
        assert files == {row[0] for row in self.log._db.all("SELECT DISTINCT file FROM segments WHERE file NOT NULL")}

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
            self.home.cleanup()


TestRetaining = pytest.mark.slow(Retaining.TestCase)
TestRetaining.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
