"""How an attempt begins and ends, without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from pyspark import SparkContext

from jobpipe.config import load
from jobpipe.config.reading.located_values import plain
from jobpipe.jobs.runner import spark_submit_entry
from jobpipe.jobs.runner.attempt import _confirm_outcome
from jobpipe.jobs.workloads.application_workload import ApplicationWorkload
from jobpipe.jobs.workloads.progress_reports import read_report
from jobpipe.jobs.workloads.spark_session import session_keys
from jobpipe.jobs.workloads.stop_request import StopRequest
from jobpipe.jobs.workloads.workload import WorkloadOutcome
from jobpipe.pipelines.loading.snapshot import Snapshot
from jobpipe.pipelines.model.job_states import MISCONFIGURED, REPLACED
from jobpipe.spark.session.job_session import SHUFFLE_PARTITIONS
from tests.pipelines.conftest import Write, loaded
from tests.pipelines.waiting import DEADLINE, eventually

FILE = """
pipeline:
  name: flights
  configuration: {KEY: "env:JOBPIPE_TEST_SECRET"}
jobs:
  report:
    source: {type: rate}
    sink: {type: console}
"""


@pytest.mark.slow
@pytest.mark.processes
def test_what_cannot_begin_says_so(write: Write, tmp_path: Path) -> None:
    pipeline = loaded(write(FILE.replace("KEY", "spark.hadoop.fs.s3a.secret.key")))
    snapshot = Snapshot(
        file=pipeline.file,
        folder=pipeline.folder,
        tree=plain(pipeline.tree),
        job="report",
        run="r1",
        attempt=1,
        storage=str(tmp_path / "state"),
        stop_seconds=DEADLINE,
        report=tmp_path / "report.json",
    )
    snapshot.write(tmp_path / "snapshot.json")
    command = [sys.executable, "-m", "jobpipe.jobs.runner", str(tmp_path / "snapshot.json")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert ran.returncode == MISCONFIGURED
    told = read_report(tmp_path / "report.json")  # V14
    assert told is not None
    assert (told.exit_code, told.error[:12]) == (MISCONFIGURED, "ConfigError:")
    assert "ConfigError: the environment has no JOBPIPE_TEST_SECRET" in ran.stderr
    missing = subprocess.run([*command[:-1], str(tmp_path / "none.json")], capture_output=True, timeout=DEADLINE)
    assert missing.returncode == MISCONFIGURED


def test_secrets_of_jobpipe_stay_references(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration refuses them in clear, and reveals them where they are used."""
    monkeypatch.setenv("JOBPIPE_TEST_SECRET", "canary")
    for key, seen in (
        ("spark.jobpipe.ssl.key.password", "env:JOBPIPE_TEST_SECRET"),
        ("spark.hadoop.fs.s3a.secret.key", "canary"),
    ):
        pipeline = loaded(write(FILE.replace("KEY", key)))
        assert session_keys(pipeline, pipeline.jobs["report"], "file:///state")[key] == seen


def test_a_publisher_without_room_does_not_fail(write: Write) -> None:
    pipeline = loaded(write(FILE.replace("KEY: ", "spark.app.note: ")))
    keys = session_keys(pipeline, pipeline.jobs["report"], "file:///state")
    assert load(spark={key: value for key, value in keys.items() if "jobpipe" in key}).acks_timeout > 365 * 86_400


def test_shuffles_of_a_local_master(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many partitions as cores, in place of Spark's 200, unless the file or Spark's defaults say otherwise."""
    for key, partitions in (("spark.app.note", str(len(os.sched_getaffinity(0)))), (SHUFFLE_PARTITIONS, "7")):
        pipeline = loaded(write(FILE.replace('KEY: "env:JOBPIPE_TEST_SECRET"', f"{key}: 7")))
        assert session_keys(pipeline, pipeline.jobs["report"], "file:///state")[SHUFFLE_PARTITIONS] == partitions
    (tmp_path / "spark-defaults.conf").write_text(f"{SHUFFLE_PARTITIONS} 64\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    pipeline = loaded(write(FILE.replace('KEY: "env:JOBPIPE_TEST_SECRET"', "spark.app.note: 7")))
    assert SHUFFLE_PARTITIONS not in session_keys(pipeline, pipeline.jobs["report"], "file:///state")


@pytest.mark.processes
def test_a_stop_without_a_jvm_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What watches the JVM asks this process to stop when it is gone."""
    stopped = WorkloadOutcome(stopped=True, batches=3, rows=40)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as jvm:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=jvm))
        assert _confirm_outcome(stopped) == stopped
        jvm.kill()
        jvm.wait(DEADLINE)
        told = _confirm_outcome(stopped)
        assert (told.error, told.stopped, told.batches, told.rows) == ("JvmGone", False, 3, 40)
        assert _confirm_outcome(WorkloadOutcome()) == WorkloadOutcome()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kept", ["nothing reads it", "it is closed"])
def test_an_attempt_that_was_replaced_ends_without_its_log(kept: str) -> None:
    """And what it has started ends first."""
    program = (
        "import os, subprocess, sys\n"
        "from jobpipe.jobs.workloads.progress_reports import Reporter\n"
        "from jobpipe.jobs.runner.attempt import _exit_replaced\n"
        "child = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
        "_exit_replaced('another attempt has begun', Reporter(None))\n"
    )
    read, write = os.pipe()
    if kept == "nothing reads it":
        os.set_blocking(write, False)
        while True:
            try:
                os.write(write, b"x" * 4096)
            except BlockingIOError:
                break
        os.set_blocking(write, True)
    else:
        os.close(read)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=write,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.stdin.close()
        assert process.wait(DEADLINE) == REPLACED
        os.close(write)
        if kept == "nothing reads it":
            os.close(read)
    eventually(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        ("", ""),
        ("raise SystemExit(143)", "SystemExit"),
        ("raise KeyboardInterrupt", "SystemExit"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_program_that_nobody_stopped(tmp_path: Path, ending: str, error: str) -> None:
    (tmp_path / "own.py").write_text(ending)
    before = signal.getsignal(signal.SIGTERM)
    done = ApplicationWorkload(tmp_path / "own.py", []).run(StopRequest(DEADLINE))
    assert (done.error, done.stopped) == (error, False)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_program_that_was_stopped(tmp_path: Path) -> None:
    stop = StopRequest(DEADLINE)
    (tmp_path / "own.py").write_text("import time; time.sleep(600)")
    stop.ask("a stop was ordered")
    assert ApplicationWorkload(tmp_path / "own.py", []).run(stop) == WorkloadOutcome(stopped=True)


@pytest.mark.processes
def test_a_driver_ends_with_the_jvm_that_started_it(tmp_path: Path) -> None:
    """And what it has started ends, too: a cluster cancels the JVM alone."""
    program = (
        "import subprocess, threading\n"
        "from jobpipe.jobs.runner.attempt import _exit_now\n"
        "from jobpipe.jobs.runner.driver_jvm import DriverJvm\n"
        "DriverJvm().watch(_exit_now)\n"
        "print(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
        "threading.Event().wait()\n"
    )
    starter = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    with subprocess.Popen([sys.executable, "-c", starter, program], stdout=subprocess.PIPE) as jvm:
        assert jvm.stdout is not None
        started = psutil.Process(int(jvm.stdout.readline()))
        python = started.parent()
        assert python is not None
        assert python.ppid() == jvm.pid
        assert os.getsid(started.pid) == python.pid
        jvm.kill()
        for process in (python, started):
            eventually(lambda process=process: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.processes
def test_a_replaced_driver_takes_its_jvm_along() -> None:
    program = (
        "from jobpipe.jobs.workloads.progress_reports import Reporter\n"
        "from jobpipe.jobs.runner.attempt import _exit_replaced\n"
        "from jobpipe.jobs.runner.driver_jvm import DriverJvm\n"
        "_exit_replaced('another attempt has begun', Reporter(None), DriverJvm())\n"
    )
    starter = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]]); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", starter, program], stdin=subprocess.PIPE) as jvm:
        assert jvm.wait(DEADLINE) == -signal.SIGKILL


@pytest.mark.processes
def test_the_program_for_spark_submit(tmp_path: Path) -> None:
    """It is run by its path, from anywhere."""
    ran = subprocess.run(
        [sys.executable, spark_submit_entry.__file__, "snapshot:no"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert ran.returncode == MISCONFIGURED
    assert "is not a snapshot of an attempt" in ran.stderr
