"""The demo's processes: started, watched and ended, with all that they started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from jobpipe.demo import jobs
from jobpipe.demo.jobs import MARK, Job, end_processes, marked_processes

READY_SECONDS = 30.0


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spark-submit that runs the script, the last argument but two, with Python."""
    program = tmp_path / "spark-submit"
    program.write_text(f'#!/bin/sh\nwhile [ $# -gt 3 ]; do shift; done\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(jobs, "spark_submit", lambda: program)
    return program


def start(work: Path, code: str) -> Job:
    script = work / "job.py"
    script.write_text(code)
    return Job(script, work, {**os.environ, MARK: str(work)})


def wait(job: Job) -> None:
    job._process.wait(READY_SECONDS)


def read_line(fifo: Path) -> str:
    """Return what the job says once it is ready; the test's own deadline bounds the wait."""
    with fifo.open() as pipe:
        return pipe.readline().strip()


@pytest.mark.usefixtures("submit")
def test_exit_code_and_log(tmp_path: Path) -> None:
    job = start(tmp_path, "import sys; print('to the log', sys.argv[1:]); sys.exit(3)")
    wait(job)
    assert job.exit_code == 3
    assert job.state == "failed (exit code 3)"
    assert job.tail() == [f"to the log ['--work', '{tmp_path}']"]


@pytest.mark.usefixtures("submit")
def test_tail_leaves_java_frames_out(tmp_path: Path) -> None:
    lines = ["first", "Caused by: it", "\tat org.apache.Spark(x.scala:1)", "\t... 22 more", "", "last"]
    job = start(tmp_path, f"print({chr(10).join(lines)!r})")
    wait(job)
    assert job.state.startswith("done")
    assert job.tail() == ["first", "Caused by: it", "last"]
    assert job.tail(1) == ["last"]


@pytest.mark.usefixtures("submit")
def test_stop_ends_the_group_and_the_mark_finds_the_rest(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleep)
detached = subprocess.Popen(sleep, start_new_session=True)
open({str(fifo)!r}, "w").write(f"{{child.pid}} {{detached.pid}}\\n")
time.sleep(600)
"""
    job = start(tmp_path, code)
    child, detached = (psutil.Process(int(pid)) for pid in read_line(fifo).split())
    try:
        assert {process.pid for process in marked_processes(tmp_path)} == {job._process.pid, child.pid, detached.pid}
        job.stop()
        assert job.exit_code == -9
        psutil.wait_procs([child], timeout=READY_SECONDS)  # killed with the group, and gone a moment later
        assert marked_processes(tmp_path) == [detached]
        end_processes([detached])
        assert marked_processes(tmp_path) == []
        job.stop()  # again: nothing to do
    finally:
        end_processes([process for process in (child, detached) if process.is_running()])
