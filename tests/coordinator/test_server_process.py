"""Starting coordinator and data processes: killed before they answer, silent, or ending by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.coordinator import server_process as programs
from jobpipe.errors import ConfigError, WaitTimeout

DEADLINE = 30.0
COUNT = "import os, pathlib, signal, sys, time; starts = pathlib.Path(__file__).with_suffix('.starts'); "
COUNT += "starts.write_text(starts.read_text() + 'x' if starts.exists() else 'x')\n"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Write a program, start it, and return its answer."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def started(name: str, source: str, timeout: float = DEADLINE) -> object:
        (tmp_path / f"{name}.py").write_text(COUNT + source)
        process, ready = programs.start_program(
            name, {}, timeout=timeout, keep_stdin=False, log_file=tmp_path / "program.log"
        )
        process.wait(DEADLINE)
        return ready

    return started


def starts(folder: Path, name: str) -> int:
    return len((folder / f"{name}.starts").read_text())


def test_one_that_is_killed_before_it_answers_is_started_again(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Case 1: by whoever; a coordinator does not fail because somebody killed the first of its data processes."""
    answer = 'print(\'{"ready": {"port": 7}}\', flush=True)'
    killed = f"if len(starts.read_text()) < 3: os.kill(os.getpid(), signal.SIGKILL)\n{answer}"
    assert start("killed", killed) == {"port": 7}
    assert starts(tmp_path, "killed") == 3


def test_one_that_is_always_killed_is_told_of(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(WaitTimeout, match=r"ended at its start, with exit code -9; its log is .*program\.log"):
        start("always", "os.kill(os.getpid(), signal.SIGKILL)")
    assert starts(tmp_path, "always") == programs.START_TRIES


def test_one_that_ends_by_itself_is_not_started_again(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(WaitTimeout, match="ended at its start, with exit code 5"):
        start("ending", "sys.exit(5)")
    assert starts(tmp_path, "ending") == 1


def test_a_silent_one_is_ended(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(WaitTimeout, match="gave no answer within 1 s"):
        start("silent", "time.sleep(600)", timeout=1.0)
    assert starts(tmp_path, "silent") == 1


def test_nothing_is_imported_from_the_working_folder(  # type: ignore[no-untyped-def]
    start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9: a job may be started in a folder that others write to."""
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "psutil.py").write_text("raise SystemExit(7)")
    (planted / "jobpipe.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(planted)
    answer = 'import psutil, jobpipe; print(\'{"ready": {"port": 7}}\', flush=True)'
    assert start("careful", answer) == {"port": 7}


def test_a_log_in_a_strangers_home(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """S9: whoever may write to the folder can lead the log's lines to a file of this user."""
    (tmp_path / "mine").write_text("")
    (tmp_path / "program.log").symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"program\.log cannot be written"):
        start("never", "sys.exit(5)")
    (tmp_path / "program.log").unlink()
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="everyone may write to it"):
        start("never", "sys.exit(5)")
    assert (tmp_path / "mine").read_text() == ""
    assert not (tmp_path / "never.starts").exists()
