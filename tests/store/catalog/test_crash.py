"""Processes that die, disks that refuse, and readers in other processes."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from pathlib import Path

import pytest

from jobpipe.errors import SpoolError, SpoolFull
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.catalog_reader import CatalogReader
from tests.store import crash
from tests.store.build import FIRST, TOPIC, look_into, open_log, read, rows, seal, written
from tests.store.children import Child

pytestmark = pytest.mark.usefixtures("fork_server")

POINTS = [
    *(("seal", point, 2) for point in ("before-fsync", "short-write", "before-commit", "after-commit")),
    *(("seal", point, 1) for point in ("before-commit", "after-commit")),
    *(("acknowledge", point, 2) for point in ("before-commit", "after-commit")),
    *(("retain", point, 3) for point in ("before-commit", "after-commit", "before-unlink")),
]


def run(home: Path, where: str = "none", failpoint: str = "none") -> tuple[int | None, dict[str, int]]:
    child = Child(crash.publish, home, where, failpoint)
    said = dict(child.finish())
    return child.code, said


def expected(n: int, partition: int) -> list[tuple[int, int]]:
    return [(n, FIRST + n * 1_000_000 + row) for row in range(10 if partition == 0 else 5)]


def consistent(home: Path) -> tuple[int, int, int]:
    """Check that the log says nothing that is not so; return tail, head and acknowledged offset."""
    log = look_into(home)
    reader = CatalogReader.open(home / TOPIC, TOPIC)
    tail, head = log.batches.tail(), log.batches.head()
    for partition in range(2):
        found = read(reader, tail, head, partition)
        assert found == [line for n in range(tail.n, head.n) for line in expected(n, partition)]
    last = log.batches.last_sealed("q")
    assert (0 if last is None else last.n) == head.n
    acked = log.subscriptions.all()[0].acked
    reader.close()
    log.close()
    assert acked is not None
    assert tail.n <= acked.n <= head.n
    return tail.n, head.n, acked.n


@pytest.fixture(params=["driver", "shared"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A spool's folder in each placement that has one: write-ahead log, and rollback journal."""
    return tmp_path / str(request.param)


@pytest.mark.parametrize(("where", "failpoint", "earlier"), POINTS)
def test_a_killed_publisher_leaves_a_true_log(home: Path, where: str, failpoint: str, earlier: int) -> None:
    """What was answered is there; what was not is there as a whole or not at all; the next run goes on."""
    for _ in range(earlier):
        assert run(home)[0] == 0
    before = consistent(home)
    code, said = run(home, where, failpoint)
    assert code == -signal.SIGKILL
    tail, head, acked = consistent(home)
    if where == "seal":
        assert said == {}
        assert head == before[1] + (1 if failpoint == "after-commit" else 0)
    else:
        assert head == before[1] + 1 == said["sealed"] + 1
    assert acked >= said.get("acknowledged", before[2])
    if where == "retain":
        assert tail == (before[0] if failpoint == "before-commit" else acked)
    code, said = run(home)
    assert (code, said["sealed"]) == (0, head)
    assert consistent(home) == (head, head + 1, head)
    log = open_log(home)
    referred = {row[0] for row in log._db.all("SELECT DISTINCT file FROM segments WHERE file NOT NULL")}
    assert {path.name for path in log.segments.iterdir()} == referred  # the sweep of the last run took the orphans
    log.close()


def test_random_kills_lose_and_repeat_nothing(home: Path) -> None:
    run(home)
    for delay in (0.02, 0.05, 0.08, 0.13, 0.21, 0.34):
        child = Child(crash.publish_for_ever, home)
        said = [child.receive()]
        killer = threading.Timer(delay, child.process.kill)
        killer.start()
        said += child.finish()
        killer.join()
        assert child.code == -signal.SIGKILL
        assert consistent(home)[1] in {said[-1], said[-1] + 1}
        assert said == list(range(said[0], said[0] + len(said)))


def test_another_process_sees_a_seal_at_once(home: Path) -> None:
    log = open_log(home)
    child = Child(crash.watch, home)
    lines: list[tuple[int, int]] = []
    for batch_id in range(5):
        seal(log, batch_id, [[5, 5], [5]], inline=batch_id % 2 == 0)
        lines += expected(batch_id, 0)
        child.pipe.send(True)
        assert child.receive() == (1, lines)
    child.pipe.send(False)
    assert child.finish() == []
    assert child.code == 0
    log.close()


def test_a_shared_catalog_has_no_write_ahead_log(home: Path) -> None:
    """Its index would be memory that only one host has; a catalog that moves between placements is converted."""
    log = open_log(home)
    seal(log, 0)
    names = {path.name for path in log.directory.iterdir()}
    log.close()
    assert ("catalog.db-wal" in names) == (home.name == "driver")
    moved = home.rename(home.with_name("driver" if home.name == "shared" else "shared"))
    log = open_log(moved)
    assert log.batches.head().n == 1
    assert seal(log, 1).n == 2
    log.close()


def test_a_full_disk_leaves_the_log_usable(tmp_path: Path) -> None:
    """EFBIG stands for ENOSPC: both are refused writes; with room again the same object goes on."""
    child = Child(crash.fill_the_disk, tmp_path)
    assert child.finish() == [("file", 0), *[("catalog", False)] * 3, ("sealed", 2)]
    assert child.code == 0
    assert consistent(tmp_path) == (0, 2, 0)


class Failing:
    """A connection whose COMMIT fails."""

    def __init__(self, code: int) -> None:
        self.code = code

    def commit(self, database: Database) -> None:
        error = sqlite3.OperationalError("injected")
        error.sqlite_errorcode = self.code  # type: ignore[misc]
        raise error


@pytest.mark.parametrize(
    ("code", "usable"),
    [
        (sqlite3.SQLITE_FULL, True),
        (sqlite3.SQLITE_BUSY, True),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, True),
        (sqlite3.SQLITE_IOERR_WRITE, True),
        (sqlite3.SQLITE_IOERR_FSYNC, False),
        (sqlite3.SQLITE_CORRUPT, False),
    ],
)
def test_a_commit_of_unknown_outcome_ends_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, usable: bool
) -> None:
    log = open_log(tmp_path)
    head = seal(log, 0)
    write_id, segments = written(log, [(0, rows(0, 0, 1))], inline=False)
    assert write_id
    with monkeypatch.context() as patched:
        patched.setattr(Database, "_commit", lambda self: Failing(code).commit(self))
        with pytest.raises(SpoolError) as caught:
            seal(log, 1)
    assert isinstance(caught.value, SpoolFull) == (code == sqlite3.SQLITE_FULL)
    assert caught.value.fields["reopen"] is not usable
    assert log.batches.head() == head
    if usable:
        assert seal(log, 1).n == 2
    else:
        with pytest.raises(SpoolError) as caught:
            seal(log, 1)
        assert caught.value.fields["reopen"]
        with pytest.raises(SpoolError):
            log.cleaner.sweep(set())  # the files may belong to the batch whose outcome is unknown
        assert (log.segments / str(segments[0].file)).exists()
    log._db.close()


def test_a_failed_directory_fsync_seals_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, fsync=True)
    real = os.fsync

    def failing(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(SpoolError):
        seal(log, 0, inline=False)
    assert log.batches.head().n == 0
    monkeypatch.setattr(os, "fsync", real)
    assert seal(log, 0, inline=False).n == 1
    log.close()


def test_a_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.segments.rmdir()
    with pytest.raises(SpoolError):
        seal(log, 0, inline=False)
    with pytest.raises(SpoolError):
        log.cleaner.sweep(set())
    log.close()


def test_a_directory_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / TOPIC).write_text("not a directory")
    with pytest.raises(SpoolError):
        open_log(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "two").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpoolError):
        TopicLog.open(tmp_path / "two", "two")


def test_an_unfinished_creation_is_finished(tmp_path: Path) -> None:
    (tmp_path / TOPIC).mkdir()
    (tmp_path / TOPIC / "catalog.db").touch()
    log = open_log(tmp_path)
    assert seal(log, 0).n == 1
    log.close()
