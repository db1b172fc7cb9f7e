"""The demo's private folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from jobpipe.config import load
from jobpipe.demo.demo_folder import (
    CONFIG,
    HOME,
    LOCK,
    MARK,
    end_processes,
    job_environment,
    marked_processes,
    own_environment,
    private_folder,
)
from jobpipe.errors import ConfigError

READY_SECONDS = 60.0


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError) as refused, private_folder(tmp_path):
        pass
    assert refused.value.fields["folder"] == str(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_folder_of_an_earlier_demo_is_wiped(tmp_path: Path) -> None:
    work = tmp_path / "demo"
    with private_folder(work):
        (work / "old").mkdir()
        (work / "old" / "file").touch()
        (work / "link").symlink_to(tmp_path)
    with private_folder(work):
        assert {entry.name for entry in work.iterdir()} == {LOCK, CONFIG, HOME}
    assert tmp_path.is_dir()


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    with private_folder(tmp_path):
        (tmp_path / "mine").touch()
        with pytest.raises(ConfigError), private_folder(tmp_path):
            pass
        assert (tmp_path / "mine").exists()


def test_jobs_see_this_demo_and_no_other_settings(tmp_path: Path) -> None:
    foreign = {"JOBPIPE__HOME": "/elsewhere", "jobpipe__acks": "all", "JOBPIPE_CONFIG": "/other", "SPARK_HOME": "/opt"}
    here = {**foreign, "PATH": "/bin"}
    with private_folder(tmp_path):
        with own_environment(here):
            environ = {**here, **job_environment(tmp_path)}
        config = load(tmp_path / CONFIG, environ=environ)
    assert config.home == tmp_path / HOME
    assert config.embedded
    assert config.acks == "stored"
    assert environ[MARK] == str(tmp_path)
    assert environ["PATH"] == "/bin"
    assert not foreign.keys() & environ.keys()
    assert here == {**foreign, "PATH": "/bin"}  # as before


@contextmanager
def marked(work: Path) -> Iterator[list[psutil.Process]]:
    """Yield a process that SIGTERM does not end, and one that it has started in a session of its own."""
    code = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(sleep, start_new_session=True).pid, flush=True)
time.sleep(600)
"""
    environ = {**os.environ, **job_environment(work)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ, start_new_session=True) as process:
        assert process.stdout is not None
        started = [psutil.Process(process.pid), psutil.Process(int(process.stdout.readline()))]
        try:
            deadline = time.monotonic() + READY_SECONDS
            while {*marked_processes(work)} != {*started}:  # until they are executed
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield started
        finally:
            end_processes([each for each in started if each.is_running()])


@pytest.mark.slow
@pytest.mark.processes
def test_the_mark_finds_all_processes_and_they_end(tmp_path: Path) -> None:
    with marked(tmp_path) as started:
        assert marked_processes(tmp_path / "another") == []
        end_processes(marked_processes(tmp_path))
        assert marked_processes(tmp_path) == []
        assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in started)


@pytest.mark.slow
@pytest.mark.processes
def test_what_a_killed_demo_left_running_is_ended_by_the_next_one(tmp_path: Path) -> None:
    with private_folder(tmp_path):
        pass
    with marked(tmp_path), private_folder(tmp_path):
        assert marked_processes(tmp_path) == []
