"""Processes that die, disks that refuse, and readers in other processes."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jobpipe.errors import SpoolError, SpoolFull
from jobpipe.store import CatalogReader, TopicLog
from jobpipe.store.database import Database
from tests.store.build import FIRST, TOPIC, open_log, read, rows, seal, written

ROOT = Path(__file__).parents[2]
POINTS = [
    *(("seal", point) for point in ("before-fsync", "before-commit", "after-commit", "short-write")),
    *(("acknowledge", point) for point in ("before-commit", "after-commit")),
    *(("retain", point) for point in ("before-commit", "after-commit", "before-unlink")),
]


def child(home: Path, where: str, failpoint: str) -> tuple[int, dict[str, int]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.crash", str(home), where, failpoint],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}


def expected(n: int, partition: int) -> list[tuple[int, int]]:
    return [(n, FIRST + n * 1_000_000 + row) for row in range(10 if partition == 0 else 5)]


def consistent(home: Path) -> tuple[int, int, int]:
    """Check that the log says nothing that is not so; return tail, head and acknowledged offset."""
    log = TopicLog.open(home / TOPIC, TOPIC)
    reader = CatalogReader.open(home / TOPIC, TOPIC)
    tail, head = log.tail(), log.head()
    for partition in range(2):
        found = read(reader, tail, head, partition)
        assert found == [line for n in range(tail.n, head.n) for line in expected(n, partition)]
    last = log.last_sealed("q")
    assert (0 if last is None else last.n) == head.n
    acked = log.subscriptions()[0].acked
    reader.close()
    log.close()
    assert acked is not None
    assert tail.n <= acked.n <= head.n
    return tail.n, head.n, acked.n


@pytest.mark.parametrize(("where", "failpoint"), POINTS)
def test_a_killed_publisher_leaves_a_true_log(tmp_path: Path, where: str, failpoint: str) -> None:
    """What was answered is there; what was not is there as a whole or not at all; the next run goes on."""
    for _ in range(2):
        code, _ = child(tmp_path, "none", "none")
        assert code == 0
    before = consistent(tmp_path)
    code, said = child(tmp_path, where, failpoint)
    died = code == -signal.SIGKILL
    assert died or (where, failpoint) in {("seal", "short-write")}  # an inline batch writes no file
    tail, head, acked = consistent(tmp_path)
    if where != "seal":
        assert head == before[1] + 1
    elif died:
        assert "sealed" not in said
        assert head == before[1] + (failpoint == "after-commit")
    if "acknowledged" in said:
        assert acked == said["acknowledged"]
    if where == "retain":
        assert tail == (before[0] if failpoint == "before-commit" else acked)
    code, said = child(tmp_path, "none", "none")
    assert code == 0
    assert said["sealed"] == head
    tail, after, acked = consistent(tmp_path)
    assert (tail, after, acked) == (head, head + 1, head)
    log = open_log(tmp_path)
    referred = {row[0] for row in log._db.all("SELECT DISTINCT file FROM segments WHERE file NOT NULL")}
    assert {path.name for path in log.segments.iterdir()} == referred  # the sweep of the last run took the orphans
    log.close()


def test_random_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    child(tmp_path, "none", "none")
    for delay in (0.25, 0.3, 0.35, 0.4):
        process = subprocess.Popen(
            [sys.executable, "-c", LOOP, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        killer = threading.Timer(delay, process.kill)
        killer.start()
        said = [line, *process.stdout.readlines()]
        process.wait(timeout=30)
        killer.join()
        process.stdout.close()
        _, head, _ = consistent(tmp_path)
        whole = [int(text) for text in said if text.endswith("\n")]
        assert head in {whole[-1], whole[-1] + 1}


LOOP = """
import sys
from pathlib import Path
from jobpipe.store import Retention
from tests.store.build import open_log, seal
log = open_log(Path(sys.argv[1]), fsync=True)
log.sweep(set())
grant = log.grant("s", {})
print(log.head().n, flush=True)
while True:
    n = log.head().n
    seal(log, n, [[5, 5], [5]], inline=n % 2 == 0)
    print(n + 1, flush=True)
    log.acknowledge("s", grant, log._batches.at(n))
    log.retain(Retention(time=0, bytes=0, ack_grace=0, subscription_expiry=1e9))
"""

WATCH = """
import sys
from pathlib import Path
from jobpipe.store import CatalogReader
from tests.store.build import TOPIC, read
reader = CatalogReader.open(Path(sys.argv[1]) / TOPIC, TOPIC)
for _ in sys.stdin:
    print(reader.epoch, len(read(reader, reader.tail(), reader.head(), 0)), flush=True)
"""


def test_another_process_sees_a_seal_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", WATCH, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for batch_id in range(5):
        seal(log, batch_id, [[1]], inline=batch_id % 2 == 0)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline().split() == ["1", str(batch_id + 1)]
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    process.stdout.close()
    log.close()


LIMITED = """
import resource, sys
from pathlib import Path
from jobpipe.errors import SpoolError, SpoolFull
from jobpipe.store import SegmentFile, PartitionedWriter
from jobpipe.store.files import file_name, new_write_id
from tests.store.build import SCHEMA, open_log, rows, seal
log = open_log(Path(sys.argv[1]), fsync=True)
seal(log, 0, [[5, 5], [5]])
size = (log.directory / "catalog.db-wal").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, resource.RLIM_INFINITY))
writer = PartitionedWriter(SCHEMA, SegmentFile.create(log.segments, file_name(new_write_id(), 0)), partitions=1)
try:
    for number in range(100):
        writer.write(rows(0, number * 10_000, 10_000), 0)
    raise SystemExit("a file passed the limit")
except SpoolFull:
    writer.abort()
assert list(log.segments.iterdir()) == []
for _ in range(3):
    try:
        seal(log, 1, [[500], [500]])
        raise SystemExit("the catalog passed the limit")
    except SpoolError as error:
        assert not error.fields["reopen"], error
assert log.head().n == 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert seal(log, 1, [[5, 5], [5]]).n == 2
log.subscribe("s")
log.close()
"""


def test_a_full_disk_leaves_the_log_usable(tmp_path: Path) -> None:
    """EFBIG stands for ENOSPC: both are refused writes; with room again the same object goes on."""
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0
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
    assert log.head() == head
    if usable:
        assert seal(log, 1).n == 2
    else:
        with pytest.raises(SpoolError) as caught:
            seal(log, 1)
        assert caught.value.fields["reopen"]
        with pytest.raises(SpoolError):
            log.sweep(set())  # the files may belong to the batch whose outcome is unknown
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
    assert log.head().n == 0
    monkeypatch.setattr(os, "fsync", real)
    assert seal(log, 0, inline=False).n == 1
    log.close()


def test_a_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.segments.rmdir()
    with pytest.raises(SpoolError):
        seal(log, 0, inline=False)
    with pytest.raises(SpoolError):
        log.sweep(set())
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
