"""Watermarks over topics, and partitions, of different speed: what lags behind is not late (K5)."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.docs.pages import block
from tests.spark.kit import Place, running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
MINUTE = 60_000_000  # microseconds
WINDOW, DELAY = 5, 1  # minutes
LAST = 600  # far behind all others: it closes their windows
Totals = Counter[int]  # by minute at which a window begins


def events(minutes: Iterable[int]) -> pa.Table:
    """Return an event at each of these minutes; its value is the minute."""
    listed = list(minutes)
    times = pa.array([minute * MINUTE for minute in listed], pa.timestamp("us", "UTC"))
    return pa.table({"time": times, "value": pa.array(listed, pa.int64())})


def model(tables: Iterable[pa.Table]) -> Totals:
    """Return what no watermark could take away: the sum of each window."""
    totals: Totals = Counter()
    for table in tables:
        for minute in table["value"].to_pylist():
            totals[minute // WINDOW * WINDOW] += minute
    return totals


@contextmanager
def policy(spark: SparkSession, name: str | None) -> Iterator[None]:
    """Let queries that start now take this policy; None: Spark's default."""
    if name is not None:
        spark.conf.set(POLICY, name)
    try:
        yield
    finally:
        spark.conf.unset(POLICY)


def aggregated(
    place: Place, name: str, streams: list[DataFrame], steps: list[Callable[[], object]]
) -> tuple[Totals, int]:
    """Sum the streams up by windows while the steps publish; return the sums and the rows dropped."""
    marked = [stream.withWatermark("time", f"{DELAY} minutes") for stream in streams]
    events_of_all = functools.reduce(DataFrame.union, marked)
    summed = events_of_all.groupBy(F.window("time", f"{WINDOW} minutes")).agg(F.sum("value").alias("total"))
    return run(place, name, summed.selectExpr("window.start", "total"), steps)


def run(place: Place, name: str, summed: DataFrame, steps: list[Callable[[], object]]) -> tuple[Totals, int]:
    """Run a query in append mode while the steps publish; return the sum of each window and the rows dropped."""
    totals: Totals = Counter()

    def keep(df: DataFrame, batch_id: int) -> None:
        for row in df.select(F.unix_timestamp("start").alias("start"), "total").collect():
            assert row.start // 60 not in totals, "append mode gives a window once"
            totals[row.start // 60] = row.total

    with running(summed, keep, place.checkpoint(name)) as query:
        for step in steps:
            step()
            query.processAllAvailable()
        dropped = sum(
            operator.numRowsDroppedByWatermark for each in query.recentProgress for operator in each.stateOperators
        )
    return totals, dropped


FAST = [events(range(10 * step, 10 * step + 10)) for step in range(5)]  # ten minutes a step
SLOW = [events(range(2 * step, 2 * step + 2)) for step in range(5)]  # two, and published at every other step only


@pytest.mark.parametrize("chosen", [None, "max"])
def test_a_topic_that_lags_behind_is_not_late(spark: SparkSession, place: Place, chosen: str | None) -> None:
    """Each ``load()`` with a watermark of its own: by Spark's default policy, ``min``, no row is late; by ``max`` some.

    The slow topic's events lie up to 40 minutes behind the other's, where a delay of one minute is allowed.
    """
    tag = chosen or "min"
    with place.publisher(f"fast-{tag}") as fast, place.publisher(f"slow-{tag}") as slow, policy(spark, chosen):
        for publisher in (fast, slow):
            publisher.declare(events([]).schema)

        def publish(step: int) -> None:
            fast.seal("q", step, [FAST[step]])
            if step % 2 == 0:
                slow.seal("q", step, [pa.concat_tables(SLOW[max(step - 1, 0) : step + 1])])

        def close() -> None:
            fast.seal("q", 9, [events([LAST])])
            slow.seal("q", 9, [events([LAST])])

        topics = [publisher.topic for publisher in (fast, slow)]
        streams = [place.stream(spark, topic, f"by-{topic}", startingOffsets="earliest") for topic in topics]
        steps = [functools.partial(publish, step) for step in range(5)]
        totals, dropped = aggregated(place, f"topics-{tag}", streams, [*steps, close])
    everything = model([*FAST, *SLOW])
    if chosen == "max":
        assert dropped > 0
        assert totals.total() < everything.total()
    else:
        assert (totals, dropped) == (everything, 0)


@pytest.mark.parametrize("apart", [True, False])
def test_a_partition_that_lags_behind_is_not_late(spark: SparkSession, place: Place, apart: bool) -> None:
    """The same for partitions, where each has a ``load()`` by ``assign``; in one ``load()`` Spark has one watermark."""
    topic = f"uneven-{apart}".lower()
    with place.publisher(topic, parallelism=2) as publisher:
        publisher.declare(events([]).schema)
        streams = [
            spark.readStream.format("jobpipe")
            .options(**place.settings, name=f"{topic}-{numbers[0]}", startingOffsets="earliest")
            .option("assign", json.dumps({topic: numbers}))
            .load()
            for numbers in ([[1], [2]] if apart else [[1, 2]])
        ]
        steps = [functools.partial(publisher.seal, "q", step, [FAST[step], SLOW[step]]) for step in range(5)]
        steps.append(functools.partial(publisher.seal, "q", 9, [events([LAST]), events([LAST])]))
        totals, dropped = aggregated(place, topic, streams, list(steps))
    everything = model([*FAST, *SLOW])
    if apart:
        assert (totals, dropped) == (everything, 0)
    else:
        assert dropped > 0
        assert totals.total() < everything.total()


def test_the_example_of_the_page(spark: SparkSession, place: Place) -> None:
    """What docs/kafka.md tells to write, as it stands there but for the place of the registry."""
    code = block("docs/kafka.md", "event-time")
    with place.publisher("clicks") as clicks, place.publisher("sales") as sales:
        for publisher, tables in ((clicks, FAST), (sales, SLOW)):
            publisher.seal("q", 0, tables[:1])
        names = {"F": F, "spark": spark, "settings": place.settings}
        exec(code.replace('format("jobpipe")', 'format("jobpipe").options(**settings)'), names)  # noqa: S102 - our own
        steps = [
            lambda: clicks.seal("q", 1, [pa.concat_tables(FAST[1:])]),
            lambda: sales.seal("q", 1, [pa.concat_tables(SLOW[1:])]),
            lambda: (clicks.seal("q", 2, [events([LAST])]), sales.seal("q", 2, [events([LAST])])),
        ]
        totals, dropped = run(place, "example", names["totals"], steps)
    assert (totals, dropped) == (model([*FAST, *SLOW]), 0)
