"""What sources and sinks of Spark's own formats have in common: their options, the columns, and paths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from jobpipe.config.values import BadValueError, expand_home
from jobpipe.errors import ConfigError
from jobpipe.pipelines.kinds import PlainMap
from jobpipe.pipelines.plugins import PluginOptions
from jobpipe.pipelines.problems import Complaint

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SCHEMA_BYTES = 1 << 20
SAY_WHAT_IS_MALFORMED = {"mode", "columnnameofcorruptrecord"}
"""Spark's options, in small letters, by which the user says what becomes of rows that cannot be parsed."""


class FormatOptions(PluginOptions):
    """What every format may have."""

    options: PlainMap = Field(default_factory=dict, description="Spark's own options of the format.")

    def complaints(self, *names: str, remedy: str) -> Iterator[Complaint]:
        """Yield what is missing of Spark's options; without them Spark would fail only when the job runs."""
        given = {name.lower() for name in self.options}
        if missing := [name for name in names if name not in given]:
            yield Complaint("options", f"its {' and '.join(missing)} is missing", remedy)


def is_uri(path: str) -> bool:
    """Tell whether a path is a URI."""
    return _URI.match(path) is not None


def absolute(path: str, folder: Path) -> str:
    """Return a path that starts from ``folder`` if it is relative; a URI as it is.

    Raises:
        ConfigError: it starts from the home folder of a user who has none.
    """
    return path if is_uri(path) else str(folder / _expanded(path, "path"))


def local_folder(storage: str) -> Path | None:
    """Return the folder of a storage, a URI or a path, on this host's files; None of another one."""
    if storage.startswith("file:"):
        return Path("/" + storage.removeprefix("file:").lstrip("/"))
    return Path(storage) if ":" not in storage.split("/")[0] else None


def read_schema(schema: str, folder: Path) -> str:
    """Return columns as DDL: what is given, or, after ``file:``, what that file says.

    Raises:
        ConfigError: the file cannot be read.
    """
    if not schema.startswith("file:"):
        return schema
    path = folder / _expanded(schema.removeprefix("file:"), "schema")
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


def _expanded(path: str, key: str) -> Path:
    try:
        return expand_home(path)
    except BadValueError as error:
        raise ConfigError(f"{key}: {path} cannot be used; expected {error}", key=key) from error
