"""Transforms of times: TimestampConverter and watermark, and deduplicate, which needs one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from pydantic import Field
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, DateType, IntegralType, StringType, TimestampNTZType, TimestampType

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.field_types import Columns, Flag, Text
from jobpipe.pipelines.file.problems import OptionError
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.api import PluginOptions, Transform, column_named, require_columns
from jobpipe.pipelines.plugins.job_context import JobContext

_ZONE = "spark.sql.session.timeZone"
_NANOS = 1000  # in a microsecond, which is as precise as Spark's times are
_TIME_OF: dict[str, Callable[[Column], Column]] = {
    "seconds": sf.timestamp_seconds,
    "milliseconds": sf.timestamp_millis,
    "microseconds": sf.timestamp_micros,
    "nanoseconds": lambda number: sf.timestamp_micros(_floor_div(number, _NANOS)),
}
_NUMBER_OF: dict[str, Callable[[Column], Column]] = {  # rounded down, before 1970 too
    "seconds": sf.unix_seconds,
    "milliseconds": sf.unix_millis,
    "microseconds": sf.unix_micros,
    "nanoseconds": lambda time: sf.unix_micros(time) * sf.lit(_NANOS),
}


def _floor_div(number: Column, by: int) -> Column:
    """Return the quotient of whole numbers, rounded down. Operator / would make doubles, which lose digits."""
    return sf.call_function("div", number - sf.pmod(number, sf.lit(by)), sf.lit(by))


@contextmanager
def _in_utc(spark: SparkSession) -> Iterator[None]:
    """Let the functions that are applied meanwhile take UTC for the session's time zone; they keep it for good."""
    zone = str(spark.conf.get(_ZONE))
    spark.conf.set(_ZONE, "UTC")
    try:
        yield
    finally:
        spark.conf.set(_ZONE, zone)


class TimestampConverter(Transform):
    """Turns a column of times into another type: texts, numbers since 1970, dates, timestamps.

    Texts, dates and times of the day are in UTC, as in Kafka Connect, whatever spark.sql.session.timeZone says; a text
    that names its zone is taken in that one.
    """

    type = "TimestampConverter"

    class Options(PluginOptions):
        """Which column, and what it becomes."""

        field: Text = Field(description="The column.")
        target_type: Literal["string", "unix", "Date", "Time", "Timestamp"] = Field(
            alias="target.type", description="string, unix (a number), Date, Time (a text HH:mm:ss) or Timestamp."
        )
        format: Text | None = Field(
            default=None, description="Format of texts, as a pattern of Spark: yyyy-MM-dd HH:mm:ss."
        )
        unix_precision: Literal["seconds", "milliseconds", "microseconds", "nanoseconds"] = Field(
            default="milliseconds", alias="unix.precision", description="Unit of numbers since 1970."
        )

    options: Options

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """A text needs its pattern."""
        if self.options.target_type == "string" and self.options.format is None:
            yield OptionError("format", "a text needs its pattern", "give format, as in yyyy-MM-dd HH:mm:ss")

    @property
    def may_fail(self) -> bool:
        """With Spark's ANSI mode a text that is not of the format does."""
        return True

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        name = self.options.field
        require_columns(frame, [name], "TimestampConverter")
        with _in_utc(frame.sparkSession):
            return frame.withColumn(name, self._target(self._time(column_named(name), frame.schema[name].dataType)))

    def _time(self, column: Column, kind: DataType) -> Column:
        """Return the column as a timestamp."""
        if isinstance(kind, StringType):
            if self.options.format is None:
                said = f"TimestampConverter: {self.options.field} is a text: give its format"
                raise ConfigError(said, columns=[self.options.field])
            return sf.to_timestamp(column, self.options.format)
        if isinstance(kind, IntegralType):
            return _TIME_OF[self.options.unix_precision](column.cast("bigint"))
        if isinstance(kind, (TimestampType, TimestampNTZType, DateType)):
            return column.cast("timestamp")
        said = f"TimestampConverter: {self.options.field} is of type {kind.simpleString()}, which is not a time"
        raise ConfigError(said, columns=[self.options.field])

    def _target(self, time: Column) -> Column:
        kind = self.options.target_type
        if kind == "string":
            return sf.date_format(time, str(self.options.format))
        if kind == "Time":
            return sf.date_format(time, "HH:mm:ss")
        if kind == "Date":
            return sf.to_date(time)
        if kind == "Timestamp":
            return time
        return _NUMBER_OF[self.options.unix_precision](time)


class Watermark(Transform):
    """Says how late rows may be, for windows, joins and deduplicate."""

    type = "watermark"

    class Options(PluginOptions):
        """Of which column."""

        column: Text = Field(description="The column with each row's time.")
        delay: Text = Field(description="How late a row may be, in Spark's form: 10 minutes.")

    options: Options

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        """Set the watermark; rows that are not a stream need none."""
        require_columns(frame, [self.options.column], "watermark")
        return frame.withWatermark(self.options.column, self.options.delay) if frame.isStreaming else frame


class Deduplicate(Transform):
    """Keeps the first row of each key.

    A stream keeps each key for ever, unless a watermark comes before it, and within-watermark is true or the
    watermark's column is one of the keys.
    """

    type = "deduplicate"

    class Options(PluginOptions):
        """Which rows are the same."""

        keys: Columns = Field(description="Rows with equal values in these columns count as the same.")
        within_watermark: Flag = Field(
            default=False,
            description="Rows of a key are the same if they are no further apart than the watermark's delay; a stream "
            "keeps keys for as long.",
        )

    options: Options

    @property
    def stateful(self) -> bool:
        return True

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        keys = list(self.options.keys)
        require_columns(frame, keys, "deduplicate")
        if self.options.within_watermark and frame.isStreaming:
            return frame.dropDuplicatesWithinWatermark(keys)
        return frame.dropDuplicates(keys)
