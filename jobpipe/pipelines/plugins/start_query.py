"""Starts a job's query: name, checkpoint, trigger and output mode are those of the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.spark.termination.query_stop import stoppable


def writer_of(frame: DataFrame, job: JobContext) -> DataStreamWriter:
    """Return the writer of a stream, all set but for where it goes."""
    writer = frame.writeStream.queryName(job.name).option("checkpointLocation", job.storage)
    if job.output_mode is not None:
        writer = writer.outputMode(job.output_mode)
    if job.trigger is not None and job.trigger.available_now:
        return writer.trigger(availableNow=True)
    if job.trigger is not None and job.trigger.processing_time is not None:
        return writer.trigger(processingTime=f"{round(job.trigger.processing_time * 1000)} milliseconds")
    return writer


def start_for_each_batch(frame: DataFrame, job: JobContext, write: Callable[[DataFrame, int], Any]) -> StreamingQuery:
    """Start the query that gives each micro-batch to ``write``; a stop in the middle of one is no failure.

    An attempt that was replaced neither writes a micro-batch nor lets Spark commit one.
    """

    def checked(batch: DataFrame, batch_id: int) -> None:
        job.check()
        write(batch, batch_id)
        job.check()

    return writer_of(frame, job).foreachBatch(stoppable(checked)).start()
