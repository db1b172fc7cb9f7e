"""The options that captures of all databases have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from jobpipe.cdc.change_rows import RowFormat
from jobpipe.config.types.secrets import Secret
from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.spec import RouteSpec
from jobpipe.pipelines.model.routes import target_of
from jobpipe_registry.names import check_name
from jobpipe_registry.registry_errors import RegistryError

UNVERIFIED = ("disable", "allow", "prefer")
"""Modes of TLS that take any server, whatever its certificate."""


class Startup(StrEnum):
    """What is published first."""

    INITIAL = "initial"
    """All rows that are there; then the changes."""
    LATEST = "latest-offset"
    """The changes since the first start; a table that comes later is read, too."""


class SchemaChange(StrEnum):
    """What happens when a table's columns change."""

    EVOLVE = "evolve"
    """The topic's rows get the new columns."""
    IGNORE = "ignore"
    """The topic's rows keep the columns that they had first: others are left out, those that are gone are null."""
    EXCEPTION = "exception"
    """The capture ends with an error."""


class IncompatibleChange(StrEnum):
    """What happens with ``evolve`` when a column becomes another one, so that no subscription could read both."""

    FAIL = "fail"
    """The capture ends with an error."""
    NEW_TOPIC = "new-topic"
    """A new version of the topic follows, TOPIC.v2 and so on; its tables are read into it."""


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """Where the database is, which tables are captured, and where their changes go.

    Attributes:
        name: of the capture; its topics are published under it.
        password: a reference; read when a connection is made.
        tables: regular expressions of whole names, schema.table.
        route: topics of tables, as in a pipeline's file; the first that matches counts. A table that none matches goes
            to the topic schema.table.
        text_columns: columns, as schema.table.column, that are published as the database's text.
        chunk_size: rows that one transaction of the snapshot reads.
        batch_rows: rows after which a batch is published, though more have come.
        required_subscribers: of topics, by name: their rows are kept until these have read them.
        heartbeat: seconds between two notes of where an idle capture is, and two looks for new tables.
        ssl_mode: as libpq's sslmode; ``ssl_root_cert`` is the file of its CAs.
    """

    schema_word: ClassVar[str] = "schema"
    """What stands before the dot of a table's name; ``example`` is one."""
    example: ClassVar[str] = "public"

    name: str
    hostname: str
    username: str
    tables: tuple[str, ...]
    port: int
    password: Secret | None = None
    route: tuple[RouteSpec, ...] = ()
    format: RowFormat = RowFormat.ENVELOPE
    startup: Startup = Startup.INITIAL
    schema_change: SchemaChange = SchemaChange.EVOLVE
    incompatible_change: IncompatibleChange = IncompatibleChange.FAIL
    text_columns: tuple[str, ...] = ()
    chunk_size: int = 100_000
    batch_rows: int = 20_000
    heartbeat: float = 30.0
    required_subscribers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ssl_mode: str = "prefer"
    ssl_root_cert: str | None = None
    connect_timeout: float = 30.0

    def __post_init__(self) -> None:
        """Check what can be checked without a database.

        Raises:
            ConfigError: something is wrong; names it.
        """
        if not self.tables:
            raise ConfigError(f"capture {self.name!r}: no tables; name them as {self.schema_word}.table", key="tables")
        for pattern in self.tables:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"capture {self.name!r}: table {pattern!r}: {error}", key="tables") from None
            if "." not in pattern:
                raise ConfigError(
                    f"capture {self.name!r}: table {pattern!r} has no {self.schema_word}; write "
                    f"{self.example}.{pattern}",
                    key="tables",
                )
        if self.incompatible_change is not IncompatibleChange.FAIL and self.schema_change is not SchemaChange.EVOLVE:
            raise ConfigError(
                f"capture {self.name!r}: incompatible-change {self.incompatible_change} needs schema-change-behavior: "
                f"evolve, and it is {self.schema_change}",
                key="incompatible-change",
            )
        for column in self.text_columns:
            if column.count(".") < 2:
                raise ConfigError(
                    f"capture {self.name!r}: text-columns {column!r:.200}, expected {self.schema_word}.table.column",
                    key="text-columns",
                )
            table = ".".join(column.split(".", 2)[:2])
            if not any(table == pattern or re.fullmatch(pattern, table) for pattern in self.tables):
                raise ConfigError(
                    f"capture {self.name!r}: text-columns {column!r:.200} is of a table that no expression of "
                    "tables matches",
                    key="text-columns",
                )
        if self.ssl_root_cert is not None and self.ssl_mode in UNVERIFIED:
            raise ConfigError(
                f"capture {self.name!r}: ssl-root-cert is given, and ssl-mode {self.ssl_mode} verifies no certificate; "
                "verify-full does, and verify-ca if the certificate has another host name",
                key="ssl-mode",
            )
        for key, value, least in (("chunk-size", self.chunk_size, 1), ("batch-rows", self.batch_rows, 1)):
            if value < least:
                raise ConfigError(f"capture {self.name!r}: {key} {value}, expected at least {least}", key=key)
        if not 0.01 <= self.heartbeat <= 3600:
            raise ConfigError(
                f"capture {self.name!r}: heartbeat-interval {self.heartbeat:g} s, expected 0.01 to 3600 s",
                key="heartbeat-interval",
            )

    def topic_of(self, schema: str, table: str) -> str:
        """Return the topic of a table.

        Raises:
            ConfigError: its name cannot be a topic's.
        """
        named = f"{schema}.{table}"
        topic = next((found for each in self.route if (found := target_of(each, named)) is not None), named)
        try:
            return check_name(topic)
        except RegistryError as error:
            raise ConfigError(
                f"capture {self.name!r}: table {named} would go to topic {topic!r}: {error}. Give it a topic by route",
                key="route",
                table=named,
            ) from None
