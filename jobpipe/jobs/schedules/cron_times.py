"""The moments at which intervals end: a crontab or a period of the calendar in a time zone, as an endless series.

A series is a set of moments. What follows a moment does not depend on where one began to count, so that a server that
starts again, or asks about the past, finds the same moments. All moments are in UTC; ``None`` is returned where the
calendar of Python ends.

**Crontab** follows cron(8) of Debian. Moments are those at which the clock on the wall shows a time that matches.

- If the minute or the hour begins with ``*``, every moment at which it does: in autumn those of the repeated hour too,
  in spring none in the hour that is skipped. ``0 * * * *`` is each hour that passes.
- Else a time of the day: once a day. In autumn at its first occurrence; in spring, if it is skipped, as soon as the
  clock has gone forward.

cronsim is only asked which times match; it knows no zone here. By its own arithmetic with zones, what follows a moment
of the repeated hour is one that has passed, and moments are lost where the clock changes by half an hour.

**Periods.** Days, weeks, months and years begin at midnight of the zone: where that is skipped, as soon as the clock
has gone forward, where it comes twice, at the first. Seconds, minutes and hours are time that has passed, whatever the
clock shows. Periods are counted from ``start``, if the schedule has one (those from that very moment, the others from
its day, month or year), else from 1970-01-01, weeks from a Monday; so ``15 minutes`` ends at :00, :15, :30 and
:45 UTC, and ``3 months`` are quarters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import TYPE_CHECKING

from jobpipe.errors import ConfigError

if TYPE_CHECKING:
    from cronsim import CronSim

INSTALL = "pip install 'cronsim>=2.6'"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONDAY = date(1969, 12, 29)
_DAY_AND_HOUR = timedelta(hours=25)  # no clock was ever set by more
_MINUTE = timedelta(minutes=1)
_ELAPSED = {"second": timedelta(seconds=1), "minute": _MINUTE, "hour": timedelta(hours=1)}


class Times(ABC):
    """An endless series of moments, in UTC."""

    @abstractmethod
    def after(self, moment: datetime) -> datetime | None:
        """Return the first one that is later."""

    @abstractmethod
    def at_or_before(self, moment: datetime) -> datetime | None:
        """Return the last one that is not later."""


def clock_times(zone: tzinfo, shown: datetime) -> tuple[datetime, ...]:
    """Return when a zone's clock shows a time, which has no zone of its own: one moment, two, or none."""
    first = shown.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) != shown:
        return ()
    second = shown.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return (first,) if second == first else (first, second)


def _once(zone: tzinfo, shown: datetime) -> datetime:
    """Return when a zone's clock first shows a time, or, if it never does, when it has gone forward over it."""
    if found := clock_times(zone, shown):
        return found[0]
    # The earlier one of both offsets leads to before the change, the later one to after it, or to the change itself.
    before = shown.replace(tzinfo=zone, fold=1).astimezone(UTC)
    after = shown.replace(tzinfo=zone, fold=0).astimezone(UTC)
    offset = before.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + timedelta(seconds=(after - before) // timedelta(seconds=2))
        if middle.astimezone(zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after


class CrontabTimes(Times):
    """The moments of a crontab with five fields.

    Raises:
        ConfigError: no day matches it, or cronsim is not installed.
    """

    def __init__(self, crontab: str, zone: tzinfo) -> None:
        self._crontab = crontab
        self._zone = zone
        fields = crontab.split()
        self._often = any(field.startswith("*") for field in fields[:2])
        if self.after(_EPOCH) is None:
            raise ConfigError(f"crontab {crontab} never matches; give a day that its months have", crontab=crontab)

    def after(self, moment: datetime) -> datetime | None:
        """Return the first one that is later."""
        best: datetime | None = None
        try:
            for shown in self._matching(moment, reverse=False):
                found = self._moments(shown)
                # Each time that the clock shows later has its first moment later, too.
                if best is not None and found and found[0] >= best:
                    return best
                for each in found:
                    if each > moment and (best is None or each < best):
                        best = each
        except OverflowError:
            pass
        return best

    def at_or_before(self, moment: datetime) -> datetime | None:
        """Return the last one that is not later."""
        best: datetime | None = None
        try:
            for shown in self._matching(moment, reverse=True):
                found = self._moments(shown)
                # Each time that the clock shows earlier has its last moment earlier, too.
                if best is not None and found and found[-1] <= best:
                    return best
                for each in found:
                    if each <= moment and (best is None or each > best):
                        best = each
        except (OverflowError, ValueError):
            pass
        return best

    def _matching(self, moment: datetime, *, reverse: bool) -> Iterator[datetime]:
        """Yield what the clock shows whenever the crontab matches, from so early that no moment is missed."""
        shown = moment.astimezone(self._zone).replace(tzinfo=None, fold=0)
        changes = [self._offset(moment + each) for each in (-_DAY_AND_HOUR, timedelta(0), _DAY_AND_HOUR)]
        spare = max(changes) - min(changes) + _MINUTE
        return _simulation(self._crontab, shown + (spare if reverse else -spare), reverse=reverse)

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self._zone).utcoffset() or timedelta(0)

    def _moments(self, shown: datetime) -> tuple[datetime, ...]:
        return clock_times(self._zone, shown) if self._often else (_once(self._zone, shown),)


def _simulation(crontab: str, shown: datetime, *, reverse: bool) -> CronSim:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise ConfigError(f"a crontab needs cronsim: {INSTALL}", install=INSTALL) from error
    try:
        return CronSim(crontab, shown, reverse=reverse)
    except CronSimError as error:
        raise ConfigError(
            f"crontab {crontab} never matches ({error}); give a day that its months have", crontab=crontab
        ) from error


class ElapsedTimes(Times):
    """The ends of periods that all last equally long."""

    def __init__(self, length: timedelta, start: datetime | None) -> None:
        self._length = length
        self._start = _EPOCH if start is None else start

    def after(self, moment: datetime) -> datetime | None:
        """Return the first one that is later."""
        return self._at((moment - self._start) // self._length + 1)

    def at_or_before(self, moment: datetime) -> datetime | None:
        """Return the last one that is not later."""
        return self._at((moment - self._start) // self._length)

    def _at(self, number: int) -> datetime | None:
        try:
            return self._start + number * self._length
        except OverflowError:
            return None


class CalendarTimes(Times):
    """Midnights of a zone: every so many days, or on the first of every so many months."""

    def __init__(self, count: int, *, of_months: bool, first: date, zone: tzinfo) -> None:
        self._count = count
        self._of_months = of_months
        self._zone = zone
        self._first = first.year * 12 + first.month - 1 if of_months else first.toordinal()

    def after(self, moment: datetime) -> datetime | None:
        """Return the first one that is later."""
        return next((each for each in self._near(moment, (-1, 0, 1, 2, 3)) if each > moment), None)

    def at_or_before(self, moment: datetime) -> datetime | None:
        """Return the last one that is not later."""
        return next((each for each in self._near(moment, (2, 1, 0, -1, -2)) if each <= moment), None)

    def _near(self, moment: datetime, steps: tuple[int, ...]) -> Iterator[datetime]:
        """Yield the begins of periods near a moment. A day that a zone left out begins, and ends, with the next one."""
        day = moment.astimezone(self._zone).date()
        number = day.year * 12 + day.month - 1 if self._of_months else day.toordinal()
        period = (number - self._first) // self._count
        for step in steps:
            wanted = self._first + (period + step) * self._count
            try:
                begin = date(wanted // 12, wanted % 12 + 1, 1) if self._of_months else date.fromordinal(wanted)
                yield _once(self._zone, datetime.combine(begin, time()))
            except (OverflowError, ValueError):
                continue


def period_times(every: str, zone: tzinfo, start: datetime | None) -> Times:
    """Return the series of a period, such as ``hour``, ``15 minutes`` or ``3 months``.

    Args:
        every: as :class:`~jobpipe.pipelines.file.spec.ScheduleSpec` takes it.
        start: where the schedule's first interval begins.
    """
    number, _, unit = every.rpartition(" ")
    count = int(number or 1)
    unit = unit.removesuffix("s")
    if unit in _ELAPSED:
        return ElapsedTimes(count * _ELAPSED[unit], start)
    first = _EPOCH.date() if start is None else start.astimezone(zone).date()
    if unit == "week" and start is None:
        first = _MONDAY
    of_months = unit in ("month", "year")
    return CalendarTimes(count * {"week": 7, "year": 12}.get(unit, 1), of_months=of_months, first=first, zone=zone)
