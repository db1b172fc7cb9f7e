"""Sink ``jobpipe``: a topic of the bus.

Exactly once is decided by the publisher (publishing/batch_admission.py) and, for good, by the log (store/log/seal.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from jobpipe.config.definitions.config_model import KEYS
from jobpipe.config.definitions.sink_arguments import SINK_ARGUMENTS
from jobpipe.pipelines.file.field_types import Flag, Text
from jobpipe.pipelines.file.spec import Mode, kebab
from jobpipe.pipelines.file_formats.format_options import read_columns, read_schema
from jobpipe.pipelines.plugins.api import DeliveryGuarantee, Sink, Topics
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.plugins.option_models import options_model

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jobpipe.spark.sink.foreach_batch_sink import JobPipeSink

_DEFINED = tuple(about for about in SINK_ARGUMENTS if about.name not in ("replace", "schema"))
_SINK_NAMES = {about.name for about in SINK_ARGUMENTS}
_KEYS = tuple(key for key in KEYS if key.attribute not in _SINK_NAMES)
_OPTIONS = options_model(
    "JobpipeSinkOptions",
    (*_DEFINED, *_KEYS),
    lambda about: kebab(about.name) if about in _DEFINED else about.name.removeprefix("jobpipe."),
    required=("topic",),
    schema_=(
        Text | None,
        Field(
            default=None,
            alias="schema",
            description="The columns, as in 'id bigint, name string', or file:PATH of a file with them. Default: those "
            "of the rows.",
        ),
    ),
    final=(
        Flag,
        Field(default=False, description="End the topic when the job has finished: no more rows will follow."),
    ),
)


class JobpipeSink(Sink):
    """Publishes rows as a topic, each micro-batch as a whole.

    Options are the arguments of JobPipeSink; keys of the configuration may be given too. Without required-subscribers
    those are the jobs of the same pipeline that read the topic without a schedule.
    """

    type = "jobpipe"
    identifying: ClassVar[frozenset[str] | None] = frozenset({"topic", "registerserver.topic.storage"})
    promise = DeliveryGuarantee(True, "a repeated micro-batch or run is recognized by its id, and not published again")
    idempotent: ClassVar[bool] = True
    Options = _OPTIONS

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._sink: JobPipeSink | None = None

    def topics(self) -> Topics:
        given: Any = self.options
        return Topics((str(given.topic),))

    def arguments(self, job: JobContext) -> dict[str, Any]:
        """Return the arguments of JobPipeSink, but for the schema."""
        given: Any = self.options
        found: dict[str, Any] = {"name": job.name, "required_subscribers": job.subscribers.get(given.topic, ())}
        for about in (*_DEFINED, *_KEYS):
            name = getattr(about, "attribute", about.name)
            value = getattr(given, name)
            if name in given.model_fields_set and value is not None:
                found[name] = about.format(value) if about in _KEYS else value
        return {**found, "topic": job.topic(given.topic)}

    def check_columns(self, frame: DataFrame, job: JobContext) -> None:
        """See that names and types can be published, and that the columns of partition-by and schema are there."""
        from jobpipe.spark.options.partitioner import Partitioner
        from jobpipe.spark.sink.row_checks import check_rows

        given: Any = self.options
        topic = job.topic(given.topic)
        declared = None if given.schema_ is None else read_columns(given.schema_, job.folder)
        partitioner = Partitioner.choose(topic, given.partitioner, given.partition_by)
        case_sensitive = str(frame.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"
        check_rows(topic, frame.schema, declared, partitioner, case_sensitive=case_sensitive)

    def open(self, frame: DataFrame, job: JobContext) -> None:
        """Take the topic over, and serve what is published already."""
        from jobpipe.spark.sink.foreach_batch_sink import JobPipeSink

        given: Any = self.options
        schema = frame.schema if given.schema_ is None else read_schema(given.schema_, job.folder)
        self._sink = JobPipeSink(**self.arguments(job), schema=schema)

    def write(self, batch: DataFrame, batch_id: int, job: JobContext) -> None:
        """Publish a micro-batch, or the rows of a run."""
        if self._sink is None:
            self.open(batch, job)
        assert self._sink is not None  # noqa: S101 - open made it
        if job.mode is Mode.BATCH:
            self._sink.publish(batch, batch_id, series=f"{job.name}:{job.run.id}", once=True)
        else:
            self._sink(batch, batch_id)

    def close(self, *, ended: bool) -> None:
        """Give the topic up; with ``final`` it ends with the job."""
        given: Any = self.options
        if self._sink is not None:
            self._sink.close(final=ended and given.final)
            self._sink = None
