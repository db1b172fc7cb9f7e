"""The demo as a whole: with stand-ins for the jobs where it goes wrong, and for real."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from jobpipe.demo import jobs, run, run_demo
from jobpipe.demo.board import open_board
from jobpipe.demo.folder import HOME
from jobpipe.demo.jobs import marked_processes
from jobpipe.demo.watch import SubscriptionView, TopicView
from registry.embedded import EmbeddedZooKeeper

SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def text(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for the four jobs, which sleep, and a spark-submit that runs them with Python."""
    folder = tmp_path / "examples"
    folder.mkdir()
    (folder / "prepare.py").touch()
    for name in run.JOBS:
        (folder / f"{name}.py").write_text(SLEEP)
    submit = tmp_path / "spark-submit"
    submit.write_text(f'#!/bin/sh\nwhile [ $# -gt 3 ]; do shift; done\nexec "{sys.executable}" "$@"\n')
    submit.chmod(0o755)
    monkeypatch.setattr(jobs, "spark_submit", lambda: submit)
    monkeypatch.setattr(run, "flights_examples", lambda: folder)
    return folder


def assert_nothing_is_left(work: Path) -> None:
    assert marked_processes(work) == []
    assert EmbeddedZooKeeper(work / HOME).status() is None


@pytest.mark.zookeeper
def test_a_job_that_fails_is_named_with_the_end_of_its_log(examples: Path, tmp_path: Path, console: Console) -> None:
    (examples / "delays.py").write_text("import sys; print('what went wrong'); sys.exit(3)")
    assert run_demo(tmp_path / "work", console=console) == 1
    shown = text(console)
    assert "job delays failed with exit code 3" in shown
    assert "what went wrong" in shown
    assert str(tmp_path / "work" / "logs") in shown
    assert_nothing_is_left(tmp_path / "work")


@pytest.mark.zookeeper
@pytest.mark.usefixtures("examples")
def test_the_deadline_ends_it(tmp_path: Path, console: Console) -> None:
    assert run_demo(tmp_path / "work", timeout=5.0, console=console) == 1
    assert "did not end in time" in text(console)
    assert_nothing_is_left(tmp_path / "work")


@pytest.mark.zookeeper
@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_an_interrupt_ends_all(examples: Path, tmp_path: Path, console: Console, signal: str) -> None:
    # The last job to start interrupts the demo, its parent.
    code = f"import os, signal; os.kill(os.getppid(), signal.{signal}); {SLEEP}"
    (examples / f"{run.JOBS[-1]}.py").write_text(code)
    assert run_demo(tmp_path / "work", console=console) == 130
    assert_nothing_is_left(tmp_path / "work")


def test_prepare_that_fails(examples: Path, tmp_path: Path, console: Console) -> None:
    (examples / "prepare.py").write_text("raise SystemExit('no room')")
    assert run_demo(tmp_path / "work", console=console) == 1
    assert "no room" in text(console)
    assert_nothing_is_left(tmp_path / "work")


def test_boards_show_topics_and_lags(console: Console) -> None:
    line = SubscriptionView("audit", "connected", 3, 1234, 1)
    views = [TopicView("flights", "live", 5000, 100.0, 2e6, "disk full", (line,)), TopicView("delays")]
    for plain in (True, False):
        shown = Console(file=io.StringIO(), width=200, force_terminal=True)
        with open_board(shown, plain=plain) as board:
            board.show(views, [])
        for fact in ("flights", "5,000", "2.00", "disk full", "audit", "1,234", "delays"):
            assert fact in text(shown)


@pytest.mark.spark
@pytest.mark.zookeeper
@pytest.mark.timeout(400)
def test_the_demo(tmp_path: Path, console: Console) -> None:
    assert run_demo(tmp_path / "work", files=24, timeout=360.0, console=console) == 0, text(console)
    assert_nothing_is_left(tmp_path / "work")
