"""A catalog that another process has locked in the middle of a change: the error names that process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobpipe.errors import SpoolError
from jobpipe.store.catalog import lock_holder as holding
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.lock_holder import holder

TOPIC = "orders"
HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
@pytest.mark.parametrize("shared", [False, True])
def test_the_process_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    monkeypatch.setattr("jobpipe.store.catalog.catalog_file._BUSY_SECONDS", 0.1)
    path = tmp_path / "catalog.db"

    def connect() -> Database:
        return Database.create_or_open(path, TOPIC, fsync=True, shared=shared)

    connect().close()
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(SpoolError, match=rf"locked by process {other.pid}, which is .* end it"):
                connect()
            other.send_signal(signal.SIGSTOP)
            with pytest.raises(SpoolError, match=rf"locked by process {other.pid} \(stopped\), which"):
                connect()
        finally:
            other.kill()
    connect().close()
    assert holder(path) == ""


def test_nothing_is_said_where_the_system_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "catalog.db"
    path.touch()
    inode = path.stat().st_ino
    locks = tmp_path / "locks"
    monkeypatch.setattr(holding, "LOCKS", locks)
    assert holder(path) == ""
    for line in (
        f"1: POSIX  ADVISORY  WRITE 0 fe:00:{inode} 120 120",  # of another PID namespace
        f"1: POSIX  ADVISORY  READ 4711 fe:00:{inode} 128 128",
        f"1: -> POSIX  ADVISORY  WRITE 4711 fe:00:{inode} 120 120",  # waits
        f"1: FLOCK  ADVISORY  WRITE 4711 fe:00:{inode} 0 EOF",
        f"1: POSIX  ADVISORY  WRITE 4711 fe:00:{inode + 1} 120 120",
        "",
    ):
        locks.write_text(line + "\n")
        assert holder(path) == ""
    locks.write_text(f"1: POSIX  ADVISORY  WRITE 4194305 fe:00:{inode} 120 120\n")
    assert holder(path) == "process 4194305"  # it has ended by now: no state
