"""Boundaries against a model of the log that is a list: any times, any removals, any ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobpipe.errors import ConfigError, DataLoss, RemoteProtocolError
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.boundary import COMMITTED, EARLIEST, LATEST, Boundary
from tests.store.build import TOPIC, look_into, open_log, seal

EPOCH_1970 = datetime(1970, 1, 1, tzinfo=UTC)
TIMES = st.integers(1, 40)  # milliseconds, so few that many are the same


class Clock:
    """A wall clock that shows what it is told."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> float:
        return self.ms / 1000 + 1e-7  # as time.time() it is not exactly a millisecond


def publish(log: TopicLog, clock: Clock, walls: list[tuple[int, bool]]) -> list[int]:
    """Seal a batch, or an end mark, at each of these times; return the publish times that they must have."""
    floor, expected = 0, []
    for batch_id, (wall, is_end) in enumerate(walls):
        clock.ms = wall
        if is_end:
            log.seal(NewBatch.end_mark(2), [])
        else:
            seal(log, batch_id)
        floor = max(floor, wall)
        expected.append(floor)
    return expected


def _is_there(boundary: Boundary, log: TopicLog) -> bool:
    return boundary.kind != "offset" or log.batches.tail().n <= int(str(boundary.value)) <= log.batches.head().n


def start(log: TopicLog, boundary: Boundary, committed: Position | None = None, **more: Any) -> Position:
    return log.resolver.resolve(boundary, None, committed=committed or log.batches.tail(), **more).start


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    walls=st.lists(st.tuples(TIMES, st.sampled_from([False, False, False, True])), max_size=12),
    removed=st.integers(0, 12),
    now=st.integers(0, 50),
    asked=st.integers(0, 45),
    offset=st.integers(0, 14),
    data=st.data(),
)
def test_a_log_is_searched_as_a_list_is(
    walls: list[tuple[int, bool]],
    removed: int,
    now: int,
    asked: int,
    offset: int,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    clock = Clock()
    log = open_log(tmp_path_factory.mktemp("locate"), wall=clock)
    times = publish(log, clock, walls)
    for _ in range(min(removed, len(times))):
        log.cleaner.drop_oldest(1) if log.used_bytes() else None
    tail, head, clock.ms = log.batches.tail().n, log.batches.head().n, now
    assert head == len(times)
    there = range(tail, head)
    matching = [n for n in there if times[n] >= asked]

    # A start by time: the first batch of then or later; without one, what the reader chose.
    time = Boundary("time", asked)
    if matching or (times and not there and asked <= times[-1]):
        assert start(log, time).n == (matching[0] if matching else head)
    else:
        assert start(log, replace(time, otherwise="latest")) == log.batches.head()
        with pytest.raises(ConfigError, match=TOPIC) as caught:
            start(log, time)
        assert caught.value.fields == {"topic": TOPIC, "time": asked, "newest": times[-1] if times else None}

    # An end by time: decided if a batch of then or later is there, or was, or the clock has come so far.
    end = log.resolver.end(time)
    if matching:
        assert end is not None
        assert end.n == matching[0]
    elif (times and times[-1] >= asked) or now >= asked:
        assert end == log.batches.head()
    else:
        assert end is None

    # Offsets.
    assert (start(log, EARLIEST), start(log, LATEST)) == (log.batches.tail(), log.batches.head())
    here = log.resolver.end(Boundary("offset", offset))
    assert here == (log.batches.at(offset) if offset <= head else None)
    if tail <= offset <= head:
        assert start(log, Boundary("offset", offset)) == log.batches.at(offset)
        assert start(log, COMMITTED, log.batches.at(offset)).n == offset
    else:
        with pytest.raises(DataLoss) as lost:
            start(log, Boundary("offset", offset))
        assert lost.value.fields["reason"] == ("removed" if offset < tail else "beyond head")
    skipped = log.resolver.resolve(
        Boundary("offset", min(offset, head)), None, committed=log.batches.tail(), skip_removed=True
    )
    assert (skipped.start.n, skipped.lost) == (max(min(offset, head), tail), max(tail - offset, 0))

    # What lies between two of them is never negative.
    ends = st.one_of(
        st.just(LATEST),
        st.builds(Boundary, st.just("offset"), st.integers(0, head + 1)),
        st.builds(Boundary, st.just("time"), TIMES, st.just("latest")),
    )
    first, second = (
        data.draw(st.one_of(st.just(EARLIEST), ends.filter(lambda end: _is_there(end, log)))),
        data.draw(ends),
    )
    begin, stop = start(log, first), log.resolver.end(second)
    if stop is None or begin.place <= stop.place:
        window = log.resolver.resolve(first, second, committed=log.batches.tail())
        assert (window.start, window.end, window.lost) == (begin, stop, 0)
        assert [
            n
            for plan in log.planner.describe(begin, stop or log.batches.head())
            for n in range(plan.start.n, plan.end.n)
        ] == list(range(begin.n, head if stop is None else stop.n))
    else:
        with pytest.raises(ConfigError, match="after its end") as behind:
            log.resolver.resolve(first, second, committed=log.batches.tail())
        assert (behind.value.fields["start"], behind.value.fields["end"]) == (begin.to_json(), stop.to_json())
    log.close()


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    walls=st.lists(st.tuples(TIMES, st.booleans()), max_size=5),
    later=st.lists(st.tuples(TIMES, st.booleans()), min_size=1, max_size=5),
    now=st.integers(0, 50),
    asked=TIMES,
    again=st.booleans(),
)
def test_an_end_by_time_stays_where_it_was_decided(
    walls: list[tuple[int, bool]],
    later: list[tuple[int, bool]],
    now: int,
    asked: int,
    again: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Also when the clock is set back, and when another coordinator goes on with the log."""
    clock, home = Clock(), tmp_path_factory.mktemp("decided")
    log = open_log(home, wall=clock)
    publish(log, clock, walls)
    clock.ms = now
    decided = log.resolver.end(Boundary("time", asked))
    if again:
        log.close()
        log = open_log(home, wall=clock)
    for batch_id, (wall, is_end) in enumerate(later):
        clock.ms = wall
        if is_end:
            log.seal(NewBatch.end_mark(2), [])
        else:
            seal(log, 100 + batch_id)
        now_decided = log.resolver.end(Boundary("time", asked))
        if decided is None:
            decided = now_decided
        else:
            assert now_decided is not None
            assert now_decided.n == decided.n
    log.close()


def test_a_time_is_found_without_looking_at_all_batches(tmp_path: Path) -> None:
    """Some twenty of a thousand; the catalog needs no index by time for it."""
    clock = Clock()
    log = open_log(tmp_path, wall=clock)
    for n in range(1000):
        clock.ms = 10 * n
        log.seal(NewBatch.end_mark(1), [])
    looked: list[str] = []
    log._db._connection.set_trace_callback(looked.append)
    assert start(log, Boundary("time", 5001)).n == 501
    assert len(looked) < 30
    assert not any("sealed_ms >" in query for query in looked)
    log.close()


def test_positions_as_ends(tmp_path: Path) -> None:
    """Also inside a batch, and before the tail; one of another log, or beyond this one's head, is data loss."""
    log = open_log(tmp_path)
    for batch_id in range(3):
        seal(log, batch_id, [[1, 1], [1]])
    inside = replace(log.batches.at(1), r=2)
    assert log.resolver.end(Boundary("position", inside)) == inside
    assert start(log, Boundary("position", inside)) == inside
    window = log.resolver.resolve(EARLIEST, Boundary("position", inside), committed=log.batches.tail())
    assert [plan.rows for plan in log.planner.describe(window.start, window.end)] == [5]  # type: ignore[arg-type]
    log.cleaner.drop_oldest(1)
    log.cleaner.drop_oldest(1)
    assert log.batches.tail().n == 2
    assert log.resolver.end(Boundary("position", inside)) == inside
    with pytest.raises(ConfigError, match="begins at offset 2, after its end at offset 1, record batch 2"):
        log.resolver.resolve(EARLIEST, Boundary("position", inside), committed=log.batches.tail())
    gone = log.resolver.resolve(
        Boundary("position", log.batches.at(1)), Boundary("offset", 1), committed=log.batches.tail(), skip_removed=True
    )
    assert (gone.start, gone.end, gone.lost) == (log.batches.at(2), log.batches.at(2), 1)
    for position, reason in (
        (replace(log.batches.head(), log="0" * 16), "log"),
        (replace(log.batches.head(), n=4), "beyond head"),
        (replace(log.batches.head(), epoch=9), "epoch"),
    ):
        for find in (log.resolver.end, lambda boundary: start(log, boundary, skip_removed=True)):
            with pytest.raises(DataLoss) as caught:
                find(Boundary("position", position))
            assert caught.value.fields["reason"] == reason
    with pytest.raises(RemoteProtocolError, match="cannot end at committed"):
        log.resolver.end(COMMITTED)
    log.close()


def test_the_error_of_an_unmatched_time_is_clear(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, wall=clock)
    with pytest.raises(
        ConfigError, match=r"'orders': nothing was published at 1970-01-01T00:00:01.500\+00:00 \(1500 ms\)"
    ):
        start(log, Boundary("time", 1500))
    clock.ms = 1_763_719_200_000
    seal(log, 0)
    with pytest.raises(
        ConfigError, match=r"9223372036854775807 ms or later, the newest batch is of 2025-11-21T10:00:00"
    ):
        start(log, Boundary("time", 2**63 - 1))
    log.close()


def test_an_end_decided_by_the_clock_needs_the_epoch(tmp_path: Path) -> None:
    """A coordinator that was replaced cannot promise what will be published; one that only serves can."""
    clock = Clock()
    log = open_log(tmp_path, wall=clock)
    seal(log, 0)
    clock.ms = 10
    serving = look_into(tmp_path, wall=clock)
    assert serving.resolver.end(Boundary("time", 7)) == log.batches.head()
    log.take_over(5, "next")
    with pytest.raises(Exception, match="epoch"):
        serving.resolver.end(Boundary("time", 8))
    log.close()
    serving.close()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("earliest", EARLIEST),
        ("committed", COMMITTED),
        (LATEST, LATEST),
        (7, Boundary("offset", 7)),
        (EPOCH_1970, Boundary("time", 0)),
        (EPOCH_1970 + timedelta(microseconds=1), Boundary("time", 1)),
        (datetime(1970, 1, 1, 1, 0, 0, 5000, tzinfo=timezone(timedelta(hours=1))), Boundary("time", 5)),
    ],
)
def test_arguments(value: Any, expected: Boundary) -> None:
    assert Boundary.of(value, "starting") == expected


@pytest.mark.parametrize(
    "value",
    [
        "first",
        "",
        -1,
        True,
        1.0,
        None,
        datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None),
        EPOCH_1970 - timedelta(1),
        2**63,
    ],
)
def test_arguments_that_are_none(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"starting=.*expected one of earliest, latest, committed, an offset"):
        Boundary.of(value, "starting")
