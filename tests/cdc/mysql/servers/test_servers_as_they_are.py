"""Servers and users as administrators have them: names in any case, few rights, columns that no catalog
shows, links and servers that hang."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time

import pytest

from jobpipe.cdc.capture_options import Startup
from jobpipe.cdc.mariadb import mysql_session
from jobpipe.cdc.mariadb.binlog import binlog_stream
from jobpipe.cdc.mariadb.mysql_capture import MysqlCapture
from jobpipe.config import Config
from jobpipe.config.types.secrets import Secret
from jobpipe.errors import ConfigError
from tests.cdc.capturing import PATIENCE, in_thread
from tests.cdc.mysql.conftest import server_of
from tests.cdc.mysql.mysql_capturing import followed, options, running
from tests.databases import mariadb, mysql
from tests.databases.mysql_server import MySqlServer

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(180)]

OPTIONS = {"username": "few", "password": Secret("env:CDC_FEW_PASSWORD")}


@pytest.mark.parametrize("product", ["mariadb", "mysql"])
def test_names_in_any_case(config: Config, product: str) -> None:
    """A server that compares names of tables in lower case logs statements as they were written."""
    if (what := (mariadb if product == "mariadb" else mysql).missing()) is not None:
        pytest.skip(f"a test with a real {product} needs {what}")
    with server_of(product, lower_case_table_names="1") as server, server.database() as database:
        server.query("CREATE TABLE t (id int PRIMARY KEY)", database)
        server.query("INSERT INTO T VALUES (1)", database)
        with followed(server, database, config, t="id") as follow, follow.running():
            follow.equal()
            server.query(f"TRUNCATE TABLE {database.upper()}.T")
            server.query("INSERT INTO T VALUES (2)", database)
            follow.equal()


def grant(server: MySqlServer, monkeypatch: pytest.MonkeyPatch, right: str) -> None:
    """Make a user that may read the log, and has one more right."""
    password = "p%w`d ü"
    monkeypatch.setenv("CDC_FEW_PASSWORD", password)
    server.query("DROP USER IF EXISTS few@'%'")
    server.query(f"CREATE USER few@'%' IDENTIFIED BY '{password}'")
    server.query("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO few@'%'")
    server.query(f"GRANT {right} TO few@'%'")


def test_foreign_keys_are_seen_with_few_rights(
    logged: MySqlServer, database: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a user that may only SELECT, MariaDB's information_schema hides them."""
    query = logged.query
    query("CREATE TABLE parent (id int PRIMARY KEY)", database)
    query(
        'CREATE TABLE t (id int PRIMARY KEY, p int, CONSTRAINT "a""b" FOREIGN KEY (p) REFERENCES parent (id))', database
    )
    query("INSERT INTO t VALUES (1, NULL)", database)
    grant(logged, monkeypatch, f"SELECT ON {database}.t")
    with followed(logged, database, config, t="id") as follow:
        with follow.running(**OPTIONS):
            follow.equal()
    for rule in ("ON DELETE CASCADE", "ON UPDATE SET NULL ON DELETE NO ACTION", "ON UPDATE CASCADE ON DELETE SET NULL"):
        query('ALTER TABLE t DROP FOREIGN KEY "a""b"', database)
        query(f'ALTER TABLE t ADD CONSTRAINT "a""b" FOREIGN KEY (p) REFERENCES parent (id) {rule}', database)
        with pytest.raises(ConfigError, match='foreign key a"b changes its rows'):
            with running(options(logged, database, ["t"], **OPTIONS), config):
                pass


def test_rights_to_columns_alone(
    logged: MySqlServer, database: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog would show some columns, and the log all."""
    logged.query("CREATE TABLE t (id int PRIMARY KEY, n int, hidden int)", database)
    logged.query("INSERT INTO t VALUES (1, 1, 42)", database)
    grant(logged, monkeypatch, f"SELECT (id, n) ON {database}.t")
    with pytest.raises(ConfigError, match=r"may not read the whole table .*\.t: GRANT SELECT ON"):
        with running(options(logged, database, ["t"], **OPTIONS), config):
            pass
    logged.query(f"GRANT SELECT ON {database}.t TO few@'%'")
    with followed(logged, database, config, t="id") as follow:
        with follow.running(**OPTIONS):
            follow.equal()


def test_keys_of_long_texts(logged: MySqlServer, database: str, config: Config) -> None:
    """MariaDB adds a column for the hash, which the log has, and no catalog."""
    if logged.name == "MySQL":
        pytest.skip("MySQL has no unique keys of whole texts")
    query = logged.query
    query("CREATE TABLE t (id int PRIMARY KEY, a text, b text, UNIQUE (a), UNIQUE (b))", database)
    query("INSERT INTO t VALUES (1, 'a', 'b'), (2, NULL, 'c')", database)
    with followed(logged, database, config, t="id") as follow, follow.running():
        follow.equal()
        query("INSERT INTO t VALUES (3, 'B', NULL)", database)
        query("UPDATE t SET a = 'x', b = 'y' WHERE id < 3 LIMIT 1", database)
        query("DELETE FROM t WHERE id = 2", database)
        follow.equal()
        query("ALTER TABLE t ADD COLUMN n int DEFAULT 5", database)
        query("UPDATE t SET n = 6", database)
        follow.equal()


def test_a_table_that_comes_later_is_read_with_latest_offset(
    logged: MySqlServer, database: str, config: Config
) -> None:
    """Its rows are changes since the first start, though it is found later."""
    query = logged.query
    query("CREATE TABLE t (id int PRIMARY KEY)", database)
    query("INSERT INTO t VALUES (1)", database)
    with followed(logged, database, config, t="id", u="id") as follow:
        with follow.running([".*"], startup=Startup.LATEST, heartbeat=1.0):
            query("INSERT INTO t VALUES (2)", database)
            follow.until(lambda: list(follow.copies["t"].rows) == [(2,)], "a change")
            query("CREATE TABLE u (id int PRIMARY KEY)", database)
            query("INSERT INTO u VALUES (1)", database)
            query("INSERT INTO t VALUES (3)", database)
            follow.until(lambda: (3,) in follow.copies["t"].rows, "another change")
            follow.equal("u")
        with follow.running([".*"], startup=Startup.LATEST):
            query("INSERT INTO u VALUES (2)", database)
            follow.equal("u")
            assert list(follow.copies["t"].rows) == [(2,), (3,)]


class Link:
    """A proxy whose connections can be held: they stay open, and nothing goes through."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._streams: set[int] = set()
        self._held: set[int] = set()
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold_streams(self) -> None:
        """Let nothing through on connections that stream the log now."""
        assert self._streams
        self._held = set(self._streams)

    def _accept(self) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += (near, far)
                number += 1
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(number, source, target), daemon=True).start()

    def _copy(self, number: int, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if len(data) > 4 and data[4] in (0x12, 0x1E) and data[3] == 0:  # the command for the log
                    self._streams.add(number)
                if number not in self._held:
                    target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def test_a_stream_that_is_dead_is_made_again(
    logged: MySqlServer, database: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells that a firewall has forgotten it: it is never written to."""
    monkeypatch.setattr(binlog_stream, "SILENT_SECONDS", 2.5)
    logged.query("CREATE TABLE t (id int PRIMARY KEY)", database)
    with followed(logged, database, config, t="id") as follow, contextlib.closing(Link(logged.port)) as link:
        with follow.running(port=link.port, ssl_mode="disable"):
            logged.query("INSERT INTO t VALUES (1)", database)
            follow.equal()
            link.hold_streams()
            logged.query("INSERT INTO t VALUES (2)", database)
            follow.equal()


def test_a_capture_ends_though_the_server_hangs(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    if (what := mariadb.missing()) is not None:
        pytest.skip(f"a test with a real MariaDB needs {what}")
    monkeypatch.setattr(mysql_session, "LEAVE_SECONDS", 0.5)
    with server_of("mariadb") as server, server.database() as database:
        server.query("CREATE TABLE t (id int PRIMARY KEY)", database)
        with MysqlCapture(options(server, database, ["t"]), config) as capture:
            begun = threading.Event()
            ended = in_thread(lambda: capture.run(begun.set))
            assert begun.wait(PATIENCE)
            pid = int((server.folder / "pid").read_text())
            os.kill(pid, signal.SIGSTOP)
            try:
                before = capture.status().position
                time.sleep(1.5)  # longer than between two of its questions
                capture.stop()
                assert ended.wait(PATIENCE), before
            finally:
                os.kill(pid, signal.SIGCONT)
