"""Dead letters: the rows that a stage could not take, published with their errors before the good rows are written.

A stage marks such rows: a transform in ``apply_tolerant`` (column ``DEAD``), a source of files by what its parser could
not read (``UNPARSED``).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from jobpipe.errors import TooManyDeadLetters
from jobpipe.pipelines.dead_letters.letter_ledger import LetterLedger, note_of_run
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.model.graph import dead_letters_of
from jobpipe.pipelines.model.pipeline import Job, Pipeline
from jobpipe.pipelines.plugins.api import DEAD, ORIGIN, ORIGIN_FIELDS, REASON, UNPARSED, Transform
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.transforms.column_transforms import dead_struct, keep_source
from jobpipe.spark.schema.metadata_columns import METADATA
from jobpipe.spark.sink.foreach_batch_sink import JobPipeSink

log = logging.getLogger(__name__)

ROWS_LEAST = 100  # of a stream, of which max-ratio is a part
RETENTION_SECONDS = 7 * 24 * 3600.0  # that a topic keeps dead letters which no job of the file reads
Marked = list[tuple[DataFrame, Column, Column]]
"""Of each tolerant stage: its rows, which of them are dead, and the letter of one."""
DeadCounts = list[tuple[int, str]]
"""Of each tolerant stage: how many rows are dead, and the sum of their hashes."""
_HASHED = ("row", "topic", "offset", "partition", "row_number", "file")

COLUMNS = (
    "row STRING, error_class STRING, error_message STRING, stage STRING, pipeline STRING, job STRING, run STRING, "
    f"{ORIGIN_FIELDS.replace(':', '')}, source_row STRING, batch_id BIGINT, at TIMESTAMP"
)


def dead_letters_for(pipeline: Pipeline, job: Job, context: JobContext) -> DeadLetters | None:
    """Return what takes the micro-batches of a job apart; None if a bad row fails the job."""
    topic = dead_letters_of(pipeline, job)
    if topic is None:
        return None
    errors = job.spec.errors
    stages = [(stage.type, stage.make(context.run)) for stage in job.transforms]
    view, source = next(iter(job.sources.items()))
    final = job.spec.schedule is None and all(
        getattr(stage.plugin.options, "final", False) for stage in job.sinks if stage.plugin.topics().names
    )
    return DeadLetters(
        context, topic, source.type, stages, errors.max_ratio, view=view, retention=errors.retention, final=final
    )


class DeadLetters:
    """Takes each micro-batch of a job apart: each row is computed once, and is good or dead.

    Args:
        topic: of the dead letters, without the prefix.
        source: the type of the job's source.
        stages: the job's transforms with their types.
        max_ratio: of dead letters to the rows that a micro-batch brings, before any stage; None for no limit.
        view: the name of the source, by which a query can read its rows; None if it has none.
        retention: seconds that the topic keeps letters which no job of the file waits for; None: as by default.
        final: no letters will follow when the job has come to its end, so that readers of the topic may end as well.
    """

    def __init__(
        self,
        job: JobContext,
        topic: str,
        source: str,
        stages: Sequence[tuple[str, Transform]],
        max_ratio: float | None,
        *,
        view: str | None = None,
        retention: float | None = None,
        final: bool = False,
    ) -> None:
        self._job = job
        self._topic = topic
        self._source = source
        self._stages = stages
        self._max_ratio = max_ratio
        self._view = view
        self._retention = retention
        self._final = final
        self._sink: JobPipeSink | None = None
        self._ledger: LetterLedger | None = None
        self._dead = self._rows = 0  # of the micro-batches that are counted together

    def open(self, frame: DataFrame) -> DataFrame:
        """Take the topic over; return the good rows of no rows at all: their columns.

        Args:
            frame: rows as those that will come, a stream or not.
        """
        self._sink = JobPipeSink(**self.arguments())
        self._ledger = LetterLedger(frame.sparkSession, self._job.storage)
        self._ledger.forget_other_runs(self._note_of(0), self._job.check)
        empty = frame.sparkSession.createDataFrame([], frame.schema)
        with ExitStack() as stack:
            good, _ = self.split(empty, stack)
        return good

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the topic's JobPipeSink."""
        job = self._job
        subscribers = job.subscribers.get(self._topic, ())
        found: dict[str, Any] = {
            "topic": job.topic(self._topic),
            "name": job.name,
            "parallelism": 1,
            "schema": COLUMNS,
            "required_subscribers": subscribers,
        }
        retention = RETENTION_SECONDS if self._retention is None and not subscribers else self._retention
        return found if retention is None else {**found, "retention_time": f"{round(retention * 1000)}ms"}

    def handle(self, batch: DataFrame, batch_id: int, write: Callable[[DataFrame, int], None]) -> None:
        """Publish the dead letters of a micro-batch, and then write its good rows.

        What becomes of a row if two evaluations disagree: it is published as a dead letter, and may
        be written as well. It is not lost.

        Raises:
            TooManyDeadLetters: there are too many; nothing is published or written.
        """
        if self._ledger is None:
            self._ledger = LetterLedger(batch.sparkSession, self._job.storage)
        name = self._note_of(batch_id)
        with ExitStack() as stack:
            if self._max_ratio is not None and UNPARSED not in batch.columns:
                batch = _kept(batch, stack)  # so that to count it does not read the source again
            good, marked = self.split(batch, stack)
            counts = _count_dead(marked)  # this computes the rows
            dead = sum(count for count, _ in counts)
            self._check(dead, batch, batch_id)
            if dead:
                self._publish_noted(marked, counts, batch_id, name)
                log.warning("batch %d: %d dead letters went to topic %s", batch_id, dead, self._topic)
            write(good, batch_id)
            if marked and _may_lose_rows(batch) and (again := _count_dead(marked)) != counts:
                self._publish_again(_letters(marked, again), batch_id, "an executor was lost")
        self._ledger.forget(name)

    def _publish_noted(self, marked: Marked, counts: DeadCounts, batch_id: int, name: str) -> None:
        """Publish the letters; if others were noted for the same micro-batch, under an id of their own."""
        assert self._ledger is not None  # noqa: S101 - handle made them
        digest = " ".join(f"{count}:{sum_}" for count, sum_ in counts)
        noted = self._ledger.of(name)
        if noted is None:
            self._ledger.note(name, digest)
        letters = _letters(marked, counts)
        assert letters is not None  # noqa: S101 - there are some
        if noted is None or noted == digest:
            self._publish(letters, batch_id)
        else:
            self._publish_again(letters, batch_id, "it was repeated")

    def _note_of(self, batch_id: int) -> str:
        """Return the name of the note of a micro-batch; runs of a BATCH job have the same batch id."""
        if self._job.mode is Mode.BATCH:
            return note_of_run(self._job.run.id)
        return str(batch_id)

    def _check(self, dead: int, batch: DataFrame, batch_id: int) -> None:
        """Check that a micro-batch, which is kept, has not too many dead letters; stages may make more rows, or fewer.

        Micro-batches of a stream are counted together, from one with dead letters on, until they have ROWS_LEAST rows:
        one bad row that comes alone says nothing. Of fewer rows those are too many that would be too many of
        ROWS_LEAST.

        Raises:
            TooManyDeadLetters: it has.
        """
        if self._max_ratio is None or not (dead or self._dead):
            return
        self._dead += dead
        self._rows += batch.count()
        least = ROWS_LEAST if self._job.mode is Mode.STREAMING else 0
        if self._dead > self._max_ratio * max(self._rows, least):
            raise TooManyDeadLetters(
                f"job {self._job.name}, batch {batch_id}: {self._dead} dead letters of {self._rows} rows are more than "
                f"errors.max-ratio {self._max_ratio:g} allows",
                topic=self._topic,
            )
        if self._rows >= least:
            self._dead = self._rows = 0

    def split(self, batch: DataFrame, stack: ExitStack) -> tuple[DataFrame, Marked]:
        """Return the good rows; and, of each tolerant stage, its rows, which of them are dead, and the letter of one.

        The rows of a tolerant stage are kept until ``stack`` ends, so that what is good at one look is at the next.
        """
        marked: Marked = []
        good = batch
        if UNPARSED in batch.columns:
            frame, text = _kept(batch, stack), sf.col(UNPARSED)
            why = sf.lit("the source could not parse the row")
            why = sf.coalesce(sf.col(REASON), why) if REASON in batch.columns else why
            value = dead_struct(frame, sf.lit("MALFORMED_RECORD"), why).withField("row", text)
            marked.append((frame, text.isNotNull(), self._letter(value, self._source)))
            good = frame.where(text.isNull()).drop(UNPARSED, REASON)
        job = self._job if self._view is None else replace(self._job, views={self._view: good.drop(ORIGIN)})
        untouched = True
        for place, (kind, stage) in enumerate(self._stages):
            tolerant = stage.apply_tolerant(good, job) if stage.tolerant else None
            if tolerant is None:
                good, untouched = stage.apply(good.drop(ORIGIN), job), False
                continue
            if untouched and ORIGIN in good.columns and self._needs_source(good, tolerant, place):
                tolerant = stage.apply_tolerant(keep_source(good, (METADATA,)), job)
                assert tolerant is not None  # noqa: S101 - it was none of them before
            frame = _kept(tolerant, stack)
            letter = self._letter(sf.col(DEAD), kind, untouched=untouched and METADATA not in good.columns)
            marked.append((frame, sf.col(DEAD).isNotNull(), letter))
            untouched = False
            good = frame.where(sf.col(DEAD).isNull()).drop(DEAD)
        return good.drop(ORIGIN), marked

    def _needs_source(self, frame: DataFrame, after: DataFrame, place: int) -> bool:
        """Tell whether the source's columns must be kept aside: a later stage has others, or these have one more."""
        later = any(stage.tolerant for _, stage in self._stages[place + 1 :])
        return METADATA in frame.columns or (ORIGIN in after.columns and later)

    def _letter(self, dead: Column, stage: str, *, untouched: bool = False) -> Column:
        """Return what a dead letter says, as one column; ``untouched``: the stage's rows are those of the source.

        What is known of a source's row only its topic can use, so it is null for other sources.
        """
        job = self._job
        source_row = sf.coalesce(dead["source_row"], dead["row"]) if untouched else dead["source_row"]
        names = [part.split(":")[0] for part in ORIGIN_FIELDS.split(", ")]
        fields = [
            *(dead[name].alias(name) for name in ("row", "error_class", "error_message")),
            sf.lit(stage).alias("stage"),
            sf.lit(job.pipeline).alias("pipeline"),
            sf.lit(job.job).alias("job"),
            sf.lit(job.run.id).alias("run"),
            *(dead[name].alias(name) for name in names),
            sf.when(dead["topic"].isNotNull(), source_row).alias("source_row"),
        ]
        return sf.struct(*fields).alias("letter")

    def _publish(self, letters: DataFrame, batch_id: int) -> None:
        assert self._sink is not None  # noqa: S101 - open made it
        rows = _with_batch(letters, batch_id)
        if self._job.mode is Mode.BATCH:
            self._sink.publish(rows, batch_id, series=f"{self._job.name}:{self._job.run.id}:dead", once=True)
        else:
            self._sink(rows, batch_id)

    def _publish_again(self, letters: DataFrame | None, batch_id: int, why: str) -> None:
        """Publish letters of a micro-batch some of whose letters were published before."""
        assert self._sink is not None  # noqa: S101 - open made it
        if letters is not None:
            said = "batch %d: %s, and other rows were dead: its dead letters are published again"
            log.warning(said, batch_id, why)
            self._sink.publish(
                _with_batch(letters, batch_id), 0, series=f"{self._job.name}:dead:{uuid.uuid4()}", once=True
            )

    def close(self, *, ended: bool) -> None:
        """Give the topic up; with ``final`` it ends with the job."""
        if self._sink is not None:
            self._sink.close(final=ended and self._final)
            self._sink = None


def _kept(frame: DataFrame, stack: ExitStack) -> DataFrame:
    kept = frame.persist()
    stack.callback(kept.unpersist)
    return kept


def _count_dead(marked: Marked) -> DeadCounts:
    """Return how many rows of each stage are dead, and a sum that depends on which ones."""
    found = []
    for frame, is_dead, letter in marked:
        dead = frame.where(is_dead).select(letter)
        hashed = sf.xxhash64(*(sf.col(f"letter.{name}") for name in _HASHED)).cast("decimal(20, 0)")
        (row,) = dead.agg(sf.count(sf.lit(1)).alias("count"), sf.sum(hashed).alias("sum")).collect()
        found.append((int(row["count"]), str(row["sum"] or 0)))
    return found


def _letters(marked: Marked, counts: DeadCounts) -> DataFrame | None:
    """Return the letters of those stages that have some."""
    found = [
        frame.where(is_dead).select(letter)
        for (frame, is_dead, letter), (count, _) in zip(marked, counts, strict=True)
        if count
    ]
    return reduce(DataFrame.unionAll, found) if found else None


def _with_batch(letters: DataFrame, batch_id: int) -> DataFrame:
    rows = letters.select("letter.*", sf.lit(batch_id).cast("bigint").alias("batch_id"))
    return rows.withColumn("at", sf.current_timestamp()).coalesce(1)


def _may_lose_rows(frame: DataFrame) -> bool:
    """Whether rows that are kept may be lost with an executor, and then be computed again."""
    context: Any = frame.sparkSession.sparkContext
    return not context._jsc.sc().isLocal()
