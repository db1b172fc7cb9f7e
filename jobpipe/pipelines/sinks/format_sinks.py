"""Sinks of Spark's own formats, each by its name, with Spark's own keys under ``options``.

Where exactly once of files is decided: of a stream by Spark's own log of the folder (:meth:`FormatSink.start`, and
``FileLog.claim`` in :mod:`jobpipe.pipelines.file_formats.file_sink_log`), which needs a job with this sink alone and
without dead letters; of a BATCH run by :mod:`jobpipe.pipelines.sinks.staged_files`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from jobpipe.pipelines.file.field_types import Columns, Text, revealed
from jobpipe.pipelines.file.file_paths import absolute, file_format
from jobpipe.pipelines.file.problems import OptionError
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.file_formats.file_sink_log import FileLog, Writer
from jobpipe.pipelines.file_formats.format_options import FormatOptions
from jobpipe.pipelines.plugins.api import DeliveryGuarantee, Sink, column_named
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.plugins.start_query import writer_of
from jobpipe.pipelines.sinks.staged_files import StagedFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

SaveMode = Literal["append", "overwrite", "error", "ignore"]
_BLANKS = ("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace")
_PARTITIONS = "spark.sql.sources.partitionOverwriteMode"
_BY_ITS_LOG = "Spark keeps a log of the files of each micro-batch, and Spark's readers see only those"


class FileOptions(FormatOptions):
    """What formats of files have."""

    path: Text = Field(description="The folder, from the folder of the pipeline's file, or a URI.")
    partition_by: Columns | None = Field(default=None, description="Columns whose values become folders.")
    mode: SaveMode | None = Field(
        default=None, description="Of a BATCH job: what happens if the folder exists already. error is the default."
    )


class FormatSink(Sink):
    """Rows that Spark writes."""

    options: FormatOptions
    _has_no_log = False

    @property
    def format(self) -> str:
        """Spark's name of the format."""
        return self.type

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """A stream appends; path and checkpoint have keys of their own."""
        if mode is Mode.STREAMING and getattr(self.options, "mode", None) is not None:
            yield OptionError("mode", "it is of BATCH jobs: a stream appends", "leave it out")
        if file_format(self.format) is not None:
            yield from self.options.refused("path", remedy="give path next to options")
        remedy = "leave it out: the checkpoint is in pipeline.storage"
        yield from self.options.refused("checkpointlocation", remedy=remedy)

    def write(self, batch: DataFrame, batch_id: int, job: JobContext) -> None:
        """Append a micro-batch; write the rows of a run as ``mode`` says."""
        mode = "append" if job.mode is Mode.STREAMING else getattr(self.options, "mode", None) or "error"
        if mode == "append" and file_format(self.format) is not None:
            self._require_no_log(batch, job)
        self._save(batch, mode, self._path(job), job, self._transaction(batch, batch_id, job))

    def _require_no_log(self, batch: DataFrame, job: JobContext) -> None:
        """Check once that readers in Spark will see the files of :meth:`write`; see :meth:`FileLog.require_none`."""
        if not self._has_no_log:
            FileLog(batch.sparkSession, str(self._path(job))).require_none()
            self._has_no_log = True

    def _transaction(self, batch: DataFrame, batch_id: int, job: JobContext) -> Mapping[str, str]:
        """Return the options by which the format tells a batch that it has written already, if it can."""
        return {}

    def _save(
        self, batch: DataFrame, mode: str, path: str | None, job: JobContext, more: Mapping[str, str] | None = None
    ) -> None:
        options = {**self._spark_options(job), **(more or {})}
        writer = self._whole_lines(batch).write.format(self.format).options(**options).mode(mode)
        if (columns := getattr(self.options, "partition_by", None)) is not None:
            writer = writer.partitionBy(*columns)
        writer.save(path)

    def start(self, frame: DataFrame, job: JobContext) -> StreamingQuery:
        """Start the query with Spark's own writer of streams."""
        writer = writer_of(self._whole_lines(frame), job).format(self.format).options(**self._spark_options(job))
        if (columns := getattr(self.options, "partition_by", None)) is not None:
            writer = writer.partitionBy(*columns)
        path = self._path(job)
        if path is None or file_format(self.format) is None:
            return writer.start(path)
        log, ours = FileLog(frame.sparkSession, path), Writer(job.name, job.storage)
        log.claim(ours)
        try:
            query = writer.start(path)
        except BaseException:
            log.withdraw()
            raise
        try:
            log.note(replace(ours, query=str(query.id)))
        except BaseException:
            query.stop()
            raise
        return query

    def _spark_options(self, job: JobContext) -> dict[str, str]:
        """Return the options of Spark's writer; by default its csv would cut off blanks at both ends of a value."""
        given = revealed(self.options.options, job.folder)
        if file_format(self.format) != "csv":
            return given
        named = {name.lower() for name in given}
        return {**{name: "false" for name in _BLANKS if name.lower() not in named}, **given}

    def _whole_lines(self, frame: DataFrame) -> DataFrame:
        """Return rows that fail if the text of one would be several lines of a text file, or if it is null."""
        if file_format(self.format) != "text":
            return frame
        from pyspark.sql import functions as sf

        parts = getattr(self.options, "partition_by", None) or ()
        texts = [name for name in frame.columns if name not in parts]
        if len(texts) != 1:
            return frame  # Spark says what is wrong
        column = column_named(texts[0])
        given = [str(value) for name, value in self.options.options.items() if name.lower() == "linesep"]
        broken = reduce(or_, (sf.contains(column, sf.lit(end)) for end in given or ("\n", "\r")))
        said = sf.lit(
            "a sink of type text writes each text as a line, and this one is null, or has a line break; replace it "
            "before, or write json"
        )
        good = sf.when(column.isNotNull() & ~broken, sf.lit(True)).otherwise(sf.raise_error(said).cast("boolean"))
        return frame.filter(good)

    def folder(self, base: Path) -> str | None:
        """Return the folder of files."""
        path = getattr(self.options, "path", None)
        return None if path is None or file_format(self.format) is None else absolute(path, base)

    def _path(self, job: JobContext) -> str | None:
        path = getattr(self.options, "path", None)
        return None if path is None else absolute(path, job.folder)


class FileSink(FormatSink):
    """Rows as files. Those of a run are put in place when all of them are there."""

    Options = FileOptions
    identifying: ClassVar[frozenset[str] | None] = frozenset({"path"})
    promise = DeliveryGuarantee(True, _BY_ITS_LOG)

    def write(self, batch: DataFrame, batch_id: int, job: JobContext) -> None:
        """Append a micro-batch; write the rows of a run as ``mode`` says, all of them or none."""
        mode = getattr(self.options, "mode", None) or "error"
        if mode == "append" or self._replaces_partitions(batch):
            self._require_no_log(batch, job)
        if job.mode is Mode.STREAMING or self._replaces_partitions(batch):
            super().write(batch, batch_id, job)
            return
        files = StagedFiles(batch.sparkSession, str(self._path(job)), job)
        files.write(mode, lambda folder: self._save(batch, "error", folder, job))

    def _replaces_partitions(self, batch: DataFrame) -> bool:
        """Whether Spark is to overwrite those partitions alone that have rows; it is safe to do that twice."""
        key, default = "partitionOverwriteMode", batch.sparkSession.conf.get(_PARTITIONS, "static")
        given = {name.lower(): value for name, value in self.options.options.items()}
        dynamic = str(given.get(key.lower(), default)).lower() == "dynamic"
        if not dynamic or getattr(self.options, "partition_by", None) is None:
            return False  # without partitions Spark would delete all old files first
        return getattr(self.options, "mode", None) == "overwrite"


class CsvSink(FileSink):
    """Writes CSV files."""

    type = "csv"


class JsonSink(FileSink):
    """Writes files with a JSON object on each line."""

    type = "json"


class ParquetSink(FileSink):
    """Writes Parquet files."""

    type = "parquet"


class OrcSink(FileSink):
    """Writes ORC files."""

    type = "orc"


class XmlSink(FileSink):
    """Writes XML files; `options: {rowTag: NAME}` says what a row is called."""

    type = "xml"


class AvroSink(FileSink):
    """Writes Avro files; needs Spark's package spark-avro."""

    type = "avro"


class TextSink(FileSink):
    """Writes lines of text; the rows have one column, a text."""

    type = "text"


class DeltaSink(FormatSink):
    """Appends to a Delta table; needs its package."""

    type = "delta"
    Options = FileOptions
    identifying: ClassVar[frozenset[str] | None] = frozenset({"path"})
    promise = DeliveryGuarantee(
        False,
        "each commit says which micro-batch or run it is, and Delta leaves out one that it has; no Delta for this "
        "version of Spark is there to test that with",
    )

    def _transaction(self, batch: DataFrame, batch_id: int, job: JobContext) -> Mapping[str, str]:
        """Return the ids of the batch: a stream's are those by which Delta's own writer of streams knows it."""
        from jobpipe.spark.termination.query_stop import QUERY_ID

        if job.mode is Mode.BATCH:
            return {"txnAppId": f"{job.name}:{job.run.id}", "txnVersion": str(batch_id)}
        query = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        assert query is not None  # noqa: S101 - Spark sets it for each micro-batch
        return {"txnAppId": query, "txnVersion": str(batch_id)}


class IcebergSink(FormatSink):
    """Appends to an Iceberg table, whose name is the path; needs its package."""

    type = "iceberg"
    Options = FileOptions
    identifying: ClassVar[frozenset[str] | None] = frozenset({"path"})
    promise = DeliveryGuarantee(
        False, "a stream with only this sink writes a row once; a repeated run may append its rows again"
    )

    def _path(self, job: JobContext) -> str | None:
        path = str(getattr(self.options, "path", ""))
        return path if "/" not in path else absolute(path, job.folder)


class KafkaSink(FormatSink):
    """Writes the columns key and value to Kafka, to the topic of the options or of column topic; needs its package."""

    type = "kafka"
    Options = FormatOptions
    identifying: ClassVar[frozenset[str] | None] = frozenset({"kafka.bootstrap.servers", "topic"})
    promise = DeliveryGuarantee(False, "Spark's sink writes a repeated micro-batch again")

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """Spark would say so only when the job runs."""
        yield from super().check(mode)
        if "kafka.bootstrap.servers" not in {name.lower() for name in self.options.options}:
            remedy = "give options: {kafka.bootstrap.servers: HOST:PORT}"
            yield OptionError("options", "Kafka's brokers are missing", remedy)


class JdbcSink(FormatSink):
    """Appends rows to a table of a database, by Spark's writer; needs the database's JDBC driver."""

    type = "jdbc"
    identifying: ClassVar[frozenset[str] | None] = frozenset({"url", "dbtable"})
    promise = DeliveryGuarantee(
        False, "a repeated micro-batch or run is appended again; jdbc-upsert writes each key once"
    )

    class Options(FormatOptions):
        """What a run does with the table."""

        mode: SaveMode | None = Field(
            default=None, description="Of a BATCH job: what happens if the table exists already. error is the default."
        )

    options: Options

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """Spark would say so only when the job runs."""
        yield from super().check(mode)
        remedy = "give options: {url: 'jdbc:postgresql://HOST/DATABASE', dbtable: TABLE}"
        yield from self.options.complaints("dbtable", "url", remedy=remedy)

    def start(self, frame: DataFrame, job: JobContext) -> StreamingQuery:
        """Start the query; Spark writes no stream by JDBC, but micro-batches."""
        return Sink.start(self, frame, job)


class NoopSink(FormatSink):
    """Computes all rows and writes none, to measure a job."""

    type = "noop"
    Options = FormatOptions
    identifying: ClassVar[frozenset[str] | None] = frozenset()
    promise = DeliveryGuarantee(False, "it writes nothing")
    idempotent: ClassVar[bool] = True

    def write(self, batch: DataFrame, batch_id: int, job: JobContext) -> None:
        """Compute the rows; Spark's noop takes no mode but these two."""
        self._save(batch, "append", None, job)


class ConsoleSink(FormatSink):
    """Prints rows of each micro-batch into the job's log, for trials."""

    type = "console"
    Options = FormatOptions
    identifying: ClassVar[frozenset[str] | None] = frozenset()
    promise = DeliveryGuarantee(False, "a repeated micro-batch is printed again")
    modes = frozenset({Mode.STREAMING})


class SparkSink(FormatSink):
    """Writes any other format that Spark knows, by its name or class."""

    type = "spark"
    promise = DeliveryGuarantee(False, "it is not known what the format does with a repeated micro-batch")
    idempotent: ClassVar[bool] = False

    class Options(FileOptions):
        """The format, and its options."""

        format: Text = Field(description="Spark's name of the format, or its class.")
        path: Text | None = Field(default=None, description="Passed to start() or save().")  # type: ignore[assignment]

    options: Options

    @property
    def format(self) -> str:
        """Spark's name of the format."""
        return self.options.format
