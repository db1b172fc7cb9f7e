"""Logs of long-living programs are bounded: what they log, and what an interpreter says that crashes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobpipe.coordinator import server_process as programs
from jobpipe.coordinator.log_file_rotation import LOG_BYTES, bound, follow
from jobpipe.errors import WaitTimeout

DEADLINE = 60.0
LIMIT = 2000
WRITER = """
import logging, sys
from pathlib import Path
from jobpipe.coordinator.log_file_rotation import BoundedHandler
logging.basicConfig(level=logging.INFO, handlers=[BoundedHandler(Path(sys.argv[1]), int(sys.argv[2]))])
for number in range(1000):
    logging.info("%s writes line %d", sys.argv[3], number)
print("crash of", sys.argv[3], file=sys.stderr)
"""


def append(file: Path) -> int:
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def sizes(file: Path) -> tuple[int, int]:
    return file.stat().st_size, Path(f"{file}.1").stat().st_size


@pytest.mark.processes
def test_two_programs_share_a_small_log(tmp_path: Path) -> None:
    """Both cut it, both go on in it; neither grows it beyond the limit and a line or two."""
    file, started = tmp_path / "coordinator.log", []
    for name in ("A", "B"):
        descriptor = append(file)
        command = [sys.executable, "-c", WRITER, str(file), str(LIMIT), name]
        started.append(subprocess.Popen(command, stderr=descriptor))
        os.close(descriptor)
    assert [program.wait(DEADLINE) for program in started] == [0, 0]
    now, before = sizes(file)
    assert now <= LIMIT + 200
    assert 0 < before <= LIMIT
    assert "line 999" in file.read_text() + Path(f"{file}.1").read_text()
    assert Path(f"{file}.1").stat().st_mode & 0o777 == 0o600


@pytest.mark.processes
def test_a_log_of_one_program_loses_no_line_when_it_is_cut(tmp_path: Path) -> None:
    """Copy and file together end with an unbroken run of lines."""
    file = tmp_path / "data.log"
    descriptor = append(file)
    subprocess.run(
        [sys.executable, "-c", WRITER, str(file), str(LIMIT), "A"], stderr=descriptor, check=True, timeout=DEADLINE
    )
    os.close(descriptor)
    lines = (Path(f"{file}.1").read_text() + file.read_text()).splitlines()[1:]  # the first one may be cut
    assert lines.pop() == "crash of A"
    numbers = [int(line.rpartition(" ")[2]) for line in lines]
    assert numbers == list(range(1000 - len(numbers), 1000))
    assert len(numbers) > 20


def test_a_huge_log_is_cut_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.log"
    file.write_text("".join(f"line {number}\n" for number in range(10_000)))
    descriptor = append(file)
    bound(descriptor, file, LIMIT)
    assert sizes(file) == (0, LIMIT)
    assert Path(f"{file}.1").read_text().endswith("line 9999\n")
    os.write(descriptor, b"goes on\n")
    os.close(descriptor)
    assert file.read_text() == "goes on\n"


def test_what_others_write_during_the_copy_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not wait for whoever cuts; however much they write, the copy has its size."""
    file = tmp_path / "coordinator.log"
    file.write_text("x" * LIMIT + "last\n")
    descriptor = append(file)
    made = os.open

    def opened(path: str, flags: int, mode: int = 0o777) -> int:
        os.write(descriptor, b"y" * 10 * LIMIT)
        return made(path, flags, mode)

    with monkeypatch.context() as patched:
        patched.setattr("jobpipe.coordinator.log_file_rotation.os.open", opened)
        bound(descriptor, file, LIMIT)
    os.close(descriptor)
    assert sizes(file) == (0, LIMIT)
    assert Path(f"{file}.1").read_text().endswith("xlast\n")


def test_a_log_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    """Q13: moved as by logrotate, removed with its folder, replaced by another file; a link is not followed."""
    file = tmp_path / "logs" / "coordinator.log"
    file.parent.mkdir()
    descriptor = append(file)

    def written(text: str) -> str:
        follow(descriptor, file)
        os.write(descriptor, text.encode())
        return file.read_text()

    assert (written("first "), written("second")) == ("first ", "first second")
    file.rename(tmp_path / "logs" / "coordinator.log-1")
    assert written("third") == "third"
    assert (tmp_path / "logs" / "coordinator.log-1").read_text() == "first second"
    shutil.rmtree(file.parent)
    assert written("fourth") == "fourth"
    file.unlink()
    file.touch()
    assert written("fifth") == "fifth"
    assert file.stat().st_mode & 0o022 == 0
    file.rename(tmp_path / "old")
    file.symlink_to(tmp_path / "elsewhere")
    follow(descriptor, file)
    os.write(descriptor, b" sixth")
    assert ((tmp_path / "old").read_text(), (tmp_path / "elsewhere").exists()) == ("fifth sixth", False)
    os.close(descriptor)


def test_a_fifo_makes_no_program_wait(tmp_path: Path) -> None:
    """At the log's place, with a reader and without, and at the place of its copy."""
    file = tmp_path / "coordinator.log"
    descriptor = append(file)
    file.rename(tmp_path / "old")
    os.mkfifo(file)
    os.write(descriptor, b"first ")
    follow(descriptor, file)
    reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    follow(descriptor, file)
    os.write(descriptor, b"second")
    os.close(reader)
    assert (tmp_path / "old").read_text() == "first second"
    bound(descriptor, file, 3)
    assert (tmp_path / "old").read_text() == ""
    file.unlink()
    follow(descriptor, file)
    os.write(descriptor, b"third")
    os.mkfifo(f"{file}.1")
    bound(descriptor, file, 3)
    assert file.read_text() == ""
    os.close(descriptor)


@pytest.mark.processes
def test_a_program_that_crashes_at_every_start_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never gets as far as its own logging; each start bounds what the one before has left."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "crashing.py").write_text(f"import sys; sys.exit('x' * {LOG_BYTES // 2})")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    file = tmp_path / "logs" / "coordinator.log"
    for _ in range(5):
        with pytest.raises(WaitTimeout, match=r"coordinator\.log"):
            programs.start_program("crashing", {}, timeout=DEADLINE, keep_stdin=False, log_file=file)
    assert max(sizes(file)) <= 2 * LOG_BYTES
