"""The account of one subscription: what it has committed, and whether that was read as it was published.

An account stands at a row of the log. All that was committed between its beginning and there is proven, but for the
spans that are not, and for the differences.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from jobpipe.store.ledger.account_values import (
    COUNTED,
    MAX_ROWS,
    MOVED,
    REMOVED,
    UNPROVEN,
    UNREAD,
    WAITING,
    CountedCursor,
    Difference,
    MinuteCounts,
    Span,
    Totals,
)
from jobpipe.store.ledger.log_rows import LogRows, Place
from jobpipe.store.ledger.range_counts import CoveredRange, RangeCount, RangeCounts, differing

GRACE_SECONDS = 20.0
"""After an acknowledgement, in which a count may still come."""

MAX_DIFFERENCES = 100
MAX_SPANS = 200
MAX_NAMED = 16  # partitions of a difference
MAX_UNSETTLED = 1_000


class LedgerClock:
    """The time of a ledger.

    Attributes:
        now: seconds in which counts could come; see :meth:`jobpipe.store.ledger.topic_ledger.TopicLedger.advance`.
        wall: returns seconds since 1970.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self.now = 0.0
        self.wall = wall


@dataclass(frozen=True)
class _Unsettled:
    """A range that was committed, and is not proven.

    Attributes:
        row, rows: the number of its first row, and how many are to be read.
        until: when it is judged.
        provable: all who read it have reported here: what none has counted was not read.
        reason: why it is not read, if it is not.
        wanted: the partitions that are to be read; None for all.
        published: rows by partition, as far as is known.
    """

    start: Place
    end: Place
    row: int
    rows: int
    until: float
    provable: bool
    reason: str
    wanted: tuple[int, ...] | None
    published: Mapping[int, int] | None


@dataclass(frozen=True)
class _Judged:
    """What comes of a range that is committed: rows not to be read, rows not known, and parts that are not proven."""

    passed: tuple[int, int] = (0, 0)
    unproven: tuple[int, int] = (0, 0)
    waiting: tuple[_Unsettled, ...] = ()


@dataclass
class _State:
    """What is stored; ``place`` and ``row`` are where the account stood when it was.

    Attributes:
        base: the row before which it says nothing.
        stood_back: the subscription has acknowledged more, which this account knows nothing of.
    """

    base: int
    place: Place
    row: int
    totals: Totals = field(default_factory=Totals)
    spans: deque[Span] = field(default_factory=deque)
    differences: deque[Difference] = field(default_factory=deque)
    stood_back: bool = False


class HopAccount:
    """The account of one subscription. For one thread at a time.

    Args:
        log: the rows of the log.
        clock: of the ledger.

    Attributes:
        dirty: something that only this process knows is to be stored.
    """

    def __init__(self, log: LogRows, clock: LedgerClock) -> None:
        self._log = log
        self._clock = clock
        self._state: _State | None = None  # None until a position is known
        self._counts = RangeCounts()
        self._unsettled: list[_Unsettled] = []
        self._reported: tuple[int, int] | None = None  # grant, and rows that its reader has reported where it stands
        self._counted_from: Place | None = None  # all that is read from here on is counted in this process
        self._wanted: tuple[int, ...] | None = None  # partitions that its tasks are to read; None for all
        self._cursors: dict[int, CountedCursor] = {}
        self._unseen: Place = (0, 0)  # up to which not all partitions of a flow were compared
        self.dirty = False

    # -- who reads -----------------------------------------------------------------------------------------------------

    def wants(self, partitions: tuple[int, ...] | None) -> None:
        """Note which partitions the tasks of the reader are to read; None for all."""
        self._wanted = partitions

    def counts_from(self, place: Place) -> None:
        """Note that a reader whose tasks count goes on from a place: what it reads from there on is counted here."""
        if self._state is not None and place < self._state.place:
            self._counted_from = None  # what it reads again is not judged again
        elif self._counted_from is None:
            self._counted_from = place

    def doubt(self) -> None:
        """Note that a count may be lost, or may not come: what none has counted by now is not known to be unread."""
        self._counted_from = None
        self._unsettled = [replace(each, provable=False) for each in self._unsettled]

    def counted(self, count: RangeCount) -> None:
        """Take what a task has counted."""
        if not self._counts.add(count):
            self.doubt()

    # -- what happens to the subscription ------------------------------------------------------------------------------
    # The log is asked before anything is changed: if it fails, the same call comes again.

    def commit(self, place: Place, *, grant: int = 0, read: int | None = None) -> None:
        """Compare what lies before a place with what was read, and stand there.

        Args:
            place: which the subscription acknowledges.
            grant: of its holder.
            read: rows that this holder has read before the place, where it counts itself.

        Raises:
            SpoolError: the catalog cannot be read; nothing is changed.
        """
        row = self._log.before(place)
        if row is None:
            return  # of no use: it cannot be read from there
        state = self._state
        if state is not None and place <= state.place:
            if place == state.place and read is not None:
                self._repeat(state, grant, read)
            return
        if state is None or row < state.row:
            self.begin(place)
            self._reported = None if read is None else (grant, read)
            return
        if read is None:
            judged = self._judged(state.place, place, state.row, row)
            self._reported = None
            self._stand(state, place, row)
            self._apply(judged)
            return
        removed, start, first, before = self._log.is_removed(state.place), state.place, state.row, self._reported
        self._stand(state, place, row)
        self._reported = grant, read
        if before is None or before[0] != grant or read < before[1]:
            self._unproven(first, row)
        elif read - before[1] != row - first:
            reason = REMOVED if removed and read - before[1] < row - first else COUNTED
            self._differ(start, place, row - first, read - before[1], row, reason=reason)

    def _repeat(self, state: _State, grant: int, read: int) -> None:
        """Compare what a reader has read since it stood at the same place before: nothing."""
        before, self._reported = self._reported, (grant, read)
        if before is None or before[0] != grant:
            return
        if read > before[1]:
            self._differ(state.place, state.place, 0, read - before[1], state.row)
        elif read < before[1]:
            self._reported = None

    def commit_flow(self, place: Place, cursors: Sequence[CountedCursor]) -> None:
        """Compare what a flow has read in each partition since the last time, and stand at its lowest cursor.

        Raises:
            SpoolError: the catalog cannot be read; nothing is changed.
        """
        state, row, before = self._state, self._log.before(place), self._cursors
        if row is None:
            return
        known = {each.partition: each for each in cursors}
        if state is None or row < state.row or place < state.place:
            self.begin(place)
            self._cursors, self._unseen = known, max(each.place for each in cursors)
            return
        moved = [each for each in cursors if (old := before.get(each.partition)) is None or old != each]
        pairs = [(old, each) for each in moved if (old := before.get(each.partition)) is not None and each.follows(old)]
        ranges = [(each.partition, old.place, each.place) for old, each in pairs]
        published = self._log.of_partitions(ranges) if ranges else []
        shares = self._log.by_partition(state.place, place) if row > state.row else {}
        if published is None or len(known) < len(cursors) or shares is None or shares.keys() - known.keys():
            unseen = max(each.place for each in cursors)
        else:
            compared = {each.partition for _, each in pairs}
            new = [each.place for each in moved if each.partition not in compared]
            unseen = max([self._unseen, *new])  # up to there some partition was not compared
        end = self._log.before(min(place, (unseen[0] + (1 if unseen[1] else 0), 0)))
        first, start = state.row, state.place
        self._cursors, self._unseen = known, unseen
        for (old, each), rows in zip(pairs, published or (), strict=False):
            read = (each.rows or 0) - (old.rows or 0)
            if rows != read:
                self._differ(old.place, each.place, rows, read, row, (each.partition,))
        self._stand(state, place, row)
        if start < unseen:
            self._unproven(first, row if end is None else end)

    @contextlib.contextmanager
    def moving(self, place: Place) -> Iterator[None]:
        """Stand elsewhere: a person or a new checkpoint moves the position. Around the transaction that does."""
        before = {name: copy.deepcopy(value) for name, value in self.__dict__.items() if name not in ("_log", "_clock")}
        try:
            self._move(place)
            yield
        except BaseException:
            self.__dict__.update(before)
            raise

    def _move(self, place: Place) -> None:
        self._give_up()
        state, row = self._state, self._log.before(place)
        if state is None or row is None:
            self.begin(place)
            return
        if row > state.row:
            self._add_span(Span(state.row, row, MOVED))
            state.totals.moved += row - state.row
        else:  # these rows are judged once more
            kept = [replace(span, end=min(span.end, row)) for span in state.spans if span.first < row]
            state.spans.clear()
            state.spans.extend(kept)
            state.base = min(state.base, row)
        state.place, state.row, state.stood_back = place, row, False
        self.dirty = True

    def begin(self, place: Place) -> None:
        """Begin at a place: what lies before it is not known to this account. Totals and differences stay."""
        row = self._log.before(place)
        self._unsettled.clear()
        self._reported = None
        if row is None:
            return
        if self._state is None:
            self._state = _State(row, place, row)
        else:
            state = self._state
            state.base, state.place, state.row, state.stood_back = row, place, row, False
            state.spans.clear()
        self.dirty = True

    def stand_back(self, place: Place) -> None:
        """Stand at a place, if further on: what was published from there on is gone, and others may be published."""
        state = self._state
        if state is None:
            return
        self._give_up()
        row = self._log.before(place)
        if state.place <= place or row is None:
            return
        state.totals.committed = max(0, state.totals.committed + row - state.row)
        state.base = min(state.base, row)
        state.place, state.row, state.stood_back = place, row, True
        self.dirty = True

    def settle(self) -> None:
        """Judge what was committed a while ago, with what has been counted since.

        Raises:
            SpoolError: the catalog cannot be read; nothing is changed.
        """
        looked = [(part, covered) for each in self._unsettled for part, covered in self._parts(each)]
        self._unsettled = []
        for part, covered in looked:
            if self._is_proven(part, covered):
                self.dirty = True
            elif self._clock.now >= part.until:
                self._decide(part, covered)
            else:
                self._unsettled.append(part)
        if self._state is not None:
            self._counts.drop_before(min((each.start for each in self._unsettled), default=self._state.place))

    def _give_up(self) -> None:
        """Wait for no count any more, and forget who reads: another reading begins."""
        self.doubt()
        self._unsettled = [replace(each, until=self._clock.now) for each in self._unsettled]
        self.settle()
        self._counts.clear()
        self._reported = None
        self._cursors = {}

    # -- reports -------------------------------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """True while counts are waited for."""
        return bool(self._unsettled)

    @property
    def totals(self) -> Totals | None:
        """Rows since the account began, those that are waited for by themselves; None before it has begun."""
        if self._state is None:
            return None
        waiting = sum(each.rows for each in self._unsettled)
        return replace(self._state.totals, committed=self._state.totals.committed - waiting, waiting=waiting)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The newest ones, oldest first."""
        return () if self._state is None else tuple(self._state.differences)

    def minutes(self, rows: Sequence[tuple[int, int]]) -> list[MinuteCounts | None]:
        """Return how it has the rows from one number to before another, of each pair; None before its beginning."""
        state = self._state
        if state is None or not rows:
            return [None] * len(rows)
        first, end = rows[0][0], rows[-1][1]
        waiting = [Span(each.row, each.row + each.rows, WAITING) for each in self._unsettled]
        spans = [span for span in (*state.spans, *waiting) if span.within(first, end)]
        found = [each for each in state.differences if each.row > first]
        return [self._minute(state, *each, spans, found) for each in rows]

    def _minute(
        self, state: _State, first: int, end: int, spans: Sequence[Span], found: Sequence[Difference]
    ) -> MinuteCounts | None:
        if end <= state.base:
            return None
        first = max(first, state.base)
        unproven, moved, waiting = (
            sum(span.within(first, end) for span in spans if span.kind == kind) for kind in (UNPROVEN, MOVED, WAITING)
        )
        committed = max(0, min(max(state.row, first), end) - first - moved - waiting)
        lost = sum(each.lost_within(first, end) for each in found)
        ends_here = [each for each in found if first < each.row <= end]
        read = max(0, committed - unproven - lost) + sum(each.doubled for each in ends_here)
        return MinuteCounts(end - first, committed, min(read, MAX_ROWS), unproven, moved, bool(lost or ends_here))

    # -- stored --------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any] | None:
        """Return what is stored; what is waited for counts as not known. None before it has begun."""
        state = self._state
        if state is None:
            return None
        waiting = [Span(each.row, each.row + each.rows, UNPROVEN) for each in self._unsettled]
        totals = replace(state.totals)
        totals.unproven += sum(each.rows for each in self._unsettled)
        return {
            "base": state.base,
            "place": list(state.place),
            "row": state.row,
            "stood_back": state.stood_back,
            "totals": asdict(totals),
            "spans": [[span.first, span.end, span.kind] for span in [*state.spans, *waiting][-MAX_SPANS:]],
            "differences": [asdict(each) for each in state.differences],
        }

    def load(self, stored: Mapping[str, Any], place: Place, row: int | None) -> None:
        """Go on as stored, at the place that the subscription has acknowledged since.

        Args:
            stored: what :meth:`to_json` returned.
            place: where it stands.
            row: the row there by what is stored with the position; it counts where the log knows of none any more.


        All that was committed in between is proven: else it would have been stored in the same transaction. The
        exception is an account that stood back.
        """
        before = int(stored["row"])
        known = self._log.before(place)
        if known is None and stored["stood_back"]:  # what was taken back is not sealed again yet
            first, end = stored["place"]
            known, place = before, (int(first), int(end))
        row = known if known is not None else before if row is None else row
        totals = Totals(**stored["totals"])
        totals.committed = max(0, totals.committed + row - before)
        state = self._state = _State(min(int(stored["base"]), row), place, row, totals)
        state.spans.extend(Span(*each) for each in stored["spans"])
        state.differences.extend(
            Difference(**{**each, "partitions": tuple(each["partitions"])}) for each in stored["differences"]
        )
        if stored["stood_back"] and row > before:
            self._unproven(before, row)

    # -- judging -------------------------------------------------------------------------------------------------------

    def _stand(self, state: _State, place: Place, row: int) -> None:
        state.totals.committed += row - state.row
        state.place, state.row = place, row
        if state.stood_back:
            state.stood_back, self.dirty = False, True

    def _judged(self, start: Place, end: Place, first: int, last: int) -> _Judged:
        """Compare what is committed, from row ``first`` to before ``last``, with what tasks have counted."""
        if first == last:
            return _Judged()
        wanted, published, rows = self._wanted, None, last - first
        if wanted is not None:
            published = self._log.by_partition(start, end)
            if published is None:
                return _Judged(unproven=(first, last))
            rows = sum(published.get(each, 0) for each in wanted)
        passed = (first + rows, last)
        if not rows:
            return _Judged(passed=passed)
        if not self._counts and self._counted_from is None:  # nothing was counted, and nothing will be
            return _Judged(passed=passed, unproven=(first, first + rows))
        reason = REMOVED if self._log.is_removed(start) else UNREAD
        until, provable = self._clock.now + GRACE_SECONDS, self._is_provable(start)
        whole = _Unsettled(start, end, first, rows, until, provable, reason, wanted, published)
        open_parts = [part for part, covered in self._parts(whole) if not self._is_proven(part, covered)]
        return _Judged(passed=passed, waiting=tuple(open_parts))

    def _apply(self, judged: _Judged) -> None:
        """Note what came of a range that is committed now."""
        self._pass_over(*judged.passed)
        self._unproven(*judged.unproven)
        for each in judged.waiting:
            self._wait_for(each)
        if not self._unsettled and self._state is not None:
            self._counts.drop_before(self._state.place)

    def _is_provable(self, start: Place) -> bool:
        return self._counted_from is not None and start >= self._counted_from

    def _parts(self, whole: _Unsettled) -> Iterator[tuple[_Unsettled, CoveredRange]]:
        """Yield a range in parts: each was counted as a whole, or not at all; as one where that is not known."""
        covered = list(self._counts.cover(whole.start, whole.end, self._choose))
        if len(covered) == 1:
            yield self._with_partitions(whole, covered[0]), covered[0]
            return
        sizes = [self._rows_of(each, whole.wanted) for each in covered]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes) or sum(known) != whole.rows:  # some of it was removed meanwhile
            yield replace(whole, provable=False), CoveredRange(whole.start, whole.end)
            return
        row = whole.row
        for each, rows in zip(covered, known, strict=True):
            provable = whole.provable or self._is_provable(each.start)
            part = replace(whole, start=each.start, end=each.end, row=row, rows=rows, provable=provable, published=None)
            if rows:
                yield self._with_partitions(part, each), each
            row += rows

    def _with_partitions(self, part: _Unsettled, covered: CoveredRange) -> _Unsettled:
        """Return it with its rows by partition: a sum may hide that some were lost, and others doubled."""
        if part.published is not None or not covered.readings:
            return part
        return replace(part, published=self._log.by_partition(part.start, part.end))

    def _rows_of(self, covered: CoveredRange, wanted: tuple[int, ...] | None) -> int | None:
        if wanted is None:
            first, last = self._log.before(covered.start), self._log.before(covered.end)
            return None if first is None or last is None else last - first
        found = self._log.by_partition(covered.start, covered.end)
        return None if found is None else sum(found.get(each, 0) for each in wanted)

    def _choose(self, found: Sequence[CoveredRange]) -> CoveredRange:
        """Return one of several ranges that begin at a place: one that is proven, else that of the newest reading."""
        for each in sorted(found, key=lambda each: each.end, reverse=True):
            rows = self._rows_of(each, self._wanted)
            if any(reading.rows == rows for reading in each.readings):
                return each
        return max(found, key=lambda each: each.readings[-1].began)

    def _is_proven(self, part: _Unsettled, covered: CoveredRange) -> bool:
        """Tell whether some reading of a range has counted its rows; of each partition, where that is known."""
        return any(
            reading.rows == part.rows
            and (part.published is None or not differing(part.published, reading.by_partition(), part.wanted))
            for reading in covered.readings
        )

    def _wait_for(self, waiting: _Unsettled) -> None:
        self._unsettled.append(waiting)
        self.dirty = True  # if this process is killed, it is not known
        while len(self._unsettled) > MAX_UNSETTLED:
            oldest = self._unsettled.pop(0)
            self._unproven(oldest.row, oldest.row + oldest.rows)

    def _decide(self, part: _Unsettled, covered: CoveredRange) -> None:
        """Say of a range that is not proven what it is: a difference, or not known."""
        row = part.row + part.rows
        if not covered.readings:
            if part.provable:
                self._differ(part.start, part.end, part.rows, 0, row, reason=part.reason)
            else:
                self._unproven(part.row, row)
            return
        reading = max(covered.readings, key=lambda each: each.began)
        if reading.rows < part.rows and (reading.broken or not part.provable):
            self._unproven(part.row, row)
            return
        if part.published is None:
            self._differ(part.start, part.end, part.rows, reading.rows, row)
            return
        read = reading.by_partition()
        where = differing(part.published, read, part.wanted)
        wanted = part.published if part.wanted is None else {each: part.published.get(each, 0) for each in part.wanted}
        doubled = sum(max(0, read.get(each, 0) - wanted.get(each, 0)) for each in where)
        self._differ(part.start, part.end, part.rows, reading.rows, row, where, doubled=doubled)

    def _differ(
        self,
        start: Place,
        end: Place,
        published: int,
        read: int,
        row: int,
        partitions: tuple[int, ...] = (),
        *,
        reason: str = COUNTED,
        doubled: int | None = None,
    ) -> None:
        """Note a difference; ``doubled``: rows that were read more, where the sum hides some that were read less."""
        state = self._state
        assert state is not None  # noqa: S101 - it stands somewhere
        read = min(read, MAX_ROWS)
        found = Difference(
            first=start[0],
            end=max(end[0] + (1 if end[1] else 0), start[0] + 1),
            published=published,
            read=read,
            partitions=partitions[:MAX_NAMED],
            found=round(self._clock.wall(), 3),
            reason=reason,
            row=row,
            doubled=min(max(0, read - published) if doubled is None else doubled, MAX_ROWS),
        )
        if len(state.differences) >= MAX_DIFFERENCES:
            state.base = max(state.base, state.differences.popleft().row)  # of what lies before, too little is known
        state.differences.append(found)
        state.totals.lost += found.lost
        state.totals.doubled = min(state.totals.doubled + found.doubled, MAX_ROWS)
        state.totals.differences += 1
        self.dirty = True

    def _pass_over(self, first: int, end: int) -> None:
        """Note rows that the reader is not to read, since they are of other partitions than it wants."""
        state = self._state
        assert state is not None  # noqa: S101 - it stands somewhere
        if first < end:
            self._add_span(Span(first, end, MOVED))
            state.totals.committed -= end - first
            state.totals.moved += end - first

    def _unproven(self, first: int, end: int) -> None:
        state = self._state
        assert state is not None  # noqa: S101 - it stands somewhere
        if first < end:
            self._add_span(Span(first, end, UNPROVEN))
            state.totals.unproven += end - first

    def _add_span(self, span: Span) -> None:
        state = self._state
        assert state is not None  # noqa: S101 - it stands somewhere
        last = state.spans[-1] if state.spans else None
        if last is not None and (last.end, last.kind) == (span.first, span.kind):
            state.spans[-1] = Span(last.first, span.end, span.kind)
        else:
            if len(state.spans) >= MAX_SPANS:
                state.base = max(state.base, state.spans.popleft().end)
            state.spans.append(span)
        self.dirty = True
