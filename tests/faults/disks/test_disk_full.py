"""A small disk: a batch that finds no room fails, and with room again the same publisher and coordinator go on."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobpipe.config import Config, load
from jobpipe.errors import SpoolFull
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.testing import NumberedRows
from tests.bus.kit import Bus, coordinator_of, until

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]

FILES = {"rows": 1000, "payload": 400}  # about 430 KB a batch, in a file
INLINE = {"rows": 100, "payload": 400}  # about 45 KB a batch, in the catalog itself
GONE_AT_ONCE = {"retention.time": "10min", "retention.ack_grace": "0s"}  # what is acknowledged may go, if room is short


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of that size."""
    folder.mkdir()
    done = run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here, so no disk was filled: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        run("umount", "-l", folder).check_returncode()


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


def grow(disk: Path, size: str) -> None:
    """Give the disk another size."""
    run("mount", "-o", f"remount,size={size}", disk).check_returncode()


@pytest.fixture
def small(tmp_path: Path, settings_of_test: dict[str, str], config: Config) -> Iterator[Bus]:
    """A topic whose spool is a disk of 8 MiB, at a coordinator of its own."""
    with mounted(tmp_path / "small", "8m") as disk:
        settings = {**settings_of_test, "jobpipe.spool.dir": str(disk)}

        def configure(changes: dict[str, str]) -> Config:
            return load(overrides={**settings, **{f"jobpipe.{k}": v for k, v in changes.items()}}, environ={})

        made = Bus("orders", configure)
        yield made
        made.close()


def fill(publisher: Publisher, bus: Bus, rows: NumberedRows) -> int:
    """Publish until the disk is full; return the id of the batch that failed."""
    for batch_id in range(1000):
        bus.journal.intend(batch_id, rows.ranges(batch_id))
        try:
            publisher.seal("q", batch_id, rows.tables(batch_id), run_id="r")
        except SpoolFull:
            return batch_id
        bus.journal.seal(batch_id)
    raise AssertionError("the disk does not get full")


def publish(publisher: Publisher, bus: Bus, rows: NumberedRows, batch_id: int) -> None:
    """Publish a batch; it must succeed."""
    bus.journal.intend(batch_id, rows.ranges(batch_id))
    publisher.seal("q", batch_id, rows.tables(batch_id), run_id="r")
    bus.journal.seal(batch_id)


@pytest.mark.parametrize("size", [FILES, INLINE], ids=["files", "inline"])
def test_retention_makes_room(small: Bus, size: dict[str, int]) -> None:
    """Case 36: once the slow subscriber has read, its batches go, and the batch that failed passes."""
    rows = NumberedRows(small.topic, **size)
    publisher = small.publisher(GONE_AT_ONCE, required_subscribers=["slow"])
    coordinator = coordinator_of(publisher)
    failed = fill(publisher, small, rows)
    assert failed >= 5
    with pytest.raises(SpoolFull, match=str(publisher.config.spool_dir)):  # again, and nothing else
        publisher.seal("q", failed, rows.tables(failed), run_id="r")
    reader = small.reader("slow", rows)
    reader.wait_rows(failed * rows.rows)
    until(lambda: publisher.status()["subscriptions"][0]["position"] == failed, 20.0, "all is acknowledged")
    for batch_id in range(failed, 2 * failed):  # more than the disk holds at once
        publish(publisher, small, rows, batch_id)
        reader.wait_rows((batch_id + 1) * rows.rows)
        until(lambda: publisher.status()["subscriptions"][0]["position"] == batch_id + 1, 20.0, "acknowledged")  # noqa: B023
    publisher.close(final=True)
    reader.join()
    assert reader.checker.check().rows == 2 * failed * rows.rows
    assert coordinator_of(publisher) == coordinator


@pytest.mark.core
@pytest.mark.parametrize("size", [FILES, INLINE], ids=["files", "inline"])
def test_the_disk_grows(small: Bus, size: dict[str, int]) -> None:
    """Case 36: without any subscriber; nothing that was sealed is damaged by what failed after it."""
    rows = NumberedRows(small.topic, **size)
    publisher = small.publisher()
    disk = publisher.config.spool_dir
    failed = fill(publisher, small, rows)
    grow(disk, "32m")
    for batch_id in range(failed, failed + 5):
        publish(publisher, small, rows, batch_id)
    reader = small.reader("late", rows)
    publisher.close(final=True)
    reader.join()
    assert reader.checker.check().rows == (failed + 5) * rows.rows
    files = list((disk / small.topic / "segments").iterdir())
    assert len(files) == (failed + 5 if size is FILES else 0)  # of the batches that failed nothing is left


def test_too_small_for_anything(tmp_path: Path, settings_of_test: dict[str, str], config: Config) -> None:
    """Case 36: a disk without room for the catalog itself is an error that says so; with room it opens."""
    with mounted(tmp_path / "tiny", "16k") as disk:
        full = load(overrides={**settings_of_test, "jobpipe.spool.dir": str(disk)}, environ={})
        with pytest.raises(SpoolFull, match=str(disk)):
            Publisher("orders", config=full)
        grow(disk, "8m")
        publisher = Publisher("orders", config=full)
        assert publisher.status()["head"] == 0
        publisher.close()
