"""What plug-ins need of a database, whichever it is.

Errors name tables, columns and constraints, and never what stands in a row: the databases' own texts quote values, so
parts of them are left out. Drivers are extras, and loaded with the first connection.

Names are quoted as in standard SQL. Statements are run with values, even if they have none, so that a % in a name is
always written twice where a driver takes %s for a value.
"""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from jobpipe.config.types.secrets import Secret
from jobpipe.errors import ConfigError, JobpipeError, LinkBroken, SchemaMismatch
from jobpipe.pipelines.file.field_types import expected

IDLE_SECONDS = 60  # in the middle of a transaction; those of a process that stands still hold locks no longer
_NAME_PATTERN = r'[^."\x00]{1,64}(\.[^."\x00]{1,64})?'


def _table(raw: Any, _folder: Path) -> str:
    if not isinstance(raw, str) or re.fullmatch(_NAME_PATTERN, raw) is None:
        raise ValueError
    return raw


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
class Database(ABC):
    """Where a database is, and as whom; what it holds is no secret, so it may go to tasks.

    Attributes:
        product, package, install: its name, its driver, and how to install that.
        mark: what stands in a statement for a value.
        url: without a password.
        connect_timeout, statement_timeout: seconds; 0 is no limit of a statement.
    """

    product: ClassVar[str]
    package: ClassVar[str]
    install: ClassVar[str]
    mark: ClassVar[str] = "%s"

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

    def driver(self) -> Any:
        """Return the driver.

        Raises:
            ConfigError: it cannot be imported; with how to install it.
        """
        try:
            return importlib.import_module(self.package)
        except ImportError as error:  # without libpq it is no ModuleNotFoundError
            what = f"{self.product} needs {self.package}, which cannot be imported: {self.install}"
            raise ConfigError(what, package=self.package) from error

    @abstractmethod
    def connection(self, application: str, columns: Collection[str] = ()) -> AbstractContextManager[Any]:
        """Give a connection without a transaction; it is closed at the end.

        Args:
            application: how the server shows it.
            columns: that an error may name.

        Raises:
            LinkError: the connection fails, or a statement takes too long; another attempt may work.
            NotAuthorized, ConfigError: rights, or names, are wrong.
            SchemaMismatch: the table cannot take the rows.
        """

    @abstractmethod
    def transaction(self, connection: Any) -> AbstractContextManager[None]:
        """Make the block one transaction, which is on the disk when it ends without an error."""

    def execute(self, connection: Any, statement: str, *values: Any) -> Any:
        """Run a statement; return its cursor."""
        return connection.execute(statement, values)

    def quoted(self, name: str) -> str:
        """Return a name as it stands in a statement: quotes in it are twice, and so is a % if the driver takes %s."""
        name = name.replace('"', '""')
        return f'"{name.replace("%", "%%") if "%" in self.mark else name}"'

    def dotted(self, table: tuple[str, str]) -> str:
        """Return schema and table as they stand in a statement."""
        return ".".join(map(self.quoted, table))

    def called(self, table: tuple[str, str]) -> str:
        """Return schema and table for messages."""
        return ".".join(table)

    def names(self, names: Iterable[str], prefix: str = "") -> str:
        """Return names as they stand in a statement, with commas."""
        return ", ".join(prefix + self.quoted(name) for name in names)

    def insertion(self, table: tuple[str, str], columns: Sequence[str]) -> str:
        """Return the statement that adds one row."""
        marks = ", ".join([self.mark] * len(columns))
        return f"INSERT INTO {self.dotted(table)} ({self.names(columns)}) VALUES ({marks})"  # noqa: S608 - quoted

    @abstractmethod
    def insert(
        self, connection: Any, table: tuple[str, str], columns: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Add rows of values as :meth:`values` gives them; quickly, and in pieces if it must."""

    def values(self, name: str, column: pa.Array[Any]) -> Sequence[Any]:
        """Return the values of a column as the driver takes them; times are in UTC.

        Raises:
            SchemaMismatch: the database cannot keep one.
        """
        if isinstance(column.type, pa.TimestampType) and column.type.tz is not None:
            column = column.cast(pa.timestamp("us", "UTC"))
        try:
            return column.to_pylist()
        except (OverflowError, ValueError):
            what = f"column {name}: a date or time is outside of the years 1 to 9999, which cannot be written"
            raise SchemaMismatch(what, column=name) from None

    def _refuse(self, name: str, column: pa.Array[Any], what: str, found: pa.Array[Any]) -> None:
        """Raise if one is true of what was found in a column."""
        if pc.any(found).as_py():
            raise SchemaMismatch(
                f"column {name}: {what}, which {self.product} cannot keep; replace it, or filter it out", column=name
            )

    def _error(self, kind: type[JobpipeError], text: str, column: str | None = None, **fields: Any) -> JobpipeError:
        """Return an error of this database, at a column if one is known."""
        what = f"column {column}: {text}" if column and f'"{column}"' not in text else text
        if column:
            fields["column"] = column
        return kind(f"{self.product} at {self.name}: {what}", database=self.name, **fields)

    def _own_error(self, error: Exception, text: object) -> JobpipeError:
        """Return the error that the driver raised by itself: it was used wrongly, or the connection is gone."""
        driver = self.driver()
        programming = isinstance(error, (driver.ProgrammingError, driver.NotSupportedError, driver.DataError))
        return self._error(ConfigError if programming else LinkBroken, " ".join(str(text).split()))


def without_zone(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return times of a zone as those of UTC without one; other columns as they are."""
    if isinstance(column.type, pa.TimestampType) and column.type.tz is not None:
        return column.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    return column
