"""What PostgreSQL's types become, by snapshot and stream alike; what has no place is refused without its value."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.cdc.changes import ColumnType, Unconvertible
from jobpipe.cdc.postgresql.database.column_types import (
    BINARY,
    BOOLEAN,
    INSTANT,
    TEXT,
    ArrayType,
    array_elements,
    base_type,
)
from jobpipe.config import Config
from tests.bus.kit import until
from tests.cdc.capturing import PATIENCE, options, published, running, settled
from tests.databases.postgres import Postgres

UTC = datetime.UTC
NAN = float("nan")
MOOD = "CREATE TYPE {schema}.mood AS ENUM ('sad', 'ok')"
AMOUNT = "CREATE DOMAIN {schema}.amount AS numeric(8,2) CHECK (value > 0)"
PAIR = "CREATE TYPE {schema}.pair AS (a int, b text)"

TYPES: list[tuple[str, str, pa.DataType, Any]] = [
    ("smallint", "'-32768'", pa.int16(), -32768),
    ("integer", "'2147483647'", pa.int32(), 2147483647),
    ("bigint", "'-9223372036854775808'", pa.int64(), -9223372036854775808),
    ("oid", "'4294967295'", pa.int64(), 4294967295),
    ("real", "'1.5e30'", pa.float32(), 1.4999999470133356e30),
    ("double precision", "'0.1'", pa.float64(), 0.1),
    ("double precision", "'-Infinity'", pa.float64(), float("-inf")),
    ("numeric(12,3)", "'-123456789.125'", pa.decimal128(12, 3), decimal.Decimal("-123456789.125")),
    ("numeric(38,0)", "'9'", pa.decimal128(38, 0), decimal.Decimal(9)),
    ("numeric", "'1.0000000000000000000000000000000000000000001'", pa.string(), f"1.{'0' * 42}1"),
    ("numeric(50,2)", "'1'", pa.string(), "1.00"),
    ("numeric(5,-2)", "'12345'", pa.string(), "12300"),
    ("money", "'12.5'", pa.string(), "$12.50"),
    ("boolean", "true", pa.bool_(), True),
    ("text", "E'a,\"b\"\\n\\\\N é€😀'", pa.string(), 'a,"b"\n\\N é€😀'),
    ("text", "''", pa.string(), ""),
    ("varchar(5)", "'abc'", pa.string(), "abc"),
    ("char(5)", "'abc'", pa.string(), "abc  "),
    ("bytea", "'\\x00ff5c'", pa.binary(), b"\x00\xff\\"),
    ("date", "'2026-02-28'", pa.date32(), datetime.date(2026, 2, 28)),
    ("timestamp", "'0001-01-01 00:00:00.000001'", pa.timestamp("us"), datetime.datetime(1, 1, 1, 0, 0, 0, 1)),
    ("timestamp(0)", "'2026-01-01 12:00'", pa.timestamp("us"), datetime.datetime(2026, 1, 1, 12)),
    (
        *("timestamptz", "'2026-06-01 12:00:00.5+05:30'", pa.timestamp("us", "UTC")),
        datetime.datetime(2026, 6, 1, 6, 30, 0, 500_000, UTC),
    ),
    ("time", "'24:00'", pa.string(), "24:00:00"),
    ("timetz", "'12:00:00.25+02'", pa.string(), "12:00:00.25+02"),
    ("interval", "'1 year 2 months 3 days 04:05:06.7'", pa.string(), "P1Y2M3DT4H5M6.7S"),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", pa.string(), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("json", "'{\"a\":  1}'", pa.string(), '{"a":  1}'),
    ("jsonb", "'{\"a\":  1}'", pa.string(), '{"a": 1}'),
    ("inet", "'10.0.0.1/8'", pa.string(), "10.0.0.1/8"),
    ("bit(3)", "B'101'", pa.string(), "101"),
    ("int4range", "'[1,5)'", pa.string(), "[1,5)"),
    ("point", "'(1,2)'", pa.string(), "(1,2)"),
    ("{schema}.mood", "'ok'", pa.string(), "ok"),
    ("{schema}.amount", "'12.5'", pa.decimal128(8, 2), decimal.Decimal("12.50")),
    ("{schema}.pair", "'(1,x)'", pa.string(), "(1,x)"),
    ("integer[]", "'{1,NULL,3}'", pa.list_(pa.int32()), [1, None, 3]),
    ("integer[]", "'{}'", pa.list_(pa.int32()), []),
    ("text[]", r"""'{a,"b, \"c\"","NULL",NULL,""}'""", pa.list_(pa.string()), ["a", 'b, "c"', "NULL", None, ""]),
    ("numeric(6,2)[]", "'{1.5}'", pa.list_(pa.decimal128(6, 2)), [decimal.Decimal("1.50")]),
    (
        *("timestamptz[]", "'{2026-01-01 00:00+00}'", pa.list_(pa.timestamp("us", "UTC"))),
        [datetime.datetime(2026, 1, 1, tzinfo=UTC)],
    ),
    ("{schema}.mood[]", "'{ok,sad}'", pa.list_(pa.string()), ["ok", "sad"]),
    ("bytea[]", r"""'{"\\x00ff"}'""", pa.list_(pa.binary()), [b"\x00\xff"]),
    ("int2vector", "'1 2'", pa.string(), "1 2"),
]


@pytest.mark.zookeeper
@pytest.mark.timeout(120)
def test_all_types(decoded: Postgres, schema: str, config: Config) -> None:
    """A row that is read, the same row as a change, and one of nulls."""
    query, table = decoded.query, f"{schema}.t"
    for statement in (MOOD, AMOUNT, PAIR):
        query(statement.format(schema=schema))
    columns = ", ".join(f"c{place} {kind.format(schema=schema)}" for place, (kind, *_) in enumerate(TYPES))
    values = ", ".join(value for _, value, *_ in TYPES)
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, {columns})")
    query(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    query(f"INSERT INTO {table} VALUES (1, {values})")
    query(f"INSERT INTO {table} (id) VALUES (2)")
    with running(options(decoded, schema, ["t"], required_subscribers={"t": ("copy",)}), config) as capture:
        until(lambda: settled(capture), PATIENCE, "the end of reading")
        query(f"INSERT INTO {table} VALUES (3, {values})")
        query(f"DELETE FROM {table} WHERE id > 1")
        rows = published("t", 5, config)
        found = capture._writers["t"].rows.schema(capture._session._state.tables[_oid(decoded, table)].readable.table)
    expected = {f"c{place}": value for place, (*_, value) in enumerate(TYPES)}
    nulls = dict.fromkeys(expected)
    assert [row["op"] for row in rows] == ["r", "r", "c", "d", "d"]
    for place, (kind, _, arrow, _) in enumerate(TYPES):
        assert found.field("after").type.field(f"c{place}").type == arrow, kind
    assert rows[0]["after"] == {"id": 1, **expected}
    assert rows[1]["after"] == {"id": 2, **nulls}
    assert rows[2]["after"] == {"id": 3, **expected}
    assert sorted((rows[3]["before"], rows[4]["before"]), key=lambda row: row["id"]) == [
        *({"id": 2, **nulls}, {"id": 3, **expected})
    ]


def _oid(server: Postgres, table: str) -> int:
    return int(server.query("SELECT %s::regclass::oid::int8", table)[0][0])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (base_type(1700, (12 << 16 | 2) + 4), "NaN"),
        (base_type(1082, -1), "infinity"),
        (base_type(1082, -1), "0044-03-15 BC"),
        (base_type(1082, -1), "10000-01-01"),
        (base_type(1114, -1), "-infinity"),
        (INSTANT, "infinity"),
        (INSTANT, "0044-03-15 00:00:00+00 BC"),
        (ArrayType(base_type(23, -1)), "{{1,2},{3,4}}"),
        (ArrayType(base_type(23, -1)), "[0:1]={1,2}"),
    ],
)
def test_what_has_no_place(kind: ColumnType, text: str) -> None:
    with pytest.raises(Unconvertible) as caught:
        kind.convert(pa.array([None, text], pa.string()))
    assert text == "NaN" or text not in str(caught.value)


@pytest.mark.parametrize(
    "kind", [BOOLEAN, BINARY, INSTANT, TEXT, base_type(23, -1), base_type(1082, -1), ArrayType(ArrayType(BINARY))]
)
def test_nulls_alone_and_nothing(kind: ColumnType) -> None:
    for texts in ([None, None], []):
        made = kind.convert(pa.array(texts, pa.string()))
        assert (made.to_pylist(), made.type) == (texts, kind.arrow)


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("{}", []),
        ("{a}", ["a"]),
        ("{NULL,null}", [None, "null"]),
        ('{"NULL","a,b","{x}","\\\\","\\""}', ["NULL", "a,b", "{x}", "\\", '"']),
        ('{"",x}', ["", "x"]),
    ],
)
def test_arrays(text: str, elements: list[str | None]) -> None:
    assert array_elements(text) == elements
