"""Sink jdbc-upsert and a file of SQLite: what it does in a way of its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from jobpipe.errors import (
    ConfigError,
    LinkTimeout,
)
from tests.spark.jdbc.tables import SqliteTables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_a_file_that_is_not_there(lite: SqliteTables) -> None:
    """It is made with create, so that others can read it meanwhile; in a folder that is missing it is not."""
    missing = lite.folder / "new.db"
    with pytest.raises(ConfigError, match=r"SQLite at .*new\.db"):
        lite.opened(url=f"sqlite:{missing}")
    assert not missing.exists()
    sink = lite.opened(url="sqlite:new.db", create=True)  # from the folder of the file
    with closing(sqlite3.connect(missing)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT * FROM t").fetchall() == []
        lite.write(sink, 0, [(1, "a", 1)])
        reader.rollback()
        assert reader.execute("SELECT * FROM t").fetchall() == [(1, "a", 1)]
    with pytest.raises(ConfigError, match=r"SQLite at .*nowhere"):
        lite.opened(url=f"sqlite:{lite.folder}/nowhere/new.db", create=True)


def test_a_file_that_is_none(lite: SqliteTables) -> None:
    (lite.folder / "text").write_text("not a database" * 1000)
    with pytest.raises(ConfigError, match="SQLITE_NOTADB"):
        lite.opened(url=f"sqlite:{lite.folder}/text")


def test_a_table_without_rowid(lite: SqliteTables) -> None:
    lite.sql("DROP TABLE t")
    lite.sql("CREATE TABLE t (id int, text text, n bigint, PRIMARY KEY (text, id)) WITHOUT ROWID")
    sink = lite.opened(keys="id,text", delete_when="n < 0")
    lite.write(sink, 0, [(1, "a", 1), (2, "b", 1)])
    lite.write(sink, 1, [(1, "a", -1), (2, "b", 2)])
    assert lite.rows() == [(2, "b", 2)]


def test_a_schema_of_sqlite(lite: SqliteTables) -> None:
    lite.opened(table="main.t")
    with pytest.raises(ConfigError, match="SQLite has no schema shop"):
        lite.opened(table="shop.t")


def test_an_index_with_a_collation_of_its_own(lite: SqliteTables) -> None:
    """Rows are deleted by the keys of the index, as they are replaced."""
    lite.table("id text, n bigint")
    lite.sql("CREATE UNIQUE INDEX i ON t (id COLLATE NOCASE)")
    sink, schema = lite.sink(delete_when="n < 0"), "id string, n bigint"
    for batch, row in enumerate([("A", 1), ("a", 2), ("a", -1)]):
        lite.write(sink, batch, [row], schema=schema)
    assert lite.rows() == []


def test_a_strict_table(lite: SqliteTables) -> None:
    """A column of type ANY keeps texts as they are; declared types may have any characters."""
    lite.sql("DROP TABLE t")
    lite.sql("CREATE TABLE t (id int PRIMARY KEY, text ANY) STRICT")
    lite.write(lite.sink(columns="id,text"), 0, [(1, "007", 1), (2, " 1e3", 1)])
    assert lite.rows() == [(1, "007"), (2, " 1e3")]
    lite.table('id int PRIMARY KEY, text "my type; (x)"')
    lite.write(lite.sink(columns="id,text"), 0, [(1, "a", 1)], query="q2")
    assert lite.rows() == [(1, "a")]


def test_a_statement_that_takes_too_long(lite: SqliteTables) -> None:
    lite.trigger(
        "AFTER INSERT",
        "UPDATE t SET n = (WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r WHERE x < 100000000) "
        "SELECT count(*) FROM r)",
    )
    with pytest.raises(LinkTimeout, match="SQLITE_INTERRUPT"):
        lite.write(lite.opened(statement_timeout="1s"), 0, [(1, "a", 1)])
    assert lite.rows() == []
    lite.opened(statement_timeout="365d")
