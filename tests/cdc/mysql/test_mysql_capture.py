"""A capture of a real MariaDB and MySQL: what stands in the topics, and what it goes on from."""

from __future__ import annotations

import pytest

from jobpipe.config import Config
from tests.bus.kit import until
from tests.cdc.capturing import PATIENCE, Copy, Follower, published
from tests.cdc.mysql.mysql_capturing import options, rows_of, running
from tests.databases.mysql_server import MySqlServer

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]


def test_an_envelope(logged: MySqlServer, database: str, config: Config) -> None:
    """Debezium's, with where the change stands in the log; a changed key is a deletion and a creation."""
    logged.query("CREATE TABLE t (id int PRIMARY KEY, name text)", database)
    logged.query("INSERT INTO t VALUES (1, 'a')", database)
    with running(options(logged, database, ["t"], required_subscribers={"t": ("copy",)}), config) as capture:
        until(lambda: not capture.status().tables, PATIENCE, "the end of reading")
        for statement in (
            "UPDATE t SET name = 'b' WHERE id = 1",
            "UPDATE t SET id = 2 WHERE id = 1",
            "INSERT INTO t VALUES (3, NULL)",
            "DELETE FROM t WHERE id = 2",
            "TRUNCATE TABLE t",
        ):
            logged.query(statement, database)
        rows = published("t", 7, config)
    assert [row["op"] for row in rows] == ["r", "u", "d", "c", "c", "d", "t"]
    assert [row["after"] for row in rows] == [
        {"id": 1, "name": "a"},
        {"id": 1, "name": "b"},
        None,
        {"id": 2, "name": "b"},
        {"id": 3, "name": None},
        None,
        None,
    ]
    assert rows[1]["before"] == {"id": 1, "name": "a"}
    assert rows[0]["source"]["snapshot"]
    assert rows[0]["source"]["gtid"] is None
    assert rows[2]["source"]["gtid"] == rows[3]["source"]["gtid"] != rows[4]["source"]["gtid"]
    assert rows[1]["source"]["db"] == database
    assert rows[1]["source"]["pos"] > 0
    assert rows[1]["source"]["file"].startswith("binlog.")


def test_it_goes_on_where_it_was(logged: MySqlServer, database: str, config: Config) -> None:
    """Also over rotated files; what came while it was stopped comes once."""
    logged.query("CREATE TABLE t (id int PRIMARY KEY, name varchar(20))", database)
    given = options(logged, database, ["t"], required_subscribers={"t": ("copy",)}, chunk_size=2)
    for number in range(5):
        logged.query(f"INSERT INTO t VALUES ({number}, 'before')", database)
    copy = Copy("id")
    with running(given, config):
        follower = Follower("t", copy, config)
        follower.until(lambda: copy.rows == rows_of(logged, database, "t", "id"), "the rows")
    for number in range(10, 13):
        logged.query(f"INSERT INTO t VALUES ({number}, 'stopped')", database)
        logged.query("FLUSH BINARY LOGS")
    logged.query("UPDATE t SET name = 'u' WHERE id < 3", database)
    with running(given, config):
        follower.until(lambda: copy.rows == rows_of(logged, database, "t", "id"), "the changes")
        logged.query("DELETE FROM t WHERE id = 1", database)
        follower.until(lambda: copy.rows == rows_of(logged, database, "t", "id"), "the deletion")
    follower.close()
    assert copy.seen == {"r": 5, "c": 3, "u": 3, "d": 1}
