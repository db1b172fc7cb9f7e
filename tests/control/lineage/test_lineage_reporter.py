"""Lineage of a server's jobs: which events each run has, over restarts of the server, and what they say."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobpipe.control.control_server import ControlServer
from jobpipe.control.control_service import Submission
from jobpipe.control.lineage import lineage_reporter
from jobpipe.control.lineage.lineage_reporter import LineageReporter
from jobpipe.errors import StoreError
from jobpipe.metrics.metric_samples import LineageSample, TopicsSnapshot
from jobpipe.pipelines.model.job_states import ENDED, JobState
from jobpipe.pipelines.model.pipeline import Pipeline
from jobpipe_registry.memory import MemoryTree
from tests.control.lineage.lineage_kit import Backend, ended, events_of, kinds, made_of, names
from tests.control.world import NAME, Cluster, World, job_of, status, wait
from tests.pipelines.waiting import eventually
from tests.statuses import topic_status

REPORT = f"{NAME}.report"
READS = job_of(
    source={"type": "csv", "path": "in", "schema": "id BIGINT, name STRING"},
    transform=[{"projection": "id, upper(name) AS name"}],
    sink={"type": "jobpipe", "topic": "orders"},
)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_reporter, "POLL_SECONDS", 0.02)


@pytest.fixture
def file(world: World, tmp_path: Path) -> Path:
    """Let lineage go to a file; return it."""
    path = tmp_path / "lineage.jsonl"
    world.config = dataclasses.replace(world.config, server_lineage_file=path, server_lineage_namespace="tests")
    return path


@contextmanager
def reporting(world: World, server: ControlServer, **more: Any) -> Iterator[LineageReporter]:
    reporter = LineageReporter(server, world.config, environ={}, **{"first_delay": 0.01, **more})
    reporter.start()
    try:
        yield reporter
    finally:
        reporter.close()


def has(file: Path, *expected: str, job: str = REPORT) -> Callable[[], bool]:
    return lambda: kinds(events_of(file), job) == list(expected)


def one_run(file: Path, job: str = REPORT) -> str:
    """Return OpenLineage's id of the one run of a job."""
    (found,) = {each["run"]["runId"] for each in events_of(file) if each["job"]["name"] == job}
    return str(found)


def test_a_run_that_finishes_starts_and_completes(world: World, file: Path, tmp_path: Path) -> None:
    with closing(world.server()) as server, reporting(world, server) as reporter:
        server.submit(world.submission({"report": READS}))
        worker = world.work(1)
        eventually(has(file, "START"))
        worker.end("FINISHED", 0, batches=2, rows=7)
        eventually(lambda: reporter.sample() == LineageSample(waiting=0, sent=2, dropped=0))
        run = wait(server, JobState.FINISHED).run
    start, complete = events_of(file)
    assert start["job"]["namespace"] == "tests"
    assert start["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert start["job"]["facets"]["sql"]["query"] == "SELECT id, upper(name) AS name FROM input"
    assert {each["run"]["runId"] for each in (start, complete)} == {one_run(file)}
    assert start["run"]["facets"]["tags"]["tags"][0]["value"] == run
    for event in (start, complete):
        assert names(event["inputs"]) == [("file", f"{tmp_path}/in")]
        (output,) = event["outputs"]
        assert output["name"] == "orders"
        assert made_of(output) == {
            "id": [(f"{tmp_path}/in", "id", "IDENTITY")],
            "name": [(f"{tmp_path}/in", "name", "TRANSFORMATION")],
        }
    assert complete["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 7
    assert "errorMessage" not in complete["run"]["facets"]


def test_attempts_are_within_the_run_and_the_last_failure_is_told(world: World, file: Path) -> None:
    with closing(world.server()) as server, reporting(world, server):
        server.submit(world.submission({"report": READS}))
        for number in (1, 2, 3):
            world.work(number).end("FAILED", 1, error="OSError", place="own.py:3")
        eventually(ended(file, REPORT))
        detail = wait(server, JobState.FAILED).detail
    assert kinds(events_of(file), REPORT) == ["START", "FAIL"]
    error = events_of(file)[-1]["run"]["facets"]["errorMessage"]
    assert (error["message"], error["programmingLanguage"]) == (detail, "PYTHON")
    assert "OSError" in detail


def test_a_run_that_is_stopped_is_aborted_and_the_next_one_is_another(world: World, file: Path) -> None:
    with closing(world.server()) as server, reporting(world, server):
        server.submit(world.submission({"report": READS}))
        worker = world.work(1)
        eventually(has(file, "START"))
        server.stop(NAME)
        worker.end("STOPPED", 0)
        eventually(has(file, "START", "ABORT"))
        server.resume(NAME)
        world.work(2)
        eventually(has(file, "START", "ABORT", "START"))
    assert len({each["run"]["runId"] for each in events_of(file)}) == 2


def test_a_run_that_was_not_seen_to_work_has_a_start_too(world: World, file: Path) -> None:
    """It fails before it has its lease; one that is stopped before that has no events."""
    with closing(world.server()) as server, reporting(world, server):
        server.submit(world.submission({"report": READS, "other": job_of()}))
        other = world.attempt(1, "other")
        server.stop(NAME, "other")
        world.cluster.ended[world.cluster.id_of(other)] = 143
        eventually(lambda: status(server, "other").state in ENDED)
        for number in (1, 2, 3):
            attempt = world.attempt(number)
            world.cluster.ended[world.cluster.id_of(attempt)] = 1
        eventually(has(file, "START", "FAIL"))
    start, fail = events_of(file)
    assert start["run"]["runId"] == fail["run"]["runId"]
    assert start["eventTime"] <= fail["eventTime"]


def test_what_happens_while_no_server_runs_or_no_lineage_is_told_later(world: World, file: Path) -> None:
    """With the same run id."""
    with closing(world.server()) as server:
        with reporting(world, server):
            server.submit(world.submission({"report": READS, "other": job_of()}))
            worker, other = world.work(1), world.work(1, "other")
            eventually(has(file, "START"))
            eventually(has(file, "START", job=f"{NAME}.other"))
        other.end("FINISHED", 0)
        wait(server, JobState.FINISHED, "other")
    before = one_run(file)
    worker.end("FINISHED", 0)
    with closing(world.server()) as server, reporting(world, server):
        eventually(has(file, "START", "COMPLETE"))
        eventually(has(file, "START", "COMPLETE", job=f"{NAME}.other"))
    assert one_run(file) == before


def test_runs_of_the_first_start_are_told_and_what_was_before_is_not(world: World, file: Path) -> None:
    with closing(world.server()) as server:
        server.submit(world.submission({"report": READS, "other": job_of(), "over": job_of()}))
        worker = world.work(1)
        wait(server, JobState.RUNNING)
        world.work(1, "over").end("FINISHED", 0)
        wait(server, JobState.FINISHED, "over")
        with reporting(world, server):
            eventually(has(file, "START"))
            worker.end("FINISHED", 0)
            eventually(has(file, "START", "COMPLETE"))
    assert {each["job"]["name"] for each in events_of(file)} == {REPORT}


def test_files_that_are_slow_to_load_hold_up_no_start(
    world: World, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(world.server()) as server:
        server.submit(world.submission({"report": READS}))
        world.work(1)
        wait(server, JobState.RUNNING)
        load, has_started, waited = ControlServer.load, threading.Event(), []

        def slow(self: ControlServer, submission: Submission) -> Pipeline:
            waited.append(has_started.wait(5.0))
            return load(self, submission)

        monkeypatch.setattr(ControlServer, "load", slow)
        with reporting(world, server):
            has_started.set()
            eventually(has(file, "START"))
    assert waited == [True]
    assert events_of(file)[0]["inputs"]


def test_a_gap_in_the_servers_events_loses_no_end(world: World, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lineage was off for so long that the server keeps events no more: the runs themselves are compared."""
    monkeypatch.setattr("jobpipe.jobs.storage.job_store.MOST_EVENTS", 1)
    monkeypatch.setattr("jobpipe.jobs.storage.job_store._PRUNE_EVENTS", 1)
    with closing(world.server()) as server:
        with reporting(world, server):
            server.submit(world.submission({"report": READS}))
            worker = world.work(1)
            eventually(has(file, "START"))
        worker.end("FINISHED", 0)
        wait(server, JobState.FINISHED)
        server.restart(NAME, "report")
        world.work(2)
        wait(server, JobState.RUNNING)
        with reporting(world, server):
            eventually(has(file, "START", "COMPLETE", "START"))


def test_a_store_that_begins_from_nothing_is_followed_from_its_first_event(world: World, file: Path) -> None:
    """Its events have smaller numbers than the last one that was read; runs that it does not know have ended."""
    with closing(world.server()) as server, reporting(world, server):
        server.submit(world.submission({"report": READS, "lost": job_of()}))
        world.work(1).end("FINISHED", 0)
        world.work(1, "lost")
        eventually(has(file, "START", "COMPLETE"))
        eventually(has(file, "START", job=f"{NAME}.lost"))
    for each in (world.config.home / "server").glob("server.db*"):
        each.unlink()
    world.registry, world.cluster = MemoryTree(), Cluster()
    with closing(world.server()) as server, reporting(world, server):
        eventually(has(file, "START", "ABORT", job=f"{NAME}.lost"))
        server.submit(world.submission({"report": READS}))
        world.work(1)
        eventually(has(file, "START", "COMPLETE", "START"))


def test_a_run_of_the_first_start_that_cannot_be_told_holds_up_no_other_one(
    world: World, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lineage_reporter.run_event

    def event(state: Any, run: Any, *about: Any, **more: Any) -> str:
        if run.job == "other":
            raise RuntimeError("it is broken")
        return made(state, run, *about, **more)

    monkeypatch.setattr(lineage_reporter, "run_event", event)
    with closing(world.server()) as server:
        server.submit(world.submission({"report": READS, "other": job_of()}))
        for job in ("report", "other"):
            world.work(1, job)
            wait(server, JobState.RUNNING, job)
        with reporting(world, server) as reporter:
            eventually(has(file, "START"))
            assert reporter.sample().dropped == 1


def test_a_stream_says_from_time_to_time_that_it_goes_on_and_what_it_has_done(
    world: World, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = topic_status("orders", rows=5, bytes=50, uptime=1e9)
    monkeypatch.setattr(ControlServer, "topics_snapshot", lambda self: TopicsSnapshot({"orders": found}, 0.0))
    with closing(world.server()) as server, reporting(world, server, running_seconds=0.05):
        server.submit(world.submission({"report": READS}))
        world.work(1)
        eventually(lambda: "START" in kinds(events_of(file), REPORT))
        found = topic_status("orders", rows=8, bytes=80, uptime=1e9)

        def done() -> list[Any]:
            last = events_of(file)[-1]
            return [last["eventType"], last["outputs"][0].get("outputFacets", {}).get("outputStatistics", {})]

        eventually(lambda: done()[0] == "RUNNING" and done()[1].get("rowCount") == 3)
        assert done()[1]["size"] == 30


def test_topics_that_do_not_answer_are_asked_for_once_for_all_runs_that_go_on(
    world: World, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question may take seconds, in which no other event is told."""
    jobs = ("one", "two", "three")
    asked: list[float] = []
    now = [1.8e9]

    def snapshot(self: ControlServer) -> TopicsSnapshot:
        asked.append(now[0])
        return TopicsSnapshot({}, 0.0)

    with closing(world.server()) as server:
        server.submit(world.submission({job: job_of() for job in jobs}))
        for job in jobs:
            world.work(1, job)
            wait(server, JobState.RUNNING, job)
        with reporting(world, server, clock=lambda: now[0]):
            eventually(lambda: all("START" in kinds(events_of(file), f"{NAME}.{job}") for job in jobs))
            eventually(lambda: all("RUNNING" in kinds(events_of(file), f"{NAME}.{job}") for job in jobs))
            monkeypatch.setattr(ControlServer, "topics_snapshot", snapshot)
            now[0] += 1e6
            eventually(lambda: all(kinds(events_of(file), f"{NAME}.{job}").count("RUNNING") == 2 for job in jobs))
    assert asked == [1.8e9 + 1e6]


def test_topics_are_asked_for_once_for_many_events(world: World, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def snapshot(self: ControlServer) -> TopicsSnapshot:
        asked.append(True)
        return TopicsSnapshot({}, 0.0)

    with closing(world.server()) as server:
        with reporting(world, server):
            server.submit(world.submission({job: job_of() for job in ("one", "two", "three")}))
        for job in ("one", "two", "three"):
            world.work(1, job).end("FINISHED", 0)
            wait(server, JobState.FINISHED, job)
        monkeypatch.setattr(ControlServer, "topics_snapshot", snapshot)
        with reporting(world, server):
            for job in ("one", "two", "three"):
                eventually(has(file, "START", "COMPLETE", job=f"{NAME}.{job}"))
    assert asked == [True]


def test_a_topic_that_was_not_seen_before_has_no_statistics_unless_it_is_new(
    world: World, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: dict[str, Any] = {}
    monkeypatch.setattr(ControlServer, "topics_snapshot", lambda self: TopicsSnapshot(dict(served), 0.0))
    jobs = {"report": READS, "other": {**READS, "sink": {"type": "jobpipe", "topic": "known"}}}
    with closing(world.server()) as server, reporting(world, server):
        server.submit(world.submission(jobs))
        worker, other = world.work(1), world.work(1, "other")
        eventually(has(file, "START"))
        eventually(has(file, "START", job=f"{NAME}.other"))
        served["orders"] = topic_status("orders", rows=5, bytes=50, uptime=0.0)
        served["known"] = topic_status("known", rows=5, bytes=50, uptime=1e9)
        worker.end("FINISHED", 0)
        other.end("FINISHED", 0)
        eventually(has(file, "START", "COMPLETE"))
        eventually(has(file, "START", "COMPLETE", job=f"{NAME}.other"))
    outputs = {each["job"]["name"]: each["outputs"][0] for each in events_of(file) if each["eventType"] == "COMPLETE"}
    assert outputs[REPORT]["outputFacets"]["outputStatistics"]["rowCount"] == 5
    assert not outputs[f"{NAME}.other"].get("outputFacets")


def test_a_file_that_cannot_be_loaded_any_more_gives_events_without_datasets(
    world: World, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(self: ControlServer, *about: Any) -> None:
        raise RuntimeError("a plug-in raises")

    monkeypatch.setattr(ControlServer, "load", gone)
    with closing(world.server()) as server, reporting(world, server), caplog.at_level(logging.ERROR):
        server.submit(world.submission({"report": READS}))
        world.work(1).end("FINISHED", 0)
        eventually(has(file, "START", "COMPLETE"))
    assert not events_of(file)[0]["inputs"]
    assert "lineage of job flights.report names no datasets" in caplog.text


def test_an_event_that_cannot_be_made_is_dropped_and_the_next_ones_are_told(
    world: World, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, broken = lineage_reporter.run_event, [True]

    def event(*about: Any, **more: Any) -> str:
        if broken:
            broken.pop()
            raise RuntimeError("it is broken")
        return made(*about, **more)

    monkeypatch.setattr(lineage_reporter, "run_event", event)
    with closing(world.server()) as server, reporting(world, server) as reporter, caplog.at_level(logging.ERROR):
        server.submit(world.submission({"report": READS}))
        worker = world.work(1)
        eventually(lambda: reporter.sample().dropped == 1)
        worker.end("FINISHED", 0)
        eventually(has(file, "START", "COMPLETE"))
    assert "1 lineage event dropped" in caplog.text


def test_a_store_that_fails_for_a_while_loses_nothing(
    world: World, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, fails = lineage_reporter.LineageOutbox.note_event, [True] * 3

    def noted(self: Any, event: int) -> None:
        if fails:
            fails.pop()
            raise StoreError("the disk is full")
        note(self, event)

    with closing(world.server()) as server, reporting(world, server) as reporter:
        monkeypatch.setattr(lineage_reporter.LineageOutbox, "note_event", noted)
        server.submit(world.submission({"report": READS}))
        world.work(1).end("FINISHED", 0)
        eventually(has(file, "START", "COMPLETE"))
        assert not fails
        assert reporter.sample().dropped == 0


def test_a_backend_that_hangs_holds_up_neither_jobs_nor_the_end_of_the_server(world: World) -> None:
    backend = Backend()
    backend.gate.clear()
    world.config = dataclasses.replace(world.config, server_lineage_url=backend.url)
    try:
        with closing(world.server()) as server, reporting(world, server):
            server.submit(world.submission({"report": READS}))
            worker = world.work(1)
            assert backend.next()["eventType"] == "START"
            worker.end("FINISHED", 0)
            wait(server, JobState.FINISHED)
        backend.gate.set()
        with closing(world.server()) as server, reporting(world, server):
            assert [backend.next()["eventType"] for _ in range(2)] == ["START", "COMPLETE"]
    finally:
        backend.close()


def test_a_pipeline_that_is_submitted_with_another_file_tells_what_its_runs_read_and_write_then(
    world: World, file: Path
) -> None:
    """The run that follows the file of before ends by it, and the next one begins by the new one."""
    with closing(world.server()) as server, reporting(world, server):
        server.submit(world.submission({"report": READS}))
        worker = world.work(1)
        eventually(has(file, "START"))
        server.submit(world.submission({"report": {**READS, "sink": {"type": "jobpipe", "topic": "more"}}}))
        wait(server, JobState.STOPPING)
        worker.end("STOPPED", 0)
        world.work(2)
        eventually(has(file, "START", "ABORT", "START"))
    assert [each["outputs"][0]["name"] for each in events_of(file)] == ["orders", "orders", "more"]
    assert len({each["run"]["runId"] for each in events_of(file)}) == 2
