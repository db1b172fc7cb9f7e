"""A control server's schedule in simulated time: its state is stored, runs end, servers are killed, clocks are set."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from jobpipe.jobs.schedules.schedule_decisions import Decision, IntervalState, ScheduleState, decide, repeated, skipped
from jobpipe.jobs.schedules.schedule_rule import Interval, Rule

OPEN = (IntervalState.WAITING, IntervalState.RUNNING, IntervalState.FAILED)
SECOND = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What goes wrong, and how often.

    Attributes:
        late: how late the server looks at most; it also looks at any time in between.
        runs: how long a run takes at most.
        fails: which part of the runs fails; a person repeats or, seldom, skips the interval later.
        killed: how often the server is killed after it has stored a decision.
        outages: when the server is away for three days.
        backwards: how often the clock is behind when the server looks.
    """

    late: timedelta = timedelta(0)
    runs: timedelta = timedelta(minutes=1)
    fails: float = 0.0
    skips: float = 0.0
    killed: float = 0.0
    outages: tuple[datetime, ...] = ()
    backwards: float = 0.0


@dataclass
class Server:
    """One schedule: ``booked`` and ``left_out`` are what its tables hold."""

    rule: Rule
    created: datetime
    trouble: Trouble
    chance: random.Random
    now: datetime = field(init=False)
    accepted: datetime = field(init=False)
    booked: dict[datetime, tuple[Interval, IntervalState]] = field(default_factory=dict)
    left_out: list[Interval] = field(default_factory=list)
    started: list[tuple[datetime, Interval]] = field(default_factory=list)
    successes: Counter[datetime] = field(default_factory=Counter)
    most_running: int = 0
    looks: int = 0

    def __post_init__(self) -> None:
        self.now = self.created
        self.first = self.accepted = self.rule.first(self.created)
        self._open: set[datetime] = set()
        self._ends: dict[datetime, datetime] = {}  # of runs, and when a person looks at a failed one
        self._outages = list(self.trouble.outages)

    def intervals(self, *states: IntervalState) -> list[Interval]:
        """Return those in these states, in order; the states are open ones."""
        opened = (self.booked[lower] for lower in self._open)
        return sorted(each for each, state in opened if state in states)

    def _enter(self, each: Interval, state: IntervalState) -> None:
        self.booked[each.lower] = (each, state)
        (self._open.add if state in OPEN else self._open.discard)(each.lower)

    def run_until(self, last: datetime) -> None:
        """Let time pass."""
        next_check: datetime | None = self.now
        while True:
            events = [*self._ends.values(), *([] if next_check is None else [next_check])]
            if not events or min(events) > last:
                break
            self.now = max(self.now, min(events))
            if self._outages and self.now >= self._outages[0]:
                self.now = self._outages.pop(0) + timedelta(days=3)
            self._end_runs()
            next_check = self._next_check()
        self.now = max(self.now, last)

    def settle(self) -> None:
        """Let all that is due come to its end, without more trouble."""
        self.trouble = Trouble()
        for _ in range(100_000):
            self._end_runs()
            decision = self.decide()
            self.store(decision)
            if not self.intervals(*OPEN) and decision.begin is None:
                return
            self.now = max(self.now, min(self._ends.values(), default=self.now))
        raise AssertionError(f"it never comes to rest: {self.intervals(*OPEN)[:5]}")

    def decide(self, now: datetime | None = None) -> Decision:
        """Return what to do by the state; now and then ask twice."""
        self.looks += 1
        failed = self.intervals(IntervalState.FAILED)
        state = ScheduleState(
            accepted=self.accepted,
            waiting=self.intervals(IntervalState.WAITING),
            running=self.intervals(IntervalState.RUNNING),
            failed=failed[: self.chance.choice((1, None))],
        )
        moment = self.now if now is None else now
        decision = decide(self.rule, state, moment)
        if self.looks % 50 == 1:
            assert decision == decide(self.rule, state, moment)
        assert decision.look_again is None or decision.look_again > moment
        return decision

    def store(self, decision: Decision) -> bool:
        """Store a decision, and start the runs; returns False if the server is killed between."""
        assert (decision.accepted > self.accepted) == (decision.accept is not None or bool(decision.left_out))
        if decision.accept is not None:
            assert decision.accept.lower not in self.booked, "an interval comes twice"
            self._enter(decision.accept, IntervalState.WAITING)
        self.left_out += decision.left_out
        self.accepted = decision.accepted
        if self.chance.random() < self.trouble.killed:
            return False
        each = decision.begin
        if each is not None:
            assert self.booked[each.lower] == (each, IntervalState.WAITING)
            self._enter(each, IntervalState.RUNNING)
            self.started.append((self.now, each))
            self._ends[each.lower] = self.now + self.trouble.runs * self.chance.random() + SECOND
        self.most_running = max(self.most_running, len(self.intervals(IntervalState.RUNNING)))
        return True

    def _next_check(self) -> datetime | None:
        """Decide, and return when to do so again: when it said, or later, or earlier."""
        behind = timedelta(0)
        if self.chance.random() < self.trouble.backwards:
            behind = timedelta(hours=self.chance.uniform(0, 72))
        decision = self.decide(self.now - behind)
        killed = not self.store(decision)
        if behind or killed:
            return self.now + timedelta(minutes=30)  # the clock is set, or the server started, again
        if decision.look_again is None:
            return None
        if self.trouble.late and self.chance.random() < 0.1:
            return self.now + (decision.look_again - self.now) * self.chance.random()
        return decision.look_again + self.trouble.late * self.chance.random()

    def _end_runs(self) -> None:
        for lower in [each for each, end in self._ends.items() if end <= self.now]:
            each, state = self.booked[lower]
            del self._ends[lower]
            if state is IntervalState.RUNNING:
                if self.chance.random() < self.trouble.fails:
                    self._enter(each, IntervalState.FAILED)
                    self._ends[lower] = self.now + timedelta(hours=self.chance.uniform(0, 30))
                else:
                    self._enter(each, IntervalState.SUCCEEDED)
                    self.successes[lower] += 1
            elif self.chance.random() < self.trouble.skips:
                self._enter(each, skipped(each, state))
            else:
                self._enter(each, repeated(each, state))
