"""Which batches the driver writes without a thread of their own: only those that surely touch no disk."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path

import pyarrow as pa
import pytest

from jobpipe.errors import LinkError
from jobpipe.publishing.batch_target import WriteTarget
from jobpipe.spark.options.partitioner import Partitioner
from jobpipe.spark.sink.segment_writers import RowLayout, _is_small, write_collected
from jobpipe.store.spool.segment_index import INLINE_MAX, SegmentInfo
from jobpipe.store.spool.spool_files import new_write_id

SEED = int(os.environ.get("JOBPIPE_SEED") or random.SystemRandom().randrange(10**6))
TYPES = [pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.decimal128(38, 2), pa.list_(pa.int32())]
TYPES += [pa.struct([("a", pa.int8()), ("b", pa.struct([("c", pa.string())]))]), pa.map_(pa.string(), pa.int64())]


@pytest.fixture
def target(tmp_path: Path) -> WriteTarget:
    """Where nothing can be written: its folder does not exist."""
    return WriteTarget(
        topic="t",
        directory=str(tmp_path / "nowhere"),
        instance="i",
        data="127.0.0.1:1",
        tls=None,
        write_id=new_write_id(),
        partitions=1,
        segment_max_bytes=1 << 20,
        compression="none",
        fsync=True,
        inline_max=INLINE_MAX,
    )


def rows_of(types: list[pa.DataType], number: int) -> pa.RecordBatch:
    """Return rows of null: around them Arrow puts as much as around any others."""
    return pa.record_batch({f"column{n}": pa.nulls(number, kind) for n, kind in enumerate(types)})


def test_what_is_small_makes_no_file(target: WriteTarget) -> None:
    """Of random shapes, with each compression, and with more partitions than rows."""
    print(f"JOBPIPE_SEED={SEED}")
    rng = random.Random(SEED)
    small = 0
    for _ in range(200):
        batch = rows_of(rng.choices(TYPES, k=rng.randint(1, 60)), rng.randint(1, 300))
        wanted = dataclasses.replace(
            target, partitions=rng.choice((1, 4, 200)), compression=rng.choice(("none", "lz4", "zstd"))
        )
        if not _is_small([batch], batch.schema, wanted):
            continue
        small += 1
        numbers = pa.array([n % wanted.partitions for n in range(batch.num_rows)], pa.int32())
        assert all(info.file is None for info in wanted.write(batch.schema, [(batch, numbers)], "0", small=True))
    assert 20 < small < 180


@pytest.mark.parametrize(("rows", "columns", "partitions"), [(200, 5, 200), (16, 60, 16)])
def test_many_partitions_are_not_small(target: WriteTarget, rows: int, columns: int, partitions: int) -> None:
    """Few bytes of rows, and much around them."""
    batch = rows_of([pa.int64()] * columns, rows)
    assert batch.nbytes < INLINE_MAX // 4
    assert not _is_small([batch], batch.schema, dataclasses.replace(target, partitions=partitions))
    assert _is_small([batch], batch.schema, target)


@pytest.mark.parametrize("rows", [100, 10_000])
def test_what_is_cast_is_judged_by_what_it_becomes(target: WriteTarget, rows: int) -> None:
    """The published type may be the larger one: 16 bytes for one."""
    batch = pa.record_batch({"column0": pa.array([n % 100 for n in range(rows)], pa.int8())})
    assert batch.nbytes < INLINE_MAX // 4
    wanted = RowLayout(pa.schema({"column0": pa.decimal128(38, 2)}), Partitioner.choose("t", None, None))

    def write() -> list[SegmentInfo]:
        return write_collected([batch], target, wanted, lambda: True)

    if rows * 16 < INLINE_MAX // 2:
        assert [segment.file for segment in write()] == [None]
    else:
        with pytest.raises(LinkError, match=r"127\.0\.0\.1:1"):  # no folder is there: the coordinator is to take it
            write()
