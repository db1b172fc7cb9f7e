"""S7: a topic's schema comes from its publisher, and is judged before Spark or Arrow builds types of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    DecimalType,
    GeographyType,
    GeometryType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimeType,
    VarcharType,
)

from jobpipe.errors import UnsupportedType
from jobpipe.spark.schema.json_schemas import parse_spark_schema
from jobpipe.spark.schema.spark_arrow_schema import PASSING, published_schema
from jobpipe.spark.session import spark_versions
from tests.security.fuzzing.test_arrow import Secretive

ARROW = pa.schema([("a", pa.int64())]).serialize().to_pybytes()


def of(kind: Any, **more: Any) -> str:
    field = {"name": "a", "type": kind, "nullable": True, "metadata": {}, **more}
    return json.dumps({"type": "struct", "fields": [field]})


def nested(kind: Any, how: str) -> Any:
    return {
        "array": {"type": "array", "elementType": kind, "containsNull": True},
        "key": {"type": "map", "keyType": kind, "valueType": "long", "valueContainsNull": True},
        "value": {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": True},
        "struct": {"type": "struct", "fields": [{"name": "x", "type": kind, "nullable": True}]},
        "top": kind,
    }[how]


@pytest.mark.parametrize("how", ["top", "array", "key", "value", "struct"])
def test_a_user_defined_type_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """S7: the name of a class in a schema was imported at the subscriber."""
    (tmp_path / "jobpipe_hostile_module.py").write_text("raise SystemExit('the publisher chose what runs here')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    udt = {"type": "udt", "class": None, "pyClass": "jobpipe_hostile_module.X", "sqlType": "long"}
    with pytest.raises(UnsupportedType, match=r"topic 'orders': .*user-defined type.*publish") as caught:
        published_schema("orders", ARROW, of(nested(udt, how)))
    assert caught.value.fields["topic"] == "orders"
    assert "jobpipe_hostile_module" not in sys.modules


def test_an_extension_type_is_refused_before_its_code_runs() -> None:
    """S7: of a publisher without Spark, whose schema is Arrow's; a type that the reader has registered, or has not."""
    kind = Secretive()
    arrow = pa.schema([("a", pa.list_(kind))]).serialize().to_pybytes()
    with pytest.raises(UnsupportedType, match=r"topic 'orders': .*extension type"):
        published_schema("orders", arrow, None)
    pa.register_extension_type(kind)
    try:
        before = Secretive.loaded
        with pytest.raises(UnsupportedType, match="extension type"):
            published_schema("orders", arrow, None)
        assert Secretive.loaded == before
    finally:
        pa.unregister_extension_type("jobpipe.test.secretive")


def deep(levels: int) -> Any:
    kind: Any = "long"
    for _ in range(levels):
        kind = nested(kind, "array")
    return kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "1",
        '"struct"',
        '{"type": "struct"}',
        '{"type": "struct", "fields": {}}',
        '{"type": "struct", "fields": [1]}',
        '{"type": "array", "elementType": "long", "containsNull": true}',
        of("no such type"),
        of("interval"),
        of("decimal(" + "9" * 5000 + ",2)"),
        of("geometry(NO:0)"),
        of(1),
        of(None),
        of(["struct"]),
        of({"type": ["struct"]}),
        of({"type": "array"}),
        of("long", name=7),
        of("long", nullable="yes"),
        of("long", metadata=[]),
        of("string", metadata={"__COLLATIONS": {"a": "os.system"}}),
        of("string", metadata={"__COLLATIONS": 7}),
        of({"type": "class", "name": "x"}),
        of(deep(70)),
        "[" * 200_000,
        '{"type": "struct", "fields": [' + " " * (9 << 20) + "]}",
    ],
    ids=lambda text: text[:60] + f"… {len(text)}",
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedType, match="topic 'orders'"):
        published_schema("orders", ARROW, text)


@pytest.mark.parametrize("arrow", [b"", b"x", ARROW[:-9], b"\xff\xff\xff\xff\x10\x00\x00\x00" + b"\x00" * 16])
def test_what_is_no_arrow_schema_is_refused(arrow: bytes) -> None:
    with pytest.raises(UnsupportedType, match="topic 'orders'"):
        published_schema("orders", arrow, None)


def test_every_type_that_passes_is_known() -> None:
    """What the sink publishes, the source understands."""
    special = {GeometryType: GeometryType(4326), GeographyType: GeographyType(4326)}
    kinds = [special.get(kind) or kind() for kind in PASSING]
    kinds += [DecimalType(38, 0), DecimalType(5, 5), StringType("UTF8_LCASE"), StringType("UNICODE_CI"), VarcharType(3)]
    kinds += [DayTimeIntervalType(0, 1), DayTimeIntervalType(2, 2), TimeType(3), GeographyType("ANY")]
    kinds += [ArrayType(StringType("UNICODE"), False), MapType(IntegerType(), ArrayType(StringType()), False)]
    schema = StructType([StructField(f"c{n}", kind, n % 2 == 0, {"n": n}) for n, kind in enumerate(kinds)])
    schema = StructType([StructField("s", schema), *schema.fields])
    assert parse_spark_schema("orders", schema.json()) == schema


def test_a_type_of_a_later_spark_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher may run a newer version than its subscriber: the error names the column."""
    schema = StructType.fromJson(
        {
            "type": "struct",
            "fields": [{"name": "day", "type": {"type": "array", "elementType": "time(6)", "containsNull": True}}],
        }
    )
    assert parse_spark_schema("orders", schema.json()) == schema
    monkeypatch.setattr(spark_versions, "UNKNOWN_TYPES", frozenset(["time"]))
    with pytest.raises(UnsupportedType, match=r"column 'day\[\]' has the type 'time\(6\)', which began with a later"):
        parse_spark_schema("orders", schema.json())
