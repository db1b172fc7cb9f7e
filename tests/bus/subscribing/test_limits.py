"""How much a micro-batch takes, when it waits for more, and over how many tasks it is spread. No Spark, real links."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.spark.source.data_source import JobPipeDataSource
from jobpipe.spark.source.trigger_limits import MicroBatchLimits
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import ReadLimits
from jobpipe.testing import SCHEMA, Journal, NumberedRows
from tests.bus.kit import Bus
from tests.bus.query import Query, Topics

LATEST_SECONDS = 10.0  # one latestOffset; it waits a second at most


class Clock:
    """Monotonic seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class World(Topics):
    """Topics with record batches of a chosen size."""

    def open(self, letter: str, *, partitions: int = 2, rows: int = 40, payload: int = 16, **options: Any) -> Publisher:
        """Open a topic whose batches have ``rows`` rows in each partition."""
        name = self.name(letter)
        self.rows[letter] = NumberedRows(name, partitions=partitions, rows=rows, payload=payload)
        self.journals[letter] = Journal()
        changes = options.pop("changes", None)
        made = self.bus.publisher(changes, topic=name, parallelism=partitions, **options)
        made.declare(SCHEMA)
        self.publishers[letter] = made
        return made

    def seal(self, letter: str, *batch_ids: int, chunk: int = 10) -> None:
        """Seal batches whose record batches have ``chunk`` rows each."""
        for batch_id in batch_ids:
            tables = [
                pa.concat_tables([table.slice(first, chunk) for first in range(0, table.num_rows, chunk)])
                for table in self.rows[letter].tables(batch_id)
            ]
            with self.journals[letter].sealing(batch_id, self.rows[letter].ranges(batch_id)):
                self.publishers[letter].seal("q", batch_id, tables, run_id="r1")


@pytest.fixture
def world(bus: Bus, module_settings: dict[str, str]) -> Iterator[World]:
    made = World(bus, module_settings)
    yield made
    made.close()


def micro_batches(query: Query, topic: str) -> list[tuple[int, int, int]]:
    """(rows, bytes, record batches read) of each micro-batch, as the coordinator counts the offsets that Spark has."""
    session = query.reader._topics.session  # type: ignore[union-attr]
    starts = [json.dumps(query.reader.initialOffset()), *query.offsets]
    found = []
    for number, (start, end) in enumerate(zip(starts, query.offsets, strict=False)):
        low, high = (Position.from_json(json.loads(offset)[topic]) for offset in (start, end))
        if low == high:
            continue
        plans = session.describe(topic, low, high).plans
        batches = len(query.sink[number].get(topic, []))
        found.append((sum(plan.rows for plan in plans), sum(plan.bytes for plan in plans), batches))
    return found


# -- most --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("max_rows", "max_bytes"), [(25, 1 << 30), (1 << 30, 3000), (45, 2500), (1, 1)])
def test_rows_and_bytes_both_hold(world: World, max_rows: int, max_bytes: int) -> None:
    """Batches larger than either limit are read in parts, and one record batch is taken whatever its size."""
    world.open("a")
    world.seal("a", 0, 1, 2)
    query = world.query(maxRowsPerTrigger=str(max_rows), maxBytesPerTrigger=str(max_bytes))
    world.drain(query)
    found = micro_batches(query, world.name("a"))
    assert all((rows <= max_rows and size <= max_bytes) or batches == 1 for rows, size, batches in found), found
    assert len(found) > 3, found


@pytest.mark.slow
def test_a_split_batch_is_acknowledged_as_a_whole(world: World) -> None:
    """A restart in the middle of it goes on inside; its publisher keeps it until its end is committed."""
    publisher = world.open("a")
    world.seal("a", 0, 1)
    query = world.query(maxBytesPerTrigger="2KB")
    acked = []
    for _ in range(200):
        if not query.plan():
            break
        (line,) = publisher.status()["subscriptions"]
        acked.append((json.loads(query.offsets[-1])[world.name("a")]["n"], line["position"]))
        query.run()
        query.restart()  # reads the same batch again, and commits it
    assert len(acked) > 4
    assert all(position <= n for n, position in acked)
    assert {position for _, position in acked} == {0, 1}
    assert publisher.status()["subscriptions"][0]["position"] == 2
    world.check(query)


@pytest.mark.slow
def test_a_large_record_batch_of_one_topic_does_not_starve_another(world: World) -> None:
    """Both share the limit; whoever got nothing has the first word the next time."""
    for letter in "ab":
        world.open(letter, partitions=1)
        world.seal(letter, *range(5), chunk=40)
    query = world.query("ab", maxRowsPerTrigger="10")
    for _ in range(6):
        assert query.step()
    assert [query.rows(world.name(letter)) for letter in "ab"] == [120, 120]
    world.drain(query, "ab")
    publishers = [world.publishers[letter] for letter in "ab"]
    query.step()  # acknowledges the last one
    assert [p.status()["subscriptions"][0]["position"] for p in publishers] == [5, 5]


@pytest.mark.slow
@pytest.mark.parametrize("busy", ["a", "b", "c"])
def test_what_idle_topics_leave_goes_to_the_busy_one(world: World, busy: str) -> None:
    """Wherever it stands among their names."""
    for letter in "abc":
        world.open(letter)
    world.seal(busy, *range(6))  # 80 rows each
    query = world.query("abc", maxRowsPerTrigger="160")
    world.drain(query, busy)
    rows = [rows for rows, _, _ in micro_batches(query, world.name(busy)) if rows]
    assert rows == [160, 160, 160]


@pytest.mark.slow
def test_topics_share_the_bytes(world: World) -> None:
    """An equal share each; a topic without news leaves its own to those after it."""
    for letter in "abc":
        world.open(letter, partitions=1, rows=200)
    world.seal("b", 0)
    world.seal("c", 0)
    query = world.query("abc", maxBytesPerTrigger="12KB")
    assert query.step()
    b, c = (query.rows(world.name(letter)) for letter in "bc")
    assert b > 20
    assert abs(b - c) <= 20
    world.drain(query, "bc")


def test_trigger_once_takes_everything(world: World) -> None:
    """As Spark's Kafka source does: ReadAllAvailable passes over all limits, those without an option too."""
    world.open("a")
    world.seal("a", *range(4))
    query = world.query(maxRowsPerTrigger="10", maxBytesPerTrigger="1", minRowsPerTrigger="5")
    assert query.plan(ReadAllAvailable())
    query.run()
    assert query.rows(world.name("a")) == 320
    world.check(query)


def test_what_is_there_now_is_read_within_the_limits(world: World) -> None:
    """availableNow keeps the limits, but waits for nothing: fewer rows than minRowsPerTrigger come too."""
    world.open("a")
    world.seal("a", *range(3))
    query = world.query(maxRowsPerTrigger="100", minRowsPerTrigger="90")
    query.reader.prepareForTriggerAvailableNow()
    world.seal("a", 3)
    while query.step():
        pass
    sizes = [rows for rows, _, _ in micro_batches(query, world.name("a"))]
    assert sizes == [80, 80, 80]


# -- least -------------------------------------------------------------------------------------------------------------


def held_query(world: World, letters: str = "a", **options: str) -> tuple[Query, Clock]:
    """A query whose clock stands, behind its first, empty micro-batch."""
    query = world.query(letters, **{"minRowsPerTrigger": "100", **options})
    clock = Clock()
    query.reader._limits = MicroBatchLimits(query.reader._options, clock)
    assert query.step()
    return query, clock


def calls(query: Query, seconds: float) -> int:
    """Ask for so long what there is, as Spark does, and return how often; there must be nothing."""
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        assert not query.plan(), query.end
        count += 1
    return count


@pytest.mark.slow
def test_few_rows_wait_for_more(world: World) -> None:
    """Over all topics together; what was committed is acknowledged meanwhile, and the waiting does not spin."""
    for letter in "ab":
        world.open(letter, partitions=1, rows=40)
    query, _ = held_query(world, "ab")
    world.seal("a", 0)
    world.seal("b", 0)
    assert calls(query, 3.0) < 40
    world.seal("a", 1)
    query.until(lambda: query.rows(world.name("a")) == 80, "the rows")
    assert [rows for found in query.sink.values() if (rows := sum(b.num_rows for x in found.values() for b in x))] == [
        120
    ]
    world.seal("b", 1)
    assert calls(query, 0.5) < 20
    (line,) = world.publishers["a"].status()["subscriptions"]
    assert (line["position"], line["lag"]["batches"]) == (2, 0)
    world.check(query, "a")


@pytest.mark.slow
def test_a_trickle_of_rows_keeps_nobody_busy(world: World) -> None:
    """Each batch is news, and none is enough: they are counted ten times a second, not a hundred."""
    world.open("a", partitions=1, rows=1)
    query, _ = held_query(world, minRowsPerTrigger="1000000")
    calls(query, 1.0)  # it waits for longer by now
    over = threading.Event()

    def trickle() -> None:
        for batch_id in range(10_000):
            world.seal("a", batch_id)
            if over.is_set():
                return

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        assert calls(query, 2.0) <= 25
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_rows_that_come_are_seen_at_once(world: World) -> None:
    """While it waits, news wake it: the row that was missing is read long before the wait would be over."""
    world.open("a", partitions=1, rows=60)
    query, _ = held_query(world)
    world.seal("a", 0)
    assert not query.plan()
    query.reader._idle = 60.0
    timer = threading.Timer(0.2, world.seal, ("a", 1))
    timer.start()
    began = time.monotonic()
    query.until(lambda: query.rows(world.name("a")) == 120, "the rows", LATEST_SECONDS)
    timer.join()
    assert time.monotonic() - began < 0.9


def test_the_longest_delay(world: World) -> None:
    """It counts from the last micro-batch, of this run; a timer that has run out waits for one row."""
    world.open("a", partitions=1, rows=40)
    query, clock = held_query(world, maxTriggerDelay="10min")
    world.seal("a", 0)
    clock.now += 599
    assert not query.plan()
    clock.now += 1
    assert query.step()
    assert query.rows(world.name("a")) == 40
    assert not query.plan()
    clock.now += 600
    assert not query.plan()
    world.seal("a", 1)
    query.until(lambda: query.rows(world.name("a")) == 80, "the rows")
    query.restart()
    query.reader._limits = MicroBatchLimits(query.reader._options, clock)
    world.seal("a", 2)
    calls(query, 0.5)
    clock.now += 600
    assert query.plan()


@pytest.mark.slow
def test_the_delay_ends_a_wait(world: World) -> None:
    """A wait is not longer than what is left of maxTriggerDelay."""
    world.open("a", partitions=1, rows=40)
    query = world.query(minRowsPerTrigger="100", maxTriggerDelay="2500ms")
    query.step()
    world.seal("a", 0)
    began = time.monotonic()
    query.until(lambda: query.rows(world.name("a")) == 40, "the rows", LATEST_SECONDS)
    assert 1.0 < time.monotonic() - began < 5.0


def test_nothing_more_comes(world: World) -> None:
    """An end mark is not waited for, nor are the rows before it."""
    world.open("a", partitions=1, rows=40)
    query, _ = held_query(world)
    world.seal("a", 0)
    calls(query, 0.5)
    world.publishers["a"].close(final=True)
    query.until(lambda: query.rows(world.name("a")) == 40, "the rows before the end")
    query.until(lambda: query.end[world.name("a")]["n"] == 2, "the end mark")
    world.check(query)


def test_a_publisher_that_waits_for_us_is_not_kept_waiting(world: World) -> None:
    """acks=all: each batch waits until this subscription has committed it, so no more rows will come before that."""
    publisher = world.open("a", partitions=1, rows=40, changes={"acks": "all"}, required_subscribers=["billing"])
    query, _ = held_query(world)
    failure: list[BaseException] = []

    def publish() -> None:
        try:
            world.seal("a", *range(5))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    query.until(lambda: not thread.is_alive(), "the publisher goes on")
    thread.join()
    assert not failure, failure
    assert publisher.status()["waiting"] is None
    world.check(query)


def test_a_full_spool_is_emptied(world: World) -> None:
    """A publisher that waits for room waits for us."""
    changes = {
        "spool.max_bytes": "400KB",
        "segment.max_bytes": "64KB",
        "retention.time": "0s",
        "retention.bytes": "0",
        "retention.ack_grace": "0s",
    }
    world.open("a", partitions=1, rows=400, payload=400, changes=changes)
    query, _ = held_query(world, minRowsPerTrigger="1000000")
    thread = threading.Thread(target=world.seal, args=("a", *range(6)))
    thread.start()
    query.until(lambda: not thread.is_alive(), "room for all")
    thread.join()
    assert query.rows(world.name("a")) >= 40


def test_more_than_a_micro_batch_takes_is_not_waited_for(world: World) -> None:
    """Bytes reach their limit before rows reach theirs."""
    world.open("a", partitions=1, rows=40, payload=200)
    query, _ = held_query(world, minRowsPerTrigger="1000", maxBytesPerTrigger="20KB")
    world.seal("a", 0)
    calls(query, 0.5)
    world.seal("a", 1)
    query.until(lambda: query.rows(world.name("a")) >= 40, "the rows")


def test_nothing_is_counted_without_the_option(world: World) -> None:
    """The plan's answer is what it was."""
    world.open("a")
    world.seal("a", 0)
    query = world.query()
    query.step()
    session = query.reader._topics.session  # type: ignore[union-attr]
    start = Position.from_json(query.end[world.name("a")])
    assert session.plan(world.name("a"), start, ReadLimits()).ahead is None


# -- tasks -------------------------------------------------------------------------------------------------------------


def batch_parts(world: World, letters: str = "a", **options: str) -> list[Any]:
    """The input partitions of ``spark.read``."""
    given = {key: value for key, value in world.options(letters, **options).items() if key != "startingOffsets"}
    source = JobPipeDataSource(given)
    reader = source.reader(StructType.fromJson(json.loads(source.schema().json())))
    return [(part.wanted, list(reader.read(part))) for part in reader.partitions()]


def stream_parts(world: World, letters: str = "a", **options: str) -> list[Any]:
    """The input partitions of one micro-batch over everything."""
    query = world.query(letters, **options)
    assert query.plan()
    parts = query.reader.partitions(query.reader.initialOffset(), query.end)
    return [(part.wanted, list(query.reader.read(part))) for part in parts]  # type: ignore[attr-defined]


Parts = Callable[..., list[Any]]
EITHER = pytest.mark.parametrize("parts_of", [batch_parts, stream_parts])


def numbers(found: list[Any], topic: str) -> dict[int, list[int]]:
    """The rows of a topic by partition, in the order of the input partitions."""
    rows: dict[int, list[int]] = {}
    for wanted, batches in found:
        if wanted.topic == topic:
            for batch in batches:
                rows.setdefault(wanted.partition, []).extend(batch["number"].to_pylist())
    return rows


@EITHER
def test_at_least_so_many_tasks(world: World, parts_of: Parts) -> None:
    """In whole pieces over all partitions; every row once, and in order from piece to piece."""
    world.open("a")
    world.seal("a", *range(4))
    found = parts_of(world, minPartitions="7")
    assert [sum(batch.num_rows for batch in batches) for _, batches in found] == [40] * 8
    assert numbers(found, world.name("a")) == {k: list(range(160)) for k in (0, 1)}
    assert len(parts_of(world, minPartitions="1", name="other")) == 2


@EITHER
def test_at_most_so_many_rows_a_task(world: World, parts_of: Parts) -> None:
    """Within one record batch, also inside a batch."""
    world.open("a")
    world.seal("a", *range(2))
    found = parts_of(world, maxRowsPerPartition="25")
    assert all(batches and sum(b.num_rows for b in batches) <= 25 for _, batches in found)
    assert numbers(found, world.name("a")) == {k: list(range(80)) for k in (0, 1)}
    found = parts_of(world, maxRowsPerPartition="3", name="other")
    assert [len(batches) for _, batches in found] == [1] * 16


@EITHER
@pytest.mark.slow
def test_only_assigned_partitions_are_counted(world: World, parts_of: Parts) -> None:
    world.open("a")
    world.seal("a", *range(4))
    found = parts_of(world, minPartitions="4", assign=json.dumps({world.name("a"): [2]}))
    assert [(wanted.partition, sum(batch.num_rows for batch in batches)) for wanted, batches in found] == [(1, 40)] * 4


@pytest.mark.slow
@EITHER
def test_tasks_are_shared_over_topics_by_rows(world: World, parts_of: Parts) -> None:
    world.open("a", partitions=1, rows=10)
    world.seal("a", 0)
    world.open("b", partitions=1, rows=300)
    world.seal("b", 0)
    found = parts_of(world, "ab", minPartitions="6")
    counts = [len([1 for wanted, _ in found if wanted.topic == world.name(letter)]) for letter in "ab"]
    assert counts == [1, 5]
    assert numbers(found, world.name("b")) == {0: list(range(300))}


@pytest.mark.slow
def test_a_replay_may_be_cut_otherwise(world: World) -> None:
    """A restart with other options brings the same rows of the micro-batch in other tasks."""
    world.open("a", partitions=1)
    world.seal("a", *range(3))
    query = world.query(minPartitions="3")
    query.plan()
    query.run()
    assert len(query.reader.partitions(query.reader.initialOffset(), query.end)) == 3
    query.restart(minPartitions="5")  # compares what comes with what came
    assert query.committed == 1
    assert len(query.reader.partitions(query.reader.initialOffset(), query.end)) == 5
    world.drain(query)
