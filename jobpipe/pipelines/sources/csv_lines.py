"""Rows of csv that are made of the lines of files, so that each line is looked at.

To Spark's own reader of csv a value whose quote is not closed ends with the line, and the rest of it is a row; a value
whose quotes are escaped in another way keeps all its quotes. It shows the text of neither. So Spark's reader of texts
reads the lines, and ``from_csv`` parses them, with the same options and the same parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobpipe.errors import ConfigError
from jobpipe.pipelines.plugins.api import ORIGIN, REASON, UNPARSED, column_named, origin
from jobpipe.pipelines.sources.encodings import NO_UTF8, require_good

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

LINE = "_jobpipe_line"

QUOTES = (
    "a quote is not closed on its line, or a value in quotes has one that is not escaped. Give the source options: "
    "{multiLine: true} if values have line breaks, {escape: '\"'} if a quote in a value is doubled, {quote: ''} if "
    "quotes have no meaning"
)
_UNSET = "\0"  # of Spark's options that are a character
_BLANK, _NOT_BLANK = r"[\x00-\x20]", r"[^\x00-\x20]"  # as Java's trim() has it
_END = "(?!.)"  # of a line: $ is before U+2028, too
_FILE = "_jobpipe_file"
_ROW = "_jobpipe_row"
_TASK = "_jobpipe_task"
_FIRST = "_jobpipe_first"
_SHOWN = 200  # characters of a line, or of the columns, in an error
_FILE_FUNCTION = re.compile(r"input_file_(?:name|block_start|block_length)")
_NOT_OURS = {"unescapedquotehandling", "chartoescapequoteescaping", "singlevariantcolumn"}
"""Options, in small letters, that say what becomes of such quotes, or that there are no columns."""


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """What Spark makes of the options of csv.

    Attributes:
        separator: one character or more.
        quote: "" if values are never in quotes.
        escape: of a quote in a value in quotes; "" if there is none.
        comment: what a line begins with that is no row; "" if each line is one.
        has_header: the first line of a file is its header.
        by_place: the header is not compared with the columns.
        cuts_blanks: blanks before a value do not belong to it.
    """

    separator: str
    quote: str
    escape: str
    comment: str
    has_header: bool
    by_place: bool
    cuts_blanks: bool

    @classmethod
    def of(cls, spark: SparkSession, options: Mapping[str, Any]) -> CsvFormat | None:
        """Return it; None if lines are not rows, are not in UTF-8, or the options say what becomes of such quotes."""
        jvm: Any = spark._jvm
        given = {name: str(value) for name, value in options.items()}
        made = jvm.org.apache.spark.sql.catalyst.csv.CSVOptions(jvm.PythonUtils.toScalaMap(given), True, "UTC")
        names = {name.lower() for name in given}
        if made.multiLine() or str(made.charset()).upper() not in {"UTF-8", "UTF8"} or names & _NOT_OURS:
            return None
        return cls(
            separator=str(made.delimiter()),
            quote=str(made.quote()).strip(_UNSET),
            escape=str(made.escape()).strip(_UNSET),
            comment=str(made.comment()).strip(_UNSET),
            has_header=bool(made.headerFlag()),
            by_place=bool(made.enforceSchema()),
            cuts_blanks=bool(made.ignoreLeadingWhiteSpaceInRead()),
        )

    def line(self) -> str:
        """Return the regular expression (of Java's) of lines in which each quote is closed, or stands inside a value.

        A value without quotes must not end with one: it may be the end of a value that began on a line before.
        """
        separator, quote, escape = (re.escape(text) for text in (self.separator, self.quote, self.escape))
        blanks = f"(?:(?!{separator}){_BLANK})*+"
        before = blanks if self.cuts_blanks else ""
        if self.escape in ("", self.quote):
            inside = f"[^{quote}]*+"
            closed = f"{inside}(?:{quote}{quote}{inside})*+{quote}" if self.escape else f"{inside}{quote}"
        else:
            inside = f"[^{quote}{escape}]*+"
            closed = f"{inside}(?:{quote}|(?:{escape}.{inside})++{quote})"  # Java is slow if the group may be empty
        other = f"[^{quote}{separator}]*+" if len(self.separator) == 1 else f"(?:(?!{quote}|{separator}).)*+"
        end = f"(?:{separator}|{_END})"
        open_value = f"(?!{quote}){other}(?:{quote}(?!{blanks}{end}){other})*+"
        return f"(?s)^(?:{before}(?:{quote}{closed}{blanks}|{open_value}){end})*+{_END}"


@dataclass(frozen=True)
class CsvLines:
    """Lines of files of csv.

    Attributes:
        lines: with column :data:`LINE`, and those of partitions.
        columns: of the lines, without those of partitions, which come after them.
        form: of the lines.
        options: Spark's, of csv.
    """

    lines: DataFrame
    columns: StructType
    form: CsvFormat
    options: Mapping[str, str]

    @classmethod
    def read(
        cls,
        load: Callable[[StructType], DataFrame],
        columns: StructType,
        form: CsvFormat,
        options: Mapping[str, str],
    ) -> CsvLines:
        """Return the lines that Spark's reader of texts reads.

        Args:
            load: returns them, with a column of texts, and columns of partitions by their names.
        """
        from pyspark.sql.types import StringType, StructField, StructType

        own = StructField(LINE, StringType())
        lines = load(StructType([own]))
        parts = {name.lower() for name in lines.columns[1:]}
        typed = [field for field in columns if field.name.lower() in parts]
        if typed:
            lines = load(StructType([own, *typed]))
        others = StructType([field for field in columns if field.name.lower() not in parts])
        return cls(lines, others, form, options)

    def tolerant_rows(self) -> DataFrame:
        """Return the rows as a source of a job with dead letters does."""
        from pyspark.sql import functions as sf

        # The number of the task says nothing; without it the rows would be deterministic, and be parsed twice.
        bad = sf.col(REASON).isNotNull() & (sf.col(_TASK) >= 0)
        text = sf.when(bad, sf.make_valid_utf8(sf.col(LINE))).alias(UNPARSED)
        return self._rows().select(*self._names, text, REASON, origin(file=sf.col(_FILE)).alias(ORIGIN))

    def require_rows(self) -> DataFrame:
        """Return the rows; they fail if one of them cannot be parsed, with its file, the reason, and its text."""
        from pyspark.sql import functions as sf

        said = sf.concat(
            sf.lit("file "),
            sf.col(_FILE),
            sf.lit(": a row cannot be read: "),
            sf.col(REASON),
            sf.lit(": "),
            sf.left(sf.make_valid_utf8(sf.col(LINE)), sf.lit(_SHOWN)),
        )
        return require_good(self._rows(), sf.col(REASON).isNotNull(), said).select(*self._names)

    @property
    def _parts(self) -> list[Column]:
        return [column_named(name) for name in self.lines.columns[1:]]

    @property
    def _names(self) -> list[Column]:
        return [*map(column_named, self.columns.names), *self._parts]

    def _rows(self) -> DataFrame:
        """Return the rows with :data:`LINE`, :data:`_FILE`, and why they cannot be parsed, in :data:`REASON`."""
        from pyspark.sql import functions as sf

        line, row = sf.col(LINE), sf.col(_ROW)
        # The number of the task is not deterministic: Spark moves no filter below it, and parses each line once.
        task = sf.spark_partition_id().alias(_TASK)
        parsed = _parsed(line, self.columns, self.options).alias(_ROW)
        frame = self._without_headers().select(parsed, task, *self._parts, line, _FILE)
        why = sf.when(~sf.is_valid_utf8(line), sf.lit(NO_UTF8))
        if self.form.quote:
            quoted = sf.contains(line, sf.lit(self.form.quote))
            why = why.when(quoted & ~line.rlike(self.form.line()), sf.lit(QUOTES))
        why = why.when(
            row[UNPARSED].isNotNull(), sf.lit(f"its values do not fit the columns {_column_list(self.columns)}")
        )
        values = (row[name].alias(name) for name in self.columns.names)
        return frame.select(*values, *self._parts, line, _FILE, _TASK, why.alias(REASON))

    def _without_headers(self) -> DataFrame:
        """Return the lines that are rows, with :data:`_FILE`."""
        from pyspark.sql import functions as sf

        line, read = sf.col(LINE), self.lines.metadataColumn("_metadata")
        file = read["file_path"].alias(_FILE)
        frame = self.lines.filter((line >= sf.lit("!")) | line.rlike(_NOT_BLANK))
        if self.form.comment:
            frame = frame.filter(~sf.startswith(line, sf.lit(self.form.comment)))
        if not self.form.has_header:
            return frame.select(line, *self._parts, file)
        from jobpipe.pipelines.sources.first_rows import marks_first

        head = sf.when(read["file_block_start"] == 0, sf.xxhash64(read["file_path"])).otherwise(sf.lit(0))
        frame = frame.select(line, *self._parts, file, marks_first()(head).alias(_FIRST))
        is_row = sf.when(sf.col(_FIRST), _fits(self.columns, self.form, self.options)).otherwise(sf.lit(True))
        return frame.filter(is_row).drop(_FIRST)


def _column_list(columns: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in columns)[:_SHOWN]


def require_no_file_functions(frame: DataFrame) -> None:
    """Check that nothing computed from rows of files with headers asks Spark for the file that it reads now.

    The rows pass a Python process, and Spark has read on meanwhile.

    Raises:
        ConfigError: a function is used that would name another file.
    """
    conf, key = frame.sparkSession.conf, "spark.sql.debug.maxToStringFields"
    before = conf.get(key)
    conf.set(key, str(2**31 - 1))  # else a plan is cut off
    try:
        plan = str(frame._jdf.queryExecution().logical().toString())
    finally:
        conf.set(key, str(before))
    if _FIRST in plan and (found := _FILE_FUNCTION.search(plan)) is not None:
        raise ConfigError(
            f"{found[0]}() would name another file than that of the row, since the source csv has a header; use "
            "_metadata.file_path, _metadata.file_block_start or _metadata.file_block_length",
            key="transform",
        )


def _fits(columns: StructType, form: CsvFormat, options: Mapping[str, Any]) -> Column:
    """Return false, for a header is no row; it is an error if it does not name the columns."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StringType, StructField, StructType

    if form.by_place:
        return sf.lit(False)
    line, places = sf.col(LINE), [f"c{number}" for number in range(len(columns))]
    texts = StructType([StructField(place, StringType()) for place in places])
    given = {name: value for name, value in options.items() if name.lower() not in ("nullvalue", "emptyvalue")}
    # One expression of each: Spark would parse the line once for each that names a part of it.
    named = sf.to_json(_parsed(line, texts, given))
    names = sf.to_json(
        sf.struct(*(sf.lit(name).alias(place) for place, name in zip(places, columns.names, strict=True)))
    )
    is_exact = SparkSession.active().conf.get("spark.sql.caseSensitive") == "true"
    same = named == names if is_exact else sf.lower(named) == sf.lower(names)
    said = sf.concat(
        sf.lit("file "),
        sf.col(_FILE),
        sf.lit(": its header does not name the columns; the header: "),
        sf.left(sf.make_valid_utf8(line), sf.lit(_SHOWN)),
        sf.lit(
            f"; the columns: {', '.join(columns.names)[:_SHOWN]}. Mend the file or the schema, or give the source "
            "options: {enforceSchema: true}, which takes the columns by their places"
        ),
    )
    return sf.when(sf.coalesce(same, sf.lit(False)), sf.lit(False)).otherwise(sf.raise_error(said).cast("boolean"))


def _parsed(line: Column, columns: StructType, options: Mapping[str, Any]) -> Column:
    """Return what ``from_csv`` makes of a line: a struct of the columns, and of :data:`UNPARSED`."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StringType, StructField, StructType

    jvm: Any = SparkSession.active()._jvm
    made = StructType([*columns.fields, StructField(UNPARSED, StringType())])
    ddl = str(jvm.org.apache.spark.sql.types.DataType.fromJson(made.json()).toDDL())
    given = {name: str(value) for name, value in options.items() if name.lower() != "mode"}
    return sf.from_csv(line, ddl, {**given, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": UNPARSED})
