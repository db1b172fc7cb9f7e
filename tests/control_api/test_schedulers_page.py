"""docs/schedulers.md and examples/schedulers: other schedulers start runs; real ones, or the calls that they make."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest

from jobpipe.cli.command_tree import paths
from jobpipe.cli.main import cli
from jobpipe.pipelines.model.job_states import JobState
from tests.control_api.kit import SCHEDULE, Served
from tests.docs.pages import block, shell

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "schedulers"
AIRFLOW = ROOT / ".venv" / "airflow" / "bin" / "airflow"
MINUTES = 5 * 60.0
RUNS = "/pipelines/flights/jobs/audit/runs"


@pytest.fixture
def audited(served: Served) -> Served:
    """A server with job `audit` of pipeline `flights`, whose runs succeed."""
    served.client.submit(served.submission(audit={"source": {"type": "rate"}, "sink": {"type": "console"}}))
    served.control.state_of["audit"] = JobState.FINISHED
    served.control.schedule_views[("flights", "audit")] = replace(SCHEDULE, job="audit")
    return served


def started(served: Served) -> list[tuple[str, str]]:
    """Return the ranges that runs were asked for."""
    return [(call[3], call[4]) for call in served.control.calls if call[0] == "start_run"]


@pytest.mark.slow
def test_the_commands(audited: Served) -> None:
    done = shell(block("docs/schedulers.md", "commands"), audited.folder, JOBPIPE__HOME=str(audited.home))
    assert done.returncode == 0, done.stderr
    assert ("trigger", "flights", "audit") in audited.control.calls
    assert len(started(audited)) == 1


@pytest.mark.slow
def test_curl(audited: Served) -> None:
    """As a scheduler calls that knows HTTP alone."""
    if shutil.which("curl") is None:
        pytest.skip("no curl here")
    code = block("docs/schedulers.md", "rest").replace("http://127.0.0.1:8998", audited.address.url)
    home = {"HOME": str(audited.folder)}
    (audited.folder / ".jobpipe").symlink_to(audited.home)
    done = shell(code, audited.folder, **home)
    assert done.returncode == 0, done.stderr
    assert '"state":"FINISHED"' in done.stdout
    assert len(started(audited)) == 1


def dag(served: Served, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the DAG once, over an hour, by a real Airflow."""
    if not AIRFLOW.exists():
        pytest.skip(f"no Airflow: make {AIRFLOW.parents[1].relative_to(ROOT)}/.done")
    home = folder / "airflow"
    (home / "dags").mkdir(parents=True)
    shutil.copy(EXAMPLES / "airflow_dag.py", home / "dags")
    address = urlsplit(served.address.url)
    connection = {
        "conn_type": "http",
        "host": address.hostname,
        "port": address.port,
        "extra": {"Authorization": f"Bearer {served.address.token}"},
    }
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AIRFLOW"))}
    environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONN_JOBPIPE": json.dumps(connection),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    run = lambda *given: subprocess.run(  # noqa: E731
        [AIRFLOW, *given], env=environ, cwd=home, capture_output=True, text=True, timeout=MINUTES, check=False
    )
    migrated = run("db", "migrate")
    assert migrated.returncode == 0, migrated.stdout + migrated.stderr
    return run("dags", "test", "flights_audit", "2026-11-21T01:00:00+00:00")


@pytest.mark.slow
@pytest.mark.processes
def test_airflow(audited: Served, tmp_path: Path) -> None:
    done = dag(audited, tmp_path)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    ((lower, upper),) = started(audited)
    assert datetime.fromisoformat(upper) - datetime.fromisoformat(lower) == timedelta(hours=1)
    assert ("run_over", "flights", "audit", lower, upper) in audited.control.calls
    assert "state=success" in said


@pytest.mark.slow
@pytest.mark.processes
def test_airflow_sees_that_a_run_has_failed(audited: Served, tmp_path: Path) -> None:
    audited.control.state_of["audit"] = JobState.FAILED
    done = dag(audited, tmp_path)
    said = done.stdout + done.stderr
    assert len(started(audited)) == 1
    assert "is FAILED" in said
    assert "state=failed" in said


def dolphin(served: Served, task: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    """Do what DolphinScheduler does with an HTTP task; tell whether it takes it for a success."""
    given = task["taskParams"]

    def filled(text: str) -> str:
        for name, value in values.items():
            text = text.replace(f"${{{name}}}", value)
        assert "${" not in text
        return text

    headers = {each["prop"]: filled(each["value"]) for each in given["httpParams"]}
    assert headers["Authorization"] == f"Bearer {served.address.token}"
    path = filled(given["url"]).removeprefix("http://127.0.0.1:8998")
    body = given.get("httpBody")
    reply = served.ask(given["httpMethod"], path, None if body is None else filled(body).encode(), headers=headers)
    if given["httpCheckCondition"] == "STATUS_CODE_CUSTOM":
        return reply.status == int(given["condition"])
    assert given["httpCheckCondition"] == "BODY_CONTAINS"
    return given["condition"] in reply.body.decode()


def test_dolphinscheduler(audited: Served) -> None:
    """Its calls: one starts the run, the other is repeated until the run has succeeded."""
    start, wait = json.loads((EXAMPLES / "dolphinscheduler.json").read_text())
    values = {"lower": "20261121T000000Z", "upper": "20261121T010000Z", "jobpipe_token": audited.address.token}
    assert not dolphin(audited, wait, values)
    audited.control.state_of["audit"] = JobState.RUNNING
    assert dolphin(audited, start, values)
    assert not dolphin(audited, wait, values)
    audited.control.run_views |= {
        name: replace(each, state=JobState.FINISHED) for name, each in audited.control.run_views.items()
    }
    assert dolphin(audited, wait, values)
    assert started(audited) == [("20261121T000000Z", "20261121T010000Z")]
    for each in (start, wait):
        assert {param["prop"]: param["value"] for param in each["taskParams"]["localParams"]} == {
            "lower": "$[yyyyMMdd-1/24]T$[HH-1/24]0000Z",
            "upper": "$[yyyyMMdd]T$[HH]0000Z",
        }


def test_the_units_of_systemd() -> None:
    """The timer is of the service, which runs a command that there is."""
    service, timer = (configparser.ConfigParser(strict=False) for _ in range(2))
    for unit, name in ((service, "flights-audit.service"), (timer, "flights-audit.timer")):
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read(EXAMPLES / name)
    program, *words, of = service["Service"]["ExecStart"].split()
    assert (Path(program).name, of) == ("jobpipe", "flights/audit")
    assert " ".join(words) in paths(click.Context(cli))
    assert service["Service"]["Type"] == "oneshot"
    assert timer["Timer"]["Persistent"] == "true"


@pytest.mark.processes
def test_systemd_itself_accepts_the_units(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    for name in ("flights-audit.service", "flights-audit.timer"):
        text = (EXAMPLES / name).read_text().replace("/opt/jobpipe/venv/bin/jobpipe", "/bin/true")
        (tmp_path / name).write_text(text.replace("User=jobpipe\n", ""))
    checked = subprocess.run(
        [program, "verify", str(tmp_path / "flights-audit.timer")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
