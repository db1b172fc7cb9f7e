"""The state of schedules in the server's store: how far each has come, and the state of each interval.

All changes are made inside a change of the store, together with the runs that they are about.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from jobpipe.jobs.schedules.schedule_decisions import IntervalState, ScheduleState
from jobpipe.jobs.schedules.schedule_rule import Interval
from jobpipe.jobs.storage.job_rows import RunRow
from jobpipe.jobs.storage.job_store import Store
from jobpipe.pipelines.file.spec import ScheduleSpec
from jobpipe.pipelines.model.job_states import JobState

MOST_INTERVALS = 50_000
"""Intervals of a schedule that are kept; of those that are done the oldest go."""
_PRUNE = 100  # so many may be above
OPEN = (IntervalState.WAITING, IntervalState.RUNNING, IntervalState.FAILED)
_OF_JOB = "FROM intervals WHERE pipeline = ? AND job = ?"


@dataclass(frozen=True, kw_only=True)
class ScheduleRow:
    """A schedule.

    Attributes:
        accepted: the upper bound of the last interval that was accepted or left out.
        known_from: what was before is not kept any more.
        paused: a person wants no more runs for now.
        problem: why nothing can be decided now, for people; "" if nothing is wrong.
        spec: its section of the newest file.
        reads: (topic, name of the hold) of each topic that its runs read, as far as the file tells.
        topic, ends: at ``accepted`` that topic went on after that offset, of a schedule by offsets.
    """

    pipeline: str
    job: str
    spec: ScheduleSpec
    accepted: datetime
    reads: tuple[tuple[str, str], ...] = ()
    topic: str | None = None
    ends: int | None = None
    known_from: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    paused: bool = False
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class IntervalRow:
    """An interval that is stored.

    Attributes:
        run: the newest one of it; None before the first, and of what was left out.
        since: it is in this state, in seconds since 1970.
        first, last: its first offset in the topic, and that after its last, if the schedule goes by offsets.
    """

    pipeline: str
    job: str
    interval: Interval
    state: IntervalState
    since: float
    run: str | None = None
    first: int | None = None
    last: int | None = None

    @property
    def bounds(self) -> tuple[str, str]:
        """The bounds of its run, as a run has them."""
        if self.first is not None and self.last is not None:
            return str(self.first), str(self.last)
        return shown_time(self.interval.lower), shown_time(self.interval.upper)


@dataclass(frozen=True, kw_only=True)
class HoldRow:
    """A hold.

    Attributes:
        name: of the job's subscription.
        since: the publish time to which it was moved last; None: it was not taken yet.
        second: it goes by its second name now: a hold does not go back, so another one is taken for that.
    """

    topic: str
    name: str
    since: datetime | None = None
    second: bool = False

    @property
    def hold_name(self) -> str:
        """The name by which the topic knows it."""
        return f"{self.name}.2" if self.second else self.name


class IntervalStore:
    """Typed access to the tables of schedules in one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._database = store.database

    # -- schedules -----------------------------------------------------------------------------------------------------

    def schedules(self, pipeline: str | None = None) -> list[ScheduleRow]:
        """Return those of a pipeline, or all, by name."""
        where, values = ("", []) if pipeline is None else ("WHERE pipeline = ? ", [pipeline])
        query = f"SELECT * FROM schedules {where}ORDER BY pipeline, job"  # noqa: S608
        return [_schedule(row) for row in self._database.all(query, *values)]

    def schedule(self, pipeline: str, job: str) -> ScheduleRow | None:
        """Return that of a job, None if it has none."""
        row = self._database.one("SELECT * FROM schedules WHERE pipeline = ? AND job = ?", pipeline, job)
        return None if row is None else _schedule(row)

    def put_schedule(self, row: ScheduleRow) -> None:
        """Add it, or change it."""
        with self._store.write():
            self._database.execute(
                "INSERT INTO schedules "
                "(pipeline, job, accepted, known_from, paused, problem, spec, reads, topic, ends) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (pipeline, job) DO UPDATE SET accepted = excluded.accepted, "
                "known_from = excluded.known_from, paused = excluded.paused, problem = excluded.problem, "
                "spec = excluded.spec, reads = excluded.reads, topic = excluded.topic, ends = excluded.ends",
                row.pipeline,
                row.job,
                text_of(row.accepted),
                text_of(row.known_from),
                int(row.paused),
                row.problem[:1000],
                row.spec.model_dump_json(by_alias=True, exclude_none=True),
                json.dumps(row.reads),
                row.topic,
                row.ends,
            )

    def remove_schedule(self, pipeline: str, job: str) -> None:
        """Forget it, with its intervals."""
        with self._store.write():
            self._database.execute("DELETE FROM schedules WHERE pipeline = ? AND job = ?", pipeline, job)

    # -- intervals -----------------------------------------------------------------------------------------------------

    def schedule_state(self, row: ScheduleRow) -> ScheduleState:
        """Return what decides what a schedule does now."""
        found = {state: self._in_state(row, state) for state in OPEN}
        return ScheduleState(
            accepted=row.accepted,
            waiting=found[IntervalState.WAITING],
            running=found[IntervalState.RUNNING],
            failed=found[IntervalState.FAILED],
        )

    def _in_state(self, row: ScheduleRow, state: IntervalState) -> list[Interval]:
        """Return the intervals in a state, in order; of those that failed the earliest is enough."""
        limit = 1 if state is IntervalState.FAILED else MOST_INTERVALS
        query = f"SELECT lower, upper {_OF_JOB} AND state = ? ORDER BY lower LIMIT ?"
        rows = self._database.all(query, row.pipeline, row.job, state, limit)
        return [Interval(time_of(each["lower"]), time_of(each["upper"])) for each in rows]

    def counts(self, pipeline: str, job: str) -> dict[IntervalState, int]:
        """Return how many there are in each state that is open."""
        query = f"SELECT state, count(*) AS n {_OF_JOB} AND state IN ('WAITING', 'RUNNING', 'FAILED') GROUP BY state"
        found = {IntervalState(row["state"]): int(row["n"]) for row in self._database.all(query, pipeline, job)}
        return {state: found.get(state, 0) for state in OPEN}

    def intervals(self, pipeline: str, job: str, limit: int) -> list[IntervalRow]:
        """Return the newest ones, the newest first."""
        rows = self._database.all(f"SELECT * {_OF_JOB} ORDER BY lower DESC LIMIT ?", pipeline, job, limit)
        return [_interval(row) for row in rows]

    def intervals_in(self, pipeline: str, job: str, state: IntervalState, limit: int) -> list[IntervalRow]:
        """Return the earliest ones in a state, in order."""
        query = f"SELECT * {_OF_JOB} AND state = ? ORDER BY lower LIMIT ?"
        return [_interval(row) for row in self._database.all(query, pipeline, job, state, limit)]

    def last(self, pipeline: str, job: str, *states: IntervalState) -> IntervalRow | None:
        """Return the latest one in one of some states."""
        marks = ", ".join("?" * len(states))
        query = f"SELECT * {_OF_JOB} AND state IN ({marks}) ORDER BY lower DESC LIMIT 1"
        row = self._database.one(query, pipeline, job, *states)
        return None if row is None else _interval(row)

    def overlapping(self, pipeline: str, job: str, range_: Interval, limit: int) -> list[IntervalRow]:
        """Return those that lie partly in a range, in order."""
        query = f"SELECT * {_OF_JOB} AND lower < ? AND upper > ? ORDER BY lower LIMIT ?"
        bounds = text_of(range_.upper), text_of(range_.lower)
        return [_interval(row) for row in self._database.all(query, pipeline, job, *bounds, limit)]

    def interval(self, pipeline: str, job: str, lower: datetime) -> IntervalRow | None:
        """Return the one that begins at a bound."""
        row = self._database.one(f"SELECT * {_OF_JOB} AND lower = ?", pipeline, job, text_of(lower))
        return None if row is None else _interval(row)

    def of_run(self, run: str) -> IntervalRow | None:
        """Return the interval whose newest run that is."""
        row = self._database.one("SELECT * FROM intervals WHERE run = ?", run)
        return None if row is None else _interval(row)

    def add(self, rows: Sequence[IntervalRow]) -> None:
        """Add some; an interval that begins where another one does is an error of the store."""
        with self._store.write():
            for row in rows:
                self._database.insert(
                    "intervals",
                    {
                        "pipeline": row.pipeline,
                        "job": row.job,
                        "lower": text_of(row.interval.lower),
                        "upper": text_of(row.interval.upper),
                        "state": str(row.state),
                        "run": row.run,
                        "since": row.since,
                        "first": None if row.first is None else str(row.first),
                        "last": None if row.last is None else str(row.last),
                    },
                )

    def change(self, row: IntervalRow, state: IntervalState, now: float, run: str | None) -> None:
        """Store another state, and the run by which it was reached, or by which it is to be run again."""
        with self._store.write():
            self._database.execute(
                "UPDATE intervals SET state = ?, since = ?, run = ? WHERE pipeline = ? AND job = ? AND lower = ?",
                str(state),
                now,
                run,
                row.pipeline,
                row.job,
                text_of(row.interval.lower),
            )

    def run_ended(self, run: RunRow, state: JobState, now: float) -> None:
        """Store what the end of a run makes of its interval; inside the change that stores that end.

        An interval whose run was stopped with its job waits until the job goes on. One whose run was canceled, has
        failed, or was taken by another program, waits for a person.
        """
        row = self.of_run(run.id)
        if row is None or row.state is not IntervalState.RUNNING:
            return
        if state is JobState.FINISHED:
            after = IntervalState.SUCCEEDED
        elif not run.stop and (state is JobState.STOPPED or self._was_stopped(run, state)):
            after = IntervalState.WAITING
        else:
            after = IntervalState.FAILED
        self.change(row, after, now, row.run)

    def _was_stopped(self, run: RunRow, state: JobState) -> bool:
        """Whether a run was ended in the middle since it was told to stop, and took too long."""
        newest = self._store.attempts(run.id, 1)
        return state is JobState.CANCELED and bool(newest) and newest[-1].stop_by is not None

    def leave_out(self, pipeline: str, job: str, ranges: Sequence[Interval], now: float) -> None:
        """Note ranges that no run reads."""
        rows = [
            IntervalRow(pipeline=pipeline, job=job, interval=each, state=IntervalState.LEFT_OUT, since=now)
            for each in ranges
        ]
        self.add(rows)

    def take_back(self, left_out: IntervalRow, taken: Sequence[Interval]) -> None:
        """Cut parts that runs read after all out of what was left out; they lie in it, in order."""
        key = (left_out.pipeline, left_out.job)
        rest, lower = [], left_out.interval.lower
        for each in taken:
            if lower < each.lower:
                rest.append(Interval(lower, each.lower))
            lower = each.upper
        if lower < left_out.interval.upper:
            rest.append(Interval(lower, left_out.interval.upper))
        with self._store.write():
            self._database.execute(f"DELETE {_OF_JOB} AND lower = ?", *key, text_of(left_out.interval.lower))
            self.leave_out(*key, rest, left_out.since)

    # -- holds ---------------------------------------------------------------------------------------------------------

    def holds(self) -> list[HoldRow]:
        """Return those that are to be taken, or were, and not given back."""
        return [
            HoldRow(
                topic=row["topic"],
                name=row["name"],
                since=None if row["since"] is None else time_of(row["since"]),
                second=bool(row["second"]),
            )
            for row in self._database.all("SELECT * FROM holds ORDER BY topic, name")
        ]

    def put_hold(self, row: HoldRow) -> None:
        """Note one: before it is taken, and where it stands then."""
        since = None if row.since is None else text_of(row.since)
        with self._store.write():
            self._database.execute(
                "INSERT OR REPLACE INTO holds (topic, name, since, second) VALUES (?, ?, ?, ?)",
                row.topic,
                row.name,
                since,
                int(row.second),
            )

    def remove_hold(self, topic: str, name: str) -> None:
        """Forget one that was given back."""
        with self._store.write():
            self._database.execute("DELETE FROM holds WHERE topic = ? AND name = ?", topic, name)

    def prune(self, row: ScheduleRow) -> ScheduleRow:
        """Forget the oldest that are done, if there are too many; return the schedule as it is to be stored then."""
        key = (row.pipeline, row.job)
        with self._store.write():
            counted = self._database.one(f"SELECT count(*) AS n {_OF_JOB}", *key)
            above = (0 if counted is None else int(counted["n"])) - MOST_INTERVALS
            if above < _PRUNE:
                return row
            oldest = self._database.all(
                f"SELECT lower, upper {_OF_JOB} AND state NOT IN ('WAITING', 'RUNNING', 'FAILED') "
                "ORDER BY lower LIMIT ?",
                *key,
                above,
            )
            for each in oldest:
                self._database.execute(f"DELETE {_OF_JOB} AND lower = ?", *key, each["lower"])
            known = max([row.known_from, *(time_of(each["upper"]) for each in oldest)])
            return replace(row, known_from=known)


def shown_time(moment: datetime) -> str:
    """Return a moment in UTC for runs and people: ``2026-11-21T00:00:00Z``."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def text_of(moment: datetime) -> str:
    """Return a moment as the store has it; texts sort as moments do."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def time_of(text: str) -> datetime:
    """Return the moment that :func:`text_of` wrote."""
    return datetime.fromisoformat(text).astimezone(UTC)


def _schedule(row: sqlite3.Row) -> ScheduleRow:
    return ScheduleRow(
        pipeline=row["pipeline"],
        job=row["job"],
        accepted=time_of(row["accepted"]),
        known_from=time_of(row["known_from"]),
        paused=bool(row["paused"]),
        problem=row["problem"],
        spec=ScheduleSpec.model_validate_json(row["spec"]),
        reads=tuple((topic, name) for topic, name in json.loads(row["reads"])),
        topic=row["topic"],
        ends=row["ends"],
    )


def _interval(row: sqlite3.Row) -> IntervalRow:
    return IntervalRow(
        pipeline=row["pipeline"],
        job=row["job"],
        interval=Interval(time_of(row["lower"]), time_of(row["upper"])),
        state=IntervalState(row["state"]),
        since=row["since"],
        run=row["run"],
        first=None if row["first"] is None else int(row["first"]),
        last=None if row["last"] is None else int(row["last"]),
    )
