"""The demo as a whole: with stand-ins for the jobs where it goes wrong, and for real."""

from __future__ import annotations

import io
import os
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from jobpipe.config import Config
from jobpipe.demo import demo_run, run_demo
from jobpipe.demo.demo_folder import HOME, marked_processes
from jobpipe.demo.demo_paths import PIPELINE, flights_examples
from jobpipe.jobs.foreground.foreground_jobs import JobView
from jobpipe.jobs.foreground.foreground_run import RunResult
from jobpipe.jobs.foreground.progress_display import open_display
from jobpipe.jobs.launchers import local_launcher
from jobpipe.jobs.monitor.topic_poller import SubscriptionView, TopicView
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.model.job_states import JobState
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper

JOBS = tuple(load_pipeline(flights_examples() / PIPELINE).jobs)
SLEEP = "import time; time.sleep(600)"
# In the place of the runner of an attempt: runs JOB.py of the pipeline's folder, without Spark and without a lease.
RUNNER = """
import json, runpy, sys
from pathlib import Path
runpy.run_path(json.loads(Path(sys.argv[1]).read_text())["job"] + ".py")
"""


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def text(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pipeline of the demo with stand-ins for its four jobs, which sleep."""
    folder = tmp_path / "examples"
    folder.mkdir()
    (folder / "prepare.py").touch()
    for name in (PIPELINE, "flights.ddl"):
        (folder / name).write_text((flights_examples() / name).read_text())
    for name in JOBS:
        (folder / f"{name}.py").write_text(SLEEP)
    (tmp_path / "stand_in").mkdir()
    (tmp_path / "stand_in" / "stand_in_runner.py").write_text(RUNNER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "stand_in"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(local_launcher, "RUNNER", "stand_in_runner")
    monkeypatch.setattr(demo_run, "flights_examples", lambda: folder)
    return folder


def assert_nothing_is_left(work: Path) -> None:
    assert marked_processes(work) == []
    assert EmbeddedZooKeeper(work / HOME).status() is None


@pytest.mark.slow
@pytest.mark.zookeeper
def test_a_job_that_fails_is_named_with_the_end_of_its_log(examples: Path, tmp_path: Path, console: Console) -> None:
    (examples / "delays.py").write_text("import sys; print('what went wrong'); sys.exit(3)")
    assert run_demo(tmp_path / "work", console=console) == 1
    shown = text(console)
    assert "job delays failed: its process ended with code 3" in shown
    assert "what went wrong" in shown
    assert str(tmp_path / "work" / HOME / "logs") in shown
    assert_nothing_is_left(tmp_path / "work")


def test_of_two_jobs_that_fail_the_first_is_to_blame(
    examples: Path, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes before it in the file may have failed of it."""
    views = [
        JobView(name, JobState.FAILED, 1, 1, seconds, f"{name} failed", 0, 0, tmp_path / f"{name}.log")
        for name, seconds in (("publish", 9.0), ("delays", 8.0))
    ]
    monkeypatch.setattr(demo_run, "run_pipeline", lambda *_, **__: RunResult(tuple(views), None, late=False, topics=()))
    with pytest.raises(Exception, match="job delays failed: delays failed"):
        demo_run._run_jobs(tmp_path, Config(), examples / PIPELINE, 0.0, console, plain=True)


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.usefixtures("examples")
def test_the_deadline_ends_it(tmp_path: Path, console: Console) -> None:
    assert run_demo(tmp_path / "work", timeout=5.0, console=console) == 1
    assert "did not end in time" in text(console)
    assert_nothing_is_left(tmp_path / "work")


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_an_interrupt_ends_all(examples: Path, tmp_path: Path, console: Console, signal: str) -> None:
    # The last job to start interrupts the demo, its parent.
    code = f"import os, signal; os.kill(os.getppid(), signal.{signal}); {SLEEP}"
    (examples / f"{JOBS[-1]}.py").write_text(code)
    assert run_demo(tmp_path / "work", console=console) == 130
    assert "interrupted" in text(console)
    assert_nothing_is_left(tmp_path / "work")


@pytest.mark.slow
@pytest.mark.zookeeper
def test_what_a_job_has_started_ends_too(examples: Path, tmp_path: Path, console: Console) -> None:
    """Also what is in a session of its own, and what does not end by SIGTERM."""
    (examples / f"{JOBS[-1]}.py").write_text(f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
children = [
    subprocess.Popen(sleep, start_new_session=alone, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for alone in (False, True)
]
open({str(tmp_path / "started")!r}, "w").write(f"{{os.getpid()}} {{children[0].pid}} {{children[1].pid}}")
os.kill(os.getppid(), signal.SIGINT)
time.sleep(600)
""")
    assert run_demo(tmp_path / "work", console=console) == 130
    assert not any(psutil.pid_exists(int(pid)) for pid in (tmp_path / "started").read_text().split())
    assert_nothing_is_left(tmp_path / "work")


def test_prepare_that_fails(examples: Path, tmp_path: Path, console: Console) -> None:
    (examples / "prepare.py").write_text("raise SystemExit('no room')")
    assert run_demo(tmp_path / "work", console=console) == 1
    assert "no room" in text(console)
    assert_nothing_is_left(tmp_path / "work")


def test_it_says_what_will_happen(tmp_path: Path, examples: Path, console: Console) -> None:
    (examples / "prepare.py").write_text("raise SystemExit('no room')")
    assert run_demo(tmp_path / "work", files=1, console=console) == 1
    assert "336,776 flights to each other, in 1 micro-batch. This takes two to three minutes" in text(console)
    assert "facts hold" not in text(console)


def test_boards_show_topics_and_lags(console: Console) -> None:
    line = SubscriptionView("audit", "connected", 3, 1234, 1)
    views = [TopicView("flights", "live", 5000, 100.0, 2e6, "disk full", (line,)), TopicView("delays")]
    for plain in (True, False):
        shown = Console(file=io.StringIO(), width=200, force_terminal=True)
        with open_display(shown, "demo", plain=plain) as board:
            board.show(views, [])
        for fact in ("flights", "5,000", "disk full", "audit", "1,234", "delays"):
            assert fact in text(shown)


@pytest.mark.spark
@pytest.mark.zookeeper
@pytest.mark.timeout(400)
def test_the_demo(tmp_path: Path, console: Console) -> None:
    assert run_demo(tmp_path / "work", files=12, timeout=360.0, console=console) == 0, text(console)
    shown = text(console)
    for fact in ("336,776", "350,217,607", "8,255", "dead letters"):
        assert fact in shown
    assert "NO" not in shown
    assert shown.startswith("Four Spark jobs pass 336,776 flights to each other, in 12 micro-batches. ")
    assert f"facts hold. The report of the job `report` is {tmp_path / 'work' / 'report.csv'}." in shown
    assert (tmp_path / "work" / "report.csv").exists()
    assert "jobpipe pipeline init" in shown
    assert_nothing_is_left(tmp_path / "work")
