"""Every Spark type that can pass, passes, with equal values; the others are refused by name.

The list of the types that pass, ``jobpipe.spark.schema.spark_arrow_schema.PASSING``, was made by trying: each is tried
here again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.testing.objects import ExamplePoint, ExamplePointUDT

from jobpipe import publisher, subscribe
from jobpipe.arrow import schema_validation
from jobpipe.arrow.schema_validation import MAX_DEPTH
from jobpipe.errors import ConfigError, RowTooLarge, SchemaMismatch, UnsupportedType
from jobpipe.spark.schema.spark_arrow_schema import PASSING, arrow_schema, check_types, spark_schema
from tests.arrow.test_schema_validation import CONVERTED
from tests.docs.troubleshooting import on_page
from tests.spark.kinds import VALUES, selected
from tests.spark.kit import Place, Received, run_to_end

pytestmark = pytest.mark.spark

REFUSED = {
    "year_month": ("interval '2-3' year to month", "interval year to month"),
    "calendar": ("make_interval(1, 2, 3, 4, 5, 6, 7.5)", "interval"),
    "in_a_struct": ("named_struct('deep', array(interval '1' year))", "interval year"),
    "in_a_map": ("map(interval '1' month, 1)", "interval month"),
}


def everything(spark: SparkSession) -> DataFrame:
    """Three rows with a column of each type: nulls and two values."""
    return spark.range(0, 3, 1, 2).selectExpr("id", *selected(tuple(VALUES)))


@contextmanager
def session_conf(spark: SparkSession, conf: dict[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key) for key in conf}
    for key, value in conf.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            assert old is not None
            spark.conf.set(key, old)


def _values(df: DataFrame) -> dict[str, list[str]]:
    """Values by column: a difference names its column. The types compared have no equality, but all a true repr."""
    rows = sorted(df.collect(), key=lambda row: row["id"])
    return {name: [repr(row[name])[:300] for row in rows] for name in df.columns}


CONFS: dict[str, dict[str, str]] = {
    "plain": {},
    "large types, other zone": {
        "spark.sql.session.timeZone": "America/Los_Angeles",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    },
}
CORE = {("collect", "plain"), ("tasks", "large types, other zone")}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        pytest.param(path, name, marks=pytest.mark.core if (path, name) in CORE else ())
        for path in ("collect", "tasks")
        for name in CONFS
    ],
)
def test_types_pass(spark: SparkSession, place: Place, path: str, name: str) -> None:
    """What one side writes the other side has: the types, nullability included, and the values."""
    conf = CONFS[name]
    topic = f"types-{path}-{len(conf)}"
    with session_conf(spark, conf):
        source = everything(spark)
        sink = place.sink(topic, parallelism=2, partition_by="id", write_path=path)
        sink(source, 0)
        assert sink.status()["sink"][path] == 1
        sink.close()
        expected = _values(source)
        read = place.read(spark, topic)
        assert [(f.name, f.dataType) for f in read.schema] == [(f.name, f.dataType) for f in source.schema]
        assert _values(read) == expected
        streamed: list[dict[str, list[str]]] = []
        run_to_end(
            place.stream(spark, topic, "types", startingOffsets="earliest"),
            lambda df, _: streamed.append(_values(df)),
            place.checkpoint(topic),
        )
        assert streamed == [expected]
    assert _values(place.read(spark, topic)) == _values(source)  # written in one session's zone, read in another's


@pytest.mark.core
def test_every_passing_type_is_tried(spark: SparkSession) -> None:
    """No type is promised that no test has seen."""
    tried = {type(field.dataType) for field in everything(spark).schema}
    assert set(PASSING) <= tried, set(PASSING) - tried


def test_char_and_varchar_are_strings(spark: SparkSession, place: Place) -> None:
    """Rows have them as strings; in a declared schema they are taken as such, padding included."""
    spark.sql("create table fixed (c char(4), v varchar(4)) using parquet")
    try:
        spark.sql("insert into fixed values ('ab', 'cd'), (null, null)")
        sink = place.sink("chars", schema="c char(4), v varchar(4)", parallelism=1)
        sink(spark.table("fixed"), 0)
        read = place.read(spark, "chars")
        assert [field.dataType for field in read.schema] == [T.StringType(), T.StringType()]
        assert sorted(read.collect(), key=str) == sorted(spark.table("fixed").collect(), key=str)
        sink.close()
    finally:
        spark.sql("drop table fixed")


@pytest.mark.parametrize("name", REFUSED)
def test_types_refused(spark: SparkSession, place: Place, name: str) -> None:
    """A type that cannot pass is refused by column and type, by ``schema=`` and else at the first batch."""
    sql, kind = REFUSED[name]
    rows = spark.range(1).selectExpr("id", f"{sql} as bad")
    with pytest.raises(UnsupportedType, match=r"topic 'refused'.* bad.*interval") as caught:
        place.sink("refused", schema=rows.schema)
    assert list(caught.value.fields["columns"].values()) == [kind]
    sink = place.sink("refused")
    try:
        with pytest.raises(UnsupportedType, match=kind):
            sink(rows, 0)
        assert sink.status()["head"] == 0
    finally:
        sink.close()


def test_user_defined_type_is_refused(spark: SparkSession, place: Place) -> None:
    """Spark cannot unpickle a user's class in the process that makes data sources."""
    schema = T.StructType([T.StructField("p", T.ArrayType(ExamplePointUDT()))])
    rows = spark.createDataFrame([([ExamplePoint(1.0, 2.0)],)], schema)
    with pytest.raises(UnsupportedType) as caught:
        place.sink("refused", schema=rows.schema)
    assert list(caught.value.fields["columns"]) == ["p[]"]


def test_two_columns_of_one_name_are_refused(spark: SparkSession, place: Place) -> None:
    """Columns are told apart by name on the way."""
    sink = place.sink("doubled")
    with pytest.raises(UnsupportedType, match="two columns have the name id"):
        sink(spark.range(1).selectExpr("id", "id"), 0)
    sink.close()


def deep(depth: int, value: str) -> str:
    """Return an expression of a type that is nested so deep."""
    for _ in range(depth - 1):
        value = f"array({value})"
    return value


def test_what_some_reader_cannot_take_is_refused(spark: SparkSession, place: Place) -> None:
    """P5, P6, P9: names, depth and size, by both ways of declaring and by rows; nothing is published."""
    long = T.StructType([T.StructField("c", T.IntegerType(), True, {"comment": "x" * 9_000_000})])
    refused = [
        ("contains a NUL character", spark.range(1).toDF("a\0b")),
        ("contains a NUL character", spark.range(1).selectExpr("named_struct('a\0', id) AS s")),
        ("column 's': two fields have the name a", spark.range(1).selectExpr("named_struct('a', 1, 'a', 2) AS s")),
        (
            "column 'c' is nested 64 deep or more, and readers take 63",
            spark.range(1).selectExpr(f"{deep(64, 'id')} AS c"),
        ),
        (r"takes 9\d{6} bytes.*\(schema bytes\)", spark.createDataFrame([(1,)], long)),
    ]
    with session_conf(spark, {"spark.sql.legacy.allowNegativeScaleOfDecimal": "true"}):
        negative = T.StructType([T.StructField("c", T.DecimalType(5, -2))])
        refused.append((r"type of: c \(decimal\(5,-2\)\)", spark.createDataFrame([], negative)))
        sink = place.sink("not-for-all", parallelism=2)
        for why, rows in refused:
            with pytest.raises(UnsupportedType, match=f"topic 'not-for-all': .*{why}"):
                sink(rows, 0)
            with pytest.raises(UnsupportedType, match=f"topic 'declared-not': .*{why}"):
                place.sink("declared-not", schema=rows.schema)
        assert sink.status()["head"] == 0
        sink.close()


def test_a_row_that_no_reader_takes(spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """P7: refused where it is written, with row, column and limit."""
    monkeypatch.setattr(schema_validation, "ROW_MAX", 900)
    sink = place.sink("large-row", parallelism=1, write_path="collect")
    said = r"topic 'large-row', row 1: it has 10\d\d bytes, 10\d\d of them in column 'c', and a row may have 900"
    with pytest.raises(RowTooLarge, match=said) as caught:
        sink(spark.range(0, 3, 1, 1).selectExpr("id", "if(id = 1, repeat('x', 1000), 'y') AS c"), 0)
    on_page(caught.value, "RowTooLarge: topic '…', row")
    assert sink.status()["head"] == 0
    sink.close()


def test_what_a_plain_publisher_writes_is_read(spark: SparkSession, place: Place) -> None:
    """P5: each type of the table, with values, and the deepest and largest schema: Spark reads what was not refused."""
    topic = "by-a-plain-one"
    columns = {f"c{n}": pa.array([value, None], kind) for n, (kind, _, value, _) in enumerate(CONVERTED)}
    depth, metadata = pa.array([7], pa.int64()), {"comment": "x" * 1_900_000}
    for _ in range(MAX_DEPTH - 1):
        depth = pa.ListArray.from_arrays([0, 1], depth)
    struct = pa.array([7], pa.int64())
    for _ in range(MAX_DEPTH - 1):
        struct = pa.StructArray.from_arrays([struct], ["f"])
    deepest = pa.table(
        [depth, struct], schema=pa.schema([("l", depth.type), pa.field("s", struct.type, True, metadata)])
    )
    odd = {"zone": pa.array([0], pa.timestamp("us", "+02:00")), "fixed": pa.array([b"abc"], pa.binary(3))}
    for n, table in enumerate((pa.table(columns), deepest, pa.table(odd))):
        with publisher(f"{topic}-{n}", config=place.config()) as plain:
            plain.write(table)
            read = place.read(spark, f"{topic}-{n}")
            assert read.columns == table.schema.names
            values = [repr(value) for row in read.collect() for value in row]
            expected = schema_validation.readable(topic, table, schema_validation.readable_schema(topic, table.schema))
            if n != 1:
                assert len(values) == table.num_rows * table.num_columns
            assert read.toArrow().num_rows == expected.num_rows
            with subscribe(f"{topic}-{n}", name="p", starting="earliest", config=place.config()) as batches:
                assert pa.Table.from_batches([next(iter(batches))]).equals(expected)
    for kind, _, _, _ in CONVERTED:  # Spark's own table knows each type that ours gives
        readable_kind = schema_validation.readable_schema(topic, pa.schema([("c", kind)]))
        assert check_types(spark_schema(topic, readable_kind), topic) is None
    ours = schema_validation.readable_schema(
        topic, arrow_schema(everything(spark).schema)
    )  # and ours all that Spark's does
    assert ours.names == everything(spark).columns


# Every kind of name that Spark lets a column have; among them what jobpipe and Spark call columns themselves.
NAMES = [
    *(
        "user.id",
        "a.b.c",
        "a`b",
        "``",
        " ",
        "a b\t\n",
        "größe",
        "日本😀",
        "",
        "a,b;(x)",
        "'q\"",
        "x" * 5000,
        "\\",
        "1",
        "*",
    ),
    *("__jobpipe_partition", "c0", "c1", "task", "_jobpipe.topic", "select", "id", "struct<a:int>"),
]


@pytest.mark.parametrize("path", ["collect", "tasks"])
def test_columns_of_any_name(spark: SparkSession, place: Place, path: str) -> None:
    """P2: a dot is no path, and no name is one of ours; by both ways of writing, for readers of all kinds."""
    nested = "named_struct('a.b', id, '`', map('k.k', named_struct('', id))) AS `s.s`"
    rows = spark.range(0, 8, 1, 2).selectExpr("id AS first", *(f"id + {n} AS x{n}" for n in range(len(NAMES))), nested)
    rows = rows.toDF("first", *NAMES, "s.s")
    for n, key in enumerate(("user.id", "a`b", "x" * 5000, "__jobpipe_partition")):
        topic = f"names-{path}-{n}"
        sink = place.sink(topic, parallelism=4, partition_by=[key, "c0"], write_path=path, schema=rows.schema)
        sink(rows, 0)
        assert sink.status()["sink"][path] == 1
        sink.close()
        read = place.read(spark, topic, includeMetadata=True)
        assert read.columns == [*rows.columns, "_jobpipe"]
        assert sorted(read.drop("_jobpipe").collect()) == rows.collect()
        quoted = f"`{key.replace('`', '``')}`"
        assert read.where(f"_jobpipe.partition <> pmod(hash({quoted}, c0), 4)").count() == 0
    received = Received()
    fewer = rows.drop("user.id").withColumn("new.column", F.lit(None).cast("string")).schema
    stream = spark.readStream.format("jobpipe").schema(fewer).options(**place.settings)
    stream = stream.options(subscribe=topic, name="n", startingOffsets="earliest")
    run_to_end(stream.load(), received, place.checkpoint(topic))
    (table,) = received.batches.values()
    assert table.schema.names == fewer.names
    assert sorted(table["a.b.c"].to_pylist()) == [row["a.b.c"] for row in rows.collect()]
    assert table["new.column"].null_count == 8
    with subscribe(topic, name="p", starting="earliest", config=place.config()) as batches:
        batch = next(iter(batches))
        assert batch.schema.names == rows.columns


@pytest.mark.parametrize("path", ["collect", "tasks"])
def test_columns_whose_names_differ_by_case(spark: SparkSession, place: Place, path: str) -> None:
    """P2: with caseSensitive they are two columns, and so they are on the way."""
    rows = spark.range(9).selectExpr("id AS a", "id * 10 AS b", "id * 100 AS c").toDF("id", "ID", "Id")
    sink = place.sink(f"twins-{path}", parallelism=3, partition_by="ID", write_path=path)
    sink(rows, 0)
    sink.close()
    read = place.read(spark, f"twins-{path}", includeMetadata=True)
    assert read.columns == ["id", "ID", "Id", "_jobpipe"]
    assert read.count() == 9
    with session_conf(spark, {"spark.sql.caseSensitive": "true"}):
        read = place.read(spark, f"twins-{path}", includeMetadata=True)
        assert sorted(map(tuple, read.select("id", "ID", "Id").collect())) == [(n, n * 10, n * 100) for n in range(9)]
        assert read.where("_jobpipe.partition <> pmod(hash(ID), 3)").count() == 0


def test_partition_by_in_another_case(spark: SparkSession, place: Place) -> None:
    """Spark's repartition("ID") takes the column id, unless case counts; the sink does as Spark does."""
    sink = place.sink("cases", parallelism=3, partition_by=["ID", "KEY.A"], write_path="collect")
    rows = spark.range(9).selectExpr("id", "id + 1 AS `key.a`", "1 AS ok")
    with (
        session_conf(spark, {"spark.sql.caseSensitive": "true"}),
        pytest.raises(ConfigError, match=r"partition_by names ID, KEY\.A; each .* the columns id, key\.a, ok"),
    ):
        sink(rows, 0)
    sink(rows, 0)
    with pytest.raises(
        ConfigError, match=r"names ID; each name must match exactly one column, .*columns id, Id, key\.a"
    ):
        sink(spark.range(1).selectExpr("1 AS a", "2 AS b", "3 AS c").toDF("id", "Id", "key.a"), 1)
    sink.close()
    read = place.read(spark, "cases", includeMetadata=True)
    assert read.where("_jobpipe.partition <> pmod(hash(id, `key.a`), 3)").count() == 0
    assert read.count() == 9


def test_rows_that_do_not_fit_the_declared_schema(spark: SparkSession, place: Place) -> None:
    """Values that fit are cast; a wrong name and a value that does not fit are errors, and nothing is published."""
    sink = place.sink("declared", schema="id bigint, n int", parallelism=1, write_path="collect")
    with pytest.raises(SchemaMismatch, match=r"the declared columns are id, n; the rows have id, m"):
        sink(spark.range(2).selectExpr("id", "1 as m"), 0)
    with pytest.raises(SchemaMismatch, match="'n'"):
        sink(spark.range(2).selectExpr("id", "5000000000L as n"), 0)
    assert sink.status()["head"] == 0
    sink(spark.range(2).selectExpr("id", "5L as n"), 0)
    assert place.read(spark, "declared").dtypes == [("id", "bigint"), ("n", "int")]
    received = Received()
    run_to_end(place.stream(spark, "declared", "d", startingOffsets="earliest"), received, place.checkpoint("declared"))
    assert received.rows == 2
    sink.close()
