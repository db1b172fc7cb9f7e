"""The ledger of real coordinators: plain clients and flows that read right, wrongly, and while coordinators die."""

from __future__ import annotations

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.config import Config
from jobpipe.flows import flow_task
from jobpipe.flows.flow_source import Item
from jobpipe.operations.messages.ledger_messages import HopCounts
from jobpipe.store.ledger.hop_account import GRACE_SECONDS
from jobpipe.store.reading.boundary import Boundary, ReadLimits
from jobpipe.store.spool.partition_writer import PartitionedWriter
from jobpipe.store.spool.segment import SegmentFile
from jobpipe.store.spool.segment_index import INLINE_MAX, SegmentIndex
from jobpipe.store.spool.spool_files import file_name, new_write_id
from jobpipe.subscribing.fetching import count_report
from jobpipe.subscribing.fetching.count_report import CountedRange, counted
from jobpipe.subscribing.fetching.part_fetch import Fetched, FetchRange, fetch
from jobpipe.subscribing.python_client import Subscription
from jobpipe.subscribing.subscriber_session import SubscriberSession
from jobpipe.testing import Checker, NumberedRows
from tests.bus.flows.flowkit import Chain, chain
from tests.bus.kit import PATIENCE, Bus, coordinator_of, data_process_of, kill, publish, read, stopped, until
from tests.harness.ledgers import account, ledger, ranges

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]


@pytest.mark.parametrize("payload", [16, 20_000], ids=["held", "fetched"])
def test_published_is_read_is_committed(bus: Bus, payload: int) -> None:
    """Of what comes with the plan, and of what is fetched from the data process."""
    publisher, rows = bus.publisher(parallelism=2), NumberedRows(bus.topic, partitions=2, rows=20, payload=payload)
    publish(publisher, rows, bus.journal, range(5))
    with bus.subscribe("billing") as subscription:
        read(subscription, Checker(rows, bus.journal), bus.journal.rows)
    found = ledger(bus.config(), bus.topic)
    (hop,) = found.hops
    sealed = bus.journal.rows
    assert (hop.position, hop.counts.committed, hop.counts.read) == (5, sealed, sealed)
    assert (hop.counts.unproven, hop.counts.lost, hop.counts.doubled, hop.differences) == (0, 0, 0, ())
    assert sum(minute.rows for minute in found.minutes) == sealed
    assert sum(minute.read for minute in hop.minutes if minute) == sealed
    assert not any(minute.differs for minute in hop.minutes if minute)


@pytest.mark.parametrize(
    ("mutation", "more"),
    [(lambda found: found[1:], -1), (lambda found: [found[0], *found], 1)],
    ids=["a record batch is lost", "a record batch comes twice"],
)
def test_a_reader_that_errs_is_found(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, mutation: Callable[[list[Fetched]], list[Fetched]], more: int
) -> None:
    """The range, and how many rows."""
    publisher, rows = bus.publisher(parallelism=1), NumberedRows(bus.topic, partitions=1, rows=20)
    publish(publisher, rows, bus.journal, [0])
    with bus.subscribe("billing") as subscription:
        read(subscription, Checker(rows, bus.journal), bus.journal.rows)
        assert not account(bus.config(), bus.topic, "billing").differences, "the same reader is right"
        before, rows_of = bus.journal.rows, Subscription._rows
        monkeypatch.setattr(Subscription, "_rows", lambda self, plan: iter(mutation(list(rows_of(self, plan)))))
        publish(publisher, rows, bus.journal, [1])
        published = bus.journal.rows - before
        came = sum(batch.num_rows for batch in subscription.batches(timeout=1.0))
    hop = account(bus.config(), bus.topic, "billing")
    assert ranges(hop.differences) == [(1, 2, published, came, "counted")]
    assert (came - published) * more > 0
    assert (hop.counts.lost, hop.counts.doubled) == (max(0, published - came), max(0, came - published))
    assert hop.counts.newest == hop.differences[-1]


def shorten(catalog: Path, n: int) -> int:
    """Take the last row out of the segment of a batch, as a writer might have that counts wrongly; return its rows.

    All checksums are right: what readers verify is what lies there.
    """
    database = sqlite3.connect(catalog, timeout=PATIENCE, isolation_level=None)
    try:
        rows, data = database.execute("SELECT rows, data FROM segments WHERE n = ? AND partition = 0", (n,)).fetchone()
        stream = pa.ipc.open_stream(data + b"\xff\xff\xff\xff\x00\x00\x00\x00")  # a segment has no end mark
        batch = stream.read_all().combine_chunks().to_batches()[0].slice(0, rows - 1)
        file = SegmentFile.create(catalog.parent, file_name(new_write_id(), "0"), inline_max=INLINE_MAX)
        writer = PartitionedWriter(batch.schema, file, partitions=1, segment_max_bytes=1 << 20, compression="none")
        writer.write(batch, 0)
        (made,) = writer.finish(fsync=False)
        database.execute(
            "UPDATE segments SET rows = ?, length = ?, record_batches = ?, idx = ?, data = ? "
            "WHERE n = ? AND partition = 0",
            (made.rows, made.length, len(SegmentIndex.unpack(made.index).batches), made.index, made.data, n),
        )
    finally:
        database.close()
    return int(rows)


def test_an_altered_segment_is_found(own_bus: Bus) -> None:
    """What lies in the segment is not what was sealed; its checksums are right."""
    publisher, rows = own_bus.publisher(parallelism=2), NumberedRows(own_bus.topic, partitions=2, rows=20)
    publish(publisher, rows, own_bus.journal, range(3))
    catalog = own_bus.config().spool_dir / own_bus.topic / "catalog.db"
    shorten(catalog, 1)
    with own_bus.subscribe("billing") as subscription:
        came = sum(batch.num_rows for batch in subscription.batches(timeout=1.0))
    assert came == own_bus.journal.rows - 1
    hop = account(own_bus.config(), own_bus.topic, "billing")
    (found,) = hop.differences
    assert found.first <= 1 < found.end
    assert (found.published - found.read, found.reason) == (1, "counted")
    assert (hop.counts.committed, hop.counts.read, hop.counts.lost) == (own_bus.journal.rows, came, 1)


def test_a_coordinator_that_dies_makes_no_difference(own_bus: Bus) -> None:
    """What was proven stays so; what only the dead one was told is unproven at most."""
    publisher, rows = own_bus.publisher(parallelism=2), NumberedRows(own_bus.topic, partitions=2, rows=20)
    reader = own_bus.reader("billing", rows)
    for round_number in range(3):
        publish(publisher, rows, own_bus.journal, range(round_number * 4, round_number * 4 + 4))
        reader.wait_rows(own_bus.journal.rows)
        kill(coordinator_of(publisher))
    publish(publisher, rows, own_bus.journal, range(12, 20))
    reader.wait_rows(own_bus.journal.rows)
    config, sealed = own_bus.config(), own_bus.journal.rows
    until(lambda: account(config, own_bus.topic, "billing").counts.committed == sealed, PATIENCE, "acknowledged")
    reader.close()
    hop = account(config, own_bus.topic, "billing")
    assert hop.differences == ()
    assert hop.counts.unproven + hop.counts.read == hop.counts.committed
    assert hop.counts.read > 0


# -- flows -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def line(configure: Callable[..., Config]) -> Iterator[Chain]:
    with chain(configure()) as made:
        yield made


def test_a_flow_is_proven_and_its_reader_too(line: Chain) -> None:
    flow, checker = line.flow(), line.reader()
    line.publish(20)
    line.arrived(checker)
    line.publish(5)
    line.arrived(checker)
    config, rows = line.config, line.journal.rows
    until(lambda: account(config, "source", "flow").counts.committed == rows, PATIENCE, "acknowledged")
    hop = account(config, "source", "flow")
    assert (hop.counts.read, hop.counts.unproven, hop.differences) == (rows, 0, ())
    flow.stop()
    assert line.flow().name == "flow"
    line.publish(5)
    line.arrived(checker)
    rows = line.journal.rows
    until(lambda: account(config, "source", "flow").counts.committed == rows, PATIENCE, "acknowledged")
    assert not account(config, "source", "flow").differences


def test_a_flow_that_errs_is_found(line: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that leaves a record batch out, of one partition."""
    flow, checker = line.flow(), line.reader()
    line.publish(3)
    line.arrived(checker)
    items = flow_task.SourceReader.items

    def without_one(self: Any, *args: Any) -> Iterator[Any]:
        for item in items(self, *args):
            lost = isinstance(item, Item) and item.partition == 1 and item.fetched is not None
            yield replace(item, fetched=None) if lost else item

    monkeypatch.setattr(flow_task.SourceReader, "items", without_one)
    flow.stop()
    line.flow()
    line.publish(1)
    config = line.config
    until(lambda: account(config, "source", "flow").differences, PATIENCE, "a difference")
    hop = account(config, "source", "flow")
    (found,) = hop.differences
    assert (found.first, found.end, found.read, found.partitions) == (3, 4, 0, (1,))
    assert hop.counts.lost == found.published > 0


# -- tasks, as those of Spark ------------------------------------------------------------------------------------------


class Tasks:
    """A stream's driver and its tasks, in this process: each micro-batch is planned, read and counted."""

    def __init__(self, bus: Bus, coordinator: int) -> None:
        self.bus = bus
        self.coordinator = coordinator
        self.session = SubscriberSession.open(bus.config(), [bus.topic], "billing")
        self.at = self.session.first_position(bus.topic, Boundary.of("earliest", "starting"))
        self.plan = self.session.plan(bus.topic, self.at, ReadLimits())

    def micro_batch(self, *, tasks: Sequence[int] | None = None) -> int:
        """Plan, which acknowledges what was read before, and read; return the rows."""
        self.plan = self.session.plan(self.bus.topic, self.at, ReadLimits())
        return self.read_plan(tasks)

    def read_plan(self, tasks: Sequence[int] | None = None) -> int:
        """Read what was planned last; return the rows."""
        topic, config, plan = self.bus.topic, self.bus.config(), self.plan
        counts = CountedRange("billing", plan.start, plan.end, uuid.uuid4().hex)
        rows = 0
        for number, partition in enumerate(range(plan.partitions) if tasks is None else tasks):
            part = FetchRange(topic, plan.start, plan.end, partition, plan.data or "", counts.part(number))
            batches = (fetched.batch for fetched in fetch(part, config))
            rows += sum(batch.num_rows for batch in counted(batches, part, config))
        self.at = plan.end
        return rows

    def judged(self) -> HopCounts:
        """Wait until nothing is waited for any more, and return the counts."""
        deadline = time.monotonic() + GRACE_SECONDS + 3.0
        while time.monotonic() < deadline and not (found := self.counts).differences and not found.unproven:
            time.sleep(0.2)
        return self.counts

    @property
    def counts(self) -> HopCounts:
        return account(self.bus.config(), self.bus.topic, "billing").counts

    def close(self) -> None:
        self.session.close()


@pytest.fixture
def tasks(own_bus: Bus) -> Iterator[Tasks]:
    """A publisher of two partitions, and a stream."""
    publisher = own_bus.publisher(parallelism=2)
    rows = NumberedRows(own_bus.topic, partitions=2, rows=20, payload=20_000)
    publish(publisher, rows, own_bus.journal, range(4))
    made = Tasks(own_bus, coordinator_of(publisher))
    yield made
    made.close()


def test_a_link_that_breaks_before_the_count_makes_no_loss(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data process has seen it break; what was read is not known then."""
    ask = count_report.ask_blocking

    def cut(link: Any, request: Any, **more: Any) -> Any:
        if request.pieces[0].partition == 1:
            link.abort()
        return ask(link, request, **more)

    monkeypatch.setattr(count_report, "ask_blocking", cut)
    published = tasks.bus.journal.rows
    assert tasks.micro_batch() == published
    tasks.micro_batch()
    found = tasks.judged()
    assert (found.committed, found.unproven, found.differences) == (published, published, 0)


def test_a_data_process_that_dies_makes_no_loss(tasks: Tasks) -> None:
    """What it had not passed on went with it."""
    published = tasks.bus.journal.rows
    with stopped(tasks.coordinator):  # it has read nothing of what the data process reports
        reading = threading.Thread(target=tasks.read_plan)
        reading.start()
        reading.join(PATIENCE)
        kill(data_process_of(tasks.coordinator))
    tasks.micro_batch()
    found = tasks.judged()
    assert (found.committed, found.differences) == (published, 0)


@pytest.mark.slow
def test_a_coordinator_that_stood_still_makes_no_loss(tasks: Tasks) -> None:
    """For longer than counts may be late, between the acknowledgement and the count."""
    published = tasks.bus.journal.rows
    with stopped(data_process_of(tasks.coordinator)):
        tasks.micro_batch(tasks=())
        tasks.session.plan(tasks.bus.topic, tasks.at, ReadLimits())
        time.sleep(GRACE_SECONDS + 3.0)
        assert not tasks.counts.differences, "no time passes while no count can come"
    with stopped(tasks.coordinator):
        time.sleep(2.0)
    until(lambda: tasks.counts.differences, PATIENCE, "judged: nothing was read")
    assert tasks.counts.lost == published


@pytest.mark.slow
@pytest.mark.parametrize(("planned", "more"), [((0,), -1), ((0, 1, 1), 1)], ids=["left out", "given twice"])
def test_a_planner_that_errs_is_found(tasks: Tasks, planned: tuple[int, ...], more: int) -> None:
    """A partition that no task is given, and one that two are given."""
    published = tasks.bus.journal.rows
    read = tasks.micro_batch(tasks=planned)
    tasks.micro_batch()
    found = tasks.judged()
    assert found.newest is not None
    assert (found.newest.published, found.newest.read, found.newest.partitions) == (published, read, (1,))
    assert (found.newest.read - found.newest.published) * more > 0
