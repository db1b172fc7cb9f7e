"""Launchers of clusters: spark-rest against a master that the tests play, spark-submit with programs of the tests."""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from jobpipe.errors import ConfigError, JobpipeError, LauncherUnavailable, NotAuthorized
from jobpipe.jobs.launchers import cluster_driver, spark_rest_client, spark_rest_launcher, spark_submit_launcher
from jobpipe.jobs.launchers.spark_rest_launcher import SparkRestLauncher
from jobpipe.jobs.launchers.spark_submit_launcher import POD_PHASES, YARN_STATES, SparkSubmitLauncher
from jobpipe.jobs.runner import spark_submit_entry
from jobpipe.pipelines.file.field_types import FOLDER
from jobpipe.pipelines.loading.snapshot import Snapshot
from jobpipe.pipelines.plugins.api import Attempt, LaunchState, LaunchStatus
from tests.docs.troubleshooting import on_page
from tests.pipelines.launchers.masters import Master, created, status

CANARY = "canary-7f3a"
RUNNING, ENDED, UNKNOWN = LaunchState.RUNNING, LaunchState.ENDED, LaunchState.UNKNOWN


@pytest.fixture
def master() -> Iterator[Master]:
    with Master() as found:
        yield found


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    snapshot = Snapshot(
        file=tmp_path / "pipeline.yaml",
        folder=tmp_path,
        tree={"pipeline": {"name": "flights"}, "jobs": {"report": {"more": "ä" * 100}}},
        job="report",
        run="r1",
        attempt=7,
        storage="s3a://bucket/report",
        stop_seconds=60.0,
    )
    snapshot.write(tmp_path / "snapshot.json")
    return Attempt(
        pipeline="flights",
        job="report",
        run="r1",
        number=7,
        snapshot=tmp_path / "snapshot.json",
        log=tmp_path / "logs" / "report.log",
        folder=tmp_path,
        environment={},
        configuration={
            "spark.driver.memory": "700m",
            "spark.cores.max": "2",
            "spark.master": "local[1]",
            "spark.driver.supervise": "true",
            "spark.hadoop.fs.s3a.secret.key": "env:S3_SECRET",
            "spark.ssl.trustStore": "enc:" + "x" * 60,
            "spark.jobpipe.spool.dir": "/shared",
        },
    )


def launcher(url: str, **options: Any) -> SparkRestLauncher:
    given = {"url": url, "master": "spark://127.0.0.1:7077", **options}
    return SparkRestLauncher(SparkRestLauncher.parse(given, Path.cwd()))


def at(master: Master, identity: str = "driver-1") -> str:
    return f"{master.url}/v1/submissions/status/{identity}"


# -- what is submitted -------------------------------------------------------------------------------------------------


def test_a_submission_is_all_that_a_driver_elsewhere_needs(master: Master, attempt: Attempt) -> None:
    master.answers = [created("driver-20261124-0001")]
    found = launcher(master.url, python="/opt/venv/bin/python", environment={"JOBPIPE_CONFIG": "/etc/own.yaml"})
    assert found.submit(attempt) == at(master, "driver-20261124-0001")
    (asked,) = master.asked
    assert (asked.method, asked.path, asked.token) == ("POST", "/v1/submissions/create", None)
    body = asked.body
    assert (body["action"], body["appResource"]) == ("CreateSubmissionRequest", "")
    assert body["mainClass"] == "org.apache.spark.deploy.SparkSubmit"
    assert body["sparkProperties"] == {
        "spark.app.name": "flights.report",
        "spark.driver.memory": "700m",
        "spark.driver.supervise": "false",
        "spark.master": "spark://127.0.0.1:7077",
    }
    python = "/opt/venv/bin/python"
    assert body["environmentVariables"] == {
        **attempt.variables,
        "JOBPIPE_CONFIG": "/etc/own.yaml",
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
    }
    *before, snapshot = body["appArgs"]
    assert before == [
        *("--master", "spark://127.0.0.1:7077", "--name", "flights.report"),
        *("--conf", "spark.driver.memory=700m", "--conf", "spark.cores.max=2"),
        *("--class", "org.apache.spark.deploy.PythonRunner", "spark-internal", "-m", "", "jobpipe.jobs.runner"),
    ]
    assert Snapshot.from_argument(snapshot) == Snapshot.read(attempt.snapshot)


def test_a_snapshot_is_too_large_for_an_argument(master: Master, attempt: Attempt, tmp_path: Path) -> None:
    large = Snapshot.read(attempt.snapshot).model_copy(
        update={"tree": {"x": base64.b64encode(os.urandom(cluster_driver.MOST_BYTES)).decode()}}
    )
    large.write(attempt.snapshot)
    with pytest.raises(ConfigError, match="flights is too large for a launcher of a cluster") as told:
        launcher(master.url).submit(attempt)
    on_page(told.value, "ConfigError: pipeline … is too large")
    assert master.asked == []


def test_an_argument_that_was_damaged() -> None:
    for text in ("snapshot:", "snapshot:AAAA", "snapshot:ä", "snapshot:" + base64.b64encode(b"x" * 99).decode()):
        assert Snapshot.is_argument(text)
        with pytest.raises(ConfigError, match="is not a snapshot of an attempt"):
            Snapshot.from_argument(text)


# -- the states --------------------------------------------------------------------------------------------------------

TABLE = [
    ("SUBMITTED", {}, RUNNING, None, "waits for a worker"),
    ("RUNNING", {"workerHostPort": "10.0.0.3:4711"}, RUNNING, None, "its log is on worker 10.0.0.3:4711"),
    ("RELAUNCHING", {}, RUNNING, None, ""),
    ("FINISHED", {}, ENDED, 0, ""),
    ("FAILED", {"workerHostPort": "10.0.0.3:4711"}, ENDED, None, "its log is on worker 10.0.0.3:4711"),
    ("KILLED", {}, ENDED, None, ""),
    ("ERROR", {"message": "Exception from the cluster:\njava.io.IOException: no\n\tat x"}, ENDED, None, "IOException"),
    ("ERROR", {}, UNKNOWN, None, "lost the worker"),
    ("UNKNOWN", {}, UNKNOWN, None, "not heard of it"),
    (None, {"success": False}, UNKNOWN, None, "does not know it"),
    (None, {"success": False, "message": "Can only request driver status in ALIVE state."}, UNKNOWN, None, "ALIVE"),
    ("NEWSTATE", {}, UNKNOWN, None, "NEWSTATE"),
    (4711, {}, UNKNOWN, None, "does not know it"),
    ("FINISHED", {"success": False}, UNKNOWN, None, "does not know it"),
    ("FINISHED", {"success": "true"}, UNKNOWN, None, "as the protocol says"),
    ("FINISHED", {"identity": "driver-2"}, UNKNOWN, None, "as the protocol says"),
]


@pytest.mark.parametrize(("state", "more", "expected", "code", "detail"), TABLE)
def test_what_a_state_means(
    master: Master, state: Any, more: dict[str, Any], expected: LaunchState, code: int | None, detail: str
) -> None:
    master.answers = [status(state, **more)]
    found = launcher(master.url).status(at(master))
    assert (found.state, found.exit_code) == (expected, code)
    assert detail in found.detail
    assert master.asked[0].path == "/v1/submissions/status/driver-1"


def test_every_state_is_in_the_table() -> None:
    assert set(spark_rest_launcher.STATES) == {state or "" for state, *_ in TABLE if isinstance(state, str | None)} - {
        "NEWSTATE"
    }


# -- a master that is ill ----------------------------------------------------------------------------------------------


def cut(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")


def huge(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(64):
        connection.sendall(b" " * 65536)


def headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n")


ILL: dict[str, Any] = {
    "cut": cut,
    "huge": huge,
    "headers": headers,
    "at once": lambda connection: None,
    "no HTTP": lambda connection: connection.sendall(b"\x00\x00\x00\x15spark\r\n\r\n"),
    "page": (200, b"<html>Spark Master</html>"),
    "moved": (302, b""),
    "deep": (200, b"[" * 500_000),
    "list": (200, b"[]"),
    "failed": (500, b'{"message": "java.util.concurrent.TimeoutException"}'),
    "no id": created(None),
    "odd id": created("../../kill/driver-2"),
    "no success": created("driver-1", success="yes"),
}


@pytest.mark.parametrize("how", ILL)
def test_an_answer_that_is_none_may_hide_a_driver(master: Master, attempt: Attempt, how: str) -> None:
    """So another attempt is ordered in its place; and of a driver nothing is known."""
    master.answers = [ILL[how]]
    with pytest.raises(LauncherUnavailable) as told:
        launcher(master.url).submit(attempt)
    assert told.value.perhaps_started
    assert launcher(master.url).status(at(master)).state is UNKNOWN


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hang", "drip"])
def test_a_deadline_is_for_the_whole_call(
    master: Master, attempt: Attempt, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_rest_client, "SUBMIT_SECONDS", 0.4)
    monkeypatch.setattr(spark_rest_client, "STATUS_SECONDS", 0.4)
    master.answers = [getattr(master, how)]
    began = time.monotonic()
    with pytest.raises(LauncherUnavailable, match="timed out") as told:
        launcher(master.url).submit(attempt)
    assert told.value.perhaps_started
    assert launcher(master.url).status(at(master)).state is UNKNOWN
    assert time.monotonic() - began < 20.0


def test_nobody_answers(attempt: Attempt) -> None:
    """Then no driver was started, and the same attempt may be submitted again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(LauncherUnavailable, match="does not answer") as told:
        launcher(url).submit(attempt)
    on_page(told.value, "LauncherUnavailable: ")
    assert not told.value.perhaps_started
    found = launcher(url).status(f"{url}/v1/submissions/status/driver-1")
    assert (found.state, "does not answer" in found.detail) == (UNKNOWN, True)
    with pytest.raises(LauncherUnavailable):
        launcher(url).cancel(f"{url}/v1/submissions/status/driver-1")


def test_a_master_that_stands_by(master: Master, attempt: Attempt) -> None:
    master.answers = [created(None, success=False, message="Current state is not alive: STANDBY.\nmore")]
    with pytest.raises(LauncherUnavailable, match=r"takes no jobs now: .*STANDBY") as told:
        launcher(master.url).submit(attempt)
    assert not told.value.perhaps_started


def test_a_request_that_is_refused(master: Master, attempt: Attempt) -> None:
    master.answers = [(400, b'{"action": "ErrorResponse", "message": "Malformed request: x\\n\\tat y"}')]
    with pytest.raises(ConfigError, match="refuses the request: 'Malformed request: x'"):
        launcher(master.url).submit(attempt)


# -- the token ---------------------------------------------------------------------------------------------------------


def token(tmp_path: Path, text: str = CANARY) -> str:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(text)
    return f"file:{path}"


@pytest.mark.parametrize("code", [401, 403])
def test_a_token_that_is_refused(master: Master, attempt: Attempt, tmp_path: Path, code: int) -> None:
    master.answers = [(code, b"<html>JWT Validate Fail</html>")]
    with pytest.raises(NotAuthorized, match="refuses the token") as told:
        launcher(master.url, token=token(tmp_path)).submit(attempt)
    on_page(told.value, "NotAuthorized: the master")
    assert CANARY not in str(told.value)
    found = launcher(master.url).status(at(master))
    assert (found.state, "wants a token" in found.detail) == (UNKNOWN, True)


def test_a_token_goes_to_its_master_alone(
    master: Master, attempt: Attempt, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    found = launcher(master.url, token=token(tmp_path))
    master.answers = [created(), status("FINISHED")]
    launched = found.submit(attempt)
    assert found.status(launched).state is ENDED
    assert [asked.token for asked in master.asked] == [f"Bearer {CANARY}"] * 2
    assert CANARY not in json.dumps([asked.body for asked in master.asked]) + launched + caplog.text
    assert CANARY not in repr(found.options)
    with Master([status("RUNNING")]) as other:
        assert found.status(at(other)).state is RUNNING
        assert other.asked[0].token is None


@pytest.mark.parametrize("text", [f"{CANARY}\r\nX: y", f"{CANARY} two", f"{CANARY}ä", ""])
def test_a_token_that_is_no_word(master: Master, attempt: Attempt, tmp_path: Path, text: str) -> None:
    found = launcher(master.url, token=token(tmp_path, text))
    with pytest.raises(ConfigError) as told:
        found.submit(attempt)
    assert CANARY not in str(told.value)
    assert found.status(at(master)).state is UNKNOWN
    assert master.asked == []


# -- ids and canceling -------------------------------------------------------------------------------------------------


def test_canceling_waits_for_the_end(master: Master) -> None:
    master.answers = [(200, b'{"action": "KillSubmissionResponse", "success": true}'), status("RUNNING")]
    master.answers += [status("RUNNING"), status("KILLED")]
    launcher(master.url).cancel(at(master))
    assert [(asked.method, asked.path.split("/")[3]) for asked in master.asked] == [
        ("POST", "kill"),
        *[("GET", "status")] * 3,
    ]


@pytest.mark.parametrize(
    "launched",
    ["", "driver-1", "http://h:1/v1/submissions/status/", "http://h:1/v1/submissions/status/../kill/x", "file:///x"],
)
def test_garbage_is_no_id(launched: str) -> None:
    for question in (launcher("http://h:1").status, launcher("http://h:1").cancel):
        with pytest.raises(ConfigError, match="not an id of launcher spark-rest"):
            question(launched)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("url", "spark://h:7077"),
        ("url", "http://h:6066/v1"),
        ("url", "http://user:x@h:6066"),
        ("url", "http://h:66666"),
        ("url", "http://h\r\nX:1"),
        ("url", 6066),
        ("master", "http://h:7077"),
        ("master", "local[2]"),
        ("environment", {"MY_PASSWORD": "abc"}),
        ("more", 1),
    ],
)
def test_wrong_options(key: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        launcher("http://h:6066", **{key: value}) if key != "url" else launcher(value)


# -- spark-submit ------------------------------------------------------------------------------------------------------


def program(folder: Path, name: str, text: str) -> str:
    """Write a program that keeps its arguments, one a line."""
    path = folder / name
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/{name}.arguments\n{text}\n')
    path.chmod(0o700)
    return str(path)


def arguments(folder: Path, name: str) -> list[str]:
    return (folder / f"{name}.arguments").read_text().splitlines()


def submitter(tmp_path: Path, text: str, *, on: str = "yarn", **options: Any) -> SparkSubmitLauncher:
    given = {"master": on, "spark-submit": program(tmp_path, "spark-submit", text), **options}
    return SparkSubmitLauncher(SparkSubmitLauncher.parse(given, tmp_path))


YARN_SAYS = "echo INFO Client: Submitted application application_1700000000000_0042 >&2"
POD_SAYS = (
    "echo 'INFO Deployed Spark application flights.report with application ID spark-1 and submission ID "
    "prod:flights-report-7-driver into Kubernetes'"
)


@pytest.mark.processes
def test_yarn_form(tmp_path: Path, attempt: Attempt) -> None:
    found = submitter(tmp_path, YARN_SAYS, python="/opt/python", arguments=["--queue", "night"])
    assert found.submit(attempt) == "yarn/application_1700000000000_0042"
    *given, snapshot = arguments(tmp_path, "spark-submit")
    assert given == [
        *("--master", "yarn", "--deploy-mode", "cluster", "--name", "flights.report"),
        *("--conf", "spark.driver.memory=700m", "--conf", "spark.cores.max=2", "--queue", "night"),
        *("--conf", "spark.yarn.submit.waitAppCompletion=false", "--conf", "spark.yarn.maxAppAttempts=1"),
        *("--conf", "spark.yarn.appMasterEnv.JOBPIPE_PIPELINE=flights"),
        *("--conf", "spark.yarn.appMasterEnv.JOBPIPE_JOB=report"),
        *("--conf", f"spark.yarn.appMasterEnv.JOBPIPE_RUN={attempt.run}"),
        *("--conf", "spark.yarn.appMasterEnv.PYSPARK_PYTHON=/opt/python", "--conf", "spark.pyspark.python=/opt/python"),
        spark_submit_entry.__file__,
    ]
    assert Snapshot.from_argument(snapshot) == Snapshot.read(attempt.snapshot)
    assert "application_1700000000000_0042" in attempt.log.read_text()
    assert stat.S_IMODE(attempt.log.stat().st_mode) == 0o600


@pytest.mark.processes
def test_kubernetes_form(tmp_path: Path, attempt: Attempt) -> None:
    where = "local:///opt/jobpipe/submitted.py"
    found = submitter(tmp_path, POD_SAYS, on="k8s://https://api:443", python="/opt/python", program=where)
    launched = found.submit(attempt)
    assert launched == "k8s/prod:flights-report-7-driver"
    *given, _ = arguments(tmp_path, "spark-submit")
    assert given[:4] == ["--master", "k8s://https://api:443", "--deploy-mode", "cluster"]
    assert given[-1] == where
    assert "spark.kubernetes.submission.waitAppCompletion=false" in given
    assert "spark.kubernetes.driverEnv.PYSPARK_PYTHON=/opt/python" in given
    assert "spark.kubernetes.driverEnv.JOBPIPE_JOB=report" in given
    for phase, state in {**POD_PHASES, "Unknown": UNKNOWN}.items():
        program(tmp_path, "spark-submit", f"echo 'Application status (driver):'; printf '\\t phase: {phase}\\n'")
        assert found.status(launched).state is state
    assert arguments(tmp_path, "spark-submit") == [
        *("--master", "k8s://https://api:443"),
        *("--status", "prod:flights-report-7-driver"),
    ]
    found.cancel(launched)
    assert arguments(tmp_path, "spark-submit")[2:] == ["--kill", "prod:flights-report-7-driver"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        *[(f"State : {state}", (expected, None)) for state, expected in YARN_STATES.items()],
        ("State : FINISHED\n\tFinal-State : SUCCEEDED", (ENDED, 0)),
        ("State : FINISHED\n\tFinal-State : FAILED", (ENDED, None)),
        ("Application with id 'application_1_2' doesn't exist in RM or Timeline Server.", (UNKNOWN, None)),
        ("", (UNKNOWN, None)),
    ],
)
def test_what_yarn_says(tmp_path: Path, said: str, expected: tuple[LaunchState, int | None]) -> None:
    yarn = program(tmp_path, "yarn", f"cat <<'END'\nApplication Report :\n\t{said}\nEND")
    found = submitter(tmp_path, "", yarn=yarn).status("yarn/application_1_2")
    assert (found.state, found.exit_code) == expected
    assert arguments(tmp_path, "yarn") == ["application", "-status", "application_1_2"]


@pytest.mark.processes
def test_yarn_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = submitter(tmp_path, "", yarn=str(tmp_path / "none"))
    assert found.status("yarn/application_1_2").state is UNKNOWN
    with pytest.raises(OSError, match="none"):
        found.cancel("yarn/application_1_2")
    slow = submitter(tmp_path, "", yarn=program(tmp_path, "yarn", "sleep 600 & wait"))
    monkeypatch.setattr(spark_submit_launcher, "STATUS_SECONDS", 0.3)
    assert slow.status("yarn/application_1_2").state is UNKNOWN
    with pytest.raises(LauncherUnavailable):
        slow.cancel("yarn/application_1_2")


@pytest.mark.processes
def test_yarn_kills(tmp_path: Path) -> None:
    submitter(tmp_path, "", yarn=program(tmp_path, "yarn", "")).cancel("yarn/application_1_2")
    assert arguments(tmp_path, "yarn") == ["application", "-kill", "application_1_2"]


@pytest.mark.processes
def test_a_submission_that_fails(tmp_path: Path, attempt: Attempt) -> None:
    with pytest.raises(OSError, match="spark-submit ended with code 3") as told:
        submitter(tmp_path, "echo no queue; exit 3").submit(attempt)
    on_page(told.value, "OSError: spark-submit ended")
    assert attempt.log.read_text() == "no queue\n"
    with pytest.raises(FileNotFoundError):
        SparkSubmitLauncher(
            SparkSubmitLauncher.parse({"master": "yarn", "spark-submit": str(tmp_path / "none")}, tmp_path)
        ).submit(attempt)


@pytest.mark.processes
def test_a_submission_that_takes_too_long(tmp_path: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have reached the cluster."""
    monkeypatch.setattr(spark_submit_launcher, "SUBMIT_SECONDS", 0.3)
    with pytest.raises(LauncherUnavailable) as told:
        submitter(tmp_path, "sleep 600 & wait").submit(attempt)
    assert told.value.perhaps_started


@pytest.mark.processes
def test_an_application_that_is_not_named(tmp_path: Path, attempt: Attempt) -> None:
    found = submitter(tmp_path, "echo done")
    launched = found.submit(attempt)
    assert found.status(launched) == LaunchStatus(UNKNOWN, None, "spark-submit has not said which application it is")
    with pytest.raises(JobpipeError):
        found.cancel(launched)


@pytest.mark.processes
def test_of_what_a_program_prints_the_end_is_kept(
    tmp_path: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_submit_launcher, "MOST_BYTES", 1000)
    submitter(tmp_path, f"yes x | head -c 200000; {YARN_SAYS}").submit(attempt)
    assert len(attempt.log.read_bytes()) == 1000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("arguments", ["--conf", f"spark.hadoop.fs.s3a.secret.key={CANARY}"]),
        ("arguments", [f"--conf=spark.ssl.keyPassword={CANARY}"]),
        ("master", "spark://h:7077"),
        ("master", "local"),
    ],
)
def test_wrong_options_of_spark_submit(key: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        SparkSubmitLauncher.Options.model_validate({"master": "yarn", key: value}, context={FOLDER: Path.cwd()})


@pytest.mark.parametrize("launched", ["", "yarn", "yarn/", "k8s/a b", "other/x"])
def test_garbage_is_no_id_of_spark_submit(tmp_path: Path, launched: str) -> None:
    for question in (submitter(tmp_path, "").status, submitter(tmp_path, "").cancel):
        with pytest.raises(ConfigError, match="not an id of launcher spark-submit"):
            question(launched)
