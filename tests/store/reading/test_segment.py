from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobpipe.errors import ConfigError, SchemaMismatch, SpoolError, SpoolFull, UnsupportedType
from jobpipe.store.spool.partition_writer import PartitionedWriter
from jobpipe.store.spool.segment import SegmentFile, SegmentWriter
from jobpipe.store.spool.segment_index import SegmentIndex, SegmentInfo
from jobpipe.store.spool.spool_files import FileSegmentSink, file_name, write_id_of
from tests.store.build import SCHEMA, rows

NAME = "0123456789abcdef-7.seg"


def stream_of(segments: list[SegmentInfo], directory: Path, partition: int) -> list[int]:
    found: list[int] = []
    for info in segments:
        if info.partition == partition:
            data = (
                info.data if info.file is None else (directory / info.file).read_bytes()[info.offset :][: info.length]
            )
            assert data is not None
            index = SegmentIndex.unpack(info.index)
            assert (index.rows, index.length, len(data)) == (info.rows, info.length, info.length)
            found += pa.ipc.open_stream(data).read_all()["row"].to_pylist()
    return found


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_any_range_of_record_batches_is_a_stream(compression: str) -> None:
    parts: list[bytes] = []
    writer = SegmentWriter(lambda data: parts.append(bytes(data)), SCHEMA, compression)
    batches = [rows(0, 0, 3), rows(0, 3, 20_000), rows(0, 20_003, 1)]
    for batch in batches:
        writer.write(batch)
    index, segment = writer.finish(), b"".join(parts)
    assert index.length == len(segment)
    for first in range(3):
        for last in range(first + 1, 4):
            stream = b"".join(segment[c.offset : c.offset + c.length] for c in index.chunks(first, last))
            assert pa.ipc.open_stream(stream).read_all().equals(pa.Table.from_batches(batches[first:last]))


def test_a_dictionary_column_is_refused_by_name() -> None:
    inner = pa.list_(pa.dictionary(pa.int32(), pa.string()))
    with pytest.raises(UnsupportedType) as caught:
        SegmentWriter(lambda _: None, pa.schema([("ok", pa.int8()), ("bad", inner)]))
    assert caught.value.fields["column"] == "bad"
    with pytest.raises(ConfigError):
        SegmentWriter(lambda _: None, SCHEMA, "gzip")


def test_another_schema_is_refused() -> None:
    writer = SegmentWriter(lambda _: None, SCHEMA)
    with pytest.raises(SchemaMismatch):
        writer.write(pa.record_batch({"row": [1]}))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_partitions_keep_all_rows_in_order(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("segments")
    partitions = data.draw(st.integers(1, 5))
    inline_max = data.draw(st.sampled_from([0, 2_000, 65_536]))
    file = SegmentFile.create(directory, NAME, inline_max=inline_max)
    writer = PartitionedWriter(
        SCHEMA,
        file,
        partitions=partitions,
        segment_max_bytes=data.draw(st.sampled_from([1, 1_000, 1 << 20])),
        memory=data.draw(st.sampled_from([1, 500, 1 << 20])),
        compression=data.draw(st.sampled_from(["none", "lz4"])),
    )
    expected: list[list[int]] = [[] for _ in range(partitions)]
    number = 0
    for _ in range(data.draw(st.integers(0, 5))):
        count = data.draw(st.integers(0, 30))
        batch = rows(0, number, count)
        if data.draw(st.booleans()):
            split = data.draw(st.integers(0, partitions - 1))
            writer.write(batch, split)
            expected[split] += range(number, number + count)
        else:
            numbers = data.draw(st.lists(st.integers(0, partitions - 1), min_size=count, max_size=count))
            writer.write(batch, pa.array(numbers, pa.int32()))
            for offset, split in enumerate(numbers):
                expected[split].append(number + offset)
        number += count
    infos = writer.finish(fsync=False)
    assert [stream_of(infos, directory, p) for p in range(partitions)] == expected
    assert writer.rows == number == sum(info.rows for info in infos)
    assert (directory / NAME).exists() == any(info.file for info in infos)
    assert all((info.file is None) == (file.length <= inline_max) for info in infos)


def test_record_batches_and_segments_are_bounded(tmp_path: Path) -> None:
    file = SegmentFile.create(tmp_path, NAME)
    writer = PartitionedWriter(SCHEMA, file, partitions=1, segment_max_bytes=3 << 20)
    writer.write(rows(0, 0, 200_000), 0)
    infos = writer.finish()
    batches = [batch for info in infos for batch in SegmentIndex.unpack(info.index).batches]
    assert max(count for count, _ in batches) == 65_536
    assert len(infos) > 1
    assert max(info.length for info in infos) < 8 << 20
    assert stream_of(infos, tmp_path, 0) == list(range(200_000))


def test_nothing_but_nulls_and_no_rows_at_all(tmp_path: Path) -> None:
    schema = pa.schema([("nothing", pa.null())])
    writer = PartitionedWriter(schema, SegmentFile.create(tmp_path, NAME, inline_max=9_999), partitions=2)
    writer.write(pa.record_batch([pa.nulls(3)], schema=schema), pa.array([1, 0, 1], pa.int32()))
    assert [(info.partition, info.rows) for info in writer.finish()] == [(0, 1), (1, 2)]
    empty = PartitionedWriter(SCHEMA, SegmentFile.create(tmp_path, NAME), partitions=2)
    empty.write(rows(0, 0, 0), 0)
    assert empty.finish() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("numbers", [[0, 2], [-1, 0], [0], [0, None]])
def test_wrong_partition_numbers_are_refused(tmp_path: Path, numbers: list[int | None]) -> None:
    writer = PartitionedWriter(SCHEMA, SegmentFile.create(tmp_path, NAME), partitions=2)
    with pytest.raises(SchemaMismatch):
        writer.write(rows(0, 0, 2), pa.array(numbers, pa.int32()))


def test_a_file_is_private_and_created_once(tmp_path: Path) -> None:
    FileSegmentSink(tmp_path / NAME).finish(fsync=True)
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
    with pytest.raises(SpoolError):
        FileSegmentSink(tmp_path / NAME)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpoolError):
        FileSegmentSink(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_short_writes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    sink = FileSegmentSink(tmp_path / NAME)
    sink.write(b"0123456789")
    sink.finish(fsync=False)
    assert (tmp_path / NAME).read_bytes() == b"0123456789"


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = PartitionedWriter(SCHEMA, SegmentFile.create(tmp_path, NAME), partitions=1)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SpoolFull) as caught:
        writer.write(rows(0, 0, 2), 0)
    assert caught.value.fields["errno"] == errno.ENOSPC
    with pytest.raises(SpoolError):  # a failed file stays failed
        writer.finish()
    writer.abort()
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_failed_fsync_is_never_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def failing(fd: int) -> None:
        calls.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    file = SegmentFile.create(tmp_path, NAME)
    file.begin(0, SCHEMA).write(rows(0, 0, 2))
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(SpoolError):
        file.finish(fsync=True)
    with pytest.raises(SpoolError):
        file.finish(fsync=True)
    assert len(calls) == 1
    file.abort()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("attempt", ["../../x", "a/b", "", "a b", "x" * 101])
def test_names_cannot_leave_the_directory(attempt: str) -> None:
    with pytest.raises(SpoolError):
        file_name("0123456789abcdef", attempt)
    assert write_id_of(f"0123456789abcdef-{attempt}.seg") is None


@pytest.mark.processes
@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("jobpipe.store.spool.partition_writer", "sqlite3"),
        ("jobpipe.store.spool.segment", "sqlite3"),
        ("jobpipe.publishing.batch_target", "sqlite3"),
        ("jobpipe.store.log.topic_log", "pyarrow"),
        ("jobpipe.store.reading.catalog_reader", "pyarrow"),
        ("jobpipe.coordinator.data.data_server", "pyarrow"),
        ("jobpipe.hostserver.host_handlers", "pyarrow"),
    ],
)
def test_what_is_never_loaded(module: str, never: str) -> None:
    """Spark workers that write segments need no SQLite; what moves bytes needs no Arrow."""
    code = f"import sys, {module}; assert {never!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
