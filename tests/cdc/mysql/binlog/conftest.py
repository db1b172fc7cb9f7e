"""Fixtures of the tests of MariaDB's and MySQL's binary log: servers that keep one, and a database on each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.bus.kit import MARK
from tests.cdc.mysql.binlog.logged_server import LoggedDatabase
from tests.databases import mariadb as mariadb_kit
from tests.databases import mysql as mysql_kit
from tests.databases.mariadb import MariaDb
from tests.databases.mysql import MySql
from tests.databases.mysql_server import MySqlServer

LOGGED = {
    "log_bin": "binlog",
    "server_id": "7",
    "binlog_format": "ROW",
    "binlog_row_metadata": "FULL",
    "binlog_row_image": "FULL",
    "max_allowed_packet": "64M",
}
GTIDS = {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"}


SERVERS: dict[str, tuple[ModuleType, type[MySqlServer], dict[str, str]]] = {
    "MariaDB": (mariadb_kit, MariaDb, LOGGED),
    "MySQL": (mysql_kit, MySql, {**LOGGED, **GTIDS}),
}


@pytest.fixture(scope="session")
def logged_mariadb() -> Iterator[MySqlServer]:
    """A MariaDB that keeps a binary log."""
    yield from _server("MariaDB")


@pytest.fixture(scope="session")
def logged_mysql() -> Iterator[MySqlServer]:
    """A MySQL that keeps a binary log with GTIDs."""
    yield from _server("MySQL")


@pytest.fixture(params=list(SERVERS))
def own_server(request: pytest.FixtureRequest) -> Iterator[MySqlServer]:
    """Each of the servers, for one test alone."""
    yield from _server(request.param)


def _server(name: str) -> Iterator[MySqlServer]:
    kit, kind, settings = SERVERS[name]
    if (what := kit.missing()) is not None:
        pytest.skip(f"a test with a real {kind.name} needs {what}")
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(MARK, raising=False)  # it outlives the module whose test is the first to need it
            server = stack.enter_context(kind(**settings))
        yield server


@pytest.fixture
def on_mariadb(logged_mariadb: MySqlServer) -> Iterator[LoggedDatabase]:
    """A database of one's own on MariaDB."""
    with LoggedDatabase.made(logged_mariadb) as database:
        yield database


@pytest.fixture
def on_mysql(logged_mysql: MySqlServer) -> Iterator[LoggedDatabase]:
    """A database of one's own on MySQL."""
    with LoggedDatabase.made(logged_mysql) as database:
        yield database


@pytest.fixture(scope="session", params=list(SERVERS))
def logged_server(request: pytest.FixtureRequest) -> MySqlServer:
    """Each of the servers."""
    server: MySqlServer = request.getfixturevalue(f"logged_{request.param.lower()}")
    return server


@pytest.fixture
def logged(logged_server: MySqlServer) -> Iterator[LoggedDatabase]:
    """A database of one's own, on each of the servers."""
    with LoggedDatabase.made(logged_server) as database:
        yield database
