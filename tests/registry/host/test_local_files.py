"""Files that are written whole, and files that are locked; test_paths.py has the order of the syncs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobpipe_registry.host.local_files import is_locked, locked_file, write_whole

HOLDER = """
import sys
from pathlib import Path
from jobpipe_registry.host.local_files import locked_file
with locked_file(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_file_has_its_mode_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "a", b"text", mode)
    finally:
        os.umask(before)
    assert ((tmp_path / "a").stat().st_mode & 0o777, (tmp_path / "a").read_bytes()) == (mode, b"text")


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no file of its own."""
    write_whole(tmp_path / "a", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "a", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Another user may have put it there."""
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"), locked_file(tmp_path / "lock"):
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.processes
def test_the_lock_of_a_process_that_dies_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert is_locked(path)
        with pytest.raises(TimeoutError, match="another process"), locked_file(path, 0.05):
            pass
        other.kill()
        other.wait()
        with locked_file(path, 20.0):
            assert is_locked(path)
    assert not is_locked(path)


@pytest.mark.processes
def test_a_fork_does_not_free_the_lock(tmp_path: Path) -> None:
    """Though it leaves the block as this process would."""
    path = tmp_path / "lock"
    code = f"""
import os, sys
from pathlib import Path
from jobpipe_registry.host.local_files import is_locked, locked_file
with locked_file(Path({str(path)!r})):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print(is_locked(Path({str(path)!r})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"
    assert not is_locked(path)
