"""Dead letters: the rows that a stage could not take, published with their errors before the good rows are written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from jobpipe.errors import TooManyDeadLetters
from jobpipe.pipelines.context import JobContext
from jobpipe.pipelines.plugins import DEAD, ORIGIN, ORIGIN_FIELDS, UNPARSED, Transform
from jobpipe.pipelines.spec import Mode
from jobpipe.pipelines.transforms.columns import dead_struct
from jobpipe.spark.sink import JobPipeSink

log = logging.getLogger(__name__)

COLUMNS = (
    "row STRING, error_class STRING, error_message STRING, stage STRING, pipeline STRING, job STRING, run STRING, "
    f"{ORIGIN_FIELDS.replace(':', '')}, batch_id BIGINT, at TIMESTAMP"
)


class DeadLetters:
    """Takes each micro-batch of a job apart: each row is computed once, and is good or dead.

    Args:
        topic: of the dead letters, without the prefix.
        source: the type of the job's source.
        stages: the job's transforms with their types.
        max_ratio: of dead letters to the rows that a micro-batch brings, before any stage; None for no limit.
    """

    def __init__(
        self,
        job: JobContext,
        topic: str,
        source: str,
        stages: Sequence[tuple[str, Transform]],
        max_ratio: float | None,
    ) -> None:
        self._job = job
        self._topic = topic
        self._source = source
        self._stages = stages
        self._max_ratio = max_ratio
        self._sink: JobPipeSink | None = None

    def open(self, frame: DataFrame) -> DataFrame:
        """Take the topic over; return the good rows of no rows at all: their columns.

        Args:
            frame: rows as those that will come, a stream or not.
        """
        job = self._job
        self._sink = JobPipeSink(
            job.topic(self._topic),
            name=job.name,
            parallelism=1,
            schema=COLUMNS,
            required_subscribers=job.subscribers.get(self._topic, ()),
        )
        empty = frame.sparkSession.createDataFrame([], frame.schema)
        with ExitStack() as stack:
            good, _ = self.parted(empty, stack)
        return good

    def handle(self, batch: DataFrame, batch_id: int, write: Callable[[DataFrame, int], None]) -> None:
        """Publish the dead letters of a micro-batch, and then write its good rows.

        Raises:
            TooManyDeadLetters: there are too many; nothing is published or written.
        """
        with ExitStack() as stack:
            if self._max_ratio is not None and UNPARSED not in batch.columns:
                batch = _kept(batch, stack)  # so that to count it does not read the source again
            good, marked = self.parted(batch, stack)
            counts = [frame.where(is_dead).count() for frame, is_dead, _ in marked]  # this computes the rows
            if dead := sum(counts):
                self._check(dead, batch, batch_id)
                letters = [
                    frame.where(is_dead).select(letter)
                    for (frame, is_dead, letter), count in zip(marked, counts, strict=True)
                    if count
                ]
                self._publish(reduce(DataFrame.unionAll, letters), batch_id)
                log.warning("batch %d: %d dead letters went to topic %s", batch_id, dead, self._topic)
            write(good, batch_id)

    def _check(self, dead: int, batch: DataFrame, batch_id: int) -> None:
        """Check that a micro-batch, which is kept, has not too many dead letters; stages may make more rows, or fewer.

        Raises:
            TooManyDeadLetters: it has.
        """
        if self._max_ratio is not None and dead > self._max_ratio * (total := batch.count()):
            raise TooManyDeadLetters(
                f"job {self._job.name}, batch {batch_id}: {dead} dead letters of {total} rows are more than "
                f"errors.max-ratio {self._max_ratio:g} allows",
                topic=self._topic,
            )

    def parted(self, batch: DataFrame, stack: ExitStack) -> tuple[DataFrame, list[tuple[DataFrame, Column, Column]]]:
        """Return the good rows; and, of each tolerant stage, its rows, which of them are dead, and the letter of one.

        The rows of a tolerant stage are kept until ``stack`` ends, so that what is good at one look is at the next.
        """
        marked: list[tuple[DataFrame, Column, Column]] = []
        good = batch
        if UNPARSED in batch.columns:
            frame, text = _kept(batch, stack), sf.col(UNPARSED)
            why = sf.lit("the source's parser could not take it")
            value = dead_struct(frame, sf.lit("MALFORMED_RECORD"), why).withField("row", text)
            marked.append((frame, text.isNotNull(), self._letter(value, self._source)))
            good = frame.where(text.isNull()).drop(UNPARSED)
        for kind, stage in self._stages:
            tolerant = stage.apply_tolerant(good, self._job) if stage.tolerant else None
            if tolerant is None:
                good = stage.apply(good.drop(ORIGIN), self._job)
                continue
            frame = _kept(tolerant, stack)
            marked.append((frame, sf.col(DEAD).isNotNull(), self._letter(sf.col(DEAD), kind)))
            good = frame.where(sf.col(DEAD).isNull()).drop(DEAD)
        return good.drop(ORIGIN), marked

    def _letter(self, dead: Column, stage: str) -> Column:
        """Return what a dead letter says, as one column."""
        job = self._job
        names = [part.split(":")[0] for part in ORIGIN_FIELDS.split(", ")]
        fields = [
            *(dead[name].alias(name) for name in ("row", "error_class", "error_message")),
            sf.lit(stage).alias("stage"),
            sf.lit(job.pipeline).alias("pipeline"),
            sf.lit(job.job).alias("job"),
            sf.lit(job.run.id).alias("run"),
            *(dead[name].alias(name) for name in names),
        ]
        return sf.struct(*fields).alias("letter")

    def _publish(self, letters: DataFrame, batch_id: int) -> None:
        assert self._sink is not None  # noqa: S101 - open made it
        rows = letters.select("letter.*", sf.lit(batch_id).cast("bigint").alias("batch_id"))
        rows = rows.withColumn("at", sf.current_timestamp()).coalesce(1)
        if self._job.mode is Mode.BATCH:
            self._sink.publish(rows, batch_id, series=f"{self._job.name}:{self._job.run.id}:dead")
        else:
            self._sink(rows, batch_id)

    def close(self, *, ended: bool) -> None:
        """Give the topic up; it ends with the job."""
        if self._sink is not None:
            self._sink.close(final=ended)
            self._sink = None


def _kept(frame: DataFrame, stack: ExitStack) -> DataFrame:
    kept = frame.persist()
    stack.callback(kept.unpersist)
    return kept
