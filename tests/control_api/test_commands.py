"""`jobpipe pipeline submit, list, …`, `jobpipe runs`, `jobpipe server`: their text, their JSON, their exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from jobpipe.cli.common.server_connection import INTERVAL_KEYS, JOB_KEYS, RUN_KEYS, SCHEDULE_KEYS, local_time
from jobpipe.cli.main import cli
from jobpipe.cli.operate.server_command import _print_address
from jobpipe.cli.pipeline import logs_command
from jobpipe.cli.pipeline.logs_command import new_lines
from jobpipe.config import load
from jobpipe.control.control_service import (
    AttemptView,
    IntervalView,
    JobStatus,
    RunView,
    ScheduleView,
    Submission,
    Submitted,
)
from jobpipe.control.process import control_program, local_server
from jobpipe.control.process.job_environment import kept_variables
from jobpipe.control.rest.rest_client import ControlClient, ServerAddress
from jobpipe.control.server_files import ServerFiles
from jobpipe.errors import ControlConflict, JobpipeError, LinkBroken
from jobpipe.net.servers.listener import Listener
from jobpipe.pipelines.file.problems import Problem
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.model.job_states import JobState
from tests.control_api.conftest import PORTS
from tests.control_api.kit import DEADLINE, SCHEDULE, Served, tree, until
from tests.control_api.program import core
from tests.docs.troubleshooting import on_page

ROOT = Path(__file__).parents[2]
Run = Callable[..., Result]


@pytest.fixture
def run(served: Served, tmp_path: Path) -> Run:
    """Run a command of the served home."""
    config = tmp_path / "jobpipe.yaml"
    config.write_text(yaml.safe_dump({"jobpipe": {"home": str(served.home)}}))

    def ask(*args: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, ["--config", str(config), *args])
        assert result.exit_code == code, (result.output, result.stderr, result.exception)
        return result

    return ask


def written(served: Served, name: str = "flights") -> str:
    path = served.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(tree(name)))
    return str(path)


def test_the_life_of_a_pipeline(served: Served, run: Run) -> None:
    """Each command, its text and its JSON, with the server of the home."""
    file = written(served)
    assert run("pipeline", "submit", file, "--wait").stdout.splitlines() == [
        "pipeline flights submitted",
        "  publish: run run-1",
        "  report: run run-2",
    ]
    submission = served.control.submissions["flights"]
    assert (str(submission.file), submission.folder) == (file, served.folder)
    assert submission.tree["jobs"] == tree()["jobs"]
    again = json.loads(run("pipeline", "submit", file, "--new-checkpoint", "report", "--json").stdout)
    assert (again["created"], again["version"], again["runs"]) == (False, 2, {"publish": "run-3", "report": "run-4"})
    assert "2 RUNNING" in run("pipeline", "list").stdout
    (listed,) = json.loads(run("pipeline", "list", "--json").stdout)
    assert {job["name"] for job in listed["jobs"]} == {"publish", "report"}
    assert "publish" not in run("pipeline", "status", "flights/report").stdout
    status = json.loads(run("pipeline", "status", "flights/report", "--json").stdout)
    assert list(status) == JOB_KEYS.split(", ")
    run("pipeline", "stop", "flights", "--wait")
    assert {job.state for job in served.control.statuses["flights"].jobs} == {JobState.STOPPED}
    run("pipeline", "resume", "flights/report", "--wait")
    run("pipeline", "restart", "flights", "--force", "--wait", "--json")
    assert ("restart", "flights", None, True) in served.control.calls
    runs = json.loads(run("runs", "list", "flights", "--limit", "3", "--json").stdout)
    assert [each["id"] for each in runs] == ["run-7", "run-6", "run-5"]
    assert "run-7" in run("runs", "list").stdout
    assert "flights/report" in run("runs", "status", "run-7").stdout
    assert json.loads(run("runs", "cancel", "run-7", "--wait", "--json").stdout)["state"] == "CANCELED"
    run("pipeline", "delete", "flights", code=1)
    run("pipeline", "stop", "flights")
    served.control.ending = 2
    assert run("pipeline", "delete", "flights", "--keep-subscriptions").stdout == "deleted pipeline flights\n"
    assert served.control.calls.count(("delete", "flights", True)) == 3
    run("pipeline", "status", "flights", code=1)
    assert json.loads(run("pipeline", "list", "--json").stdout) == []


def test_what_only_the_server_knows_is_shown(served: Served, run: Run) -> None:
    """The command's own warnings come with lines, and once."""
    file = Path(written(served))
    made = tree()
    made["jobs"]["report"]["source"] = {"type": "jobpipe", "subscribe": "elsewhere"}
    file.write_text(yaml.safe_dump(made))
    own = run("pipeline", "submit", str(file)).stderr.splitlines()
    assert ["elsewhere" in each for each in own] == [True]
    shared = Problem(str(file), None, "pipeline.storage", "pipeline x has it", "give another", "warning")
    (local,) = load_pipeline(file).warnings
    served.control.warnings = (replace(local, line=None), shared)
    told = run("pipeline", "submit", str(file)).stderr.splitlines()
    assert told == [*own, f"{file}: warning: pipeline.storage: pipeline x has it; give another"]
    answered = json.loads(run("pipeline", "submit", str(file), "--json").stdout)["warnings"]
    assert [each["key"] for each in answered] == [local.key, "pipeline.storage"]


def test_json_keys_are_as_documented() -> None:
    """The help lists the fields of the views."""
    assert JOB_KEYS.split(", ") == [each.name for each in fields(JobStatus)]
    assert SCHEDULE_KEYS.partition(" (")[0].split(", ") == [each.name for each in fields(ScheduleView)]
    assert INTERVAL_KEYS.split(", ") == [each.name for each in fields(IntervalView)]
    inside = RUN_KEYS.partition("attempts (")[2].rstrip(")").split(", ")
    assert set(inside) == {each.name for each in fields(AttemptView)}
    assert RUN_KEYS.partition(" (")[0].split(", ") == [each.name for each in fields(RunView)]


def test_the_commands_of_a_schedule(served: Served, run: Run) -> None:
    run("pipeline", "submit", written(served))
    control = served.control
    control.schedule_views[("flights", "report")] = SCHEDULE
    of = "flights/report"
    line = run("schedules", "list").stdout.splitlines()[1]
    due = local_time(1.8e9)
    for part in ("every day", "ACTIVE", due, "[2026-11-21T00:00:00Z, 2026-11-22T00:00:00Z) FAILED"):
        assert part in line
    (answered,) = json.loads(run("schedules", "list", "flights", "--json").stdout)
    assert list(answered) == SCHEDULE_KEYS.partition(" (")[0].split(", ")
    assert list(answered["last"]) == INTERVAL_KEYS.split(", ")
    assert "FAILED" in run("schedules", "intervals", of).stdout.splitlines()[1]
    assert json.loads(run("schedules", "intervals", of, "--json").stdout) == [answered["last"]]
    assert run("schedules", "pause", of).stdout.startswith(
        "flights/report: its schedule is paused; last interval [2026"
    )
    assert f"next run due {due}" in run("schedules", "resume", of).stdout
    assert json.loads(run("schedules", "pause", of, "--json").stdout)["paused"] is True
    bounds = ("--from", "2026-11-01T00:00:00+01:00", "--to", "2026-11-05T00:00:00Z")
    assert run("schedules", "backfill", of, *bounds).stdout == (
        "3 intervals will run once the schedule is resumed, 4 succeeded before, 1 under way already, 3 still to come "
        "by the schedule\n"
    )
    assert json.loads(run("schedules", "backfill", of, *bounds, "--force", "--json").stdout)["added"] == 2
    lower, upper = datetime(2026, 10, 31, 23, tzinfo=UTC), datetime(2026, 11, 5, tzinfo=UTC)
    calls = [call for call in control.calls if call[0] == "backfill"]
    assert calls == [("backfill", "flights", "report", lower, upper, force) for force in (False, True)]
    assert run("schedules", "skip", of, *bounds).stdout == (
        "2 intervals skipped, 1 succeeded before, 1 under way; cancel the run first, 3 still to come by the schedule\n"
    )
    assert json.loads(run("schedules", "skip", of, *bounds, "--json").stdout)["skipped"] == 2
    assert ("skip_range", "flights", "report", lower, upper) in control.calls
    assert "last interval [2026" in run("schedules", "trigger", of).stdout
    assert ("trigger", "flights", "report") in control.calls
    assert "with a zone" in run("schedules", "backfill", of, *bounds[:3], "2026-11-05", code=2).stderr
    run("schedules", "pause", "flights", code=2)
    assert "has no schedule" in run("schedules", "pause", "flights/publish", code=2).stderr
    assert run("runs", "skip", "run-1").stdout == (
        "interval [2026-11-21T00:00:00Z, 2026-11-22T00:00:00Z) of flights/publish: SKIPPED\n"
    )
    assert "WAITING" in run("runs", "retry", "run-1").stdout
    assert list(json.loads(run("runs", "retry", "run-1", "--force", "--json").stdout)) == INTERVAL_KEYS.split(", ")
    assert [call for call in control.calls if call[0] == "retry"] == [("retry", "run-1", f) for f in (False, True)]


def test_a_run_over_a_range(served: Served, run: Run) -> None:
    run("pipeline", "submit", written(served))
    bounds = ("--lower", "2026-11-21T00:00:00Z", "--upper", "2026-11-22T00:00:00Z")
    served.control.state_of["report"] = JobState.FINISHED
    shown = run("runs", "start", "flights/report", *bounds, "--wait").stdout
    assert "FINISHED" in shown
    assert "2026-11-21T00:00:00Z to 2026-11-22T00:00:00Z" in shown
    assert ("start_run", "flights", "report", bounds[1], bounds[3]) in served.control.calls
    served.control.state_of["report"] = JobState.FAILED
    run("runs", "start", "flights/report", *bounds)
    run("runs", "start", "flights/report", *bounds, "--wait", code=1)
    assert json.loads(run("runs", "start", "flights/report", *bounds, "--json").stdout)["lower"] == bounds[1]
    run("runs", "start", "flights", *bounds, code=2)


def test_exit_codes(served: Served, run: Run) -> None:
    """A job that fails is 1, a wrong file 2, a wait that is too long 3, no right 4."""
    file = written(served)
    served.control.state_of["report"] = JobState.FAILED
    assert "job report is FAILED" in run("pipeline", "submit", file, "--wait", code=1).stderr
    run("pipeline", "status", "flights", code=1)
    run("pipeline", "status", "flights/publish")
    served.control.state_of["report"] = JobState.SUBMITTED
    run("pipeline", "restart", "flights", "--wait", "--timeout", "0.3", code=3)
    wrong = served.folder / "wrong.yaml"
    wrong.write_text("pipeline: {name: x}\njobs: {a: {source: {type: rats}}}\n")
    run("pipeline", "submit", str(wrong), code=2)
    run("pipeline", "submit", file, "--new-checkpoint", "x", code=1)
    run("pipeline", "status", "a/b/c", code=2)
    run("pipeline", "logs", code=2)
    run("runs", "status", "nothing", code=1)
    view = str(ServerFiles.of(served.home).folder / "view-token")
    there = ("--url", served.address.url, "--token-file", view)
    run("pipeline", "list", *there)
    run("pipeline", "stop", "flights", *there, code=4)
    run("pipeline", "list", "--token-file", view, code=2)
    run("pipeline", "list", "--url", "http://127.0.0.1:1", "--token-file", view, code=3)
    run("pipeline", "list", "--url", "http://127.0.0.1:1", code=2)


def test_submit_waits_for_the_runs_that_it_began(served: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for those before them, which run until they are stopped; nor for ever if another one has replaced them."""
    file, control = written(served), served.control
    run("pipeline", "submit", file, "--wait")
    old, status, asked = control.statuses["flights"], control.pipeline, iter(range(3))
    monkeypatch.setattr(control, "pipeline", lambda name: old if next(asked, None) is not None else status(name))
    control.state_of["report"] = JobState.FAILED
    assert "job report is FAILED" in run("pipeline", "submit", file, "--wait", code=1).stderr
    monkeypatch.undo()
    submit = control.submit

    def replaced(submission: Submission, **_given: object) -> Submitted:
        mine = submit(submission)
        for each in mine.runs.values():
            control.cancel(each)
        submit(submission)
        return mine

    monkeypatch.setattr(control, "submit", replaced)
    shown = run("pipeline", "submit", file, "--wait", "--timeout", "20", code=1)
    assert "job report is FAILED" in shown.stderr


def test_logs_are_escaped(served: Served, run: Run) -> None:
    """A terminal obeys nothing of a log, whatever the server says."""
    run("pipeline", "submit", written(served))
    served.control.lines = ("a", "b\x1b]0;x\x07")
    assert run("pipeline", "logs", "flights/report").stdout == "a\nb\\x1b]0;x\\x07\n"
    assert json.loads(run("pipeline", "logs", "flights/report", "-n", "1", "--json").stdout)["lines"] == [
        "b\x1b]0;x\x07"
    ]
    run("pipeline", "logs", "-f", "flights/report", "--json", code=2)


def test_all_pipelines_and_all_logs(served: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name the state of all pipelines, without a job the logs of all jobs, at most so many lines of all."""
    assert "no pipeline has been submitted" in run("pipeline", "status").stderr
    run("pipeline", "submit", written(served), "--wait")
    run("pipeline", "submit", written(served, "trains"), "--wait")
    lines = run("pipeline", "status").stdout.splitlines()[1:]
    assert [line.split()[:3] for line in lines] == [
        [name, job, "RUNNING"] for name in ("flights", "trains") for job in ("publish", "report")
    ]
    assert [each["name"] for each in json.loads(run("pipeline", "status", "--json").stdout)] == ["flights", "trains"]
    served.control.set_state("trains", "report", JobState.FAILED)
    run("pipeline", "status", code=1)
    served.control.lines = ("a", "b")
    assert run("pipeline", "logs", "flights").stdout.splitlines() == [
        *("publish | a", "publish | b"),
        *("report  | a", "report  | b"),
    ]
    assert json.loads(run("pipeline", "logs", "flights", "--json").stdout) == {
        "jobs": [{"name": "publish", "lines": ["a", "b"]}, {"name": "report", "lines": ["a", "b"]}]
    }
    monkeypatch.setattr(logs_command, "LINES_MOST", 2)
    assert run("pipeline", "logs", "flights").stdout == "publish | b\nreport  | b\n"


def test_all_logs_are_followed(served: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """New lines of each job, until the server goes."""
    run("pipeline", "submit", written(served))
    answers = iter([("a",), ("a",), ("a", "b"), ("a",), ("a", "b"), ("a", "c")])

    def log(pipeline: str, job: str, *, lines: int = 100) -> tuple[str, ...]:
        found = next(answers, None)
        if found is None:
            raise ControlConflict("that is all")
        return found

    monkeypatch.setattr(served.control, "log", log)
    monkeypatch.setattr(logs_command, "FOLLOW_SECONDS", 0.0)
    shown = run("pipeline", "logs", "flights", "--follow", code=1).stdout
    assert shown.splitlines() == ["publish | a", "report  | a", "publish | b", "report  | c"]


def test_delete_says_which_subscriptions_are_left(served: Served, run: Run) -> None:
    """In words without flags; the control server drops them when their topics are served."""
    run("pipeline", "submit", written(served))
    run("pipeline", "stop", "flights", "--wait")
    status = served.control.statuses["flights"]
    jobs = tuple(replace(job, reads=("delays",) if job.name == "report" else ()) for job in status.jobs)
    served.control.statuses["flights"] = replace(status, jobs=jobs)
    assert run("pipeline", "delete", "flights").stdout.splitlines() == [
        "deleted pipeline flights",
        "  subscription flights.report of delays is dropped as soon as delays is served; "
        "if its publisher does not come back: jobpipe topics serve delays",
    ]


@pytest.mark.parametrize(
    ("seen", "found", "new"),
    [
        ("abc", "abc", ""),
        ("abc", "abcde", "de"),
        ("abc", "bcde", "de"),
        ("abc", "xyz", "xyz"),
        ("", "ab", "ab"),
        ("aab", "aabaab", ""),
        ("abc", "", ""),
    ],
)
def test_what_is_new_of_a_log(seen: str, found: str, new: str) -> None:
    assert new_lines(tuple(seen), tuple(found)) == tuple(new)


@pytest.mark.slow
def test_new_lines_of_long_logs_are_found_at_once() -> None:
    """Logs of 10,000 lines that repeat themselves; linear, where a search by each length would take hours."""
    began = time.process_time()
    seen = ("x",) * 10_000
    assert new_lines(seen, ("x", "y") * 5000) == ("y",)
    assert time.process_time() - began < 5


def test_only_a_wait_finds_what_is_lost(served: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping and canceling tell that the order was taken; --wait what has become of it."""
    run("pipeline", "submit", written(served))
    control = served.control
    for job in ("publish", "report"):
        control.set_state("flights", job, JobState.LOST)
    control.run_views["run-1"] = replace(control.run_views["run-1"], state=JobState.LOST)
    monkeypatch.setattr(control, "stop", lambda pipeline, job: control.pipeline(pipeline))
    monkeypatch.setattr(control, "cancel", control.run)
    for command in (("pipeline", "stop", "flights"), ("run", "cancel", "run-1")):
        run(*command)
        run(*command, "--wait", code=1)


def test_a_server_that_starts_is_waited_for_before_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the lock, and has not said where it is."""
    config = load(overrides={"home": str(tmp_path / "home")}, environ={})
    monkeypatch.setattr(local_server, "START_SECONDS", 0.2)
    with ServerFiles.of(config.home).locked(), pytest.raises(ControlConflict, match="is still starting"):
        local_server.stop_server(config)
    assert not local_server.stop_server(config)


def test_the_program_ends_when_rest_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an error: without REST nobody could ask it for anything; SIGTERM is for a program that goes on."""

    serves = threading.Event()

    async def fail(listener: Listener[Any], sock: socket.socket) -> None:
        assert await asyncio.to_thread(serves.wait, DEADLINE)
        raise RuntimeError("no more connections")

    monkeypatch.setattr(Listener, "_accept", fail)
    monkeypatch.setattr(control_program, "keep_for_children", lambda environ, config: {})
    config = load(overrides={"home": str(tmp_path / "home"), "server.port": PORTS}, environ={})
    late = threading.Timer(DEADLINE, os.kill, (os.getpid(), signal.SIGTERM))
    late.start()
    try:
        with pytest.raises(JobpipeError, match="REST interface has failed") as caught:
            control_program.serve(config, None, lambda rest: serves.set(), make_core=core)
    finally:
        late.cancel()
        late.join()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not ServerFiles.of(config.home).running()


def test_without_a_server(tmp_path: Path) -> None:
    """Exit code 3, and how to start one."""
    config = tmp_path / "jobpipe.yaml"
    config.write_text(yaml.safe_dump({"jobpipe": {"home": str(tmp_path / "home")}}))
    result = CliRunner().invoke(cli, ["--config", str(config), "pipeline", "list"])
    assert result.exit_code == 3
    on_page(result.stderr, "jobpipe: no control server")
    stopped = CliRunner().invoke(cli, ["--config", str(config), "server", "--stop"])
    assert "no control server is running" in stopped.stdout


def started(tmp_path: Path, *before: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *before, "-m", "tests.control_api.program"],
        cwd=ROOT,
        env={**os.environ, "JOBPIPE__HOME": str(tmp_path / "home"), "JOBPIPE__SERVER__PORT": PORTS, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.processes
def test_the_program(tmp_path: Path) -> None:
    """It says where it is, without the token where nobody looks; SIGTERM ends it, and a second one does not start."""
    home = tmp_path / "home"
    process = started(tmp_path)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        config = load(overrides={"home": str(home)}, environ={})
        address = ServerAddress.local(config)
        assert address is not None
        token = str(address.token)
        assert address.url in line
        assert token not in line
        assert process.stdout.readline().startswith("its page: ")
        assert ControlClient(address).pipelines() == ()
        assert token not in Path(f"/proc/{process.pid}/cmdline").read_text()
        second = started(tmp_path)
        _, err = second.communicate(timeout=DEADLINE * 3)
        assert second.returncode == 1
        assert "is already running" in err
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE * 3)
        assert (process.returncode, out) == (0, "the core has ended\n"), err
        assert not ServerFiles.of(home).state.exists()
        assert ServerAddress.local(config) is None
        assert token not in err
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_a_server_is_started_if_none_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One, for two commands at once; detached, its address in no log. `jobpipe server --stop` ends it."""
    monkeypatch.setattr(local_server, "_program", lambda: [sys.executable, "-m", "tests.control_api.program"])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JOBPIPE__HOME", str(tmp_path / "home"))
    monkeypatch.setenv("JOBPIPE__SERVER__PORT", PORTS)
    config = load()
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: local_server.ensure_server(config, None), range(2))
    try:
        assert first == second
        assert ControlClient(first).index().right == "operate"
        assert str(first.token) not in ServerFiles.of(config.home).log.read_text()
        until(lambda: sum(each.poll() is None for each in local_server._started) == 1)
        (alive,) = [each for each in local_server._started if each.poll() is None]
        assert os.getsid(alive.pid) == alive.pid
    finally:
        assert local_server.stop_server(config)
        for each in local_server._started:
            try:
                each.wait(DEADLINE)
            finally:
                each.kill()
        local_server._started.clear()
    assert not local_server.stop_server(config)


@pytest.mark.processes
def test_a_server_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of its log is told; where the registry is not embedded none is started."""
    monkeypatch.setattr(local_server, "_program", lambda: [sys.executable, "-c", "import sys; sys.exit('no luck')"])
    home = {"home": str(tmp_path / "home")}
    with pytest.raises(JobpipeError, match=r"did not start(.|\n)*no luck"):
        local_server.ensure_server(load(overrides=home, environ={}), None)
    local_server._started.clear()
    there = {**home, "registerserver.connect": "zk1:2181", "ssl.enabled": "false", "security.allow_plaintext": "true"}
    with pytest.raises(LinkBroken, match="start it with `jobpipe server`"):
        local_server.ensure_server(load(overrides=there, environ={}), None)
    assert local_server._started == []


@pytest.mark.slow
@pytest.mark.processes
def test_clients_need_no_web_framework() -> None:
    """Without the extra: the commands work, and the server says what is missing."""
    block = "import sys; sys.modules.update(starlette=None, uvicorn=None); from jobpipe.cli.main import main; main()"
    for args, code, said in (
        (("pipeline", "list"), 3, "no control server"),
        (("server",), 2, "pip install 'starlette>=0.46' 'uvicorn>=0.34' 'jinja2>=3.1.6' 'cronsim>=2.6'"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", block, "--config", os.devnull, *args],
            env={**os.environ, "JOBPIPE__HOME": "/nonexistent/home"},
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE * 3,
        )
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_jobs_get_no_secrets_by_environment() -> None:
    """An allow-list; with what the configuration refers to, and what the operator names."""
    config = load(
        overrides={"ssl.key.password": "env:KEY_WORD", "server.environment": "AWS_*,MY_NAME"},
        environ={},
    )
    others = ("ALERT_URL", "DATABASE_PASSWORD", "SSH_AUTH_SOCK", "PATHOLOGY", "MY_NAMES")
    kept = {"PATH", "JAVA_HOME", "LC_ALL", "JOBPIPE__SPOOL__FSYNC", "SPARK_HOME", "KEY_WORD", "AWS_REGION", "MY_NAME"}
    assert set(kept_variables(dict.fromkeys((*kept, *others), "x"), config)) == kept


def test_a_start_that_failed_says_why_first(tmp_path: Path) -> None:
    """Only lines of this start, from WARNING up: the log has those of starts before, too."""
    log = tmp_path / "server.log"
    before = "2026-11-28 10:00:00,000 ERROR jobpipe: an old one\n"
    log.write_text(before)
    begin = log.stat().st_size
    assert local_server._failure_reason(log, begin) == f"it says no reason in its log, {log}"
    lines = [
        "2026-11-28 11:00:00,000 INFO jobpipe.control: it starts",
        "2026-11-28 11:00:01,000 WARNING jobpipe.net: slow",
        "jobpipe: port 8998 is taken; give another one",
    ]
    log.write_text(before + "\n".join(lines) + "\n")
    assert local_server._failure_reason(log, begin).splitlines() == [
        "port 8998 is taken; give another one",
        f"what it logged before, from WARNING up ({log}):",
        "  2026-11-28 11:00:01,000 WARNING jobpipe.net: slow",
    ]
    log.write_text("jobpipe: no luck\n")  # another file has taken its place
    assert local_server._failure_reason(log, begin) == "no luck"
    assert local_server._failure_reason(tmp_path / "none.log", 0) == f"it has no log at {tmp_path / 'none.log'}"


def test_the_server_says_where_its_token_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never what it is. The code for a browser is for a terminal, and not for a log that others may read."""
    state = SimpleNamespace(url="http://127.0.0.1:8998", token=Path("/home/anna/.jobpipe/server/token"))
    server = SimpleNamespace(state=state, sign_in_path=lambda: "/ui/sign-in?code=abc")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    _print_address(server)  # type: ignore[arg-type]
    told = capsys.readouterr().out
    assert told.startswith("control server at http://127.0.0.1:8998; its token is in /home/anna/.jobpipe/server/token;")
    assert "abc" not in told
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _print_address(server)  # type: ignore[arg-type]
    assert "http://127.0.0.1:8998/ui/sign-in?code=abc\n" in capsys.readouterr().out
