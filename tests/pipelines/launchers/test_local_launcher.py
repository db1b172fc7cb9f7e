"""Attempts as processes of this host: how they end, and how all of them are ended."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest

from jobpipe.errors import ConfigError
from jobpipe.jobs.launchers import local_launcher
from jobpipe.jobs.launchers.local_launcher import LocalLauncher
from jobpipe.jobs.runner import bounded_log
from jobpipe.jobs.session_processes import members
from jobpipe.pipelines.plugins.api import Attempt, LaunchState, LaunchStatus
from tests.pipelines.waiting import DEADLINE, eventually

RUNNER = "stand_in_runner"

# Starts `sleep` in the session, in a process group of its own, and in a session of its own; then waits to be killed.
FAMILY = """
    import json, subprocess, sys, time
    sleep = ["sleep", "600"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    found = [
        subprocess.Popen(sleep, **quiet),
        subprocess.Popen(sleep, process_group=0, **quiet),
        subprocess.Popen(sleep, start_new_session=True, **quiet),
    ]
    with open("family.part", "w") as file:
        json.dump([each.pid for each in found], file)
    import os
    os.rename("family.part", "family")
    time.sleep(600)
"""


class Runs:
    """Starts programs by a launcher as the runner would be; ends what is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "logs" / "job.log"
        self.launcher = launcher()
        self.others: list[int] = []
        self._launched: list[str] = []

    def submit(self, program: str, work: Path | None = None, **environment: str) -> str:
        (self.folder / f"{RUNNER}.py").write_text(dedent(program))
        launched = self.launcher.submit(
            Attempt(
                pipeline="p",
                job="j",
                run="r1",
                number=1,
                snapshot=self.folder / "j-1.json",
                log=self.log,
                folder=work or self.folder,
                environment={"PYTHONPATH": str(self.folder), **environment},
            )
        )
        self._launched.append(launched)
        return launched

    def ended(self, launched: str) -> int | None:
        return eventually(lambda: self._end(launched)).exit_code

    def _end(self, launched: str) -> LaunchStatus | None:
        status = self.launcher.status(launched)
        return status if status.state is LaunchState.ENDED else None

    def family(self) -> list[psutil.Process]:
        file = self.folder / "family"
        eventually(file.exists)
        self.others = json.loads(file.read_text())
        return [psutil.Process(pid) for pid in self.others]

    def close(self) -> None:
        for launched in self._launched:
            self.launcher.cancel(launched)
        for pid in self.others[2:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for child in self.launcher._children.values():
            child.process.wait(DEADLINE)
            child.logger.wait(DEADLINE)


def launcher() -> LocalLauncher:
    return LocalLauncher(LocalLauncher.Options())


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    monkeypatch.setattr(local_launcher, "RUNNER", RUNNER)
    found = Runs(tmp_path)
    yield found
    found.close()


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.processes
def test_it_leads_a_session_and_what_it_prints_is_in_the_log(runs: Runs) -> None:
    launched = runs.submit(
        """
        import os, subprocess, sys
        assert os.getsid(0) == os.getpgid(0) == os.getpid()
        print(sys.argv[1:], os.getcwd(), os.environ["MORE"], repr(sys.stdin.read()), flush=True)
        print("an error", file=sys.stderr, flush=True)
        subprocess.run(["echo", "of a child"])
        """,
        MORE="given",
    )
    assert runs.ended(launched) == 0
    first = f"['{runs.folder}/j-1.json'] {runs.folder} given ''"
    assert runs.log.read_text().splitlines() == [first, "an error", "of a child"]
    assert runs.log.stat().st_mode & 0o777 == 0o600
    assert runs.log.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.processes
def test_the_next_attempt_goes_on_in_the_log(runs: Runs) -> None:
    for text in ("one", "two"):
        assert runs.ended(runs.submit(f"print('{text}')")) == 0
    assert runs.log.read_text().split() == ["one", "two"]


@pytest.mark.processes
def test_modules_of_the_working_folder_are_not_ours(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "json.py").write_text("raise SystemExit(9)")
    launched = runs.submit("import json", work=tmp_path / "work")
    assert runs.ended(launched) == 0


@pytest.mark.processes
@pytest.mark.parametrize("code", [0, 1, 75, 255])
def test_exit_codes(runs: Runs, code: int) -> None:
    assert runs.ended(runs.submit(f"raise SystemExit({code})")) == code


@pytest.mark.processes
def test_a_signal_is_a_negative_exit_code(runs: Runs) -> None:
    assert runs.ended(runs.submit("import os; os.kill(os.getpid(), 9)")) == -signal.SIGKILL


@pytest.mark.processes
def test_what_cannot_be_started_leaves_nothing(runs: Runs, tmp_path: Path) -> None:
    gc.collect()  # sockets of earlier tests are not to end meanwhile
    files, processes = set(os.listdir("/proc/self/fd")), psutil.Process().children()
    with pytest.raises(FileNotFoundError):
        runs.submit("", work=tmp_path / "missing")
    assert set(os.listdir("/proc/self/fd")) == files
    assert psutil.Process().children() == processes


@pytest.mark.processes
@pytest.mark.parametrize("ours", [True, False])
def test_the_runner_alone_is_asked_to_stop(runs: Runs, *, ours: bool) -> None:
    """Also by another process than the one that has started it. Spark lives until the micro-batch has ended."""
    launched = runs.submit(FAMILY)
    child, group, _ = runs.family()
    (runs.launcher if ours else launcher()).ask_to_stop(launched)
    leader = psutil.Process(json.loads(launched)["pid"])
    eventually(lambda: not lives(leader))
    assert [lives(child), lives(group)] == [True, True]
    runs.launcher.cancel(launched)
    assert runs.ended(launched) == -signal.SIGTERM
    runs.launcher.ask_to_stop(launched)  # it has ended: nothing happens
    launcher().ask_to_stop(launched)


@pytest.mark.processes
def test_cancel_ends_the_whole_session(runs: Runs) -> None:
    launched = runs.submit(FAMILY)
    child, group, apart = runs.family()
    assert runs.launcher.status(launched) == LaunchStatus(LaunchState.RUNNING)
    runs.launcher.cancel(launched)
    assert [lives(child), lives(group), lives(apart)] == [False, False, True]
    assert runs.ended(launched) == -signal.SIGKILL
    runs.launcher.cancel(launched)  # it has ended: nothing happens
    assert lives(apart)


@pytest.mark.processes
def test_cancel_ends_what_outlived_its_leader(runs: Runs) -> None:
    launched = runs.submit(FAMILY)
    child, group, apart = runs.family()
    leader = psutil.Process(json.loads(launched)["pid"])
    leader.kill()
    eventually(lambda: leader.status() == psutil.STATUS_ZOMBIE)
    assert lives(child)
    runs.launcher.cancel(launched)
    assert [lives(child), lives(group), lives(apart)] == [False, False, True]
    assert runs.ended(launched) == -signal.SIGKILL


@pytest.mark.processes
def test_what_outlives_its_leader_has_some_seconds(runs: Runs) -> None:
    """As the JVM has, to end by itself: the next attempt begins when it is gone."""
    launched = runs.submit(FAMILY)
    child, group, apart = runs.family()
    os.kill(json.loads(launched)["pid"], signal.SIGKILL)
    eventually(lambda: runs.launcher._children[launched].process.poll() is not None)
    assert runs.launcher.status(launched) == LaunchStatus(LaunchState.RUNNING)
    assert lives(child)
    runs.launcher._children[launched].until = time.monotonic()
    assert runs.ended(launched) == -signal.SIGKILL
    assert [lives(child), lives(group), lives(apart)] == [False, False, True]


@pytest.mark.processes
def test_an_id_is_understood_by_another_process(runs: Runs) -> None:
    launched, other = runs.submit(FAMILY), launcher()
    child, group, apart = runs.family()
    assert other.status(launched) == LaunchStatus(LaunchState.RUNNING)
    other.cancel(launched)
    assert other.status(launched) == LaunchStatus(LaunchState.ENDED)  # not waited for by its parent yet
    assert [lives(child), lives(group), lives(apart)] == [False, False, True]
    assert runs.ended(launched) == -signal.SIGKILL
    assert other.status(launched) == LaunchStatus(LaunchState.ENDED)


def changed(launched: str, **values: Any) -> str:
    return json.dumps({**json.loads(launched), **values})


@pytest.mark.processes
def test_of_another_host_nobody_can_say(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    launched = runs.submit("import time; time.sleep(600)")
    elsewhere, other = changed(launched, host="elsewhere"), launcher()
    assert other.status(elsewhere) == LaunchStatus(LaunchState.UNKNOWN)
    other.cancel(elsewhere)
    assert other.status(launched) == LaunchStatus(LaunchState.RUNNING)
    assert "of host elsewhere was started before a restart of that host" in caplog.text
    assert f"kill -9 -- -{json.loads(launched)['pid']}" in caplog.text


@pytest.mark.processes
def test_a_host_is_renamed(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program ends the processes that it has started itself under any name."""
    launched = runs.submit(FAMILY)
    child, group, apart = runs.family()
    monkeypatch.setattr("socket.gethostname", lambda: "renamed")
    runs.launcher.cancel(launched)
    assert runs.ended(launched) == -signal.SIGKILL
    assert [lives(child), lives(group), lives(apart)] == [False, False, True]


@pytest.mark.processes
def test_a_number_that_is_used_again_is_another_process(runs: Runs) -> None:
    """The leader of a session, and its children, have ended; another program leads one of the same number by now."""
    launched, other = runs.submit(FAMILY), launcher()
    family = runs.family()
    found = json.loads(launched)
    before = changed(launched, started=found["started"] - 3600.0, ticks=found["ticks"] - 360_000)
    assert other.status(before) == LaunchStatus(LaunchState.ENDED)
    other.cancel(before)
    assert all(map(lives, family))
    assert runs.launcher.status(launched) == LaunchStatus(LaunchState.RUNNING)


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "4711",
        "null",
        "[]",
        "{",
        "{}",
        '{"pid": 4711}',
        '["host", "boot", "pid_namespace", "pid", "started", "ticks"]',
    ],
)
def test_garbage_is_no_id(garbage: str) -> None:
    for question in (launcher().status, launcher().cancel):
        with pytest.raises(ConfigError, match="not an id of launcher local"):
            question(garbage)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pid", "4711"),
        ("pid", True),
        ("pid", 0),
        ("pid", -1),
        ("pid", 2**70),
        ("started", None),
        ("host", 1),
        ("more", 1),
    ],
)
def test_a_wrong_field_makes_no_id(field: str, value: Any) -> None:
    text = changed(local_launcher._Launched.of(os.getpid()).text(), **{field: value})
    for question in (launcher().status, launcher().cancel):
        with pytest.raises(ConfigError, match="not an id of launcher local"):
            question(text)


def test_members_are_those_of_the_session() -> None:
    ours = {process.pid for process in members(os.getsid(0))}
    assert os.getpid() in ours
    assert not {pid for pid in ours if os.getsid(pid) != os.getsid(0)}


# -- the log -----------------------------------------------------------------------------------------------------------


def log_writer(path: Path, most: int, before: str = "") -> subprocess.Popen[bytes]:
    program = f"{dedent(before)}\nfrom jobpipe.jobs.runner import bounded_log\nbounded_log.main()"
    return subprocess.Popen([sys.executable, "-c", program, str(path), str(most)], stdin=subprocess.PIPE)


def content_of(folder: Path) -> bytes:
    """Return what is in a folder's files; nothing while one of them is just renamed."""
    try:
        return b"".join(each.read_bytes() for each in folder.iterdir())
    except FileNotFoundError:
        return b""


def fed(writer: subprocess.Popen[bytes], path: Path, pieces: list[bytes]) -> None:
    """Give it pieces, each when the one before was read."""
    assert writer.stdin is not None
    with writer:
        for piece in pieces:
            writer.stdin.write(piece)
            writer.stdin.flush()
            eventually(lambda piece=piece: piece in content_of(path.parent))
        writer.stdin.close()
        assert writer.wait(DEADLINE) == 0


@pytest.mark.processes
def test_the_log_is_two_files(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    pieces = [f"<{number:6}>".encode() for number in range(10)]  # 8 bytes each
    before = os.umask(0)
    try:
        fed(log_writer(path, 20), path, pieces)
    finally:
        os.umask(before)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["job.log", "job.log.1"]
    assert path.read_bytes() == b"".join(pieces[8:])
    assert (tmp_path / "job.log.1").read_bytes() == b"".join(pieces[6:8])
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}


@pytest.mark.processes
def test_what_was_there_counts(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(b"0123456789")
    fed(log_writer(path, 15), path, [b"abcdefgh"])
    assert (path.read_bytes(), (tmp_path / "job.log.1").read_bytes()) == (b"abcdefgh", b"0123456789")


@pytest.mark.processes
def test_signals_do_not_end_it_before_its_writers(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    writer = log_writer(path, 100)
    assert writer.stdin is not None
    writer.stdin.write(b"first ")
    writer.stdin.flush()
    eventually(lambda: path.exists() and path.read_bytes())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        writer.send_signal(number)
    fed(writer, path, [b"second"])
    assert path.read_bytes() == b"first second"


@pytest.mark.processes
def test_a_file_that_cannot_be_made_is_made_later(tmp_path: Path) -> None:
    """A disk that is full for a while, just when the files change places."""
    path = tmp_path / "job.log"
    full = """
        import os
        real, calls = os.open, []
        def once(*arguments):
            calls.append(arguments)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
            return real(*arguments)
        os.open = once
    """
    writer = log_writer(path, 10, full)
    assert writer.stdin is not None
    writer.stdin.write(b"0123456789")
    writer.stdin.flush()
    eventually(lambda: path.exists() and path.read_bytes())
    writer.stdin.write(b"lost")
    writer.stdin.flush()
    eventually(lambda: not path.exists())
    fed(writer, path, [b"kept", b" too"])
    assert (path.read_bytes(), (tmp_path / "job.log.1").read_bytes()) == (b"kept too", b"0123456789")


def write_away(log: bounded_log.BoundedLog, path: Path, text: bytes) -> bytes:
    log.write(text)
    return path.read_bytes()


def test_a_log_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    """Q13: moved as by logrotate, removed, replaced by an empty file, cut, and its folder removed."""
    path = tmp_path / "logs" / "job.log"
    log = bounded_log.BoundedLog(path, 100)
    assert (write_away(log, path, b"first "), write_away(log, path, b"second")) == (b"first ", b"first second")
    path.rename(tmp_path / "job.log-20260101")
    assert write_away(log, path, b"third") == b"third"
    assert (tmp_path / "job.log-20260101").read_bytes() == b"first second"
    path.unlink()
    assert write_away(log, path, b"fourth") == b"fourth"
    other = tmp_path / "empty"
    other.touch()
    other.replace(path)
    assert write_away(log, path, b"fifth") == b"fifth"
    os.truncate(path, 0)
    assert write_away(log, path, b"s" * 99) == b"s" * 99  # what was cut counts no longer
    shutil.rmtree(path.parent)
    assert write_away(log, path, b"seventh") == b"seventh"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("moment", ["fcntl.flock", "os.replace"])
def test_two_log_processes_lose_nothing_when_the_file_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The other one writes just before this one has the lock, or just before it renames the file."""
    path = tmp_path / "job.log"
    one, other = bounded_log.BoundedLog(path, 10), bounded_log.BoundedLog(path, 10)
    one.write(b"12345")
    other.write(b"67890")
    module, name = moment.split(".")
    real = getattr(importlib.import_module(module), name)

    def interrupted(*arguments: object) -> None:
        monkeypatch.setattr(moment, real)
        other.write(b"abc")
        real(*arguments)

    monkeypatch.setattr(moment, interrupted)
    one.write(b"def")
    both = (tmp_path / "job.log.1").read_bytes() + path.read_bytes()
    assert both == b"1234567890abcdef"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_log_where_nothing_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """NFS without lockd, and some FUSE: the full file is renamed all the same, and no write is lost."""

    def refused(file: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(bounded_log.fcntl, "flock", refused)
    path = tmp_path / "job.log"
    log = bounded_log.BoundedLog(path, 10)
    for text in (b"01234567", b"89abcdef", b"ghijklmn"):
        assert write_away(log, path, text) == text
    assert (tmp_path / "job.log.1").read_bytes() == b"89abcdef"


def test_a_log_goes_on_when_the_disk_has_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q13: full at the first byte, and in the middle of a line."""
    path, real, room = tmp_path / "logs" / "job.log", os.write, [0]

    def full(file: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken = real(file, data[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr(bounded_log.os, "write", full)
    log = bounded_log.BoundedLog(path, 100)
    for size, text in ((0, b"lost"), (3, b"one, cut")):
        room[0] = size
        with pytest.raises(OSError, match="No space"):
            log.write(text)
    room[0] = 100
    assert write_away(log, path, b", two") == b"one, two"


@pytest.mark.processes
def test_a_log_that_cannot_be_made_at_first_is_made_later(tmp_path: Path) -> None:
    """Q13: The job writes on meanwhile."""
    path = tmp_path / "logs" / "job.log"
    path.parent.touch()
    writer = log_writer(path, 1000)
    assert writer.stdin is not None
    writer.stdin.write(b"lost" * 100_000)
    writer.stdin.flush()
    path.parent.unlink()
    path.parent.mkdir()
    fed(writer, path, [b"kept"])
    assert path.read_bytes().endswith(b"kept")


@pytest.mark.processes
def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "job.log").symlink_to(tmp_path / "elsewhere")
    command = [sys.executable, "-m", bounded_log.__name__, str(tmp_path / "job.log")]
    text = b"text" * 100_000  # more than a pipe holds: who writes does not wait
    ran = subprocess.run(command, input=text, capture_output=True, timeout=DEADLINE)
    assert (ran.returncode, b"there is no log" in ran.stderr) == (0, True)
    assert not (tmp_path / "elsewhere").exists()


def test_the_fields_of_an_id_are_all_checked() -> None:
    assert {field.type for field in dataclasses.fields(local_launcher._Launched)} == {"str", "int", "float"}
