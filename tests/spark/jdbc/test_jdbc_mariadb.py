"""Sink jdbc-upsert and a real MariaDB: what it does in a way of its own, or can be done to it."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobpipe.config.types.secrets import Secret
from jobpipe.errors import (
    ConfigError,
    Fenced,
    JobpipeError,
    LinkBroken,
    LinkError,
    NotAuthorized,
    RowTooLarge,
    SchemaMismatch,
)
from jobpipe.pipelines.databases.mysql import MySqlDatabase, execute
from jobpipe.pipelines.sinks.jdbc.mysql_table import MySqlTarget
from jobpipe.pipelines.sinks.jdbc.upsert_sink import JdbcUpsertSink
from tests.databases.mariadb import MariaDb, missing
from tests.databases.mysql_server import PASSWORD, SUPERUSER
from tests.registry.zookeeper.secured import Authority
from tests.spark.jdbc.tables import MariaDbTables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("columns", "row", "what"),
    [
        ("text varchar(10), n bigint", (1, "secret-long-text", 1), "column text: Data too long"),
        ("text varchar(10), n smallint", (1, "a", 99_999), "column n: Out of range value"),
        ("text date, n bigint", (1, "secret", 1), "column text: Incorrect date value"),
        ("text int, n bigint", (1, "secret", 1), "column text: Incorrect integer value"),
    ],
)
def test_values_that_a_server_refuses(maria: MariaDbTables, columns: str, row: tuple[Any, ...], what: str) -> None:
    """The column is named, and no value shown; nothing is cut off in silence."""
    maria.table(f"id int PRIMARY KEY, {columns}")
    sink = maria.opened()
    with pytest.raises(SchemaMismatch, match=what) as caught:
        maria.write(sink, 0, [row])
    assert not any(word in f"{caught.value} {caught.value.fields}" for word in ("secret", "99999"))
    assert maria.rows() == []


def test_staging_tables_of_earlier_attempts(maria: MariaDbTables) -> None:
    """They are dropped when a later one opens, and no others."""
    first = maria.opened()
    (staging,) = maria.stagings()
    maria.sql(f"CREATE TABLE {staging}_mine (a int)")
    maria.opened()
    assert staging not in maria.stagings()
    assert len(maria.stagings()) == 2
    with pytest.raises(Fenced):
        maria.write(first, 0, [(1, "a", 1)])


def test_a_table_without_transactions(maria: MariaDbTables) -> None:
    maria.sql("ALTER TABLE t ENGINE = MyISAM")
    with pytest.raises(ConfigError, match="has the engine MyISAM, which has no transactions; use InnoDB"):
        maria.opened()


def test_keys_by_a_part_of_a_column(maria: MariaDbTables) -> None:
    maria.table("id int, text varchar(200), n bigint, UNIQUE (text(5))")
    with pytest.raises(ConfigError, match=r"no primary key or unique constraint on \(text\); those it has: none"):
        maria.opened(keys="text")


def test_rights(maria: MariaDbTables) -> None:
    """Those that docs/jdbc-upsert.md names are enough; a wrong password, or none on the table, are told."""
    server, database = maria.server, maria.database
    user = f"u_{database}"
    server.query(f"CREATE USER {user}@'%' IDENTIFIED BY 'canary-word'")
    word = maria.folder / "word"
    word.write_text("canary-word")
    word.chmod(0o600)
    try:
        with pytest.raises(NotAuthorized):
            maria.opened(user=user, password=f"file:{word}")
        server.query(f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP ON {database}.* TO {user}@'%'")
        sink = maria.opened(user=user, password=f"file:{word}", delete_when="n < 0")
        maria.write(sink, 0, [(1, "a", 1), (2, "b", -1)])
        assert maria.rows() == [(1, "a", 1)]
        word.write_text("wrong")
        with pytest.raises(NotAuthorized) as caught:
            maria.opened(user=user, password=f"file:{word}")
        assert "wrong" not in str(caught.value)
    finally:
        server.query(f"DROP USER {user}@'%'")


def test_a_server_without_tls_where_it_must_be(maria: MariaDbTables) -> None:
    """Nothing is sent to it."""
    with pytest.raises(LinkBroken, match="SSL"):
        maria.opened(url=f"{maria.server.url(maria.database)}?sslMode=REQUIRED")


@pytest.mark.skipif(missing() is not None, reason=f"a test with a real MariaDB needs {missing()}")
def test_tls(tmp_path: Path) -> None:
    """A server that has it: it is used unless it is disabled, and the certificate is checked if that is asked for."""
    ours = Authority(tmp_path / "ours")
    word = tmp_path / "word"
    word.write_text(PASSWORD)
    word.chmod(0o600)

    def cipher(parameters: str) -> str:
        url = f"mysql://127.0.0.1:{server.port}/mysql{parameters}"
        database = MySqlDatabase(url, SUPERUSER, Secret(f"file:{word}"), 5.0)
        with database.connection("test") as connection:
            return str(execute(connection, "SHOW STATUS LIKE 'ssl_cipher'").fetchone()[1])

    with MariaDb(ours.issue("server", ip="127.0.0.1")) as server:
        assert cipher("?sslMode=disable") == ""
        for parameters in ("", "?sslMode=REQUIRED", f"?sslMode=VERIFY_IDENTITY&serverSslCert={ours.path}"):
            assert cipher(parameters) != ""
        stranger = Authority(tmp_path / "other")
        for parameters in ("?sslMode=VERIFY_CA", f"?sslMode=verify-full&serverSslCert={stranger.path}"):
            with pytest.raises(LinkBroken, match="certificate verify failed"):
                cipher(parameters)
        named = MySqlDatabase(f"mysql://localhost:{server.port}/mysql?sslMode=verify-full&serverSslCert={ours.path}")
        with pytest.raises(LinkBroken, match="Hostname mismatch"), named.connection("test"):
            pass


def test_times_are_in_utc_whatever_the_server_has(maria: MariaDbTables) -> None:
    """A column of type timestamp has a zone, and a server one of its own."""
    maria.sql("SET GLOBAL time_zone = '+05:00'")
    try:
        maria.table("id int PRIMARY KEY, at timestamp(6) NULL")
        at = datetime(2024, 6, 1, 12, tzinfo=UTC)
        maria.write(maria.sink(), 0, [(1, at)], schema="id int, at timestamp")
        assert maria.rows() == [(1, at.replace(tzinfo=None))]
    finally:
        maria.sql("SET GLOBAL time_zone = 'SYSTEM'")


def test_keys_of_a_server() -> None:
    """Errors of the driver itself are told too: here nothing answers."""
    database = MySqlDatabase("mysql://127.0.0.1:1/shop", "me", None, 2.0)
    with pytest.raises(LinkBroken, match=r"MySQL at 127\.0\.0\.1:1/shop"), database.connection("test"):
        pass


def test_a_later_attempt_drops_staging_after_the_commit(maria: MariaDbTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the earlier one has written is written."""
    first = maria.opened()
    later: list[JdbcUpsertSink] = []
    tidy = MySqlTarget._tidy

    def overtaken(target: MySqlTarget, connection: Any) -> None:
        if not later:
            later.append(maria.opened())
        tidy(target, connection)

    monkeypatch.setattr(MySqlTarget, "_tidy", overtaken)
    maria.write(first, 0, [(1, "a", 1)])
    assert maria.rows() == [(1, "a", 1)]
    maria.write(later[0], 0, [(1, "twice", 1)])
    assert maria.rows() == [(1, "a", 1)]


@pytest.mark.parametrize("done", [True, False])
def test_another_writer_inserts_a_key_meanwhile(
    maria: MariaDbTables, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """Between looking for a key and inserting it: nothing of the batch is lost, and another try writes it."""
    sink = maria.opened(columns="id,text")
    run = MySqlTarget.run
    other = maria.server.connect(maria.database)
    committing = threading.Timer(0.5, other.commit)  # while ours waits

    def late(target: MySqlTarget, connection: Any, statement: str, *values: Any) -> Any:
        if statement.startswith('INSERT INTO "'):
            other.begin()
            other.cursor().execute("INSERT INTO t VALUES (5, 'theirs', 9)")
            if done:
                other.commit()
            else:
                committing.start()
        return run(target, connection, statement, *values)

    with monkeypatch.context() as patch, closing(other):
        patch.setattr(MySqlTarget, "run", late)
        with pytest.raises(LinkError, match="another writer inserted a key of the micro-batch"):
            maria.write(sink, 0, [(5, "ours", 1), (6, "ours", 1)])
        if not done:
            committing.join()  # it still reads what the server answers
    assert maria.rows() == [(5, "theirs", 9)]
    maria.write(sink, 0, [(5, "ours", 1), (6, "ours", 1)])
    assert maria.rows() == [(5, "ours", 9), (6, "ours", None)]


def test_a_key_of_zero(maria: MariaDbTables) -> None:
    maria.table("id int AUTO_INCREMENT PRIMARY KEY, text varchar(9), n bigint")
    sink = maria.opened()
    for batch in (0, 1):
        maria.write(sink, batch, [(0, f"v{batch}", 1)])
    assert maria.rows() == [(0, "v1", 1)]


def test_a_date_of_zero(maria: MariaDbTables) -> None:
    maria.table("id int PRIMARY KEY, text date")
    with pytest.raises(SchemaMismatch, match="column text: Incorrect date value"):
        maria.write(maria.sink(columns="id,text"), 0, [(1, "0000-00-00", 1)])


@pytest.mark.parametrize("code", [1048, 1054, 1146, 1213, 30001])
def test_a_trigger_with_a_code_of_the_servers(maria: MariaDbTables, code: int) -> None:
    """Its text may have values of the row, whatever its code says."""
    maria.sql(
        "CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW "
        f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'secret of a row', MYSQL_ERRNO = {code}"
    )
    with pytest.raises(JobpipeError, match=rf"Error, {code}\)") as caught:
        maria.write(maria.sink(), 0, [(1, "secret", 1)])
    assert "secret" not in f"{caught.value} {caught.value.fields}"


def test_a_row_outside_of_all_partitions(maria: MariaDbTables) -> None:
    maria.table("id bigint PRIMARY KEY, text varchar(9), n bigint")
    maria.sql("ALTER TABLE t PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (100))")
    with pytest.raises(SchemaMismatch, match="1526") as caught:
        maria.write(maria.sink(), 0, [(41111111, "a", 1)], schema="id bigint, text string, n bigint")
    assert "4111" not in str(caught.value)


def test_a_row_that_is_too_large(maria: MariaDbTables) -> None:
    maria.table("id int PRIMARY KEY, text longtext, n bigint")
    with pytest.raises(RowTooLarge, match="larger than the server's max_allowed_packet"):
        maria.write(maria.sink(), 0, [(1, "'" * 9_000_000, 1)])


def test_a_server_that_demands_primary_keys(maria: MariaDbTables) -> None:
    maria.sql("SET GLOBAL innodb_force_primary_key = 1")
    try:
        maria.write(maria.opened(), 0, [(1, "a", 1)])
    finally:
        maria.sql("SET GLOBAL innodb_force_primary_key = 0")
    assert maria.rows() == [(1, "a", 1)]


def test_a_ledger_that_was_deleted(maria: MariaDbTables) -> None:
    """Fences begin again; a staging table with the number of one does no harm."""
    for _ in range(2):
        maria.opened()
    maria.sql("DELETE FROM jobpipe_ledger")
    for batch in range(2):
        maria.write(maria.opened(), batch, [(1, "a", batch)])
    assert maria.rows() == [(1, "a", 1)]


def test_a_server_that_says_nothing() -> None:
    """The time of a connection is bounded by its own timeout, also before the server has greeted."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        database = MySqlDatabase(f"mysql://127.0.0.1:{silent.getsockname()[1]}/shop", "me", None, 1.0, 0.0)
        with pytest.raises(LinkError), database.connection("test"):
            pass
