"""FromJson: a column of JSON texts, such as the value of a Kafka record, to a struct."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.field_types import Text, revealed
from jobpipe.pipelines.file.problems import OptionError
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.file_formats.format_options import SAY_WHAT_IS_MALFORMED, FormatOptions, read_columns
from jobpipe.pipelines.plugins.api import DEAD, UNPARSED, Transform, column_named, require_columns
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.transforms.column_transforms import dead_struct, replace_columns


class FromJson(Transform):
    """Makes a struct of each JSON object in a column; what is no object, or does not fit the schema, fails the job.

    The column is a text, or bytes in UTF-8; null stays null. Fields that the schema does not name are dropped, and
    those that an object does not have are null. What comes after the object in a text is not looked at. ExtractField
    makes columns of the struct.
    """

    type = "FromJson"

    class Options(FormatOptions):
        """Which column, and what is in it."""

        field: Text = Field(description="The column.")
        schema_: Text = Field(
            alias="schema", description="The fields, as in 'id bigint, name string', or file:PATH of a file with them."
        )
        target: Text | None = Field(default=None, description="The column for the struct; by default the same one.")

    options: Options

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """Spark's options of JSON do not say what becomes of texts that do not fit."""
        for name in self.options.options:
            if name.lower() in SAY_WHAT_IS_MALFORMED:
                remedy = "leave it out: such rows fail the job, or with errors.tolerance become dead letters"
                yield OptionError(f"options.{name}", "it says what Spark does with texts that do not fit", remedy)

    @property
    def may_fail(self) -> bool:
        """A text may not fit."""
        return True

    @property
    def tolerant(self) -> bool:
        """A text that does not fit makes its row a dead letter."""
        return True

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        value, is_bad = self._parsed(frame, job)
        said = sf.raise_error(sf.lit(f"FromJson: {self._why}"))
        return replace_columns(frame, {self._target: sf.when(is_bad, said.cast("void")).otherwise(value)})

    def apply_tolerant(self, frame: DataFrame, job: JobContext) -> DataFrame:
        """Parse the column; say of each row whether its text does not fit."""
        value, is_bad = self._parsed(frame, job)
        dead = dead_struct(frame, sf.lit("MALFORMED_RECORD"), sf.lit(self._why))
        return replace_columns(frame.withColumn(DEAD, sf.when(is_bad, dead)), {self._target: value})

    @property
    def _target(self) -> str:
        return self.options.field if self.options.target is None else self.options.target

    @property
    def _why(self) -> str:
        return f"column {self.options.field} is not a JSON object that fits the schema"

    def _parsed(self, frame: DataFrame, job: JobContext) -> tuple[Column, Column]:
        """Return the struct, and whether the row's text does not fit, which is never null."""
        given = self.options
        require_columns(frame, [given.field], "FromJson")
        column = column_named(given.field)
        text = _text(column, frame.schema[given.field].dataType, given.field)
        columns = read_columns(given.schema_, job.folder)
        told = {**revealed(given.options, job.folder), "mode": "PERMISSIVE", "columnNameOfCorruptRecord": UNPARSED}
        found = sf.from_json(text, StructType([*columns.fields]).add(UNPARSED, StringType()), told)
        # Of a text without anything but spaces Spark makes null, as if it were none.
        is_bad = column.isNotNull() & (text.isNull() | found.isNull() | found[UNPARSED].isNotNull())
        return found.dropFields(UNPARSED), is_bad


def _text(column: Column, kind: DataType, name: str) -> Column:
    """Return a column as text, null where it is none.

    Raises:
        ConfigError: it is neither text nor bytes.
    """
    if isinstance(kind, StringType):
        return column
    if isinstance(kind, BinaryType):
        return sf.try_validate_utf8(column.cast("string"))
    said = f"FromJson: column {name} is of type {kind.simpleString()}: only texts, and bytes, are parsed"
    raise ConfigError(said, columns=[name])
