"""At which moments intervals end: dates of clock changes, and a comparison with counting minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobpipe.errors import ConfigError
from jobpipe.jobs.schedules.cron_times import CrontabTimes, Times, period_times
from tests.control_schedules.rules import at, clock_changes, rule

MINUTE = timedelta(minutes=1)
ODD_ZONES = {
    "Europe/Berlin": "2026-01-01",
    "America/New_York": "2026-01-01",
    "Australia/Lord_Howe": "2026-01-01",  # half an hour
    "Antarctica/Troll": "2026-01-01",  # two hours
    "America/Havana": "2026-01-01",  # midnight is skipped, and comes twice
    "Africa/Cairo": "2026-01-01",  # midnight is skipped
    "Africa/Casablanca": "2026-01-01",  # four changes around Ramadan, or two
    "America/Sao_Paulo": "2018-01-01",  # midnight is skipped; the last hour of a day comes twice
    "Pacific/Apia": "2011-06-01",  # a whole day is skipped
    "Asia/Kolkata": "2026-01-01",  # never
    "UTC": "2026-01-01",
}


def some(given: str, zone: str, begin: str, count: int, start: str | None = None) -> list[str]:
    """Return the moments after ``begin``, as the zone's clock shows them; each is found backwards, too."""
    times = rule(given, timezone=zone, **({} if start is None else {"start": start})).times
    found: list[datetime] = []
    moment = at(begin)
    for _ in range(count):
        following = times.after(moment)
        assert following is not None
        assert times.at_or_before(following) == following
        assert times.at_or_before(following - timedelta(microseconds=1)) == times.at_or_before(moment)
        found.append(following)
        moment = following
    return [each.astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M %z") for each in found]


# -- crontab: what cronsim alone gets wrong, or leaves to its caller


def test_a_time_of_the_day_that_comes_twice_is_its_first() -> None:
    """cronsim gives 02:30 +0200 again if it is asked from the second 02:15: a moment that has passed."""
    assert some("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", 2) == ["10-25 02:30 +0200", "10-26 02:30 +0100"]
    assert some("30 2 * * *", "Europe/Berlin", "2026-10-25T01:15Z", 1) == ["10-26 02:30 +0100"]
    assert some("30 1 * * *", "America/New_York", "2026-11-01T04:00Z", 2) == ["11-01 01:30 -0400", "11-02 01:30 -0500"]


def test_a_time_of_the_day_that_is_skipped_is_as_soon_as_the_clock_was_set() -> None:
    assert some("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", 2) == ["03-29 03:00 +0200", "03-30 02:30 +0200"]
    assert some("15 2 * * *", "America/New_York", "2026-03-08T00:00Z", 2) == ["03-08 03:00 -0400", "03-09 02:15 -0400"]
    assert some("5 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00Z", 2) == [
        "10-04 02:30 +1100",
        "10-05 02:05 +1100",
    ]


def test_skipped_times_are_one_moment() -> None:
    """Two moments at 03:00 would be an interval without length."""
    assert some("0,30 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00Z", 3) == [
        "03-29 03:00 +0200",
        "03-29 03:30 +0200",
        "03-30 02:00 +0200",
    ]


def test_each_hour_is_each_that_passes() -> None:
    assert some("0 * * * *", "Europe/Berlin", "2026-10-24T23:30Z", 3) == [
        "10-25 02:00 +0200",
        "10-25 02:00 +0100",
        "10-25 03:00 +0100",
    ]
    assert some("0 * * * *", "Europe/Berlin", "2026-03-28T23:30Z", 3) == [
        "03-29 01:00 +0100",
        "03-29 03:00 +0200",
        "03-29 04:00 +0200",
    ]


def test_half_an_hour() -> None:
    """By itself cronsim goes on from 01:30 +1030 to 02:30 with ``*/30 2``, without 02:00."""
    zone = "Australia/Lord_Howe"
    expected = ["04-05 01:30 +1100", "04-05 01:30 +1030", "04-05 02:00 +1030", "04-05 02:30 +1030"]
    assert some("*/30 1,2 * * *", zone, "2026-04-04T14:10Z", 4) == expected
    assert some("*/30 1,2 * * *", zone, "2026-04-04T15:10Z", 2) == expected[2:]
    for begin in ("2026-04-04T14:10Z", "2026-04-04T15:10Z"):
        assert some("*/30 2 * * *", zone, begin, 2) == expected[2:]
    assert some("*/30 2 * * *", zone, "2026-10-03T12:00Z", 2) == ["10-04 02:30 +1100", "10-05 02:00 +1100"]


def test_leap_days_and_days_that_months_have() -> None:
    assert some("0 0 29 2 *", "UTC", "2026-01-01", 2) == ["02-29 00:00 +0000"] * 2
    assert CrontabTimes("0 0 29 2 *", ZoneInfo("UTC")).after(at("2026-01-01")) == at("2028-02-29")
    assert some("0 12 L 1,2,4 *", "Europe/Berlin", "2026-01-01", 3) == [
        "01-31 12:00 +0100",
        "02-28 12:00 +0100",
        "04-30 12:00 +0200",
    ]


def test_days_of_the_week() -> None:
    """0 and 7 are Sunday, 1 is Monday; with a day of the month, either."""
    assert (
        some("0 0 * * 0", "UTC", "2026-11-20", 1) == some("0 0 * * 7", "UTC", "2026-11-20", 1) == ["11-22 00:00 +0000"]
    )
    assert some("0 0 * * mon-tue", "UTC", "2026-11-20", 2) == ["11-23 00:00 +0000", "11-24 00:00 +0000"]
    assert some("0 0 25 * 1", "UTC", "2026-11-20", 2) == ["11-23 00:00 +0000", "11-25 00:00 +0000"]


@pytest.mark.parametrize("never", ["0 0 30 2 *", "0 0 31 4,6 *"])
def test_a_crontab_that_never_comes_true(never: str) -> None:
    with pytest.raises(ConfigError, match=r"never matches.*give a day that its months have"):
        rule(never)


# -- periods


def test_days_begin_at_midnight_of_the_zone() -> None:
    assert some("day", "Europe/Berlin", "2026-03-28T12:00Z", 2) == ["03-29 00:00 +0100", "03-30 00:00 +0200"]
    assert some("day", "Africa/Cairo", "2026-04-23T12:00Z", 2) == ["04-24 01:00 +0300", "04-25 00:00 +0300"]
    assert some("day", "America/Havana", "2026-10-31T12:00Z", 2) == ["11-01 00:00 -0400", "11-02 00:00 -0500"]
    assert some("day", "Pacific/Apia", "2011-12-29T12:00Z", 2) == ["12-31 00:00 +1400", "01-01 00:00 +1400"]


def test_hours_and_minutes_are_time_that_passes() -> None:
    assert some("6 hours", "Europe/Berlin", "2026-10-24T18:00Z", 3) == [
        "10-25 02:00 +0200",
        "10-25 07:00 +0100",
        "10-25 13:00 +0100",
    ]
    assert some("20 seconds", "UTC", "2026-01-01T00:00:30Z", 1) == ["01-01 00:00 +0000"]
    assert period_times("20 seconds", UTC, None).after(at("2026-01-01 00:00:30")) == at("2026-01-01 00:00:40")
    assert some("15 minutes", "Asia/Kolkata", "2026-01-01T00:01Z", 2) == ["01-01 05:45 +0530", "01-01 06:00 +0530"]


def test_weeks_months_and_years() -> None:
    assert some("week", "Europe/Berlin", "2026-11-20T00:00Z", 2) == ["11-23 00:00 +0100", "11-30 00:00 +0100"]
    assert some("month", "UTC", "2028-01-31", 3) == ["02-01 00:00 +0000", "03-01 00:00 +0000", "04-01 00:00 +0000"]
    assert some("3 months", "UTC", "2026-05-05", 2) == ["07-01 00:00 +0000", "10-01 00:00 +0000"]
    assert some("year", "Asia/Kolkata", "2026-05-05", 1) == ["01-01 00:00 +0530"]


def test_periods_are_counted_from_the_start() -> None:
    assert some("15 minutes", "UTC", "2026-01-01T00:00Z", 2, "2026-01-01T00:07:00Z") == [
        "01-01 00:07 +0000",
        "01-01 00:22 +0000",
    ]
    assert some("week", "UTC", "2026-11-20", 1, "2026-11-18T10:00:00Z") == ["11-25 00:00 +0000"]
    assert some("3 days", "Europe/Berlin", "2026-11-18T00:00Z", 2, "2026-11-18T10:00:00+01:00") == [
        "11-21 00:00 +0100",
        "11-24 00:00 +0100",
    ]
    assert some("2 months", "UTC", "2026-11-20", 2, "2026-10-18T10:00:00Z") == [
        "12-01 00:00 +0000",
        "02-01 00:00 +0000",
    ]


def test_where_the_calendar_ends() -> None:
    late = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    for each in ("0 0 1 1 *", "day", "9999 years", "9999 hours", "* * * * *"):
        assert rule(each).times.after(late) is None


# -- the same, counted minute by minute


def matches(field: str, number: int, size: int) -> bool:
    """Whether a field of a crontab matches; of the shapes that are drawn here."""
    if field.startswith("*"):
        return number in range(0, size, int(field.partition("/")[2] or 1))
    return str(number) in field.split(",")


def counted(crontab: str, zone: str, first: datetime, last: datetime) -> list[datetime]:
    """Return all moments by looking at the clock each minute."""
    minute_field, hour_field = crontab.split()[:2]
    info = ZoneInfo(zone)
    shown: dict[datetime, datetime] = {}
    found = []
    often = crontab.startswith("*") or hour_field.startswith("*")
    for number in range((last - first) // MINUTE + 1):
        moment = first + number * MINUTE
        clock = moment.astimezone(info).replace(tzinfo=None, fold=0)
        new = clock not in shown
        shown.setdefault(clock, moment)
        if matches(minute_field, clock.minute, 60) and matches(hour_field, clock.hour, 24) and (often or new):
            found.append(moment)
    if not often:
        for before, after in pairwise(sorted(shown)):  # what the clock never showed
            for step in range(1, (after - before) // MINUTE):
                clock = before + step * MINUTE
                if matches(minute_field, clock.minute, 60) and matches(hour_field, clock.hour, 24):
                    found.append(shown[after])
    return sorted(set(found))


@cache
def changes(zone: str) -> list[datetime]:
    first = at(ODD_ZONES[zone])
    return clock_changes(zone, first, first + timedelta(days=366)) or [first + timedelta(days=100)]


LISTS = st.lists(st.integers(0, 59), min_size=1, max_size=3, unique=True)
MINUTES = st.sampled_from(["*", "*/7", "*/30", "0", "30"]) | LISTS.map(lambda each: ",".join(map(str, sorted(each))))
HOURS = st.sampled_from(["*", "*/2", "*/5", "0", "1", "2", "3", "23", "0,1,2,3", "1,2,23"])


def series(times: Times, first: datetime, last: datetime) -> list[datetime]:
    """Return the moments of a range, going forward."""
    found = []
    moment = first - timedelta(microseconds=1)
    while (following := times.after(moment)) is not None and following <= last:
        found.append(following)
        moment = following
    return found


@pytest.mark.slow
@settings(max_examples=40)
@given(zone=st.sampled_from(sorted(ODD_ZONES)), minute=MINUTES, hour=HOURS, data=st.data())
def test_crontab_by_counting(zone: str, minute: str, hour: str, data: st.DataObject) -> None:
    """From any moment, forward and backward, the series is what a clock on the wall shows."""
    crontab = f"{minute} {hour} * * *"
    change = data.draw(st.sampled_from(changes(zone)))
    expected = counted(crontab, zone, change - timedelta(hours=56), change + timedelta(hours=56))
    first, last = change - timedelta(hours=26), change + timedelta(hours=26)
    inside = [each for each in expected if first <= each <= last]
    times = CrontabTimes(crontab, ZoneInfo(zone))
    if len(inside) <= 120:
        assert series(times, first, last) == inside
    for _ in range(40):
        moment = first + timedelta(seconds=data.draw(st.integers(0, 52 * 3600)))
        assert times.after(moment) == next((each for each in expected if each > moment), times.after(moment))
        earlier = [each for each in expected if each <= moment]
        assert times.at_or_before(moment) == (earlier[-1] if earlier else times.at_or_before(moment))


@pytest.mark.slow
@settings(max_examples=30)
@given(
    zone=st.sampled_from(sorted(ODD_ZONES)),
    every=st.sampled_from(["day", "2 days", "week", "month", "5 months", "year", "90 minutes", "7 hours"]),
    data=st.data(),
)
def test_periods_by_counting(zone: str, every: str, data: st.DataObject) -> None:
    """Forward and backward agree; a day is 22 to 26 hours long, or two days where one was left out."""
    times = rule(every, timezone=zone).times
    change = data.draw(st.sampled_from(changes(zone)))
    found = series(times, change - timedelta(days=40), change + timedelta(days=40))
    assert found == sorted(set(found))
    for lower, upper in pairwise(found):
        moment = lower + timedelta(seconds=data.draw(st.integers(0, int((upper - lower).total_seconds()) - 1)))
        assert (times.at_or_before(moment), times.after(moment)) == (lower, upper)
        if every == "day":
            assert timedelta(hours=22) <= upper - lower <= timedelta(hours=26)
            assert upper.astimezone(ZoneInfo(zone)).date() > lower.astimezone(ZoneInfo(zone)).date()
