"""What statements in the log do to captured tables. Of tables, the log tells rows; these change them without rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

_MARK = "\ue000"  # and a number: a name or text that was in quotes
_NAME = rf"(?:{_MARK}\d+|[\w$\u0080-\uffff]+)"
_TABLE = rf"{_NAME}(?:\s*\.\s*{_NAME})?"
_LIST = rf"{_TABLE}(?:\s*,\s*{_TABLE})*"
_CONDITIONAL = re.compile(r"/\*M?!\d*(.*?)\*/", re.DOTALL)
_COMMENT_OR_QUOTED = re.compile(
    r"""/\*(?!M?!).*?(?:\*/|\Z)|--(?:\s[^\n]*|\Z)|\#[^\n]*"""
    r"""|('(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`)""",
    re.DOTALL,
)
_SETTINGS = re.compile(r"SET\s+STATEMENT\s.*?\sFOR\s+", re.IGNORECASE | re.DOTALL)
_TRUNCATE = re.compile(rf"TRUNCATE\s+(?:TABLE\s+)?({_TABLE})", re.IGNORECASE)
_DROP = re.compile(rf"DROP\s+TABLES?\s+(?:IF\s+EXISTS\s+)?({_LIST})", re.IGNORECASE)
_REPLACE = re.compile(
    rf"CREATE\s+OR\s+REPLACE\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?({_TABLE})(.*)", re.IGNORECASE | re.DOTALL
)
_SELECT = re.compile(r"\b(?:SELECT|VALUES\s*\()", re.IGNORECASE)
_RENAME = re.compile(r"RENAME\s+TABLES?\s+(?:IF\s+EXISTS\s+)?(.*)", re.IGNORECASE | re.DOTALL)
_RENAMED = re.compile(rf"({_TABLE})\s+(?:(?:WAIT\s+\d+|NOWAIT)\s+)?TO\s+({_TABLE})\s*(?:,|$)", re.IGNORECASE)
_ALTER = re.compile(
    rf"ALTER\s+(?:ONLINE\s+)?(?:IGNORE\s+)?TABLE\s+(?:IF\s+EXISTS\s+)?({_TABLE})(.*)", re.IGNORECASE | re.DOTALL
)
_TO = re.compile(rf"\bRENAME\s+(?:TO\s+|AS\s+|=\s*)?(?!COLUMN\b|INDEX\b|KEY\b|CONSTRAINT\b)({_TABLE})", re.IGNORECASE)
_EXCHANGE = re.compile(rf"\bEXCHANGE\s+PARTITION\s+{_NAME}\s+WITH\s+TABLE\s+({_TABLE})", re.IGNORECASE)
_PARTITION_TO_TABLE = re.compile(rf"\bCONVERT\s+PARTITION\s+{_NAME}\s+TO\s+TABLE\s+({_TABLE})", re.IGNORECASE)
_TABLE_TO_PARTITION = re.compile(rf"\bCONVERT\s+TABLE\s+({_TABLE})\s+TO\s+PARTITION\b", re.IGNORECASE)
_ROWS = re.compile(
    r"\b(?:(?:TRUNCATE|DROP|DISCARD|IMPORT)\s+PARTITION|(?:DISCARD|IMPORT)\s+TABLESPACE)\b", re.IGNORECASE
)
_DATABASE = re.compile(rf"DROP\s+(?:DATABASE|SCHEMA)\s+(?:IF\s+EXISTS\s+)?({_NAME})", re.IGNORECASE)
_ROW_WORDS = {"insert", "update", "delete", "replace", "load", "with", "call", "handler", "select", "do", "values"}
_ONE_TABLE = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        rf"(?:INSERT|REPLACE)\s+(?:(?:LOW_PRIORITY|HIGH_PRIORITY|DELAYED|IGNORE)\s+)*(?:INTO\s+)?({_TABLE})",
        rf"UPDATE\s+(?:(?:LOW_PRIORITY|IGNORE)\s+)*({_TABLE})\s+SET\b",
        rf"DELETE\s+(?:(?:LOW_PRIORITY|QUICK|IGNORE)\s+)*FROM\s+({_TABLE})(?:\s+(?:WHERE|ORDER|LIMIT)\b|\s*$)",
        rf"LOAD\s+(?:DATA|XML)\b.*?\bINTO\s+TABLE\s+({_TABLE})",
    )
)


class Effect(Enum):
    """What a statement does to a table."""

    EMPTIED = auto()
    """It has no rows from here on: it was truncated, dropped or renamed."""
    REPLACED = auto()
    """It has other rows from here on, which the log does not tell."""
    UNKNOWN = auto()
    """It changes rows, and was logged as text."""


@dataclass(frozen=True)
class TableEffect:
    """An effect on one table; ``table`` is empty for all of a database, and both where no name is known."""

    effect: Effect
    database: str
    table: str = ""


def effects_of(database: str, text: str) -> list[TableEffect]:
    """Return what a statement does to tables, other than changing rows as the log tells.

    >>> effects_of("shop", "RENAME TABLE orders TO _old, _new TO orders")[1]
    TableEffect(effect=<Effect.REPLACED: 2>, database='shop', table='orders')

    Args:
        database: the session's.
    """
    quoted: list[str] = []
    plain = _plain(text, quoted)
    effects: list[TableEffect] = []

    def named(name: str) -> str:
        return quoted[int(name[1:])] if name[0] == _MARK else name

    def add(effect: Effect, name: str) -> None:
        parts = [named(each) for each in re.findall(_NAME, name)]
        effects.append(TableEffect(effect, *((database, parts[0]) if len(parts) == 1 else parts[:2])))

    if found := _TRUNCATE.match(plain):
        add(Effect.EMPTIED, found[1])
    elif found := _REPLACE.match(plain):
        add(Effect.REPLACED if _SELECT.search(found[2]) else Effect.EMPTIED, found[1])
    elif found := _DROP.match(plain):
        for name in re.findall(_TABLE, found[1]):
            add(Effect.EMPTIED, name)
    elif found := _DATABASE.match(plain):
        effects.append(TableEffect(Effect.EMPTIED, named(found[1])))
    elif found := _RENAME.match(plain):
        for old, new in _RENAMED.findall(found[1]):
            add(Effect.EMPTIED, old)
            add(Effect.REPLACED, new)
    elif found := _ALTER.match(plain):
        name, rest = found[1], found[2]
        if other := _EXCHANGE.search(rest) or _PARTITION_TO_TABLE.search(rest):
            add(Effect.REPLACED, name)
            add(Effect.REPLACED, other[1])
        elif other := _TABLE_TO_PARTITION.search(rest):
            add(Effect.REPLACED, name)
            add(Effect.EMPTIED, other[1])
        elif _ROWS.search(rest):
            add(Effect.REPLACED, name)
        if renamed := _TO.search(rest):
            add(Effect.EMPTIED, name)
            add(Effect.REPLACED, renamed[1])
    elif (word := re.match(r"\w*", plain)) and word[0].lower() in _ROW_WORDS:
        target = next((found[1] for pattern in _ONE_TABLE if (found := pattern.match(plain))), None)
        if target is None:
            effects.append(TableEffect(Effect.UNKNOWN, ""))
        else:
            add(Effect.UNKNOWN, target)
    return effects


def _plain(text: str, quoted: list[str]) -> str:
    """Return a statement without its comments; what is in quotes becomes a mark, and is appended to a list."""

    def replaced(found: re.Match[str]) -> str:
        if found[1] is None:
            return " "
        quote = found[1][0]
        quoted.append(found[1][1:-1].replace(quote * 2, quote))
        return f"{_MARK}{len(quoted) - 1} "

    marked = _COMMENT_OR_QUOTED.sub(replaced, text.replace(_MARK, "?"))
    while (shown := _CONDITIONAL.sub(r" \1 ", marked)) != marked:
        marked = shown
    plain = marked.strip().rstrip(";").rstrip()
    if found := _SETTINGS.match(plain):
        plain = plain[found.end() :]
    return plain
