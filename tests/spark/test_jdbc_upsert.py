"""Sink jdbc-upsert and a real PostgreSQL: what is in the table after each way in which a micro-batch can come."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame

from jobpipe.errors import (
    CheckpointTooOld,
    ConfigError,
    DataLoss,
    Fenced,
    JobpipeError,
    LinkBroken,
    LinkTimeout,
    NotAuthorized,
    SchemaMismatch,
    UnsupportedType,
)
from jobpipe.pipelines.databases.postgres import PostgresDatabase
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.sinks.jdbc import staging_copy
from jobpipe.pipelines.sinks.jdbc.upsert_sink import JdbcUpsertSink
from tests.databases.postgres import PASSWORD
from tests.spark.kit import PATIENCE, forget_commit, until
from tests.spark.tables import PostgresTables, Rows

# ruff: noqa: S608 - names of the tests' own
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def place(post: PostgresTables) -> PostgresTables:
    """A schema of the test's own."""
    return post


def test_upserts_and_deletes(place: PostgresTables) -> None:
    """New keys are inserted, known ones replaced, those with a true condition deleted; staging is empty afterwards."""
    sink = place.opened(delete_when="n < 0")
    place.write(sink, 0, [(1, "a", 1), (2, "b", 2), (3, "c", None)])
    place.write(sink, 1, [(2, "bb", 3), (3, None, -1), (4, "d", 4), (5, "never there", -5)])
    assert place.rows() == [(1, "a", 1), (2, "bb", 3), (4, "d", 4)]
    assert place.ledger() == [("p.job", f"{place.schema}.t", 1, "q", 1)]
    assert place.sql(f"SELECT * FROM {place.stagings()[0]}") == []
    place.write(sink, 2, [])
    assert place.ledger()[0][-1] == 2


def test_a_stream(place: PostgresTables) -> None:
    """A query of Spark's: the batch whose commit Spark lost is written once, and a new checkpoint writes again."""
    source = place.folder / "in"
    source.mkdir()
    place.sql("CREATE TABLE seen (n bigint)")
    place.trigger("AFTER INSERT OR UPDATE", f"INSERT INTO {place.schema}.seen VALUES (new.n)")

    def run() -> None:
        frame = place.spark.readStream.schema("id int, text string, n bigint").json(str(source))
        sink = place.sink()
        sink.open(frame, place.context())
        query = sink.start(frame, place.context())
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
    forget_commit(place.folder / "state", 1)
    run()
    assert place.rows() == [(1, "a", 1), (2, "bb", 3)]
    assert place.sql("SELECT n FROM seen ORDER BY n") == [(1,), (2,), (3,)]
    fence, query, batch = place.ledger()[0][2:]
    assert (fence, batch) == (3, 1)
    assert query == json.loads((place.folder / "state" / "metadata").read_text())["id"]
    (place.folder / "state").rename(place.folder / "old")
    place.sql("TRUNCATE seen")
    put("c.json", (3, "c", 4))
    (source / "a.json").unlink()
    run()
    assert place.rows() == [(1, "a", 1), (2, "bb", 3), (3, "c", 4)]
    assert place.sql("SELECT n FROM seen ORDER BY n") == [(3,), (4,)]
    assert place.ledger()[0][3] != query


def test_a_batch_job(place: PostgresTables) -> None:
    """A run is written once, however often it is tried; the next run is another."""
    for run, rows in (("r1", [(1, "a", 1)]), ("r1", [(1, "again", 1)]), ("r2", [(2, "b", 2)])):
        sink, context = place.sink(), place.context(Mode.BATCH, run=run)
        frame = place.frame(rows)
        sink.open(frame, context)
        sink.write(frame, 0, context)
        sink.close(ended=True)
    assert place.rows() == [(1, "a", 1), (2, "b", 2)]
    assert place.ledger() == [("p.job", f"{place.schema}.t", 3, "r2", 0)]


def test_rows_of_one_key(place: PostgresTables) -> None:
    """Equal ones are one. Others are an error that names the keys, and no values; the batch is not written."""
    place.table("id int, text text, n bigint, UNIQUE (text, id)")
    sink = place.opened(keys=["id", "text"], delete_when="n < 0")
    place.write(sink, 0, [(1, "secret", 7), (1, "secret", 7), (1, "b", None), (1, "b", None)])
    assert place.rows() == [(1, "b", None), (1, "secret", 7)]
    for rows in ([(1, "secret", 8), (1, "secret", 9)], [(1, "secret", None), (1, "secret", -1)]):
        with pytest.raises(
            SchemaMismatch, match=r"1 keys \(id, text\) have several rows .* that differ; order-by"
        ) as e:
            place.write(sink, 1, rows)
        assert "secret" not in str(e.value)
    assert place.rows() == [(1, "b", None), (1, "secret", 7)]
    place.write(sink, 1, [(2, "c", 1)])


def test_numbers_order_as_numbers(place: PostgresTables) -> None:
    sink = place.opened(order_by="n")
    place.write(sink, 0, [(1, "nine", 9), (1, "ten", 10), (1, "none", None)])
    assert place.rows() == [(1, "ten", 10)]


def test_keys_are_told_apart_as_in_the_table(place: PostgresTables) -> None:
    """A collation for which two texts are one: they are two rows of one key."""
    place.sql(
        "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    )
    place.table(f"id text COLLATE {place.schema}.nocase PRIMARY KEY, n bigint")
    sink, schema = place.sink(order_by="n"), "id string, n bigint"
    place.write(sink, 0, [("a", 1), ("A", 2)], schema=schema)
    place.write(sink, 1, [("a", 3)], schema=schema)
    assert place.rows() == [("A", 3)]


def test_a_batch_that_comes_again(place: PostgresTables) -> None:
    """It is skipped, whatever it has now; a lower one, or one after a gap, is refused; another query counts from 0."""
    sink = place.opened()
    place.write(sink, 7, [(1, "a", 1)])
    place.write(sink, 7, [(1, "other", 1)])
    place.write(place.opened(), 7, [(1, "other", 1)])
    sink = place.opened()
    with pytest.raises(CheckpointTooOld, match=r"comes with batch 6, but .* has all up to batch 7"):
        place.write(sink, 6, [(1, "other", 1)])
    with pytest.raises(DataLoss, match=r"comes with batch 9, .* only those up to batch 7.* set query to NULL"):
        place.write(sink, 9, [(1, "other", 1)])
    assert place.rows() == [(1, "a", 1)]
    place.write(sink, 0, [(1, "new", 1)], query="q2")
    assert place.rows() == [(1, "new", 1)]
    place.sql("UPDATE jobpipe_ledger SET query = NULL")
    place.write(sink, 5, [(1, "newer", 1)], query="q2")
    assert place.rows() == [(1, "newer", 1)]


def test_a_cut_off_attempt(place: PostgresTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a later attempt has opened, an earlier one writes nothing: neither a new batch, nor the one it is in."""
    first = place.opened()
    place.write(first, 0, [(1, "a", 1)])
    later: list[JdbcUpsertSink] = []
    copy = staging_copy.copy_rows

    def overtaken(frame: DataFrame, order: staging_copy.CopyOrder) -> staging_copy.Copied:
        if not later:
            later.append(place.opened())
        return copy(frame, order)  # into the staging table of the later one

    monkeypatch.setattr(staging_copy, "copy_rows", overtaken)
    with pytest.raises(Fenced, match=r"p\.job no longer writes to s\w+\.t: this attempt has fence 1, .* fence 2"):
        place.write(first, 1, [(1, "of the earlier one", 1)])
    assert place.rows() == [(1, "a", 1)]
    place.write(later[0], 1, [(1, "of the later one", 1)])
    with pytest.raises(Fenced):
        place.write(first, 2, [(2, "x", 1)])
    assert place.rows() == [(1, "of the later one", 1)]
    other = place.sink()
    other.open(place.frame([]), place.context(job="other"))  # another job fences nobody
    place.write(later[0], 2, [(2, "b", 1)])
    place.sql("DELETE FROM jobpipe_ledger")
    with pytest.raises(Fenced, match="the row of the ledger is gone"):
        place.write(later[0], 3, [(2, "x", 1)])


def test_a_later_attempt_waits_for_a_commit(place: PostgresTables) -> None:
    """It opens when the transaction of the earlier one has ended, and knows that the batch is written."""
    place.trigger("BEFORE INSERT", "PERFORM pg_advisory_xact_lock_shared(77)")
    first, second = place.opened(), place.sink()
    frame = place.frame([(1, "a", 1)])

    def waiting(kind: str) -> Callable[[], bool]:
        statement = f"SELECT pid FROM pg_stat_activity WHERE wait_event = '{kind}' AND application_name LIKE 'jobpipe%'"
        return lambda: bool(place.sql(statement))

    with place.postgres.connect() as gate:
        gate.execute("SELECT pg_advisory_lock(77)")
        write = Task(lambda: place.write_frame(first, 0, frame))
        until(waiting("advisory"), "the first attempt in the middle of its transaction")
        opening = Task(lambda: second.open(frame, place.context()))
        until(waiting("transactionid"), "the second attempt at the ledger")
        assert place.rows() == []
        gate.execute("SELECT pg_advisory_unlock(77)")
        write.end()
        opening.end()
    place.write(second, 0, [(1, "twice", 1)])
    assert place.rows() == [(1, "a", 1)]
    with pytest.raises(Fenced):
        place.write(first, 1, [(1, "x", 1)])


class Task:
    """A call in a thread."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error

    def end(self) -> None:
        """Wait for it; raise its error."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("where", ["the transaction", "a task"])
def test_a_connection_that_is_cut(place: PostgresTables, where: str) -> None:
    """In the middle of the work: an error, and nothing of the batch; the repeat gives the exact table."""
    sink = place.opened()
    place.write(sink, 0, [(1, "a", 1)])
    table = "t" if where == "the transaction" else place.stagings()[0]
    place.sql(
        "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF new.id = 50 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN new; END'"
    )
    place.sql(f"CREATE TRIGGER cut BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION cut()")
    rows = [(number, "b", number) for number in range(1, 101)]
    with pytest.raises(LinkBroken, match="terminat"):
        place.write(sink, 1, rows)
    assert place.rows() == [(1, "a", 1)]
    place.sql("DROP FUNCTION cut CASCADE")
    place.write(place.opened(), 1, rows)
    assert place.rows() == rows


def test_a_commit_whose_answer_is_lost(place: PostgresTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is written, and the job does not know; the next attempt finds it in the ledger."""
    sink = place.opened()
    transaction = PostgresDatabase.transaction

    @contextmanager
    def cut(self: PostgresDatabase, connection: psycopg.Connection[Any]) -> Iterator[None]:
        with transaction(self, connection):
            yield
        if place.rows():
            raise psycopg.OperationalError("the connection is lost")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresDatabase, "transaction", cut)
        with pytest.raises(LinkBroken, match="the connection is lost"):
            place.write(sink, 0, [(1, "a", 1)])
    assert place.rows() == [(1, "a", 1)]
    place.write(place.opened(), 0, [(1, "twice", 1)])
    assert place.rows() == [(1, "a", 1)]


TYPES = """
    id int, flag boolean, tiny tinyint, small smallint, big bigint, real float, double double, money decimal(20,4),
    text string, bytes binary, day date, at timestamp, local timestamp_ntz, numbers array<int>,
    texts array<string>, times array<timestamp>, grid array<array<double>>, blobs array<binary>,
    pair struct<a: int, b: string>, byname map<string, bigint>, pairs array<struct<a: int>>
"""
AT = datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
VALUES: Rows = [
    (
        *(1, True, -128, 32767, -(2**63), 0.5, 1e300, Decimal("-1234567890123456.7890")),
        *(
            'tab\t newline\n quote"\\N ü😀',
            b"\x00\xff\\",
            date(9999, 12, 31),
            AT,
            datetime(2024, 2, 29, 23, 59, 59, 999999),  # noqa: DTZ001
        ),
        *([1, None, 3], ["a,b", None, '"{}', "NULL", ""], [AT], [[1.0, math.inf], [-0.5, None]], [b"\x00"]),
        *({"a": 1, "b": None}, {"k": 2**53, "l": None}, [{"a": 1}, {"a": None}]),
    ),
    (2, *[None] * 20),
    (
        *(3, False, 127, -1, 2**63 - 1, -math.inf, math.inf, Decimal("0.0000"), "", b""),
        *(date(1, 1, 1), datetime(2024, 6, 1, tzinfo=UTC), datetime(1, 1, 1), [], [], [], [[1.5]], []),  # noqa: DTZ001
        *({"a": None, "b": "x"}, {}, []),
    ),
]


def test_types(place: PostgresTables) -> None:
    """Into a table that the sink makes, and back: each value as it was; NaN too."""
    place.sql("DROP TABLE t")
    sink = place.sink(create=True)
    frame = place.spark.createDataFrame([tuple(row) for row in VALUES], TYPES)
    nan = place.spark.createDataFrame(
        [(4, math.nan, math.nan, [[math.nan]])], "id int, real float, double double, grid array<array<double>>"
    )
    place.write_frame(sink, 0, frame.unionByName(nan, allowMissingColumns=True))
    *rows, with_nan = place.rows()
    found = [tuple(v.astimezone(UTC) if isinstance(v, datetime) and v.tzinfo else v for v in row) for row in rows]
    found = [(*row[:9], None if row[9] is None else bytes(row[9]), *row[10:]) for row in found]
    assert [tuple(row) for row in found] == VALUES
    assert all(math.isnan(value) for value in (with_nan[5], with_nan[6], with_nan[16][0][0]))
    kinds = dict(
        place.sql("SELECT attname, format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = 't'::regclass")
    )
    assert kinds["at"] == "timestamp with time zone"
    assert kinds["money"] == "numeric"
    assert kinds["pair"] == kinds["pairs"] == "jsonb"
    place.write_frame(sink, 1, frame)
    assert len(place.rows()) == 4


def test_texts_go_into_other_types(place: PostgresTables) -> None:
    """The server reads them: uuid, JSON, intervals; arrays go into JSON columns too."""
    place.table("id uuid PRIMARY KEY, doc json, span interval, list jsonb, small numeric(4, 1)")
    key = "0b1e0bd5-6c12-4a51-9a0b-000000000001"
    schema = "id string, doc string, span string, list array<int>, small double"
    place.write(place.sink(), 0, [(key, '{"a": 1}', "2 hours", [1, 2], 1.25)], schema=schema)
    assert [(str(a), b, str(c), d, e) for a, b, c, d, e in place.rows()] == [
        (key, {"a": 1}, "2:00:00", [1, 2], Decimal("1.3"))
    ]


def test_a_first_column_without_an_order(place: PostgresTables) -> None:
    place.table("doc json, id int PRIMARY KEY")
    frame = place.frame([('{"a": 1}', 1), ('{"a": 1}', 1)], "doc string, id int")
    place.write_frame(place.sink(), 0, frame)
    assert place.sql("SELECT doc, id FROM t") == [({"a": 1}, 1)]


def test_odd_names(place: PostgresTables) -> None:
    """Names are quoted wherever they stand: in SQL, and in Spark."""
    for name in ('a"b', "a%b", "a%s", "a`b", "select", "A", "a.b", "a'b", "a{}b"):
        quoted = '"' + name.replace('"', '""') + '"'
        place.table(f"{quoted} int PRIMARY KEY, id text")
        frame = place.spark.createDataFrame([(1, "a"), (1, "b")], [name, "id"])
        frame = frame.select(staging_copy.named(name).cast("int").alias(name), "id")
        sink = place.sink(keys=[name], order_by="id", delete_when="id = 'x'")
        sink.open(frame, place.context())
        place.write_frame(sink, 0, frame, query=f"q{name}")
        assert place.rows() == [(1, "b")]


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([(1, "secret\0value", 1)], "column text: a text has a NUL character"),
        ([(1, "secret-long-text", 1)], "column text: value too long for type character varying"),
        ([(1, "a", 99_999)], r"column n: value \.\.\. is out of range for type smallint"),
        ([(1, None, 1)], 'null value in column "text" of relation "t" violates not-null constraint'),
        ([(1, "a", -77)], 'violates check constraint "t_n_check"'),
        ([(1, "raise", 1)], "a trigger or function raised an error"),
    ],
)
def test_rows_that_the_table_cannot_take(place: PostgresTables, rows: Rows, what: str) -> None:
    """The column is named, and no value shown."""
    place.table("id int PRIMARY KEY, text varchar(10) NOT NULL, n smallint CHECK (n > 0)")
    place.trigger("BEFORE INSERT", "IF new.text = 'raise' THEN RAISE EXCEPTION 'secret of %', new.id; END IF")
    sink = place.opened()
    with pytest.raises(JobpipeError, match=what) as caught:
        place.write(sink, 0, rows)
    assert type(caught.value) is (JobpipeError if "trigger" in what else SchemaMismatch)
    text = f"{caught.value} {caught.value.fields}"
    assert not any(word in text for word in ("secret", "99999", "-77"))
    assert caught.value.__cause__ is None
    assert place.rows() == []
    place.write(sink, 0, [(1, "good", 1)])


def test_a_nul_in_an_array(place: PostgresTables) -> None:
    place.table("id int PRIMARY KEY, texts text[]")
    with pytest.raises(SchemaMismatch, match="column texts: a text has a NUL"):
        place.write(place.sink(), 0, [(1, ["a", "b\0"])], schema="id int, texts array<string>")


def test_a_nul_in_a_struct(place: PostgresTables) -> None:
    """The server refuses it; its text, which has the value, is not shown."""
    place.table("id int PRIMARY KEY, doc jsonb")
    with pytest.raises(SchemaMismatch, match="column doc: unsupported Unicode escape sequence") as caught:
        place.write(place.sink(), 0, [(1, ("secret\0",))], schema="id int, doc struct<a: string>")
    assert "secret" not in f"{caught.value} {caught.value.fields}"


def test_times_that_cannot_be_written(place: PostgresTables) -> None:
    place.table("id int PRIMARY KEY, day date")
    frame = place.spark.sql("SELECT 1 AS id, date_add(DATE'9999-12-31', 1) AS day")
    with pytest.raises(SchemaMismatch, match="column day: a date or time is outside of the years 1 to 9999"):
        place.write_frame(place.sink(), 0, frame)


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({"table": "nosuch"}, ConfigError, "there is no table .*nosuch in 127.0.0.1:.*create: true"),
        ({"table": "nowhere.t", "create": True}, ConfigError, 'schema "nowhere" does not exist'),
        ({"keys": "n"}, ConfigError, r"no primary key or unique constraint on \(n\); those it has: \(id\)"),
        ({"keys": "id,text"}, ConfigError, r"unique constraint on \(id, text\); those it has: \(id\)"),
        ({"keys": "nosuch"}, ConfigError, "keys names nosuch, and the rows have the columns id, text, n"),
        ({"columns": "id,other"}, ConfigError, "columns names other, and the rows have"),
        ({"order_by": "other"}, ConfigError, "order-by names other, and the rows have"),
        ({"delete_when": "nosuch = 1"}, ConfigError, "delete-when cannot be used on these rows"),
        ({"delete_when": "n + 1"}, ConfigError, "delete-when is no condition: its type is bigint"),
        ({"user": "nobody_such"}, LinkBroken, "authentication failed"),
        ({"url": "postgresql://127.0.0.1:1/x"}, LinkBroken, "127.0.0.1:1/x.*refused"),
        ({"url": "postgresql://127.0.0.1:1/x?nosuch=1"}, ConfigError, "nosuch"),
        ({"password": "env:NO_SUCH_VARIABLE"}, ConfigError, "the environment has no NO_SUCH_VARIABLE"),
    ],
)
def test_what_open_refuses(
    place: PostgresTables, options: dict[str, Any], error: type[JobpipeError], what: str
) -> None:
    """It says what is wrong; an earlier attempt that runs is not shut out."""
    first = place.opened()
    with pytest.raises(error, match=what) as caught:
        place.opened(
            **({"table": f"{place.schema}.{options['table']}"} if options.get("table") == "nosuch" else options)
        )
    assert PASSWORD not in f"{caught.value!r} {caught.value.fields} {caught.value.__cause__!r}"
    place.write(first, 0, [(1, "a", 1)])


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ("id int, text text, n bigint", r"those it has: none"),
        ("id int PRIMARY KEY, text text", "has no column n; it has id, text; option columns"),
        ("id int UNIQUE DEFERRABLE, text text, n bigint", "those it has: none"),
        ("id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text, n bigint", "makes the values of id of table"),
        ("id int PRIMARY KEY, text text, n bigint GENERATED ALWAYS AS (2) STORED", "makes the values of n of table"),
    ],
)
def test_tables_that_do_not_fit(place: PostgresTables, columns: str, what: str) -> None:
    place.table(columns)
    with pytest.raises(ConfigError, match=what):
        place.opened()


def test_an_identity_that_takes_values(place: PostgresTables) -> None:
    place.table("id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, text text, n bigint")
    place.write(place.opened(), 0, [(1, "a", 1)])


def test_keys_by_partial_and_other_indexes(place: PostgresTables) -> None:
    """Only an index that tells all rows apart will do; one with included columns does."""
    place.table("id int, text text, n bigint")
    place.sql("CREATE UNIQUE INDEX ON t (id) WHERE n > 0; CREATE UNIQUE INDEX ON t (lower(text))")
    with pytest.raises(ConfigError, match="those it has: none"):
        place.opened()
    place.sql("CREATE UNIQUE INDEX ON t (id) INCLUDE (n)")
    place.write(place.opened(), 0, [(1, "a", 1)])


def test_a_view_is_no_table(place: PostgresTables) -> None:
    place.sql("CREATE VIEW v AS SELECT * FROM t")
    with pytest.raises(ConfigError, match="is not a table"):
        place.opened(table=f"{place.schema}.v")


def test_a_type_that_cannot_be_written(place: PostgresTables) -> None:
    frame = place.spark.sql("SELECT 1 AS id, INTERVAL '1' DAY AS span")
    with pytest.raises(UnsupportedType, match="column span: type interval day cannot be written"):
        place.sink().open(frame, place.context())


def test_a_lock_that_is_not_let_go(place: PostgresTables) -> None:
    """The write ends after statement-timeout."""
    sink = place.opened(statement_timeout="1s")
    with place.postgres.connect() as other, other.transaction():
        other.execute(f"LOCK TABLE {place.schema}.t")
        with pytest.raises(LinkTimeout, match="statement timeout"):
            place.write(sink, 0, [(1, "a", 1)])
    place.write(sink, 0, [(1, "a", 1)])
    assert place.rows() == [(1, "a", 1)]


def test_a_partitioned_table_and_keys_alone(place: PostgresTables) -> None:
    """Columns that are all keys: rows that are there stay."""
    place.sql("DROP TABLE t")
    place.sql(
        "CREATE TABLE t (id int, text text, PRIMARY KEY (id, text)) PARTITION BY HASH (id); "
        "CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
    )
    sink = place.opened(keys="id,text", columns="id,text", delete_when="n < 0")
    place.write(sink, 0, [(1, "a", 1), (2, "b", 1)])
    place.write(sink, 1, [(1, "a", 1), (2, "b", -1)])
    assert place.rows() == [(1, "a")]


def test_the_secret_shows_nowhere(place: PostgresTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in what Spark shows of the plan, nor in what goes to tasks, nor in what the server logs."""
    from pyspark import cloudpickle

    seen: list[str] = []
    copy = staging_copy.copy_rows

    def looked_at(frame: DataFrame, order: staging_copy.CopyOrder) -> staging_copy.Copied:
        frame = frame.mapInArrow(lambda batches: staging_copy.copy_partition(order, batches), "a string")
        seen.append(frame._jdf.queryExecution().toString() + repr(order))
        seen.append(cloudpickle.dumps(order).decode("latin-1"))
        return copy(frame.sparkSession.createDataFrame([(1, "a", 1)], "id int, text string, n bigint"), order)

    monkeypatch.setattr(staging_copy, "copy_rows", looked_at)
    place.write(place.opened(), 0, [(1, "a", 1)])
    assert place.rows() == [(1, "a", 1)]
    assert str(place.secret) in seen[1]
    assert not any(PASSWORD in text for text in seen)
    assert PASSWORD not in place.postgres.log.read_text()


def test_rights(place: PostgresTables) -> None:
    """Those that the page names are enough; without them it is said which one is missing."""
    from tests.docs.pages import block

    role = f"writer_{place.schema}"
    statements = block("docs/jdbc-upsert.md", "grants").replace("shop.orders", "shop.t").replace("shop", place.schema)
    place.sql(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    try:
        with pytest.raises(NotAuthorized, match="permission denied for schema"):
            place.opened(user=role)
        place.sql(statements.replace("jobpipe_writer", role))
        sink = place.opened(user=role, delete_when="n < 0")
        place.write(sink, 0, [(1, "a", 1), (2, "b", 2)])
        place.write(sink, 1, [(1, "a", -1)])
        assert place.rows() == [(2, "b", 2)]
    finally:
        place.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_the_ledger_elsewhere(place: PostgresTables) -> None:
    """With staging, in a schema of its own: nothing is made in that of the table."""
    with place.postgres.schema() as other:
        sink = place.opened(ledger=f"{other}.books")
        place.write(sink, 0, [(1, "a", 1)])
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = %s"
        assert place.postgres.query(tables, other) == [(2,)]
        assert place.postgres.query(tables, place.schema) == [(1,)]
        sink.close(ended=True)
