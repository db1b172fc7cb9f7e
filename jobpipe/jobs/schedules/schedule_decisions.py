"""What a schedule does now: a pure function of its rule, its state and the time.

The state of a schedule is its last accepted upper bound, and its intervals that are not done. They are stored, and
everything follows from them: :func:`decide` may be called at any time, as often as one likes, late, early, or by two at
once, if what it says is stored in one transaction before any run is started:

1. the intervals to accept, each once by (schedule, lower), and those that are left out;
2. the new last accepted upper bound, in place of the one that was given.

A server that is killed between that and the start of a run finds the interval WAITING, and starts its run then. The
intervals that are accepted or left out follow each other without gap and without overlap, whatever the clock did
meanwhile: one that goes backwards makes no interval twice, as nothing is accepted twice; one that goes forward only
makes intervals early.

With ``boundaryType: OFFSET`` an interval is known by the same times. Its bounds in the topic are what the bus said when
the bounds were accepted. So before a decision that moves ``accepted`` is stored, the bus is asked, and the answer is
stored with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice

from jobpipe.errors import ConfigError, ControlConflict
from jobpipe.jobs.schedules.schedule_rule import Interval, Rule

MOST_BACKFILLED = 10_000
"""Intervals of one backfill."""


class IntervalState(StrEnum):
    """How an interval stands. The first three are open, the others done."""

    WAITING = "WAITING"  # accepted, and its run is to be started
    RUNNING = "RUNNING"
    FAILED = "FAILED"  # its run has ended without success: a person repeats or skips it
    SUCCEEDED = "SUCCEEDED"
    SKIPPED = "SKIPPED"  # a person abandoned it
    LEFT_OUT = "LEFT_OUT"  # it was missed, and `catchup` makes no run for it


@dataclass(frozen=True, kw_only=True)
class ScheduleState:
    """What of a schedule is stored and matters now.

    Attributes:
        accepted: the upper bound of the last interval that was accepted or left out; at first :meth:`Rule.first`.
        waiting: accepted intervals whose runs are to be started.
        running: intervals whose runs are under way, or LOST.
        failed: intervals whose runs have failed and that were not repeated or skipped; the earliest is enough.
    """

    accepted: datetime
    waiting: Sequence[Interval] = ()
    running: Sequence[Interval] = ()
    failed: Sequence[Interval] = ()


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do now. Nothing is to be stored if ``accepted`` is that of the state.

    Attributes:
        accept: an interval to store.
        left_out: ranges that no run will read, in order; :meth:`Rule.parts` lists their intervals.
        accepted: the new last accepted upper bound.
        begin: the interval whose run begins now: one that waited, or ``accept``.
        look_again: when to decide again, if the state does not change before; None: there is nothing more to come.
    """

    accept: Interval | None = None
    left_out: tuple[Interval, ...] = ()
    accepted: datetime
    begin: Interval | None = None
    look_again: datetime | None = None


def decide(rule: Rule, state: ScheduleState, now: datetime) -> Decision:
    """Return what to do now. Runs follow each other: at most one begins, and none while another one is under way.

    To be called again at ``look_again``, and whenever the state changes otherwise: when a run has ended, after a skip,
    a repetition, a backfill or a change of the rule.
    """
    waiting = min(state.waiting, default=None)
    failed = min(state.failed, default=None) if rule.self_depend else None
    lower = state.accepted if rule.start is None else max(state.accepted, rule.start)
    begin: Interval | None = None
    accept: Interval | None = None
    left: Interval | None = None
    if state.running:
        pass
    elif waiting is not None:
        begin = waiting if failed is None or waiting <= failed else None
    elif failed is None:
        accept, left = _due(rule, lower, now)
        begin = accept
    last = accept or left
    accepted = state.accepted if last is None else last.upper
    left_out = [left] if left is not None else []
    if accepted > state.accepted < lower:  # the rule was changed to begin later
        left_out.insert(0, Interval(state.accepted, lower))
    return Decision(
        accept=accept,
        left_out=tuple(left_out),
        accepted=accepted,
        begin=begin,
        look_again=rule.next_due(max(lower, accepted), now),
    )


def _due(rule: Rule, lower: datetime, now: datetime) -> tuple[Interval | None, Interval | None]:
    """Return the interval to accept of those that are due, and what is left out before, or instead of, it."""
    last = rule.last_due(lower, now)
    if last is None:
        return None, None
    if rule.catchup == "latest":
        return Interval(lower, last), None
    if rule.catchup == "none":
        newest = rule.before(last, lower)
        if newest.lower == lower:
            return newest, None
        # What the bus would have said at the bounds that were missed cannot be known, so with offsets the last one is
        # left out too: the next interval begins with what the bus says now.
        return (None, Interval(lower, last)) if rule.offsets else (newest, Interval(lower, newest.lower))
    following = rule.following(lower)
    return (following if following is not None and following.upper <= last else None), None


def skipped(interval: Interval, state: IntervalState) -> IntervalState:
    """Return the state of an interval that a person abandons.

    Raises:
        ControlConflict: its run is under way, or has succeeded.
    """
    if state is IntervalState.RUNNING:
        raise ControlConflict(f"the run of {interval} is under way; cancel it first", state=str(state))
    if state is IntervalState.SUCCEEDED:
        raise ControlConflict(f"the run of {interval} has succeeded; there is nothing to skip", state=str(state))
    return IntervalState.SKIPPED


def repeated(interval: Interval, state: IntervalState, *, force: bool = False) -> IntervalState:
    """Return the state of an interval that is to run again; its new run takes the place of the former one.

    Args:
        force: also one that has succeeded.

    Raises:
        ControlConflict: its run is under way or still to begin, or it has succeeded.
    """
    if state in (IntervalState.RUNNING, IntervalState.WAITING):
        raise ControlConflict(f"the run of {interval} has not ended yet", state=str(state))
    if state is IntervalState.SUCCEEDED and not force:
        raise ControlConflict(f"the run of {interval} has succeeded; force it to run again", state=str(state))
    return IntervalState.WAITING


@dataclass(frozen=True, kw_only=True)
class Backfill:
    """What a backfill does.

    Attributes:
        accept: to store as WAITING, in order: intervals, or parts of them, that no run was made for.
        repeat: stored intervals that become WAITING again.
        done: those that have succeeded, and are left alone.
        under_way: those whose runs wait or run already.
        ahead: intervals that the schedule has not come to yet; it will make their runs itself.
    """

    accept: tuple[Interval, ...] = ()
    repeat: tuple[Interval, ...] = ()
    done: tuple[Interval, ...] = ()
    under_way: tuple[Interval, ...] = ()
    ahead: tuple[Interval, ...] = ()


def backfill(
    rule: Rule,
    accepted: datetime,
    booked: Mapping[Interval, IntervalState],
    asked: Interval,
    *,
    force: bool = False,
) -> Backfill:
    """Return what to do so that all intervals of the rule inside a range have run; what has succeeded is left alone.

    A stored interval that lies partly in the range is meant as a whole. No moment comes to lie in two intervals.

    Args:
        accepted: the last accepted upper bound.
        booked: at least all accepted intervals that overlap the range.
        force: run again what has succeeded.

    Raises:
        ControlConflict: the runs have no bounds, or bounds in the topic that are not known for the past.
        ConfigError: there are no intervals in the range, or too many.
    """
    if not rule.bounded:
        raise ControlConflict("runs of mode available-now have no bounds: they read everything that is available")
    inside = list(islice(rule.intervals(asked.lower, asked.upper), MOST_BACKFILLED + 1))
    if not inside:
        raise ConfigError(f"{asked} holds no whole interval of the schedule; `jobpipe schedules preview` shows them")
    if len(inside) > MOST_BACKFILLED:
        raise ConfigError(f"{asked} holds more than {MOST_BACKFILLED:,} intervals; give a shorter range")
    past = [Interval(each.lower, min(each.upper, accepted)) for each in inside if each.lower < accepted]
    ahead = tuple(Interval(max(each.lower, accepted), each.upper) for each in inside if each.upper > accepted)
    # Intervals of a rule that lie in a range follow each other without gap.
    meant = sorted(each for each in booked if past and each.lower < past[-1].upper and each.upper > past[0].lower)
    accept = tuple(_uncovered(past, meant))
    if accept and rule.offsets:
        raise ControlConflict(f"the offsets at the bounds of {accept[0]} are not known any more")
    states = {each: booked[each] for each in meant}
    again = [IntervalState.FAILED, IntervalState.SKIPPED, *([IntervalState.SUCCEEDED] if force else [])]
    active = (IntervalState.WAITING, IntervalState.RUNNING)
    return Backfill(
        accept=accept,
        repeat=tuple(each for each, state in states.items() if state in again),
        done=tuple(each for each, state in states.items() if state is IntervalState.SUCCEEDED and not force),
        under_way=tuple(each for each, state in states.items() if state in active),
        ahead=ahead,
    )


def _uncovered(wanted: Sequence[Interval], taken: Sequence[Interval]) -> Iterator[Interval]:
    """Yield the parts of intervals that lie in none of ``taken``; both are in order, and do not overlap."""
    first = 0
    for each in wanted:
        lower = each.lower
        while first < len(taken) and taken[first].upper <= lower:
            first += 1
        for other in islice(taken, first, None):
            if lower >= each.upper or other.lower >= each.upper:
                break
            if lower < other.lower:
                yield Interval(lower, other.lower)
            lower = other.upper
        if lower < each.upper:
            yield Interval(lower, each.upper)
