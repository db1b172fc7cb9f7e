"""A publisher that comes back with another schema, as Spark sees it (the rest: tests/bus/subscribing)."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.kit import Place, Received, run_to_end, running, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

INT = "cast(id as int) as id", "cast(id as string) as text", "named_struct('a', cast(id as int)) as s"
MORE = *INT, "id as new"
FEWER = "cast(id as int) as id", "named_struct('a', cast(id as int), 'b', nullif('x', 'y')) as s"
LONG = "id + 1099511627776 as id", "named_struct('b', nullif('x', 'y'), 'a', id) as s", "id as new"
WORD = "cast(id as string) as id", "cast(id as string) as text"
BIG = 1099511627776


def publish(spark: SparkSession, place: Place, topic: str, start: int, *expressions: str) -> None:
    """Publish ten rows, from ``start``, as a job that was just started."""
    sink = place.sink(topic, parallelism=2)
    sink(spark.range(start, start + 10, 1, 2).selectExpr(*expressions), 0)
    sink.close()


def ids(received: Received) -> list[int]:
    """Return the column ``id`` of all rows, as numbers."""
    return sorted(int(value) for _, table in sorted(received.batches.items()) for value in table["id"].to_pylist())


@pytest.mark.core
def test_a_publisher_that_evolves(spark: SparkSession, place: Place) -> None:
    """Case 60: columns come and go under a running query; a wider number ends it; after a restart old ones widen."""
    checkpoint = place.checkpoint("evolves")

    def stream() -> DataFrame:
        return place.stream(spark, "evolves", "billing", startingOffsets="earliest")

    publish(spark, place, "evolves", 0, *INT)
    received = Received()
    with running(stream(), received, checkpoint) as query:
        until(lambda: received.rows == 10 or query.exception(), "the first batch")
        publish(spark, place, "evolves", 10, *MORE)
        publish(spark, place, "evolves", 20, *FEWER)
        until(lambda: received.rows == 30 or query.exception(), "the next ones")
        publish(spark, place, "evolves", 30, *LONG)
        with pytest.raises(
            StreamingQueryException, match=r"SchemaMismatch: topic 'evolves', offset 3: .* id: pub"
        ) as e:
            query.awaitTermination(60)
    assert "id: published as bigint, asked for as int" in str(e.value)
    assert "s.a: published as bigint, asked for as int" in str(e.value)
    assert "Traceback" not in str(e.value).partition("SchemaMismatch")[2]
    assert ids(received) == list(range(30))
    tables = [table for _, table in sorted(received.batches.items())]
    assert {tuple(table.schema.names) for table in tables} == {("id", "text", "s")}
    assert [row for table in tables for row in table["text"].to_pylist()].count(None) == 10
    assert {frozenset(row) for table in tables for row in table["s"].to_pylist()} == {frozenset({"a"})}

    publish(spark, place, "evolves", 40, *INT)  # a backlog of old batches, with a newer one behind it
    publish(spark, place, "evolves", 50, *LONG)
    again = Received()
    run_to_end(stream(), again, checkpoint)
    assert ids(again) == [*range(40, 50), *range(BIG + 30, BIG + 40), *range(BIG + 50, BIG + 60)]
    rows = [row for _, table in sorted(again.batches.items()) for row in table.to_pylist()]
    assert all(row["s"] == {"b": "x" if row["id"] >= BIG else None, "a": row["id"] % BIG} for row in rows)
    assert all(row["new"] == (row["id"] % BIG if row["id"] >= BIG else None) for row in rows)


@pytest.mark.parametrize("evolution", ["compatible", "strict"])
def test_a_change_that_does_not_fit(spark: SparkSession, place: Place, evolution: str) -> None:
    """Case 60: the query ends at the boundary, all before it delivered once and acknowledged; the next run goes on."""
    topic, after = f"changes-{evolution}", {"compatible": WORD, "strict": MORE}[evolution]
    options = {"startingOffsets": "earliest", "schemaEvolution": evolution}
    for start in (0, 10):
        publish(spark, place, topic, start, *INT)
    stream = place.stream(spark, topic, "billing", **options)
    publish(spark, place, topic, 20, *after)
    received = Received()
    with (
        running(stream, received, place.checkpoint(topic), availableNow=True) as query,
        pytest.raises(StreamingQueryException, match=f"SchemaMismatch: topic '{topic}', offset 2: "),
    ):
        query.awaitTermination(60)
    assert ids(received) == list(range(20))
    with place.publisher(topic, parallelism=2) as publisher:
        (line,) = publisher.status()["subscriptions"]
        assert line["position"] == 2
    run_to_end(place.stream(spark, topic, "billing", **options), received, place.checkpoint(topic))
    assert ids(received) == list(range(30))
    assert received.replayed == []


def test_topics_merged(spark: SparkSession, place: Place) -> None:
    """Two topics of different schemas are one stream of all their columns."""
    publish(spark, place, "merged-a", 0, *INT)
    publish(spark, place, "merged-b", 10, *LONG)
    stream = place.stream(spark, "merged-a,merged-b", "m", startingOffsets="earliest", mergeSchema=True)
    assert stream.dtypes == [
        ("id", "bigint"),
        ("text", "string"),
        ("s", "struct<a:bigint,b:string>"),
        ("new", "bigint"),
    ]
    received = Received()
    run_to_end(stream, received, place.checkpoint("merged"))
    rows = sorted((row for table in received.batches.values() for row in table.to_pylist()), key=lambda row: row["id"])
    first = [{"id": n, "text": str(n), "s": {"a": n, "b": None}, "new": None} for n in range(10)]
    second = [{"id": BIG + n, "text": None, "s": {"a": n, "b": "x"}, "new": n} for n in range(10, 20)]
    assert rows == first + second
    assert place.read(spark, "merged-b,merged-a", mergeSchema=True).where("text is null").count() == 10
