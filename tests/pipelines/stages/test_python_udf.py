"""The user's functions of rows and record batches: what they make, and which rows are dead."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import DoubleType, LongType, StringType, StructType

from jobpipe.errors import ConfigError, TooManyDeadLetters
from jobpipe.pipelines.plugins.api import DEAD, DEAD_TYPE, ORIGIN, SOURCE, UNPARSED
from jobpipe.pipelines.transforms import python_udf
from jobpipe.pipelines.transforms.python_udf import BatchCalls, PythonUdf, RowCalls, require_returns, with_dead
from jobpipe.spark.schema.spark_arrow_schema import arrow_schema

COLUMNS = StructType().add("id", LongType()).add("half", DoubleType())
ORIGINS = pa.struct(
    {
        "topic": pa.string(),
        "offset": pa.int64(),
        "partition": pa.int32(),
        "row_number": pa.int64(),
        "published_ms": pa.int64(),
        "file": pa.string(),
    }
)
Rows = list[dict[str, Any]]


def batch(*ids: Any, **more: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), **more})


def called(calls: PythonUdf, *batches: pa.RecordBatch) -> Rows:
    """Return the rows of what comes out, which must have the columns that it says it has."""
    made = list(calls(iter(batches)))
    schema = with_dead(COLUMNS) if calls._tolerant else COLUMNS
    for each in made:
        assert [(field.name, field.type) for field in each.schema] == [
            (field.name, field.type) for field in arrow_schema(schema)
        ]
    return [row for each in made for row in each.to_pylist()]


def rows(function: Callable[..., Any], *, tolerant: bool = False, **options: Any) -> RowCalls:
    return RowCalls(function, options, COLUMNS, tolerant=tolerant)


def batches(function: Callable[..., Any], *, tolerant: bool = False, **options: Any) -> BatchCalls:
    return BatchCalls(function, options, COLUMNS, tolerant=tolerant)


def half(row: dict[str, Any], by: int = 2) -> dict[str, Any]:
    if row["id"] < 0:
        raise ValueError(f"negative: {row['id']}")
    return {"id": row["id"], "half": row["id"] / by}


def halves(found: pa.RecordBatch, by: int = 2) -> pa.RecordBatch:
    if any(id_ < 0 for id_ in found["id"].to_pylist()):
        raise ValueError("negative")
    return pa.RecordBatch.from_pydict({"half": pa.array([i / by for i in found["id"].to_pylist()]), "id": found["id"]})


def test_each_row() -> None:
    assert called(rows(half, by=4), batch(1, 2), batch(3)) == [
        {"id": 1, "half": 0.25},
        {"id": 2, "half": 0.5},
        {"id": 3, "half": 0.75},
    ]


@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize("several", [list, tuple])
def test_a_row_several_or_none(tolerant: bool, several: Any) -> None:
    made = {0: None, 1: several([]), 2: {"id": 2}, 3: several([{"id": 3}, None, {"half": 1.5, "more": "x"}])}
    found = called(rows(lambda row: made[row["id"]], tolerant=tolerant), batch(0, 1, 2, 3))
    assert [(row["id"], row["half"]) for row in found] == [(2, None), (3, None), (None, 1.5)]
    assert [row.get(DEAD) for row in found] == [None, None, None]


@pytest.mark.parametrize("returned", ["text", "id", 7, [["id"]], [7], ("text",), iter([])])
def test_what_is_no_row_is_an_error(returned: Any) -> None:
    """A text would pass for a row of nulls."""
    with pytest.raises(TypeError, match="a row is a dict"):
        called(rows(lambda row: returned), batch(1))
    (found,) = called(rows(lambda row: returned, tolerant=True), batch(1))
    assert found[DEAD]["row"] == '{"id": 1}'


@pytest.mark.parametrize("tolerant", [False, True])
def test_rows_of_spark_are_rows(tolerant: bool) -> None:
    """Alone, and in a list; one without names is no row."""
    made = {1: Row(id=1, half=0.5), 2: [Row(id=2), {"id": 3}]}
    found = called(rows(lambda row: made[row["id"]], tolerant=tolerant), batch(1, 2))
    assert [(row["id"], row["half"]) for row in found] == [(1, 0.5), (2, None), (3, None)]
    with pytest.raises(TypeError):
        called(rows(lambda row: Row(1, 2)), batch(1))


def yields(row: Any) -> Any:
    yield row


async def waits(row: Any) -> Any:
    return row


async def waits_and_yields(row: Any) -> Any:
    yield row


class Yields:
    """An object that is called."""

    def __call__(self, row: Any) -> Any:
        yield row


@pytest.mark.parametrize("function", [yields, Yields(), partial(yields)])
def test_a_generator_is_refused(function: Any) -> None:
    """It returns no row; in a job with dead letters each row would be one."""
    with pytest.raises(ConfigError, match="own:rows is a generator: it yields; let it return a list"):
        require_returns(function, "own:rows")


@pytest.mark.parametrize("function", [waits, waits_and_yields])
def test_what_is_asynchronous_is_refused(function: Any) -> None:
    with pytest.raises(ConfigError, match="own:rows is asynchronous"):
        require_returns(function, "own:rows")


@pytest.mark.parametrize("function", [half, lambda row: row, dict, partial(half, by=3)])
def test_other_functions_are_not(function: Any) -> None:
    require_returns(function, "own:rows")


def test_one_bad_row_is_the_end_of_all() -> None:
    with pytest.raises(ValueError, match="negative: -2"):
        called(rows(half), batch(1, -2, 3))


def test_bad_rows_are_dead() -> None:
    found = called(rows(half, tolerant=True), batch(-1, 2, 3, -4, -5, 6))
    assert [(row["id"], row["half"]) for row in found if row[DEAD] is None] == [(2, 1.0), (3, 1.5), (6, 3.0)]
    assert [row["id"] for row in found] == [None, 2, 3, None, None, 6]
    assert [row[DEAD] for row in found if row[DEAD] is not None] == [
        {
            "row": json.dumps({"id": id_}),
            "error_class": "ValueError",
            "error_message": f"negative: {id_}",
            "topic": None,
            "offset": None,
            "partition": None,
            "row_number": None,
            "published_ms": None,
            "file": None,
            "source_row": None,
        }
        for id_ in (-1, -4, -5)
    ]


def test_what_does_not_fit_is_dead() -> None:
    found = called(rows(lambda row: {"id": "x" if row["id"] == 2 else row["id"]}, tolerant=True), batch(1, 2, 3))
    assert [row["id"] for row in found] == [1, None, 3]
    assert (found[1][DEAD]["row"], found[1][DEAD]["error_class"]) == ('{"id": 2}', "ArrowInvalid")


def test_of_several_rows_all_or_none() -> None:
    found = called(rows(lambda row: [{"id": 1}, {"id": "x"}], tolerant=True), batch(7))
    assert [(row["id"], row[DEAD]["row"]) for row in found] == [(None, '{"id": 7}')]


def origins(count: int) -> pa.Array:
    values = [{"topic": "t", "offset": 5, "partition": 0, "row_number": number} for number in range(count - 1)]
    return pa.array([*values, None], ORIGINS)


@pytest.mark.parametrize("make", [rows, batches])
def test_where_rows_come_from_is_not_the_function_s(make: Any) -> None:
    seen: set[str] = set()

    def look(found: Any) -> Any:
        seen.update(found if isinstance(found, dict) else found.schema.names)
        raise ValueError("bad")

    given = batch(
        1, 2, 3, **{ORIGIN: origins(3), UNPARSED: pa.nulls(3, pa.string()), "text": pa.array(["ä", '"', "c"])}
    )
    found = called(make(look, tolerant=True), given)
    assert seen == {"id", "text"}
    assert [json.loads(row[DEAD]["row"]) for row in found] == [
        {"id": 1, "text": "ä"},
        {"id": 2, "text": '"'},
        {"id": 3, "text": "c"},
    ]
    assert "ä" in found[0][DEAD]["row"]
    assert [(row[DEAD]["topic"], row[DEAD]["offset"], row[DEAD]["row_number"]) for row in found] == [
        ("t", 5, 0),
        ("t", 5, 1),
        (None, None, None),
    ]


def test_the_row_of_the_source_goes_into_the_letter() -> None:
    """Where a stage before has changed the columns; also a value that Python does not have."""
    far = pa.array([253402300800000000, None], pa.timestamp("us", tz="UTC"))
    source = pa.StructArray.from_arrays([pa.array(["1.50", None]), far], names=["id", "at"])
    columns = [pa.array(["t", "t"]), pa.array([5, 6]), pa.array([0, 1], pa.int32()), pa.array([2, 3]), source]
    names = ["topic", "offset", "partition", "row_number", SOURCE]
    given = batch(-1, -2, **{ORIGIN: pa.StructArray.from_arrays(columns, names=names)})
    found = [row[DEAD] for row in called(rows(half, tolerant=True), given)]
    assert [json.loads(each["row"]) for each in found] == [{"id": -1}, {"id": -2}]
    assert [(each["offset"], each["partition"], each["row_number"]) for each in found] == [(5, 0, 2), (6, 1, 3)]
    first, second = (json.loads(each["source_row"]) for each in found)
    assert first["id"] == "1.50"
    assert "10000-01-01" in first["at"]
    assert second == {"id": None, "at": None}


def test_values_that_json_has_not_are_texts() -> None:
    """As Spark's to_json has them: whole, and such that from_json reads them."""
    given = batch(
        -1,
        day=pa.array([date(2013, 1, 1)]),
        at=pa.array([1_000_000_000_000_001], pa.timestamp("us", "UTC")),
        local=pa.array([1_000_000_000_000_000], pa.timestamp("us")),
        raw=pa.array([b"\xff\x00"]),
        none=pa.nulls(1, pa.string()),
    )
    (found,) = called(rows(half, tolerant=True), given)
    assert json.loads(found[DEAD]["row"]) == {
        "id": -1,
        "day": "2013-01-01",
        "at": "2001-09-09T01:46:40.000001+00:00",
        "local": "2001-09-09T01:46:40.000000",
        "raw": "/wA=",
        "none": None,
    }


def no_json(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.parametrize("make", [rows, batches])
def test_numbers_that_json_has_not_are_the_texts_of_spark(make: Any) -> None:
    """Q10: NaN and infinities, of 64 and 32 bits, also inside; with a day before the year 1, and bytes as a key."""
    single = pa.array([0.1, float("nan"), float("inf")], pa.float32())
    given = batch(
        -1,
        amount=pa.array([float("nan")]),
        single=pa.array([float("inf")], pa.float32()),
        inside=pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 3], single), pa.array([None])], ["x", "y"]),
        days=pa.array([[-800_000]], pa.list_(pa.int32())).cast(pa.list_(pa.date32())),
        names=pa.array([[(b"a", float("-inf"))]], pa.map_(pa.binary(), pa.float64())),
    )
    (found,) = called(make(half if make is rows else lambda _: 1 / 0, tolerant=True), given)
    assert json.loads(found[DEAD]["row"], parse_constant=no_json) == {
        "id": -1,
        "amount": "NaN",
        "single": "Infinity",
        "inside": {"x": [0.1, "NaN", "Infinity"], "y": None},
        "days": ["-0221-09-04"],
        "names": {"YQ==": "-Infinity"},
    }


def test_a_long_message_is_cut() -> None:
    def fail(row: dict[str, Any]) -> None:
        raise ValueError("x" * 100_000)

    (found,) = called(rows(fail, tolerant=True), batch(1))
    assert found[DEAD]["error_message"] == "x" * python_udf.TEXT_MOST


@pytest.mark.parametrize("make", [RowCalls, BatchCalls])
def test_secrets_are_not_in_a_message(make: type[PythonUdf]) -> None:
    """Also where one is a part of another one, and where the message is cut."""

    def fail(_: Any, password: str, **more: Any) -> None:
        raise ValueError(f"no access by {password}: {more}" + "x" * python_udf.TEXT_MOST)

    options = {"password": "open", "token": "open sesame", "empty": ""}
    (found,) = called(make(fail, options, COLUMNS, tolerant=True, secrets=options.values()), batch(1))
    assert found[DEAD]["error_message"].startswith("no access by ***: {'token': '***', 'empty': ''}xxx")


@pytest.mark.parametrize("tolerant", [False, True])
def test_each_record_batch(tolerant: bool) -> None:
    found = called(batches(halves, tolerant=tolerant, by=4), batch(1, 2), batch(3))
    assert [(row["id"], row["half"]) for row in found] == [(1, 0.25), (2, 0.5), (3, 0.75)]


@pytest.mark.parametrize("tolerant", [False, True])
def test_a_table_or_none(tolerant: bool) -> None:
    def function(found: pa.RecordBatch) -> pa.Table | None:
        return None if found.num_rows == 1 else pa.Table.from_batches([halves(found), halves(found)])

    found = called(batches(function, tolerant=tolerant), batch(1), batch(2, 3))
    assert [row["id"] for row in found] == [2, 3, 2, 3]


@pytest.mark.parametrize(
    "bad", [[], [0], [99], [0, 99], [49, 50], [3, 4, 5, 60], list(range(0, 100, 7)), list(range(100))]
)
def test_halving_finds_exactly_the_bad_rows(bad: list[int]) -> None:
    ids = [-1 - number if number in bad else number for number in range(100)]
    found = called(batches(halves, tolerant=True), batch(*ids))
    assert [row["id"] for row in found if row[DEAD] is None] == [number for number in range(100) if number not in bad]
    assert [json.loads(row[DEAD]["row"])["id"] for row in found if row[DEAD] is not None] == [-1 - i for i in bad]
    order = [row["id"] if row[DEAD] is None else json.loads(row[DEAD]["row"])["id"] for row in found]
    assert order == ids


def test_a_batch_that_is_bad_as_a_whole_fails() -> None:
    with pytest.raises(ValueError, match="negative"):
        called(batches(halves), batch(1, -2))


def test_columns_that_are_missing_are_an_error() -> None:
    with pytest.raises(KeyError):
        called(batches(lambda found: found), batch(1, 2))
    found = called(batches(lambda found: found, tolerant=True), batch(1, 2))
    assert [row[DEAD]["error_class"] for row in found] == ["KeyError", "KeyError"]


def test_too_many_dead_rows_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_udf, "DEAD_MOST", 3)
    assert len(called(batches(halves, tolerant=True), batch(-1, -2, -3), batch(-4))) == 4
    with pytest.raises(TooManyDeadLetters, match=r"more than 3 rows .* give a row-function, or set spark") as told:
        called(batches(halves, tolerant=True), batch(-1, -2, 1, -3, -4))
    assert isinstance(told.value.__cause__, ValueError)


@pytest.mark.parametrize("make", [rows, batches])
@pytest.mark.parametrize("tolerant", [False, True])
def test_nothing(make: Any, tolerant: bool) -> None:
    assert called(make(lambda found: None, tolerant=tolerant)) == []
    assert called(make(lambda found: None, tolerant=tolerant), batch()) == []


def test_a_function_that_cannot_take_an_empty_batch() -> None:
    def first(found: pa.RecordBatch) -> pa.RecordBatch:
        return halves(found.slice(0, found["id"][0].as_py()))

    assert called(batches(first, tolerant=True), batch()) == []
    with pytest.raises(IndexError):
        called(batches(first), batch())


def test_calls_go_to_other_processes() -> None:
    import pickle

    assert called(pickle.loads(pickle.dumps(rows(half, by=4))), batch(1)) == [{"id": 1, "half": 0.25}]  # noqa: S301


def test_columns_of_dead_rows_may_be_null() -> None:
    found = with_dead(StructType().add("id", LongType(), False).add("name", StringType()))
    assert [(field.name, field.nullable) for field in found] == [("id", True), ("name", True), (DEAD, True)]


def test_dead_rows_are_of_the_type_that_plug_ins_are_told_of() -> None:
    """Tasks have no session that could read it."""
    (dead,) = with_dead(StructType())
    assert dead.dataType.simpleString() == DEAD_TYPE.lower().replace(" ", "")


FAR = pa.array([None, 253_402_300_800_000_000, 0], pa.timestamp("us"))  # the middle one is in the year 10000
FAR_INSIDE = pa.StructArray.from_arrays([FAR], ["at"])


@pytest.mark.parametrize("make", [rows, batches])
@pytest.mark.parametrize(("far", "told"), [(FAR, "10000-01-01 00:00:00"), (FAR_INSIDE, "10000-01-01 00:00:00")])
def test_a_value_that_python_does_not_have(make: Any, far: pa.Array, told: str) -> None:
    """Of rows its own is dead; a batch function never makes Python's of it, and only its dead letter is to be told."""
    given = batch(1, 2, 3, far=far, name=pa.array(["a", "ä", "c"]))
    found = called(make(half if make is rows else lambda _: 1 / 0, tolerant=True), given)
    dead = [row[DEAD] for row in found if row[DEAD] is not None]
    if make is rows:
        assert [row["id"] for row in found] == [1, None, 3]
        (letter,) = dead
        assert letter["error_class"] == "OverflowError"
    else:
        _, letter, _ = dead
        assert [each["error_class"] for each in dead] == ["ZeroDivisionError"] * 3
    row = json.loads(letter["row"])
    assert (row["id"], row["name"]) == (2, "ä")
    assert told in json.dumps(row["far"])


@pytest.mark.parametrize("make", [rows, batches])
def test_a_value_that_python_does_not_have_fails_a_job_without_tolerance(make: Any) -> None:
    with pytest.raises((OverflowError, ZeroDivisionError)):
        called(make(half if make is rows else lambda _: 1 / 0), batch(1, 2, 3, far=FAR))


class MuteError(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise KeyError("text")


@pytest.mark.parametrize("make", [rows, batches])
@pytest.mark.parametrize(
    ("error", "told"),
    [(ValueError("bad \ud800 ä"), "bad \\ud800 ä"), (MuteError(), "it has no text: its __str__ raises KeyError")],
)
def test_messages_that_are_no_text(make: Any, error: Exception, told: str) -> None:
    def fail(_: Any) -> None:
        raise error

    (found,) = called(make(fail, tolerant=True), batch(1))
    assert (found[DEAD]["error_class"], found[DEAD]["error_message"]) == (type(error).__name__, told)
