"""A server with a schedule is killed before and after each single step; the next one goes on, and no interval differs.

A step is a change of the store, of the registry, or of the launcher.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jobpipe.control.scheduler.scheduler import Scheduler, SchedulerContext
from jobpipe.jobs.schedules.schedule_decisions import IntervalState
from jobpipe.jobs.storage.interval_store import IntervalStore, shown_time
from jobpipe.jobs.storage.job_store import Store
from tests.control.supervision.test_crash_points import KEY, MOST_STEPS, Killed, Plugins, Script, ScriptServer
from tests.control.world import job_of
from tests.control_schedules.rules import at

HOURS = ["2026-11-21T12:00:00Z", "2026-11-21T13:00:00Z", "2026-11-21T14:00:00Z"]
STEPS = 210  # more than a life without a kill has


class Hours(Script):
    """Three intervals; the attempt of the second one fails, and is made again."""

    jobs: ClassVar[Mapping[str, Any]] = {
        "report": job_of(
            execution={"runtime-mode": "BATCH"},
            source={"type": "jobpipe", "subscribe": "orders"},
            sink={"type": "json", "path": "out/${run.lower}"},
            schedule={"every": "hour", "end": "2026-11-21T15:00:00Z"},
        )
    }

    def __init__(self, folder: Path, fatal: int | None, plugins: Plugins) -> None:
        super().__init__(folder, fatal, plugins)
        self.now = at("2026-11-21 12:30").timestamp()
        self.roles = ["finishes", "fails", "finishes", "finishes"]
        self.submitted = False

    def serve(self) -> str:
        """Run servers one after the other until all is done."""
        while True:
            server = HoursServer(self)
            try:
                if not self.submitted:
                    server.submit()
                    with server.store.write():
                        server.scheduler.store_schedules(server.pipeline, server.store.jobs())
                    self.submitted = True
                    self.now = at("2026-11-21 15:10").timestamp()
                server.count_steps()
                server.until_rest()
                return ""
            except Killed:
                continue
            finally:
                server.close()


class HoursServer(ScriptServer):
    """One server, with its schedules."""

    def __init__(self, script: Hours) -> None:
        super().__init__(script)
        self.intervals = IntervalStore(self.store)
        self.scheduler = Scheduler(
            SchedulerContext(
                store=self.store,
                commands=self.commands,
                notify_jobs=lambda keys: self.reconciler.changed(),
                ends=lambda topic: 0,
                clock=script.clock,
            ),
            script.plugins,
        )

    def until_rest(self) -> None:
        """Let jobs and schedule make their steps until nothing is left to do."""
        script = self.script
        self.reconciler.changed()
        for _ in range(MOST_STEPS):
            self.scheduler.evaluate(KEY)
            self.reconciler.changed()
            self._tell()
            wait = self.reconciler.step()
            for runner in script.runners:
                runner.act()
            script.now += 0.0 if wait == 0.0 else 1.0
            if wait is None and not script.roles:
                return
        raise AssertionError(f"it does not end: {self.intervals.intervals(*KEY, 10)}")


def lived(folder: Path, fatal: int | None, plugins: Plugins) -> Hours:
    """Let the intervals be run, the server killed once; see that all came out as it must."""
    script = Hours(folder, fatal, plugins)
    script.serve()
    store = Store(script.home / "server" / "server.db", script.clock)
    rows = sorted(IntervalStore(store).intervals(*KEY, 10), key=lambda each: each.interval)
    assert [shown_time(each.interval.lower) for each in rows] == HOURS, fatal
    assert {each.state for each in rows} == {IntervalState.SUCCEEDED}, fatal
    assert len({each.run for each in rows}) == len(store.runs(*KEY, 10)) == len(HOURS)
    ends = [runner for runner in script.runners if runner.works]
    assert [runner.code for runner in ends] == [0, 1, 0, 0], fatal
    assert [each.attempts for each in reversed(store.runs(*KEY, 10)) if each.attempts < 2].count(1) >= 1
    store.close()
    for handler in script.handlers:
        handler.shutdown()
    return script


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    """Return what is installed; to read that takes longer than a life."""
    return Plugins()


def test_without_a_kill(tmp_path: Path, plugins: Plugins) -> None:
    assert lived(tmp_path, None, plugins).life.count < STEPS


def _points() -> Iterator[Any]:
    """Yield each step; make test tries every eleventh one."""
    for fatal in range(1, STEPS):
        yield fatal if fatal % 11 == 1 else pytest.param(fatal, marks=pytest.mark.slow)


@pytest.mark.parametrize("fatal", list(_points()))
def test_killed_at_a_step(tmp_path: Path, plugins: Plugins, fatal: int) -> None:
    lived(tmp_path, fatal, plugins)
