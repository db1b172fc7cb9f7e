"""``format("jobpipe")``: the DataSource. Spark finds it through the top-level module ``pyspark_jobpipe``.

Spark makes it once for each ``load()``, in a process of its own, asks for the schema there, and pickles it; stream and
batch readers are made from the pickled copy, in other processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from jobpipe.errors import ConfigError, JobpipeError, RegistryUnavailable, SchemaMismatch, TopicNotFound
from jobpipe.spark.batch_reader import JobPipeBatchReader
from jobpipe.spark.installed import demand_installed
from jobpipe.spark.launched import launch
from jobpipe.spark.metadata import METADATA, with_metadata
from jobpipe.spark.options import SourceOptions
from jobpipe.spark.plainly import plainly
from jobpipe.spark.schema import arrow_schema, schema_difference
from jobpipe.spark.stream_reader import JobPipeStreamReader
from jobpipe.spark.topics import demand_schema, published_schema
from jobpipe.subscriber.matching import matching_schemas
from jobpipe.subscriber.questions import published_schemas

__all__ = ["JobPipeDataSource"]


class JobPipeDataSource(DataSource):
    """Reads topics as typed rows; the schema is the publisher's."""

    settings: Mapping[str, str] | None = None  # the session's, in the class that jobpipe.register makes

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        self._parsed: SourceOptions | None = None
        self._checked: str | None = None  # JSON of the Spark schema that was compared with what is published

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "jobpipe"

    @property
    def _settings(self) -> SourceOptions:
        """The options; not looked at before a reader wants them, since a writer's go by other names."""
        if self._parsed is None:
            demand_installed()
            settings = launch().settings if self.settings is None else self.settings
            self._parsed = SourceOptions.parse(self.options, settings)
        return self._parsed

    @plainly
    def schema(self) -> StructType:
        """Ask the publishers, waiting up to ``discoveryTimeout`` for the first of them to come and know its schema.

        Raises:
            TopicNotFound: no publisher, or none that knows its schema, in time.
            SchemaMismatch: the topics have different schemas.
        """
        found = self._published()
        names = list(found)
        first = found[names[0]]
        for name in names[1:]:
            lines = schema_difference(arrow_schema(first), arrow_schema(found[name]))
            if lines:
                raise SchemaMismatch(
                    f"topics {names[0]!r} and {name!r} have different schemas: {'; '.join(lines)}. Read them by "
                    "separate "
                    "load() calls",
                    columns=lines,
                )
        schema = with_metadata(first) if self._settings.include_metadata else first
        self._checked = schema.json()
        return schema

    @plainly
    def streamReader(self, schema: StructType) -> JobPipeStreamReader:
        """Make the reader of a stream.

        Its first call raises what is wrong here: Spark's runner answers an error of this very method with one of its
        own, which hides ours (PySpark 4.3: it stops a reader that it does not have yet).

        Raises, later:
            ConfigError: option ``name`` is missing.
            SchemaMismatch: the schema given to ``.schema(...)`` is not the published one; names the columns.
        """
        try:
            self._settings.need_name()
            self._compare(schema)
        except JobpipeError as error:
            return JobPipeStreamReader(self._settings, schema, error)
        return JobPipeStreamReader(self._settings, schema)

    @plainly
    def reader(self, schema: StructType) -> JobPipeBatchReader:
        """Make the reader of everything that is there now."""
        self._compare(schema)
        return JobPipeBatchReader(self._settings, schema)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse: Spark rebuilds such a writer for each batch, so it cannot own the server."""
        raise ConfigError(_WRITE_WITH_SINK)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse, like :meth:`writer`."""
        raise ConfigError(_WRITE_WITH_SINK)

    def _published(self) -> dict[str, StructType]:
        settings = self._settings
        try:
            if settings.pattern is not None:
                found = matching_schemas(settings.config, settings.pattern)
            else:
                found = published_schemas(settings.config, settings.topics)
        except (TopicNotFound, RegistryUnavailable) as error:
            if self.settings is None and launch().submitted:
                raise type(error)(f"{error}. {_SET_IN_PROGRAM}", **error.fields) from error
            raise
        return {name: published_schema(arrow, spark) for name, (arrow, spark) in found.items()}

    def _compare(self, schema: StructType) -> None:
        """Compare a schema given by hand with the published ones: in a task it would crash the JVM."""
        if self._checked == schema.json():
            return
        if (METADATA in schema.names) != self._settings.include_metadata:
            raise SchemaMismatch(
                f"column {METADATA} belongs to the schema exactly when includeMetadata=true", columns=[METADATA]
            )
        for topic, published in self._published().items():
            demand_schema(topic, published, schema, "Leave .schema() out: it is learned from the publisher")
        self._checked = schema.json()


_SET_IN_PROGRAM = (
    "Was the registry, or the namespace, set by builder.config or spark.conf.set in this program? Under spark-submit "
    "the source sees such settings only after jobpipe.register(spark)"
)
_WRITE_WITH_SINK = (
    "format('jobpipe') reads. To publish use df.writeStream.foreachBatch(jobpipe.JobPipeSink('topic')): Spark makes a "
    "format's writer anew for each batch, and a publisher must outlive its batches"
)
