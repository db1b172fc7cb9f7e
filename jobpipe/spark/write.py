"""The two ways a batch's rows become segments; both write the same bytes.

``collect`` brings the rows to the driver: least latency for small batches. ``tasks`` lets Spark's executors write them:
each task splits its rows into the publisher's partitions itself, without a shuffle.
"""

from __future__ import annotations

import concurrent.futures
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.taskcontext import TaskContext

from jobpipe.errors import WaitTimeout
from jobpipe.publisher.target import WriteTarget
from jobpipe.spark.collecting import collect_rows
from jobpipe.spark.partitioner import Partitioner, unnamed
from jobpipe.spark.workers import gc_freeze
from jobpipe.store.index import SegmentInfo
from jobpipe.subscriber.casting import cast_batch

T = TypeVar("T")

RESULT_SCHEMA = "task int, ordinal int, info string, data binary"
ACTIVE_SECONDS = 0.1
TASK_INLINE_MAX = 8 * 1024  # many tasks' inline segments travel through one collect and one seal


def _pairs(
    batches: Iterator[pa.RecordBatch], target: WriteTarget, partitioner: Partitioner, schema: pa.Schema, where: str
) -> Iterator[tuple[pa.RecordBatch, pa.Int32Array | int]]:
    for batch in batches:
        # Columns are known by their places: what Spark calls them here need not be what they are called.
        columns: Any = batch.columns[: len(schema)]
        named = pa.RecordBatch.from_arrays(columns, names=schema.names) if columns else batch.select([])
        rows = cast_batch(named, schema, where)
        if batch.num_columns > len(schema):
            numbers: Any = batch.column(len(schema))  # int32, by number_rows
            yield rows, numbers
            continue
        if partitioner.function is None or rows.num_rows == 0:
            yield rows, 0
        else:
            yield rows, partitioner.numbers(rows, target.partitions, where)


def write_by_collect(
    df: DataFrame, target: WriteTarget, partitioner: Partitioner, schema: pa.Schema, active: Callable[[], bool]
) -> list[SegmentInfo]:
    """Write the rows of ``df``, which the partitioner has numbered, from the driver.

    Bounded by ``spark.driver.maxResultSize``.

    Raises:
        ConfigError: the partitioner's function is wrong.
        WaitTimeout: ``active()`` turned false while the disk did not answer.
    """
    # What toArrow() does before its last step, a cast that refuses a null struct whose children may not be null.
    collected: Any = df
    batches = collected._collect_as_arrow(empty_list_if_zero_records=True)
    pairs = _pairs(iter(batches), target, partitioner, schema, f"topic {target.topic!r}")
    if _is_small(batches, schema, target):
        return target.write(schema, pairs, "driver", small=True)  # no disk to wait for
    return _while_active(active, lambda: target.write(schema, pairs, "driver"), target.directory)


def _is_small(batches: list[pa.RecordBatch], schema: pa.Schema, target: WriteTarget) -> bool:
    """Tell whether the segments of these rows will be held in memory for sure, with what Arrow puts around them."""
    if any(batch.schema.types[: len(schema)] != schema.types for batch in batches):
        return False  # a cast may make them larger
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


def write_by_tasks(
    df: DataFrame, target: WriteTarget, partitioner: Partitioner, schema: pa.Schema
) -> list[SegmentInfo]:
    """Write the rows of ``df``, which the partitioner has numbered, from its tasks.

    Returns:
        The segments of the attempts that won, in task order.
    """
    # mapInArrow takes names for expressions: a dot would be a path, and two that differ by case one name.
    rows = collect_rows(unnamed(df).mapInArrow(_task(target, partitioner, schema), RESULT_SCHEMA))
    return [
        SegmentInfo.from_json(json.loads(row["info"]), row["data"])
        for row in sorted(rows, key=lambda row: (row["task"], row["ordinal"]))
    ]


def _task(
    target: WriteTarget, partitioner: Partitioner, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gc_freeze()
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - only ever called in a task
        task = context.partitionId()
        # The attempt *number* is used again by a retried stage; the attempt id never is.
        attempt = f"{task}-{context.taskAttemptId()}"
        pairs = _pairs(batches, target, partitioner, schema, f"topic {target.topic!r}, task {task}")
        infos = target.write(schema, pairs, attempt)
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
