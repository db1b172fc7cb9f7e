"""Drives the source's readers as Spark 4.3 does, without a JVM: same calls, same order, pickled where Spark pickles."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import InputPartition
from pyspark.sql.datasource_internal import ReadLimitRegistry
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from jobpipe.spark.schema.spark_arrow_schema import arrow_schema
from jobpipe.spark.source.data_source import JobPipeDataSource

CALLS = 2000  # of latestOffset in one run: far more than any log has record batches
PICKLE = CPickleSerializer()
Offset = dict[str, Any]


class Source(JobPipeDataSource):
    """The source in a session without settings, as ``jobpipe.register`` makes it."""

    settings: Mapping[str, str] | None = {}


@dataclass
class MicroBatch:
    """One micro-batch: its range in Spark's log, and the record batches of each of its input partitions."""

    start: Offset
    end: Offset
    read: list[list[pa.RecordBatch]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows were read."""
        return sum(batch.num_rows for partition in self.read for batch in partition)


@dataclass
class Checkpoint:
    """What Spark keeps of a query: its log of offsets, and how many of its batches are committed."""

    offsets: list[Offset] = field(default_factory=list)
    committed: int = 0
    batches: dict[int, MicroBatch] = field(default_factory=dict)


class Restart(Exception):
    """The query ended in the middle of a step."""


def _copied(thing: Any) -> Any:
    return PICKLE.loads(PICKLE.dumps(thing))


def _sent(offset: Offset) -> Offset:
    """An offset as it comes back from Spark: as text."""
    return json.loads(json.dumps(offset))  # type: ignore[no-any-return]


def _limit(limit: ReadLimit) -> ReadLimit:
    told = dataclasses.asdict(limit) | {"_type": type(limit).__name__}  # type: ignore[call-overload]
    return ReadLimitRegistry().get(json.loads(json.dumps(told)))


def _load(options: Mapping[str, str]) -> tuple[Source, StructType]:
    """Do what ``load()`` does: the source is made and asked in one process, and used in others."""
    source = Source(copy.copy(dict(options)))
    schema = StructType.fromJson(json.loads(source.schema().json()))
    return _copied(source), schema


def _read(reader: Any, partition: InputPartition, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in reader.read(_copied(partition)):
        assert batch.schema.equals(target), f"Spark takes only {target}, not {batch.schema}"
        batch.validate(full=True)
        yield batch


def read_batch(options: Mapping[str, str]) -> list[list[pa.RecordBatch]]:
    """Do what ``spark.read...load().collect()`` does; return the record batches of each input partition."""
    source, schema = _load(options)
    reader = _copied(source).reader(schema)
    partitions = reader.partitions() or [InputPartition(None)]
    worker = _copied(reader)
    with _in_tasks():
        return [list(_read(worker, partition, arrow_schema(schema))) for partition in partitions]


def run_stream(
    options: Mapping[str, str],
    checkpoint: Checkpoint,
    rng: random.Random,
    *,
    available_now: bool = False,
    enough: int | None = None,
    idle: int = 2,
    most: int | None = None,
    deadline: float = 300.0,
) -> None:
    """Run a query until nothing is new, from its checkpoint and back to it.

    Args:
        options: of the source.
        checkpoint: gets what Spark writes into its own, and what the micro-batches read.
        rng: decides where the query ends and starts again, one time in ten.
        available_now: the trigger.
        enough: go on asking until so many rows are read; without it until the source says so ``idle`` times.
        idle: how often in a row the source has to say that there is nothing new.
        most: stop when so many micro-batches are committed and acknowledged.
        deadline: seconds for all of it.

    Raises:
        AssertionError: the source broke Spark's rules, or did not come to an end.
    """
    began = time.monotonic()
    source, schema = _load(options)
    delay = options.get("maxTriggerDelay", "")
    hold = float(delay.removesuffix("ms")) / 1000 if delay.endswith("ms") else 0.0  # nobody waits for an hour
    while True:
        reader = _copied(source).streamReader(schema)
        try:
            run = _Run(source, reader, schema, checkpoint, rng, available_now, hold)
            run.to_the_end(enough, idle, most, began + deadline)
            return
        except Restart:
            continue
        finally:
            reader.stop()


class TaskFailed(AssertionError):
    """A task failed: what is wrong was to be found out before."""


class _in_tasks:  # noqa: N801 - used as a statement
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, AssertionError):
            raise TaskFailed(f"in a task: {error!r}") from error


class _Run:
    """One run of a query: Spark's MicroBatchExecution, for one source."""

    def __init__(
        self,
        source: Source,
        reader: Any,
        schema: StructType,
        checkpoint: Checkpoint,
        rng: random.Random,
        available_now: bool,
        hold: float,
    ) -> None:
        self._source = source
        self._reader = reader
        self._schema = schema
        self._checkpoint = checkpoint
        self._rng = rng
        self._available_now = available_now
        self._hold = hold  # seconds that rows may be held back for, once they are there

    def to_the_end(self, enough: int | None, idle: int, most: int | None, deadline: float) -> None:
        known = self._checkpoint
        if self._available_now:
            self._reader.prepareForTriggerAvailableNow()
        limit = _limit(self._reader.getDefaultReadLimit())
        if len(known.offsets) > known.committed:  # planned and not committed: the same range again
            start = known.offsets[-2] if known.committed else self._initial()
            self._execute(start, known.offsets[-1])
        start = _sent(known.offsets[-1]) if known.offsets else self._initial()
        quiet, since = 0, 0.0
        for _ in range(CALLS):
            asked = time.monotonic()
            end = self._reader.latestOffset(_sent(start), limit)
            if not known.offsets:
                assert self._initial() == start, "initialOffset changed its answer"
            if most is not None and known.committed >= most:
                return
            assert list(end) == sorted(end), f"not in canonical order: {end}"
            if json.dumps(end) == json.dumps(start):
                quiet += 1
                since = since if quiet > 1 else time.monotonic()
                read = sum(batch.rows for batch in known.batches.values())
                over = quiet >= idle and asked - since >= self._hold  # what was held back would have come
                if self._available_now or (over and (enough is None or read >= enough)):
                    return
            else:
                quiet = 0
                known.offsets.append(_sent(end))
                self._maybe_restart()
                if known.committed:
                    self._reader.commit(known.offsets[-2])
                self._execute(start, end)
                start = known.offsets[-1]
            assert time.monotonic() < deadline, f"no end in sight at {start}"
        raise AssertionError(f"no end in sight after {CALLS} calls at {start}")

    def _initial(self) -> Offset:
        return _sent(self._reader.initialOffset())

    def _execute(self, start: Offset, end: Offset) -> None:
        partitions = self._reader.partitions(_sent(start), _sent(end))
        batch_id, batch = self._checkpoint.committed, MicroBatch(start, end)
        for partition in partitions:
            self._maybe_restart()
            worker = _copied(_copied(self._source).streamReader(self._schema))
            with _in_tasks():
                batch.read.append(list(_read(worker, partition, arrow_schema(self._schema))))
        before = self._checkpoint.batches.get(batch_id)
        if before is not None:
            assert _rows(before) == _rows(batch), f"batch {batch_id} came again with other rows"
        self._checkpoint.batches[batch_id] = batch
        self._maybe_restart()
        self._checkpoint.committed += 1
        self._maybe_restart()

    def _maybe_restart(self) -> None:
        if self._rng.random() < 0.02:
            raise Restart


def _rows(batch: MicroBatch) -> list[list[Any]]:
    """Return the rows in an order of their own: a replay may be cut into other tasks."""
    rows = [list(row.values()) for pieces in batch.read for piece in pieces for row in piece.to_pylist()]
    return sorted(rows, key=lambda row: row[:4])
