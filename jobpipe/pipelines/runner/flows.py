"""A flow job: ``jobpipe.flow`` with what the file says."""

from __future__ import annotations

import contextlib

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from jobpipe.errors import WaitTimeout
from jobpipe.flows.driver import Flow
from jobpipe.pipelines.context import JobContext
from jobpipe.pipelines.file_options import read_columns
from jobpipe.pipelines.pipeline import Job
from jobpipe.pipelines.plugins import Source
from jobpipe.pipelines.runner.stopping import StopRequest
from jobpipe.pipelines.runner.work import Done, failure
from jobpipe.pipelines.userobjects import import_object
from jobpipe.spark.flow import flow
from jobpipe.spark.schema import arrow_schema

POLL_SECONDS = 0.2


class FlowWork:
    """Runs a flow."""

    def __init__(self, spark: SparkSession, job: Job, context: JobContext) -> None:
        self._spark = spark
        self._job = job
        self._context = context

    def run(self, stop: StopRequest) -> Done:
        """Run it to its topic's end."""
        spec, context = self._job.spec, self._context
        (stage,) = self._job.sources.values()
        source = stage.make(context.run)
        (topic,) = source.topics().names
        schema = None if spec.schema_ is None else read_columns(spec.schema_, context.folder)
        with stop.interrupting():  # its topic is waited for
            running = self._begin(topic, source, schema)
        with running:
            while not stop.asked:
                with contextlib.suppress(WaitTimeout):
                    running.await_end(POLL_SECONDS)
                    break
            running.stop()
        error = running.exception()
        batches = sum(each.offset for each in running.status().partitions)
        if error is not None:
            return failure(error, batches=batches)
        return Done(stopped=stop.asked, batches=batches)

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
