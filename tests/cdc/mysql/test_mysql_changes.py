"""What people do to captured tables: afterwards the copy equals the table, or the capture ends with what is lost."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from jobpipe.cdc.capture_options import SchemaChange
from jobpipe.cdc.mariadb.chunk_reading import ChunkReading
from jobpipe.config import Config
from jobpipe.errors import ConfigError, DataLoss, JobpipeError, SchemaMismatch
from tests.bus.kit import until
from tests.cdc.capturing import PATIENCE, failures
from tests.cdc.mysql.mysql_capturing import followed, options, rows_of, running
from tests.databases.mysql_server import MySqlServer

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(180)]

PARTITIONED = """
    (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)
    (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN MAXVALUE)
"""
FILL = "INSERT INTO {} VALUES (1, 1), (2, 2), (11, 11), (12, 12), (21, 21), (22, 22)"


def all_of(server: MySqlServer, database: str, *statements: str) -> None:
    """Run statements in one session."""
    with contextlib.closing(server.connect(database)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_statements_that_change_tables(logged: MySqlServer, database: str, config: Config) -> None:
    """TRUNCATE, DROP and CREATE, swaps as of gh-ost, and all that partitions can; while others write."""
    mariadb = logged.name == "MariaDB"
    query = logged.query
    query(f"CREATE TABLE t {PARTITIONED}", database)
    query(FILL.format("t"), database)
    plain = "(id int PRIMARY KEY, n int)"
    fill = "INSERT INTO {} VALUES ({}, 1), ({}, 2)"
    steps: list[tuple[str, ...]] = [
        ("TRUNCATE TABLE t", FILL.format("t")),
        ("ALTER TABLE t TRUNCATE PARTITION p1", "INSERT INTO t VALUES (13, 1)"),
        ("ALTER TABLE t DROP PARTITION p1", "UPDATE t SET n = n + 1"),
        (f"CREATE TABLE other {plain}", "INSERT INTO other VALUES (4, 4)", "DELETE FROM t WHERE id = 2"),
        ("ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE other", "UPDATE t SET n = n + 1"),
        ("DROP TABLE t", f"CREATE TABLE t {plain}", fill.format("t", 1, 5)),
        (
            f"CREATE TABLE _t_gho {plain}",
            "INSERT INTO _t_gho SELECT id, n * 2 FROM t",
            "INSERT INTO _t_gho VALUES (6, 6)",
            "RENAME TABLE t TO _t_del, _t_gho TO t",
            "INSERT INTO t VALUES (7, 7)",
            "DROP TABLE _t_del",
        ),
        ("ALTER TABLE t RENAME TO away", "ALTER TABLE away RENAME t", "UPDATE t SET n = n + 1 WHERE id > 5"),
        (
            f"CREATE TABLE t2 {plain}",
            "INSERT INTO t2 VALUES (8, 8)",
            "ALTER TABLE t RENAME old",
            "ALTER TABLE t2 RENAME TO t, ADD COLUMN x int",
            "UPDATE t SET x = 1",
        ),
        (
            "DROP TABLE t",
            "CREATE TABLE t (id int PRIMARY KEY, n int) SELECT 9 AS id, 9 AS n",
            "INSERT INTO t VALUES (10, 1)",
        ),
        (f"DROP DATABASE {database}", f"CREATE DATABASE {database}", f"CREATE TABLE {database}.t {plain}"),
        (f"USE {database}", "INSERT INTO t VALUES (1, 1)"),
        ("OPTIMIZE TABLE t", "ANALYZE TABLE t", "UPDATE t SET n = 5"),
    ]
    if mariadb:
        steps += [
            (f"CREATE OR REPLACE TABLE t {plain}", fill.format("t", 3, 4)),
            (
                "CREATE OR REPLACE TABLE t (id int PRIMARY KEY, n int) SELECT 5 AS id, 6 AS n",
                "INSERT INTO t VALUES (6, 1)",
            ),
            ("SET STATEMENT lock_wait_timeout = 5 FOR TRUNCATE TABLE t", "INSERT INTO t VALUES (7, 1)"),
            (f"CREATE OR REPLACE TABLE t {PARTITIONED}", FILL.format("t")),
            ("ALTER TABLE t CONVERT PARTITION p0 TO TABLE moved", "DELETE FROM t WHERE id = 12"),
        ]
    with followed(logged, database, config, t="id") as follow:
        with follow.running():
            follow.equal()
            for step in steps:
                all_of(logged, database if "DATABASE" not in step[0] else "mysql", *step)
                try:
                    follow.equal()
                except BaseException as error:
                    raise AssertionError(step) from error
        for statement in (*steps[5], *steps[6], *steps[0][:1]):  # while it is stopped
            query(statement, database)
        with follow.running():
            follow.equal()
            query("INSERT INTO t VALUES (99, 1)", database)
            follow.equal()


def hold_back(monkeypatch: pytest.MonkeyPatch, chunks: int) -> threading.Event:
    """Let tables not be read before the event, but for the first chunks."""
    read, free, left = ChunkReading.read, threading.Event(), [chunks]

    def held(self: ChunkReading, table: Any) -> bool:
        if not free.is_set() and left[0] <= 0:
            return False
        done = read(self, table)
        left[0] -= done
        return done

    monkeypatch.setattr(ChunkReading, "read", held)
    return free


@pytest.mark.parametrize("chunks", [0, 2, 100])
def test_columns_that_change(
    logged: MySqlServer, database: str, config: Config, monkeypatch: pytest.MonkeyPatch, chunks: int
) -> None:
    """Before, while and after the table is read: added at once and by a rebuild, dropped, renamed, another type."""
    query = logged.query
    query("CREATE TABLE t (id int PRIMARY KEY, n int, name varchar(10))", database)
    query("INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, NULL), (4, 4, ''), (5, 5, 'c'), (6, 6, 'd')", database)
    free = hold_back(monkeypatch, chunks)
    with followed(logged, database, config, t="id") as follow:
        with follow.running(chunk_size=2):
            if chunks == 100:
                follow.equal()
            elif chunks:
                follow.until(lambda: follow.copies["t"].seen.get("r", 0) >= 2, "a chunk")
            for statement in (
                "ALTER TABLE t ADD COLUMN x int, ALGORITHM=INSTANT",
                "UPDATE t SET x = 1 WHERE id IN (1, 6)",
                "ALTER TABLE t ADD COLUMN y varchar(5) NOT NULL DEFAULT 'y' FIRST, ALGORITHM=COPY",
                "DELETE FROM t WHERE id = 2",
                "ALTER TABLE t MODIFY n bigint",
                "INSERT INTO t VALUES ('y', 7, 7000000000, 'g', 7)",
                "ALTER TABLE t CHANGE name called varchar(100)",
                "UPDATE t SET called = 'long name for it' WHERE id = 1",
                "ALTER TABLE t DROP COLUMN y",
                "UPDATE t SET n = 0 WHERE id = 5",
            ):
                query(statement, database)
            free.set()
            until(lambda: follow_columns(logged, database, follow), PATIENCE, "the columns") if chunks < 100 else None
        query("ALTER TABLE t ADD COLUMN z int", database)
        query("UPDATE t SET z = 5", database)
        with follow.running(chunk_size=2):
            follow.equal()


def follow_columns(server: MySqlServer, database: str, follow: Any) -> bool:
    rows = rows_of(server, database, "t", "id")
    return {key: row["n"] for key, row in rows.items()} == {
        key: row["n"] for key, row in follow.copies["t"].rows.items()
    } or bool(failures)


@pytest.mark.parametrize("chunks", [0, 2, 100])
def test_columns_that_may_not_change(
    logged: MySqlServer, database: str, config: Config, monkeypatch: pytest.MonkeyPatch, chunks: int
) -> None:
    query = logged.query
    query("CREATE TABLE t (id int PRIMARY KEY, n int)", database)
    query("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)", database)
    free = hold_back(monkeypatch, chunks)
    with followed(logged, database, config, t="id") as follow:
        with pytest.raises(SchemaMismatch, match="exception"):
            with follow.running(chunk_size=2, schema_change=SchemaChange.EXCEPTION):
                if chunks == 100:
                    follow.equal()
                elif chunks:
                    follow.until(lambda: follow.copies["t"].seen.get("r", 0) >= 2, "a chunk")
                query("UPDATE t SET n = 5 WHERE id = 1", database)
                if chunks:
                    follow.until(lambda: follow.copies["t"].rows[(1,)]["n"] == 5, "a change")
                assert not failures
                query("ALTER TABLE t ADD COLUMN x int", database)
                query("UPDATE t SET x = 5 WHERE id = 1", database)
                free.set()
                until(lambda: failures, PATIENCE, "the error")
        if chunks == 100:
            with pytest.raises(SchemaMismatch, match=r"has other columns|have changed"):
                with follow.running(chunk_size=2, schema_change=SchemaChange.EXCEPTION):
                    until(lambda: failures, PATIENCE, "the error")
        with follow.running(chunk_size=2):
            query("UPDATE t SET x = id + 7", database)
            follow.equal()


@pytest.mark.parametrize("chunks", [1, 100])
def test_another_primary_key(
    logged: MySqlServer, database: str, config: Config, monkeypatch: pytest.MonkeyPatch, chunks: int
) -> None:
    """A key that was read to is that of another order."""
    query = logged.query
    query("CREATE TABLE t (id int NOT NULL, n varchar(20) NOT NULL, PRIMARY KEY (id))", database)
    query("INSERT INTO t VALUES (1, 'z'), (2, 'y'), (3, 'x'), (4, 'w'), (5, 'v')", database)
    free = hold_back(monkeypatch, chunks)
    with followed(logged, database, config, t="id") as follow:
        with follow.running(chunk_size=2):
            follow.until(lambda: follow.copies["t"].seen.get("r", 0) >= 2, "a chunk")
            if chunks == 100:
                follow.equal()
            query("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (n)", database)
            query("UPDATE t SET n = 'zz' WHERE id = 4", database)
            query("DELETE FROM t WHERE id = 1", database)
            query("INSERT INTO t VALUES (6, 'a')", database)
            free.set()
            follow.equal()
        query("ALTER TABLE t MODIFY n varchar(30) CHARACTER SET latin1", database)
        query("INSERT INTO t VALUES (7, 'b')", database)
        with follow.running(chunk_size=2):
            follow.equal()


def test_two_tables_of_one_topic_are_read_again(
    logged: MySqlServer, database: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note keeps both, also that one was read in part: rows that are gone do not stay."""
    from tests.cdc.capturing import Copy, Follower, routes

    query = logged.query
    for name in ("a", "b"):
        query(f"CREATE TABLE {name} (id int NOT NULL, n int NOT NULL, PRIMARY KEY (id))", database)
        query(f"INSERT INTO {name} VALUES (1, 9), (2, 8), (3, 7), (4, 6)", database)
    given = options(
        logged,
        database,
        ["[ab]"],
        chunk_size=1,
        heartbeat=0.1,
        route=routes({rf"{database}\.(.*)": "both"}),
        required_subscribers={"both": ("copy",)},
    )

    class Both(Copy):
        def _key_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
            return (self.table, row["id"])

        def apply(self, change: dict[str, Any]) -> None:
            self.table = change["source"]["table"]
            if change["op"] == "t":
                self.rows = {key: row for key, row in self.rows.items() if key[0] != self.table}
                return
            super().apply(change)

    def want() -> dict[tuple[Any, ...], dict[str, Any]]:
        return {(t, *key): row for t in "ab" for key, row in rows_of(logged, database, t, "id").items()}

    copy = Both()
    free = hold_back(monkeypatch, 6)  # all of a, and two rows of b
    with running(given, config):
        follower = Follower("both", copy, config)
        follower.until(lambda: len(copy.rows) >= 5, "a part")
        query("ALTER TABLE a DROP PRIMARY KEY, ADD PRIMARY KEY (n)", database)
        query("CREATE TABLE spare LIKE a", database)
        query("INSERT INTO spare VALUES (7, 7)", database)
        query("RENAME TABLE a TO gone, spare TO a", database)
        query("DELETE FROM b WHERE id = 1", database)
        follower.until(lambda: ("b", 1) not in copy.rows and ("a", 1) not in copy.rows, "the changes")
    query("DELETE FROM b WHERE id = 2", database)
    query("DELETE FROM b WHERE id = 4", database)
    free.set()
    with running(given, config):
        follower.until(lambda: copy.rows == want(), "the tables")
    query("ALTER TABLE b RENAME TO later", database)
    with running(given, config):
        query("INSERT INTO a VALUES (8, 8)", database)
        follower.until(lambda: ("a", 8) in copy.rows, "a change")
    query("DELETE FROM later WHERE id = 3", database)
    with running(given, config):
        query("INSERT INTO later VALUES (5, 5)", database)
        query("ALTER TABLE later RENAME TO b", database)
        follower.until(lambda: copy.rows == want(), "the table that came back")
    follower.close()


def test_foreign_keys_that_change_rows(logged: MySqlServer, database: str, config: Config) -> None:
    """They are refused: the log does not have what they do."""
    logged.query("CREATE TABLE parent (id int PRIMARY KEY)", database)
    reference = "CREATE TABLE {} (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parent (id){})"
    logged.query(reference.format("child", ""), database)
    with followed(logged, database, config, child="id") as follow:
        with follow.running():
            logged.query("INSERT INTO parent VALUES (1)", database)
            logged.query("INSERT INTO child VALUES (1, 1)", database)
            follow.equal()
    logged.query(reference.format("cascading", " ON DELETE CASCADE"), database)
    with pytest.raises(ConfigError, match="foreign key cascading_ibfk_1 changes its rows"):
        with running(options(logged, database, ["cascading"]), config):
            pass
    with running(options(logged, database, ["cascading"], allow_cascades=True), config):
        pass


def faulty(
    server: MySqlServer,
    database: str,
    config: Config,
    good: list[str],
    bad: list[str],
    kind: type[JobpipeError],
    match: str,
) -> None:
    """Changes that are captured, and others of the same table that end the capture."""
    server.query("CREATE TABLE t (id int PRIMARY KEY, n int, name varchar(20))", database)
    server.query("INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')", database)
    with followed(server, database, config, t="id") as follow:
        with pytest.raises(kind, match=match):
            with follow.running():
                follow.equal()
                all_of(server, database, *good)
                follow.equal()
                all_of(server, database, *bad)
                until(lambda: failures, PATIENCE, "the error")
        with pytest.raises(kind, match=match):
            with follow.running():  # still
                until(lambda: failures, PATIENCE, "the error")


def test_a_transaction_that_is_prepared(logged: MySqlServer, database: str, config: Config) -> None:
    good = ["XA START 'a'", "UPDATE t SET n = 5", "XA END 'a'", "XA COMMIT 'a' ONE PHASE", "UPDATE t SET n = 6"]
    bad = ["XA START 'b'", "UPDATE t SET n = 7", "XA END 'b'", "XA PREPARE 'b'", "XA ROLLBACK 'b'"]
    faulty(logged, database, config, good, bad, DataLoss, "only prepared")


def test_a_statement_that_is_logged_as_text(logged: MySqlServer, database: str, config: Config) -> None:
    text = "SET SESSION binlog_format = 'STATEMENT'"
    good = ["SET SESSION binlog_format = 'ROW'", "UPDATE t SET n = n + 5 WHERE id = 1"]
    other = ["CREATE TABLE unrelated (x int PRIMARY KEY)", text, "INSERT INTO unrelated VALUES (1)"]
    bad = [text, "UPDATE t SET n = n + 5 WHERE id = 2"]
    faulty(logged, database, config, [*good, *other], bad, DataLoss, "logged as text")


@pytest.mark.parametrize("way", ["view", "trigger", "function"])
def test_a_statement_that_changes_a_table_by_another_name(
    logged: MySqlServer, database: str, config: Config, way: str
) -> None:
    text = "SET SESSION binlog_format = 'STATEMENT'"
    good = {
        "view": ["CREATE VIEW v AS SELECT * FROM t", "UPDATE v SET n = n + 5 WHERE id = 1"],
        "trigger": [
            "CREATE TABLE o (id int PRIMARY KEY)",
            "CREATE TRIGGER r AFTER INSERT ON o FOR EACH ROW UPDATE t SET n = n + NEW.id",
            "INSERT INTO o VALUES (1)",
        ],
        "function": [
            "SET GLOBAL log_bin_trust_function_creators = 1",
            "CREATE FUNCTION f(x int) RETURNS int BEGIN UPDATE t SET n = n + x; RETURN x; END",
            "SELECT f(1)",
        ],
    }[way]
    bad = {"view": "UPDATE v SET n = 9 WHERE id = 2", "trigger": "INSERT INTO o VALUES (2)", "function": "SELECT f(2)"}
    faulty(logged, database, config, good, [text, bad[way]], DataLoss, "logged as text")


def test_rows_that_are_not_whole(logged: MySqlServer, database: str, config: Config) -> None:
    image = "SET SESSION binlog_row_image = '{}'"
    good = [image.format("FULL"), "UPDATE t SET n = n + 5 WHERE id = 1"]
    bad = [image.format("MINIMAL"), "UPDATE t SET n = n + 5 WHERE id = 2"]
    faulty(logged, database, config, good, bad, JobpipeError, "binlog_row_image")


def test_tables_without_transactions(logged: MySqlServer, database: str, config: Config) -> None:
    """A transaction that has changed one, too, and is undone: nothing of it is in the topic."""
    if logged.name == "MySQL":
        pytest.skip("MySQL with GTIDs refuses such transactions (1785)")
    logged.query("CREATE TABLE t (id int PRIMARY KEY, n int)", database)
    logged.query("CREATE TABLE u (id int PRIMARY KEY)", database)
    logged.query("CREATE TABLE m (id int PRIMARY KEY) ENGINE = MyISAM", database)
    mixed = ["BEGIN", "INSERT INTO t VALUES (%d, 1)", "INSERT INTO m VALUES (%d)", "UPDATE t SET n = 2"]
    with followed(logged, database, config, t="id", u="id") as follow:
        with follow.running():
            all_of(logged, database, *(each.replace("%d", "1") for each in mixed), "COMMIT")
            follow.equal()
            all_of(logged, database, *(each.replace("%d", "2") for each in mixed), "ROLLBACK")
            all_of(logged, database, "INSERT INTO t VALUES (3, 3)")
            follow.equal()
            part = [each.replace("%d", "4") for each in mixed[1:]]  # u has changes before it and in it, t in it alone
            part = ["SAVEPOINT s", "INSERT INTO u VALUES (5)", *part, "ROLLBACK TO s"]
            all_of(logged, database, "BEGIN", "INSERT INTO u VALUES (4)", *part, "INSERT INTO u VALUES (6)", "COMMIT")
            all_of(logged, database, "INSERT INTO t VALUES (5, 5)")
            follow.equal()


def test_an_idle_server_and_new_tables(logged: MySqlServer, database: str, config: Config) -> None:
    """The place of an idle capture goes on with others' changes; tables that come are read."""
    query = logged.query
    query("CREATE TABLE t (id int PRIMARY KEY)", database)
    query("CREATE DATABASE IF NOT EXISTS elsewhere")
    query("CREATE TABLE IF NOT EXISTS elsewhere.x (id int)")
    query("FLUSH BINARY LOGS")
    with followed(logged, database, config, t="id", u="id") as follow:
        query("CREATE TABLE u (id int PRIMARY KEY)", database)
        query("INSERT INTO u VALUES (0)", database)
        query("FLUSH BINARY LOGS")
        with follow.running([".*"]) as capture:
            follow.equal()
            until(lambda: not capture.status().tables, PATIENCE, "the end of reading on an idle server")
            for command in ("INSERT INTO elsewhere.x VALUES (1)", "FLUSH BINARY LOGS"):
                before = capture.status().position
                query(command)
                until(lambda before=before: capture.status().position != before, PATIENCE, "another place")
            until(lambda: _noted(capture) == capture.status().position, PATIENCE, "a note of it")
            query("CREATE TABLE v (id int PRIMARY KEY)", database)
            query("INSERT INTO v VALUES (1)", database)
            query("INSERT INTO t VALUES (1)", database)
            follow.equal("t")
            until(lambda: "v" in capture._writers, PATIENCE, "the new table")


def _noted(capture: Any) -> str:
    from jobpipe.cdc.mariadb.mysql_note import BinlogNote

    note = capture._writers["t"].last_note
    return str(BinlogNote.from_bytes(note, "t").at.position)


def test_another_replica_of_the_same_number(logged: MySqlServer, database: str, config: Config) -> None:
    """Each ends the other's stream; once one is gone, the other goes on."""
    query = logged.query
    query("CREATE TABLE t (id int PRIMARY KEY)", database)
    query("CREATE TABLE u (id int PRIMARY KEY)", database)
    with followed(logged, database, config, t="id") as follow, followed(logged, database, config, u="id") as other:
        with follow.running(server_id=77), other.running(server_id=78, name="other"):
            query("INSERT INTO t VALUES (1)", database)
            query("INSERT INTO u VALUES (1)", database)
            follow.equal()
            other.equal()
        with follow.running(server_id=77):
            with other.running(server_id=77, name="other"):
                query("INSERT INTO t VALUES (2)", database)
                query("INSERT INTO u VALUES (2)", database)
            query("INSERT INTO t VALUES (3)", database)
            follow.equal()


def test_columns_that_are_computed(logged: MySqlServer, database: str, config: Config) -> None:
    """They are captured as others are, stored or virtual."""
    columns = "id int PRIMARY KEY, v int AS (n + 1) VIRTUAL, n int, s int AS (n * 2) STORED, w int AS (n + 2) VIRTUAL"
    logged.query(f"CREATE TABLE t ({columns}, name text)", database)
    logged.query("INSERT INTO t (id, n, name) VALUES (1, 1, 'a'), (2, 2, 'b'), (3, NULL, NULL)", database)
    with followed(logged, database, config, t="id") as follow:
        for _ in range(2):
            with follow.running(chunk_size=1):
                follow.equal()
                all_of(logged, database, "UPDATE t SET n = n + 5", "DELETE FROM t WHERE id = 2")
                all_of(logged, database, "INSERT INTO t (id, n, name) VALUES (2, 7, 'x')")
                follow.equal()
        assert set(follow.copies["t"].rows[(1,)]) == {"id", "v", "n", "s", "w", "name"}
