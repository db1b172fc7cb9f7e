"""A query: sources, transforms and sinks put together, as a stream or as a run with an end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobpipe.jobs.workloads.error_location import (
    at_rows,
    at_sink,
    at_stage,
    place_of,
    reason_in,
    stage_of,
    transform_in,
)
from jobpipe.jobs.workloads.progress_reports import Reporter
from jobpipe.jobs.workloads.query_shape import claim_shape, shape_of
from jobpipe.jobs.workloads.routed_sink import RoutedSink
from jobpipe.jobs.workloads.stop_request import StopRequest
from jobpipe.jobs.workloads.workload import WorkloadOutcome, failure
from jobpipe.pipelines.checkpoints.checkpoint_storage import storage_of
from jobpipe.pipelines.dead_letters.dead_letter_split import DeadLetters, dead_letters_for
from jobpipe.pipelines.file.spec import Mode, SourceSpec
from jobpipe.pipelines.model.graph import subscriptions_of
from jobpipe.pipelines.model.pipeline import Job, Pipeline, Stage
from jobpipe.pipelines.model.routes import Routes, routes_of
from jobpipe.pipelines.plugins.api import Sink, Source
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.plugins.start_query import start_for_each_batch
from jobpipe.pipelines.sources.csv_lines import require_no_file_functions
from jobpipe.spark.termination.await_termination import end_jobs, wait_for
from jobpipe.spark.termination.query_job import QueryJob
from jobpipe.store.subscriptions.hop_times import TimeHistogram

log = logging.getLogger(__name__)

COUNT_SECONDS = 1.0
NAMED_SOURCES = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}
"""Spark's settings, since 4.2, by which a query knows its sources by their names; then each must have one."""


class QueryWorkload:
    """Runs a query."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, job: Job, context: JobContext, reporter: Reporter
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._job = job
        modes = [mode for stage in job.sinks if (mode := getattr(stage.spec, "output_mode", None)) is not None]
        self._context = replace(context, output_mode=modes[0] if modes else None)
        self._routes = routes_of(job)
        self._progress = _Progress(reporter)
        self._failed_at = ""

    def run(self, stop: StopRequest) -> WorkloadOutcome:
        """Run it to its end."""
        sinks = self._sinks() if self._routes is None else [self._make_routed_sink(self._routes)]
        dead = dead_letters_for(self._pipeline, self._job, self._context)
        ended = False
        try:
            if self._job.mode is Mode.BATCH:
                with stop.interrupting():  # a run is repeated as a whole
                    done = self._batch(sinks, dead)
            else:
                done = self._stream(sinks, dead, stop)
            ended = not done.error and not done.stopped
            return done
        finally:
            with ExitStack() as closing:  # all of them, also those that follow one which raises
                for sink in reversed(sinks):
                    closing.callback(sink.close, ended=ended)
                if dead is not None:
                    closing.callback(dead.close, ended=ended)

    # -- putting together ----------------------------------------------------------------------------------------------

    def _sources(self) -> dict[str | None, DataFrame]:
        tolerant = self._routes is not None or self._job.spec.errors.tolerance == "all"
        frames: dict[str | None, DataFrame] = {}
        for view, stage in self._job.sources.items():
            with at_stage(self._pipeline, stage):
                frames[view] = self._source(view, stage, tolerant=tolerant)
        return frames

    def _source(self, view: str | None, stage: Stage[Source], *, tolerant: bool) -> DataFrame:
        source, context = stage.make(self._context.run), replace(self._context, view=view)
        frame = source.load_tolerant(self._spark, context) if tolerant else None
        frame = source.load(self._spark, context) if frame is None else frame
        spec = stage.spec
        if isinstance(spec, SourceSpec) and spec.watermark is not None and frame.isStreaming:
            frame = frame.withWatermark(spec.watermark.column, spec.watermark.delay)
        return frame

    def _sinks(self) -> list[Sink]:
        made = []
        for stage in self._job.sinks:
            with at_stage(self._pipeline, stage):
                made.append(stage.make(self._context.run))
        return made

    def _at_sink(self, number: int) -> AbstractContextManager[None]:
        """Note of an error in the block that it is of this sink; one with routes applies the transforms, too."""
        return nullcontext() if self._routes is not None else at_sink(self._pipeline, self._job.sinks[number])

    def _make_routed_sink(self, routes: Routes) -> Sink:
        run, (sink,) = self._context.run, self._job.sinks
        transforms = [stage.make(run) for stage in self._job.transforms]

        def subscriptions(topic: str) -> tuple[str, ...]:
            return subscriptions_of(self._pipeline, self._context.topic(topic))

        return RoutedSink(sink.make(run).options, routes, transforms, subscriptions)

    def _apply_transforms(self, frames: dict[str | None, DataFrame]) -> DataFrame:
        views = {view: frame for view, frame in frames.items() if view is not None}
        context, frame = replace(self._context, views=views), next(iter(frames.values()))
        if self._routes is not None:
            return frame  # the sink transforms them, by the topic that they come from
        for stage in self._job.transforms:
            with at_stage(self._pipeline, stage):
                frame = stage.make(context.run).apply(frame, context)
        require_no_file_functions(frame)
        return frame

    # -- running -------------------------------------------------------------------------------------------------------

    def _batch(self, sinks: Sequence[Sink], dead: DeadLetters | None) -> WorkloadOutcome:
        frame = self._open_sinks(self._sources(), sinks, dead)
        self._writer(sinks, dead)(frame, 0)
        return WorkloadOutcome(batches=1)

    def _stream(self, sinks: Sequence[Sink], dead: DeadLetters | None, stop: StopRequest) -> WorkloadOutcome:
        if self._context.names_sources:
            for key, value in NAMED_SOURCES.items():
                self._spark.conf.set(key, value)
        with stop.interrupting():  # topics are waited for
            frames = self._sources()
            frame = self._open_sinks(frames, sinks, dead)
        mode, named = self._context.output_mode or "append", self._context.names_sources
        shape = shape_of(frame, self._job, frames, mode, named=named)
        claim_shape(self._context.storage, shape, self._job.name, self._spark)
        storage_of(self._context.storage, self._spark).remove_unfinished()
        write = self._writer(sinks, dead)
        if dead is None and len(sinks) == 1:
            whole = type(sinks[0]).start is not Sink.start
            query = sinks[0].start(frame, self._context) if whole else self._by_batches(frame, write)
        else:
            query = self._by_batches(frame, write)
        return self._wait(query, stop)

    def _open_sinks(
        self, frames: dict[str | None, DataFrame], sinks: Sequence[Sink], dead: DeadLetters | None
    ) -> DataFrame:
        """Return the rows that will be written; those of a job with dead letters are not transformed yet."""
        frame = self._apply_transforms(frames) if dead is None else next(iter(frames.values()))
        good = frame if dead is None else dead.open(frame)
        for number, sink in enumerate(sinks):
            with self._at_sink(number):
                sink.open(good, self._context)
        return frame

    def _by_batches(self, frame: DataFrame, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
        """Start the query that gives each micro-batch to ``write``, and keep which stage it failed of."""

        def noted(batch: DataFrame, batch_id: int) -> None:
            try:
                write(batch, batch_id)
            except Exception as error:
                self._failed_at = stage_of(error)  # Spark passes on nothing but the text
                raise

        return start_for_each_batch(frame, self._context, noted)

    def _writer(self, sinks: Sequence[Sink], dead: DeadLetters | None) -> Callable[[DataFrame, int], None]:
        """Return what is called with each micro-batch."""

        def write(batch: DataFrame, batch_id: int) -> None:
            self._write_all(sinks, batch, batch_id)

        def handle(batch: DataFrame, batch_id: int) -> None:
            with at_rows(self._pipeline, self._job):
                if dead is None:
                    write(batch, batch_id)
                else:
                    dead.handle(batch, batch_id, write)

        return handle

    def _write_all(self, sinks: Sequence[Sink], frame: DataFrame, batch_id: int) -> None:
        """Write to each sink in turn; the rows are computed once."""
        if len(sinks) == 1:
            with self._at_sink(0):
                sinks[0].write(frame, batch_id, self._context)
            return
        with _kept(frame):
            for number, sink in enumerate(sinks):
                self._context.check()
                with self._at_sink(number):
                    sink.write(frame, batch_id, self._context)

    def _wait(self, query: StreamingQuery, stop: StopRequest) -> WorkloadOutcome:
        def asked() -> bool:
            self._progress.poll(query)
            return stop.asked

        job = QueryJob(query)
        failed = wait_for([job], asked)
        stopped = not failed and job.active
        if stopped:
            log.info("%s: ending after the micro-batch it is in", stop.why)
            end_jobs([job], lambda: stop.hurried)
            failed = job.failure()
        self._progress.poll(query, now=True)
        batches, rows = self._progress.batches, self._progress.rows
        if failed:
            place = ", ".join(filter(None, (self._failed_at or self._transform_in(query), _place(query))))
            return failure(_with_reason(failed, query), place=place, batches=batches, rows=rows)
        return WorkloadOutcome(stopped=stopped, batches=batches, rows=rows)

    def _transform_in(self, query: StreamingQuery) -> str:
        with suppress(Py4JError):  # the JVM is gone
            return transform_in(query, self._pipeline, self._job)
        return ""


def _with_reason(failed: str, query: StreamingQuery) -> str:
    """Return why a query failed, and, if of a file, why that could not be read."""
    with suppress(Py4JError):  # the JVM is gone
        if reason := reason_in(query):
            return f"{failed}: {reason}"
    return failed


def _place(query: StreamingQuery) -> str:
    with suppress(Py4JError):  # the JVM is gone
        return place_of(query)
    return ""


@contextmanager
def _kept(frame: DataFrame) -> Iterator[None]:
    """Keep what is computed of a frame until the end of the block."""
    frame.persist()
    try:
        yield
    finally:
        frame.unpersist()


class _Progress:
    """Counts the micro-batches of a query and their rows; Spark keeps the progress of the last hundred."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.batches = 0
        self.rows = 0
        self._durations = TimeHistogram()
        self._last = -1
        self._polled_at = 0.0

    def poll(self, query: StreamingQuery, *, now: bool = False) -> None:
        """Count what is new, once a second."""
        if not now and time.monotonic() - self._polled_at < COUNT_SECONDS:
            return
        self._polled_at = time.monotonic()
        before = self.batches
        for each in query.recentProgress:
            if each["batchId"] > self._last and each["numInputRows"] > 0:
                self._last = each["batchId"]
                self.batches += 1
                self.rows += int(each["numInputRows"])
                self._durations.observe(each["durationMs"].get("triggerExecution", 0) / 1000)
        if self.batches != before:
            self._reporter.report(self.batches, self.rows, durations=self._durations)
