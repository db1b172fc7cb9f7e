"""A year of a schedule: no gap, no overlap, each interval to success exactly once, through all that goes wrong."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jobpipe.jobs.schedules.schedule_decisions import IntervalState
from tests.control_schedules.rules import at, clock_changes, rule
from tests.control_schedules.simulation import Server, Trouble

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC")
YEAR = at("2026-01-15 05:17")
COARSE = (
    "30 2 * * *",
    "0 2,14 * * *",
    "0 9 * * 1-5",
    "0 0 L * *",
    "day",
    "week",
    "month",
    "11 hours",
    "30 1,2,3 * * 0",
)
FINE = ("*/30 * * * *", "0 * * * *", "15 minutes", "hour", "*/20 1-3 * * *", "45 1,2 * * *")


@st.composite
def troubles(draw: st.DrawFn, begin: datetime, days: int) -> Trouble:
    """All that goes wrong, each of it or not."""
    outages = draw(st.lists(st.integers(0, max(1, days - 4)), max_size=2, unique=True))
    return Trouble(
        late=timedelta(minutes=draw(st.sampled_from((0, 1, 47, 600)))),
        runs=timedelta(minutes=draw(st.sampled_from((1, 40, 500, 3000)))),
        fails=draw(st.sampled_from((0.0, 0.1, 0.4))),
        skips=draw(st.sampled_from((0.0, 0.1))),
        killed=draw(st.sampled_from((0.0, 0.2))),
        outages=tuple(begin + timedelta(days=day) for day in sorted(outages)),
        backwards=draw(st.sampled_from((0.0, 0.1))),
    )


def check(server: Server) -> None:
    """All that must hold when everything has come to rest."""
    ran = [each for each, _ in server.booked.values()]
    line = sorted([*ran, *server.left_out])
    assert [each.lower for each in line[1:]] == [each.upper for each in line[:-1]], "a gap or an overlap"
    if line:
        assert (line[0].lower, line[-1].upper) == (server.first, server.accepted)
    assert server.accepted == (server.rule.last_due(server.first, server.now) or server.first)
    done = {lower: state for lower, (_, state) in server.booked.items()}
    assert set(done.values()) <= {IntervalState.SUCCEEDED, IntervalState.SKIPPED}
    assert server.successes == {lower: 1 for lower, state in done.items() if state is IntervalState.SUCCEEDED}
    assert server.most_running <= 1
    assert all(now >= each.upper + server.rule.delay for now, each in server.started), "a run before it was due"
    if server.rule.catchup != "none":
        assert server.left_out == []
    for each in ran if server.rule.catchup != "latest" else ():
        assert each == server.rule.before(each.upper, server.first), "not an interval of the rule"
    for left in server.left_out:
        parts = list(server.rule.parts(left))
        assert (parts[0].lower, parts[-1].upper) == (left.lower, left.upper)
        assert all(one.upper == two.lower for one, two in pairwise(parts))


def run(begin: datetime, days: int, of: Any, trouble: Trouble, seed: int) -> Server:
    server = Server(of, begin, trouble, random.Random(seed))
    server.run_until(begin + timedelta(days=days))
    server.settle()
    check(server)
    return server


RULES: dict[str, Any] = {
    "zone": st.sampled_from(ZONES),
    "delay": st.sampled_from((0, 600, 90_000)),
    "self_depend": st.booleans(),
    "start": st.sampled_from((None, "2026-03-01T00:00:00Z", "2026-02-28T22:10:00+05:30")),
    "end": st.sampled_from((None, "2026-11-30T00:00:00Z")),
    "seed": st.integers(0, 2**32),
    "data": st.data(),
}


@pytest.mark.slow
@pytest.mark.parametrize("catchup", ["all", "latest", "none"])
@settings(max_examples=12)
@given(given_=st.sampled_from(COARSE), **RULES)
def test_a_year(
    catchup: str,
    given_: str,
    zone: str,
    delay: int,
    self_depend: bool,
    start: str | None,
    end: str | None,
    seed: int,
    data: st.DataObject,
) -> None:
    more = {"timezone": zone, "delay": delay, "self-depend": self_depend}
    of = rule(given_, catchup=catchup, start=start, end=end, **more)
    server = run(YEAR, 366, of, data.draw(troubles(YEAR, 366)), seed)
    event(f"left out: {bool(server.left_out)}")


@pytest.mark.slow
@pytest.mark.parametrize("catchup", ["all", "latest", "none"])
@settings(max_examples=10)
@given(given_=st.sampled_from(FINE), **{**RULES, "start": st.none(), "end": st.none()})
def test_days_around_a_change_of_the_clock(
    catchup: str,
    given_: str,
    zone: str,
    delay: int,
    self_depend: bool,
    start: str | None,
    end: str | None,
    seed: int,
    data: st.DataObject,
) -> None:
    changes = clock_changes(zone, YEAR, YEAR + timedelta(days=366)) or [YEAR + timedelta(days=200)]
    begin = data.draw(st.sampled_from(changes)) - timedelta(hours=31, minutes=7)
    more = {"timezone": zone, "delay": delay, "self-depend": self_depend}
    of = rule(given_, catchup=catchup, **more)
    run(begin, 3, of, data.draw(troubles(begin, 7)), seed)


def test_a_quiet_year_runs_each_day_when_it_is_due() -> None:
    """Nothing goes wrong: a run a day, at once; a look for it and one at its end; the clock changes within two."""
    of = rule("0 2 * * *", timezone="Europe/Berlin", delay=600)
    server = run(YEAR, 365, of, Trouble(), 1)
    assert len(server.started) == 365
    assert all(now - each.upper == timedelta(minutes=10) for now, each in server.started)
    lengths = {(each.upper - each.lower) // timedelta(hours=1) for _, each in server.started}
    assert lengths == {23, 24, 25}
    assert server.looks <= 2 * 365 + 2
