"""Sources of Spark's own formats, each by its name, with Spark's own keys under ``options``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.field_types import Text, revealed
from jobpipe.pipelines.file.file_paths import InputPattern, absolute, file_format, pattern_from
from jobpipe.pipelines.file.problems import OptionError
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.file_formats.format_options import (
    SAY_WHAT_IS_MALFORMED,
    FormatOptions,
    read_columns,
    read_schema,
)
from jobpipe.pipelines.plugins.api import ORIGIN, UNPARSED, Source, origin
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.sources.csv_lines import CsvFormat, CsvLines
from jobpipe.pipelines.sources.encodings import require_decoded, require_utf8, tolerant_lines, with_undecoded
from jobpipe.pipelines.sources.input_files import InputFiles, require_plain_names
from jobpipe.spark.session.spark_versions import HAS_UTF8_FUNCTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_PARSED = ("csv", "json", "xml")  # formats of which Spark, unless told otherwise, makes nulls of what it cannot parse
_CORRUPT = "spark.sql.columnNameOfCorruptRecord"
_CORRUPT_DEFAULT = "_corrupt_record"
_LEAVE_OUT = "leave it out, so that these rows go to the dead letters, or leave out errors.tolerance"


def _names(options: Mapping[str, Any]) -> set[str]:
    return {name.lower() for name in options}


def _is_true(options: Mapping[str, Any], option: str) -> bool:
    return any(name.lower() == option and str(value).lower() == "true" for name, value in options.items())


class FileOptions(FormatOptions):
    """What formats of files have."""

    path: Text = Field(
        description="A folder, or a pattern of folders, from the folder of the pipeline's file, or a URI."
    )
    schema_: Text | None = Field(
        default=None,
        alias="schema",
        description="The columns, as in 'id bigint, name string', or file:PATH of a file with them.",
    )


class FormatSource(Source):
    """Rows that Spark reads."""

    has_name: ClassVar[bool] = True

    options: FormatOptions

    @property
    def format(self) -> str:
        """Spark's name of the format."""
        return self.type

    @property
    def _file_format(self) -> str | None:
        """The format of files that this is, whatever name of Spark's it goes by."""
        return file_format(self.format)

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """The path has a key of its own, by which it is checked."""
        if self._file_format is not None:
            yield from self.options.refused("path", "paths", remedy="give path next to options")

    def load(self, spark: SparkSession, job: JobContext) -> DataFrame:
        """Return the rows of Spark's reader; a text that is no UTF-8 fails the job, as what cannot be parsed does."""
        schema = self._schema(job)
        strict = self._strict(spark, schema)
        if strict and (csv := self._csv(spark, job)) is not None:
            return csv.require_rows()
        frame = self._load(spark, job, schema, strict)
        if self._file_format == "text" and HAS_UTF8_FUNCTIONS:
            return require_utf8(frame, "value")
        return require_decoded(frame) if strict and self._may_replace else frame

    @property
    def _may_replace(self) -> bool:
        """Whether Spark replaces bytes that are no UTF-8, and the user does not say in which encoding the files are."""
        return self._file_format == "csv" and not _names(self.options.options) & {"encoding", "charset"}

    def _schema(self, job: JobContext) -> str | None:
        schema = getattr(self.options, "schema_", None)
        return None if schema is None else read_schema(schema, job.folder)

    def folders(self, base: Path) -> InputPattern | None:
        """Return the path of a format of files, if all files there are read."""
        path, filtered = getattr(self.options, "path", None), _names(self.options.options) & {"pathglobfilter"}
        if path is None or filtered or "path" not in self.patterns({"format": self.format}):
            return None
        return InputPattern(pattern_from(path, base), _is_true(self.options.options, "recursivefilelookup"))

    def check_tolerant(self, mode: Mode) -> Iterable[OptionError]:
        """Rows that do not fit are found by the schema, and only if the user does not tell Spark what to do with them.

        A JSON array that takes several lines is one text to Spark, of which each element would be a dead letter.
        """
        if not self._parsed:
            return
        schema = getattr(self.options, "schema_", None)
        if schema is None:
            remedy = "give schema: 'id bigint, name string', or file:PATH of a file with the columns"
            yield OptionError("schema", "without it Spark makes columns that fit every row, so no row is bad", remedy)
        elif re.search(rf"\b{_CORRUPT_DEFAULT}\b", schema):
            yield OptionError("schema", f"column {_CORRUPT_DEFAULT} takes the rows that do not fit", _LEAVE_OUT)
        for name, value in self.options.options.items():
            if name.lower() in SAY_WHAT_IS_MALFORMED:
                yield OptionError(f"options.{name}", "it says what Spark does with rows that do not fit", _LEAVE_OUT)
            elif name.lower() == "multiline" and str(value).lower() == "true" and self._file_format == "json":
                remedy = "write an object on each line, as jq -c '.[]' does, or leave out errors.tolerance"
                yield OptionError(f"options.{name}", "each element would come with the text of its whole file", remedy)

    @property
    def _parsed(self) -> bool:
        return self._file_format in _PARSED

    def load_tolerant(self, spark: SparkSession, job: JobContext) -> DataFrame | None:
        """Return the rows with their files, and the texts of those that do not fit the columns."""
        if self._file_format == "text" and HAS_UTF8_FUNCTIONS:
            return tolerant_lines(self._load(spark, job, self._schema(job), {}))
        if not self._parsed:
            return None
        from pyspark.sql.types import StringType

        given, schema = getattr(self.options, "schema_", None), self._schema(job)
        if given is None or schema is None or not self._strict(spark, schema):
            said = f"the schema, or the options, say what Spark does with rows that do not fit; {_LEAVE_OUT}"
            raise ConfigError(f"source {self.type} of a job with errors.tolerance: {said}", key="schema")
        if (csv := self._csv(spark, job)) is not None:
            return csv.tolerant_rows()
        # It may end with a comment, so nothing can be put after it.
        columns = read_columns(given, job.folder).add(UNPARSED, StringType())
        frame = self._load(spark, job, columns, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": UNPARSED})
        frame = frame.withColumn(ORIGIN, origin(file=frame.metadataColumn("_metadata")["file_path"]))
        return with_undecoded(frame) if self._may_replace else frame

    def _strict(self, spark: SparkSession, schema: str | None) -> Mapping[str, str]:
        """Return the options by which a row that Spark cannot parse fails the job; without them it is nulls."""
        if not self._parsed or {name.lower() for name in self.options.options} & SAY_WHAT_IS_MALFORMED:
            return {}
        if schema is not None:
            from pyspark.sql.types import StructType

            columns = StructType.fromDDL(schema)
            if isinstance(columns, StructType) and spark.conf.get(_CORRUPT) in columns.names:
                return {}  # a column for the texts of such rows, under Spark's own name
        return {"mode": "FAILFAST"}

    def _csv(self, spark: SparkSession, job: JobContext) -> CsvLines | None:
        """Return what reads files of csv by their lines; None if Spark's own reader of csv has to read them."""
        schema, path = getattr(self.options, "schema_", None), getattr(self.options, "path", None)
        if self._file_format != "csv" or schema is None or path is None or not HAS_UTF8_FUNCTIONS:
            return None
        options = self._given(job)
        form = CsvFormat.of(spark, options)
        if form is None:
            return None
        columns = read_columns(schema, job.folder)
        ours = next((name for name in columns.names if name.lower().startswith("_jobpipe_")), None)
        if ours is not None:
            raise ConfigError(
                f"source csv: column {ours} begins with _jobpipe_, as columns that jobpipe adds; rename it, in the "
                "files' headers too. With type spark, format csv, Spark reads them, and leaves out what it cannot read",
                key="schema",
            )
        return CsvLines.read(lambda kind: self._load(spark, job, kind, {}, "text"), columns, form, options)

    def _given(self, job: JobContext) -> dict[str, str]:
        """Return the options of Spark's reader."""
        given = revealed(self.options.options, job.folder)
        if self._file_format == "csv" and _is_true(given, "header") and not _names(given) & {"enforceschema"}:
            return {"enforceSchema": "false", **given}  # else it takes the columns by their places, whatever they are
        return given

    def _load(
        self,
        spark: SparkSession,
        job: JobContext,
        schema: StructType | str | None,
        more: Mapping[str, str],
        kind: str | None = None,
    ) -> DataFrame:
        """Return the rows of Spark's reader of a format, which is that of the source if no ``kind`` is given."""
        reader = job.read_stream(spark) if job.mode is Mode.STREAMING else spark.read
        reader = reader.format(kind or self.format)
        if schema is not None:
            reader = reader.schema(schema)
        given, path = self._given(job), getattr(self.options, "path", None)
        if kind == "text":
            given = {name: value for name, value in given.items() if name.lower() != "wholetext"}
        if path is None:
            return reader.options(**given, **more).load()
        if "path" not in self.patterns({"format": self.format}):
            return reader.options(**given, **more).load(absolute(path, job.folder))
        files = InputFiles(spark, pattern_from(path, job.folder), given, job).checked()
        frame = reader.options(**given, **more).options(**files.options).load(files.path)
        return frame if files.guarded is None else require_plain_names(frame, files.guarded)


class FileSource(FormatSource):
    """Rows of files."""

    Options = FileOptions
    identifying: ClassVar[frozenset[str] | None] = frozenset(
        {"path", "pathglobfilter", "recursivefilelookup", "filenameonly"}
    )
    has_own_schema: ClassVar[bool] = False

    @classmethod
    def patterns(cls, given: Mapping[str, Any]) -> Collection[str]:
        """Return the path, which Spark's readers of files take for one."""
        return ("path",)

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """A stream of files needs its columns beforehand."""
        yield from super().check(mode)
        if mode is Mode.STREAMING and not self.has_own_schema and getattr(self.options, "schema_", None) is None:
            remedy = "give schema: 'id bigint, name string', or file:PATH of a file with the columns"
            yield OptionError("schema", f"a stream of {self.type} files needs its columns", remedy)


class CsvSource(FileSource):
    """Rows of CSV files, each file once."""

    type = "csv"


class JsonSource(FileSource):
    """Rows of files with a JSON object on each line, each file once."""

    type = "json"


class ParquetSource(FileSource):
    """Rows of Parquet files, each file once."""

    type = "parquet"


class OrcSource(FileSource):
    """Rows of ORC files, each file once."""

    type = "orc"


class XmlSource(FileSource):
    """Rows of XML files, each file once; `options: {rowTag: NAME}` says what a row is."""

    type = "xml"


class AvroSource(FileSource):
    """Rows of Avro files, each file once; needs Spark's package spark-avro."""

    type = "avro"


class TextSource(FileSource):
    """Lines of text files as the column value, each file once."""

    type = "text"
    has_own_schema = True


class DeltaSource(FileSource):
    """Rows of a Delta table; needs its package."""

    type = "delta"
    identifying: ClassVar[frozenset[str] | None] = frozenset({"path", "readchangefeed", "readchangedata"})
    has_own_schema = True

    @classmethod
    def patterns(cls, given: Mapping[str, Any]) -> Collection[str]:
        """Return none: a table is not a pattern."""
        return ()


class IcebergSource(FileSource):
    """Rows of an Iceberg table, whose name is the path; needs its package."""

    type = "iceberg"
    identifying: ClassVar[frozenset[str] | None] = frozenset({"path", "branch"})
    has_own_schema = True

    @classmethod
    def patterns(cls, given: Mapping[str, Any]) -> Collection[str]:
        """Return none: a table is not a pattern."""
        return ()

    def load(self, spark: SparkSession, job: JobContext) -> DataFrame:
        """Return the rows of the table; a path that is a table's name stays as it is."""
        reader = job.read_stream(spark) if job.mode is Mode.STREAMING else spark.read
        path = str(getattr(self.options, "path", ""))
        named = path if "/" not in path else absolute(path, job.folder)
        return reader.format(self.format).options(**revealed(self.options.options, job.folder)).load(named)


class KafkaSource(FormatSource):
    """Records of Kafka's topics, with Spark's columns key, value, topic and so on; needs Spark's package for Kafka."""

    type = "kafka"
    Options = FormatOptions
    identifying: ClassVar[frozenset[str] | None] = frozenset(
        {"kafka.bootstrap.servers", "subscribe", "subscribepattern", "assign"}
    )

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """Spark would say so only when the job runs."""
        given = {name.lower() for name in self.options.options}
        if "kafka.bootstrap.servers" not in given:
            remedy = "give options: {kafka.bootstrap.servers: HOST:PORT}"
            yield OptionError("options", "Kafka's brokers are missing", remedy)
        if len(given & {"subscribe", "subscribepattern", "assign"}) != 1:
            remedy = "give options: {subscribe: TOPIC}, or subscribePattern, or assign"
            yield OptionError("options", "Kafka's topics are missing, or given twice", remedy)


class BinaryFileSource(FileSource):
    """Files as rows: path, modificationTime, length and content, each file once."""

    type = "binaryFile"
    has_own_schema = True

    class Options(FormatOptions):
        """Which files."""

        path: Text = Field(
            description="A folder, or a pattern of folders, from the folder of the pipeline's file, or a URI."
        )

    options: Options

    def _schema(self, job: JobContext) -> str:
        """Return the columns of the format, which Spark wants to be told where it makes a stream."""
        return "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"


class JdbcSource(FormatSource):
    """Rows of a table or a query of a database, by Spark's reader; needs the database's JDBC driver."""

    type = "jdbc"
    Options = FormatOptions

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """Spark would say so only when the job runs."""
        given = {name.lower() for name in self.options.options}
        if mode is Mode.STREAMING:
            remedy = "give execution: {runtime-mode: BATCH}"
            yield OptionError("type", "a table is read as it is at one moment, and the job is STREAMING", remedy)
        if "url" not in given:
            remedy = "give options: {url: 'jdbc:postgresql://HOST/DATABASE'}"
            yield OptionError("options", "the database is missing", remedy)
        if len(given & {"dbtable", "query"}) != 1:
            yield OptionError(
                "options", "the table is missing, or given twice", "give options: {dbtable: TABLE}, or query"
            )


class _Endless(FormatSource):
    """Rows that come as long as the job runs."""

    Options = FormatOptions

    def check(self, mode: Mode) -> Iterable[OptionError]:
        if mode is Mode.BATCH:
            what = f"source {self.type} never ends, and the job is BATCH"
            yield OptionError("type", what, "leave out execution.runtime-mode")


class RateMicroBatchSource(_Endless):
    """Rows that Spark makes, for trials: timestamp and value, `options: {rowsPerBatch: 10}` in each micro-batch."""

    type = "rate-micro-batch"


class SocketSource(_Endless):
    """Lines of text from a TCP port, for trials: those that come while no job reads are lost."""

    type = "socket"

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """It is a stream, of some port."""
        yield from super().check(mode)
        yield from self.options.complaints("host", "port", remedy="give options: {host: HOST, port: PORT}")


class RateSource(_Endless):
    """Rows that Spark makes, for trials: timestamp and value, `options: {rowsPerSecond: 10}` of them a second."""

    type = "rate"


class SparkSource(FormatSource):
    """Rows of any other format that Spark knows, by its name or class."""

    type = "spark"

    class Options(FileOptions):
        """The format, and its options."""

        format: Text = Field(description="Spark's name of the format, or its class.")
        path: Text | None = Field(default=None, description="Passed to load().")  # type: ignore[assignment]

    options: Options

    @classmethod
    def patterns(cls, given: Mapping[str, Any]) -> Collection[str]:
        """Return the path of a format of files."""
        return ("path",) if file_format(str(given.get("format"))) is not None else ()

    @property
    def format(self) -> str:
        """Spark's name of the format."""
        return self.options.format
