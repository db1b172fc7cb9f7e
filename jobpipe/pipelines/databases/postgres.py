"""PostgreSQL for plug-ins: connections with limits, and its errors in our words.

Settings are made for each transaction, which works through a pooler too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from jobpipe.errors import (
    ConfigError,
    JobpipeError,
    LinkBroken,
    LinkError,
    LinkTimeout,
    NotAuthorized,
    SchemaMismatch,
)
from jobpipe.pipelines.databases.database_api import IDLE_SECONDS, Database

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
_SETTINGS = """
    SELECT set_config('statement_timeout', %s, true), set_config('idle_in_transaction_session_timeout', %s, true),
        CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END
"""


class PostgresDatabase(Database):
    """A database of PostgreSQL; its URL is libpq's, without a password."""

    product: ClassVar[str] = "PostgreSQL"
    package: ClassVar[str] = "psycopg"
    install: ClassVar[str] = "pip install 'psycopg[binary]>=3.2'"
    name_bytes: ClassVar[int] = 63  # longer names are cut off

    @contextmanager
    def connection(self, application: str, columns: Collection[str] = (), **more: str) -> Iterator[Connection]:
        """Give a connection without a transaction; see :meth:`Database.connection`.

        Args:
            more: parameters of libpq.
        """
        psycopg = self.driver()
        given: dict[str, Any] = {"user": self.user, **more} if self.user is not None else {**more}
        if self.password is not None:
            given["password"] = self.password.reveal()
        try:
            with psycopg.connect(
                self.url,
                **given,
                **KEEPALIVES,
                connect_timeout=max(2, math.ceil(self.connect_timeout)),
                application_name=application[:63],
                client_encoding="UTF8",
                autocommit=True,
                prepare_threshold=None,
                cursor_factory=psycopg.ClientCursor,  # a value may stand wherever a literal may
            ) as connection:
                connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                yield connection
        except psycopg.Error as error:
            raise self._translated(error, columns) from None

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        """Make the block one transaction, which is on the disk when it ends without an error."""
        with connection.transaction():
            limits = [f"{math.ceil(seconds * 1000)}ms" for seconds in (self.statement_timeout, IDLE_SECONDS)]
            connection.execute(_SETTINGS, limits)
            yield

    def insert(
        self, connection: Connection, table: tuple[str, str], columns: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Copy rows, in a transaction of their own: a task that stands still holds no lock for long."""
        from psycopg import sql

        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(*table), names)
        with self.transaction(connection), connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def values(self, name: str, column: pa.Array[Any]) -> Sequence[Any]:
        """Return the values of a column; see :meth:`Database.values`."""
        texts = column
        while isinstance(texts, (pa.ListArray, pa.LargeListArray)):
            texts = texts.flatten()
        if isinstance(texts, (pa.StringArray, pa.LargeStringArray)):
            self._refuse(name, texts, "a text has a NUL character", pc.match_substring(texts, "\0"))
        return super().values(name, column)

    def _translated(self, error: psycopg.Error, columns: Collection[str]) -> JobpipeError:
        """Return our error for one of the driver's."""
        state = error.sqlstate
        if state is None:
            return self._own_error(error, error)
        kind = next((kind for prefix, kind in _KINDS if state.startswith(prefix)), LinkError)
        text = error.diag.message_primary or ""
        if state.startswith("P0"):  # it may quote a value
            text = "a trigger or function raised an error"
        elif state.startswith("22"):  # so may this; what lies between the first and the last quote is left out
            text = re.sub(r'".*"', "...", text)
        column = error.diag.column_name or _column_of(error.diag.context or "", columns)
        return self._error(kind, f"{text} ({type(error).__name__}, {state})", column, sqlstate=state)


_KINDS: tuple[tuple[str, type[JobpipeError]], ...] = (
    ("57014", LinkTimeout),  # statement_timeout
    ("25P03", LinkTimeout),  # idle in a transaction
    ("08", LinkBroken),
    ("57P", LinkBroken),
    ("28", NotAuthorized),
    ("42501", NotAuthorized),
    ("22", SchemaMismatch),
    ("23", SchemaMismatch),
    ("42", ConfigError),
    ("3D", ConfigError),
    ("3F", ConfigError),
    ("0A", ConfigError),
    ("P0", JobpipeError),  # of a trigger
)


def _column_of(context: str, columns: Collection[str]) -> str | None:
    """Return the column at which a COPY failed; only one of ours, as the text goes on with the value."""
    found = (re.search(rf", column {re.escape(name)}(:|, |$)", context, re.MULTILINE) for name in columns)
    return next((name for name, match in zip(columns, found, strict=True) if match), None)
