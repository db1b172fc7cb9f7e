"""The built-in transforms of pipelines, on rows."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, NumberFormatException, SparkRuntimeException
from pyspark.sql import DataFrame, Row, SparkSession

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.api import DEAD, column_named
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.plugins.plugin_discovery import PlugInKind, Plugins

pytestmark = pytest.mark.spark

PLUGINS = Plugins()
Apply = Callable[..., DataFrame]


@pytest.fixture
def job(tmp_path: Path) -> JobContext:
    return JobContext(
        pipeline="shop", job="a", mode=Mode.BATCH, storage=str(tmp_path), folder=tmp_path, run=RunValues("r1")
    )


@pytest.fixture
def apply(job: JobContext) -> Apply:
    """Return ``apply(type, frame, options)``, after a check of the options."""

    def apply(type_: str, frame: DataFrame, _context: JobContext = job, **options: Any) -> DataFrame:
        kind = PLUGINS.find(PlugInKind.TRANSFORM, type_)
        made = kind(kind.parse({key.replace("__", "."): value for key, value in options.items()}, job.folder))
        assert list(made.check(Mode.BATCH)) == []
        return made.apply(frame, _context)

    return apply


@pytest.fixture
def people(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [(1, "ada", 36.5, None), (2, "ben", 20.0, True), (3, None, 50.0, False)],
        "id bigint, name string, age double, active boolean",
    )


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


@contextmanager
def session_zone(spark: SparkSession, zone: str) -> Iterator[None]:
    """Set the time zone of a session that tests share."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_cast(people: DataFrame, apply: Apply) -> None:
    """Spark's types and Kafka Connect's; the order of the columns stays."""
    found = apply("Cast", people, spec="age:int32,id:string,name:string")
    assert found.dtypes == [("id", "string"), ("name", "string"), ("age", "int"), ("active", "boolean")]
    assert rows(found)[0] == ("1", "ada", 36, None)
    assert apply("Cast", people, spec="age:INT64,id:Int8").dtypes[0::2] == [("id", "tinyint"), ("age", "bigint")]
    assert dict(apply("Cast", people, spec=["age:decimal(10,2)"]).dtypes)["age"] == "decimal(10,2)"
    assert dict(apply("Cast", people, spec={"age": "decimal(10,2)", "id": "int8"}).dtypes)["id"] == "tinyint"
    with pytest.raises(ConfigError, match="Cast: the rows have no column nosuch; there are id, name, age, active"):
        apply("Cast", people, spec="nosuch:int")


def test_cast_to_an_array_fails_as_a_whole(spark: SparkSession, job: JobContext) -> None:
    """With dead letters too: try_cast would make null of a value within it, and the row would pass without it."""
    frame = spark.sql("SELECT array('1', 'x') AS a, 'y' AS b")
    kind = PLUGINS.find(PlugInKind.TRANSFORM, "Cast")
    nested = kind(kind.parse({"spec": "a:array<int>"}, job.folder))
    assert nested.apply_tolerant(frame, job) is None
    with pytest.raises(NumberFormatException, match="CAST_INVALID_INPUT"):
        nested.apply(frame, job).collect()
    plain = kind(kind.parse({"spec": "b:int"}, job.folder)).apply_tolerant(frame, job)
    assert plain is not None
    assert [row[DEAD].error_message for row in plain.collect()] == ["column b does not fit int"]


GOOD_JSON = {
    '{"id":1,"name":"ada"}': (1, "ada", None, None),
    ' {"name":7, "other":1} ': (None, "7", None, None),
    '{"id":null}': (None, None, None, None),
    "{}": (None, None, None, None),
    '{"price":1.5,"at":{"day":"2026-11-27"}}': (None, None, Decimal("1.50"), Row(day=dt.date(2026, 11, 27))),
}
BAD_JSON = ("", "  ", "null", "[]", "1", "nul", '{"id":1', '{"id":"x"}', '{"id":3000000000}', '[{"id":1}]')
BAD_JSON += ('{"price":12345}', '{"at":{"day":"27.11.2026"}}', '{"at":[]}')
JSON_FIELDS = "id INT, name STRING, price DECIMAL(5, 2), at STRUCT<day: DATE> -- a comment"


@pytest.mark.parametrize("kind", ["string", "binary"])
def test_from_json(spark: SparkSession, apply: Apply, job: JobContext, kind: str) -> None:
    """Objects to structs; a text that does not fit fails the job, or makes its row a dead letter; null stays null."""
    good = [*GOOD_JSON, None]
    frame = spark.createDataFrame([(text, n) for n, text in enumerate(good)], "`a.b` STRING, n INT")
    bad = spark.createDataFrame([(text, n) for n, text in enumerate(BAD_JSON)], frame.schema)
    frame, bad = (each.select(column_named("a.b").cast(kind).alias("a.b"), "n") for each in (frame, bad))
    found = apply("FromJson", frame, field="a.b", schema=JSON_FIELDS)
    assert found.columns == ["a.b", "n"]
    assert [None if row[0] is None else tuple(row[0]) for row in found.collect()] == [*GOOD_JSON.values(), None]
    for number in range(len(BAD_JSON)):
        with pytest.raises(SparkRuntimeException, match=r"column a\.b is not a JSON object that fits the schema"):
            apply("FromJson", bad.where(f"n = {number}"), field="a.b", schema=JSON_FIELDS).collect()
    of = PLUGINS.find(PlugInKind.TRANSFORM, "FromJson")
    stage = of(of.parse({"field": "a.b", "schema": JSON_FIELDS, "target": "parsed"}, job.folder))
    both = stage.apply_tolerant(frame.unionAll(bad), job)
    assert both is not None
    marked = both.collect()
    assert [row[DEAD] is None for row in marked] == [True] * len(good) + [False] * len(BAD_JSON)
    assert [None if row["parsed"] is None else tuple(row["parsed"]) for row in marked[: len(good)]] == [
        *GOOD_JSON.values(),
        None,
    ]
    if kind == "string":
        assert [json.loads(row[DEAD].row)["a.b"] for row in marked[len(good) :]] == [*BAD_JSON]


def test_from_json_as_spark_reads_it(spark: SparkSession, apply: Apply, job: JobContext, tmp_path: Path) -> None:
    """With Spark's options, and fields from a file; bytes that are no UTF-8, and other columns, are refused."""
    (tmp_path / "fields").write_text("file: DATE\n")
    frame = spark.createDataFrame([('{"file":"27.11.2026"}',)], "value STRING")
    found = apply("FromJson", frame, field="value", schema="file:fields", options={"dateFormat": "dd.MM.yyyy"})
    assert rows(found) == [(Row(file=dt.date(2026, 11, 27)),)]
    halves = spark.createDataFrame([(b'{"name":"\xc3"}',)], "value BINARY")
    with pytest.raises(SparkRuntimeException, match="column value is not a JSON object"):
        apply("FromJson", halves, field="value", schema="name STRING").collect()
    with pytest.raises(ConfigError, match="column n is of type int: only texts, and bytes, are parsed"):
        apply("FromJson", spark.sql("SELECT 1 AS n"), field="n", schema="id INT")
    with pytest.raises(ConfigError, match="FromJson: the rows have no column nosuch; there are value"):
        apply("FromJson", frame, field="nosuch", schema="id INT")
    with pytest.raises(ConfigError, match="schema 'INT': give columns"):
        apply("FromJson", frame, field="value", schema="INT")


def test_filter(people: DataFrame, apply: Apply) -> None:
    """As Kafka Connect's: rows for which it is true are dropped; null is not true."""
    assert [row[0] for row in rows(apply("Filter", people, predicate="name = 'ada'"))] == [2, 3]
    assert [row[0] for row in rows(apply("Filter", people, predicate="name = 'ada'", negate=True))] == [1]


def test_mask_field(people: DataFrame, apply: Apply) -> None:
    """Values by their type; null stays null; only rows that the predicate means."""
    found = apply("MaskField", people, fields=["id", "name", "age", "active"])
    assert rows(found) == [(0, "", 0.0, None), (0, "", 0.0, False), (0, None, 0.0, False)]
    assert found.dtypes == people.dtypes
    only = apply("MaskField", people, fields="name", replacement="***", predicate="age < 30 OR active IS NULL")
    assert [row[1] for row in rows(only)] == ["***", "***", None]
    rest = apply("MaskField", people, fields="name", replacement="***", predicate="age < 30", negate=True)
    assert [row[1] for row in rows(rest)] == ["***", "ben", None]
    with pytest.raises(ConfigError, match="column active is of type boolean: only texts and numbers"):
        apply("MaskField", people, fields="active", replacement="x")


def test_mask_field_has_kafka_connects_empty_values(spark: SparkSession, apply: Apply) -> None:
    """Lists and maps without elements, and 1970, whatever the session's time zone; null where there is none."""
    frame = spark.sql(
        "SELECT array(named_struct('x', 1)) AS a, map('k', array(1)) AS m, date'2026-11-21' AS d, "
        "timestamp'2026-11-21 10:20:30' AS t, timestamp_ntz'2026-11-21 10:20:30' AS n, "
        "CAST(1.5 AS DECIMAL(5, 2)) AS c, named_struct('x', 1) AS s, CAST('a' AS BINARY) AS b, "
        "CAST(NULL AS ARRAY<INT>) AS none"
    )
    with session_zone(spark, "America/New_York"):
        found = apply("MaskField", frame, fields=frame.columns)
        assert found.dtypes == frame.dtypes
        told = found.selectExpr("a", "m", "string(d)", "unix_micros(t)", "string(n)", "string(c)", "s", "b", "none")
        assert rows(told) == [([], {}, "1970-01-01", 0, "1970-01-01 00:00:00", "0.00", None, None, None)]


def test_replace_field(people: DataFrame, apply: Apply) -> None:
    found = apply("ReplaceField", people, exclude="age", renames="id:key,name:who")
    assert found.columns == ["key", "who", "active"]
    assert apply("ReplaceField", people, include=["id", "age"], exclude="age").columns == ["id"]
    with pytest.raises(ConfigError, match="no column is left"):
        apply("ReplaceField", people, include="id", exclude="id")
    with pytest.raises(ConfigError, match="no column nosuch"):
        apply("ReplaceField", people, renames="nosuch:x")
    with pytest.raises(
        ConfigError, match="age would be renamed to id, and there is a column id that stays; exclude id"
    ):
        apply("ReplaceField", people, renames="age:id")
    assert apply("ReplaceField", people, renames="age:id", exclude="id").columns == ["name", "id", "active"]
    assert apply("ReplaceField", people, renames="age:id,id:age").columns == ["age", "name", "id", "active"]


def test_structs(people: DataFrame, apply: Apply) -> None:
    """HoistField, ExtractField and Flatten undo each other; dots and backquotes in names are no problem."""
    hoisted = apply("HoistField", people, field="all.of`it")
    assert hoisted.columns == ["all.of`it"]
    twice = apply("HoistField", hoisted, field="outer")
    assert rows(apply("Flatten", twice)) == rows(people)
    assert apply("Flatten", twice, delimiter="_").columns[0] == "outer_all.of`it_id"
    plain = apply("HoistField", people, field="person")
    assert rows(apply("ExtractField", plain, field="person")) == rows(people)
    assert apply("ExtractField", plain, field="person").columns == people.columns
    assert rows(apply("ExtractField", people, field="id")) == [(1,), (2,), (3,)]
    clash = people.selectExpr("id AS a_b", "named_struct('b', 1) AS a")
    with pytest.raises(ConfigError, match="two columns would be named a_b"):
        apply("Flatten", clash, delimiter="_")


def test_insert_field(people: DataFrame, apply: Apply) -> None:
    found = apply("InsertField", people, static__field="origin", static__value="shop")
    assert found.columns[-1] == "origin"
    assert {row[-1] for row in rows(found)} == {"shop"}
    some = apply("InsertField", people, static__field="origin", static__value="shop", predicate="id = 1")
    assert [row[-1] for row in rows(some)] == ["shop", None, None]
    with pytest.raises(ConfigError, match=r"includeMetadata: true\): the rows have no column _jobpipe"):
        apply("InsertField", people, topic__field="topic")
    told = people.selectExpr("*", "named_struct('topic', 't', 'partition', 1, 'offset', 7L) AS _jobpipe")
    with_topic = apply("InsertField", told, topic__field="topic", offset__field="at")
    assert [(row.topic, row.at) for row in with_topic.collect()] == [("t", 7)] * 3


@pytest.mark.parametrize(
    ("source", "options", "value"),
    [
        ("timestamp'2026-11-21 10:20:30.123456'", {"target__type": "unix"}, 1795256430123),
        (
            "timestamp'2026-11-21 10:20:30.123456'",
            {"target__type": "unix", "unix__precision": "seconds"},
            1795256430,
        ),
        (
            "timestamp'2026-11-21 10:20:30.123456'",
            {"target__type": "unix", "unix__precision": "nanoseconds"},
            1795256430123456000,
        ),
        ("1795256430123L", {"target__type": "string", "format": "yyyy-MM-dd HH:mm:ss.SSS"}, "2026-11-21 10:20:30.123"),
        ("1795256430", {"target__type": "Time", "unix__precision": "seconds"}, "10:20:30"),
        ("1795256430123L", {"target__type": "Date"}, dt.date(2026, 11, 21)),
        ("'21.11.2026'", {"target__type": "Date", "format": "dd.MM.yyyy"}, dt.date(2026, 11, 21)),
        ("date'2026-11-21'", {"target__type": "unix"}, 1795219200000),
        ("CAST(NULL AS BIGINT)", {"target__type": "Timestamp"}, None),
        ("-1L", {"target__type": "string", "format": "yyyy-MM-dd HH:mm:ss.SSS"}, "1969-12-31 23:59:59.999"),
        (
            "1795256430123456789L",
            {"target__type": "string", "format": "HH:mm:ss.SSSSSS", "unix__precision": "nanoseconds"},
            "10:20:30.123456",
        ),
        (
            "1795256430123456999L",
            {"target__type": "string", "format": "HH:mm:ss.SSSSSS", "unix__precision": "nanoseconds"},
            "10:20:30.123456",
        ),
        (
            "-1001L",
            {"target__type": "string", "format": "HH:mm:ss.SSSSSS", "unix__precision": "nanoseconds"},
            "23:59:59.999998",
        ),
        ("timestamp'9999-12-31 23:59:59.999999Z'", {"target__type": "unix"}, 253402300799999),
        ("timestamp'1969-12-31 23:59:59.999999Z'", {"target__type": "unix", "unix__precision": "seconds"}, -1),
        ("'2026-03-08 02:30:00'", {"target__type": "unix", "format": "yyyy-MM-dd HH:mm:ss"}, 1772937000000),
        ("'2026-03-08 02:30:00 +01:00'", {"target__type": "unix", "format": "yyyy-MM-dd HH:mm:ss XXX"}, 1772933400000),
        ("timestamp_ntz'2026-11-21 00:00:00'", {"target__type": "unix"}, 1795219200000),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_timestamp_converter(
    spark: SparkSession, apply: Apply, source: str, options: dict[str, Any], value: object, zone: str
) -> None:
    """Always in UTC. At the time of the text of 8 March clocks in New York go forward: there it does not exist."""
    frame = spark.sql(f"SELECT {source} AS t")
    with session_zone(spark, zone):
        ((found,),) = rows(apply("TimestampConverter", frame, field="t", **options))
        assert spark.conf.get("spark.sql.session.timeZone") == zone
    assert found == value


def test_timestamp_converter_of_other_types(people: DataFrame, apply: Apply) -> None:
    with pytest.raises(ConfigError, match="active is of type boolean, which is not a time"):
        apply("TimestampConverter", people, field="active", target__type="unix")
    with pytest.raises(ConfigError, match="name is a text: give its format"):
        apply("TimestampConverter", people, field="name", target__type="unix")


def temporary_views(spark: SparkSession) -> set[str]:
    """Their names; other tests of the same session have some too."""
    return {view.name for view in spark.catalog.listTables() if view.isTemporary}


def test_sql(people: DataFrame, apply: Apply, job: JobContext, spark: SparkSession) -> None:
    """A projection is what stands after SELECT; a query sees the rows as input, and the other sources."""
    before = temporary_views(spark)
    found = apply("sql", people, projection="* EXCEPT (age, active), upper(name) AS loud", filter="id < 3")
    assert rows(found) == [(1, "ada", "ADA"), (2, "ben", "BEN")]
    assert rows(apply("sql", people, filter="age > 40")) == [(3, None, 50.0, False)]
    assert rows(apply("sql", people, query="SELECT count(*) FROM input")) == [(3,)]
    towns = spark.createDataFrame([Row(id=1, town="London")])
    context = replace(job, views={"people": people, "towns": towns})
    once = apply("sql", people, projection="*, id + 1 AS a")
    again = apply("sql", apply("sql", once, query="SELECT *, a + 1 AS b FROM input"), projection="b, b + 1 AS c")
    assert rows(again)[0] == (3, 4)
    stream = spark.readStream.format("rate").load()
    assert apply("sql", apply("sql", stream, projection="value + 1 AS a"), projection="a").isStreaming
    assert temporary_views(spark) == before
    joined = apply("sql", people, context, query="SELECT name, town FROM people JOIN towns USING (id)")
    assert rows(joined) == [("ada", "London")]
    with pytest.raises(AnalysisException):
        apply("sql", people, projection="nosuch").collect()


def test_deduplicate_and_watermark(spark: SparkSession, people: DataFrame, apply: Apply) -> None:
    twice = people.union(people)
    assert sorted(row[0] for row in rows(apply("deduplicate", twice, keys="id"))) == [1, 2, 3]
    assert apply("watermark", people, column="id", delay="1 minute") is people  # which is no stream
    stream = spark.readStream.format("rate").load()
    assert apply("watermark", stream, column="timestamp", delay="1 minute").isStreaming
    kept = apply(
        "deduplicate",
        apply("watermark", stream, column="timestamp", delay="1 minute"),
        keys="value",
        **{"within-watermark": True},
    )
    assert kept.isStreaming
    with pytest.raises(ConfigError, match="deduplicate: the rows have no column key"):
        apply("deduplicate", people, keys="key")


def test_python(
    people: DataFrame, apply: Apply, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    """A function of the frame, of rows, of record batches; options are keyword arguments."""
    code = (
        "import pyarrow.compute as pc\n"
        "def older(frame, years): return frame.where(frame.age > years)\n"
        "def nothing(frame): return 5\n"
        "def each(row): yield row\n"
    )
    (tmp_path / "pipeline_functions.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = apply("python", people, function="pipeline_functions:older", options={"years": 30})
    assert [row[0] for row in rows(found)] == [1, 3]
    with pytest.raises(ConfigError, match="nothing returned int, not a DataFrame"):
        apply("python", people, function="pipeline_functions:nothing")
    with pytest.raises(ConfigError, match="pipeline_functions:nosuch cannot be imported: AttributeError"):
        apply("python", people, function="pipeline_functions:nosuch")
    with pytest.raises(ConfigError, match="pipeline_functions:each is a generator"):
        apply("python", people, **{"row-function": "pipeline_functions:each", "schema": "id int"})
    name = "tests.spark.pipelines.test_pipeline_transforms"
    twice = apply("python", people, **{"row-function": f"{name}:twice", "schema": "id int, name string"})
    assert sorted(rows(twice)) == [(1, "ada"), (1, "ada!"), (2, "ben"), (2, "ben!")]
    ids = apply("python", people, **{"batch-function": f"{name}:only_ids", "schema": "id int"})
    assert sorted(rows(ids)) == [(1,), (2,), (3,)]
    assert ids.dtypes == [("id", "int")]
    dotted = people.selectExpr("id", "name AS `user.name`", "named_struct('name', 1) AS user").toDF("id", "name", "a.b")
    named = apply("python", dotted, **{"row-function": f"{name}:twice", "schema": "id int, name string"})
    assert sorted(rows(named)) == sorted(rows(twice))
    assert apply("ExtractField", apply("HoistField", people, field="a`b"), field="a`b").columns == people.columns


def test_a_secret_is_not_in_a_dead_letter(people: DataFrame, job: JobContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_SECRET", "open sesame")
    kind = PLUGINS.find(PlugInKind.TRANSFORM, "python")
    options = {"password": "env:PIPELINE_SECRET", "place": "cave"}
    function = "tests.spark.pipelines.test_pipeline_transforms:refuse"
    given = {"row-function": function, "schema": "id int", "options": options}
    found = kind(kind.parse(given, job.folder)).apply_tolerant(people, job)
    assert {row[DEAD].error_message for row in found.collect()} == {"no access to cave by ***"}


def refuse(row: dict[str, Any], password: str, place: str) -> None:
    """Tell the secret."""
    raise ValueError(f"no access to {place} by {password}")


def twice(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Of a person with a name two rows, of others none."""
    if row["name"] is None:
        return None
    return [{"id": row["id"], "name": row["name"]}, {"id": row["id"], "name": row["name"] + "!"}]


def only_ids(batch: Any) -> Any:
    """A record batch with other types than the schema's."""
    return batch.select(["id"])
