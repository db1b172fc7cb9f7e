"""PostgreSQL for plug-ins: where a database is, connections with limits, and its errors in our words.

Errors name tables, columns and constraints, and never what stands in a row: the server's own texts quote values, so
parts of them are left out. Settings are made for each transaction, which works through a pooler too. The driver
(psycopg) is an extra, and loaded with the first connection.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

from jobpipe.config.secrets import Secret
from jobpipe.errors import (
    ConfigError,
    JobpipeError,
    LinkBroken,
    LinkError,
    LinkTimeout,
    NotAuthorized,
    SchemaMismatch,
)
from jobpipe.pipelines.kinds import expected, holds_secret, wrong_key

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

INSTALL = "pip install 'psycopg[binary]>=3.2'"
IDLE_SECONDS = 60  # in the middle of a transaction; those of a process that stands still hold locks no longer
KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
_URL = "jdbc:postgresql://HOST:PORT/DATABASE, or postgresql://..., without a password, which is a key of its own"
_URL_PATTERN = r"(jdbc:)?postgres(ql)?://\S+"
_NAME_PATTERN = r'[^."\x00]{1,63}(\.[^."\x00]{1,63})?'
_SETTINGS = """
    SELECT set_config('statement_timeout', %s, true), set_config('idle_in_transaction_session_timeout', %s, true),
        CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END
"""


def _url(raw: Any, _folder: Path) -> str:
    if isinstance(raw, str) and ("password" in unquote(raw).lower() or holds_secret(raw)):
        raise wrong_key("it has a password in it", "take it out, and give password: env:NAME, file:PATH or enc:...")
    if not isinstance(raw, str) or re.fullmatch(_URL_PATTERN, raw) is None:
        raise ValueError
    url = "postgresql://" + raw.partition("://")[2]
    parts = urlsplit(url)
    if not parts.path.strip("/") or parts.fragment:
        raise ValueError
    return url


def _table(raw: Any, _folder: Path) -> str:
    if not isinstance(raw, str) or re.fullmatch(_NAME_PATTERN, raw) is None:
        raise ValueError
    return raw


DatabaseUrl = Annotated[str, *expected(_URL, _url, {"type": "string", "pattern": f"^{_URL_PATTERN}$"})]
TableName = Annotated[
    str, *expected("schema.table, or table", _table, {"type": "string", "pattern": "^[^.]+(\\.[^.]+)?$"})
]


def split_name(table: str) -> tuple[str | None, str]:
    """Return schema, if there is one, and name.

    >>> split_name("shop.orders")
    ('shop', 'orders')
    """
    schema, _, name = table.rpartition(".")
    return schema or None, name


@dataclass(frozen=True)
class PostgresDatabase:
    """Where a database is, and as whom; what it holds is no secret, so it may go to tasks.

    Attributes:
        url: libpq's, without a password.
        connect_timeout, statement_timeout: seconds.
    """

    url: str
    user: str | None = None
    password: Secret | None = None
    connect_timeout: float = 30.0
    statement_timeout: float = 600.0

    @property
    def name(self) -> str:
        """Host and database, for messages."""
        parts = urlsplit(self.url)
        return parts.netloc.rpartition("@")[2] + parts.path

    @contextmanager
    def connection(self, application: str, columns: Collection[str] = ()) -> Iterator[Connection]:
        """Give a connection without a transaction; it is closed at the end.

        Args:
            application: how the server shows it.
            columns: that an error may name.

        Raises:
            LinkError: the connection fails, or a statement takes too long; another attempt may work.
            NotAuthorized, ConfigError: rights, or names, are wrong.
            SchemaMismatch: the table cannot take the rows.
        """
        psycopg = _driver()
        given: dict[str, Any] = {"user": self.user} if self.user is not None else {}
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
            ) as connection:
                connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                yield connection
        except psycopg.Error as error:
            raise _told(error, self.name, columns) from None

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        """Make the block one transaction, which is on the disk when it ends without an error."""
        with connection.transaction():
            limits = [f"{math.ceil(seconds * 1000)}ms" for seconds in (self.statement_timeout, IDLE_SECONDS)]
            connection.execute(_SETTINGS, limits)
            yield


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as error:  # without libpq it is no ModuleNotFoundError
        raise ConfigError(
            f"PostgreSQL needs psycopg, which cannot be imported: {INSTALL}", package="psycopg"
        ) from error
    return psycopg


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


def _told(error: psycopg.Error, where: str, columns: Collection[str]) -> JobpipeError:
    """Return our error for one of the driver's."""
    psycopg = _driver()
    state = error.sqlstate
    if state is None:  # the driver's own, or the connection is gone
        programming = isinstance(error, (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError))
        text = " ".join(str(error).split())
        return (ConfigError if programming else LinkBroken)(f"PostgreSQL at {where}: {text}", database=where)
    kind = next((kind for prefix, kind in _KINDS if state.startswith(prefix)), LinkError)
    text = error.diag.message_primary or ""
    if state.startswith(("22", "P0")):
        # Such a text may quote a value, or be a trigger's; what lies between the first and the last quote is left out.
        text = "a trigger or function raised an error" if state.startswith("P0") else re.sub(r'".*"', "...", text)
    column = error.diag.column_name or _column_of(error.diag.context or "", columns)
    what = f"column {column}: {text}" if column and f'"{column}"' not in text else text
    return kind(
        f"PostgreSQL at {where}: {what} ({type(error).__name__}, {state})",
        database=where,
        sqlstate=state,
        **({"column": column} if column else {}),
    )


def _column_of(context: str, columns: Collection[str]) -> str | None:
    """Return the column at which a COPY failed; only one of ours, as the text goes on with the value."""
    found = (re.search(rf", column {re.escape(name)}(:|, |$)", context, re.MULTILINE) for name in columns)
    return next((name for name, match in zip(columns, found, strict=True) if match), None)
