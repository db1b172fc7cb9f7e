"""Sink jdbc-upsert and a real PostgreSQL: what it does in a way of its own."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame

from jobpipe.errors import ConfigError, JobpipeError, LinkBroken, NotAuthorized, SchemaMismatch
from jobpipe.pipelines.sinks.jdbc import staging_copy
from tests.databases.postgres import PASSWORD
from tests.spark.jdbc.tables import PostgresTables, Rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


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


def test_types(post: PostgresTables) -> None:
    """Into a table that the sink makes, and back: each value as it was; NaN too."""
    post.sql("DROP TABLE t")
    sink = post.sink(create=True)
    frame = post.spark.createDataFrame([tuple(row) for row in VALUES], TYPES)
    nan = post.spark.createDataFrame(
        [(4, math.nan, math.nan, [[math.nan]])], "id int, real float, double double, grid array<array<double>>"
    )
    post.write_frame(sink, 0, frame.unionByName(nan, allowMissingColumns=True))
    *rows, with_nan = post.rows()
    found = [tuple(v.astimezone(UTC) if isinstance(v, datetime) and v.tzinfo else v for v in row) for row in rows]
    found = [(*row[:9], None if row[9] is None else bytes(row[9]), *row[10:]) for row in found]
    assert [tuple(row) for row in found] == VALUES
    assert all(math.isnan(value) for value in (with_nan[5], with_nan[6], with_nan[16][0][0]))
    kinds = dict(post.sql("SELECT attname, format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = 't'::regclass"))
    assert kinds["at"] == "timestamp with time zone"
    assert kinds["money"] == "numeric"
    assert kinds["pair"] == kinds["pairs"] == "jsonb"
    post.write_frame(sink, 1, frame)
    assert len(post.rows()) == 4


def test_texts_go_into_other_types(post: PostgresTables) -> None:
    """The server reads them: uuid, JSON, intervals; arrays go into JSON columns too."""
    post.table("id uuid PRIMARY KEY, doc json, span interval, list jsonb, small numeric(4, 1)")
    key = "0b1e0bd5-6c12-4a51-9a0b-000000000001"
    schema = "id string, doc string, span string, list array<int>, small double"
    post.write(post.sink(), 0, [(key, '{"a": 1}', "2 hours", [1, 2], 1.25)], schema=schema)
    assert [(str(a), b, str(c), d, e) for a, b, c, d, e in post.rows()] == [
        (key, {"a": 1}, "2:00:00", [1, 2], Decimal("1.3"))
    ]


def test_a_first_column_without_an_order(post: PostgresTables) -> None:
    post.table("doc json, id int PRIMARY KEY")
    frame = post.frame([('{"a": 1}', 1), ('{"a": 1}', 1)], "doc string, id int")
    post.write_frame(post.sink(), 0, frame)
    assert post.sql("SELECT doc, id FROM t") == [({"a": 1}, 1)]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ((1, "secret\0value", 1), "column text: a text has a NUL character"),
        ((1, "secret-long-text", 1), "column text: value too long for type character varying"),
        ((1, "a", 99_999), r"column n: value \.\.\. is out of range for type smallint"),
        ((1, None, 1), 'null value in column "text" of relation "t" violates not-null constraint'),
        ((1, "a", -77), 'violates check constraint "t_n_check"'),
    ],
)
def test_values_that_a_server_refuses(post: PostgresTables, row: tuple[Any, ...], what: str) -> None:
    """The column is named, and no value shown."""
    post.table("id int PRIMARY KEY, text varchar(10) NOT NULL, n smallint CHECK (n > 0)")
    sink = post.opened()
    with pytest.raises(SchemaMismatch, match=what) as caught:
        post.write(sink, 0, [row])
    assert not any(word in f"{caught.value} {caught.value.fields}" for word in ("secret", "99999", "-77"))
    assert caught.value.__cause__ is None
    assert post.rows() == []


def test_a_nul_in_an_array(post: PostgresTables) -> None:
    post.table("id int PRIMARY KEY, texts text[]")
    with pytest.raises(SchemaMismatch, match="column texts: a text has a NUL"):
        post.write(post.sink(), 0, [(1, ["a", "b\0"])], schema="id int, texts array<string>")


def test_a_nul_in_a_struct(post: PostgresTables) -> None:
    """The server refuses it; its text, which has the value, is not shown."""
    post.table("id int PRIMARY KEY, doc jsonb")
    with pytest.raises(SchemaMismatch, match="column doc: unsupported Unicode escape sequence") as caught:
        post.write(post.sink(), 0, [(1, ("secret\0",))], schema="id int, doc struct<a: string>")
    assert "secret" not in f"{caught.value} {caught.value.fields}"


def test_times_that_cannot_be_written(post: PostgresTables) -> None:
    post.table("id int PRIMARY KEY, day date")
    frame = post.spark.sql("SELECT 1 AS id, date_add(DATE'9999-12-31', 1) AS day")
    with pytest.raises(SchemaMismatch, match="column day: a date or time is outside of the years 1 to 9999"):
        post.write_frame(post.sink(), 0, frame)


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({"table": "nowhere.t", "create": True}, ConfigError, 'schema "nowhere" does not exist'),
        ({"user": "nobody_such"}, LinkBroken, "authentication failed"),
        ({"url": "postgresql://127.0.0.1:1/x"}, LinkBroken, "127.0.0.1:1/x.*refused"),
        ({"url": "postgresql://127.0.0.1:1/x?nosuch=1"}, ConfigError, "nosuch"),
        ({"password": "env:NO_SUCH_VARIABLE"}, ConfigError, "the environment has no NO_SUCH_VARIABLE"),
    ],
)
def test_what_open_refuses(post: PostgresTables, options: dict[str, Any], error: type[JobpipeError], what: str) -> None:
    """It says what is wrong, without the password."""
    with pytest.raises(error, match=what) as caught:
        post.opened(**options)
    assert PASSWORD not in f"{caught.value!r} {caught.value.fields} {caught.value.__cause__!r}"


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ("id int UNIQUE DEFERRABLE, text text, n bigint", "those it has: none"),
        ("id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text, n bigint", "makes the values of id of table"),
    ],
)
def test_tables_that_do_not_fit(post: PostgresTables, columns: str, what: str) -> None:
    post.table(columns)
    with pytest.raises(ConfigError, match=what):
        post.opened()


def test_an_identity_that_takes_values(post: PostgresTables) -> None:
    post.table("id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, text text, n bigint")
    post.write(post.opened(), 0, [(1, "a", 1)])


def test_keys_by_partial_and_other_indexes(post: PostgresTables) -> None:
    """Only an index that tells all rows apart will do; one with included columns does."""
    post.table("id int, text text, n bigint")
    post.sql("CREATE UNIQUE INDEX ON t (id) WHERE n > 0; CREATE UNIQUE INDEX ON t (lower(text))")
    with pytest.raises(ConfigError, match="those it has: none"):
        post.opened()
    post.sql("CREATE UNIQUE INDEX ON t (id) INCLUDE (n)")
    post.write(post.opened(), 0, [(1, "a", 1)])


def test_a_partitioned_table_and_keys_alone(post: PostgresTables) -> None:
    """Columns that are all keys: rows that are there stay."""
    post.sql("DROP TABLE t")
    post.sql(
        "CREATE TABLE t (id int, text text, PRIMARY KEY (id, text)) PARTITION BY HASH (id); "
        "CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
    )
    sink = post.opened(keys="id,text", columns="id,text", delete_when="n < 0")
    post.write(sink, 0, [(1, "a", 1), (2, "b", 1)])
    post.write(sink, 1, [(1, "a", 1), (2, "b", -1)])
    assert post.rows() == [(1, "a")]


def test_the_secret_shows_nowhere(post: PostgresTables, monkeypatch: pytest.MonkeyPatch) -> None:
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
    post.write(post.opened(), 0, [(1, "a", 1)])
    assert post.rows() == [(1, "a", 1)]
    assert str(post.secret) in seen[1]
    assert not any(PASSWORD in text for text in seen)
    assert PASSWORD not in post.postgres.log.read_text()


def test_rights(post: PostgresTables) -> None:
    """Those that the page names are enough; without them it is said which one is missing."""
    from tests.docs.pages import block

    role = f"writer_{post.schema}"
    statements = block("docs/jdbc-upsert.md", "grants").replace("shop.orders", "shop.t").replace("shop", post.schema)
    post.sql(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    try:
        with pytest.raises(NotAuthorized, match="permission denied for schema"):
            post.opened(user=role)
        post.sql(statements.replace("jobpipe_writer", role))
        sink = post.opened(user=role, delete_when="n < 0")
        post.write(sink, 0, [(1, "a", 1), (2, "b", 2)])
        post.write(sink, 1, [(1, "a", -1)])
        assert post.rows() == [(2, "b", 2)]
    finally:
        post.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_the_ledger_elsewhere(post: PostgresTables) -> None:
    """With staging, in a schema of its own: nothing is made in that of the table."""
    with post.postgres.schema() as other:
        sink = post.opened(ledger=f"{other}.books")
        post.write(sink, 0, [(1, "a", 1)])
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = %s"
        assert post.postgres.query(tables, other) == [(2,)]
        assert post.postgres.query(tables, post.schema) == [(1,)]
        sink.close(ended=True)
