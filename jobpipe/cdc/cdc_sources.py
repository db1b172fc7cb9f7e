"""Sources ``postgres-cdc`` and ``mysql-cdc`` of pipelines: tables as topics, their rows, then each change once."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from jobpipe.config import Config
from jobpipe.config.types.value_types import BadValueError, duration
from jobpipe.errors import ConfigError, short_repr
from jobpipe.pipelines.file.field_types import Count, Flag, SecretReference, Text, expected, of_kind
from jobpipe.pipelines.file.problems import OptionError
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.api import PluginOptions
from jobpipe.pipelines.plugins.capture_source import CaptureContext, CaptureSource

if TYPE_CHECKING:
    from jobpipe.cdc.capture_options import CaptureOptions
    from jobpipe.cdc.mariadb.mysql_capture import MysqlCapture
    from jobpipe.cdc.mariadb.mysql_options import MysqlOptions
    from jobpipe.cdc.postgresql.postgres_capture import PostgresCapture
    from jobpipe.cdc.postgresql.postgres_options import PostgresOptions

_MOST_PORT = 65_535
_MOST_SERVER_ID = (1 << 32) - 1
_MOST = 1000
_TABLES = r"regular expressions of whole names: tables: [public.orders, public\.sales_.*]"
_COLUMNS = "names of columns as schema.table.column: text-columns: [public.orders.note]"
_CHECKED = "check"  # the name of a capture that is not run


def _tables(raw: Any, _folder: Path) -> tuple[str, ...]:
    patterns = _listed(raw)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadValueError(f"{_TABLES}; {short_repr(pattern)} is none: {error}") from error
        if "." not in pattern:
            raise BadValueError(f"{_TABLES}; {short_repr(pattern)} has no schema, as in public.{pattern}")
    return patterns


def _columns(raw: Any, _folder: Path) -> tuple[str, ...]:
    columns = _listed(raw)
    for column in columns:
        if column.count(".") < 2:
            raise BadValueError(f"{_COLUMNS}; {short_repr(column)} has not all three")
    return columns


def _listed(raw: Any) -> tuple[str, ...]:
    values = [raw] if isinstance(raw, str) else raw
    if not isinstance(values, (list, tuple)) or not 0 < len(values) <= _MOST:
        raise ValueError
    if not all(isinstance(each, str) and each.strip() for each in values) or len(set(values)) < len(values):
        raise ValueError
    return tuple(values)


def _port(raw: Any, _folder: Path) -> int:
    if isinstance(raw, bool) or not 0 < (number := int(raw)) <= _MOST_PORT:
        raise ValueError
    return number


def _server_id(raw: Any, _folder: Path) -> int:
    if isinstance(raw, bool) or not 0 < (number := int(raw)) <= _MOST_SERVER_ID:
        raise ValueError
    return number


def _path(raw: Any, folder: Path) -> str:
    if not isinstance(raw, str) or not raw.strip() or "\0" in raw:
        raise ValueError
    return raw if raw == "system" else str(folder.absolute() / Path(raw).expanduser())


_LIST = {"type": ["string", "array"], "items": {"type": "string"}}
Tables = Annotated[tuple[str, ...], *expected(_TABLES, _tables, _LIST)]
ColumnNames = Annotated[tuple[str, ...], *expected(_COLUMNS, _columns, _LIST)]
Port = Annotated[int, *expected(f"a number from 1 to {_MOST_PORT}", _port, {"type": "integer"})]
Certificates = Annotated[str, *expected("the path of a file, or system", _path, {"type": "string"})]
ServerId = Annotated[int, *expected(f"a number from 1 to {_MOST_SERVER_ID}", _server_id, {"type": "integer"})]
Interval = Annotated[float, *of_kind(duration())]


class TableCaptureOptions(PluginOptions):
    """What all captures of tables have."""

    hostname: Text = Field(description="The host of the database.")
    username: Text = Field(description="Name of a user with the right of replication.")
    password: SecretReference | None = Field(default=None, description="Password of the user.")
    tables: Tables = Field(
        description="The tables: a list of regular expressions, each of whole names schema.table, or database.table. "
        "Tables that are made later and match are captured, too."
    )
    scan_startup_mode: Literal["initial", "latest-offset"] = Field(
        default="initial",
        description="What the first start publishes: initial = all rows, then the changes; latest-offset = the "
        "changes alone. A table that comes later is read in both.",
    )
    format: Literal["envelope", "flat"] = Field(
        default="envelope",
        description="A row of the topic: envelope = before and after, as Debezium has them; flat = the table's "
        "columns, and columns that say what was done.",
    )
    schema_change_behavior: Literal["evolve", "ignore", "exception"] = Field(
        default="evolve",
        description="When a table's columns change: evolve = so do the topic's; ignore = the topic keeps those that it "
        "had first; exception = the job fails.",
    )
    incompatible_change: Literal["fail", "new-topic"] = Field(
        default="fail",
        description="With evolve, when a column becomes another one: fail = the job fails; new-topic = its tables are "
        "read into a new version of the topic, TOPIC.v2 and so on.",
    )
    text_columns: ColumnNames | None = Field(
        default=None, description="Columns that are published as the database's text, as schema.table.column."
    )
    chunk_size: Count = Field(default=100_000, description="Rows that one transaction reads of a table at first.")
    batch_rows: Count = Field(default=20_000, description="A batch is published when it has so many rows, or more.")
    heartbeat_interval: Interval = Field(
        default=30.0,
        description="How often an idle capture notes where it is, so that the database may let go of its log, and "
        "looks for new tables.",
    )
    ssl_mode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] = Field(
        default="prefer", description="As libpq's sslmode."
    )
    ssl_root_cert: Certificates | None = Field(
        default=None, description="File with the CAs that ssl-mode require, verify-ca and verify-full trust."
    )
    connect_timeout: Interval = Field(default=30.0, description="Timeout of a connection.")


class TableCaptureSource(CaptureSource):
    """What all captures of tables do."""

    options: TableCaptureOptions

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """Check what the capture itself would refuse."""
        try:
            self.capture_options(CaptureContext(_CHECKED, (), {}))
        except ConfigError as error:
            what = error.message.removeprefix(f"capture {_CHECKED!r}: ")
            yield OptionError(str(error.fields.get("key", "")), what, "change it")
        if self.options.ssl_root_cert is None and self.options.ssl_mode.startswith("verify-"):
            what = "it is to be verified by CAs, and none are given"
            yield OptionError("ssl-mode", what, "give ssl-root-cert: FILE, or system for those of this host")

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables, as regular expressions."""
        return self.options.tables

    @abstractmethod
    def capture_options(self, context: CaptureContext) -> CaptureOptions:
        """Return the settings of the capture.

        Raises:
            ConfigError: something does not fit.
        """

    def _common(self, context: CaptureContext) -> dict[str, Any]:
        """Return the settings that all captures have."""
        from jobpipe.cdc.capture_options import IncompatibleChange, SchemaChange, Startup
        from jobpipe.cdc.change_rows import RowFormat

        given = self.options
        return {
            "name": context.name,
            "hostname": given.hostname,
            "username": given.username,
            "password": given.password,
            "tables": given.tables,
            "route": context.routes,
            "format": RowFormat(given.format),
            "startup": Startup(given.scan_startup_mode),
            "schema_change": SchemaChange(given.schema_change_behavior),
            "incompatible_change": IncompatibleChange(given.incompatible_change),
            "text_columns": given.text_columns or (),
            "chunk_size": given.chunk_size,
            "batch_rows": given.batch_rows,
            "heartbeat": given.heartbeat_interval,
            "required_subscribers": context.subscribers,
            "ssl_mode": given.ssl_mode,
            "ssl_root_cert": given.ssl_root_cert,
            "connect_timeout": given.connect_timeout,
        }


class PostgresCdcSource(TableCaptureSource):
    """Changes of tables of PostgreSQL, by logical replication: a topic for each table, exactly once, without Spark.

    A table's rows are read first, then its changes follow as they are committed. The job has no transforms: let the
    next job read a topic. Routes, or a sink {type: jobpipe, topic: TOPIC}, give tables other topics than schema.table.
    Needs pip install 'psycopg[binary]>=3.2' 'numpy>=1.26'.
    """

    type = "postgres-cdc"
    identifying = frozenset({"database-name", "slot-name", "publication-name"})

    class Options(TableCaptureOptions):
        """Where the database is, and what is captured."""

        port: Port = Field(default=5432, description="Its port.")
        database_name: Text = Field(description="The database.")
        slot_name: Text | None = Field(
            default=None, description="The replication slot. Default: jobpipe_ and the names of pipeline and job."
        )
        publication_name: Text | None = Field(default=None, description="The publication. Default: as slot-name.")

    options: Options

    def capture(self, context: CaptureContext, config: Config) -> PostgresCapture:
        """Return what captures the tables."""
        from jobpipe.cdc.postgresql.postgres_capture import PostgresCapture

        return PostgresCapture(self.capture_options(context), config)

    def capture_options(self, context: CaptureContext) -> PostgresOptions:
        """Return the settings of the capture.

        Raises:
            ConfigError: something does not fit.
        """
        from jobpipe.cdc.postgresql.postgres_options import PostgresOptions

        given = self.options
        return PostgresOptions(
            **self._common(context),
            port=given.port,
            database=given.database_name,
            slot_name=given.slot_name or "",
            publication_name=given.publication_name or "",
        )


class MysqlCdcSource(TableCaptureSource):
    """Changes of tables of MariaDB or MySQL, by the binary log: a topic for each table, exactly once, without Spark.

    A table's rows are read first, then its changes follow as they are committed. The job has no transforms: let the
    next job read a topic. Routes, or a sink {type: jobpipe, topic: TOPIC}, give tables other topics than
    database.table. Needs pip install 'pymysql>=1.2'.
    """

    type = "mysql-cdc"
    identifying = frozenset({"server-id"})

    class Options(TableCaptureOptions):
        """Where the server is, and what is captured."""

        port: Port = Field(default=3306, description="Its port.")
        server_id: ServerId | None = Field(
            default=None,
            description="The number of the replica as which the log is read; no other one may have it. Default: made "
            "of the names of pipeline and job.",
        )
        allow_cascades: Flag = Field(
            default=False,
            description="Capture also tables that a foreign key changes by CASCADE or SET NULL: the log does not have "
            "those changes, and they are missed.",
        )

    options: Options

    def capture(self, context: CaptureContext, config: Config) -> MysqlCapture:
        """Return what captures the tables."""
        from jobpipe.cdc.mariadb.mysql_capture import MysqlCapture

        return MysqlCapture(self.capture_options(context), config)

    def capture_options(self, context: CaptureContext) -> MysqlOptions:
        """Return the settings of the capture.

        Raises:
            ConfigError: something does not fit.
        """
        from jobpipe.cdc.mariadb.mysql_options import MysqlOptions

        given = self.options
        return MysqlOptions(
            **self._common(context),
            port=given.port,
            server_id=given.server_id or 0,
            allow_cascades=given.allow_cascades,
        )
