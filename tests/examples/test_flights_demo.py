"""``make demo``: its private folder, what it ends, and the whole of it, with a stand-in for the jobs and for real."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from jobpipe.config import load as load_config
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper
from tests.examples.programs import EXAMPLES, load

FLIGHTS = EXAMPLES / "flights"
READY_SECONDS = 60.0
# SIGTERM does not end it, nor what it has started in a session of its own.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
print(subprocess.Popen(sleep, start_new_session=True, stdout=subprocess.DEVNULL).pid, flush=True)
time.sleep(600)
"""
# The demo with a stand-in for `jobpipe pipeline run`, and one fact, which is wrong.
DEMO = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import run
run.JOBPIPE = sys.argv.pop(1)
run.COORDINATOR_SECONDS = 1.0
run.page_address = lambda *_: "none"
run.all_facts = lambda *_: [run.Fact("a wrong one", 1, 2)]
sys.exit(run.main())
"""

demo = load(FLIGHTS / "run.py")


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A program that takes the place of ``jobpipe``; without code."""
    file = tmp_path / "stand-in"
    file.touch(mode=0o700)
    return file


def write(program: Path, code: str) -> None:
    program.write_text(f"#!{sys.executable}\n{code}")


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SystemExit, match=f"{tmp_path} is not empty"), demo.private_folder(tmp_path):
        pass
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_folder_of_an_earlier_demo_is_wiped(tmp_path: Path) -> None:
    work = tmp_path / "demo"
    with demo.private_folder(work):
        (work / "old").mkdir()
        (work / "old" / "file").touch()
        (work / "link").symlink_to(tmp_path)
    with demo.private_folder(work):
        assert {entry.name for entry in work.iterdir()} == {demo.LOCK, demo.CONFIG, "home"}
    assert tmp_path.is_dir()


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    with demo.private_folder(tmp_path):
        (tmp_path / "mine").touch()
        with pytest.raises(SystemExit, match="another demo is running"), demo.private_folder(tmp_path):
            pass
        assert (tmp_path / "mine").exists()


@pytest.mark.processes
def test_jobs_see_this_demo_and_no_other_settings(
    tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = {"JOBPIPE__HOME": "/elsewhere", "jobpipe__acks": "all", "JOBPIPE_CONFIG": "/other", "SPARK_HOME": "/opt"}
    for name, value in foreign.items():
        monkeypatch.setenv(name, value)
    write(stand_in, "import json, os, sys; json.dump([sys.argv, dict(os.environ)], open('told', 'w')); sys.exit(3)")
    monkeypatch.setattr(demo, "JOBPIPE", stand_in)
    monkeypatch.chdir(tmp_path)
    work = tmp_path / "work"
    with demo.private_folder(work):
        assert demo.run_jobs(work) == 3
    arguments, environ = json.loads((tmp_path / "told").read_text())
    assert not foreign.keys() & environ.keys()
    config = load_config(Path(arguments[arguments.index("--config") + 1]), environ=environ)
    assert (config.home, config.embedded, config.acks) == (work / "home", True, "stored")


@contextmanager
def left_running(work: Path) -> Iterator[list[psutil.Process]]:
    """Yield two processes of a demo that do not end by SIGTERM."""
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, demo.MARK: str(work)},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        started = [psutil.Process(process.pid), psutil.Process(int(process.stdout.readline()))]
        try:
            deadline = time.monotonic() + READY_SECONDS
            while {*demo.running(work)} != {*started}:  # until they are executed
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield started
        finally:
            demo.end([each for each in started if each.is_running()])


@pytest.mark.slow
@pytest.mark.processes
def test_what_a_killed_demo_left_running_is_ended_by_the_next_one(tmp_path: Path) -> None:
    with demo.private_folder(tmp_path):
        pass
    with left_running(tmp_path) as started:
        assert demo.running(tmp_path / "another") == []
        with demo.private_folder(tmp_path):
            assert demo.running(tmp_path) == []
        assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in started)


def assert_nothing_is_left(work: Path) -> None:
    assert demo.running(work) == []
    assert EmbeddedZooKeeper(work / "home").status() is None


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.parametrize(
    ("end", "code", "told"),
    [
        ("os.kill(os.getppid(), signal.SIGINT); time.sleep(600)", 130, "interrupted"),
        ("os.kill(os.getppid(), signal.SIGTERM); time.sleep(600)", 130, "interrupted"),
        ("sys.exit(7)", 7, "the logs are in "),
        ("", 1, " NO "),
    ],
    ids=["Ctrl-C", "SIGTERM", "a job fails", "a fact is wrong"],
)
def test_all_that_was_started_ends(tmp_path: Path, stand_in: Path, end: str, code: int, told: str) -> None:
    """However the demo ends; the exit code tells how."""
    started = tmp_path / "started"
    stubborn = f"subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], stdout=open({str(started)!r}, 'w'))"
    waiting = f"while not os.path.getsize({str(started)!r}): time.sleep(0.01)"
    write(stand_in, f"import os, signal, subprocess, sys, time\n{stubborn}\n{waiting}\n{end}\n")
    command = [
        sys.executable,
        "-c",
        DEMO,
        str(FLIGHTS),
        str(stand_in),
        "--work",
        str(tmp_path / "work"),
        "--files",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, told in done.stdout) == (code, True), done.stdout + done.stderr
    assert done.stdout.startswith("Four Spark jobs pass 336,776 flights to each other, in 1 micro-batch")
    assert "facts hold" not in done.stdout
    assert_nothing_is_left(tmp_path / "work")


@pytest.mark.spark
@pytest.mark.zookeeper
@pytest.mark.timeout(400)
def test_the_demo(tmp_path: Path) -> None:
    work = tmp_path / "work"
    command = [sys.executable, str(FLIGHTS / "run.py"), "--work", str(work), "--files", "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for fact in ("336,776", "350,217,607", "8,255", "dead letters"):
        assert fact in done.stdout
    assert " NO " not in done.stdout
    assert f"All 15 facts hold. The report of the job `report` is {work / 'report.csv'}." in done.stdout
    assert re.search(
        r"in a browser: http://127\.0\.0\.1:\d+ \(.* server --sign-in prints how to sign in\)\n", done.stdout
    )
    assert (work / "report.csv").exists()
    assert_nothing_is_left(work)
