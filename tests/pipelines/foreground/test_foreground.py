"""A run in the foreground: which jobs, one at a time, and how it ended."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.errors import ConfigError, TopicNotFound
from jobpipe.jobs.alerts.alert_queue import AlertQueue
from jobpipe.jobs.foreground import foreground_run as foreground_module
from jobpipe.jobs.foreground.foreground_alerts import ForegroundAlerts
from jobpipe.jobs.foreground.foreground_jobs import JobView
from jobpipe.jobs.foreground.foreground_run import (
    RunResult,
    _choose_jobs,
    _Foreground,
    _pipeline_lock,
    _this_process,
    last_lines,
)
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.model.graph import graph_of
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.pipelines.model.paths import PipelinePaths
from jobpipe.pipelines.model.pipeline import Pipeline
from jobpipe.pipelines.model.run_bounds import RunBounds, bounds_of
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.catalog_status import CatalogStatus
from jobpipe_registry.host.process_identity import lives
from tests.docs.troubleshooting import on_page
from tests.pipelines.conftest import Write, loaded
from tests.pipelines.waiting import DEADLINE
from tests.statuses import subscription_status, topic_status

FILE = """
pipeline: {name: flights}
jobs:
  publish:
    source: {type: rate}
    sink: {type: jobpipe, topic: flights, final: true}
  report:
    source: {type: jobpipe, subscribe: flights}
    sink: {type: console}
  audit:
    execution: {runtime-mode: BATCH}
    source: {type: jobpipe, subscribe: flights}
    sink: {type: json, path: audit}
    schedule: {crontab: "0 2 * * *"}
"""


@pytest.fixture(autouse=True)
def hang_up() -> Iterator[None]:
    """SIGHUP ends a program, also where these tests are run by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def pipeline(write: Write) -> Pipeline:
    return loaded(write(FILE))


def view(state: JobState = JobState.FINISHED, detail: str = "", name: str = "report") -> JobView:
    return JobView(name, state, 1, 1, 3.0, detail, 0, 0, Path("report.log"))


def test_all_jobs_without_a_schedule(pipeline: Pipeline) -> None:
    assert _choose_jobs(pipeline, (), RunBounds()) == ["publish", "report"]


def test_those_that_are_named_once_each(pipeline: Pipeline) -> None:
    assert _choose_jobs(pipeline, ["audit", "report", "audit"], RunBounds()) == ["audit", "report"]


def test_a_job_that_there_is_not(pipeline: Pipeline) -> None:
    with pytest.raises(ConfigError, match=r"no job 'reprot'; .*report"):
        _choose_jobs(pipeline, ["report", "reprot"], RunBounds())


def test_a_job_that_needs_bounds(write: Write) -> None:
    """It would fail, again and again."""
    named = loaded(write(FILE.replace("path: audit", 'path: "audit/${run.lower}"')))
    assert _choose_jobs(named, (), RunBounds()) == ["publish", "report"]
    with pytest.raises(ConfigError, match=r"job audit cannot run: its sink names \$\{run.lower\}, and .* no bounds"):
        _choose_jobs(named, ["audit"], RunBounds())
    bounds = bounds_of(named, ["audit"], "2026-11-21", "2026-11-22T00:00:00+01:00")
    assert _choose_jobs(named, ["audit"], bounds) == ["audit"]
    assert bounds == RunBounds(datetime(2026, 11, 21, tzinfo=UTC), datetime(2026, 11, 21, 23, tzinfo=UTC))


@pytest.mark.parametrize(
    ("only", "lower", "upper", "message"),
    [
        (["audit"], "1", None, "--upper is missing"),
        ([], "1", "2", "name it with --only"),
        (["audit", "report"], "1", "2", "name it with --only"),
        (["report"], "1", "2", "job report is STREAMING"),
        (["audit"], "2", "2", "--upper 2 is not after --lower 2"),
        (["audit"], "1", "2026-11-21", "two times, or two offsets"),
        (["audit"], "noon", "2026-11-21", "'noon' is neither an ISO 8601 time nor an offset"),
    ],
)
def test_bounds_that_do_not_fit(
    pipeline: Pipeline, only: list[str], lower: str, upper: str | None, message: str
) -> None:
    assert bounds_of(pipeline, ["audit"], "1", "2") == RunBounds(1, 2)
    assert not bounds_of(pipeline, only, None, None).given
    with pytest.raises(ConfigError, match=re.escape(message)):
        bounds_of(pipeline, only, lower, upper)


def test_a_file_of_schedules(write: Write) -> None:
    text = FILE[: FILE.index("  publish:")] + FILE[FILE.index("  audit:") :]
    with pytest.raises(ConfigError, match="--only"):
        _choose_jobs(load_pipeline(write(text)), (), RunBounds())


@pytest.fixture
def places(tmp_path: Path) -> PipelinePaths:
    return PipelinePaths.of(tmp_path / "home", "flights")


def test_a_second_run_is_refused(places: PipelinePaths) -> None:
    with _pipeline_lock(places, "flights"):
        with (
            pytest.raises(ConfigError, match=f"flights is already running, by process {os.getpid()};") as told,
            _pipeline_lock(places, "flights"),
        ):
            pass
        on_page(told.value, "pipeline … is already running,")
        with _pipeline_lock(PipelinePaths.of(places.folder, "another"), "another"):
            pass
    with _pipeline_lock(places, "flights"):
        assert places.lock.read_text() == str(os.getpid())
    assert places.lock.stat().st_mode & 0o777 == 0o600
    assert places.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.processes
def test_a_run_that_was_killed_keeps_none_away(places: PipelinePaths) -> None:
    program = """
import sys; from pathlib import Path
from jobpipe.pipelines.model.run_bounds import RunBounds, bounds_of
from jobpipe.jobs.foreground.foreground_run import _pipeline_lock
from jobpipe.pipelines.model.paths import PipelinePaths
with _pipeline_lock(PipelinePaths.of(Path(sys.argv[1]), "flights"), "flights"):
    print("locked", flush=True); sys.stdin.read()
"""
    command = [sys.executable, "-c", program, str(places.folder.parents[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigError, match=f"by process {process.pid};"), _pipeline_lock(places, "flights"):
            pass
        process.kill()
        process.wait(DEADLINE)
    with _pipeline_lock(places, "flights"):
        assert places.lock.read_text() == str(os.getpid())


def test_this_process_is_known_by_others() -> None:
    parent = _this_process()
    assert lives(parent.pid, parent.started, parent.ticks)


FAILED = view(JobState.FAILED)
REPLACED = view(JobState.CANCELED, "another run of this pipeline has taken its place")


@pytest.mark.parametrize(
    ("jobs", "stopped_by", "late", "code"),
    [
        ([view()], None, False, 0),
        ([view(), view(JobState.STOPPED)], None, False, 1),
        ([view(), FAILED], None, False, 1),
        ([view(), REPLACED], None, False, 1),
        ([view(JobState.STOPPED)], None, True, 1),
        ([view(JobState.STOPPED)], signal.SIGINT, False, 130),
        ([view(JobState.CANCELED, "killed during a micro-batch")], signal.SIGTERM, False, 143),
        ([FAILED, view(JobState.STOPPED)], signal.SIGINT, False, 1),
    ],
)
def test_exit_codes(jobs: list[JobView], stopped_by: signal.Signals | None, late: bool, code: int) -> None:
    ran = RunResult(tuple(jobs), stopped_by, late, ())
    assert ran.code == code
    assert set(ran.failed) == {FAILED, REPLACED} & set(jobs)


def test_the_last_lines_without_java_s_frames(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"one\n\ntwo\n\tat java.lang.Thread.run\n\t... 7 more\n  three \xff\n   \nfour")
    assert last_lines(log) == ["one", "two", "  three �", "four"]
    assert last_lines(log, 2) == ["  three �", "four"]
    assert last_lines(tmp_path / "missing.log") == []


def test_the_last_lines_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert last_lines(log, 3) == ["line 99997", "line 99998", "line 99999"]


class Job:
    """A supervised job that ends as the test says; it remembers what it was told."""

    def __init__(self, name: str, end: JobState, *, by: str = "start") -> None:
        self.name = name
        self._end, self._by = end, by
        self.told: list[str] = []

    @property
    def ended(self) -> bool:
        return self._by in self.told

    @property
    def view(self) -> JobView:
        return view(self._end if self.ended else JobState.RUNNING, name=self.name)

    def join(self, seconds: float) -> None:
        self.told.append("join")

    def __getattr__(self, name: str) -> Any:
        return lambda: self.told.append(name)


class Jobs:
    """The jobs of a run."""

    def __init__(self, *jobs: Job) -> None:
        self._jobs = {job.name: job for job in jobs}
        self.names = tuple(self._jobs)
        self.changed = threading.Event()

    def ended(self, name: str) -> bool:
        return self._jobs[name].ended

    def view(self, name: str) -> JobView:
        return self._jobs[name].view

    def block(self, name: str, why: str | None) -> None:
        pass

    def join(self, seconds: float) -> None:
        for job in self._jobs.values():
            job.join(seconds)

    def __getattr__(self, name: str) -> Any:
        return lambda: [getattr(job, name)() for job in self._jobs.values()]


class Display:
    """Shows nothing; ``hook`` is called with each look."""

    def __init__(self, hook: Any = lambda: None) -> None:
        self._hook = hook

    def show(self, topics: Any, jobs: Any) -> None:
        self._hook()


def run(
    pipeline: Pipeline,
    jobs: list[Job],
    display: Display,
    timeout: float | None = None,
    seen: list[JobView] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RunResult:
    class Admin:
        config = SimpleNamespace(spool_dir=pipeline.file.parent / "no-spool")

        def statuses(self, topics: Any, timeout: float) -> dict[str, Any]:
            return {}

    told = alerts(pipeline) if seen is None else SimpleNamespace(update=lambda views, topics: seen.extend(views))
    foreground = _Foreground(
        graph_of(pipeline),
        Jobs(*jobs),
        Admin(),
        display,
        timeout,
        told,
        clock=clock,  # type: ignore[arg-type]
    )
    return foreground.run()


def alerts(pipeline: Pipeline) -> ForegroundAlerts:
    return ForegroundAlerts(pipeline, [], AlertQueue())


def test_all_come_to_their_end(pipeline: Pipeline) -> None:
    jobs = [Job("publish", JobState.FINISHED), Job("report", JobState.FINISHED)]
    ran = run(pipeline, jobs, Display())
    assert (ran.code, [job.told for job in jobs]) == (0, [["start"], ["start"]])
    assert [topic.topic for topic in ran.topics] == ["flights"]


def test_dead_letters_of_the_run_are_counted(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of runs before."""
    counts = iter([3, 5])
    monkeypatch.setattr(foreground_module, "has_spool", lambda place: True)
    at = Position("0" * 16, 1, 1)
    monkeypatch.setattr(
        foreground_module,
        "read_status",
        lambda place, topic: CatalogStatus(at, at, 0, 0, 0, next(counts), 9, True, ()),
    )

    def locate(topic: str) -> None:
        raise TopicNotFound("it is not served", topic=topic)

    admin = SimpleNamespace(
        statuses=lambda topics, timeout: {}, locate=locate, config=SimpleNamespace(spool_dir=Path("spool"))
    )
    jobs = [Job("publish", JobState.FINISHED)]
    told = alerts(pipeline)
    graph = graph_of(pipeline)
    ran = _Foreground(graph, Jobs(*jobs), admin, Display(), None, told, ["flights"]).run()  # type: ignore[arg-type]
    (count,) = ran.dead_letters
    told = "2 rows could not be processed and went to flights: jobpipe topics tail flights --from earliest"
    assert str(count) == told
    assert str(replace(count, rows=1)).startswith("1 row could not")


def test_how_far_each_job_is_behind(pipeline: Pipeline) -> None:
    """All its subscriptions count: of several sources each has one. Those of others do not."""
    lags = {"flights.report": 5, "flights.report.left": 7, "flights": 1, "other.report": 100, "flights.audit": 0}
    lines = tuple(subscription_status(name, batches=1, rows=lag) for name, lag in lags.items())
    status = topic_status(rows=9, bytes=9, subscriptions=lines)
    admin = SimpleNamespace(statuses=lambda topics, timeout: dict.fromkeys(topics, status))
    shown: list[JobView] = []
    display = SimpleNamespace(show=lambda topics, jobs: shown.extend(jobs))
    jobs = [Job("publish", JobState.FINISHED), Job("report", JobState.FINISHED)]
    told = alerts(pipeline)
    foreground = _Foreground(graph_of(pipeline), Jobs(*jobs), admin, display, None, told)  # type: ignore[arg-type]
    foreground._poll()
    assert [(job.name, job.lag_rows) for job in shown] == [("publish", None), ("report", 12)]


def test_when_one_has_failed_the_others_are_stopped(pipeline: Pipeline) -> None:
    jobs = [Job("publish", JobState.FAILED), Job("report", JobState.STOPPED, by="stop")]
    ran = run(pipeline, jobs, Display())
    assert ran.code == 1
    assert jobs[1].told == ["start", "stop"]


def test_the_failure_that_ends_the_run_is_told(pipeline: Pipeline) -> None:
    seen: list[JobView] = []
    run(pipeline, [Job("publish", JobState.FAILED)], Display(), seen=seen)
    assert seen[-1].state is JobState.FAILED


def test_when_one_was_stopped_by_another_program(pipeline: Pipeline) -> None:
    """The others would wait for its rows; and the pipeline has not come to its end."""
    jobs = [Job("publish", JobState.STOPPED), Job("report", JobState.STOPPED, by="stop")]
    ran = run(pipeline, jobs, Display())
    assert (ran.code, ran.stopped_by, jobs[1].told) == (1, None, ["start", "stop"])


def test_the_terminal_is_gone(pipeline: Pipeline) -> None:
    """The jobs end as its signal says, not where they are."""

    def hang_up() -> None:
        if not jobs[0].told.count("stop"):
            os.kill(os.getpid(), signal.SIGHUP)
        raise OSError(errno.EIO, "input/output error")

    jobs = [Job("publish", JobState.STOPPED, by="stop")]
    ran = run(pipeline, jobs, Display(hang_up))
    assert (ran.code, jobs[0].told[:2], "kill" in jobs[0].told) == (129, ["start", "stop"], False)


def test_when_it_takes_too_long_all_are_stopped(pipeline: Pipeline) -> None:
    jobs = [Job("publish", JobState.STOPPED, by="stop"), Job("report", JobState.STOPPED, by="stop")]
    ran = run(pipeline, jobs, Display(), 0.01)
    assert (ran.code, ran.late, [job.told for job in jobs]) == (1, True, [["start", "stop"]] * 2)


def test_signals_stop_then_kill(pipeline: Pipeline) -> None:
    signals = iter([signal.SIGHUP, signal.SIGTERM])
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    jobs = [Job("publish", JobState.CANCELED, by="kill")]
    times = iter([10.0, 11.0])
    hook = Display(lambda: [os.kill(os.getpid(), number) for number in list(signals)[:2]])
    ran = run(pipeline, jobs, hook, clock=lambda: next(times))
    assert (ran.stopped_by, ran.code, jobs[0].told) == (signal.SIGHUP, 129, ["start", "stop", "kill"])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_signals_within_a_second_are_one(pipeline: Pipeline) -> None:
    """GNU timeout signals its child, and then the group of processes."""
    signals = iter([signal.SIGTERM, signal.SIGTERM])
    times = iter([10.0, 10.9])
    jobs = [Job("publish", JobState.STOPPED, by="stop")]
    hook = Display(lambda: [os.kill(os.getpid(), number) for number in list(signals)[:2]])
    ran = run(pipeline, jobs, hook, clock=lambda: next(times))
    assert (ran.stopped_by, "stop" in jobs[0].told, "kill" in jobs[0].told) == (signal.SIGTERM, True, False)


def test_a_signal_in_the_middle_of_a_stop(pipeline: Pipeline) -> None:
    """The main thread may hold what a stop needs."""

    class Locked(Job):
        lock = threading.Lock()

        def stop(self) -> None:
            with self.lock:
                if not self.told.count("stop"):
                    os.kill(os.getpid(), signal.SIGTERM)
                self.told.append("stop")

    job = Locked("publish", JobState.STOPPED, by="stop")
    ran = run(pipeline, [job], Display(), 0.01)
    assert (ran.late, ran.stopped_by, ran.code, job.told) == (True, signal.SIGTERM, 1, ["start", "stop", "stop"])


def test_what_fails_here_leaves_no_job(pipeline: Pipeline) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    jobs = [Job("publish", JobState.CANCELED, by="kill")]
    with pytest.raises(ZeroDivisionError):
        run(pipeline, jobs, Display(fail))
    assert jobs[0].told == ["start", "kill", "join"]
