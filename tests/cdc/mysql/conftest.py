"""Fixtures of the tests of captures of MariaDB and MySQL: servers that keep a binary log of rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.bus.kit import MARK

if TYPE_CHECKING:
    from tests.databases.mysql_server import MySqlServer

LOGGED = {
    "log_bin": "binlog",
    "server_id": "1",
    "binlog_row_metadata": "FULL",
    "binlog_format": "ROW",
    "sync_binlog": "1",
}
OF_MYSQL = {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"}


@pytest.fixture(scope="session", params=["mariadb", "mysql"])
def logged(request: pytest.FixtureRequest) -> Iterator[MySqlServer]:
    """A server, one after the other; tests take databases of their own."""
    from tests.databases import mariadb, mysql

    module = mariadb if request.param == "mariadb" else mysql
    if (what := module.missing()) is not None:
        pytest.skip(f"a test with a real {request.param} needs {what}")
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.delenv(MARK, raising=False)  # it outlives the module in which it is started
        server = stack.enter_context(server_of(request.param))
        patch.undo()
        yield server


def server_of(product: str, **settings: str) -> MySqlServer:
    """Return a server that is to be started, with more settings than all tests need."""
    from tests.databases import mariadb, mysql

    if product == "mariadb":
        return mariadb.MariaDb(**{**LOGGED, **settings})
    return mysql.MySql(**{**LOGGED, **OF_MYSQL, **settings})


@pytest.fixture
def database(logged: MySqlServer) -> Iterator[str]:
    """A database of one's own."""
    with logged.database() as name:
        yield name
