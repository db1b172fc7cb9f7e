"""``readAhead``: batches that are planned before their rows are there, and bound once. No Spark, real links."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from jobpipe.errors import ConfigError, DataLoss, Fenced, JobpipeError, SchemaMismatch
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.spool.spool_files import CATALOG
from jobpipe.testing import SCHEMA, Checker, Journal, NumberedRows
from tests.bus.kit import PATIENCE, Bus, coordinator_of, kill, publish, until
from tests.bus.query import Query

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]

AHEAD = {"readAhead": "true"}


class World:
    """One topic of numbered rows, and queries over it that begin at earliest."""

    def __init__(self, bus: Bus, settings: dict[str, str]) -> None:
        self.bus = bus
        self.rows = NumberedRows(bus.topic, partitions=2)
        self._settings = {"jobpipe.discovery.timeout": "20s", **settings}
        self._queries: list[Query] = []
        self.sealed = 0

    def open(self, changes: dict[str, str] | None = None, parallelism: int = 2, **more: Any) -> Publisher:
        self.publisher = self.bus.publisher(changes, parallelism=parallelism, **more)
        self.publisher.declare(SCHEMA)
        return self.publisher

    def seal(self, count: int = 1) -> None:
        publish(self.publisher, self.rows, self.bus.journal, range(self.sealed, self.sealed + count))
        self.sealed += count

    def query(self, **options: str) -> Query:
        given = {"subscribe": self.bus.topic, "name": "billing", "startingOffsets": "earliest", **AHEAD, **options}
        made = Query(**{**self._settings, **given})
        self._queries.append(made)
        return made

    def drain(self, query: Query) -> None:
        query.until(lambda: query.rows(self.bus.topic) >= self.bus.journal.rows, "all rows")
        query.check(self.rows, self.bus.journal)

    def until_connected(self, name: str = "billing") -> None:
        """Wait until a query has come back to the coordinator."""
        states = lambda: {line["name"]: line["state"] for line in self.publisher.status()["subscriptions"]}  # noqa: E731
        until(lambda: states().get(name) == "connected", PATIENCE, lambda: str(states()))

    def until_settled(self, slot: str) -> None:
        """Wait until a slot has an end in the catalog."""
        database = Database.open_to_read(self.bus.config().spool_dir / self.bus.topic / CATALOG, self.bus.topic)
        with contextlib.closing(database):
            ended = 'SELECT count(*) FROM slots WHERE slot = ? AND "end" IS NOT NULL'
            until(lambda: database.value(ended, slot), PATIENCE, f"the end of slot {slot}")

    def acked(self, name: str = "billing") -> int | None:
        lines = {line["name"]: line["position"] for line in self.publisher.status()["subscriptions"]}
        return lines[name]

    def close(self) -> None:
        for query in self._queries:
            query.reader.stop()


@pytest.fixture
def world(bus: Bus, module_settings: dict[str, str]) -> Iterator[World]:
    made = World(bus, module_settings)
    yield made
    made.close()


@pytest.fixture
def own(own_bus: Bus, settings_of_test: dict[str, str]) -> Iterator[World]:
    """At a coordinator of its own, for tests that hurt it."""
    made = World(own_bus, settings_of_test)
    yield made
    made.close()


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run in a thread; what comes of it, or the error, is in the list."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except JobpipeError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def place(query: Query, topic: str, number: int = -1) -> dict[str, Any]:
    """A topic's place in one of the end offsets."""
    found: dict[str, Any] = json.loads(query.offsets[number])[topic]
    return found


@pytest.mark.slow
def test_rows_that_come_while_the_tasks_wait(world: World) -> None:
    """Planned before anything is there; the offset is canonical; each slot is acknowledged by the next one."""
    world.open()
    query = world.query()
    assert query.plan()
    end = place(query, world.bus.topic)
    assert list(end) == ["epoch", "log", "n", "r", "slot"]
    assert end["n"] == 0
    thread, found = in_thread(query.run)
    world.seal(2)
    thread.join(PATIENCE)
    assert found == [None]
    query.commit()
    world.drain(query)
    world.seal()
    world.drain(query)
    assert query.plan()  # acknowledges what was committed
    until(lambda: world.acked() == 3, PATIENCE, lambda: str(world.publisher.status()["subscriptions"]))
    starts = [place(query, world.bus.topic, at)["n"] for at in range(len(query.offsets))]
    assert starts == sorted(starts)
    assert len({place(query, world.bus.topic, at)["slot"] for at in range(len(query.offsets))}) == len(query.offsets)


@pytest.mark.slow
def test_an_empty_slot_is_bound_too(world: World) -> None:
    """Nothing comes for a second: a batch without rows; later rows are not of it, however often it is read."""
    world.open()
    query = world.query()
    query.plan()
    query.run()
    assert query.rows(world.bus.topic) == 0
    world.seal()
    query.restart()  # the batch was not committed: it must be what it was
    assert query.rows(world.bus.topic) == 0
    world.drain(query)


@pytest.mark.slow
def test_restarts_between_any_two_steps(world: World) -> None:
    """After a slot was logged, was bound, was committed; a batch that comes again is as it was. With other limits."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    world.open()
    query = world.query()
    world.seal()
    for _ in range(8):
        if chance.random() < 0.7:
            world.seal(chance.randint(1, 3))
        query.plan()
        if chance.random() < 0.3:
            query.restart()
            continue
        query.run()
        if chance.random() < 0.5:
            world.seal()
            query.restart(maxRowsPerTrigger=str(chance.choice([1, 15, 1000])))
            continue
        query.commit()
        if chance.random() < 0.3:
            query.restart()
    world.drain(query)


@pytest.mark.slow
def test_switched_on_and_off_on_one_checkpoint(world: World) -> None:
    """Between any two steps; each reader goes on where the other was, and repeats its batches as they were."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    world.open()
    query = world.query(readAhead="false")
    ahead = False
    for _ in range(10):
        world.seal(chance.randint(0, 2))
        if query.plan() and chance.random() < 0.8:
            query.run()
            if chance.random() < 0.6:
                query.commit()
        ahead = not ahead
        # the tasks may be others, which is no matter: it is by topic that Spark needs the same rows again
        earlier = {k: {t: sorted_rows(b) for t, b in v.items() if b} for k, v in query.sink.items()}
        query.sink.pop(len(query.offsets) - 1, None) if len(query.offsets) > query.committed else None
        query.restart(readAhead=str(ahead).lower())
        for number, found in earlier.items():
            assert {t: sorted_rows(b) for t, b in query.sink[number].items() if b} == found, f"batch {number}"
    query.until(lambda: query.rows(world.bus.topic) >= world.bus.journal.rows, "all rows")
    query.check(world.rows, world.bus.journal)


def sorted_rows(batches: list[pa.RecordBatch]) -> list[Any]:
    """All rows, in an order of their own."""
    return sorted((tuple(row.items()) for batch in batches for row in batch.to_pylist()), key=repr)


@pytest.mark.slow
def test_switched_off_before_a_slot_was_bound(world: World) -> None:
    """A slot that was logged and not bound gets no row; what comes is read by the plain reader."""
    world.open()
    query = world.query()
    query.plan()
    world.seal()
    query.restart(readAhead="false")
    assert query.rows(world.bus.topic) == 0
    world.drain(query)
    assert "slot" not in place(query, world.bus.topic)
    query.restart(readAhead="true")
    world.seal()
    world.drain(query)
    assert "slot" in place(query, world.bus.topic)


def test_concurrent_tasks_share_one_binding(world: World) -> None:
    """All tasks of a slot, and their retries, get one range, whoever comes first."""
    world.open()
    query = world.query()
    query.plan()
    partitions = query.reader.partitions({}, json.loads(query.offsets[-1]))
    assert len(partitions) == 2
    reads = [in_thread(lambda p=p: list(query.reader.read(p))) for p in [*partitions, *partitions]]  # type: ignore[misc]
    for _ in range(5):
        world.seal()
    for thread, _ in reads:
        thread.join(PATIENCE)
    batches = [found[0] for _, found in reads]
    assert batches[:2] == batches[2:]
    assert [list(query.reader.read(p)) for p in partitions] == batches[:2]


@pytest.mark.slow
def test_coordinator_killed_while_tasks_wait(own: World) -> None:
    """The next one finds the slot in the catalog; the tasks find the next one; nothing is lost or doubled."""
    own.open()
    query = own.query()
    own.seal()
    own.drain(query)
    for _ in range(2):
        query.plan()
        thread, found = in_thread(query.run)
        kill(coordinator_of(own.publisher))
        own.seal(2)
        thread.join(PATIENCE)
        assert found == [None]
        query.commit()
    own.drain(query)


@pytest.mark.slow
def test_coordinator_killed_after_a_slot_was_bound(own: World) -> None:
    """A binding is in the catalog: the replay is as it was, and so is what the plain reader makes of it."""
    own.open()
    query = own.query()
    own.seal(2)
    query.plan()
    query.run()
    query.commit()
    own.seal()
    query.plan()
    query.run()
    kill(coordinator_of(own.publisher))
    own.seal()
    query.restart()
    own.drain(query)


@pytest.mark.slow
def test_name_taken_by_another_query(world: World) -> None:
    """Tasks of the query that lost the name bind nothing: fenced by the grant."""
    world.open()
    query = world.query()
    query.plan()
    partition = query.reader.partitions({}, json.loads(query.offsets[-1]))[0]
    query.reader.stop()
    other = world.query()
    other.plan()
    with pytest.raises(Fenced, match="billing"):
        list(query.reader.read(partition))
    world.seal()
    world.drain(other)


def test_a_slot_that_the_log_does_not_know(world: World) -> None:
    """Cases 34 and 55: data loss that names topic and slot, in driver and tasks, with readAhead or without."""
    world.open()
    query = world.query()
    world.seal()
    world.drain(query)
    query.reader.stop()
    strange = {**place(query, world.bus.topic), "slot": "0" * 32}
    query.offsets[-1] = json.dumps({world.bus.topic: strange})
    for ahead in ("true", "false"):
        query.restart(readAhead=ahead)
        with pytest.raises(DataLoss, match="0" * 32) as caught:
            query.plan()
        assert caught.value.fields["topic"] == world.bus.topic
    query.committed -= 1
    query.sink.clear()
    for ahead in ("true", "false"):
        with pytest.raises(DataLoss, match="0" * 32):
            query.restart(readAhead=ahead)


@pytest.mark.slow
def test_a_committed_batch_that_no_task_has_read(own: World) -> None:
    """R13: foreachBatch did nothing with it: no row is passed over, in another epoch neither.

    Nor for a query that was started again in between, before or after the coordinator.
    """
    own.open()
    query = own.query()
    query.plan()
    query.sink[0] = {}
    query.commit()
    own.seal()
    own.drain(query)
    query.plan()
    query.sink[len(query.offsets) - 1] = {}
    query.commit()
    kill(coordinator_of(own.publisher))
    own.seal()
    query.until(query.plan, "a slot in the new epoch")
    own.drain(query)
    query.plan()
    query.sink[len(query.offsets) - 1] = {}
    query.commit()
    kill(coordinator_of(own.publisher))
    own.seal()
    own.until_connected()
    query.restart()
    own.drain(query)
    query.plan()
    query.sink[len(query.offsets) - 1] = {}
    query.commit()
    query.reader.stop()
    own.until_settled(place(query, own.bus.topic)["slot"])
    kill(coordinator_of(own.publisher))
    own.seal()
    query.restart()
    own.drain(query)


@pytest.mark.slow
def test_the_end_mark(world: World) -> None:
    """The stream stands at the end, says so, and has acknowledged it, as await_end needs it."""
    world.open()
    query = world.query()
    world.seal(2)
    world.publisher.close(final=True)
    while query.step():
        pass
    query.check(world.rows, world.bus.journal)
    report = query.reader.reportLatestOffset()
    assert report is not None
    head, end = report[world.bus.topic], place(query, world.bus.topic)
    assert head["ended"]
    assert {key: head[key] for key in ("log", "epoch", "n", "r")} == {
        key: end[key] for key in ("log", "epoch", "n", "r")
    }
    assert not query.plan()


def test_an_end_by_options(world: World) -> None:
    """An offset that lies ahead: slots stop there, and the stream has ended; restarted it has nothing to do."""
    world.open()
    query = world.query(endingOffsets=json.dumps({world.bus.topic: 2}))
    for _ in range(2):
        query.plan()
        world.seal()
        query.step()
    world.seal(2)
    while query.step():
        pass
    assert query.rows(world.bus.topic) == 2 * world.rows.rows * 2
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert report[world.bus.topic]["ended"]
    assert (report[world.bus.topic]["n"], place(query, world.bus.topic)["n"]) == (2, 2)
    query.restart()
    assert not query.plan()


def test_limits(world: World) -> None:
    """maxRowsPerTrigger holds for what a slot is bound to; the rest follows."""
    world.open()
    query = world.query(maxRowsPerTrigger="20")
    world.seal(5)
    world.drain(query)
    sizes = [sum(b.num_rows for found in batch.values() for b in found) for batch in query.sink.values()]
    assert max(sizes) == 20
    assert [size for size in sizes if size] == [20] * 5


@pytest.mark.slow
def test_another_parallelism_between_planning_and_binding(world: World) -> None:
    """Fewer tasks than partitions, or more: each partition is read by one task."""
    world.open()
    query = world.query()
    before = 0
    for parallelism in (5, 1):
        until(query.plan, PATIENCE, "a slot")
        world.publisher.close()
        world.rows = NumberedRows(world.bus.topic, partitions=parallelism)
        journal = world.bus.journal = Journal()
        world.open(parallelism=parallelism)
        first = len(query.offsets) - 1  # planned before, and bound to rows of the new shape
        world.seal(2)
        query.until(lambda n=before, j=journal: query.rows(world.bus.topic) >= n + j.rows, "all rows")
        checker = Checker(world.rows, journal)
        for number, found in sorted(query.sink.items()):
            for batch in found.get(world.bus.topic, ()) if number >= first else ():
                checker.take(batch)
        assert checker.check().rows == 2 * parallelism * world.rows.rows
        before = query.rows(world.bus.topic)


@pytest.mark.slow
def test_a_change_of_schema(world: World) -> None:
    """Read up to it, whole; what fits goes on behind it, what does not ends the query there, acknowledged."""
    publisher = world.bus.publisher()
    publisher.seal("q", 0, [pa.table({"id": pa.array([1], pa.int32())})])
    query = world.query()
    publisher.seal("q", 1, [pa.table({"id": pa.array([2], pa.int32()), "more": ["x"]})])  # fits
    query.until(lambda: query.rows(world.bus.topic) == 2, "both")
    publisher.seal("q", 2, [pa.table({"id": ["three"]})])
    with pytest.raises(SchemaMismatch, match="offset 2"):
        query.until(lambda: False, "the boundary")
    assert query.rows(world.bus.topic) == 2
    world.publisher = publisher
    assert world.acked() == 2


@pytest.mark.slow
def test_what_does_not_go_with_it(own: World) -> None:
    """acks=all, availableNow and Trigger.Once are refused at the start, each with its reason."""
    own.open()
    query = own.query()
    with pytest.raises(ConfigError, match="availableNow"):
        query.reader.prepareForTriggerAvailableNow()
    with pytest.raises(ConfigError, match="once"):
        query.plan(ReadAllAvailable())
    own.publisher.close()
    own.open({"acks": "all"}, required_subscribers=["billing"])
    with pytest.raises(ConfigError, match="acks=all"):
        query.until(lambda: False, "the refusal")
