"""The two ways a batch's rows become segments; both write the same bytes.

``collect`` brings the rows to the driver: least latency for small batches. ``tasks`` lets Spark's executors write them:
each task splits its rows into the publisher's partitions itself, without a shuffle.
"""

from __future__ import annotations

import concurrent.futures
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.taskcontext import TaskContext

from jobpipe.arrow.casting import cast_batch
from jobpipe.arrow.list_offsets import with_offsets
from jobpipe.arrow.schema_validation import require_readable
from jobpipe.errors import WaitTimeout
from jobpipe.publishing.batch_target import WriteTarget
from jobpipe.spark.options.partitioner import Partitioner, unnamed
from jobpipe.spark.session.collect_rows import collect_rows
from jobpipe.spark.session.python_workers import gc_freeze
from jobpipe.store.spool.segment_index import SegmentInfo

T = TypeVar("T")

RESULT_SCHEMA = "task int, ordinal int, info string, data binary"
ACTIVE_SECONDS = 0.1
TASK_INLINE_MAX = 8 * 1024  # many tasks' inline segments travel through one collect and one seal


@dataclass(frozen=True)
class RowLayout:
    """What is known of a batch's rows: how they are cast, and divided.

    Attributes:
        schema: what they become.
        partitioner: gives each row its partition.
        hashed: places of the columns that the partitioner hashes where rows are written; empty where Spark does.
    """

    schema: pa.Schema
    partitioner: Partitioner
    hashed: tuple[int, ...] = ()

    def divided(
        self, batches: Iterable[pa.RecordBatch], partitions: int, topic: str, task: int | None = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.Int32Array | int]]:
        """Yield record batches, cast, with the partitions of their rows.

        Args:
            partitions: how many there are.
            topic: where the rows go, for errors.
            task: that writes them; None in the driver.

        Raises:
            ConfigError: the partitioner's function is wrong.
            SchemaMismatch: a batch does not fit, or some subscriber could not read it.
        """
        width, names, before = len(self.schema), self.schema.names, 0
        where = f"topic {topic!r}" if task is None else f"topic {topic!r}, task {task}"
        for batch in batches:
            # Columns are known by their places: what Spark calls them here need not be what they are called.
            columns: Any = batch.columns[:width]
            named = pa.RecordBatch.from_arrays(columns, names=names) if columns else batch.select([])
            rows = cast_batch(named, self.schema, where)
            require_readable(where, rows, topic, before)
            before += rows.num_rows
            if batch.num_columns > width:
                numbers: Any = batch.column(width)  # int32, by number_rows
                yield rows, numbers
            elif rows.num_rows == 0:
                yield rows, 0
            elif self.hashed:  # as Spark has them: a cast may change the hash
                yield rows, self.partitioner.numbers(named, partitions, where, self.hashed)
            elif self.partitioner.function is not None:
                yield rows, self.partitioner.numbers(rows, partitions, where)
            else:
                yield rows, 0


def write_collected(
    batches: Sequence[pa.RecordBatch], target: WriteTarget, rows: RowLayout, active: Callable[[], bool]
) -> list[SegmentInfo]:
    """Write rows from the driver, into which they have come.

    Args:
        batches: the rows, with their partitions as last column where Spark has numbered them.
        target: where they go.
        rows: how they are cast and divided.
        active: turns false when the query is stopped.

    Raises:
        ConfigError: the partitioner's function is wrong.
        WaitTimeout: ``active()`` turned false while the disk did not answer.
    """
    divided: Iterable[tuple[pa.RecordBatch, pa.Int32Array | int]]
    divided = rows.divided(batches, target.partitions, target.topic)
    if sum(batch.nbytes for batch in batches) <= target.inline_max:  # a cast may make them larger
        divided = list(divided)
        if _is_small([batch for batch, _ in divided], rows.schema, target):
            return target.write(rows.schema, divided, "driver", small=True)  # no disk to wait for
    return _while_active(active, lambda: target.write(rows.schema, divided, "driver"), target.directory)


def _is_small(batches: list[pa.RecordBatch], schema: pa.Schema, target: WriteTarget) -> bool:
    """Tell whether the segments of these rows will be held in memory for sure, with what Arrow puts around them."""
    each = 4 * schema.serialize().size + 1024  # four times what was seen
    most = min(sum(batch.num_rows for batch in batches), target.partitions)
    return sum(batch.nbytes for batch in batches) + most * each <= target.inline_max // 2


def _while_active(active: Callable[[], bool], work: Callable[[], T], where: str) -> T:
    """Work in another thread, which is left to itself when the query stops: no hanging fsync can be interrupted."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            future.set_exception(error)

    threading.Thread(target=run, name="jobpipe-write", daemon=True).start()
    while not concurrent.futures.wait([future], ACTIVE_SECONDS).done:
        if not active():
            raise WaitTimeout(f"the query was stopped while the disk of {where} did not answer", directory=where)
    return future.result()


def write_by_tasks(df: DataFrame, target: WriteTarget, rows: RowLayout) -> list[SegmentInfo]:
    """Write the rows of ``df``, which Spark has numbered, or a function will, from its tasks.

    Returns:
        The segments of the attempts that won, in task order.
    """
    # mapInArrow takes names for expressions: a dot would be a path, and two that differ by case one name.
    written = collect_rows(unnamed(df).mapInArrow(_task(target, rows), RESULT_SCHEMA))
    return [
        SegmentInfo.from_json(json.loads(row["info"]), row["data"])
        for row in sorted(written, key=lambda row: (row["task"], row["ordinal"]))
    ]


def _task(target: WriteTarget, rows: RowLayout) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gc_freeze()
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - only ever called in a task
        task = context.partitionId()
        # The attempt *number* is used again by a retried stage; the attempt id never is.
        attempt = f"{task}-{context.taskAttemptId()}"
        pairs = rows.divided(map(with_offsets, batches), target.partitions, target.topic, task)
        infos = target.write(rows.schema, pairs, attempt)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([task] * len(infos), pa.int32()),
                pa.array(range(len(infos)), pa.int32()),
                pa.array([json.dumps(info.to_json()) for info in infos], pa.string()),
                pa.array([info.data for info in infos], pa.binary()),
            ],
            names=["task", "ordinal", "info", "data"],
        )

    return write
