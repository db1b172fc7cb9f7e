"""`jobpipe pipeline plan, history, rollback`, and what `submit` asks before it ends runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from jobpipe.cli.common.server_connection import local_time
from jobpipe.cli.main import cli
from jobpipe.cli.pipeline import plan_command
from jobpipe.cli.pipeline.plan_command import PLAN_KEYS, REVISION_KEYS, plan_lines
from jobpipe.control.control_service import Action, JobPlan, Plan, RevisionView
from jobpipe.jobs.storage.file_lock import locked
from jobpipe.jobs.storage.job_rows import PipelineRow
from jobpipe.jobs.storage.job_store import Store
from jobpipe.pipelines.model.job_states import DesiredState
from jobpipe.pipelines.model.paths import PipelinePaths
from tests.control_api.kit import Served, tree
from tests.docs.troubleshooting import on_page

Run = Callable[..., Result]
RESTARTS = JobPlan(
    job="report",
    action=Action.RESTARTED,
    reasons=('jobs.report.trigger: "1s" -> "2s"',),
    from_checkpoint=True,
    ends_run=True,
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def run(home: Path, tmp_path: Path) -> Run:
    """Run a command of the home."""
    config = tmp_path / "jobpipe.yaml"
    config.write_text(yaml.safe_dump({"jobpipe": {"home": str(home), "server.roots": str(tmp_path / "work")}}))

    def ask(*args: str, code: int = 0, typed: str | None = None) -> Result:
        result = CliRunner().invoke(cli, ["--config", str(config), *args], input=typed)
        assert result.exit_code == code, (result.output, result.stderr, result.exception)
        return result

    return ask


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "work").mkdir(exist_ok=True)
    path = tmp_path / "work" / "flights.yaml"
    path.write_text(yaml.safe_dump(tree()))
    return str(path)


def restarting(plan: Plan) -> Plan:
    """Let the plan end the run of `report`, if the pipeline is known."""
    return replace(plan, jobs=(plan.jobs[0], RESTARTS)) if plan.version else plan


def submitted(served: Served) -> int:
    return sum(call[0] == "submit" for call in served.control.calls)


def test_json_keys_are_as_documented() -> None:
    """The help lists the fields of the views."""
    inside = PLAN_KEYS.partition("jobs (")[2].partition(")")[0].split(", ")
    assert inside == [each.name for each in fields(JobPlan)]
    assert PLAN_KEYS.replace(f" ({', '.join(inside)})", "").split(", ") == [each.name for each in fields(Plan)]
    assert REVISION_KEYS.split(", ") == [each.name for each in fields(RevisionView)]


def test_a_plan_of_a_server(served: Served, run: Run, file: str) -> None:
    """Nothing is submitted; what would be refused is 1."""
    run("pipeline", "submit", file)
    assert run("pipeline", "plan", file).stdout.splitlines() == [
        "pipeline flights, version 1 -> 2",
        "  publish  unchanged",
        "  report   unchanged",
    ]
    again = ("it reads again what is there of rate",)
    needs = JobPlan(job="report", action=Action.NEEDS_NEW_CHECKPOINT, reasons=("it does not fit",), rows_again=again)
    served.control.plan_of = lambda plan: replace(plan, jobs=(needs,), settings=("pipeline.alerts: [] added",))
    shown = run("pipeline", "plan", file, "--new-checkpoint", "report", code=1).stdout
    assert shown.splitlines()[1:] == [
        "  report  needs a new checkpoint: the file is refused",
        "      it does not fit",
        "      it reads again what is there of rate",
        "taken without a restart:",
        "      pipeline.alerts: [] added",
    ]
    assert served.control.calls[-1][2] == ("report",)
    answered = json.loads(run("pipeline", "plan", file, "--json", code=1).stdout)
    assert list(answered) == [each.name for each in fields(Plan)]
    assert answered["jobs"][0]["action"] == "needs a new checkpoint"
    assert submitted(served) == 1


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (JobPlan(job="a", action=Action.STORED), "stored; no run begins now"),
        (JobPlan(job="a", action=Action.STORED, ends_run=True), "stored; its run ends"),
        (JobPlan(job="a", action=Action.STARTED), "started"),
        (JobPlan(job="a", action=Action.RESTARTED, from_checkpoint=True), "restarted from its checkpoint"),
        (JobPlan(job="a", action=Action.NEW_CHECKPOINT, ends_run=True), "begins without its checkpoint; its run ends"),
        (JobPlan(job="a", action=Action.STOPPED, ends_run=True), "stopped"),
        (JobPlan(job="a", action=Action.REFUSED), "refused"),
    ],
)
def test_the_words_for_each_action(job: JobPlan, words: str) -> None:
    made = Plan(pipeline="p", version=3, changed=False, jobs=(job,), refused=("too\nmuch",))
    assert list(plan_lines(made)) == ["pipeline p, version 3, the same file", f"  a  {words}", "refused: too\\nmuch"]


def test_a_plan_without_a_server(run: Run, file: str, home: Path) -> None:
    """It is one for a new pipeline, and starts no server; if the home knows the pipeline, its server is needed."""
    done = run("pipeline", "plan", file)
    assert done.stdout.splitlines()[:3] == ["pipeline flights (new)", "  publish  started", "      new in the file"]
    assert "no control server of" in done.stderr
    assert not (home / "server").exists()
    store = Store(home / "server" / "server.db", lambda: 5.0)
    store.put_pipeline(PipelineRow(name="flights", version=1, want=DesiredState.RUN, submitted=1.0))
    store.close()
    assert "start it with `jobpipe server`" in run("pipeline", "plan", file, code=3).stderr


def test_a_plan_without_a_server_is_refused_as_a_submission_would_be(
    run: Run, file: str, home: Path, tmp_path: Path
) -> None:
    """By what that server would look at, whatever the pipeline is."""
    stored = tmp_path / "work" / "stored.yaml"
    stored.write_text(yaml.safe_dump({**tree(), "pipeline": {**tree()["pipeline"], "storage": "s3a://bucket/state"}}))
    run("pipeline", "plan", str(stored))
    for where in (file, str(stored)):
        told = run("pipeline", "plan", where, "--new-checkpoint", "nosuch", code=1).stderr
        assert "new-checkpoint: there is no job 'nosuch'" in told
    run("pipeline", "plan", file, "--new-checkpoint", "report")
    told = run("pipeline", "plan", str(stored), "--new-checkpoint", "report", code=1).stdout
    assert "refused: --new-checkpoint report: s3a://bucket/state/report is not a folder of this host" in told
    outside = tmp_path / "outside" / "flights.yaml"
    outside.parent.mkdir()
    outside.write_text(Path(file).read_text())
    assert f"lies outside {tmp_path / 'work'}" in run("pipeline", "plan", str(outside), code=2).stderr
    own = PipelinePaths.of(home, "flights")
    with locked(own.lock, "it", "stop it first", "home"):
        assert "refused: pipeline flights is run in the foreground" in run("pipeline", "plan", file, code=1).stdout
    (own.folder / ".topic-prefix").write_text("dev.\n")
    assert "refused: topic-prefix is ''" in run("pipeline", "plan", file, code=1).stdout


def test_submit_asks_before_it_ends_runs(served: Served, run: Run, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first submission, and one that ends nothing, do not; the version that was planned for goes along."""
    control = served.control
    control.plan_of = restarting
    run("pipeline", "submit", file)
    assert control.calls[-1][3:] == (0, "token", 0.0)
    refused = run("pipeline", "submit", file, code=2).stderr
    assert "restarted from its checkpoint" in refused
    assert "give --yes" in refused
    on_page(refused, "Error: runs that are under way")
    assert submitted(served) == 1
    told = run("pipeline", "submit", file, "--yes", "--json")
    assert json.loads(told.stdout)["version"] == 2
    assert RESTARTS.reasons[0] in told.stderr
    assert control.calls[-1][3:] == (1, "token", 1000.0)
    monkeypatch.setattr(plan_command, "has_terminal", lambda: True)
    assert "nothing was changed" in run("pipeline", "submit", file, code=1, typed="\n").stderr
    assert submitted(served) == 2
    assert "Go on? [y/N]" in run("pipeline", "submit", file, typed="y\n").stderr
    assert submitted(served) == 3
    control.plan_of = lambda plan: plan
    assert run("pipeline", "submit", file).stderr == ""


def test_a_plan_that_is_refused_is_shown_and_not_submitted(served: Served, run: Run, file: str) -> None:
    """Not even if the server would take it by now: what it does then was not shown."""
    run("pipeline", "submit", file)
    run("pipeline", "submit", file)
    served.control.plan_of = lambda plan: replace(restarting(plan), refused=("it is run in the foreground",))
    assert "refused: it is run in the foreground" in run("pipeline", "submit", file, "--yes", code=1).stderr
    assert submitted(served) == 2


def test_history_and_rollback(served: Served, run: Run, file: str) -> None:
    control = served.control
    run("pipeline", "submit", file)
    assert "no earlier version" in run("pipeline", "rollback", "flights", code=2).stderr
    first = control.submissions["flights"]
    made = tree(third={"source": {"type": "rate"}, "sink": {"type": "console"}})
    Path(file).write_text(yaml.safe_dump(made))
    run("pipeline", "submit", file)
    view, submission = control.kept[("flights", 2)]
    more = {"added": ("third",), "settings": ("pipeline.alerts",)}
    control.kept[("flights", 2)] = (replace(view, **more), submission)
    lines = run("pipeline", "history", "flights").stdout.splitlines()
    assert lines[1].split()[:1] == ["2"]
    assert local_time(1000.0) in lines[1]
    assert "token" in lines[1]
    assert "added third; changed pipeline.alerts" in lines[1]
    answered = json.loads(run("pipeline", "history", "flights", "--json").stdout)
    assert [list(each) for each in answered] == [[each.name for each in fields(RevisionView)]] * 2
    control.plan_of = restarting
    assert "give --yes" in run("pipeline", "rollback", "flights", code=2).stderr
    done = run("pipeline", "rollback", "flights", "--yes", "--wait")
    assert done.stdout.splitlines()[0] == "pipeline flights changed to version 3"
    assert "are as they are today" in done.stderr
    assert control.submissions["flights"] == first
    run("pipeline", "rollback", "flights", "--to", "2", "--yes")
    assert control.submissions["flights"].tree["jobs"] == made["jobs"]
    assert "version 9" in run("pipeline", "rollback", "flights", "--to", "9", "--yes", code=2).stderr


def test_a_rollback_is_based_on_the_versions_that_it_has_seen(served: Served, run: Run, file: str) -> None:
    """Another submission between the list and the plan is an error of the server, not rolled back unseen."""
    run("pipeline", "submit", file)
    run("pipeline", "submit", file)
    run("pipeline", "rollback", "flights", "--yes")
    assert [call[3] for call in served.control.calls if call[0] == "submit"] == [0, 1, 2]
    served.control.plan_of = lambda plan: replace(restarting(plan), version=7)
    run("pipeline", "rollback", "flights")  # and does not ask about what is not going to happen
    assert [call[3] for call in served.control.calls if call[0] == "submit"][-1] == 3
