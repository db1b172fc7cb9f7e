"""What was measured in the last hour and the last day, in rings of slots that never grow."""

from __future__ import annotations

import math
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jobpipe.control.history.series import HIGHEST, Line, SeriesKey

MAX_SERIES = 8_000
FINE_SECONDS, FINE_SLOTS = 10, 360  # an hour
COARSE_SECONDS, COARSE_SLOTS = 120, 720  # a day
FINE_PER_COARSE = COARSE_SECONDS // FINE_SECONDS
NEVER = -(2**62)  # the slot of a cell that was not used yet
MOST = 3e38  # what fits into a cell

_GAP = math.nan
_NO_FINE = array("f", [_GAP]) * FINE_SLOTS
_NO_COARSE = array("f", [_GAP]) * COARSE_SLOTS


@dataclass(frozen=True)
class StoredSeries:
    """A series as it is kept in a file; a value that is not a number is a gap.

    Attributes:
        age: coarse slots since it was fed.
        fine, coarse: one value for each cell.
    """

    key: SeriesKey
    age: int
    fine: array[float]
    coarse: array[float]


@dataclass(frozen=True)
class StoredHistory:
    """A whole history as it is kept in a file.

    Attributes:
        fine_slots, coarse_slots: which slot each cell has; :data:`NEVER` for one that was not used.
        series: that which was not fed for longest first.
    """

    fine_slots: array[int]
    coarse_slots: array[int]
    series: tuple[StoredSeries, ...]


class _Series:
    """The rings of one series.

    Attributes:
        turn: of the history, when it was fed last.
        look: the number of the feed that it was fed by last.
        slot, samples: the fine slot that it was fed in last, and how often.
    """

    __slots__ = ("coarse", "fine", "look", "samples", "slot", "turn")

    def __init__(self, fine: array[float], coarse: array[float], turn: int) -> None:
        self.fine = fine
        self.coarse = coarse
        self.turn = turn
        self.look = 0
        self.slot = NEVER
        self.samples = 0


class History:
    """Keeps each series at two resolutions: slots of 10 s for an hour, and of 2 min for a day. Thread safe.

    A slot of 10 s has the highest of its samples for lags and durations, and their mean for rates; one of 2 min has the
    highest, or the mean, of its slots of 10 s. A slot without a sample is a gap.

    A slot is a number: the time divided by its length. Each cell of the rings remembers which slot it has, for all
    series together. So a clock that jumps ruins only those cells that it comes to, and what they had shows as a gap.
    Of :data:`MAX_SERIES` series those go first that were not fed for longest. One that was not fed for a day goes, too;
    the day is counted in slots, so that no jump of the clock removes it.

    Args:
        clock: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float], *, max_series: int = MAX_SERIES) -> None:
        self._clock = clock
        self._max_series = max_series
        self._lock = threading.Lock()
        self._series: OrderedDict[SeriesKey, _Series] = OrderedDict()  # fed last: at the end
        self._fine_slots = array("q", [NEVER]) * FINE_SLOTS
        self._coarse_slots = array("q", [NEVER]) * COARSE_SLOTS
        self._turn = 0  # the coarse slots that were begun
        self._look = 0

    def __len__(self) -> int:
        with self._lock:
            return len(self._series)

    def feed(self, samples: Mapping[SeriesKey, float], seconds: float = 0.0) -> None:
        """Add what one look has found; a value below zero, or that is not finite, is left out.

        Args:
            seconds: for which the values stand, up to now. Slots before the present one get them only if they
                begin in that time.
        """
        now = self._clock()
        own = math.floor(now / FINE_SECONDS)
        first = math.floor((now - seconds) / FINE_SECONDS) + 1
        slots = range(max(min(first, own), own - FINE_SLOTS + 1), own + 1)
        with self._lock:
            self._look += 1
            self._begin(slots)
            coarse = {slot // FINE_PER_COARSE: self._cells_of(slot // FINE_PER_COARSE) for slot in slots}
            for key, value in samples.items():
                if 0 <= value < math.inf and (series := self._fed(key)) is not None:
                    self._put(series, min(value, MOST), slots, coarse, highest=key.measure in HIGHEST)

    def line(self, key: SeriesKey, hours: int = 1) -> Line:
        """Return the values of the last hour, or of the last 24; all are gaps for a series that is not known.

        The present slot is left out until it has a sample.
        """
        if hours not in (1, 24):
            raise ValueError(f"there are 1 and 24 hours, not {hours}")
        step = FINE_SECONDS if hours == 1 else COARSE_SECONDS
        now = math.floor(self._clock() / step)
        with self._lock:
            slots = self._fine_slots if hours == 1 else self._coarse_slots
            count = len(slots)
            last = now if slots[now % count] == now else now - 1
            wanted = range(last - count + 1, last + 1)
            series = self._series.get(key)
            if series is None:
                return Line(float(wanted[0] * step), float(step), (None,) * count)
            ring = series.fine if hours == 1 else series.coarse
            found = [ring[slot % count] if slots[slot % count] == slot else _GAP for slot in wanted]
        return Line(float(wanted[0] * step), float(step), tuple(None if math.isnan(each) else each for each in found))

    def stored(self) -> StoredHistory:
        """Return a copy of all, for a file."""
        with self._lock:
            return StoredHistory(
                self._fine_slots[:],
                self._coarse_slots[:],
                tuple(
                    StoredSeries(key, self._turn - each.turn, each.fine[:], each.coarse[:])
                    for key, each in self._series.items()
                ),
            )

    def restore(self, stored: StoredHistory) -> None:
        """Replace all by what a file has."""
        with self._lock:
            self._fine_slots, self._coarse_slots = stored.fine_slots[:], stored.coarse_slots[:]
            newest = stored.series[-self._max_series :]
            self._series = OrderedDict(
                (each.key, _Series(each.fine[:], each.coarse[:], self._turn - each.age)) for each in newest
            )

    def _begin(self, slots: range) -> None:
        """Make the cells of slots gaps, unless they have those slots already."""
        fine = [slot for slot in slots if self._fine_slots[slot % FINE_SLOTS] != slot]
        wanted = range(slots[0] // FINE_PER_COARSE, slots[-1] // FINE_PER_COARSE + 1)
        coarse = [slot for slot in wanted if self._coarse_slots[slot % COARSE_SLOTS] != slot]
        for slot in fine:
            self._fine_slots[slot % FINE_SLOTS] = slot
        for slot in coarse:
            self._coarse_slots[slot % COARSE_SLOTS] = slot
        self._turn += len(coarse)
        while self._series and next(iter(self._series.values())).turn <= self._turn - COARSE_SLOTS:
            self._series.popitem(last=False)
        for series in self._series.values():
            for slot in fine:
                series.fine[slot % FINE_SLOTS] = _GAP
            for slot in coarse:
                series.coarse[slot % COARSE_SLOTS] = _GAP

    def _cells_of(self, coarse: int) -> list[int]:
        """Return the fine cells that have slots of a coarse slot."""
        slots = range(coarse * FINE_PER_COARSE, (coarse + 1) * FINE_PER_COARSE)
        return [slot % FINE_SLOTS for slot in slots if self._fine_slots[slot % FINE_SLOTS] == slot]

    def _fed(self, key: SeriesKey) -> _Series | None:
        """Return a series that is fed now; None for a new one if all others were fed now, too, and it has no room."""
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= self._max_series:
                if next(iter(self._series.values())).look == self._look:
                    return None
                self._series.popitem(last=False)
            series = self._series[key] = _Series(_NO_FINE[:], _NO_COARSE[:], self._turn)
        else:
            self._series.move_to_end(key)
        series.look, series.turn = self._look, self._turn
        return series

    @staticmethod
    def _put(series: _Series, value: float, slots: range, coarse: Mapping[int, list[int]], *, highest: bool) -> None:
        ring, own = series.fine, slots[-1]
        for slot in slots[:-1]:
            ring[slot % FINE_SLOTS] = value
        cell = own % FINE_SLOTS
        if series.slot != own:
            series.slot, series.samples = own, 1
            ring[cell] = value
        else:
            series.samples += 1
            ring[cell] = max(ring[cell], value) if highest else ring[cell] + (value - ring[cell]) / series.samples
        for slot, cells in coarse.items():
            known = [found for each in cells if (found := ring[each]) == found]
            if known:
                series.coarse[slot % COARSE_SLOTS] = max(known) if highest else sum(known) / len(known)
