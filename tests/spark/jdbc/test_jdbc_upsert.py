"""Sink jdbc-upsert and real databases: what is in the table after each way in which a micro-batch can come.

What PostgreSQL, MariaDB and SQLite all do is tested here, with each. test_jdbc_postgres.py, test_jdbc_mariadb.py and
test_jdbc_sqlite.py have what one of them alone does.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame

from jobpipe.errors import (
    CheckpointTooOld,
    ConfigError,
    DataLoss,
    Fenced,
    JobpipeError,
    LinkBroken,
    LinkError,
    LinkTimeout,
    SchemaMismatch,
    UnsupportedType,
)
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.sinks.jdbc import staging_copy
from jobpipe.pipelines.sinks.jdbc.upsert_sink import JdbcUpsertSink
from tests.spark.jdbc.tables import Rows, SqliteTables, Tables
from tests.spark.kit import PATIENCE, forget_commit

# ruff: noqa: S608 - names of the tests' own
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
WITH_CONNECTIONS = pytest.mark.parametrize("tables", ["post", "maria"], indirect=True)
WITHOUT_ARRAYS = pytest.mark.parametrize("tables", ["maria", "lite"], indirect=True)


@pytest.fixture(params=["post", "maria", "lite"])
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
    """A query of Spark's: the batch whose commit Spark lost is written once, and a new checkpoint writes again."""
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
    fence, query, batch = tables.ledger()[0][2:]
    assert (fence, batch) == (3, 1)
    assert query == json.loads((tables.folder / "state" / "metadata").read_text())["id"]
    (tables.folder / "state").rename(tables.folder / "old")
    tables.sql("DELETE FROM seen")
    put("c.json", (3, "c", 4))
    (source / "a.json").unlink()
    run()
    assert tables.rows() == [(1, "a", 1), (2, "bb", 3), (3, "c", 4)]
    assert tables.sql("SELECT n FROM seen ORDER BY n") == [(3,), (4,)]
    assert tables.ledger()[0][3] != query


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
    tables.table(f"id int, text {tables.text}, n double precision, UNIQUE (text, id)")
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
    """It is skipped, whatever it has now; a lower one, or one after a gap, is refused; another query counts from 0."""
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
    tables.sql("UPDATE jobpipe_ledger SET query = NULL")
    tables.write(sink, 5, [(1, "newer", 1)], query="q2")
    assert tables.rows() == [(1, "newer", 1)]


@pytest.mark.parametrize("moment", ["before the copy", "after the copy"])
def test_a_cut_off_attempt(tables: Tables, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Once a later attempt has opened, an earlier one writes nothing: neither a new batch, nor the one it is in."""
    first = tables.opened()
    tables.write(first, 0, [(1, "a", 1)])
    later: list[JdbcUpsertSink] = []
    copy = staging_copy.copy_rows

    def overtake() -> None:
        if not later:
            later.append(tables.opened())

    def overtaken(frame: DataFrame, order: staging_copy.CopyOrder) -> staging_copy.Copied:
        if moment == "before the copy":
            overtake()
        copied = copy(frame, order)
        overtake()
        return copied

    monkeypatch.setattr(staging_copy, "copy_rows", overtaken)
    what = r"p\.job no longer writes to \w+\.t: this attempt has fence 1, .* fence 2"
    if moment == "before the copy":
        what += "|is gone, as after a later attempt has opened"  # what a task finds where each attempt has its own
    with pytest.raises(Fenced, match=what):
        tables.write(first, 1, [(1, "of the earlier one", 1)])
    assert tables.rows() == [(1, "a", 1)]
    tables.write(later[0], 1, [(1, "of the later one", 1)])
    with pytest.raises(Fenced):
        tables.write(first, 2, [(2, "x", 1)])
    assert tables.rows() == [(1, "of the later one", 1)]
    other = tables.sink()
    other.open(tables.frame([]), tables.context(job="other"))  # another job shuts out neither
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

    def slow(target: Any, connection: Any, copied: staging_copy.Copied) -> tuple[int, int]:
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
    with pytest.raises(Fenced):
        tables.write(first, 1, [(1, "x", 1)])


@WITH_CONNECTIONS
@pytest.mark.parametrize("where", ["the transaction", "a task"])
def test_a_connection_that_is_cut(tables: Tables, where: str) -> None:
    """In the middle of the work: an error, and nothing of the batch; the repeat gives the exact table."""
    sink = tables.opened()
    tables.write(sink, 0, [(1, "a", 1)])
    tables.trigger("BEFORE INSERT", tables.cut, "t" if where == "the transaction" else tables.stagings()[0])
    rows = [(number, "b", number) for number in range(1, 101)]
    with pytest.raises(LinkBroken, match="SQL at 127"):
        tables.write(sink, 1, rows)
    assert tables.rows() == [(1, "a", 1)]
    tables.sql(tables.mended)
    tables.write(tables.opened(), 1, rows)
    assert tables.rows() == rows


def test_tasks_that_ran_twice(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that other attempts of the tasks copied count for nothing, before or after, complete or not."""
    copy = staging_copy.copy_rows

    def often(frame: DataFrame, order: staging_copy.CopyOrder) -> staging_copy.Copied:
        copy(frame.where("id = 1").replace("a", "of a lost attempt"), order)
        copied = copy(frame, order)
        copy(frame, order)
        return copied

    monkeypatch.setattr(staging_copy, "copy_rows", often)
    sink = tables.opened()
    tables.write(sink, 0, [(1, "a", 1), (2, "b", 2)])
    assert tables.rows() == [(1, "a", 1), (2, "b", 2)]


def test_rows_that_left_staging(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error, and then the repeat."""
    sink, copy = tables.opened(), staging_copy.copy_rows

    def emptied(frame: DataFrame, order: staging_copy.CopyOrder) -> staging_copy.Copied:
        copied = copy(frame, order)
        tables.sql(f"DELETE FROM {tables.stagings()[0]} WHERE id = 1")
        return copied

    with monkeypatch.context() as patch:
        patch.setattr(staging_copy, "copy_rows", emptied)
        with pytest.raises(LinkError, match=r"of 2 rows in the staging table .* 1 are left"):
            tables.write(sink, 0, [(1, "a", 1), (2, "b", 2)])
    assert tables.rows() == []
    tables.write(sink, 0, [(1, "a", 1), (2, "b", 2)])
    assert tables.rows() == [(1, "a", 1), (2, "b", 2)]


def test_a_commit_whose_answer_is_lost(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is written, and the job does not know; the next attempt finds it in the ledger."""
    sink = tables.opened()
    kind: Any = type(sink._database())
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


@WITHOUT_ARRAYS
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
        frame = frame.select(staging_copy.named(name).cast("int").alias(name), "id")
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
        ([(1, "raise", 1)], "a trigger (or function )?raised an error"),
        ([(2, "taken", 1)], "(?i)unique"),
    ],
)
def test_rows_that_the_table_cannot_take(tables: Tables, rows: Rows, what: str) -> None:
    """No value is shown, and a unique constraint of other columns is no key: the row with another key stays."""
    tables.table(f"id int PRIMARY KEY, text {tables.text} NOT NULL UNIQUE, n bigint CHECK (n > 0)")
    tables.trigger("BEFORE INSERT", tables.refusal)
    tables.sql("INSERT INTO t VALUES (9, 'taken', 9)")
    sink = tables.opened()
    with pytest.raises(JobpipeError, match=what) as caught:
        tables.write(sink, 0, rows)
    of_trigger = "trigger" in what and not isinstance(tables, SqliteTables)  # to SQLite it is a constraint
    assert type(caught.value) is (JobpipeError if of_trigger else SchemaMismatch)
    text = f"{caught.value} {caught.value.fields}"
    assert not any(word in text for word in ("secret", "-77", "taken"))
    assert caught.value.__cause__ is None
    assert tables.rows() == [(9, "taken", 9)]
    tables.write(sink, 0, [(1, "good", 1)])


@WITHOUT_ARRAYS
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
    ("options", "what"),
    [
        ({"table": "other"}, "there is no table .*other.*create: true"),
        ({"keys": "n"}, r"no primary key or unique constraint on \(n\); those it has: \(id\)"),
        ({"keys": "id,text"}, r"unique constraint on \(id, text\); those it has: \(id\)"),
        ({"keys": "nope"}, "keys names nope, and the rows have the columns id, text, n"),
        ({"columns": "id,nope"}, "columns names nope, and the rows have"),
        ({"order_by": "nope"}, "order-by names nope, and the rows have"),
        ({"delete_when": "nope = 1"}, "delete-when cannot be used on these rows"),
        ({"delete_when": "n + 1"}, "delete-when is no condition: its type is bigint"),
    ],
)
def test_what_open_refuses(tables: Tables, options: dict[str, Any], what: str) -> None:
    """It says what is wrong; an earlier attempt that runs is not shut out."""
    sink = tables.opened()
    with pytest.raises(ConfigError, match=what):
        tables.opened(**options)
    tables.write(sink, 0, [(1, "a", 1)])


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ("id int, text varchar(20), n bigint", "those it has: none"),
        ("id int, text varchar(20), PRIMARY KEY (id)", "has no column n; it has id, text; option columns"),
    ],
)
def test_tables_that_do_not_fit(tables: Tables, columns: str, what: str) -> None:
    tables.table(columns)
    with pytest.raises(ConfigError, match=what):
        tables.opened()


def test_values_that_the_database_makes(tables: Tables) -> None:
    """It would take none at the first micro-batch; columns that are not written may be of this kind."""
    tables.table("id int, text varchar(20), n bigint GENERATED ALWAYS AS (2) STORED, PRIMARY KEY (id)")
    tables.write(tables.opened(columns="id,text"), 0, [(1, "a", 1)])
    with pytest.raises(ConfigError, match="the database makes the values of n of table"):
        tables.opened()


def test_what_is_no_table(tables: Tables) -> None:
    tables.sql("CREATE VIEW v AS SELECT * FROM t")
    with pytest.raises(ConfigError, match="is not a table"):
        tables.opened(table=tables.named("v"))


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
    with tables.holding(), pytest.raises(LinkTimeout):
        tables.write(sink, 1, [(1, "b", 1)])
    tables.write(sink, 1, [(1, "b", 1)])
    assert tables.rows() == [(1, "b", 1)]


def test_keys_alone(tables: Tables) -> None:
    """A table of keys: rows are inserted and deleted, and there is nothing to replace."""
    tables.table("id int PRIMARY KEY")
    sink, schema = tables.sink(columns="id", delete_when="n < 0"), "id int, n int"
    tables.write(sink, 0, [(1, 1), (2, 1)], schema=schema)
    tables.write(sink, 1, [(1, 2), (2, -1), (3, 1)], schema=schema)
    assert tables.rows() == [(1,), (3,)]


def test_nulls_in_other_columns_differ(tables: Tables) -> None:
    tables.table("id int PRIMARY KEY, a int, b int")
    with pytest.raises(SchemaMismatch, match=r"1 keys \(id\) have several rows"):
        tables.write(tables.sink(), 0, [(1, None, 7), (1, 7, None)], schema="id int, a int, b int")
