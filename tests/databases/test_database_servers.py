"""MariaDB and MySQL as tests start them: with a binary log, killed, and started again on their files."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import ModuleType

import pymysql
import pytest

from jobpipe.config.types.secrets import Secret
from jobpipe.errors import NotAuthorized
from jobpipe.pipelines.databases.mysql import MySqlDatabase, execute, is_mariadb
from tests.databases import mariadb as mariadb_kit
from tests.databases import mysql as mysql_kit
from tests.databases.mariadb import MariaDb
from tests.databases.mysql import MySql
from tests.databases.mysql_server import MySqlServer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

LOGGED = {"log_bin": "binlog", "server_id": "7", "binlog_format": "ROW", "binlog_row_metadata": "FULL"}
GTIDS = {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kit", "kind", "more"), [(mariadb_kit, MariaDb, {}), (mysql_kit, MySql, GTIDS)], ids=["MariaDB", "MySQL"]
)
def test_killed_and_started_again(kit: ModuleType, kind: type[MySqlServer], more: dict[str, str]) -> None:
    """What was committed is there, in the table and in the binary log; it is the server that it is said to be."""
    if (what := kit.missing()) is not None:
        pytest.skip(f"a test with a real {kind.name} needs {what}")
    with kind(**LOGGED, **more) as server, server.database() as name:
        variables = "@@log_bin, @@server_id, @@binlog_format, @@binlog_row_metadata"
        assert server.query(f"SELECT {variables}") == [(1, 7, "ROW", "FULL")]
        assert ("MariaDB" in server.query("SELECT version()")[0][0]) is (kind is MariaDb)
        if more:
            assert server.query("SELECT @@gtid_mode, @@enforce_gtid_consistency") == [("ON", "ON")]
        server.query("CREATE TABLE t (id int PRIMARY KEY, text varchar(20))", name)
        for number in range(10):
            server.query(f"INSERT INTO t VALUES ({number}, 'ü')", name)  # noqa: S608 - a number
        assert [row[0] for row in server.query("SHOW BINARY LOGS")][-1] == "binlog.000001"
        server.kill()
        with pytest.raises(pymysql.OperationalError):
            server.connect()
        server.start_again()
        assert server.query("SELECT * FROM t ORDER BY id", name) == [(number, "ü") for number in range(10)]
        assert [row[0] for row in server.query("SHOW BINARY LOGS")] == ["binlog.000001", "binlog.000002"]
        events = server.query("SHOW BINLOG EVENTS IN 'binlog.000001'")
        assert len([row for row in events if "write_rows" in row[2].lower()]) == 10


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["", "?sslMode=REQUIRED", "?sslMode=DISABLED"])
def test_a_password_of_mysql(mysql: MySql, parameters: str, tmp_path: Path) -> None:
    """It is of caching_sha2_password: sent within TLS, or else encrypted with the server's key."""
    user, word = f"u{uuid.uuid4().hex[:12]}", tmp_path / "word"  # which the server has not seen before
    mysql.query(f"CREATE USER {user}@'%' IDENTIFIED BY 'canary-ü'")
    assert (user, "caching_sha2_password") in mysql.query("SELECT user, plugin FROM mysql.user")
    word.write_text("canary-ü")
    word.chmod(0o600)
    url = f"{mysql.url('information_schema').removeprefix('jdbc:')}{parameters}"
    database = MySqlDatabase(url, user, Secret(f"file:{word}"), 10.0)
    with database.connection("test") as connection:
        assert not is_mariadb(connection)
        cipher = execute(connection, "SHOW STATUS LIKE 'ssl_cipher'").fetchone()[1]
        assert (cipher == "") is ("DISABLED" in parameters)
    word.write_text("wrong")
    with pytest.raises(NotAuthorized), database.connection("test"):
        pass


def test_settings_of_a_test_replace_those_of_all() -> None:
    server = MariaDb(log_bin="binlog", bind_address="127.0.0.2", innodb_flush_method=None)
    try:
        words = [word for word in server.command() if word.startswith(("--log-bin", "--bind", "--innodb-flush-m"))]
        assert sorted(words) == ["--bind-address=127.0.0.2", "--log-bin=binlog"]
    finally:
        server.close()


@pytest.mark.parametrize(("version", "found"), [("9.7.4 for Linux (MySQL)", True), ("10.11.19-MariaDB", False)])
def test_what_is_a_mysqld(version: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MariaDB has a program of that name too."""
    program = tmp_path / "mysqld"
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("MYSQL_BIN", str(tmp_path))
    what = mysql_kit.missing()
    assert ("MySQL's mysqld" in str(what)) is not found
