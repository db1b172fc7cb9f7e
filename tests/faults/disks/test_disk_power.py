"""Power loss of the publisher's host: whatever was not forced to the disk is gone, and nothing that was promised."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobpipe.errors import SegmentCorrupt
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.catalog_reader import CatalogReader
from tests.faults.disks.power import SAID, TRACED, Disk
from tests.faults.rig import chance
from tests.store.build import FIRST, TOPIC, read

pytestmark = pytest.mark.timeout(180)

BATCHES = 8  # small and large by turns; acknowledged, and removed, twice
ROOT = Path(__file__).parents[3]


def record(folder: Path, fsync: str = "fsync", *more: str) -> tuple[Path, list[str]]:
    """Run the publisher once; return its spool and its system calls."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: power loss is not tested (apt-get install strace)")
    spool, calls = folder / "spool", folder / "calls"
    spool.mkdir()
    options = ["-y", "-xx", "-s", "10000000", "-e", f"trace={TRACED}", *more, "-o", str(calls)]
    done = subprocess.run(
        [strace, *options, sys.executable, "-m", "tests.faults.disks.power", str(spool), str(BATCHES), fsync],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "ptrace" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    return spool, calls.read_text().splitlines()


def promised(said: list[str], what: str) -> int:
    """Return the last number that the publisher named."""
    numbers = [int(line.split()[2]) for line in said if line.startswith(f"{SAID}{what} ")]
    return numbers[-1] if numbers else 0


def check(folder: Path, said: list[str], moment: str) -> None:
    """Open what is left: all that was promised is there, whole; of the batch in progress all or nothing; it goes on."""
    if not (folder / TOPIC / "catalog.db").exists():
        assert not said, moment
        return
    log = TopicLog.open(folder / TOPIC, TOPIC)
    reader = CatalogReader.open(folder / TOPIC, TOPIC)
    tail, head = log.batches.tail(), log.batches.head()
    assert promised(said, "sealed") <= head.n <= promised(said, "sealed") + 1, moment
    if said:
        (subscription,) = log.subscriptions.all()
        assert subscription.acked is not None
        assert promised(said, "acknowledged") <= subscription.acked.n <= head.n, moment
        assert tail.n <= subscription.acked.n, moment
    for partition, rows in enumerate((100, 50)):
        whole = [(n, FIRST + n * 1_000_000 + row) for n in range(tail.n, head.n) for row in range(rows)]
        assert read(reader, tail, head, partition) == whole, moment
    last = log.batches.last_sealed("q")
    assert (0 if last is None else last.n) == head.n, moment
    reader.close()
    log.close()


def lose_power_at_each_moment(spool: Path, calls: list[str], left: Path, moments: random.Random | None) -> None:
    """Crash behind each system call that changed the spool, or after which more was promised."""
    disk, tried = Disk(spool), 0
    marks = [str(spool).encode().hex(), SAID.encode().hex()]
    for number, line in enumerate(calls):
        disk.play(line)
        plain = line.replace("\\x", "")
        if not any(mark in plain for mark in marks):
            continue
        disk.crash(left, None if moments is None else random.Random(moments.random()))
        check(left, disk.said, f"after system call {number}: {line[:80]}")
        shutil.rmtree(left, ignore_errors=True)
        tried += 1
    assert promised(disk.said, "sealed") == BATCHES
    assert tried > 10 * BATCHES


@pytest.mark.parametrize(
    "kindly", [pytest.param(False, marks=pytest.mark.core, id="all is lost"), pytest.param(True, id="some is lost")]
)
def test_publisher(tmp_path: Path, in_memory: Path, kindly: bool) -> None:
    """Cases 8 and 39: at each moment; of what was not forced nothing stays, or each write by chance."""
    lose_power_at_each_moment(*record(tmp_path), in_memory / "left", chance() if kindly else None)


@pytest.mark.slow
@pytest.mark.parametrize("kindly", [False, True], ids=["all is lost", "some is lost"])
def test_publisher_whose_commits_fail(tmp_path: Path, in_memory: Path, kindly: bool) -> None:
    """R1: what SQLite's failed fsync left in the page cache alone is not promised before it is on the disk."""
    spool, calls = record(tmp_path, "fsync", "-e", "inject=fdatasync:error=EIO:when=14+5")
    failures = [line for line in calls if line.startswith("fdatasync(") and "(INJECTED)" in line]
    assert len(failures) > 3
    lose_power_at_each_moment(spool, calls, in_memory / "left", chance() if kindly else None)


@pytest.mark.slow
def test_a_missing_fsync_is_found(tmp_path: Path, in_memory: Path) -> None:
    """The same test fails with a writer that does not force its segments."""
    with pytest.raises((AssertionError, SegmentCorrupt)):
        lose_power_at_each_moment(*record(tmp_path, "no fsync"), in_memory / "left", None)
