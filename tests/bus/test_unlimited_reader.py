"""The stream reader of Spark 4.0 and 4.1, which have no admission control: each row once, wherever a run ends."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from jobpipe.errors import DataLoss, SchemaMismatch, UnsupportedSpark
from jobpipe.spark import source as source_module
from jobpipe.spark import versions
from jobpipe.spark.source import JobPipeDataSource
from jobpipe.testing import NumberedRows
from tests.bus.kit import Bus
from tests.bus.query import UnlimitedQuery

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]

INT = pa.table({"id": pa.array([1, 2], pa.int32())})
MORE = pa.table({"id": pa.array([3], pa.int32()), "new": ["x"]})
WORD = pa.table({"id": ["one"]})


@pytest.fixture
def load(bus: Bus, module_settings: dict[str, str]) -> Iterator[Callable[..., UnlimitedQuery]]:
    """Return a maker of queries over the test's topic."""
    made: list[UnlimitedQuery] = []

    def start(**options: str) -> UnlimitedQuery:
        made.append(UnlimitedQuery(**module_settings, subscribe=bus.topic, name="billing", **options))
        return made[-1]

    yield start
    for query in made:
        query.reader.stop()


def values(query: UnlimitedQuery) -> list[list[object]]:
    """Return the ids in each micro-batch."""
    return [
        [row["id"] for batches in found.values() for batch in batches for row in batch.to_pylist()]
        for _, found in sorted(query.sink.items())
    ]


@pytest.mark.parametrize("start", ["earliest", "committed"])
def test_each_row_comes_once_wherever_runs_end(bus: Bus, load: Callable[..., UnlimitedQuery], start: str) -> None:
    """Runs end after Spark's log of the offset, after the rows, after the commit; rows come at any moment."""
    seed = os.environ.get("JOBPIPE_SEED") or str(random.randrange(10**9))
    print(f"JOBPIPE_SEED={seed}")
    chance = random.Random(seed)
    rows = NumberedRows(bus.topic, partitions=2)
    publisher, sealed = bus.publisher(parallelism=2), iter(range(1000))

    def publish() -> None:
        for _ in range(chance.randrange(3)):
            batch_id = next(sealed)
            with bus.journal.sealing(batch_id, rows.ranges(batch_id)):
                publisher.seal("q", batch_id, rows.tables(batch_id))

    publisher.declare(rows.tables(0)[0].schema)
    if start == "earliest":
        publish()
    query = load(startingOffsets=start)
    for _ in range(12):
        ends = chance.randrange(6)
        if ends == 0 or not query.plan():
            query.restart()
        publish()
        if ends == 1:
            query.restart()
        if len(query.offsets) > query.committed:
            query.run()
            if ends == 2:
                query.restart()
            else:
                query.commit()
        publish()
    query.until(lambda: not query.step(), "the end")
    query.check(rows, bus.journal)


@pytest.mark.parametrize("start", ["latest", "committed"])
def test_a_new_checkpoint_begins_where_it_was_first_asked(
    bus: Bus, load: Callable[..., UnlimitedQuery], start: str
) -> None:
    """Rows that come before Spark asks for the beginning are in the next micro-batch, also if the run ends there."""
    publisher = bus.publisher()
    publisher.seal("q", 0, [INT])
    query = load(startingOffsets=start)
    assert query.plan()
    publisher.seal("q", 1, [pa.table({"id": pa.array([7], pa.int32())})])
    query.run()
    query.commit()
    query.step()
    assert values(query) == [[], [7]]


def test_a_first_run_that_ends_before_the_beginning_is_known(bus: Bus, load: Callable[..., UnlimitedQuery]) -> None:
    """The end is in Spark's log, and the beginning nowhere: it is asked for after more rows have come."""
    publisher = bus.publisher()
    publisher.seal("q", 0, [INT])
    query = load(startingOffsets="latest")
    assert query.plan()
    publisher.seal("q", 1, [pa.table({"id": pa.array([7], pa.int32())})])
    query.restart()
    query.step()
    assert values(query) == [[], [7]]


def test_the_first_micro_batch_has_all_that_is_there(bus: Bus, load: Callable[..., UnlimitedQuery]) -> None:
    """It is the only one of a run by availableNow, whatever schemas its rows have; the next run goes on after it."""
    publisher = bus.publisher()
    for batch_id, table in enumerate([INT, MORE, INT, INT]):
        publisher.seal("q", batch_id, [table])
    query = load(startingOffsets="earliest")
    assert query.plan()
    query.run()
    assert values(query) == [[1, 2, 3, 1, 2, 1, 2]]
    query.restart()
    publisher.seal("q", 4, [MORE])
    query.restart()
    assert query.step()
    assert values(query)[1:] == [[3]]


def test_rows_that_do_not_fit_end_the_query_where_they_begin(bus: Bus, load: Callable[..., UnlimitedQuery]) -> None:
    """What lies before them is delivered and acknowledged."""
    publisher = bus.publisher()
    publisher.seal("q", 0, [INT])
    query = load(startingOffsets="earliest")
    publisher.seal("q", 1, [INT])
    publisher.seal("q", 2, [WORD])
    assert query.step()
    assert values(query) == [[1, 2, 1, 2]]
    with pytest.raises(SchemaMismatch, match="offset 2") as caught:
        query.step()
    assert caught.value.fields["topic"] == bus.topic
    (line,) = publisher.status()["subscriptions"]
    assert line["position"] == 2


def test_a_topic_that_is_added_is_read_from_its_beginning(
    bus: Bus, load: Callable[..., UnlimitedQuery], module_settings: dict[str, str]
) -> None:
    """Spark's offset before does not name it, and the end of the run's first micro-batch lies far behind."""
    publisher, other = bus.publisher(), bus.publisher(topic=f"{bus.topic}-b")
    for each in (publisher, other):
        each.seal("q", 0, [INT])
    query = load(startingOffsets="earliest")
    assert query.step()
    query.restart(subscribe=f"{bus.topic},{bus.topic}-b")
    assert query.plan()
    query.run()
    query.restart()  # it is repeated
    assert values(query) == [[1, 2], [1, 2]]
    other.seal("q", 1, [INT])
    query.until(lambda: len(query.sink) == 3, "the next rows")
    assert values(query)[2] == [1, 2]


def test_a_micro_batch_that_would_end_before_it_begins(bus: Bus, load: Callable[..., UnlimitedQuery]) -> None:
    """It is an error that says what to do, and no rows in a wrong order."""
    publisher = bus.publisher()
    for batch_id in range(2):
        publisher.seal("q", batch_id, [INT])
    query = load(startingOffsets="earliest")
    assert query.step()
    end = query.end
    early = {bus.topic: {**end[bus.topic], "n": 1}}
    with pytest.raises(DataLoss, match="new checkpoint, under the same name"):
        query.reader.partitions(end, early)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("maxRowsPerTrigger", "5"),
        ("maxOffsetsPerTrigger", "5"),
        ("maxBytesPerTrigger", "1MiB"),
        ("minRowsPerTrigger", "5"),
        ("readAhead", "true"),
        ("subscribePattern", "orders.*"),
    ],
)
def test_an_option_that_needs_more_says_so_at_load(
    module_settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    """It names the option, the version and what is needed."""
    for module in (versions, source_module):
        monkeypatch.setattr(module, "HAS_ADMISSION_CONTROL", False)
    topics = {} if option == "subscribePattern" else {"subscribe": "orders"}
    source = JobPipeDataSource({**module_settings, **topics, "name": "billing", option: value})
    with pytest.raises(UnsupportedSpark, match=r"needs PySpark 4\.2 or later") as caught:
        source.schema()
    assert option.replace("Offsets", "Rows") in str(caught.value)
