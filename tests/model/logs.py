"""Random logs, written through the real store, and what they hold as plain rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from jobpipe.store.catalog.position import Position
from jobpipe.store.log.retention import Retention
from jobpipe.store.log.seal import NewBatch
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.spool.partition_writer import PartitionedWriter
from jobpipe.store.spool.segment import SegmentFile
from jobpipe.store.spool.segment_index import INLINE_MAX, SegmentIndex, SegmentInfo
from jobpipe.store.spool.spool_files import file_name, new_write_id

Numbers = tuple[tuple[int, ...], ...]  # of each record batch of each partition

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("n", pa.int64()),
        ("partition", pa.int32()),
        ("row", pa.int64()),
        ("text", pa.string()),
    ]
)
BEGAN = 1_600_000_000_000  # milliseconds since 1970 UTC: about when the first batches are published


class Row(NamedTuple):
    """A published row: where it lies and when it was published, in milliseconds since 1970 UTC."""

    topic: str
    n: int
    partition: int
    row: int
    time: int


class Piece(NamedTuple):
    """One record batch: its partition, the number of its first row there, its rows and bytes."""

    partition: int
    first: int
    rows: int
    size: int


@dataclass(frozen=True)
class Batch:
    """A sealed batch.

    Attributes:
        time: When it was published, in milliseconds since 1970 UTC.
        layout: For each partition the rows of its record batches.
        sizes: For each partition their bytes; a segment's schema counts with its first record batch.
    """

    n: int
    epoch: int
    publisher: str
    time: int
    layout: Numbers
    sizes: Numbers
    is_end: bool = False

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(map(sum, self.layout))

    def record_batches(self) -> list[Piece]:
        """Return the record batches in the order in which positions count them."""
        ordered = []
        for partition, counts in enumerate(self.layout):
            first = 0
            for index, rows in enumerate(counts):
                ordered.append((index, Piece(partition, first, rows, self.sizes[partition][index])))
                first += rows
        return [piece for _, piece in sorted(ordered)]


@dataclass
class Log:
    """What was written: all batches, of which those before ``tail`` were removed."""

    topic: str
    log_id: str = ""
    tail: int = 0
    batches: list[Batch] = field(default_factory=list)

    @property
    def head(self) -> int:
        """The offset behind the newest batch."""
        return len(self.batches)

    def pieces(self) -> Iterator[tuple[tuple[int, int], Piece]]:
        """Yield each record batch there ever was, with (n, r): the place right before it."""
        for batch in self.batches:
            for r, piece in enumerate(batch.record_batches()):
                yield (batch.n, r), piece

    def rows(self) -> Iterator[tuple[tuple[int, int], Row]]:
        """Yield each row there ever was, with the place right before its record batch."""
        for place, piece in self.pieces():
            for row in range(piece.first, piece.first + piece.rows):
                yield place, Row(self.topic, place[0], piece.partition, row, self.batches[place[0]].time)

    def position(self, n: int, r: int = 0) -> Position:
        """Return the position at offset ``n``, behind ``r`` record batches of it."""
        return Position(self.log_id, self.batches[n - 1].epoch if n else 0, n, r)

    def __str__(self) -> str:
        shown = "\n".join(
            f"    {b.n}: epoch {b.epoch}, +{b.time - BEGAN} ms, "
            + ("end mark" if b.is_end else " | ".join(",".join(map(str, sizes)) for sizes in b.layout))
            for b in self.batches
        )
        return f"  topic {self.topic}: batches from {self.tail} to {self.head}\n{shown}"


def write_log(topic: str, spool: Path, rng: random.Random) -> Log:
    """Write a random log to ``spool/topic``: publishers that come and go, of other parallelism, and retention."""
    made = Log(topic)
    clock = BEGAN + rng.randrange(1000)
    log = TopicLog.open(spool / topic, topic, fsync=False, wall=lambda: (clock + 0.5) / 1000)
    made.log_id = log.log_id
    schema_id = log.schemas.add(SCHEMA.serialize().to_pybytes(), None)
    left = rng.choice((0, 1, 2, *(rng.randrange(31) for _ in range(6)), 30))
    batch_id, newest = 0, 0
    while made.head < left or batch_id == 0:
        log.take_over(log.epoch + rng.randint(1, 3), publisher := f"publisher of epoch {log.epoch}")
        partitions = rng.randint(1, 5)
        for _ in range(rng.randint(1, 12)):
            # Ties, small steps, gaps, and a clock that is set back, which published times never follow.
            clock += rng.choice((0, 0, 1, rng.randrange(100), 60_000, -rng.randrange(500)))
            is_end = (made.head + 1 == left and rng.random() < 0.5) or (made.head < left and rng.random() < 0.04)
            if is_end:
                same = len(made.batches[-1].layout) if made.batches else partitions  # an end mark changes no shape
                log.seal(NewBatch.end_mark(same), [])
                layout = sizes = ((),) * same
            else:
                layout = _layout(partitions, rng) if made.head < left else ((),) * partitions
                write_id, segments = _write(log, made.head, layout, rng)
                sizes = _sizes(segments, partitions)
                batch = NewBatch("q", batch_id, "run", write_id, schema_id, partitions, "rr")
                log.seal(batch, segments)
            batch_id += 1
            if is_end or any(map(sum, layout)):  # a batch without rows takes no offset
                newest = max(newest, clock)
                made.batches.append(Batch(made.head, log.epoch, publisher, newest, layout, sizes, is_end))
            log.clock.tick(1.0)
            if is_end:
                break
    if made.head and rng.random() < 0.5:
        kept = rng.randint(0, made.head)
        removed = log.cleaner.retain(
            Retention(time=kept * 1.0 + 0.5, bytes=1 << 60, ack_grace=0, subscription_expiry=1e9)
        )
        made.tail = removed.batches
    assert (log.batches.tail().n, log.batches.head().n) == (made.tail, made.head)
    assert log.batches.head() == made.position(made.head)
    log.close()
    return made


def _layout(partitions: int, rng: random.Random) -> Numbers:
    most = rng.choice((1, 3, 9, 9, 40))
    return tuple(tuple(rng.randint(1, most) for _ in range(rng.choice((0, 1, 1, 2, 5)))) for _ in range(partitions))


def _sizes(segments: list[SegmentInfo], partitions: int) -> Numbers:
    sizes: list[list[int]] = [[] for _ in range(partitions)]
    for segment in segments:
        index = SegmentIndex.unpack(segment.index)
        for number in range(len(index.batches)):
            sizes[segment.partition].append(index.cost(number))
    return tuple(map(tuple, sizes))


def _write(log: TopicLog, n: int, layout: Numbers, rng: random.Random) -> tuple[str, list[SegmentInfo]]:
    """Write a batch as one of many tasks would: partitions by turns, in segments of one record batch or of more."""
    write_id = new_write_id()
    file = SegmentFile.create(log.segments, file_name(write_id, "0"), inline_max=rng.choice((0, INLINE_MAX)))
    writer = PartitionedWriter(
        SCHEMA,
        file,
        partitions=len(layout),
        segment_max_bytes=rng.choice((1, 1 << 20)),
        compression=rng.choice(("none", "none", "zstd")),
    )
    turns = [partition for partition, sizes in enumerate(layout) for _ in sizes]
    rng.shuffle(turns)
    done = [0] * len(layout)
    first = [0] * len(layout)
    for partition in turns:
        size = layout[partition][done[partition]]
        writer.write(_record_batch(log.topic, n, partition, first[partition], size), partition)
        done[partition] += 1
        first[partition] += size
    return write_id, writer.finish(fsync=False)


def _record_batch(topic: str, n: int, partition: int, first: int, size: int) -> pa.RecordBatch:
    numbers = range(first, first + size)
    texts = [f"{n}/{partition}/{row}" + "." * (row % 50) for row in numbers]
    columns = [[topic] * size, [n] * size, [partition] * size, list(numbers), texts]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)
