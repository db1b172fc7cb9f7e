"""What a schedule does at a moment: catching up, waiting, skipping, repeating, backfilling, each by itself."""

from __future__ import annotations

from typing import Any

import pytest

from jobpipe.errors import ConfigError, ControlConflict
from jobpipe.jobs.schedules.schedule_decisions import (
    Backfill,
    Decision,
    IntervalState,
    ScheduleState,
    backfill,
    decide,
    repeated,
    skipped,
)
from jobpipe.jobs.schedules.schedule_rule import Interval, Rule
from tests.control_schedules.rules import at, rule, span


def hour(number: int, last: int | None = None) -> Interval:
    """Return the interval from an hour of 2026-11-01 to the next, or to another; hours go on after 23."""
    upper = number + 1 if last is None else last
    day, days = number // 24 + 1, upper // 24 + 1
    return span(f"2026-11-{day:02} {number % 24:02}:00", f"2026-11-{days:02} {upper % 24:02}:00")


def hourly(**more: Any) -> Rule:
    return rule("hour", **more)


def decision(of: Rule, now: str, **state: Any) -> Decision:
    return decide(of, ScheduleState(accepted=at("2026-11-01 00:00"), **state), at(f"2026-11-01 {now}"))


# -- due or not


def test_nothing_is_due_before_the_end_and_the_delay() -> None:
    of = hourly(delay="10min")
    early = decision(of, "01:09:59.999999")
    assert early == Decision(accepted=at("2026-11-01 00:00"), look_again=at("2026-11-01 01:10"))
    due = decision(of, "01:10")
    assert (due.accept, due.begin, due.accepted) == (hour(0), hour(0), at("2026-11-01 01:00"))
    assert due.look_again == at("2026-11-01 02:10")


def test_a_clock_that_went_back() -> None:
    found = decide(hourly(), ScheduleState(accepted=at("2026-11-01 05:00")), at("2026-10-30 12:00"))
    assert found == Decision(accepted=at("2026-11-01 05:00"), look_again=at("2026-11-01 06:00"))


def test_the_first_interval_is_a_whole_one_or_begins_at_the_start() -> None:
    assert hourly().first(at("2026-11-01 10:17")) == at("2026-11-01 10:00")
    of = rule("day", start="2026-11-01T10:00:00Z")
    assert of.first(at("2026-11-20 00:00")) == at("2026-11-01 10:00")
    assert of.following(at("2026-11-01 10:00")) == span("2026-11-01 10:00", "2026-11-02 00:00")


def test_no_interval_begins_at_the_end_or_later() -> None:
    of = hourly(end="2026-11-01T02:30:00Z", catchup="all")
    found = decide(of, ScheduleState(accepted=at("2026-11-01 02:00")), at("2026-11-01 09:00"))
    assert (found.accept, found.look_again) == (hour(2), None)
    assert decide(of, ScheduleState(accepted=found.accepted), at("2026-11-02 00:00")).accept is None
    of = hourly(end="2026-11-01T02:00:00Z", catchup="latest")
    assert decision(of, "09:00").accept == hour(0, 2)


def test_a_rule_that_was_changed() -> None:
    """It goes on where the former one came to; what a later start leaves out is listed."""
    state = ScheduleState(accepted=at("2026-11-01 14:00"))
    now = at("2026-11-02 01:00")
    assert decide(rule("day"), state, now).accept == span("2026-11-01 14:00", "2026-11-02 00:00")
    found = decide(hourly(start="2026-11-01T22:00:00Z"), state, now)
    assert (found.left_out, found.accept) == ((hour(14, 22),), hour(22))
    assert decide(hourly(start="2026-11-09T22:00:00Z"), state, now).left_out == ()


# -- what was missed


def test_catchup_all_is_a_run_for_each() -> None:
    found = decision(hourly(), "07:30")
    assert found.accept == found.begin == hour(0)
    assert (found.left_out, found.accepted) == ((), at("2026-11-01 01:00"))
    following = decide(hourly(), ScheduleState(accepted=found.accepted), at("2026-11-01 07:30"))
    assert following.accept == following.begin == hour(1)


def test_catchup_latest_is_one_run_over_all() -> None:
    found = decision(hourly(catchup="latest"), "07:30")
    assert (found.accept, found.left_out, found.accepted) == (hour(0, 7), (), at("2026-11-01 07:00"))


def test_catchup_none_is_the_last_alone() -> None:
    found = decision(hourly(catchup="none"), "07:30")
    assert (found.accept, found.left_out) == (hour(6), (hour(0, 6),))
    assert list(hourly().parts(found.left_out[0])) == [hour(number) for number in range(6)]
    assert decision(hourly(catchup="none"), "01:30").left_out == ()


def test_offsets_that_were_missed_are_left_out() -> None:
    """What the bus would have said at the bounds is not known, so ``none`` waits for the next interval."""
    of = hourly(catchup="none", boundaryType="OFFSET")
    found = decision(of, "07:30")
    assert (found.accept, found.left_out, found.accepted) == (None, (hour(0, 7),), at("2026-11-01 07:00"))
    assert decision(of, "01:30").accept == hour(0)
    with pytest.raises(ConfigError, match="catchup: latest"):
        hourly(boundaryType="OFFSET", catchup="all")


def test_available_now_is_one_run_at_a_time() -> None:
    of = hourly(mode="available-now", catchup="all")
    assert decision(of, "07:30").accept == hour(0, 7)
    assert decision(of, "07:30", running=[hour(0)]).accept is None


# -- what waits


def test_runs_follow_each_other() -> None:
    """What waits comes first, the earliest of it; nothing is accepted before that has run."""
    quiet = (None, None, at("2026-11-01 00:00"))
    found = decision(hourly(), "07:30", running=[hour(30)])
    assert (found.begin, found.accept, found.accepted) == quiet
    found = decision(hourly(), "07:30", running=[hour(30)], waiting=[hour(31)])
    assert (found.begin, found.accept, found.accepted) == quiet
    found = decision(hourly(), "07:30", waiting=[hour(33), hour(32)])
    assert (found.begin, found.accept, found.accepted) == (hour(32), None, at("2026-11-01 00:00"))


def test_self_depend_waits_for_success() -> None:
    of = hourly(**{"self-depend": True})
    assert decision(of, "07:30").begin == hour(0)
    assert decision(of, "07:30", running=[hour(30)]).begin is None
    assert decision(of, "07:30", failed=[hour(30)]).begin is None
    found = decision(of, "07:30", waiting=[hour(31), hour(30)])
    assert (found.begin, found.accept) == (hour(30), None)
    assert decision(of, "07:30", waiting=[hour(31)], failed=[hour(30)]).begin is None
    assert decision(of, "07:30", waiting=[hour(30)], failed=[hour(31)]).begin == hour(30)


def test_without_self_depend_a_failed_run_holds_nothing_up() -> None:
    assert decision(hourly(), "01:30", failed=[hour(30)]).begin == hour(0)
    assert decision(hourly(), "01:30", failed=[hour(30)], waiting=[hour(31)]).begin == hour(31)


# -- what people do


@pytest.mark.parametrize(
    ("state", "skip", "repeat", "force"),
    [
        ("WAITING", "SKIPPED", "has not ended", "has not ended"),
        ("RUNNING", "cancel it first", "has not ended", "has not ended"),
        ("FAILED", "SKIPPED", "WAITING", "WAITING"),
        ("SKIPPED", "SKIPPED", "WAITING", "WAITING"),
        ("SUCCEEDED", "nothing to skip", "force it", "WAITING"),
    ],
)
def test_skip_and_repeat(state: str, skip: str, repeat: str, force: str) -> None:
    before = IntervalState(state)
    for expected, act in (
        (skip, lambda: skipped(hour(0), before)),
        (repeat, lambda: repeated(hour(0), before)),
        (force, lambda: repeated(hour(0), before, force=True)),
    ):
        if expected in IntervalState.__members__:
            assert act() is IntervalState(expected)
        else:
            with pytest.raises(ControlConflict, match=expected) as told:
                act()
            assert "[2026-11-01T00:00:00Z, 2026-11-01T01:00:00Z)" in str(told.value)


# -- backfill

ACCEPTED = at("2026-11-01 20:00")
BOOKED = {
    hour(10): IntervalState.SUCCEEDED,
    hour(11): IntervalState.FAILED,
    hour(12): IntervalState.RUNNING,
    hour(13): IntervalState.SKIPPED,
    hour(15, 18): IntervalState.SUCCEEDED,  # of catchup: latest
}


def test_backfill() -> None:
    asked = span("2026-11-01 08:30", "2026-11-01 22:30")
    found = backfill(hourly(), ACCEPTED, BOOKED, asked)
    assert found == Backfill(
        accept=(hour(9), hour(14), hour(18), hour(19)),
        repeat=(hour(11), hour(13)),
        done=(hour(10), hour(15, 18)),
        under_way=(hour(12),),
        ahead=(hour(20), hour(21)),
    )
    forced = backfill(hourly(), ACCEPTED, BOOKED, asked, force=True)
    assert (forced.repeat, forced.done) == ((hour(10), hour(11), hour(13), hour(15, 18)), ())
    assert forced.accept == found.accept


def test_backfill_never_overlaps_what_is_booked() -> None:
    """An interval of the rule that is stored in part: the rest of it; a run over several is meant as a whole."""
    found = backfill(rule("4 hours"), ACCEPTED, BOOKED, hour(8, 20))
    assert found.accept == (hour(8, 10), hour(14), hour(18, 20))
    assert backfill(hourly(), ACCEPTED, BOOKED, hour(16)).done == (hour(15, 18),)
    assert backfill(hourly(), ACCEPTED, BOOKED, hour(16), force=True).repeat == (hour(15, 18),)
    halved = backfill(rule("12 hours"), ACCEPTED, {}, hour(0, 24))
    assert (halved.accept, halved.ahead) == ((hour(0, 12), hour(12, 20)), (hour(20, 24),))


def test_backfill_before_the_first_interval() -> None:
    assert backfill(hourly(), at("2026-12-24 00:00"), {}, hour(0, 3)).accept == (hour(0), hour(1), hour(2))
    of = hourly(start="2026-11-01T01:00:00Z")
    assert backfill(of, at("2026-12-24 00:00"), {}, hour(0, 3)).accept == (hour(1), hour(2))


def test_backfill_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="no whole interval"):
        backfill(hourly(), ACCEPTED, {}, span("2026-11-01 00:01", "2026-11-01 01:59"))
    with pytest.raises(ConfigError, match="more than 10,000 intervals"):
        backfill(rule("minute"), ACCEPTED, {}, span("2026-10-01 00:00", "2026-11-01 00:00"))
    with pytest.raises(ControlConflict, match="no bounds"):
        backfill(hourly(mode="available-now"), ACCEPTED, {}, hour(0, 3))
    of = hourly(boundaryType="OFFSET", catchup="latest")
    with pytest.raises(ControlConflict, match="not known any more"):
        backfill(of, ACCEPTED, BOOKED, hour(9, 12))
    assert backfill(of, ACCEPTED, BOOKED, hour(10, 14)).repeat == (hour(11), hour(13))


# -- rules that are wrong


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"start": "2026-11-21"}, "schedule.start: '2026-11-21' is not a time"),
        ({"end": "0001-01-01T00:00:00+14:00"}, "schedule.end: .* is not a time"),
        ({"start": "9998-01-01T00:00:00Z"}, "not in the years 1970 to 2999"),
        ({"start": "2026-11-21T00:00:00Z", "end": "2026-11-21T01:00:00+01:00"}, "not later than schedule.start"),
        ({"delay": "400d"}, "longer than a year"),
        ({"crontab": "0 2 * * *"}, "give crontab or every"),
    ],
)
def test_a_wrong_rule(more: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rule("hour", **more)


def test_an_interval_is_in_utc_and_not_empty() -> None:
    moment = at("2026-11-01 00:00")
    for lower, upper in ((moment, moment), (at("2026-11-01 01:00"), moment), (moment.replace(tzinfo=None), moment)):
        with pytest.raises(ValueError, match="no interval"):
            Interval(lower, upper)
