"""A spool that is taken away, damaged, or read-only: errors that say so, and never a batch that is sealed nowhere."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from jobpipe.config import Config, load
from jobpipe.errors import SegmentCorrupt, SpoolError
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.testing import NumberedRows
from tests.bus.kit import Bus, coordinator_of, publish
from tests.faults.disks.test_disk_full import mounted, run

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]

FILES = {"rows": 1000, "payload": 100}  # batches too large for the catalog itself


def place(publisher: Publisher) -> Path:
    """Return the topic's directory in the spool."""
    return publisher.config.spool_dir / publisher.topic


@pytest.mark.core
def test_segments_are_deleted(bus: Bus) -> None:
    """Cases 43 and 35: batches fail until the directory is back; the ones in it are reported, with offset and file."""
    rows = NumberedRows(bus.topic, **FILES)
    publisher = bus.publisher()
    coordinator = coordinator_of(publisher)
    publish(publisher, rows, bus.journal, [0])
    shutil.rmtree(place(publisher) / "segments")
    for _ in range(2):
        with pytest.raises(SpoolError, match="segments"):
            publisher.seal("q", 1, rows.tables(1), run_id="r1")
    assert publisher.status()["head"] == 1
    (place(publisher) / "segments").mkdir(mode=0o700)
    publish(publisher, rows, bus.journal, [1])
    with pytest.raises(SegmentCorrupt) as caught:
        list(bus.subscribe("all").batches(timeout=10.0))
    assert (caught.value.fields["offset"], caught.value.fields["partition"]) == (0, 0)
    assert coordinator_of(publisher) == coordinator


@pytest.mark.core
def test_catalog_is_deleted_or_replaced(bus: Bus) -> None:
    """Case 43: SQLite would write on into a file without a name; a seal after that is refused."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, [0])
    catalog = place(publisher) / "catalog.db"
    kept = catalog.with_name("kept")
    catalog.rename(kept)
    with pytest.raises(SpoolError, match="was removed or replaced"):
        publisher.seal("q", 1, rows.tables(1), run_id="r1")
    shutil.copy(kept, catalog)
    with pytest.raises(SpoolError, match="was removed or replaced"):
        publisher.seal("q", 1, rows.tables(1), run_id="r1")
    kept.rename(catalog)
    publish(publisher, rows, bus.journal, [1])
    reader = bus.reader("all", rows)
    publisher.close(final=True)
    reader.join()
    assert reader.checker.check().rows == 20


@pytest.mark.parametrize("fault", ["garbage", "truncated", "other format", "other topic", "a directory"])
def test_catalog_cannot_be_used(bus: Bus, fault: str) -> None:
    """Case 35: the publisher does not start, its error names the file, and the file stays as it is."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, range(3))
    catalog = place(publisher) / "catalog.db"
    end_coordinators()
    spoil(catalog, fault)
    before = None if catalog.is_dir() else catalog.read_bytes()
    with pytest.raises(SpoolError, match=str(catalog)):
        Publisher(bus.topic, config=bus.config())
    assert before is None or catalog.read_bytes() == before


def spoil(catalog: Path, fault: str) -> None:
    """Make the catalog unusable."""
    if fault == "garbage":
        catalog.write_bytes(b"\xa5" * catalog.stat().st_size)
    elif fault == "truncated":
        catalog.write_bytes(catalog.read_bytes()[: catalog.stat().st_size // 2 + 100])
    elif fault == "a directory":
        catalog.unlink()
        catalog.mkdir()
    else:
        database = sqlite3.connect(catalog)
        database.execute("PRAGMA user_version = 99" if fault == "other format" else "UPDATE meta SET topic = 'x'")
        database.commit()
        database.close()


def test_catalog_is_deleted_while_nobody_runs(bus: Bus) -> None:
    """Cases 34 and 35: another log begins, and the files of the old one are swept; nothing of it is taken for new."""
    rows = NumberedRows(bus.topic, **FILES)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, range(3))
    end_coordinators()
    for path in place(publisher).glob("catalog.db*"):
        path.unlink()
    again = Publisher(bus.topic, config=bus.config())
    assert again.log_id != publisher.log_id
    assert again.status()["head"] == 0
    assert list((place(publisher) / "segments").iterdir()) == []
    again.close()


def test_read_only(tmp_path: Path, settings_of_test: dict[str, str], config: Config) -> None:
    """Case 43: no publisher starts, its error says why, nothing is touched; with writes back all is there."""
    with mounted(tmp_path / "disk", "16m") as disk:
        bus = Bus("orders", lambda _: load(overrides={**settings_of_test, "jobpipe.spool.dir": str(disk)}, environ={}))
        rows = NumberedRows(bus.topic, **FILES)
        publish(bus.publisher(), rows, bus.journal, range(3))
        end_coordinators()
        run("mount", "-o", "remount,ro", disk).check_returncode()
        with pytest.raises(SpoolError, match=r"[Rr]ead-only"):
            Publisher(bus.topic, config=bus.config())
        end_coordinators()
        run("mount", "-o", "remount,rw", disk).check_returncode()
        publisher = bus.publisher()
        publish(publisher, rows, bus.journal, [3])
        reader = bus.reader("all", rows)
        publisher.close(final=True)
        reader.join()
        assert reader.checker.check().rows == 4000
        bus.close()
        end_coordinators()
