"""A flow job: ``jobpipe.flow`` with what the file says."""

from __future__ import annotations

import time

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from jobpipe.flows.flow_driver import Flow
from jobpipe.jobs.workloads.progress_reports import Reporter
from jobpipe.jobs.workloads.stop_request import StopRequest
from jobpipe.jobs.workloads.workload import WorkloadOutcome, failure
from jobpipe.pipelines.file_formats.format_options import read_columns
from jobpipe.pipelines.model.pipeline import Job
from jobpipe.pipelines.plugins.api import Source
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.plugins.object_loader import import_object
from jobpipe.spark.flow.spark_flow import flow
from jobpipe.spark.schema.spark_arrow_schema import arrow_schema

POLL_SECONDS = 0.2
COUNT_SECONDS = 1.0


class FlowWorkload:
    """Runs a flow."""

    def __init__(self, spark: SparkSession, job: Job, context: JobContext, reporter: Reporter) -> None:
        self._spark = spark
        self._job = job
        self._context = context
        self._reporter = reporter

    def run(self, stop: StopRequest) -> WorkloadOutcome:
        """Run it to its topic's end."""
        spec, context = self._job.spec, self._context
        (stage,) = self._job.sources.values()
        source = stage.make(context.run)
        (topic,) = source.topics().names
        schema = None if spec.schema_ is None else read_columns(spec.schema_, context.folder)
        with stop.interrupting():  # its topic is waited for
            running = self._begin(topic, source, schema)
        progress = _Progress(running, self._reporter)
        with running:
            while not (stop.asked or running.join(POLL_SECONDS)):
                progress.poll()
        progress.poll(now=True)
        error = running.exception()
        if error is not None:
            return failure(error, batches=progress.batches)
        return WorkloadOutcome(stopped=stop.asked, batches=progress.batches)

    def _begin(self, topic: str, source: Source, schema: StructType | None) -> Flow:
        spec, context = self._job.spec, self._context
        return flow(
            self._spark,
            subscribe=context.topic(topic),
            name=context.name,
            function=import_object(str(spec.function)),
            setup=None if spec.setup is None else import_object(spec.setup),
            publish=None if spec.publish is None else context.topic(spec.publish),
            schema=None if schema is None else arrow_schema(schema),
            partitions=spec.partitions,
            required_subscribers=() if spec.publish is None else context.subscribers.get(spec.publish, ()),
            **source.flow_options(),
        )


class _Progress:
    """Counts the batches of the source that are done in all partitions; how many rows they have, only tasks know."""

    def __init__(self, flow: Flow, reporter: Reporter) -> None:
        self._flow = flow
        self._reporter = reporter
        self.batches = 0
        self._last = self._low
        self._polled_at = 0.0

    def poll(self, *, now: bool = False) -> None:
        """Count what is new, once a second."""
        if not now and time.monotonic() - self._polled_at < COUNT_SECONDS:
            return
        self._polled_at = time.monotonic()
        low = self._low
        moved, self._last = low - self._last, low
        if moved > 0:  # not where the source's log was lost, and counts from 0 again
            self.batches += moved
            self._reporter.report(self.batches, 0)

    @property
    def _low(self) -> int:
        return min((each.offset for each in self._flow.status().partitions), default=0)
