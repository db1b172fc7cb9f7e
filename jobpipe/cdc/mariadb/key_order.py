"""Keys of a table, in the server's own order: nothing here compares texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobpipe.cdc.mariadb.mysql_note import Key
from jobpipe.cdc.mariadb.server.mysql_types import is_integer
from jobpipe.cdc.mariadb.server.server_catalog import KeyColumn
from jobpipe.errors import ConfigError
from jobpipe.pipelines.databases.mysql import execute

if TYPE_CHECKING:
    from jobpipe.pipelines.databases.mysql import Connection

_KEYS_AT_ONCE = 200  # of a question to the server
_CASTS = {
    "date": "DATE",
    "datetime": "DATETIME(6)",
    "timestamp": "DATETIME(6)",
    "time": "TIME(6)",
    **{kind: kind.upper() for kind in ("uuid", "inet4", "inet6")},
}
_NAME = re.compile(r"\w+", re.ASCII)


def places_of(
    connection: Connection, key: Sequence[KeyColumn], keys: Sequence[Key], bounds: Sequence[Key]
) -> list[int]:
    """Return for each of some keys how many of some bounds are below it."""
    if not bounds:
        return [0] * len(keys)
    if all(is_integer(column.kind) for column in key):
        numbers = [tuple(map(int, bound)) for bound in bounds]
        return [sum(tuple(map(int, each)) > bound for bound in numbers) for each in keys]
    places: list[int] = []
    for first in range(0, len(keys), _KEYS_AT_ONCE):
        asked = [
            " + ".join(
                after(key, bound, [literal(column, value) for column, value in zip(key, each, strict=True)])
                for bound in bounds
            )
            for each in keys[first : first + _KEYS_AT_ONCE]
        ]
        (row,) = execute(connection, f"SELECT {', '.join(asked)}").fetchall()
        places += map(int, row)
    return places


def after(key: Sequence[KeyColumn], bound: Key, given: Sequence[str] | None = None) -> str:
    """Return the condition that a key is after another, so that the server can use the index of the key.

    Args:
        given: the key as expressions; None: the columns.
    """
    names = given or [f'"{column.name.replace(chr(34), chr(34) * 2).replace("%", "%%")}"' for column in key]
    values = [literal(column, value) for column, value in zip(key, bound, strict=True)]
    found = f"{names[-1]} > {values[-1]}"
    for name, value in reversed(list(zip(names[:-1], values[:-1], strict=True))):
        found = f"{name} >= {value} AND ({name} > {value} OR ({found}))"
    return f"({found})"


def literal(column: KeyColumn, value: bytes) -> str:
    """Return a value of a key as it stands in a statement."""
    if is_integer(column.kind):
        return str(int(value))
    if column.kind == "string":
        collation = _name(column.collation)
        return f"(CONVERT(_utf8mb4 X'{value.hex()}' USING {_name(column.character_set)}) COLLATE {collation})"
    if column.kind.startswith("decimal"):
        return f"CAST('{_plain(value)}' AS {column.kind.upper()})"
    if (cast := _CASTS.get(column.kind)) is not None:
        return f"CAST('{_plain(value)}' AS {cast})"
    return f"X'{value.hex()}'"


def _plain(value: bytes) -> str:
    text = value.decode("ascii")
    if re.fullmatch(r"[0-9a-fA-F.:\- ]*", text) is None:
        raise ConfigError("a key has a value of another form than its type")
    return text


def _name(name: str | None) -> str:
    if name is None or _NAME.fullmatch(name) is None:
        raise ConfigError(f"a key has a collation {name!r:.100}, which is no name")
    return name
