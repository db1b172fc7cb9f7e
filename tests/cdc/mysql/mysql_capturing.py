"""Captures of MariaDB and MySQL in the tests' process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from jobpipe.cdc.mariadb.mysql_capture import MysqlCapture
from jobpipe.cdc.mariadb.mysql_options import MysqlOptions
from jobpipe.config import Config
from jobpipe.config.types.secrets import Secret
from tests.cdc.capturing import Copy, Follower, routes, running_capture
from tests.databases.mysql_server import PASSWORD, SUPERUSER, MySqlServer


def options(server: MySqlServer, database: str, tables: Iterable[str], **given: Any) -> MysqlOptions:
    """Return the options of a capture of tables of a database, as the superuser."""
    known: dict[str, Any] = {
        "name": f"c{database}",
        "hostname": "127.0.0.1",
        "port": server.port,
        "username": SUPERUSER,
        "password": Secret("env:CDC_MYSQL_PASSWORD"),
        "tables": tuple(f"{database}.{table}" for table in tables),
        "route": routes({rf"{database}\.(.*)": "$1"}),
        "heartbeat": 0.5,
        **given,
    }
    os.environ["CDC_MYSQL_PASSWORD"] = PASSWORD
    return MysqlOptions(**known)


@contextmanager
def running(given: MysqlOptions, config: Config) -> Iterator[MysqlCapture]:
    """Run a capture; see :func:`.running_capture`."""
    with running_capture(MysqlCapture(given, config)) as capture:
        yield capture


def rows_of(server: MySqlServer, database: str, table: str, *key: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return a table's rows by key."""
    with closing(server.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        assert cursor.description is not None
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {tuple(row[name] for name in key): row for row in rows}


class Followed:
    """A capture of some tables that runs, and copies of them.

    Attributes:
        copies: by table; rows of several tables in one topic are told apart by ``source.table``.
    """

    def __init__(self, server: MySqlServer, database: str, config: Config, keys: dict[str, tuple[str, ...]]) -> None:
        self.server, self.database, self.config, self.keys = server, database, config, keys
        self.copies = {table: Copy(*key) for table, key in keys.items()}
        self._followers: dict[str, Follower] = {}

    @contextmanager
    def running(self, tables: Iterable[str] = (), **given: Any) -> Iterator[MysqlCapture]:
        """Run the capture; may be done again and again."""
        needed = dict.fromkeys(self.keys, ("copy",))
        options_ = options(
            self.server,
            self.database,
            tables or list(self.keys),
            **{"required_subscribers": needed, "heartbeat": 0.1, "connect_timeout": 30.0, **given},
        )
        with running(options_, self.config) as capture:
            for table in self.keys:
                self._followers[table] = self._followers.get(table) or Follower(table, self.copies[table], self.config)
            yield capture

    def equal(self, *tables: str) -> None:
        """Wait until the copies equal the tables."""
        for table in tables or self.keys:
            want = rows_of(self.server, self.database, table, *self.keys[table])
            copy = self.copies[table]
            self._followers[table].until(
                lambda copy=copy, want=want: copy.rows == want, f"table {table}: {list(want)[:9]}"
            )

    def until(self, found: Any, what: str) -> None:
        """Wait until something is true of the copies."""
        next(iter(self._followers.values())).until(found, what)

    def close(self) -> None:
        """End the subscriptions."""
        for follower in self._followers.values():
            follower.close()


@contextmanager
def followed(server: MySqlServer, database: str, config: Config, **keys: str | tuple[str, ...]) -> Iterator[Followed]:
    """Give what follows some tables, each named with its key."""
    made = Followed(
        server, database, config, {table: (key,) if isinstance(key, str) else key for table, key in keys.items()}
    )
    try:
        yield made
    finally:
        made.close()
