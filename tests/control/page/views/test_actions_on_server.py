"""Buttons of jobs on the real server: for each kind and state those that work, and each does what its question says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from jobpipe.control.control_server import ControlServer
from jobpipe.control.control_service import JobStatus
from jobpipe.control.page.marks import job_mark
from jobpipe.control.page.views.job_actions import job_actions, pipeline_actions
from jobpipe.control.page.views.page_action import PageAction
from jobpipe.errors import ControlConflict
from jobpipe.jobs.supervision import reconciler
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.model.job_states import ENDED, DesiredState, JobState
from tests.control.world import NAME, Worker, World, job_of, status, wait
from tests.pipelines.waiting import eventually

BATCH = {"execution": {"runtime-mode": "BATCH"}, "sink": {"type": "json", "path": "out"}}
OVER_RANGES = {**BATCH, "source": {"type": "text", "path": "in/${run.upper}"}}
ONE_DAY = {"start": "2020-01-01T00:00:00Z", "end": "2020-01-02T00:00:00Z"}
LATER = {"start": "2990-01-01T00:00:00Z", "end": "2990-01-02T00:00:00Z"}
KINDS: Mapping[str, dict[str, Any]] = {
    "stream": job_of(),
    "batch": job_of(**BATCH, source={"type": "text", "path": "in"}),
    "on demand": job_of(**OVER_RANGES),
    "scheduled": job_of(**OVER_RANGES, schedule={"every": "day", **ONE_DAY}),
    "scheduled stream": job_of(schedule={"every": "day", "mode": "available-now", **ONE_DAY}),
    "application": {"application": "own.py"},
    "flow": {"type": "flow", "source": {"type": "jobpipe", "subscribe": "orders"}, "function": "own:function"},
}
BEGIN_THEMSELVES = ("stream", "batch", "application", "flow")
STOP, RESUME, RESTART = "Stop", "Resume", "Restart"
LOST, GIVEN_UP = "Restart a lost job", "Give up a lost run"
OFFERED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # of those that begin by themselves, and of others
    "idle": ((), ()),  # before the first run; only of others
    "idle, stopped": ((), (RESUME,)),
    "submitted": ((STOP, RESTART), (STOP,)),
    "running": ((STOP, RESTART), (STOP,)),
    "restarting": ((STOP, RESTART), (STOP,)),
    "stopping": ((RESUME,), (RESUME,)),
    "canceled": ((STOP, RESTART), (STOP,)),  # it still ends
    "finished": ((RESUME,), ()),
    "failed": ((RESUME,), ()),
    "stopped": ((RESUME,), (RESUME,)),
    "failed, stopped": ((RESUME,), (RESUME,)),
    "lost": ((STOP, LOST), (STOP, GIVEN_UP)),
    "lost, stopped": ((LOST,), (GIVEN_UP,)),
}
ALL = ("stream", "batch", "on demand", "scheduled", "scheduled stream")
SITUATIONS = [
    (kind, situation)
    for situation in OFFERED
    for kind in (*ALL, "application", "flow")
    if not (situation.startswith("idle") and kind in BEGIN_THEMSELVES)
    and (kind in ALL or situation in ("running", "stopped", "lost"))
]


def _labels(kind: str, situation: str) -> tuple[str, ...]:
    return OFFERED[situation][kind not in BEGIN_THEMSELVES]


class Scene:
    """A server with one job in a situation."""

    def __init__(self, world: World, kind: str, situation: str) -> None:
        self.world, self.kind = world, kind
        if kind == "application":
            (world.folder / "own.py").write_text("")
        self.server: ControlServer = world.server(lost_seconds=0.0)
        self.worker: Worker | None = None
        delay = "1h" if situation == "restarting" else "20ms"
        job = dict(KINDS[kind])
        if kind.startswith("scheduled") and situation.startswith("idle"):
            job["schedule"] = {**job["schedule"], **LATER}
        self.server.submit(world.submission({"report": job}, restart={"delay": delay, "max-delay": "2h"}))
        if not situation.startswith("idle"):
            if kind == "on demand":
                self.start_run()
            self._run(situation)
        if "stopped" in situation:
            self.server.stop(NAME, "report")
            if "lost" in situation:
                eventually(lambda: self.attempt_is_to_stop)
            elif self.worker is not None and situation == "stopped":
                wait(self.server, JobState.STOPPING)
                self.end("STOPPED")
        self.settled(situation)
        self.runs = [run.id for run in self.server.runs(NAME)]
        self.submitted = len(world.cluster.submitted)

    def start_run(self) -> str:
        return self.server.start_run(NAME, "report", "1", "2").id

    def _run(self, situation: str) -> None:
        self.world.attempt(1)
        wait(self.server, JobState.SUBMITTED)
        if situation == "submitted":
            return
        self.worker = self.world.work(1)
        wait(self.server, JobState.RUNNING)
        if "failed" in situation or situation == "restarting":
            final = {"error": "DataLoss"} if "failed" in situation else {"error": "OSError"}
            self.end("FAILED", **final)
        elif situation == "finished":
            self.end("FINISHED")
        elif situation == "stopping":
            self.server.stop(NAME, "report")
        elif situation == "canceled":
            self.server.cancel(str(self.status.run))
        elif "lost" in situation:
            self.world.cluster.away.set()
            self.worker.handler.shutdown()
            wait(self.server, JobState.LOST)

    def settled(self, situation: str) -> None:
        states = {"idle": JobState.STOPPED, "canceled": JobState.STOPPING}
        word = situation.partition(",")[0]
        wait(self.server, states.get(word) or JobState(word.upper()))
        if self.status.state in ENDED:
            eventually(lambda: self.server.store.open_attempt(NAME, "report") is None)

    @property
    def attempt_is_to_stop(self) -> bool:
        attempt = self.server.store.open_attempt(NAME, "report")
        return attempt is not None and attempt.stop_by is not None

    @property
    def status(self) -> JobStatus:
        return status(self.server)

    @property
    def interval(self) -> str:
        """The state of the only interval, "" if there is none."""
        if not self.kind.startswith("scheduled"):
            return ""
        return "".join(each.state for each in self.server.intervals(NAME, "report"))

    def end(self, state: str, **more: Any) -> None:
        assert self.worker is not None
        self.worker.end(state, 0 if state in ("FINISHED", "STOPPED") else 1, **more)
        self.worker = None

    def action(self, label: str) -> PageAction:
        return next(each for each in job_actions(self.status) if each.label == label)

    def do(self, action: PageAction) -> None:
        """Do what REST does for it."""
        verb = action.path.partition("?")[0].rpartition("/")[2]
        asked: Callable[..., object] = getattr(self.server, verb)
        more = {"force": True} if action.path.endswith("?force") else {}
        asked(NAME, *(["report"] if "/jobs/" in action.path else []), **more)

    def let_end(self) -> None:
        """Let what is under way end by the stop that it was asked for."""
        if self.world.cluster.away.is_set():
            return
        attempt = self.server.store.open_attempt(NAME, "report")
        if attempt is not None and self.worker is None:
            self.world.cluster.ended[f"report-{attempt.number}"] = 0
        elif attempt is not None:
            eventually(lambda: self.world.order().want == "stop")  # type: ignore[union-attr]
            self.end("STOPPED")

    def over(self) -> None:
        """Wait until the job has come to rest: a run that would begin has begun."""
        self.world.cluster.away.clear()

        def is_over() -> bool:
            return self.status.state in ENDED and self.server.store.open_attempt(NAME, "report") is None

        eventually(is_over)
        if self.kind.startswith("scheduled"):
            self.server.trigger(NAME, "report")
        assert is_over()
        assert len(self.world.cluster.submitted) == self.submitted

    def starts(self) -> str:
        """Wait until another attempt begins; return its run."""
        attempt = eventually(lambda: self.world.cluster.submitted[self.submitted :])[0]
        return str(attempt.run)


def _scene(world: World, monkeypatch: pytest.MonkeyPatch, kind: str, situation: str) -> Scene:
    for name in ("POLL_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(reconciler, name, 0.02)
    return Scene(world, kind, situation)


@pytest.mark.parametrize(("kind", "situation"), SITUATIONS)
def test_only_what_works_is_offered(world: World, monkeypatch: pytest.MonkeyPatch, kind: str, situation: str) -> None:
    """And of a job that was stopped the page says so."""
    scene = _scene(world, monkeypatch, kind, situation)
    assert tuple(action.label for action in job_actions(scene.status)) == _labels(kind, situation)
    modes = {"application": None, "flow": None, "stream": Mode.STREAMING, "scheduled stream": Mode.STREAMING}
    assert scene.status.mode is modes.get(kind, Mode.BATCH)
    if scene.status.want is DesiredState.STOP and situation not in ("stopping", "failed, stopped", "lost, stopped"):
        assert job_mark(scene.status).word == "stopped"


DONE = [(kind, situation, label) for kind, situation in SITUATIONS for label in _labels(kind, situation)]


@pytest.mark.parametrize(("kind", "situation"), [each[:2] for each in DONE if each[2] == STOP])
def test_a_stop(world: World, monkeypatch: pytest.MonkeyPatch, kind: str, situation: str) -> None:
    """No run follows; an interval waits, and runs again when the job goes on."""
    scene = _scene(world, monkeypatch, kind, situation)
    action, run = scene.action(STOP), scene.status.run
    said = action.question
    scene.do(action)
    if situation == "lost":
        assert "It is not known whether flights.report still runs." in said
        wait(scene.server, JobState.LOST)
        eventually(lambda: scene.attempt_is_to_stop)
        world.cluster.away.clear()
        world.cluster.ended["report-1"] = 0
    else:
        scene.let_end()
    scene.over()
    assert "It stays stopped, also when the server restarts." in said
    assert scene.status.want is DesiredState.STOP
    assert ("Its interval waits" in said) is (kind.startswith("scheduled") and situation not in ("lost", "canceled"))
    if "Its interval waits" in said:
        assert scene.interval == "WAITING"
        scene.do(scene.action(RESUME))
        assert scene.starts() == run
        assert scene.interval == "RUNNING"
    if "New runs of flights.report over ranges are refused" in said:
        with pytest.raises(ControlConflict, match="is stopped"):
            scene.server.start_run(NAME, "report", "2", "3")
        scene.do(scene.action(RESUME))
        scene.over()
        scene.server.start_run(NAME, "report", "2", "3")
        scene.starts()
    else:
        assert kind != "on demand"


@pytest.mark.parametrize(("kind", "situation"), [each[:2] for each in DONE if each[2] == RESUME])
def test_a_resume(world: World, monkeypatch: pytest.MonkeyPatch, kind: str, situation: str) -> None:
    """A new run begins, or the schedule makes one, or others may."""
    scene = _scene(world, monkeypatch, kind, situation)
    action, run = scene.action(RESUME), scene.status.run
    said = action.question
    interval = scene.interval
    scene.do(action)
    assert scene.status.want is DesiredState.RUN
    scene.let_end()
    if kind in BEGIN_THEMSELVES:
        assert said.startswith("flights.report starts as a new run, ")
        assert said.endswith("as soon as the present one has ended.") is (situation == "stopping")
        assert scene.starts() not in scene.runs
    elif kind == "on demand":
        assert "No run begins by itself" in said
        scene.over()
        begun = scene.start_run()
        assert scene.starts() == begun
    else:
        assert said.startswith("The schedule of flights.report makes runs again")
        assert scene.server.schedule(NAME, "report").active
        if interval in ("WAITING", "RUNNING"):
            assert scene.starts() == run
        else:
            scene.over()
        assert ("Intervals that have failed" in said) is (interval == "FAILED") is (scene.interval == "FAILED")


@pytest.mark.parametrize(("kind", "situation"), [each[:2] for each in DONE if each[2] == RESTART])
def test_a_restart(world: World, monkeypatch: pytest.MonkeyPatch, kind: str, situation: str) -> None:
    scene = _scene(world, monkeypatch, kind, situation)
    action = scene.action(RESTART)
    assert "a new run begins, " in action.question
    scene.do(action)
    scene.let_end()
    assert scene.starts() not in scene.runs


@pytest.mark.parametrize(("kind", "situation"), [each[:2] for each in DONE if each[2] in (LOST, GIVEN_UP)])
def test_a_lost_run_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch, kind: str, situation: str) -> None:
    """A new run begins where the question says so, and nowhere else."""
    scene = _scene(world, monkeypatch, kind, situation)
    action, run = job_actions(scene.status)[-1], str(scene.status.run)
    said = action.question
    scene.do(action)
    if kind in BEGIN_THEMSELVES:
        assert "and a new one begins, " in said
        assert scene.starts() not in scene.runs
        return
    assert "it counts as canceled" in said
    if "its schedule runs the interval again, under the same run id" in said:
        assert (kind.startswith("scheduled"), situation) == (True, "lost, stopped")
        assert scene.starts() == run
        return
    eventually(lambda: scene.server.run(run).state is JobState.CANCELED)
    world.cluster.ended["report-1"] = None
    scene.over()
    if kind == "on demand":
        assert ("The job is resumed" in said) is (situation == "lost, stopped")
        assert "new run begins: `jobpipe runs start` makes one over the same range again." in said
        assert scene.start_run() == scene.starts() == run
    else:
        assert "Its interval counts as failed" in said
        assert scene.interval == "FAILED"
        scene.server.retry(run)
        assert scene.starts() == run


def test_a_pipeline_is_stopped_and_resumed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both questions name all jobs that they are about, schedules too; when all is stopped only Resume all is left."""
    monkeypatch.setattr(reconciler, "POLL_SECONDS", 0.02)
    server = world.server()
    server.submit(
        world.submission(
            {
                "every": job_of(),
                "daily": job_of(**OVER_RANGES, schedule={"every": "day", **LATER}),
                "asked": {**KINDS["on demand"], "sink": {"type": "json", "path": "other"}},
            }
        )
    )
    worker = world.work(1, "every")
    wait(server, JobState.RUNNING, "every")
    (stop,) = pipeline_actions(server.pipeline(NAME))
    assert stop.label == "Stop all"
    assert "These end, each after the micro-batch that it is in: every." in stop.question
    assert "The schedules of these make no runs until their jobs are resumed: daily." in stop.question
    assert "New runs of these over ranges are refused until they are resumed: asked." in stop.question
    server.stop(NAME)
    wait(server, JobState.STOPPING, "every")
    assert [each.label for each in pipeline_actions(server.pipeline(NAME))] == ["Resume all"]
    worker.end("STOPPED", 0)
    wait(server, JobState.STOPPED, "every")
    assert not server.schedule(NAME, "daily").active
    (resume,) = pipeline_actions(server.pipeline(NAME))
    assert resume.label == "Resume all"
    assert "These start, each from its checkpoint if it has one: every." in resume.question
    assert "The schedules of these make runs again, unless they are paused: daily." in resume.question
    assert "These can be run over ranges again, and do not run by themselves: asked." in resume.question
    server.resume(NAME)
    world.work(2, "every")
    assert server.schedule(NAME, "daily").active
    assert len(server.runs(NAME)) == 2
    assert server.start_run(NAME, "asked", "1", "2").state is JobState.SUBMITTED


def test_resume_all_is_not_offered_where_the_server_refuses_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was stopped is LOST; while it was wanted, the others could be resumed."""
    scene = _scene(world, monkeypatch, "stream", "lost")
    other = job_of(**OVER_RANGES)
    scene.server.submit(world.submission({"report": KINDS["stream"], "other": other}))
    assert scene.server.resume(NAME).want is DesiredState.RUN
    scene.server.stop(NAME)
    assert [each.label for job in scene.server.pipeline(NAME).jobs for each in job_actions(job)] == [LOST, RESUME]
    assert pipeline_actions(scene.server.pipeline(NAME)) == ()
    with pytest.raises(ControlConflict, match="is LOST"):
        scene.server.resume(NAME)


def test_a_job_that_the_file_does_not_have_any_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes no commands for it."""
    scene = _scene(world, monkeypatch, "scheduled", "running")
    assert job_actions(scene.status) != ()
    scene.server.submit(world.submission({"other": KINDS["on demand"]}))
    assert scene.status.removed
    assert job_actions(scene.status) == ()
    assert all("report" not in each.question for each in pipeline_actions(scene.server.pipeline(NAME)))


def test_a_new_checkpoint_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = _scene(world, monkeypatch, "stream", "stopped")
    assert "from its checkpoint" in scene.action(RESUME).question
    scene.server.submit(world.submission({"report": KINDS["stream"]}), new_checkpoint=["report"])
    assert "without its checkpoint" in scene.action(RESUME).question
