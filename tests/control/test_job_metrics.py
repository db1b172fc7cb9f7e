"""The samples of jobs: what the store, the attempt's report and the pipeline's file say."""

from __future__ import annotations

from jobpipe.jobs.workloads.progress_reports import Reporter
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.pipelines.model.paths import PipelinePaths
from jobpipe.store.subscriptions.hop_times import TimeHistogram
from tests.control.world import NAME, World, deleted, wait
from tests.pipelines.waiting import eventually


def test_a_job_that_runs_fails_and_runs_again(world: World) -> None:
    server = world.server()
    tolerant = {
        "source": {"type": "rate"},
        "sink": {"type": "jobpipe", "topic": "rates"},
        "errors": {"tolerance": "all"},
    }
    server.submit(world.submission({"report": tolerant}, **{"topic-prefix": "p."}))
    worker = world.work(1)
    wait(server, JobState.RUNNING)
    durations = TimeHistogram()
    for seconds in (0.3, 0.4, 70.0):
        durations.observe(seconds)
    path = PipelinePaths.of(world.config.home, NAME).report("report", 1)
    Reporter(path).report(3, 42, durations=durations)
    (found,) = server.metric_samples().jobs
    assert (found.pipeline, found.job, found.state, found.wanted) == (NAME, "report", JobState.RUNNING, True)
    assert (found.attempts, found.batches, found.rows) == (1, 3, 42)
    assert (sum(found.durations), round(found.duration_seconds, 3)) == (3, 70.7)
    assert found.dead_letters == f"p.{NAME}.report.dead-letters"
    (reported,) = server._serializers.attempt_reports().values()
    assert (reported.attempt, reported.report.rows) == (1, 42)
    worker.end("FAILED", 1, error="Oops")
    world.work(2)
    wait(server, JobState.RUNNING)
    (found,) = server.metric_samples().jobs
    assert (found.attempts, found.durations) == (2, ())
    assert server._serializers.attempt_reports() == {}
    Reporter(PipelinePaths.of(world.config.home, NAME).report("report", 2)).report(1, 7)
    reports = server._serializers.attempt_reports()
    assert {key: (each.attempt, each.report.rows) for key, each in reports.items()} == {(NAME, "report"): (2, 7)}
    strict = {**tolerant, "errors": {"tolerance": "none"}}
    server.submit(world.submission({"report": strict}, **{"topic-prefix": "p."}))
    (found,) = server.metric_samples().jobs
    assert found.dead_letters is None


def test_a_pipeline_that_is_deleted_is_forgotten(world: World) -> None:
    server = world.server()
    assert server.metric_samples().jobs == ()
    assert server.metric_samples().topics.error is None
    server.submit(world.submission())
    assert [found.job for found in server.metric_samples().jobs] == ["report"]
    assert NAME in server._dead_letter_topics._found
    world.work(1).end("FINISHED", 0)
    wait(server, JobState.FINISHED)
    server.stop(NAME)
    eventually(lambda: deleted(server))
    assert server.metric_samples().jobs == ()
    assert server._dead_letter_topics._found == {}
