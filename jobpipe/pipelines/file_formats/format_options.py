"""What sources and sinks of Spark's own formats have in common: their options, the columns, and paths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.field_types import PlainMap
from jobpipe.pipelines.file.file_paths import expanded
from jobpipe.pipelines.file.problems import OptionError
from jobpipe.pipelines.plugins.api import PluginOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SCHEMA_BYTES = 1 << 20
SAY_WHAT_IS_MALFORMED = {"mode", "columnnameofcorruptrecord"}
"""Spark's options, in small letters, by which the user says what becomes of rows that cannot be parsed."""


class FormatOptions(PluginOptions):
    """What every format may have."""

    options: PlainMap = Field(default_factory=dict, description="Spark's own options of the format.")

    def complaints(self, *names: str, remedy: str) -> Iterator[OptionError]:
        """Yield what is missing of Spark's options; without them Spark would fail only when the job runs."""
        given = {name.lower() for name in self.options}
        if missing := [name for name in names if name not in given]:
            yield OptionError("options", f"its {' and '.join(missing)} is missing", remedy)

    def refused(self, *names: str, remedy: str) -> Iterator[OptionError]:
        """Yield those of Spark's options that a job gives in another way, and that would pass its checks by."""
        for name in self.options:
            if name.lower() in names:
                yield OptionError(f"options.{name}", "it is not an option here", remedy)


def read_schema(schema: str, folder: Path) -> str:
    """Return columns as DDL: what is given, or, after ``file:``, what that file says.

    Raises:
        ConfigError: the file cannot be read.
    """
    if not schema.startswith("file:"):
        return schema
    path = folder / expanded(schema.removeprefix("file:"), "schema")
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(_SCHEMA_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"schema: {path} cannot be read: {error}", key="schema") from error


def read_columns(schema: str, folder: Path) -> StructType:
    """Return columns that are given as DDL, or in a file; needs a session.

    Raises:
        ConfigError: these are no columns, or the file cannot be read.
    """
    from pyspark.sql.types import StructType

    columns = StructType.fromDDL(read_schema(schema, folder))
    if not isinstance(columns, StructType):
        raise ConfigError(f"schema {schema!r}: give columns, as in 'id bigint, name string'", key="schema")
    return columns
