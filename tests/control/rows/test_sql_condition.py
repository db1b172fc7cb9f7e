"""Conditions in SQLite's SQL: what they can ask of each type, and what nobody can do with one."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.control.rows.sql_condition import MOST_BYTES, SqlCondition
from jobpipe.errors import ConfigError, WaitTimeout

SECONDS = 20.0
NOON = datetime(2026, 11, 21, 10, tzinfo=UTC)
BIG = Decimal("123456789012345678.90")
ROWS = pa.record_batch(
    {
        "n": pa.array([1, 2, None], pa.int64()),
        "text": ["Berlin", "it's", None],
        "price": pa.array([Decimal("0.10"), BIG, None], pa.decimal128(38, 2)),
        "at": pa.array([NOON, NOON + timedelta(microseconds=5), None], pa.timestamp("us", "UTC")),
        "local": pa.array([NOON.replace(tzinfo=None), None, None], pa.timestamp("s")),
        "day": [date(2026, 11, 21), date(2026, 11, 22), None],
        "ratio": pa.array([0.1, float("nan"), None], pa.float32()),
        "flag": [True, False, None],
        "raw": [b"\x00", b"\xff", None],
        "huge": pa.array([1, 2**64 - 1, None], pa.uint64()),
        "buyer": [{"name": "Ann", "tags": ["a", "b"]}, {"name": "Bo", "tags": []}, None],
    }
)


def holds(condition: str, rows: pa.RecordBatch = ROWS, seconds: float = SECONDS) -> list[int]:
    """Return for which rows it holds."""
    return SqlCondition(condition).numbers(rows, time.monotonic() + seconds, time.monotonic)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("n > 1", [1]),
        ("n = '1'", [0]),
        ("n IS NULL", [2]),
        ("n BETWEEN 1 AND 2 AND NOT text LIKE 'b%'", [1]),
        ("text = 'it''s'", [1]),
        ("text LIKE 'b%'", [0]),
        ("text GLOB 'B*'", [0]),
        ("\"text\" IN ('Berlin')", [0]),
        ("price = 0.1", [0]),
        ("price > '123456789012345678.89'", [1]),
        ("price > '123456789012345678.90'", []),
        ("price IN (0.1, 5)", [0]),
        ("price >= 2", [1]),
        ("at > '2026-11-21T10:00:00.000000Z'", [1]),
        ("at >= '2026-11-21' AND at < '2026-11-22'", [0, 1]),
        ("local = '2026-11-21T10:00:00'", [0]),
        ("date(at) = '2026-11-21' AND day = '2026-11-22'", [1]),
        ("ratio = 0.1", [0]),
        ("ratio = 'NaN'", [1]),
        ("flag", [0]),
        ("raw = x'ff'", [1]),
        ("huge > 9e18", [1]),
        ("buyer ->> '$.name' = 'Ann'", [0]),
        ("json_array_length(buyer, '$.tags') = 2", [0]),
        ("coalesce(n, 7) = 7", [2]),
        ("n = (1)", [0]),
        ("text = ';--/*'", []),
    ],
)
def test_what_a_condition_asks(condition: str, expected: list[int]) -> None:
    """Each type compares as docs/server.md says."""
    assert holds(condition) == expected


HOSTILE = (
    "1); ATTACH DATABASE '/tmp/x.db' AS x; --",
    "1; DROP TABLE rows",
    "1 -- more",
    "1 /* more */",
    "PRAGMA table_list",
    "(SELECT 1)",
    "n IN (SELECT n FROM rows)",
    "EXISTS (SELECT 1 FROM sqlite_master)",
    "EXISTS (SELECT 1 FROM pragma_table_list)",
    "1) UNION SELECT 1 FROM rows WHERE (1",
    "1) LIMIT (1",
    "n = 1) OR (n = 2",
    "(WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c)",
    "(WITH RECURSIVE c(x) AS (VALUES(1)) SELECT x FROM c)",
    "randomblob(1000000000) IS NULL",
    "zeroblob(1000000000) IS NULL",
    "printf('%1000000000d', 1) = ''",
    "replace(text, '', 'x') = ''",
    "load_extension('x')",
    "readfile('/etc/passwd') IS NULL",
    "writefile('/tmp/x', 'x') IS NULL",
    "sqlite_version() = ''",
    f"text LIKE '{'%a' * 400}'",
    "+".join(["n"] * 400),
    "n = ?",
    "n = :x",
    "n = 1\x00",
    "text = 'no end",
    '"no end',
    ")(",
    "n = 1 GROUP BY n",
    "count(*) > 1",
    "RAISE(ABORT, 'x')",
    "nosuch = 1",
    '"nosuch" = 1',
    "\ud800 = 1",
)


@pytest.mark.parametrize("condition", HOSTILE, ids=range(len(HOSTILE)))
def test_what_no_condition_may_do(condition: str) -> None:
    """It is refused in a second, and the error says what is wrong; a harmless one holds, here and afterwards."""
    assert holds("n = 1") == [0]
    with pytest.raises(ConfigError) as caught:
        holds(condition)
    assert caught.value.message.startswith(("the condition", "the brackets"))
    assert holds("n = 1") == [0]


def test_a_wrong_condition_names_the_columns() -> None:
    with pytest.raises(ConfigError, match=r"no such column: prise\. Columns: n, text, price, at"):
        holds("prise > 1")


def test_a_condition_that_takes_too_long_is_ended() -> None:
    """By the clock, in the middle of the work; with time it is done."""
    rows = pa.record_batch({"n": pa.array(range(200), pa.int64())})
    heavy = " AND ".join(["length(hex(hex(hex(hex(n))))) >= 0"] * 40)
    assert len(holds(heavy, rows)) == 200
    with pytest.raises(WaitTimeout, match="takes too long"):
        holds(heavy, rows, seconds=-1.0)


def test_a_value_that_grows_without_bounds() -> None:
    """Ends at 32 MiB."""
    grows = "text"
    for _ in range(14):
        grows = f"hex({grows})"
    rows = pa.record_batch({"text": ["x" * 10_000]})
    assert holds("hex(text) = ''", rows) == []
    with pytest.raises(ConfigError, match="too big"):
        holds(f"{grows} = ''", rows)


def test_a_row_that_is_too_large_for_a_condition() -> None:
    """What the condition does not read may be of any size."""
    assert holds("length(text) > 1", pa.record_batch({"text": ["x" * MOST_BYTES]})) == [0]
    large = pa.record_batch({"text": ["x" * (MOST_BYTES + 8192)], "n": [7]})
    with pytest.raises(ConfigError, match="at most 1 MiB"):
        holds("length(text) > 1", large)
    assert holds("n = 7", large) == [0]


@pytest.mark.parametrize("name", ["trim", "ltrim", "rtrim"])
def test_trim_takes_no_set_of_characters(name: str) -> None:
    """Which takes time by the product of two lengths, in one step of SQLite's."""
    rows = pa.record_batch({"text": [" x "]})
    assert holds(f"length({name}(text)) < 3", rows) == [0]
    with pytest.raises(ConfigError, match="take one argument here"):
        holds(f"{name}(text, 'x') = 'x'", rows)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("instr(text, 'b')", [0, 1]),
        ("instr(text, 'B') = 0", [0, 1]),
        ("instr(text, 'bc') = 2", [0]),
        ("instr(raw, x'ff') = 2", [0]),
        ("instr(number, '5') = 2", [0, 1]),
        ("instr(none, 'a') IS NULL", [0, 1]),
        ("instr(text, NULL) IS NULL", [0, 1]),
    ],
)
def test_instr_is_as_in_sqlite(condition: str, found: list[int]) -> None:
    """Ours takes time by the sum of the lengths."""
    rows = pa.record_batch(
        {"text": ["abc", "äb"], "raw": [b"a\xff", b"b"], "number": [15, 25], "none": pa.nulls(2, pa.string())}
    )
    assert holds(condition, rows) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    "condition",
    [
        "({long}||n) LIKE '%{like}x'",
        "({long}||n) GLOB '*{glob}x'",
        "instr({long}||n, substr({long}||n, 1, 400000)||'x')",
        "substr({long}, n) = 'x'",
        "json_extract('['||{long}||']', '$[0]') OR json_valid({long}||n)",
        "CAST({long} AS TEXT) COLLATE DECIMAL > CAST(n AS TEXT)",
    ],
)
def test_no_condition_takes_much_longer_than_it_may(condition: str) -> None:
    """Values that a condition makes, as large as they can be."""
    long = f"{'hex(' * 19}'a'{')' * 19}"
    text = condition.format(long=long, like="3_" * 45, glob="[0-9]" * 18)
    rows = pa.record_batch({"n": list(range(200))})
    began = time.monotonic()
    with suppress(WaitTimeout, ConfigError):
        SqlCondition(text).numbers(rows, began + 0.5, time.monotonic)
    assert time.monotonic() - began < 5.0


def test_what_is_no_utf8_is_no_failure() -> None:
    """Of a value that the condition makes."""
    rows = pa.record_batch({"n": [1]})
    assert holds("n = 1", rows) == [0]
    with pytest.raises(ConfigError, match="not UTF-8"):
        holds("CAST(x'ff' AS TEXT) COLLATE DECIMAL > '1'", rows)


def test_columns_that_sqlite_cannot_have_are_said() -> None:
    """Names that are too long together; two that differ by a NUL alone become two."""
    rows = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a\x00"])
    assert holds("a = 1 AND a_2 = 2", rows) == [0]
    many = [f"{number:03}{'x' * 250}" for number in range(900)]
    with pytest.raises(ConfigError, match="cannot be used on these columns"):
        holds("1", pa.RecordBatch.from_arrays([pa.array([1])] * 900, names=many))


@pytest.mark.parametrize("names", [["a", "A", "a_2"], ["row_number", "rowid", "oid", "_rowid_"], ['x"y', "", "ä b"]])
def test_columns_of_any_name(names: list[str]) -> None:
    """Also those that SQLite has for itself, and those that differ in letter case alone."""
    rows = pa.RecordBatch.from_arrays([pa.array([place, 7]) for place in range(len(names))], names=names)
    assert holds("1", rows) == [0, 1]
    quoted = '"' + names[0].replace('"', '""') + '"'
    assert holds(f"{quoted} = 0", rows) == [0]


def test_several_record_batches() -> None:
    condition = SqlCondition("n % 2 = 0")
    until: tuple[Any, ...] = (time.monotonic() + SECONDS, time.monotonic)
    for first in (0, 3):
        rows = pa.record_batch({"n": [first, first + 1, first + 2]})
        assert condition.numbers(rows, *until) == [place for place in range(3) if (first + place) % 2 == 0]


TYPED = ("'", "[", "`", "n =", "n n", "(", "* FROM rows", "n COLLATE X = 1", "CAST(n AS)", "x''z", "0x", "1e999 = n")


@pytest.mark.parametrize("text", TYPED)
def test_every_error_is_ours(text: str) -> None:
    """Whatever is typed."""
    with suppress(ConfigError):
        holds(text)
