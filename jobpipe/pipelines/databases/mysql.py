"""MySQL and MariaDB for plug-ins: connections with limits, and their errors in our words.

Names are quoted as in standard SQL. Statements are run with values, even if they have none, so that a % in a name is
always written twice. Where a transaction ends with an error its connection is closed, at which the server undoes it.
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
    JobpipeError,
    LinkBroken,
    LinkError,
    LinkTimeout,
    NotAuthorized,
    SchemaMismatch,
)
from jobpipe.pipelines.databases.base import IDLE_SECONDS, Database, driver_of, without_zone

if TYPE_CHECKING:
    import pymysql

    Connection = pymysql.connections.Connection[Any]

INSTALL = "pip install 'pymysql>=1.2'"
PORT = 3306
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
_PACKET_SECONDS = 30.0  # more than a statement may take, until its answer is given up
_NO_LIMIT = 31_536_000  # seconds; the most that the server takes for a lock
_SETTINGS = (
    "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ANSI_QUOTES', "
    "time_zone = '+00:00', lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}"
)


class MySqlDatabase(Database):
    """A database of MySQL or MariaDB; its URL is that of their drivers for Java, without a password."""

    product: ClassVar[str] = "MySQL"

    @property
    def schema(self) -> str:
        """The database that the URL names."""
        return unquote(urlsplit(self.url).path.strip("/"))

    @contextmanager
    def connection(self, application: str, columns: Collection[str] = ()) -> Iterator[Connection]:
        """Give a connection without a transaction; see :meth:`Database.connection`."""
        pymysql = _driver()
        parts = urlsplit(self.url)
        answer = self.statement_timeout + _PACKET_SECONDS if self.statement_timeout else None
        try:
            connection = pymysql.connect(
                host=parts.hostname,
                port=parts.port or PORT,
                user=self.user,
                # As bytes: a text would have to be Latin-1.
                password=self.password.reveal().encode() if self.password is not None else b"",
                database=self.schema,
                charset="utf8mb4",
                connect_timeout=max(1, math.ceil(self.connect_timeout)),
                read_timeout=answer,
                write_timeout=answer,
                client_flag=pymysql.constants.CLIENT.FOUND_ROWS,
                program_name=application[:100],
                autocommit=True,
                **self._tls(),
            )
            try:
                self._set(connection)
                yield connection
            finally:
                with suppress(pymysql.MySQLError, OSError):
                    connection.close()
        except pymysql.MySQLError as error:
            raise _told(error, self.name, columns) from None

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        """Make the block one transaction; after an error the connection can only be closed, which undoes it."""
        execute(connection, f"SET SESSION wait_timeout = {IDLE_SECONDS}")
        connection.begin()
        yield
        connection.commit()
        execute(connection, "SET SESSION wait_timeout = DEFAULT")

    def insert(
        self, connection: Connection, table: tuple[str, str], columns: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Add rows, many in a statement; each statement is on its own."""
        marks = ", ".join(["%s"] * len(columns))
        names = ", ".join(map(quoted, columns))
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {dotted(table)} ({names}) VALUES ({marks})", list(rows))  # noqa: S608 - quoted

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


def quoted(name: str) -> str:
    """Return a name as it stands in a statement.

    >>> quoted("100%")
    '"100%%"'
    """
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def dotted(names: tuple[str, str]) -> str:
    """Return schema and table as they stand in a statement."""
    return ".".join(map(quoted, names))


def _driver() -> Any:
    return driver_of("pymysql", MySqlDatabase.product, INSTALL)


# https://mariadb.com/kb/en/mariadb-error-codes/, https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html
_KINDS: dict[type[JobpipeError], tuple[int, ...]] = {
    LinkTimeout: (1205, 1907, 1969, 3024),
    LinkBroken: (
        *(0, 1053, 1152, 1158, 1159, 1160, 1161, 1317, 1927, 2002, 2003, 2006, 2013, 2014, 2026, 2027, 2055, 4031),
    ),
    NotAuthorized: (1044, 1045, 1130, 1142, 1143, 1227, 1370, 1698),
    ConfigError: (
        *(1046, 1049, 1054, 1059, 1064, 1067, 1071, 1072, 1074, 1118, 1146, 1166, 1170, 1235, 1267, 1347, 1348, 1425),
        *(1426, 1906, 3105),
    ),
    SchemaMismatch: (
        *(1022, 1048, 1062, 1216, 1217, 1264, 1265, 1292, 1300, 1364, 1366, 1367, 1406, 1411, 1416, 1451, 1452, 1526),
        *(1586, 1690, 1761, 1762, 3140, 3156, 3819, 4025, 4038),
    ),
    JobpipeError: (1644,),  # of a trigger
}
_KIND_OF = {code: kind for kind, codes in _KINDS.items() for code in codes}
_WITHOUT_VALUES = (1048, 1216, 1217, 1364, 1451, 1452, 3819, 4025)
_DUPLICATE = (1022, 1062, 1586)


def _told(error: pymysql.MySQLError, where: str, columns: Collection[str]) -> JobpipeError:
    """Return our error for one of the driver's."""
    pymysql = _driver()
    code = error.args[0] if error.args and isinstance(error.args[0], int) else None
    text = " ".join(str(error.args[-1] if error.args else error).split())
    if code is None:
        programming = isinstance(error, (pymysql.ProgrammingError, pymysql.NotSupportedError, pymysql.DataError))
        return (ConfigError if programming else LinkBroken)(f"MySQL at {where}: {text}", database=where)
    kind = _KIND_OF.get(code, LinkError)
    if code == 2013 and "timed out" in text:
        kind = LinkTimeout
    column = None
    if kind in (SchemaMismatch, JobpipeError):
        column = next((name for name in columns if re.search(rf"[`'.]{re.escape(name)}[`'] at row \d+$", text)), None)
        if kind is JobpipeError:
            text = "a trigger raised an error"
        elif code in _DUPLICATE:
            key = re.search(r" for key '([^']*)'$", text)
            text = f"another row has the same values in unique constraint {key[1] if key else 'of the table'}"
        elif code not in _WITHOUT_VALUES:
            text = re.split(r"['\":]", text)[0].strip()
    what = f"column {column}: {text}" if column else text
    return kind(
        f"MySQL at {where}: {what} ({type(error).__name__}, {code})",
        database=where,
        code=code,
        **({"column": column} if column else {}),
    )
