"""SQLite for plug-ins: a file that all tasks of a job reach, on one host.

A transaction takes the whole file, so one waits for the other. Times are texts in UTC, as SQLite's own functions read
them; decimals are texts, since its numbers have 15 digits.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from jobpipe.errors import ConfigError, JobpipeError, LinkError, LinkTimeout, NotAuthorized, SchemaMismatch
from jobpipe.pipelines.databases.database_api import Database, without_zone

Connection = sqlite3.Connection
SCHEMA = "main"
SCHEME = "sqlite:"
_LONGEST = 2_000_000.0  # seconds; SQLite counts milliseconds in 32 bits
_STEPS = 10_000  # of SQLite's machine between two looks at the clock; some 0.1 ms


class SqliteDatabase(Database):
    """A file of SQLite; its URL is ``sqlite:`` and the absolute path."""

    product: ClassVar[str] = "SQLite"
    mark: ClassVar[str] = "?"

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.url.removeprefix(SCHEME))

    @property
    def name(self) -> str:
        """The file, for messages."""
        return str(self.path)

    @contextmanager
    def connection(self, application: str, columns: Collection[str] = ()) -> Iterator[Connection]:
        """Give a connection without a transaction; see :meth:`Database.connection`."""
        try:
            with closing(self._open("rw")) as connection:
                connection.execute("PRAGMA foreign_keys = ON")
                connection.execute("PRAGMA synchronous = FULL")
                yield connection
        except sqlite3.Error as error:
            raise self._translated(error) from None

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        """Make the block one transaction, which nothing else writes meanwhile; an error, or the end, undoes it."""
        connection.execute("BEGIN IMMEDIATE")
        deadline = time.monotonic() + self._limit
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        try:
            yield
        except BaseException:
            if connection.in_transaction:  # some errors end it
                connection.execute("ROLLBACK")
            raise
        finally:
            connection.set_progress_handler(None, 0)
        connection.execute("COMMIT")

    def make(self) -> None:
        """Make the file, if it is missing, so that others can read while a job writes.

        Raises:
            ConfigError, NotAuthorized: it cannot be made there.
        """
        if self.path.exists():
            return
        try:
            with closing(self._open("rwc")) as connection:
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except sqlite3.Error as error:
            raise self._translated(error) from None

    def insert(
        self, connection: Connection, table: tuple[str, str], columns: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Add rows, in a transaction of their own."""
        with self.transaction(connection):
            connection.executemany(self.insertion(table, columns), rows)

    def dotted(self, table: tuple[str, str]) -> str:
        """Return a table's name as it stands in a statement."""
        return self.quoted(table[1])

    def called(self, table: tuple[str, str]) -> str:
        """Return a table's name for messages."""
        return table[1]

    def values(self, name: str, column: pa.Array[Any]) -> Sequence[Any]:
        """Return the values of a column; see :meth:`Database.values`."""
        if pa.types.is_floating(column.type):
            self._refuse(name, column, "a number is NaN", pc.is_nan(column))
        kind = column.type
        values = super().values(name, without_zone(column))
        if isinstance(kind, pa.TimestampType):
            return [None if value is None else value.isoformat(" ", "microseconds") for value in values]
        if pa.types.is_date(kind):
            return [None if value is None else value.isoformat() for value in values]
        if pa.types.is_decimal(kind):
            return [None if value is None else f"{value:f}" for value in values]
        return values

    @property
    def _limit(self) -> float:
        return min(self.statement_timeout or _LONGEST, _LONGEST)

    def _open(self, mode: str) -> Connection:
        return sqlite3.connect(
            f"file:{quote(str(self.path))}?mode={mode}",
            uri=True,
            isolation_level=None,
            timeout=self._limit,
        )

    def _translated(self, error: sqlite3.Error) -> JobpipeError:
        """Return our error for one of the driver's."""
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:  # the driver's own
            return self._error(ConfigError, str(error))
        text = "a trigger raised an error" if code == sqlite3.SQLITE_CONSTRAINT_TRIGGER else str(error)
        kind = _KINDS.get(code & 0xFF, LinkError)
        return self._error(kind, f"{text} ({error.sqlite_errorname})", code=error.sqlite_errorname)


# https://www.sqlite.org/rescode.html; the lowest byte is the kind
_KINDS: dict[int, type[JobpipeError]] = {
    sqlite3.SQLITE_ERROR: ConfigError,
    sqlite3.SQLITE_PERM: NotAuthorized,
    sqlite3.SQLITE_AUTH: NotAuthorized,
    sqlite3.SQLITE_READONLY: NotAuthorized,
    sqlite3.SQLITE_CANTOPEN: ConfigError,
    sqlite3.SQLITE_NOTADB: ConfigError,
    sqlite3.SQLITE_BUSY: LinkTimeout,
    sqlite3.SQLITE_LOCKED: LinkTimeout,
    sqlite3.SQLITE_INTERRUPT: LinkTimeout,
    sqlite3.SQLITE_CONSTRAINT: SchemaMismatch,
    sqlite3.SQLITE_MISMATCH: SchemaMismatch,
    sqlite3.SQLITE_TOOBIG: SchemaMismatch,
}
