"""Rules and moments for tests, as short texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from jobpipe.jobs.schedules.schedule_rule import Interval, Rule
from jobpipe.pipelines.file.spec import ScheduleSpec


def at(text: str) -> datetime:
    """Return a moment in UTC: ``2026-10-25 01:30``, or with an offset."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def span(lower: str, upper: str) -> Interval:
    """Return an interval of two moments."""
    return Interval(at(lower), at(upper))


def spec(given: str, **more: Any) -> ScheduleSpec:
    """Return a section: of a crontab, or of a period."""
    key = "crontab" if len(given.split()) == 5 else "every"
    return ScheduleSpec.model_validate({key: given, **more})


def rule(given: str, **more: Any) -> Rule:
    """Return the rule of a section."""
    return Rule.of(spec(given, **more))


def clock_changes(zone: str, first: datetime, last: datetime) -> list[datetime]:
    """Return when a zone's clock was set, to the minute."""
    info = ZoneInfo(zone)
    found = []
    hour = first
    while hour < last:
        following = hour + timedelta(hours=1)
        if hour.astimezone(info).utcoffset() != following.astimezone(info).utcoffset():
            minute = hour
            while minute.astimezone(info).utcoffset() == hour.astimezone(info).utcoffset():
                minute += timedelta(minutes=1)
            found.append(minute)
        hour = following
    return found
