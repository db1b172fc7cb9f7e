"""``format("jobpipe")``: the DataSource. Spark finds it through the top-level module ``pyspark_jobpipe``.

Spark makes it once for each ``load()``, in a process of its own, asks for the schema there, and pickles it; stream and
batch readers are made from the pickled copy, in other processes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructField, StructType

from jobpipe.errors import ConfigError, JobpipeError, RegistryUnavailable, SchemaMismatch, TopicNotFound
from jobpipe.spark.options.read_options import OF, SourceOptions
from jobpipe.spark.schema.metadata_columns import METADATA, with_metadata
from jobpipe.spark.schema.spark_arrow_schema import published_schema
from jobpipe.spark.schema.spark_evolution import differences, merge
from jobpipe.spark.session.launch_settings import launch, require_installed
from jobpipe.spark.session.spark_versions import HAS_ADMISSION_CONTROL, require_admission_control
from jobpipe.spark.session.user_errors import RefusedStream, hide_traceback
from jobpipe.spark.source.ahead_reader import ReadAheadStreamReader
from jobpipe.spark.source.batch_reader import JobPipeBatchReader
from jobpipe.spark.source.stream_reader import JobPipeStreamReader
from jobpipe.spark.source.unlimited_reader import UnlimitedStreamReader
from jobpipe.subscribing.one_off_requests import published_schemas
from jobpipe.subscribing.topic_patterns import matching_schemas

if TYPE_CHECKING:
    from jobpipe.spark.options.write_options import WriterOptions
    from jobpipe.spark.sink.format_writer import BatchWriter, StreamWriter

log = logging.getLogger(__name__)

# A stream that does not know where it begins cannot keep to the first four. The last one may find a topic only after
# Spark went on without it.
NEED_ADMISSION_CONTROL = frozenset(
    ("maxRowsPerTrigger", "maxBytesPerTrigger", "minRowsPerTrigger", "readAhead", "subscribePattern")
)


class JobPipeDataSource(DataSource):
    """Reads topics as typed rows; the schema is the publisher's."""

    settings: Mapping[str, str] | None = None  # the session's, in the class that jobpipe.register makes

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        self._parsed: SourceOptions | None = None
        self._checked: str | None = None  # JSON of the Spark schema that was compared with what is published

    @classmethod
    def name(cls) -> str:
        return "jobpipe"

    @property
    def _settings(self) -> SourceOptions:
        """The options; not looked at before a reader wants them, since a writer's go by other names."""
        if self._parsed is None:
            require_installed()
            settings = launch().settings if self.settings is None else self.settings
            self._parsed = SourceOptions.parse(self.options, settings)
            for option in NEED_ADMISSION_CONTROL & self._parsed.given:
                require_admission_control(f"{OF}: option {option!r}")
        return self._parsed

    @hide_traceback
    def schema(self) -> StructType:
        """Ask the publishers, waiting up to ``discoveryTimeout`` for the first of them to come and know its schema.

        Unless ``schemaEvolution=strict``, columns may be null, as those of Spark's file sources: batches before and
        after the newest need not have them.

        Raises:
            TopicNotFound: no publisher, or none that knows its schema, in time.
            SchemaMismatch: the topics have different schemas, or, with ``mergeSchema``, none that fits all.
            UnsupportedType: Spark has no type for a column of a publisher without Spark.
        """
        schema = _one_schema(self._published(), merging=self._settings.merge_schema)
        if self._settings.schema_evolution != "strict":
            schema = StructType([StructField(f.name, f.dataType, True, f.metadata) for f in schema.fields])
        if self._settings.include_metadata:
            schema = with_metadata(schema)
        self._checked = schema.json()
        return schema

    @hide_traceback
    def streamReader(self, schema: StructType) -> JobPipeStreamReader | RefusedStream:
        """Make the reader of a stream.

        Raises, with the first call of the reader, see :class:`RefusedStream`:
            ConfigError: an option is wrong, or ``name`` is missing.
            SchemaMismatch: published rows do not fit the schema given to ``.schema(...)``; names the columns.
        """
        try:
            self._settings.need_name()
            self._compare(schema)
        except JobpipeError as error:
            return RefusedStream(error)
        if not HAS_ADMISSION_CONTROL:
            return UnlimitedStreamReader(self._settings, schema)
        if self._settings.read_ahead:
            return ReadAheadStreamReader(self._settings, schema)
        return JobPipeStreamReader(self._settings, schema)

    @hide_traceback
    def reader(self, schema: StructType) -> JobPipeBatchReader:
        """Make the reader of everything that is there now.

        Raises:
            ConfigError: the read would start at ``latest``, or at the position of a subscription without a name.
        """
        self._settings.require_batch()
        self._compare(schema)
        return JobPipeBatchReader(self._settings, schema)

    @hide_traceback
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Make the writer of one batch.

        Raises:
            ConfigError: an option is wrong; or the mode is ``overwrite``.
            JobpipeError: the topic cannot be taken over, or cannot have these rows.
        """
        from jobpipe.spark.sink.format_writer import BatchWriter  # readers need none of it

        options = self._writer_options(streaming=False)
        if overwrite:
            raise ConfigError(
                f"topic {options.topic!r}: mode('overwrite') would remove what was published; use mode('append')",
                topic=options.topic,
            )
        return BatchWriter(options, schema)

    @hide_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Make the writer of a micro-batch. ``overwrite`` is output mode ``complete``: each publishes all its rows.

        Raises:
            ConfigError: an option is wrong.
            JobpipeError: the topic cannot be taken over, or cannot have these rows.
        """
        from jobpipe.spark.sink.format_writer import StreamWriter  # readers need none of it

        return StreamWriter(self._writer_options(streaming=True), schema)

    def _writer_options(self, *, streaming: bool) -> WriterOptions:
        from jobpipe.spark.options.write_options import WriterOptions

        require_installed()
        launched = launch()
        settings = launched.settings if self.settings is None else self.settings
        return WriterOptions.parse(self.options, launched, settings, streaming=streaming)

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
        return {name: published_schema(name, arrow, spark) for name, (arrow, spark) in found.items()}

    def _compare(self, schema: StructType) -> None:
        """Wait for the publishers of a schema given by hand, too; the plans tell whether their rows fit it."""
        if self._checked == schema.json():
            return
        published = any(METADATA in rows.names for rows in self._published().values())  # as by a job before this one
        if (METADATA in schema.names) != self._settings.include_metadata and not published:
            raise SchemaMismatch(
                f"column {METADATA} belongs to the schema exactly when includeMetadata=true: {METADATA} "
                f"{with_metadata(StructType())[METADATA].dataType.simpleString()}",
                columns=[METADATA],
            )
        self._checked = schema.json()


def _one_schema(found: dict[str, StructType], *, merging: bool) -> StructType:
    """Return the one schema of all topics; in what may be null, and under ``merging`` in more, the widest of them."""
    names = list(found)
    schema = found[names[0]]
    for number, name in enumerate(names[1:], 1):
        for earlier in names[:number]:  # two of them are at odds, if the schema so far and this one are
            pair = found[earlier], found[name]
            lines = merge(*pair, (earlier, name))[1] if merging else differences(*pair, (earlier, name))
            if lines:
                raise SchemaMismatch(
                    f"topics {earlier!r} and {name!r} have "
                    + ("no common schema" if merging else "different schemas")
                    + f": {'; '.join(lines)}. Read them by separate load() calls, give the columns by .schema(...)"
                    + ("" if merging else ", or let mergeSchema=true make one schema of all"),
                    columns=lines,
                )
        schema, _ = merge(schema, found[name], (names[0], name))
    return schema


_SET_IN_PROGRAM = (
    "Was the registry, or the namespace, set by builder.config or spark.conf.set in this program? Under spark-submit "
    "the source sees such settings only after jobpipe.register(spark)"
)
