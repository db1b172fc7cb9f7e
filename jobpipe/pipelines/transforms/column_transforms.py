"""Transforms of columns, with the names and options of Kafka Connect's; each a few lines over Spark's functions.

``predicate`` and ``negate`` are where the columns stay the same for all rows: a frame has one schema.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from jobpipe.config.types.value_types import BadValueError
from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.field_types import Columns, Flag, PlainText, Text, expected
from jobpipe.pipelines.file.problems import OptionError
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.api import (
    DEAD,
    DEAD_TYPE,
    ORIGIN,
    ORIGIN_FIELDS,
    SOURCE,
    UNPARSED,
    PluginOptions,
    Transform,
    column_named,
    origin,
    require_columns,
)
from jobpipe.pipelines.plugins.job_context import JobContext

_CAST = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
}
"""Kafka Connect's names of types that Spark has under others; in any case, as Spark's own."""
_WHOLE = {*_CAST, "boolean", "string"}  # what Kafka Connect's Cast takes for a value that has no fields


def _spark_type(kind: str) -> str:
    return _CAST.get(kind.lower(), kind)


def _pairs(raw: Any, _folder: Path) -> dict[str, str]:
    """Read ``a:b,c:d``, a list of such, or a section; the part after the colon may have commas in brackets."""
    parts = _split(raw) if isinstance(raw, str) else raw
    pairs = list(parts.items()) if isinstance(parts, dict) else [_pair(part) for part in parts]
    found = {str(name): str(value) for name, value in pairs}
    if not found or len(found) < len(pairs) or not all(name and value for name, value in found.items()):
        raise ValueError
    return found


def _pair(part: Any) -> tuple[str, str]:
    name, colon, value = part.partition(":") if isinstance(part, str) else ("", "", "")
    if not colon:
        raise BadValueError(f"pairs such as temp:double; {part!r:.80} has no colon")
    return name.strip(), value.strip()


def _split(text: str) -> list[str]:
    """Split at commas outside brackets: ``a:decimal(10,2),b:int``."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "(<") - (char in ")>")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _casts(raw: Any, folder: Path) -> dict[str, str]:
    """Read pairs of column and type; a type alone, as Kafka Connect has it, casts no row."""
    if isinstance(raw, str) and raw.strip().lower() in _WHOLE:
        raise BadValueError(
            f"the column too, as in temp:{raw.strip()}, and so for each column: rows have no other value"
        )
    return _pairs(raw, folder)


_PAIRS = "pairs such as temp:double,count:int, or a section of them"
_PAIRS_SCHEMA = {"type": ["string", "object", "array"], "items": {"type": "string"}}
Pairs = Annotated[dict[str, str], *expected(_PAIRS, _pairs, _PAIRS_SCHEMA)]
Casts = Annotated[dict[str, str], *expected(_PAIRS, _casts, _PAIRS_SCHEMA)]


def replace_columns(frame: DataFrame, columns: dict[str, Column]) -> DataFrame:
    """Return the frame with these columns in the place of those of their names, new ones last."""
    kept = [columns[name].alias(name) if name in columns else column_named(name) for name in frame.columns]
    return frame.select(*kept, *(column.alias(name) for name, column in columns.items() if name not in frame.columns))


class Predicated(PluginOptions):
    """Which rows are meant."""

    predicate: Text | None = Field(default=None, description="Only rows for which this SQL condition is true.")
    negate: Flag = Field(default=False, description="Only rows for which the condition is not true.")


def _complaints(options: Predicated) -> Iterable[OptionError]:
    if options.negate and options.predicate is None:
        yield OptionError(
            "negate", "there is no predicate, so all rows are meant", "give predicate, or leave out negate"
        )


def _meant(options: Predicated) -> Column | None:
    """Return the condition of the rows that are meant, never null; None for all."""
    if options.predicate is None:
        return None
    true = sf.coalesce(sf.expr(options.predicate), sf.lit(False))
    return ~true if options.negate else true


class Cast(Transform):
    """Changes the types of columns. With Spark's ANSI mode a value that does not fit fails the job, else it is null."""

    type = "Cast"

    class Options(PluginOptions):
        """Which columns."""

        spec: Casts = Field(description="COLUMN:TYPE,COLUMN:TYPE; types are Spark's, or Kafka Connect's (int64).")

    options: Options

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        spec = self.options.spec
        require_columns(frame, spec, "Cast")
        return replace_columns(frame, {name: column_named(name).cast(_spark_type(kind)) for name, kind in spec.items()})

    @property
    def may_fail(self) -> bool:
        """A value may not fit."""
        return True

    @property
    def tolerant(self) -> bool:
        """A value that does not fit makes its row a dead letter.

        Not so in an array, map or struct: of the value alone try_cast makes null, and the row would pass without it.
        """
        return not any("<" in kind for kind in self.options.spec.values())

    def apply_tolerant(self, frame: DataFrame, job: JobContext) -> DataFrame | None:
        """Cast the columns; say of each row which value does not fit."""
        if not self.tolerant:
            return None
        spec = self.options.spec
        require_columns(frame, spec, "Cast")
        casts = {name: column_named(name).try_cast(_spark_type(kind)) for name, kind in spec.items()}
        told = [
            sf.when(column_named(name).isNotNull() & casts[name].isNull(), sf.lit(f"column {name} does not fit {kind}"))
            for name, kind in spec.items()
        ]
        dead = dead_struct(frame, sf.lit("CAST_INVALID_INPUT"), sf.coalesce(*told))
        marked = frame.withColumn(DEAD, sf.when(sf.coalesce(*told).isNotNull(), dead))
        return replace_columns(marked, casts)


WHOLE_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options by which Spark writes rows as JSON without leaving anything out: it would drop nulls and microseconds, and
the seconds of old time zones' offsets."""


def dead_struct(frame: DataFrame, kind: Column, message: Column) -> Column:
    """Return the value of column DEAD for rows of ``frame``, of type DEAD_TYPE."""
    columns = (column_named(name) for name in frame.columns if name not in (ORIGIN, UNPARSED))
    row = sf.to_json(sf.struct(*columns), WHOLE_JSON)
    place = sf.col(ORIGIN) if ORIGIN in frame.columns else origin()
    fields = [row.alias("row"), kind.alias("error_class"), message.alias("error_message")]
    fields += [place[part.split(":")[0]].alias(part.split(":")[0]) for part in ORIGIN_FIELDS.split(", ")]
    known = sf.to_json(place[SOURCE], WHOLE_JSON) if _has_source(frame) else sf.lit(None)
    return sf.struct(*fields, known.alias("source_row")).cast(DEAD_TYPE)


def _has_source(frame: DataFrame) -> bool:
    return ORIGIN in frame.columns and SOURCE in getattr(frame.schema[ORIGIN].dataType, "names", ())


def keep_source(frame: DataFrame, without: Collection[str] = ()) -> DataFrame:
    """Return the rows with their present columns, but for some, as what the source gave, in column ORIGIN."""
    columns = [column_named(name) for name in frame.columns if name not in (ORIGIN, UNPARSED, *without)]
    return frame.withColumn(ORIGIN, sf.col(ORIGIN).withField(SOURCE, sf.struct(*columns)))


class ExtractField(Transform):
    """Makes the fields of one column, a struct, the columns; a column that is no struct becomes the only one."""

    type = "ExtractField"

    class Options(PluginOptions):
        """Which column."""

        field: Text = Field(description="The column.")

    options: Options

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        name = self.options.field
        require_columns(frame, [name], "ExtractField")
        struct = isinstance(frame.schema[name].dataType, StructType)
        return frame.select(column_named(name).alias("c")).select("c.*") if struct else frame.select(column_named(name))


class Filter(Transform):
    """Drops the rows for which the predicate is true, as Kafka Connect's; `negate: true` keeps those and drops others.

    `{type: sql, filter: CONDITION}` says which rows stay.
    """

    type = "Filter"

    class Options(Predicated):
        """Which rows."""

        predicate: Text = Field(description="An SQL condition; null counts as not true.")

    options: Options

    @property
    def may_fail(self) -> bool:
        return self.options.predicate is not None

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        dropped = _meant(self.options)
        assert dropped is not None  # noqa: S101 - there is a predicate
        return frame.where(~dropped)


class Flatten(Transform):
    """Makes a column of each field of a struct, at any depth: address.city for the field city of address."""

    type = "Flatten"

    class Options(PluginOptions):
        """How the columns are named."""

        delimiter: Text = Field(default=".", description="Separates the parts of a name.")

    options: Options

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        columns = list(self._leaves(frame.schema, ()))
        names = [name for name, _ in columns]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"Flatten: two columns would be named {', '.join(twice)}; give another delimiter")
        return frame.select(*(column.alias(name) for name, column in columns))

    def _leaves(self, schema: StructType, above: tuple[str, ...]) -> Iterator[tuple[str, Column]]:
        for field in schema.fields:
            path = (*above, field.name)
            if isinstance(field.dataType, StructType):
                yield from self._leaves(field.dataType, path)
            else:
                quoted = ".".join("`" + part.replace("`", "``") + "`" for part in path)
                yield self.options.delimiter.join(path), sf.col(quoted)


class HoistField(Transform):
    """Puts all columns into one, a struct."""

    type = "HoistField"

    class Options(PluginOptions):
        """Which one."""

        field: Text = Field(description="The name of the column.")

    options: Options

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        return frame.select(sf.struct(*(column_named(name) for name in frame.columns)).alias(self.options.field))


def _inserted(raw: Any, _folder: Path) -> str:
    """Read the name of a new column; in Kafka Connect ! after it means required, and ? optional."""
    name = raw[:-1] if isinstance(raw, str) and raw.endswith(("!", "?")) else raw
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise ValueError
    return name


InsertedColumn = Annotated[
    str, *expected("a name; ! or ? at its end is no part of it", _inserted, {"type": "string", "minLength": 1})
]


class InsertField(Transform):
    """Adds columns: a fixed text, or where the row stood in its topic, if the source has includeMetadata: true.

    As in Kafka Connect, a name may end with ! or ?, which is no part of it: whether a column may be null is known by
    what it holds.
    """

    type = "InsertField"

    class Options(Predicated):
        """Which columns."""

        static_field: InsertedColumn | None = Field(
            default=None, alias="static.field", description="A column with a fixed value."
        )
        static_value: PlainText | None = Field(default=None, alias="static.value", description="The fixed value.")
        timestamp_field: InsertedColumn | None = Field(
            default=None, alias="timestamp.field", description="Column for the time when the row was published."
        )
        topic_field: InsertedColumn | None = Field(
            default=None, alias="topic.field", description="Column for the row's topic."
        )
        partition_field: InsertedColumn | None = Field(
            default=None, alias="partition.field", description="Column for the row's partition."
        )
        offset_field: InsertedColumn | None = Field(
            default=None, alias="offset.field", description="Column for the offset of the row's batch."
        )

    options: Options

    def check(self, mode: Mode) -> Iterable[OptionError]:
        given = self.options
        yield from _complaints(given)
        if (given.static_field is None) != (given.static_value is None):
            key = "static.value" if given.static_value is None else "static.field"
            yield OptionError(key, "static.field and static.value go together", "give both")
        if given.static_field is None and not any(name for name, _ in self._metadata()):
            remedy = "give static.field, timestamp.field, topic.field, partition.field or offset.field"
            yield OptionError("", "it adds no column", remedy)

    @property
    def may_fail(self) -> bool:
        return self.options.predicate is not None

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        """Add the columns; null in the rows that the predicate leaves out."""
        columns: dict[str, Column] = {}
        if self.options.static_field is not None:
            columns[self.options.static_field] = sf.lit(self.options.static_value)
        for name, field in self._metadata():
            if name is not None:
                require_columns(frame, ["_jobpipe"], "InsertField (source with includeMetadata: true)")
                columns[name] = sf.col(f"_jobpipe.{field}")
        meant = _meant(self.options)
        if meant is not None:
            columns = {
                name: sf.when(meant, column).otherwise(column_named(name) if name in frame.columns else sf.lit(None))
                for name, column in columns.items()
            }
        return replace_columns(frame, columns)

    def _metadata(self) -> tuple[tuple[str | None, str], ...]:
        given = self.options
        return (
            (given.timestamp_field, "published"),
            (given.topic_field, "topic"),
            (given.partition_field, "partition"),
            (given.offset_field, "offset"),
        )


class MaskField(Transform):
    """Replaces values by an empty one of their type, or by a value of yours; null stays null.

    Empty are: a text without characters, zero, false, a list or map without elements, and the beginning of 1970 (in
    UTC) for dates and timestamps. Binary values and structs have none, and become null.
    """

    type = "MaskField"

    class Options(Predicated):
        """Which columns."""

        fields: Columns = Field(description="The columns.")
        replacement: PlainText | None = Field(default=None, description="Replaces each value. For texts and numbers.")

    options: Options

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """What negate denies is there."""
        yield from _complaints(self.options)

    @property
    def may_fail(self) -> bool:
        return self.options.predicate is not None

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        require_columns(frame, self.options.fields, "MaskField")
        meant = _meant(self.options)
        columns = {}
        for name in self.options.fields:
            masked = self._masked(name, frame.schema[name].dataType)
            whole = sf.when(column_named(name).isNotNull(), masked)
            columns[name] = whole if meant is None else sf.when(meant, whole).otherwise(column_named(name))
        return replace_columns(frame, columns)

    def _masked(self, name: str, kind: DataType) -> Column:
        given = self.options.replacement
        if given is not None:
            if not isinstance(kind, (StringType, NumericType)):
                said = f"MaskField: column {name} is of type {kind.simpleString()}: only texts and numbers are replaced"
                raise ConfigError(said, columns=[name])
            return sf.lit(given).cast(kind)
        if isinstance(kind, StringType):
            return sf.lit("").cast(kind)
        if isinstance(kind, NumericType):
            return sf.lit(0).cast(kind)
        if isinstance(kind, ArrayType):
            return sf.array().cast(kind)
        if isinstance(kind, MapType):
            return sf.create_map().cast(kind)
        if isinstance(kind, TimestampType):
            return sf.timestamp_seconds(sf.lit(0))
        if isinstance(kind, (DateType, TimestampNTZType)):
            return sf.lit(date(1970, 1, 1)).cast(kind)
        return sf.lit(False if isinstance(kind, BooleanType) else None).cast(kind)


class ReplaceField(Transform):
    """Leaves out and renames columns."""

    type = "ReplaceField"

    class Options(PluginOptions):
        """Which columns."""

        include: Columns | None = Field(default=None, description="Keep only these columns.")
        exclude: Columns | None = Field(default=None, description="Leave these out, even if include names them.")
        renames: Pairs | None = Field(default=None, description="OLD:NEW,OLD:NEW, by the names in the incoming rows.")

    options: Options

    def check(self, mode: Mode) -> Iterable[OptionError]:
        if not self.options.model_fields_set:
            yield OptionError("", "it changes nothing", "give include, exclude or renames")
        renames = self.options.renames or {}
        if len(set(renames.values())) < len(renames):
            yield OptionError("renames", "two columns get one name", "give each its own")

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        given = self.options
        renames = given.renames or {}
        require_columns(frame, [*(given.include or ()), *(given.exclude or ()), *renames], "ReplaceField")
        kept = [
            name
            for name in frame.columns
            if name not in (given.exclude or ()) and (given.include is None or name in given.include)
        ]
        if not kept:
            raise ConfigError("ReplaceField: no column is left", columns=frame.columns)
        for old, new in renames.items():
            if old in kept and new in kept and new not in renames:
                said = f"ReplaceField: {old} would be renamed to {new}, and there is a column {new} that stays"
                raise ConfigError(f"{said}; exclude {new}, or rename it as well", columns=[old, new])
        return frame.select(*(column_named(name).alias(renames.get(name, name)) for name in kept))
