"""Which rows of a record batch an SQL condition holds for, by SQLite in memory.

The condition comes from a stranger, so it is one expression over the columns: no SELECT of its own, no statement, no
function that is not listed, and it ends when the read's time is over. What is masked is no column.
"""

from __future__ import annotations

import contextlib
import math
import re
import sqlite3
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from jobpipe.control.rows.arrow_texts import Plain, plain_values
from jobpipe.errors import ConfigError, WaitTimeout, short_repr

_FUNCTIONS = """
    abs ceil ceiling coalesce date datetime floor glob hex ifnull iif instr json_array_length json_extract json_type
    json_valid julianday length like lower ltrim max min mod nullif round rtrim sign strftime substr substring time trim
    typeof unicode unixepoch upper -> ->>"""
MOST_BYTES = 1 << 20  # of a value, or of all those of a row that the condition reads
FUNCTIONS = frozenset(_FUNCTIONS.split())
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MOST_BYTES + 4096,  # one step of the machine may search a value many times over
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 200_000,  # of our own statements: they name all columns
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 1,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
STEPS = 1  # of SQLite's machine between two looks at the clock
MOST_COLUMNS = 1000  # SQLite takes 2,000
# A text, a name in one of three kinds of quotes, what cannot be part of an expression, or a bracket.
_TOKEN = re.compile(r"'(?:[^']|'')*'|\"((?:[^\"]|\"\")*)\"|`[^`]*`|\[[^\]]*\]|(--|/\*|;|\x00)|([()])|(['\"`\[])")


class SqlCondition:
    """One condition, for record batches of one schema; used by one thread.

    Raises:
        ConfigError: it cannot be a condition.
    """

    def __init__(self, condition: str) -> None:
        self._text = condition
        self._quoted = _quoted_names(condition)
        self._table: _Table | None = None

    def numbers(self, batch: pa.RecordBatch, until: float, clock: Callable[[], float]) -> list[int]:
        """Return the numbers of the rows for which the condition is true, in order.

        Args:
            batch: rows without what is masked.
            until: when the read ends, by ``clock``.
            clock: seconds.

        Raises:
            ConfigError: SQLite does not take the condition, or it fails with one of the rows.
            WaitTimeout: it took longer.
        """
        if self._table is None:
            self._table = _Table(self._text, batch.schema)
            known = {name.casefold() for name in self._table.names}
            for name in self._quoted:  # SQLite would take what is no column for a text
                if name.casefold() not in known:
                    raise self._table.wrong(f"no such column: {name}")
        return self._table.numbers(batch, until, clock)


class _Table:
    """A table in memory that holds one record batch at a time."""

    def __init__(self, condition: str, schema: pa.Schema) -> None:
        if len(schema) > MOST_COLUMNS:
            raise ConfigError(f"a condition takes rows of at most {MOST_COLUMNS:,} columns", key="where")
        self.names = _unique(schema.names)
        self._number = _free("row_number", self.names)
        self._link = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for limit, value in LIMITS.items():
            self._link.setlimit(limit, value)
        self._link.create_collation("DECIMAL", _compare_decimals)
        # SQLite's own take time by the product of two lengths, in one step.
        self._link.create_function("instr", 2, _instr, deterministic=True)
        for name in ("trim", "ltrim", "rtrim"):
            self._link.create_function(name, 2, _one_argument, deterministic=True)
        columns = [f"{_quote(name)} {_declared(field.type)}" for name, field in zip(self.names, schema, strict=True)]
        try:
            self._link.execute(f"CREATE TABLE rows ({', '.join([f'{_quote(self._number)} INTEGER', *columns])})")
        except (sqlite3.Error, UnicodeError) as error:
            raise ConfigError(f"a condition cannot be used on these columns: {error}", key="where") from None
        places = ", ".join("?" * (len(columns) + 1))
        self._insert = f"INSERT INTO rows VALUES ({places})"  # noqa: S608 - question marks
        number = _quote(self._number)
        self._select = f"SELECT {number} FROM rows WHERE (\n{condition}\n) ORDER BY {number}"  # noqa: S608
        self._used: set[str] = set()  # columns that the condition reads: the others are not filled
        with self._guarded(math.inf, lambda: 0.0):
            self._link.execute(self._select).fetchall()

    def numbers(self, batch: pa.RecordBatch, until: float, clock: Callable[[], float]) -> list[int]:
        try:
            self._link.execute("DELETE FROM rows")
            empty = [None] * batch.num_rows
            columns = [
                list(map(_sql_value, plain_values(column))) if name in self._used else empty
                for name, column in zip(self.names, batch.columns, strict=True)
            ]
            self._link.executemany(self._insert, zip(range(batch.num_rows), *columns, strict=False))
        except sqlite3.DataError:
            raise ConfigError(
                f"what a condition reads of a row has at most {MOST_BYTES >> 20} MiB, and a row has more", key="where"
            ) from None
        with self._guarded(until, clock):
            return [row[0] for row in self._link.execute(self._select)]

    @contextlib.contextmanager
    def _guarded(self, until: float, clock: Callable[[], float]) -> Iterator[None]:
        selects = 0

        def authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
            nonlocal selects
            if action == sqlite3.SQLITE_SELECT:
                selects += 1
                return sqlite3.SQLITE_OK if selects == 1 else sqlite3.SQLITE_DENY
            if action == sqlite3.SQLITE_READ:
                self._used.add(second or "")
                return sqlite3.SQLITE_OK if first == "rows" else sqlite3.SQLITE_DENY
            if action == sqlite3.SQLITE_FUNCTION:
                return sqlite3.SQLITE_OK if (second or "").lower() in FUNCTIONS else sqlite3.SQLITE_DENY
            return sqlite3.SQLITE_DENY

        self._link.set_authorizer(authorize)
        self._link.set_progress_handler(lambda: clock() >= until, STEPS)
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
                if clock() < until:  # a callback of ours was given what is no text
                    raise self.wrong("it makes a text that is not UTF-8") from None
                raise WaitTimeout(
                    "the condition takes too long; ask for fewer rows, or for something simpler"
                ) from None
            raise self.wrong(str(error)) from None
        except (UnicodeError, OverflowError) as error:
            raise self.wrong(str(error)) from None
        finally:
            self._link.set_authorizer(None)
            self._link.set_progress_handler(None, 0)

    def wrong(self, why: str) -> ConfigError:
        """Return the error for a condition that SQLite does not take."""
        why = _PLAINER.get(why, why)
        return ConfigError(f"the condition is wrong: {why}. Columns: {', '.join(self.names) or 'none'}", key="where")


_PLAINER = {
    "not authorized": "it may have no SELECT, and call only functions that are listed in docs/page.md",
    "user-defined function raised exception": "trim, ltrim and rtrim take one argument here",
}


def _quoted_names(condition: str) -> list[str]:
    """Return the names in double quotes.

    Raises:
        ConfigError: there is more than an expression, or less.
    """
    depth, names = 0, []
    for found in _TOKEN.finditer(condition):
        name, stray, bracket, quote = found.groups()
        if stray:
            raise ConfigError(
                f"the condition has {short_repr(stray)}; it is one expression, without comments", key="where"
            )
        if quote:
            raise ConfigError(f"the condition has a {quote} that does not end", key="where")
        if name is not None:
            names.append(name.replace('""', '"'))
        depth += {"(": 1, ")": -1}.get(bracket or "", 0)
        if depth < 0:
            break
    if depth:
        raise ConfigError("the brackets of the condition do not match", key="where")
    return names


def _unique(names: list[str]) -> list[str]:
    """Return names that differ in more than letter case, as SQLite wants them: a second ``A`` becomes ``A_2``."""
    made: list[str] = []
    for name in names:
        made.append(_free(name.replace("\x00", ""), made))
    return made


def _free(name: str, taken: list[str]) -> str:
    used, free, number = {each.casefold() for each in taken}, name, 2
    while free.casefold() in used:
        free, number = f"{name}_{number}", number + 1
    return free


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _declared(kind: Any) -> str:
    """Return the type in SQLite, by which it compares a column with what the condition has."""
    if pa.types.is_decimal(kind):
        return "TEXT COLLATE DECIMAL"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "INTEGER"
    if pa.types.is_floating(kind):
        return "REAL"
    return "BLOB" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else "TEXT"


def _instr(text: Plain, part: Plain) -> int | None:
    """Return where a text, or bytes, begin to have a part, from 1; 0 if they do not; None for null."""
    if text is None or part is None:
        return None
    if isinstance(text, bytes) and isinstance(part, bytes):
        return text.find(part) + 1
    one, other = (each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in (text, part))
    return one.find(other) + 1


def _one_argument(text: Plain, _: Plain) -> Plain:
    raise ValueError("it takes one argument")


def _sql_value(value: Plain) -> Plain:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value)
    return value


def _compare_decimals(left: str, right: str) -> int:
    """Compare the digits of two decimals exactly; what is no number comes after all numbers."""
    one, other = _decimal(left), _decimal(right)
    if one is None or other is None:
        return (one is None) - (other is None) or (left > right) - (left < right)
    return (one > other) - (one < other)


def _decimal(text: str) -> Decimal | None:
    try:
        found = Decimal(text)
    except (InvalidOperation, ValueError):
        return None
    return found if found.is_finite() else None
