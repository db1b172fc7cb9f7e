"""A schedule's rule: its intervals, which are half-open, and when each is due.

Intervals lie between the moments of a series (:mod:`jobpipe.jobs.schedules.cron_times`), the first from ``start``. They
are known by their bounds in UTC. An interval is due when its upper bound and the delay have passed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal

from jobpipe.errors import ConfigError, short_repr
from jobpipe.jobs.schedules.cron_times import CrontabTimes, Times, period_times
from jobpipe.pipelines.file.spec import ScheduleSpec
from jobpipe.pipelines.file.time_zones import time_zone

Catchup = Literal["all", "latest", "none"]
_INSTANT = timedelta(microseconds=1)
YEARS = (1970, 2999)
_LONGEST_DELAY = 366 * 86400.0


@dataclass(frozen=True, order=True)
class Interval:
    """From ``lower`` up to, and without, ``upper``; both in UTC."""

    lower: datetime
    upper: datetime

    def __post_init__(self) -> None:
        if self.lower.tzinfo is not UTC or self.upper.tzinfo is not UTC or not self.lower < self.upper:
            raise ValueError(f"no interval: {self.lower} to {self.upper}")

    def __str__(self) -> str:
        return f"[{_text(self.lower)}, {_text(self.upper)})"


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When bounded runs are made.

    Attributes:
        times: where intervals end.
        start: where the first one begins; None: the server's choice, :meth:`first`.
        end: no interval begins at it or later.
        catchup: what is done about intervals that were missed.
        self_depend: whether a run waits until all earlier intervals have succeeded, or were skipped.
        offsets: whether the bounds of runs are what the bus says at the firing, and not the times.
        bounded: False: a run of the streaming job takes all that is there; its interval is only the reason for it.
    """

    times: Times
    zone: tzinfo
    start: datetime | None = None
    end: datetime | None = None
    delay: timedelta = timedelta(0)
    catchup: Catchup = "all"
    self_depend: bool = False
    offsets: bool = False
    bounded: bool = True

    @classmethod
    def of(cls, spec: ScheduleSpec) -> Rule:
        """Return the rule that a file's section stands for.

        Raises:
            ConfigError: it has no moments: a crontab that never comes true, an end before the start, and what
                ``validate`` finds. Or cronsim is missing, or the files of its time zone.
        """
        zone = time_zone(spec.timezone)
        start, end = _moment("start", spec.start), _moment("end", spec.end)
        if start is not None and end is not None and end <= start:
            raise ConfigError(f"schedule.end {spec.end} is not later than schedule.start; give a later one", key="end")
        if not 0 <= spec.delay <= _LONGEST_DELAY:
            raise ConfigError("schedule.delay is longer than a year; give a shorter one", key="delay")
        if (spec.crontab is None) == (spec.every is None):
            raise ConfigError("a schedule needs one rule; give crontab or every", key="schedule")
        times: Times
        if spec.crontab is not None:
            times = CrontabTimes(spec.crontab, zone)
        else:
            times = period_times(spec.every or "", zone, start)
        bounded = spec.mode == "bounded"
        offsets = bounded and spec.boundary_type == "OFFSET"
        if offsets and spec.catchup == "all":
            raise ConfigError(
                "offsets of intervals that were missed cannot be known afterwards; "
                "give boundaryType: TIME, or catchup: latest",
                key="catchup",
            )
        return cls(
            times=times,
            zone=zone,
            start=start,
            end=end,
            delay=timedelta(seconds=spec.delay),
            catchup=spec.catchup if bounded else "latest",
            self_depend=spec.self_depend,
            offsets=offsets,
            bounded=bounded,
        )

    def first(self, created: datetime) -> datetime:
        """Return where the first interval of a schedule begins that was made at ``created``.

        Without ``start`` that is the moment of the series before it, so that the first interval is a whole one.
        """
        return self.start or self.times.at_or_before(created) or created

    def following(self, lower: datetime) -> Interval | None:
        """Return the interval that begins at a bound, whether or not the series has it; None after the end."""
        if self.end is not None and lower >= self.end:
            return None
        upper = self.times.after(lower)
        return None if upper is None else Interval(lower, upper)

    def before(self, upper: datetime, floor: datetime) -> Interval:
        """Return the interval that ends at a moment of the series; it does not begin before ``floor``."""
        lower = self.times.at_or_before(upper - _INSTANT)
        return Interval(floor if lower is None else max(lower, floor), upper)

    def last_due(self, lower: datetime, now: datetime) -> datetime | None:
        """Return the last upper bound that is due, of the intervals that follow ``lower``; None: none is."""
        if self.end is not None and lower >= self.end:
            return None
        last = self.times.at_or_before(now - self.delay)
        if last is not None and self.end is not None and last > self.end:
            last = self._last_upper(self.end)
        return last if last is not None and last > lower else None

    def _last_upper(self, end: datetime) -> datetime | None:
        return self.times.after(end - _INSTANT)

    def next_due(self, lower: datetime, now: datetime) -> datetime | None:
        """Return when the next interval that follows ``lower`` becomes due, later than now; None: never again."""
        upper = self.times.after(max(lower, now - self.delay))
        if upper is None or (
            self.end is not None and (last := self._last_upper(self.end)) is not None and upper > last
        ):
            return None
        return upper + self.delay

    def intervals(self, lower: datetime, upper: datetime) -> Iterator[Interval]:
        """Yield the intervals of the rule that lie in a range; those before ``start`` are none of its."""
        if self.start is not None and lower <= self.start:
            begin: datetime | None = self.start
        else:
            begin = self.times.after(lower - _INSTANT)
        while begin is not None and (each := self.following(begin)) is not None and each.upper <= upper:
            yield each
            begin = each.upper

    def parts(self, whole: Interval) -> Iterator[Interval]:
        """Yield the intervals that a longer one consists of, such as one that was left out; together they are it."""
        lower = whole.lower
        while lower < whole.upper:
            after = self.times.after(lower)
            upper = whole.upper if after is None else min(after, whole.upper)
            yield Interval(lower, upper)
            lower = upper


def _moment(key: str, text: str | None) -> datetime | None:
    """Return a time of the file.

    Raises:
        ConfigError: it is none, has no zone, or is absurd.
    """
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError
        moment = found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        given = f"schedule.{key}: {short_repr(text)}"
        what = f"{given} is not a time; give it in ISO 8601 with a zone, as 2026-11-21T00:00:00Z"
        raise ConfigError(what, key=key) from error
    if not YEARS[0] <= moment.year <= YEARS[1]:
        raise ConfigError(f"schedule.{key}: {short_repr(text)} is not in the years {YEARS[0]} to {YEARS[1]}", key=key)
    return moment
