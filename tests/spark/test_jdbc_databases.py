"""Sink jdbc-upsert with a real MariaDB and with SQLite: what is in the table after each way in which a batch can come.

What each database does in its own way is tested here for the two; tests/spark/test_jdbc_upsert.py has PostgreSQL.
"""

from __future__ import annotations

import json
import math
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from jobpipe.config.secrets import Secret
from jobpipe.errors import (
    CheckpointTooOld,
    ConfigError,
    DataLoss,
    Fenced,
    JobpipeError,
    LinkBroken,
    LinkError,
    LinkTimeout,
    NotAuthorized,
    RowTooLarge,
    SchemaMismatch,
    UnsupportedType,
)
from jobpipe.pipelines.databases.mysql import MySqlDatabase, execute
from jobpipe.pipelines.databases.sqlite import SqliteDatabase
from jobpipe.pipelines.sinks import jdbc_rows
from jobpipe.pipelines.sinks.jdbc import JdbcUpsertSink
from jobpipe.pipelines.sinks.jdbc_mysql import MySqlTarget
from jobpipe.pipelines.spec import Mode
from tests.mariadb import PASSWORD, SUPERUSER, MariaDb
from tests.registry.secured import Authority
from tests.spark.kit import PATIENCE, forget_commit, until
from tests.spark.tables import MariaDbTables, Rows, SqliteTables, Tables

# ruff: noqa: S608 - names of the tests' own
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def maria(spark: SparkSession, mariadb: MariaDb, tmp_path: Path) -> Iterator[MariaDbTables]:
    """A database of the test's own; in the end no connection is left."""
    with mariadb.database() as name:
        yield MariaDbTables(spark, tmp_path, mariadb, name)
        until(lambda: not mariadb.sessions(), "the end of all sessions")


@pytest.fixture
def lite(spark: SparkSession, tmp_path: Path) -> SqliteTables:
    """A file of the test's own."""
    return SqliteTables(spark, tmp_path)


@pytest.fixture(params=["maria", "lite"])
def tables(request: pytest.FixtureRequest) -> Tables:
    """Each of them."""
    found: Tables = request.getfixturevalue(request.param)
    return found


def test_upserts_and_deletes(tables: Tables) -> None:
    """New keys are inserted, known ones replaced, those with a true condition deleted; staging is empty afterwards."""
    sink = tables.opened(delete_when="n < 0")
    tables.write(sink, 0, [(1, "a", 1), (2, "b", 2), (3, "c", None)])
    tables.write(sink, 1, [(2, "bb", 3), (3, None, -1), (4, "d", 4), (5, "never there", -5)])
    assert tables.rows() == [(1, "a", 1), (2, "bb", 3), (4, "d", 4)]
    ((job, target, fence, query, batch),) = tables.ledger()
    assert (job, target.endswith(".t"), fence, query, batch) == ("p.job", True, 1, "q", 1)
    (staging,) = tables.stagings()
    assert tables.sql(f"SELECT * FROM {staging}") == []
    tables.write(sink, 2, [])
    assert tables.ledger()[0][-1] == 2


def test_a_stream(tables: Tables) -> None:
    """A query of Spark's: the batch whose commit Spark lost is written once."""
    source = tables.folder / "in"
    source.mkdir()
    tables.sql("CREATE TABLE seen (n bigint)")
    for when in ("AFTER INSERT", "BEFORE UPDATE"):
        tables.trigger(when, "INSERT INTO seen VALUES (new.n)")

    def run() -> None:
        frame = tables.spark.readStream.schema("id int, text string, n bigint").json(str(source))
        sink = tables.sink()
        sink.open(frame, tables.context())
        query = sink.start(frame, tables.context())
        try:
            assert query.awaitTermination(PATIENCE)
        finally:
            query.stop()
        sink.close(ended=True)

    def put(name: str, *rows: tuple[int, str, int]) -> None:
        lines = [json.dumps(dict(zip(("id", "text", "n"), row, strict=True))) for row in rows]
        (source / name).write_text("\n".join(lines))

    put("a.json", (1, "a", 1), (2, "b", 2))
    run()
    put("b.json", (2, "bb", 3))
    run()
    forget_commit(tables.folder / "state", 1)
    run()
    assert tables.rows() == [(1, "a", 1), (2, "bb", 3)]
    assert tables.sql("SELECT n FROM seen ORDER BY n") == [(1,), (2,), (3,)]
    assert tables.ledger()[0][2::2] == (3, 1)


def test_a_batch_job(tables: Tables) -> None:
    """A run is written once, however often it is tried; the next run is another."""
    for run, rows in (("r1", [(1, "a", 1)]), ("r1", [(1, "again", 1)]), ("r2", [(2, "b", 2)])):
        sink, context = tables.sink(), tables.context(Mode.BATCH, run=run)
        frame = tables.frame(rows)
        sink.open(frame, context)
        sink.write(frame, 0, context)
        sink.close(ended=True)
    assert tables.rows() == [(1, "a", 1), (2, "b", 2)]
    assert tables.ledger()[0][2:] == (3, "r2", 0)


def test_rows_of_one_key(tables: Tables) -> None:
    """Equal ones are one. Others are an error that names the keys, and no values; the batch is not written."""
    tables.table(f"id int, text {tables.text}, n double, UNIQUE (text, id)")
    sink, schema = tables.opened(keys=["id", "text"], delete_when="n < 0"), "id int, text string, n double"
    equal = [(1, "secret", 0.1), (1, "secret", 0.1), (1, "b", None), (1, "b", None)]
    tables.write(sink, 0, equal, schema=schema)
    assert tables.rows() == [(1, "b", None), (1, "secret", 0.1)]
    just_differing = [(1, "secret", 0.1), (1, "secret", 0.1 + 1e-16)]
    for rows in (just_differing, [(1, "secret", 0.0), (1, "secret", None)], [(1, "secret", None), (1, "secret", -1.0)]):
        with pytest.raises(
            SchemaMismatch, match=r"1 keys \(id, text\) have several rows .* that differ; order-by"
        ) as e:
            tables.write(sink, 1, rows, schema=schema)
        assert "secret" not in str(e.value)
    assert tables.rows() == [(1, "b", None), (1, "secret", 0.1)]
    tables.write(sink, 1, [(2, "c", 1.0)], schema=schema)


def test_order_by(tables: Tables) -> None:
    """The row with the highest value counts, be it a deletion; null is the lowest. Several such rows are an error."""
    schema = "id int, text string, n bigint, at string"
    sink = tables.sink(columns="id,text,n", delete_when="text = 'deleted'", order_by="at")
    rows = [(1, "late", 1, "b"), (1, "early", 2, "B"), (1, "none", 3, None)]
    rows += [(2, "x", 1, "1"), (2, "deleted", 1, "2"), (3, "deleted", 1, "1"), (3, "x", 1, "2")]
    tables.write(sink, 0, [(2, "y", 0, None)], schema=schema)
    tables.write(sink, 1, rows, schema=schema)
    assert tables.rows() == [(1, "late", 1), (3, "x", 1)]
    tied = [(1, "p", 1, "z"), (1, "q", 1, "z"), (1, "r", 1, "a")]
    with pytest.raises(SchemaMismatch, match=r"1 keys \(id\) .*, and the same order-by value"):
        tables.write(sink, 2, tied, schema=schema)
    tables.write(sink, 2, [(1, "p", 1, "z"), (1, "p", 1, "z"), (1, "r", 1, "a")], schema=schema)
    assert tables.rows() == [(1, "p", 1), (3, "x", 1)]


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("bigint", 9, 10),
        ("decimal(9,3)", Decimal("9.5"), Decimal("10.125")),
        ("decimal(9,3)", Decimal("-10.5"), Decimal("-9.5")),
        ("double", -1.5, 2.25),
        ("string", "Z ", "a"),
        ("binary", b"\x7f", b"\x80"),
        ("timestamp", datetime(999, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ("date", date(999, 1, 1), date(2024, 1, 1)),
        ("boolean", False, True),
    ],
)
def test_values_order_as_in_spark(tables: Tables, kind: str, low: Any, high: Any) -> None:
    sink = tables.sink(columns="id,text", order_by="at")
    rows = [(1, "high", high), (1, "low", low), (1, "none", None)]
    tables.write(sink, 0, rows, schema=f"id int, text string, at {kind}")
    assert tables.sql("SELECT id, text FROM t") == [(1, "high")]


def test_keys_are_told_apart_as_in_the_table(tables: Tables) -> None:
    """A collation for which two texts are one: they are two rows of one key."""
    tables.table(f"id {tables.nocase} PRIMARY KEY, n bigint")
    sink, schema = tables.sink(order_by="n", delete_when="n < 0"), "id string, n bigint"
    tables.write(sink, 0, [("a", 1), ("A", 2), ("b", 1)], schema=schema)
    tables.write(sink, 1, [("a", 3), ("B", -1)], schema=schema)
    assert [(key.upper(), n) for key, n in tables.rows()] == [("A", 3)]


def test_keys_without_a_value(tables: Tables) -> None:
    """They are no keys, even where a unique constraint lets them pass."""
    tables.table(f"id int, text {tables.text}, n bigint, UNIQUE (id, text)")
    sink = tables.opened(keys="id,text")
    with pytest.raises(SchemaMismatch, match="key columns without a value: id in 1 rows, text in 2 rows") as caught:
        tables.write(sink, 0, [(1, None, 1), (None, None, 2), (3, "secret", 3)])
    assert caught.value.fields["columns"] == ["id", "text"]
    assert tables.rows() == []


def test_a_batch_that_comes_again(tables: Tables) -> None:
    """It is skipped, whatever it has now; a lower one, or one after a gap, is refused; another query begins anew."""
    sink = tables.opened()
    tables.write(sink, 7, [(1, "a", 1)])
    tables.write(sink, 7, [(1, "other", 1)])
    tables.write(tables.opened(), 7, [(1, "other", 1)])
    sink = tables.opened()
    with pytest.raises(CheckpointTooOld, match=r"comes with batch 6, but .* has all up to batch 7"):
        tables.write(sink, 6, [(1, "other", 1)])
    with pytest.raises(DataLoss, match=r"comes with batch 9, .* only those up to batch 7.* set query to NULL"):
        tables.write(sink, 9, [(1, "other", 1)])
    assert tables.rows() == [(1, "a", 1)]
    tables.write(sink, 0, [(1, "new", 1)], query="q2")
    assert tables.rows() == [(1, "new", 1)]


def test_a_cut_off_attempt(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a later attempt has opened, an earlier one writes nothing: neither a new batch, nor the one it is in."""
    first = tables.opened()
    tables.write(first, 0, [(1, "a", 1)])
    later: list[JdbcUpsertSink] = []
    copy = jdbc_rows.copy_rows

    def overtaken(frame: DataFrame, order: jdbc_rows.CopyOrder) -> jdbc_rows.Copied:
        copied = copy(frame, order)
        if not later:
            later.append(tables.opened())
        return copied

    monkeypatch.setattr(jdbc_rows, "copy_rows", overtaken)
    with pytest.raises(Fenced, match=r"p\.job no longer writes to \w+\.t: this attempt has fence 1, .* fence 2"):
        tables.write(first, 1, [(1, "of the earlier one", 1)])
    assert tables.rows() == [(1, "a", 1)]
    tables.write(later[0], 1, [(1, "of the later one", 1)])
    with pytest.raises(Fenced):
        tables.write(first, 2, [(2, "x", 1)])
    assert tables.rows() == [(1, "of the later one", 1)]
    other = tables.sink()
    other.open(tables.frame([]), tables.context(job="other"))  # another job fences nobody
    assert len(tables.stagings()) == 2
    tables.write(later[0], 2, [(2, "b", 1)])
    tables.sql("DELETE FROM jobpipe_ledger")
    with pytest.raises(Fenced, match="the row of the ledger is gone"):
        tables.write(later[0], 3, [(2, "x", 1)])


def test_a_later_attempt_waits_for_a_commit(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens when the transaction of the earlier one has ended, and knows that the batch is written."""
    first, second = tables.opened(), tables.sink()
    frame, context = tables.frame([(1, "a", 1)]), tables.context()
    inside, waits, opened = threading.Event(), threading.Event(), threading.Event()
    merge = type(first._target)._merge  # type: ignore[union-attr]

    def slow(target: Any, connection: Any, copied: jdbc_rows.Copied) -> tuple[int, int]:
        inside.set()
        assert waits.wait(PATIENCE)
        assert not opened.wait(1.0)
        return merge(target, connection, copied)

    monkeypatch.setattr(type(first._target), "_merge", slow)

    def take_over() -> None:
        assert inside.wait(PATIENCE)
        waits.set()
        second.open(frame, context)
        opened.set()

    thread = threading.Thread(target=take_over)
    thread.start()
    tables.write_frame(first, 0, frame)
    thread.join(PATIENCE)
    assert opened.is_set()
    tables.write(second, 0, [(1, "twice", 1)])
    assert tables.rows() == [(1, "a", 1)]


def test_tasks_that_ran_twice(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that other attempts of the tasks copied count for nothing, before or after, complete or not."""
    copy = jdbc_rows.copy_rows

    def often(frame: DataFrame, order: jdbc_rows.CopyOrder) -> jdbc_rows.Copied:
        copy(frame.where("id = 1").replace("a", "of a lost attempt"), order)
        copied = copy(frame, order)
        copy(frame, order)
        return copied

    monkeypatch.setattr(jdbc_rows, "copy_rows", often)
    sink = tables.opened()
    tables.write(sink, 0, [(1, "a", 1), (2, "b", 2)])
    assert tables.rows() == [(1, "a", 1), (2, "b", 2)]


def test_rows_that_left_staging(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error, and then the repeat."""
    sink, copy = tables.opened(), jdbc_rows.copy_rows

    def emptied(frame: DataFrame, order: jdbc_rows.CopyOrder) -> jdbc_rows.Copied:
        copied = copy(frame, order)
        tables.sql(f"DELETE FROM {tables.stagings()[0]} WHERE id = 1")
        return copied

    with monkeypatch.context() as patch:
        patch.setattr(jdbc_rows, "copy_rows", emptied)
        with pytest.raises(LinkError, match=r"of 2 rows in the staging table .* 1 are left"):
            tables.write(sink, 0, [(1, "a", 1), (2, "b", 2)])
    assert tables.rows() == []
    tables.write(sink, 0, [(1, "a", 1), (2, "b", 2)])
    assert tables.rows() == [(1, "a", 1), (2, "b", 2)]


def test_a_commit_whose_answer_is_lost(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is written, and the job does not know; the next attempt finds it in the ledger."""
    sink = tables.opened()
    kind: Any = MySqlDatabase if isinstance(tables, MariaDbTables) else SqliteDatabase
    transaction = kind.transaction

    @contextmanager
    def cut(self: Any, connection: Any) -> Iterator[None]:
        with transaction(self, connection):
            yield
        if tables.rows():
            raise LinkBroken("the connection is lost")

    with monkeypatch.context() as patch:
        patch.setattr(kind, "transaction", cut)
        with pytest.raises(LinkBroken, match="the connection is lost"):
            tables.write(sink, 0, [(1, "a", 1)])
    assert tables.rows() == [(1, "a", 1)]
    tables.write(tables.opened(), 0, [(1, "twice", 1)])
    assert tables.rows() == [(1, "a", 1)]


TYPES = """
    id int, flag boolean, tiny tinyint, small smallint, big bigint, real float, double double, money decimal(20,4),
    text string, bytes binary, day date, at timestamp, local timestamp_ntz, numbers array<int>,
    pair struct<a: int, b: string>, byname map<string, bigint>
"""
VALUES: Rows = [
    (
        *(1, True, -128, 32767, -(2**63), 0.5, 1e300, Decimal("-1234567890123456.7890")),
        *("tab\t newline\n quote\"'\\N %s ü😀\0", b"\x00\xff\\'%", date(9999, 12, 31)),
        datetime(2024, 6, 1, 12, 0, 0, 1, tzinfo=UTC),
        datetime(2024, 2, 29, 23, 59, 59, 999999),  # noqa: DTZ001
        *([1, None, 3], {"a": 1, "b": None}, {"k": 2**53, "l": None}),
    ),
    (2, *[None] * 15),
    (
        *(3, False, 127, -1, 2**63 - 1, -2.0, 0.1, Decimal("0.0000"), "", b""),
        *(date(1000, 1, 1), datetime(1000, 6, 1, tzinfo=UTC), datetime(1000, 1, 1), [], {"a": None, "b": "x"}, {}),  # noqa: DTZ001
    ),
]


def test_types(tables: Tables) -> None:
    """Into a table that the sink makes, and back: each value as it was."""
    tables.sql("DROP TABLE t")
    frame = tables.spark.createDataFrame([tuple(row) for row in VALUES], TYPES)
    sink = tables.sink(create=True)
    sink.open(frame, tables.context())
    tables.write_frame(sink, 0, frame)
    tables.write_frame(sink, 1, frame)
    found = []
    for row in tables.rows():
        flag, money, day, at, local = row[1], row[7], row[10], row[11], row[12]
        if isinstance(tables, SqliteTables):
            money = None if money is None else Decimal(money)
            day = None if day is None else date.fromisoformat(day)
            at, local = (None if value is None else datetime.fromisoformat(value) for value in (at, local))
        at = None if at is None else at.replace(tzinfo=UTC)
        nested = [None if value is None else json.loads(value) for value in row[13:]]
        found.append(
            (row[0], None if flag is None else bool(flag), *row[2:7], money, *row[8:10], day, at, local, *nested)
        )
    assert found == VALUES


def test_texts_as_keys(tables: Tables) -> None:
    """In a table that the sink makes they are told apart by their bytes, as in Spark."""
    tables.sql("DROP TABLE t")
    rows = [("a", 1), ("A", 2), ("a ", 3), ("á", 4), ("", 5)]
    sink = tables.sink(create=True)
    for batch in (0, 1):
        tables.write(sink, batch, rows, schema="id string, n int")
    assert sorted(tables.rows()) == sorted(rows)


def test_odd_names(tables: Tables) -> None:
    """Names are quoted wherever they stand: in SQL, and in Spark."""
    for name in ('a"b', "a%b", "a%s", "a`b", "select", "A", "a.b", "a'b", "a{}b", "a?b"):
        quoted = '"' + name.replace('"', '""') + '"'
        tables.table(f"{quoted} int PRIMARY KEY, id {tables.text}")
        frame = tables.spark.createDataFrame([(1, "a"), (1, "b")], [name, "id"])
        frame = frame.select(jdbc_rows.named(name).cast("int").alias(name), "id")
        sink = tables.sink(keys=[name], order_by="id", delete_when="id = 'x'")
        sink.open(frame, tables.context())
        tables.write_frame(sink, 0, frame, query=f"q{name}")
        tables.write_frame(sink, 1, frame, query=f"q{name}")
        assert tables.rows() == [(1, "b")]


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([(1, "a", -77)], "(?i)constraint"),
        ([(1, None, 1)], "text"),
        ([(1, "raise", 1)], "a trigger raised an error"),
        ([(2, "taken", 1)], "(?i)unique"),
    ],
)
def test_rows_that_the_table_cannot_take(tables: Tables, rows: Rows, what: str) -> None:
    """No value is shown, and a unique constraint of other columns is no key: the row with another key stays."""
    tables.table(f"id int PRIMARY KEY, text {tables.text} NOT NULL UNIQUE, n bigint CHECK (n > 0)")
    if isinstance(tables, SqliteTables):
        tables.sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW WHEN new.text = 'raise' "
            "BEGIN SELECT RAISE(ABORT, 'secret of 1'); END"
        )
    else:
        tables.sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW IF new.text = 'raise' THEN "
            "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'secret of 1'; END IF"
        )
    tables.sql("INSERT INTO t VALUES (9, 'taken', 9)")
    sink = tables.opened()
    with pytest.raises(JobpipeError, match=what) as caught:
        tables.write(sink, 0, rows)
    assert isinstance(caught.value, SchemaMismatch) or "trigger" in what
    text = f"{caught.value} {caught.value.fields}"
    assert not any(word in text for word in ("secret", "-77", "taken"))
    assert caught.value.__cause__ is None
    assert tables.rows() == [(9, "taken", 9)]
    tables.write(sink, 0, [(1, "good", 1)])


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


def test_numbers_that_cannot_be_kept(tables: Tables) -> None:
    """SQLite would make NaN a null; MariaDB has neither that nor infinity."""
    tables.table("id int PRIMARY KEY, n double")
    sink, schema = tables.sink(), "id int, n double"
    sink.open(tables.frame([], schema), tables.context())
    with pytest.raises(SchemaMismatch, match=r"column n: a number is .*NaN"):
        tables.write(sink, 0, [(1, math.nan), (2, None)], schema=schema)
    if isinstance(tables, SqliteTables):
        tables.write(sink, 0, [(1, math.inf)], schema=schema)
        assert tables.rows() == [(1, math.inf)]
    else:
        with pytest.raises(SchemaMismatch, match="column n: a number is infinite"):
            tables.write(sink, 0, [(1, -math.inf)], schema=schema)


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({"table": "other"}, ConfigError, "there is no table .*other"),
        ({"columns": "id,nope"}, ConfigError, "columns names nope"),
        ({"keys": "n"}, ConfigError, r"no primary key or unique constraint on \(n\)"),
        ({"order_by": "nope"}, ConfigError, "order-by names nope"),
        ({"delete_when": "n + 1"}, ConfigError, "delete-when is no condition"),
    ],
)
def test_what_open_refuses(tables: Tables, options: dict[str, Any], error: type[JobpipeError], what: str) -> None:
    sink = tables.opened()
    with pytest.raises(error, match=what):
        tables.opened(**options)
    tables.write(sink, 0, [(1, "a", 1)])  # it shuts out nobody


def test_what_is_no_table(tables: Tables) -> None:
    tables.sql("CREATE VIEW v AS SELECT * FROM t")
    with pytest.raises(ConfigError, match="is not a table"):
        tables.opened(table="v")


def test_types_that_cannot_be_written(tables: Tables) -> None:
    for kind in ("interval day to second", "array<interval day to second>"):
        frame = tables.spark.sql(f"SELECT 1 AS id, CAST(NULL AS {kind}) AS text")
        with pytest.raises(UnsupportedType, match=r"column text: type .* cannot be written"):
            tables.sink().open(frame, tables.context())
    with pytest.raises(ConfigError, match=r"order-by names at, whose type has no order"):
        tables.sink(columns="id", order_by="at").open(
            tables.spark.sql("SELECT 1 AS id, array(1) AS at"), tables.context()
        )


def test_a_lock_that_is_not_let_go(tables: Tables) -> None:
    """The statement ends after its timeout; later it works."""
    tables.write(tables.opened(), 0, [(1, "a", 1)])
    sink = tables.opened(statement_timeout="1s")
    with holding(tables), pytest.raises(LinkTimeout):
        tables.write(sink, 1, [(1, "b", 1)])
    tables.write(sink, 1, [(1, "b", 1)])
    assert tables.rows() == [(1, "b", 1)]


@contextmanager
def holding(tables: Tables) -> Iterator[None]:
    """Hold a lock that a micro-batch needs."""
    connection: Any
    if isinstance(tables, MariaDbTables):
        connection = tables.server.connect(tables.database)
        connection.begin()
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM t WHERE id = 1 FOR UPDATE")
    else:
        assert isinstance(tables, SqliteTables)
        connection = sqlite3.connect(tables.file, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
    with closing(connection):
        yield


def test_keys_alone(tables: Tables) -> None:
    """A table of keys: rows are inserted and deleted, and there is nothing to replace."""
    tables.table("id int PRIMARY KEY")
    sink, schema = tables.sink(columns="id", delete_when="n < 0"), "id int, n int"
    tables.write(sink, 0, [(1, 1), (2, 1)], schema=schema)
    tables.write(sink, 1, [(1, 2), (2, -1), (3, 1)], schema=schema)
    assert tables.rows() == [(1,), (3,)]


@pytest.mark.parametrize("where", ["the transaction", "a task"])
def test_a_connection_that_is_cut(maria: MariaDbTables, where: str) -> None:
    """In the middle of the work: an error, and nothing of the batch; the repeat gives the exact table."""
    sink = maria.opened()
    maria.write(sink, 0, [(1, "a", 1)])
    table = "t" if where == "the transaction" else maria.stagings()[0]
    maria.sql(
        f"CREATE TRIGGER cut BEFORE INSERT ON {table} FOR EACH ROW IF new.id = 50 THEN KILL CONNECTION_ID(); END IF"
    )
    rows = [(number, "b", number) for number in range(1, 101)]
    with pytest.raises(LinkBroken, match=r"MySQL at 127"):
        maria.write(sink, 1, rows)
    assert maria.rows() == [(1, "a", 1)]
    maria.sql("DROP TRIGGER cut")
    maria.write(maria.opened(), 1, rows)
    assert maria.rows() == rows


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
    """Those that docs/pipelines.md names are enough; a wrong password, or none on the table, are told."""
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


def test_keys_of_a_server() -> None:
    """Errors of the driver itself are told too: here nothing answers."""
    database = MySqlDatabase("mysql://127.0.0.1:1/shop", "me", None, 2.0)
    with pytest.raises(LinkBroken, match=r"MySQL at 127\.0\.0\.1:1/shop"), database.connection("test"):
        pass


def test_nulls_in_other_columns_differ(tables: Tables) -> None:
    tables.table("id int PRIMARY KEY, a int, b int")
    with pytest.raises(SchemaMismatch, match=r"1 keys \(id\) have several rows"):
        tables.write(tables.sink(), 0, [(1, None, 7), (1, 7, None)], schema="id int, a int, b int")


@pytest.mark.parametrize("moment", ["before the copy", "after the commit"])
def test_a_later_attempt_drops_staging(maria: MariaDbTables, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """The earlier one is told that it is fenced; what it has written is written."""
    first = maria.opened()
    later: list[JdbcUpsertSink] = []
    if moment == "before the copy":
        copy = jdbc_rows.copy_rows

        def overtaken(frame: DataFrame, order: jdbc_rows.CopyOrder) -> jdbc_rows.Copied:
            later.append(maria.opened())
            return copy(frame, order)

        with monkeypatch.context() as patch:
            patch.setattr(jdbc_rows, "copy_rows", overtaken)
            with pytest.raises(Fenced, match="is gone, as after a later attempt has opened"):
                maria.write(first, 0, [(1, "a", 1)])
        assert maria.rows() == []
    else:
        tidy = MySqlTarget._tidy

        def overtaken_late(target: MySqlTarget, connection: Any) -> None:
            if not later:
                later.append(maria.opened())
            tidy(target, connection)

        monkeypatch.setattr(MySqlTarget, "_tidy", overtaken_late)
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

    def late(target: MySqlTarget, connection: Any, statement: str, *values: Any) -> Any:
        if statement.startswith('INSERT INTO "'):
            other.begin()
            other.cursor().execute("INSERT INTO t VALUES (5, 'theirs', 9)")
            if done:
                other.commit()
            else:
                committing = threading.Timer(0.5, other.commit)  # while ours waits
                committing.start()
        return run(target, connection, statement, *values)

    with monkeypatch.context() as patch, closing(other):
        patch.setattr(MySqlTarget, "run", late)
        with pytest.raises(LinkError, match="another writer inserted a key of the micro-batch"):
            maria.write(sink, 0, [(5, "ours", 1), (6, "ours", 1)])
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
    """Fences begin again; a staging table with the number of one is in nobody's way."""
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
