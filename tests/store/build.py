"""Small logs for the store's tests, and the reading of them as a subscriber would."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from jobpipe.store.catalog.position import Position
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.catalog_reader import CatalogReader, SegmentRange
from jobpipe.store.spool.partition_writer import PartitionedWriter
from jobpipe.store.spool.segment import SegmentFile
from jobpipe.store.spool.segment_index import INLINE_MAX, SegmentInfo
from jobpipe.store.spool.spool_files import file_name, new_write_id

TOPIC = "orders"
FIRST = 1_000_000_000  # number of the first row of batch 0: all rows are equally long
SCHEMA = pa.schema([("partition", pa.int32()), ("row", pa.int64()), ("text", pa.string())])
_opened: list[TopicLog] = []


def look_into(home: Path, *, fsync: bool = True, **more: object) -> TopicLog:
    """Open the log; a home named ``shared`` is one that other hosts reach too."""
    log = TopicLog.open(home / TOPIC, TOPIC, fsync=fsync, shared=home.name == "shared", **more)
    _opened.append(log)
    return log


def close_logs() -> None:
    """Close the connections of the logs that were opened here: a test may leave them to its end."""
    while _opened:
        _opened.pop()._db.close()


def open_log(home: Path, *, epoch: int | None = None, fsync: bool = False, **more: object) -> TopicLog:
    log = look_into(home, fsync=fsync, **more)
    log.take_over(log.epoch + 1 if epoch is None else epoch, "publisher")
    return log


def rows(partition: int, first: int, count: int, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    columns = [
        pa.array([partition] * count, pa.int32()),
        pa.array(range(first, first + count), pa.int64()),
        pa.array([f"{partition}/{number}" for number in range(first, first + count)]),
    ]
    return pa.record_batch(columns, schema=schema)


def written(
    log: TopicLog,
    batches: Iterable[tuple[int, pa.RecordBatch]],
    *,
    partitions: int = 2,
    inline: bool = True,
    segment_max_bytes: int = 1 << 20,
    write_id: str | None = None,
    compression: str = "none",
    fsync: bool = False,
) -> tuple[str, list[SegmentInfo]]:
    write_id = write_id or new_write_id()
    file = SegmentFile.create(log.segments, file_name(write_id, "0"), inline_max=INLINE_MAX if inline else 0)
    writer = PartitionedWriter(
        SCHEMA, file, partitions=partitions, segment_max_bytes=segment_max_bytes, compression=compression
    )
    for partition, batch in batches:
        writer.write(batch, partition)
    return write_id, writer.finish(fsync=fsync)


def seal(
    log: TopicLog,
    batch_id: int,
    layout: Sequence[Sequence[int]] = ((1,), (1,)),
    *,
    query: str = "q",
    run: str = "run",
    inline: bool = True,
    partitioner: str = "rr",
    segment_max_bytes: int = 1 << 20,
    first_row: int | None = None,
    fsync: bool = False,
) -> Position:
    """Seal one batch; ``layout[p]`` holds the rows of each record batch of partition p."""
    number = FIRST + batch_id * 1_000_000 if first_row is None else first_row
    parts = []
    for partition, sizes in enumerate(layout):
        first = number
        for size in sizes:
            parts.append((partition, rows(partition, first, size)))
            first += size
    write_id, segments = written(
        log, parts, partitions=len(layout), inline=inline, segment_max_bytes=segment_max_bytes, fsync=fsync
    )
    schema_id = log.schemas.add(SCHEMA.serialize().to_pybytes(), None)
    return log.seal(NewBatch(query, batch_id, run, write_id, schema_id, len(layout), partitioner), segments)


def piece_bytes(piece: SegmentRange) -> bytes:
    """The stream that a piece's chunks make, each chunk checked."""
    if piece.data is not None:
        segment = piece.data
    else:
        assert piece.path is not None
        segment = piece.path.read_bytes()[piece.offset :]
    parts = [segment[chunk.offset : chunk.offset + chunk.length] for chunk in piece.chunks]
    for part, chunk in zip(parts, piece.chunks, strict=True):
        if len(part) != chunk.length or zlib.crc32(part) != chunk.crc:
            raise AssertionError(f"chunk at {chunk.offset} of {piece.path} is damaged")
    return b"".join(parts)


def decode(piece: SegmentRange) -> pa.Table:
    table = pa.ipc.open_stream(piece_bytes(piece)).read_all()
    table.validate(full=True)
    assert table.num_rows == piece.rows
    return table


def pieces_of(
    reader: CatalogReader, start: Position, end: Position, partition: int, *, skip: int = 0, limit: int = 64
) -> list[SegmentRange]:
    found: list[SegmentRange] = []
    cursor = None
    while True:
        page, cursor = reader.segments(start, end, partition, skip=skip, limit=limit, cursor=cursor)
        found += page
        if cursor is None:
            return found


def read(
    reader: CatalogReader, start: Position, end: Position, partition: int, *, skip: int = 0, limit: int = 64
) -> list[tuple[int, int]]:
    """(offset, row) of all rows of one partition in a range."""
    return [
        (piece.n, row)
        for piece in pieces_of(reader, start, end, partition, skip=skip, limit=limit)
        for row in decode(piece)["row"].to_pylist()
    ]
