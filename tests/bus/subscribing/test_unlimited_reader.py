"""The stream reader of Spark 4.0 and 4.1, which have no admission control: each row once, wherever a run ends."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from jobpipe.errors import ConfigError, DataLoss, SchemaMismatch, UnsupportedSpark
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.spark.session import spark_versions
from jobpipe.spark.source import data_source as source_module
from jobpipe.spark.source.data_source import JobPipeDataSource
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


class Died(Exception):
    """The run ends here."""


@pytest.mark.parametrize(
    ("start", "runs"),
    [
        ("earliest", 4),
        pytest.param("earliest", 40, marks=pytest.mark.slow),
        pytest.param("committed", 40, marks=pytest.mark.slow),
        pytest.param("latest", 40, marks=pytest.mark.slow),
    ],
)
def test_each_row_comes_once_wherever_runs_end(
    bus: Bus, load: Callable[..., UnlimitedQuery], start: str, runs: int
) -> None:
    """Runs of all kinds end between any two calls, and rows come there; only what is committed is acknowledged."""
    seed = os.environ.get("JOBPIPE_SEED") or str(random.randrange(10**9))
    print(f"JOBPIPE_SEED={seed}")
    chance = random.Random(seed)
    rows = NumberedRows(bus.topic, partitions=2)
    publisher, sealed = bus.publisher(parallelism=2, required_subscribers=["billing"]), iter(range(1000))
    publisher.declare(rows.tables(0)[0].schema)

    def publish() -> None:
        batch_id = next(sealed)
        with bus.journal.sealing(batch_id, rows.ranges(batch_id)):
            publisher.seal("q", batch_id, rows.tables(batch_id))

    def between() -> None:
        if chance.random() < 0.3:
            publish()
        if query.committed:
            assert acknowledged(publisher) <= json.loads(query.offsets[query.committed - 1])[bus.topic]["n"]
        if query.offsets and chance.random() < 0.15:
            raise Died

    query = load(startingOffsets=start)
    query.between = between
    for _ in range(runs):
        with contextlib.suppress(Died):
            kind = chance.randrange(4)
            if kind == 0:
                query.run_once()
            elif kind == 1:
                query.run_now(reports=chance.random() < 0.5)
            else:
                query.restart()
                for _ in range(chance.randrange(1, 4)):
                    query.step()
    query.between = lambda: None
    query.restart()
    query.until(lambda: not query.step(), "the end")
    query.check(rows, bus.journal)


def acknowledged(publisher: Publisher) -> int:
    """Return the position of the one subscription."""
    (line,) = publisher.status()["subscriptions"]
    return int(line["position"])


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


def test_a_run_of_one_micro_batch_has_all_that_is_there(bus: Bus, load: Callable[..., UnlimitedQuery]) -> None:
    """Also in a checkpoint that exists: whatever schemas the rows have."""
    publisher = bus.publisher()
    publisher.seal("q", 0, [INT])
    query = load(startingOffsets="earliest")
    query.run_once()
    for batch_id, table in enumerate([INT, MORE, INT], 1):
        publisher.seal("q", batch_id, [table])
    query.run_once()
    assert values(query) == [[1, 2], [1, 2, 3, 1, 2]]
    assert acknowledged(publisher) == 1
    query.run_once()
    assert acknowledged(publisher) == 4


@pytest.mark.parametrize("reports", [False, True])
def test_a_run_by_available_now_has_all_that_is_there(
    bus: Bus, load: Callable[..., UnlimitedQuery], reports: bool
) -> None:
    """In one micro-batch, whatever schemas its rows have; the next run goes on after it, and acknowledges it."""
    publisher = bus.publisher()
    for batch_id, table in enumerate([INT, MORE, INT, INT]):
        publisher.seal("q", batch_id, [table])
    query = load(startingOffsets="earliest")
    query.run_now(reports=reports)
    assert values(query) == [[1, 2, 3, 1, 2, 1, 2]]
    assert acknowledged(publisher) == (4 if reports else 0)
    publisher.seal("q", 4, [MORE])
    query.run_now(reports=reports)
    assert values(query)[1:] == [[3]]
    assert acknowledged(publisher) == (5 if reports else 4)


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
    assert acknowledged(publisher) == 2
    with pytest.raises(SchemaMismatch, match="offset 2"):
        query.run_now()
    assert len(query.offsets) == 1  # nothing is logged that cannot be read


@pytest.mark.parametrize("kind", ["run_once", "run_now"])
def test_a_topic_that_is_added_is_read_from_its_beginning(
    bus: Bus, load: Callable[..., UnlimitedQuery], kind: str
) -> None:
    """Spark's offset before does not name it, and the run's end lies far after it; also if that is repeated."""
    publisher, other = bus.publisher(), bus.publisher(topic=f"{bus.topic}-b")
    for each in (publisher, other):
        each.seal("q", 0, [INT])
    query = load(startingOffsets="earliest")
    assert query.step()
    query.options["subscribe"] = f"{bus.topic},{bus.topic}-b"
    query.between = lambda: None if len(query.sink) < 2 else fail()
    with pytest.raises(Died):
        getattr(query, kind)()
    query.between = lambda: None
    getattr(query, kind)()
    assert values(query) == [[1, 2], [1, 2]]


def fail() -> None:
    """End a run."""
    raise Died


def test_a_topic_is_added_at_its_end(bus: Bus, load: Callable[..., UnlimitedQuery]) -> None:
    """Rows that come while the run is planned are in the next one."""
    publisher, other = bus.publisher(), bus.publisher(topic=f"{bus.topic}-b")
    for each in (publisher, other):
        each.seal("q", 0, [INT])
    query = load(startingOffsets="latest")
    query.run_now()
    query.options["subscribe"] = f"{bus.topic},{bus.topic}-b"
    publisher.seal("q", 1, [INT])
    again = iter([None, other.seal])

    def between() -> None:
        if (seal := next(again, None)) is not None:
            seal("q", 1, [pa.table({"id": pa.array([7], pa.int32())})])

    query.between = between
    query.run_now(reports=True)
    query.run_now()
    assert values(query) == [[], [1, 2], [7]]


@pytest.mark.parametrize("log", [False, True])
def test_a_run_that_would_end_before_it_begins(
    bus: Bus, load: Callable[..., UnlimitedQuery], module_settings: dict[str, str], log: bool
) -> None:
    """The options end before the checkpoint, or the topic has another log: told before Spark logs anything."""
    publisher = bus.publisher()
    for batch_id in range(3):
        publisher.seal("q", batch_id, [INT])
    query = load(startingOffsets="earliest")
    query.run_now()
    if log:
        other = bus.publisher(topic=f"{bus.topic}-b")
        other.seal("q", 0, [INT])
        query.offsets = [json.dumps({f"{bus.topic}-b": query.end[bus.topic]})]
        query.options["subscribe"] = f"{bus.topic}-b"
    else:
        query.options["endingOffsets"] = json.dumps({bus.topic: 2})
    with pytest.raises(DataLoss if log else ConfigError, match="this checkpoint is at offset 3"):
        query.run_now()
    assert len(query.offsets) == 1


def test_a_start_that_is_not_there_yet(bus: Bus, load: Callable[..., UnlimitedQuery]) -> None:
    """Nothing is logged, so that the next run begins there, and not before."""
    publisher = bus.publisher()
    publisher.seal("q", 0, [INT])
    query = load(startingOffsets=json.dumps({bus.topic: 2}))
    with pytest.raises(DataLoss):
        query.plan()
    for batch_id in range(1, 4):
        publisher.seal("q", batch_id, [pa.table({"id": pa.array([batch_id], pa.int32())})])
    query.restart()
    assert query.step()
    assert values(query) == [[2, 3]]


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
    for module in (spark_versions, source_module):
        monkeypatch.setattr(module, "HAS_ADMISSION_CONTROL", False)
    topics = {} if option == "subscribePattern" else {"subscribe": "orders"}
    source = JobPipeDataSource({**module_settings, **topics, "name": "billing", option: value})
    with pytest.raises(UnsupportedSpark, match=r"needs PySpark 4\.2 or later") as caught:
        source.schema()
    assert option.replace("Offsets", "Rows") in str(caught.value)
