"""Schedules over the real store: random lives, with servers that are killed at any statement; no interval is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobpipe.control.commands import PipelineCommands
from jobpipe.control.control_service import Submission
from jobpipe.control.revisions.planning import Asked
from jobpipe.control.scheduler.scheduler import Scheduler, SchedulerContext
from jobpipe.errors import ConfigError, ControlConflict
from jobpipe.jobs.definition_cache import DefinitionCache
from jobpipe.jobs.schedules.schedule_decisions import IntervalState
from jobpipe.jobs.schedules.schedule_rule import Interval
from jobpipe.jobs.storage.interval_store import OPEN, IntervalRow, IntervalStore
from jobpipe.jobs.storage.job_rows import RunRow
from jobpipe.jobs.storage.job_store import Store
from jobpipe.jobs.supervision.supervision_context import SupervisionContext
from jobpipe.jobs.supervision.transitions import JobTransitions
from jobpipe.pipelines.loading.loader import load_tree
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.pipelines.plugins.plugin_discovery import Plugins
from tests.control_schedules.rules import at

KEY = ("shop", "daily")
BEGIN = at("2026-03-27 05:17")
ENDED = (IntervalState.SUCCEEDED, IntervalState.SKIPPED, IntervalState.LEFT_OUT)


class Killed(BaseException):
    """The server ends here."""


@dataclass
class Life:
    """One store, and one server after the other; in simulated time."""

    folder: Path
    schedule: dict[str, Any]
    chance: random.Random
    now: datetime = BEGIN
    finished: Counter[str] = field(default_factory=Counter)
    kills: int = 0

    def __post_init__(self) -> None:
        self.store: Store | None = None
        self.open()
        tree = {
            "pipeline": {"name": KEY[0]},
            "jobs": {
                KEY[1]: {
                    "execution": {"runtime-mode": "BATCH"},
                    "source": {"type": "jobpipe", "subscribe": "orders"},
                    "sink": {"type": "json", "path": "out/${run.lower}"},
                    "schedule": self.schedule,
                }
            },
        }
        pipeline = load_tree(tree, file=self.folder / "p.yaml", folder=self.folder, plugins=self.plugins)
        with self.store.write():
            submission = Submission(file=self.folder / "p.yaml", folder=self.folder, tree=tree)
            asked = Asked(pipeline=pipeline, home=self.folder)
            self.commands.submit(submission, asked, self.now.timestamp())
            self.scheduler.store_schedules(pipeline, self.store.jobs())
        row = self.intervals.schedule(*KEY)
        assert row is not None
        self.first = row.accepted

    def open(self) -> None:
        """Begin another server."""
        if self.store is not None:
            self.store.close()
        self.plugins = Plugins()
        store = self.store = Store(self.folder / "server.db", lambda: self.now.timestamp())
        self.intervals = IntervalStore(store)
        definitions = DefinitionCache(store, self.plugins)
        self.commands = PipelineCommands(store, definitions)
        context = SchedulerContext(
            store=store,
            commands=self.commands,
            notify_jobs=lambda keys: None,
            ends=lambda topic: 0,
            clock=lambda: self.now.timestamp(),
        )
        self.scheduler = Scheduler(context, self.plugins)
        unused: Any = None
        self.book = JobTransitions(
            SupervisionContext(
                store=store,
                jobs=unused,
                definitions=definitions,
                home=self.folder,
                untrusted=unused,
                config_file=None,
                stop_seconds=1.0,
                lost_seconds=1.0,
                clock=lambda: self.now.timestamp(),
                cleanup_added=lambda: None,
            ),
            KEY,
            lambda: None,
        )

    @contextmanager
    def dangerous(self) -> Iterator[None]:
        """Perhaps kill the server at one of the next statements, and begin another one."""
        assert self.store is not None
        database, left = self.store.database, [self.chance.randrange(1, 12)]
        whole = database.execute

        def counted(query: str, *values: Any) -> int:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return whole(query, *values)

        if self.chance.random() < 0.3:
            database.execute = counted  # type: ignore[method-assign]
        try:
            yield
        except Killed:
            self.kills += 1
            self.open()
        finally:
            database.execute = whole  # type: ignore[method-assign]

    def run(self) -> RunRow | None:
        """Return the run that is under way; one that follows begins first, as the machine lets it."""
        assert self.store is not None
        job = self.store.job(*KEY)
        assert job is not None
        if job.next_run is not None:
            with self.store.write():
                changed = {"run": job.next_run, "next_run": None}
                self.store.put_job(type(job)(**{**job.__dict__, **changed}))
            job = self.store.job(*KEY)
            assert job is not None
        run = self.store.run(job.run)
        return None if run is None or run.is_over else run

    def step(self) -> None:
        """Let something happen."""
        act = self.chance.random()
        if act < 0.35:
            self.now += timedelta(hours=self.chance.uniform(0, 60))
        elif act < 0.65:
            with self.dangerous():
                self.scheduler.evaluate(KEY)
        elif act < 0.9:
            run = self.run()
            if run is not None:
                with self.dangerous():
                    self.end(run, self.chance.random() < 0.7)
        else:
            with self.dangerous():
                self.person()

    def end(self, run: RunRow, well: bool) -> None:
        """Let a run end; only a success that was stored counts."""
        row = self.intervals.of_run(run.id)
        assert row is not None
        assert row.state is IntervalState.RUNNING
        assert (run.lower, run.upper) == row.bounds
        self.book.end_run(run, JobState.FINISHED if well else JobState.FAILED, "")
        self.finished[run.id] += well

    def person(self) -> None:
        """Retry, skip, pause or backfill."""
        failed = [each for each in self.intervals.intervals(*KEY, 1000) if each.state is IntervalState.FAILED]
        what = self.chance.random()
        if failed and what < 0.5:
            run = str(self.chance.choice(failed).run)
            self.scheduler.retry(run, force=False) if self.chance.random() < 0.7 else self.scheduler.skip(run)
        elif what < 0.7:
            self.scheduler.pause(*KEY, paused=self.chance.random() < 0.3)
        else:
            lower = self.first - timedelta(days=self.chance.uniform(-20, 5))
            try:
                self.scheduler.backfill(*KEY, Interval(lower, lower + timedelta(days=4)), force=False)
            except (ConfigError, ControlConflict):
                return  # no whole interval lies there
            self.first = min(self.first, *(each.lower for each in self.intervals_()))

    def intervals_(self) -> list[Interval]:
        return [each.interval for each in self.intervals.intervals(*KEY, 10_000)] or [
            Interval(self.first, at("2999-01-01"))
        ]

    def settle(self) -> None:
        """Let all that is due end well."""
        self.scheduler.pause(*KEY, paused=False)
        for _ in range(5000):
            self.scheduler.evaluate(KEY)
            run = self.run()
            failed = [each for each in self.intervals.intervals(*KEY, 10_000) if each.state is IntervalState.FAILED]
            if run is not None:
                self.end(run, True)
            elif failed:
                self.scheduler.retry(str(failed[0].run), force=False)
            else:
                return
        raise AssertionError("it never comes to rest")

    def check(self) -> list[IntervalRow]:
        """All that must hold at rest; return the intervals, in order."""
        rows = sorted(self.intervals.intervals(*KEY, 10_000), key=lambda each: each.interval)
        schedule = self.intervals.schedule(*KEY)
        assert schedule is not None
        assert all(one.interval.upper <= two.interval.lower for one, two in pairwise(rows)), "an overlap"
        since = [each for each in rows if each.interval.lower >= BEGIN - timedelta(days=40)]
        accepted = [each for each in since if each.interval.upper <= schedule.accepted]
        inside = [each for each in accepted if each.interval.lower >= self.start]
        assert all(one.interval.upper == two.interval.lower for one, two in pairwise(inside)), "a gap"
        if inside:
            assert (inside[0].interval.lower, inside[-1].interval.upper) == (self.start, schedule.accepted)
        assert {each.state for each in rows} <= set(ENDED)
        for each in rows:
            if each.state is IntervalState.SUCCEEDED:
                assert self.finished[str(each.run)] == 1, each
        assert sum(self.finished.values()) == sum(each.state is IntervalState.SUCCEEDED for each in rows)
        assert not any(self.intervals.counts(*KEY)[state] for state in OPEN)
        return rows


def lived(folder: Path, schedule: dict[str, Any], seed: int, steps: int) -> Life:
    life = Life(folder, schedule, random.Random(seed))
    life.start = life.first  # type: ignore[attr-defined]
    for _ in range(steps):
        life.step()
    life.settle()
    life.check()
    return life


SCHEDULES = st.fixed_dictionaries(
    {
        "crontab": st.sampled_from(("30 2 * * *", "0 */6 * * *", "0 9 * * 1-5")),
        "timezone": st.sampled_from(("Europe/Berlin", "UTC", "America/New_York")),
        "catchup": st.sampled_from(("all", "latest", "none")),
        "self-depend": st.booleans(),
        "delay": st.sampled_from(("0s", "10m", "2h")),
    }
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=SCHEDULES, seed=st.integers(0, 2**32))
def test_no_interval_is_lost_or_run_twice(
    tmp_path_factory: pytest.TempPathFactory, schedule: dict[str, Any], seed: int
) -> None:
    lived(tmp_path_factory.mktemp("life"), schedule, seed, 60).store.close()  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=SCHEDULES, seed=st.integers(0, 2**32))
def test_long_lives(tmp_path_factory: pytest.TempPathFactory, schedule: dict[str, Any], seed: int) -> None:
    lived(tmp_path_factory.mktemp("life"), schedule, seed, 250).store.close()  # type: ignore[union-attr]


def test_such_a_life_has_kills(tmp_path: Path) -> None:
    life = lived(tmp_path, {"every": "6 hours"}, 7, 300)
    assert life.kills > 5
    assert len(life.check()) > 20
    assert life.store is not None
    life.store.close()
