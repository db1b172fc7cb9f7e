"""The options of a capture of PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import quote, urlencode

from jobpipe.cdc.change_rows import RowFormat
from jobpipe.config.types.secrets import Secret
from jobpipe.errors import ConfigError
from jobpipe.pipelines.databases.postgres import PostgresDatabase
from jobpipe.pipelines.file.spec import RouteSpec
from jobpipe.pipelines.model.routes import target_of
from jobpipe_registry.names import check_name
from jobpipe_registry.registry_errors import RegistryError

_SLOT = re.compile(r"[a-z0-9_]{1,63}")


class Startup(StrEnum):
    """What is published first."""

    INITIAL = "initial"
    """All rows that are there; then the changes."""
    LATEST = "latest-offset"
    """The changes since the first start."""


class SchemaChange(StrEnum):
    """What happens when a table's columns change."""

    EVOLVE = "evolve"
    """The topic's rows get the new columns."""
    EXCEPTION = "exception"
    """The capture ends with an error."""


@dataclass(frozen=True)
class PostgresOptions:
    """Where the database is, which tables are captured, and where their changes go.

    Attributes:
        name: of the capture; its topics are published under it.
        password: a reference; read when a connection is made.
        tables: regular expressions of whole names, schema.table.
        route: topics of tables, as in a pipeline's file; the first that matches counts. A table that none matches goes
            to the topic schema.table.
        slot_name, publication_name: in the database; by default made from the name.
        text_columns: columns, as schema.table.column, that are published as PostgreSQL's text.
        chunk_size: rows that one transaction of the snapshot reads.
        batch_rows: rows after which a batch is published, though more have come.
        required_subscribers: of topics, by name: their rows are kept until these have read them.
        heartbeat: seconds between two notes of where an idle capture is, and two looks for new tables.
        ssl_mode: as libpq's sslmode; ``ssl_root_cert`` is the file of its CAs.
    """

    name: str
    hostname: str
    database: str
    username: str
    tables: tuple[str, ...]
    port: int = 5432
    password: Secret | None = None
    route: tuple[RouteSpec, ...] = ()
    slot_name: str = ""
    publication_name: str = ""
    format: RowFormat = RowFormat.ENVELOPE
    startup: Startup = Startup.INITIAL
    schema_change: SchemaChange = SchemaChange.EVOLVE
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
        slot = self.slot
        if not self.tables:
            raise ConfigError(f"capture {self.name!r}: no tables; name them as schema.table", key="tables")
        for pattern in self.tables:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"capture {self.name!r}: table {pattern!r}: {error}", key="tables") from None
            if "." not in pattern:
                raise ConfigError(
                    f"capture {self.name!r}: table {pattern!r} has no schema; write public.{pattern}", key="tables"
                )
        if _SLOT.fullmatch(slot) is None:
            raise ConfigError(
                f"capture {self.name!r}: slot-name {slot!r}, expected 1 to 63 of a-z 0-9 _", key="slot-name"
            )
        for key, value, least in (("chunk-size", self.chunk_size, 1), ("batch-rows", self.batch_rows, 1)):
            if value < least:
                raise ConfigError(f"capture {self.name!r}: {key} {value}, expected at least {least}", key=key)
        if not 0.01 <= self.heartbeat <= 3600:
            raise ConfigError(
                f"capture {self.name!r}: heartbeat-interval {self.heartbeat:g} s, expected 0.01 to 3600 s",
                key="heartbeat-interval",
            )

    @property
    def slot(self) -> str:
        """The name of the slot."""
        return self.slot_name or "jobpipe_" + re.sub(r"[^a-z0-9_]", "_", self.name.lower())[:55]

    @property
    def publication(self) -> str:
        """The name of the publication."""
        return self.publication_name or self.slot

    def database_api(self) -> PostgresDatabase:
        """Return the database."""
        given = {"sslmode": self.ssl_mode} | ({"sslrootcert": self.ssl_root_cert} if self.ssl_root_cert else {})
        host = quote(self.hostname, safe=":[]")
        url = f"postgresql://{host}:{self.port}/{quote(self.database, safe='')}?{urlencode(given, quote_via=quote)}"
        return PostgresDatabase(url, self.username, self.password, self.connect_timeout, 0.0)

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
