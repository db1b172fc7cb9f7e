"""MySQL and MariaDB for plug-ins: connections with limits, and their errors in our words.

Where a transaction ends with an error its connection is closed, at which the server undoes it.
"""

from __future__ import annotations

import math
import re
import ssl
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from jobpipe.errors import (
    ConfigError,
    Fenced,
    JobpipeError,
    LinkBroken,
    LinkError,
    LinkTimeout,
    NotAuthorized,
    RowTooLarge,
    SchemaMismatch,
)
from jobpipe.pipelines.databases.database_api import IDLE_SECONDS, Database, without_zone

if TYPE_CHECKING:
    import pymysql

    Connection = pymysql.connections.Connection[Any]

PORT = 3306
NO_TABLE, DUPLICATE, NO_RIGHT = 1146, (1022, 1062, 1586), 1227  # codes
MODE, CA_FILE = "sslMode", "serverSslCert"  # as MariaDB's driver for Java calls them; MySQL's has the first
MODES = {
    "disabled": "disable",
    "disable": "disable",
    "preferred": "prefer",
    "required": "trust",
    "trust": "trust",
    "verify_ca": "verify-ca",
    "verify_identity": "verify-full",
    "verify_full": "verify-full",
}
"""TLS as the drivers for Java call it, in lower case with ``_``, and what it is."""
_LARGE = 100_000  # characters and bytes of a row, from which on its size is looked at
_PACKET_SECONDS = 30.0  # more than a statement may take, until its answer is given up
_NO_LIMIT = 31_536_000  # seconds; the most that the server takes for a lock
_SETTINGS = (
    "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO,ANSI_QUOTES', "
    "time_zone = '+00:00', lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}"
)


class MySqlDatabase(Database):
    """A database of MySQL or MariaDB; its URL is that of their drivers for Java, without a password."""

    product: ClassVar[str] = "MySQL"
    package: ClassVar[str] = "pymysql"
    install: ClassVar[str] = "pip install 'pymysql>=1.2'"

    @property
    def schema(self) -> str:
        """The database that the URL names."""
        return unquote(urlsplit(self.url).path.strip("/"))

    @contextmanager
    def connection(
        self, application: str, columns: Collection[str] = (), answer: float | None = None
    ) -> Iterator[Connection]:
        """Give a connection without a transaction; see :meth:`Database.connection`.

        Args:
            answer: seconds that the server may take to answer; None: somewhat longer than a statement may.
        """
        pymysql = self.driver()
        parts = urlsplit(self.url)
        if answer is None and self.statement_timeout:
            answer = self.statement_timeout + _PACKET_SECONDS
        tls, first = self._tls(), max(1.0, self.connect_timeout)
        try:
            connection = pymysql.connect(
                host=parts.hostname,
                port=parts.port or PORT,
                user=self.user,
                # As bytes: a text would have to be Latin-1.
                password=self.password.reveal().encode() if self.password is not None else b"",
                database=self.schema,
                charset="utf8mb4",
                connect_timeout=first,
                read_timeout=first,  # until it is connected
                write_timeout=first,
                client_flag=pymysql.constants.CLIENT.FOUND_ROWS,
                program_name=application[:100],
                autocommit=True,
                **tls,
            )
        except pymysql.MySQLError as error:
            raise self._translated(error, None) from None
        try:
            connection._read_timeout = connection._write_timeout = answer
            self._set(connection)
            yield connection
        except pymysql.MySQLError as error:
            raise self._translated(error, columns or None) from None
        finally:
            with suppress(pymysql.MySQLError, OSError):
                connection.close()

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        """Make the block one transaction; after an error the connection can only be closed, which undoes it."""
        execute(connection, f"SET SESSION wait_timeout = {IDLE_SECONDS}")
        connection.begin()
        yield
        connection.commit()
        execute(connection, "SET SESSION wait_timeout = DEFAULT")

    def execute(self, connection: Connection, statement: str, *values: Any) -> Any:
        """Run a statement; return its cursor."""
        return execute(connection, statement, *values)

    def insert(
        self, connection: Connection, table: tuple[str, str], columns: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Add rows, many in a statement; each statement is on its own.

        Raises:
            Fenced: the table is gone.
            RowTooLarge: the server would take none of that size.
        """
        pymysql = self.driver()
        statement, given = self.insertion(table, columns), list(rows)
        self._require_room(connection, statement, given)
        try:
            with connection.cursor() as cursor:
                cursor.executemany(statement, given)
        except pymysql.ProgrammingError as error:
            if error.args[0] != NO_TABLE:
                raise
            what = f"MySQL at {self.name}: table {'.'.join(table)} is gone, as after a later attempt has opened"
            raise Fenced(what, table=".".join(table)) from None

    def _require_room(self, connection: Connection, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Refuse a row that takes more than a packet: the server would end the connection, and may not say why."""
        large = [row for row in rows if sum(len(each) for each in row if isinstance(each, (str, bytes))) > _LARGE]
        if not large:
            return
        ((limit,),) = execute(connection, "SELECT @@max_allowed_packet").fetchall()
        with connection.cursor() as cursor:
            for row in large:
                if len(cursor.mogrify(statement, row).encode(errors="surrogateescape")) >= limit:
                    raise self._error(RowTooLarge, f"{_OWN_WORDS[RowTooLarge]}, now {limit} bytes")

    def values(self, name: str, column: pa.Array[Any]) -> Sequence[Any]:
        """Return the values of a column; see :meth:`Database.values`."""
        if pa.types.is_floating(column.type):
            self._refuse(name, column, "a number is infinite or NaN", pc.invert(pc.is_finite(column)))
        return super().values(name, without_zone(column))

    def _set(self, connection: Connection) -> None:
        limit = math.ceil(self.statement_timeout) or _NO_LIMIT
        execute(connection, _SETTINGS.format(seconds=limit))
        execute(connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        if is_mariadb(connection):
            execute(connection, f"SET SESSION max_statement_time = {self.statement_timeout}")

    def _tls(self) -> dict[str, Any]:
        given = dict(parse_qsl(urlsplit(self.url).query))
        mode = MODES[given.get(MODE, "preferred").lower().replace("-", "_")]
        if mode == "disable":
            return {"ssl_disabled": True}
        if mode == "prefer":
            return {}
        try:
            context = ssl.create_default_context(cafile=given.get(CA_FILE))
        except OSError as error:
            raise ConfigError(f"{CA_FILE} of MySQL at {self.name}: {error}", key="url") from error
        context.check_hostname = mode == "verify-full"
        if mode == "trust":
            context.verify_mode = ssl.CERT_NONE
        return {"ssl": context}

    def _translated(self, error: pymysql.MySQLError, columns: Collection[str] | None) -> JobpipeError:
        """Return our error for one of the driver's.

        Args:
            columns: of the rows that the statement had; None: it had none, and the whole text can be shown.
        """
        code = error.args[0] if error.args else None
        text = " ".join(str(error.args[-1] if error.args else error).split())
        if not isinstance(code, int):
            return self._own_error(error, text)
        kind = _KIND_OF.get(code, LinkError)
        if code == 2013 and "timed out" in text:
            kind = LinkTimeout
        column = None
        if columns is not None:
            found = (name for name in columns if re.search(rf"[`'.]{re.escape(name)}[`'] at row \d+$", text))
            column = next(found, None)
            shown = next((match[1] for pattern in _SHOWN if (match := re.fullmatch(pattern, text))), None)
            if shown is not None and shown.startswith("key "):
                shown = f"another row has the same values in unique {shown}"
            text = shown or _OWN_WORDS.get(kind, "an error whose text is not shown, since it may have values of rows")
        return self._error(kind, f"{text} ({type(error).__name__}, {code})", column, code=code)


def bad_parameter(url: str) -> str | None:
    """Return what is wrong with the parameters of a URL, None if nothing is."""
    given = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    for key, value in given:
        if key not in (MODE, CA_FILE):
            return f"it has the parameter {key}; known are {MODE} and {CA_FILE}"
        if key == MODE and value.lower().replace("-", "_") not in MODES:
            return f"{MODE} is {value}; it is one of {', '.join(sorted({*MODES.values(), 'verify_identity'}))}"
    return None


def is_mariadb(connection: Connection) -> bool:
    """Whether it is MariaDB, which has a few things of its own."""
    return "mariadb" in connection.get_server_info().lower()  # type: ignore[no-untyped-call]


def execute(connection: Connection, statement: str, *values: Any) -> Any:
    """Run a statement; return the cursor, which has its rows already."""
    cursor = connection.cursor()
    cursor.execute(statement, values)
    return cursor


# https://mariadb.com/kb/en/mariadb-error-codes/, https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html
_KINDS: dict[type[JobpipeError], tuple[int, ...]] = {
    LinkTimeout: (1205, 1907, 1969, 3024),
    LinkBroken: (
        *(0, 1053, 1152, 1158, 1159, 1160, 1161, 1317, 1927, 2002, 2003, 2006, 2013, 2014, 2026, 2027, 2055, 4031),
    ),
    NotAuthorized: (1044, 1045, 1130, 1142, 1143, 1227, 1370, 1698, 1820, 1862, 3118, 4151),
    ConfigError: (
        *(1046, 1049, 1054, 1059, 1064, 1067, 1071, 1072, 1074, 1118, 1146, 1166, 1170, 1173, 1235, 1267, 1347, 1348),
        *(1425, 1426, 1906, 3105, 3750),
    ),
    RowTooLarge: (1153,),
    SchemaMismatch: (
        *(1022, 1048, 1062, 1216, 1217, 1264, 1265, 1292, 1300, 1364, 1366, 1367, 1406, 1411, 1416, 1451, 1452, 1525),
        *(1526, 1586, 1690, 1761, 1762, 3140, 3156, 3616, 3617, 3819, 3854, 4025, 4038),
    ),
    JobpipeError: (1644,),  # of a trigger
}
_KIND_OF = {code: kind for kind, codes in _KINDS.items() for code in codes}
# What may be shown of a text about rows: what a group holds. A trigger can raise any text, with any code.
_SHOWN = (
    r"(Column '[^']*' cannot be null)",
    r"(Field '[^']*' doesn't have a default value)",
    r"(Data too long|Out of range value|Data truncated) for column '[^']*' at row \d+",
    r"((?:Incorrect|Truncated incorrect|Invalid) \w+ value): .*",
    r"(CONSTRAINT `[^`]*` failed) for .*",
    r"(Check constraint '[^']*' is violated)\.",
    r"Cannot (?:add|delete) or update a (?:child|parent) row: (a foreign key constraint fails) .*",
    r"Duplicate entry '.*' for (key '[^']*')",
)
_OWN_WORDS: dict[type[JobpipeError], str] = {
    LinkTimeout: "a statement, or its wait for a lock, took too long",
    LinkBroken: "the connection was lost",
    JobpipeError: "a trigger raised an error",
    RowTooLarge: "a row is larger than the server's max_allowed_packet: raise that, or leave out columns",
}
