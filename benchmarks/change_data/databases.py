"""The servers of the measurement: Debian's, in folders of their own, with one table."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tests.databases.mariadb import MariaDb
from tests.databases.mysql_server import PASSWORD as MYSQL_PASSWORD
from tests.databases.mysql_server import SUPERUSER as MYSQL_USER
from tests.databases.postgres import PASSWORD, SUPERUSER, Postgres

COLUMNS = (
    "id bigint PRIMARY KEY",
    "customer int",
    "name varchar(40)",
    "amount decimal(10,2)",
    "at timestamp",
    "note text",
)
_SECRET = "BENCH_DATABASE_PASSWORD"  # noqa: S105 - the name of an environment variable


class Shop(ABC):
    """A server with table orders; a context manager ends it."""

    product: ClassVar[str]
    server: Any

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.close()

    @abstractmethod
    def make_table(self, rows: int) -> None:
        """Make the table, with rows, in place of the last one."""

    @abstractmethod
    def insert(self, rows: int, each: int) -> None:
        """Insert rows after those that are there, ``each`` in a transaction."""

    @abstractmethod
    def forget(self) -> None:
        """Take out what captures have left in the server."""

    @abstractmethod
    def capture_options(self) -> dict[str, Any]:
        """Return the options of jobpipe's capture."""

    def debezium_properties(self, folder: Path) -> dict[str, Any]:
        """Return the properties of Debezium's engine."""
        return {
            "name": "bench",
            "topic.prefix": "bench",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": folder / "offsets",
            "offset.flush.interval.ms": 1000,
            "database.hostname": "127.0.0.1",
            "database.port": self.server.port,
        }


class PostgresShop(Shop):
    """PostgreSQL."""

    product = "postgres"

    def __init__(self) -> None:
        self.server = Postgres(wal_level="logical", fsync="off", shared_buffers="256MB", max_wal_size="8GB")
        os.environ[_SECRET] = PASSWORD

    def make_table(self, rows: int) -> None:
        self.server.query("DROP TABLE IF EXISTS public.orders")
        self.server.query(f"CREATE TABLE public.orders ({', '.join(COLUMNS)})")
        self._rows(1, rows)
        self.server.query("ANALYZE public.orders")

    def insert(self, rows: int, each: int) -> None:
        with self.server.connect() as connection:
            for first in range(rows + 1, 2 * rows + 1, each):
                connection.execute(self._statement(first, min(first + each - 1, 2 * rows)))

    def _rows(self, first: int, last: int) -> None:
        self.server.query(self._statement(first, last))

    @staticmethod
    def _statement(first: int, last: int) -> str:
        return (
            "INSERT INTO public.orders SELECT n, n % 1000, 'customer ' || n, n % 9999 / 100.0, now()::timestamp, "
            f"repeat('x', 40) FROM generate_series({first}, {last}) n"
        )

    def forget(self) -> None:
        for (slot,) in self.server.query("SELECT slot_name FROM pg_replication_slots"):
            self.server.query(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
            )
            with contextlib.suppress(Exception):
                self.server.query("SELECT pg_drop_replication_slot(%s)", slot)
        for (name,) in self.server.query("SELECT pubname FROM pg_publication"):
            self.server.query(f'DROP PUBLICATION "{name}"')

    def capture_options(self) -> dict[str, Any]:
        return {
            "name": "bench",
            "hostname": "127.0.0.1",
            "port": self.server.port,
            "database": "postgres",
            "username": SUPERUSER,
            "password": f"env:{_SECRET}",
            "tables": ["public.orders"],
        }

    def debezium_properties(self, folder: Path) -> dict[str, Any]:
        return {
            **super().debezium_properties(folder),
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.user": SUPERUSER,
            "database.password": PASSWORD,
            "database.dbname": "postgres",
            "table.include.list": "public.orders",
            "plugin.name": "pgoutput",
            "publication.autocreate.mode": "filtered",
        }


class MariaDbShop(Shop):
    """MariaDB."""

    product = "mariadb"

    def __init__(self) -> None:
        self.server = MariaDb(
            log_bin="binlog",
            server_id="1",
            binlog_format="ROW",
            binlog_row_metadata="FULL",
            innodb_buffer_pool_size="512M",
        )
        os.environ[_SECRET] = MYSQL_PASSWORD

    def make_table(self, rows: int) -> None:
        self.server.query("CREATE DATABASE IF NOT EXISTS shop")
        self.server.query("DROP TABLE IF EXISTS shop.orders")
        self.server.query(f"CREATE TABLE shop.orders ({', '.join(COLUMNS)})")
        self.server.query(self._statement(1, rows), "shop")
        self.server.query("FLUSH BINARY LOGS")

    def insert(self, rows: int, each: int) -> None:
        with contextlib.closing(self.server.connect("shop")) as connection, connection.cursor() as cursor:
            for first in range(rows + 1, 2 * rows + 1, each):
                cursor.execute(self._statement(first, min(first + each - 1, 2 * rows)))

    @staticmethod
    def _statement(first: int, last: int) -> str:
        return (
            "INSERT INTO orders SELECT seq, seq % 1000, CONCAT('customer ', seq), seq % 9999 / 100.0, now(), "
            f"REPEAT('x', 40) FROM seq_{first}_to_{last}"
        )

    def forget(self) -> None:
        """Its log has no slots."""

    def capture_options(self) -> dict[str, Any]:
        return {
            "name": "bench",
            "hostname": "127.0.0.1",
            "port": self.server.port,
            "username": MYSQL_USER,
            "password": f"env:{_SECRET}",
            "tables": ["shop.orders"],
        }

    def debezium_properties(self, folder: Path) -> dict[str, Any]:
        return {
            **super().debezium_properties(folder),
            "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
            "database.user": MYSQL_USER,
            "database.password": MYSQL_PASSWORD,
            "database.server.id": 4711,
            "database.include.list": "shop",
            "table.include.list": "shop.orders",
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": folder / "history",
            "database.ssl.mode": "disable",
        }


PRODUCTS: dict[str, type[Shop]] = {"postgres": PostgresShop, "mariadb": MariaDbShop}
