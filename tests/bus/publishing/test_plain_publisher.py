"""``jobpipe.publisher``: publishing without Spark, exactly once by batch ids, judged by the delivery oracle."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jobpipe
from jobpipe.arrow import schema_validation
from jobpipe.config import Config
from jobpipe.errors import (
    ConfigError,
    LinkClosed,
    RowTooLarge,
    SchemaMismatch,
    TopicOwned,
    UnsupportedType,
    WaitTimeout,
)
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.publishing.plain_publisher import PlainPublisher
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.bus.kit import PATIENCE, ROOT, Bus, coordinator_of, kill, until
from tests.docs.troubleshooting import on_page

SCHEMA = pa.schema([pa.field("customer", pa.string(), nullable=False), ("amount", pa.float64())])
WRITER = Path(__file__).with_name("plain_writer.py")


@pytest.fixture
def opened(bus: Bus) -> Iterator[Any]:
    """Return a maker of plain publishers of the test's topic, all closed at its end."""
    made: list[PlainPublisher] = []

    def make(**given: Any) -> PlainPublisher:
        made.append(jobpipe.publisher(bus.topic, config=bus.config(), **given))
        return made[-1]

    yield make
    for each in reversed(made):
        each.close()


def rows_of(bus: Bus, name: str = "all") -> list[dict[str, Any]]:
    """Read the topic to its end mark, from its beginning."""
    with bus.subscribe(name) as subscription:
        return [row for batch in subscription.batches(timeout=PATIENCE) for row in batch.to_pylist()]


@pytest.mark.slow
def test_all_forms_of_rows(bus: Bus, opened: Any) -> None:
    """Record batches, tables and, with a schema, lists of dicts."""
    orders = opened(schema=SCHEMA)
    first = {"customer": "a", "amount": 1.0}
    assert orders.write([first, {"customer": "b"}]).position.n == 1
    orders.write(pa.RecordBatch.from_pylist([{"amount": 2, "customer": "c"}]))  # another order, a narrower type
    assert orders.write(pa.table({"customer": ["d"], "amount": [3.0]})).rows == 1
    assert (orders.write([]).rows, orders.last_batch_id) == (0, None)
    orders.close(final=True)
    amounts = [(row["customer"], row["amount"]) for row in rows_of(bus)]
    assert amounts == [("a", 1.0), ("b", None), ("c", 2.0), ("d", 3.0)]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"customer": "a", "amuont": 1.0}], "amuont, which the schema does not"),
        ([{"customer": "a", "amount": "much"}], "amount|much"),
        ([{"amount": 1.0}], "field 'customer' with null values to non-nullable"),
        (pa.table({"customer": ["a"]}), "the schema has the columns customer, amount, the rows have customer"),
        (pa.table({"customer": ["a"], "amount": ["much"]}), "much"),
    ],
    ids=["unknown key", "wrong value", "null", "missing column", "wrong type"],
)
def test_rows_that_do_not_fit_are_refused(bus: Bus, opened: Any, rows: Any, why: str) -> None:
    """None of them is published; the next batch is."""
    orders = opened(schema=SCHEMA)
    with pytest.raises(SchemaMismatch, match=why) as caught:
        orders.write(rows)
    on_page(caught.value, "SchemaMismatch: topic '…':")
    assert caught.value.fields["topic"] == bus.topic
    assert orders.write([{"customer": "a"}]).position.n == 1


def test_batch_ids_are_published_once(bus: Bus, opened: Any) -> None:
    """An id that repeats, or goes down, publishes nothing, and tells the position after the newest batch."""
    orders = opened(name="importer", schema=SCHEMA)
    assert orders.last_batch_id is None
    sealed = [orders.write([{"customer": str(batch_id)}], batch_id=batch_id) for batch_id in (3, 4, 9)]
    assert [each.replayed for each in sealed] == [False] * 3
    for batch_id in (9, 4, 3, 0):
        again = orders.write([{"customer": "again"}], batch_id=batch_id)
        assert (again.replayed, again.rows, again.position) == (True, 0, sealed[-1].position)
    orders.close()
    later = opened(name="importer")  # the next process goes on
    assert later.last_batch_id == 9
    assert later.write(pa.table({"customer": ["x"]}), batch_id=9).replayed
    assert not later.write(pa.table({"customer": ["10"]}), batch_id=10).replayed
    other = [later.write(pa.table({"customer": ["without"]})) for _ in range(2)]
    assert not any(each.replayed for each in other)
    assert later.last_batch_id == 10
    later.close(final=True)
    assert [row["customer"] for row in rows_of(bus)] == ["3", "4", "9", "10", "without", "without"]


def test_notes_are_kept_with_their_batches(bus: Bus, opened: Any) -> None:
    """Given back to the next process; a replay keeps the first one; a batch without rows, or without a note, too."""
    importer = opened(name="importer", schema=SCHEMA)
    assert (importer.last_batch_id, importer.last_note) == (None, None)
    importer.write([{"customer": "a"}], batch_id=0, note=b"0/16B3748")
    assert importer.last_note == b"0/16B3748"
    assert importer.write([{"customer": "again"}], batch_id=0, note=b"other").replayed
    assert importer.last_note == b"0/16B3748"
    longest = bytes(range(256)) * 16
    assert importer.write([], batch_id=1, note=longest).position.n == 1
    assert importer.write([], batch_id=0, note=b"older").replayed
    importer.write([{"customer": "of none"}])
    importer.close()
    later = opened(name="importer", schema=SCHEMA)
    assert (later.last_batch_id, later.last_note) == (1, longest)
    assert later.write([], batch_id=1, note=b"other").replayed
    assert later.last_note == longest
    later.write([{"customer": "b"}], batch_id=2, note=b"")
    assert later.last_note == b""
    later.write([{"customer": "c"}], batch_id=3)
    assert (later.last_batch_id, later.last_note) == (3, None)
    later.close()
    other = opened(name="another")
    assert (other.last_batch_id, other.last_note) == (None, None)
    other.close(final=True)
    assert [row["customer"] for row in rows_of(bus)] == ["a", "of none", "b", "c"]


def test_a_write_that_failed_after_its_seal_tells_its_note(bus: Bus, opened: Any, monkeypatch: Any) -> None:
    importer = opened(name="importer", schema=SCHEMA)

    def lost(*_: Any) -> None:
        raise LinkClosed("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(importer._publisher, "_warn_of_placement", lost)  # what comes after the seal
        with pytest.raises(LinkClosed):
            importer.write([{"customer": "a"}], batch_id=0, note=b"there")
    assert importer.write([{"customer": "a"}], batch_id=0, note=b"there").replayed
    assert (importer.last_batch_id, importer.last_note) == (0, b"there")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"note": b"x"}, "needs a batch_id"),
        ({"note": b"x" * 4097, "batch_id": 1}, "is 4097 bytes, expected at most 4096 bytes"),
        ({"note": "x", "batch_id": 1}, "is str, expected at most 4096 bytes"),
    ],
)
def test_wrong_notes(opened: Any, given: dict[str, Any], why: str) -> None:
    importer = opened(name="importer")
    importer.write(pa.table({"a": [1]}), batch_id=0, note=b"x" * 4096)
    with pytest.raises(ConfigError, match=why):
        importer.write(pa.table({"a": [1]}), **given)
    assert importer.last_batch_id == 0


def test_a_note_needs_acks_local(bus: Bus, opened: Any) -> None:
    """Here, and where it would be kept: with ``acks=all`` a log outlives its spool, and notes do not."""
    with bus.subscribe("billing", starting="earliest"):
        config = bus.config({"acks": "all", "acks.timeout": "100ms"})
        importer = jobpipe.publisher(bus.topic, config=config, name="importer", required_subscribers=["billing"])
        key, batch = BatchKey("importer", 0, "run"), pa.RecordBatch.from_pydict({"a": [1]})
        with pytest.raises(ConfigError, match=r"the note of batch 0 needs acks=local") as caught:
            importer.write(pa.table({"a": [1]}), batch_id=0, note=b"x")
        on_page(caught.value, "ConfigError: topic '…': the note of batch")
        with pytest.raises(ConfigError, match=r"a note needs acks=local"):
            importer._publisher.seal_rows(key, batch.schema, [(batch, 0)], note=b"x")
        assert importer.last_batch_id is None
        with pytest.raises(WaitTimeout):
            importer.write(pa.table({"a": [1]}), batch_id=0)  # published; it is not acknowledged
        importer.close()


@pytest.mark.parametrize("batch_id", [-1, 1 << 63, 1.0, "7", True])
def test_wrong_batch_ids(opened: Any, batch_id: Any) -> None:
    with pytest.raises(ConfigError, match="expected a whole number from 0"):
        opened(name="importer").write(pa.table({"a": [1]}), batch_id=batch_id)


def test_a_batch_id_needs_a_name(opened: Any) -> None:
    with pytest.raises(ConfigError, match="needs a publisher with a name") as caught:
        opened().write(pa.table({"a": [1]}), batch_id=1)
    on_page(caught.value, "ConfigError: topic '…': batch_id")


def test_a_list_needs_a_schema(opened: Any) -> None:
    with pytest.raises(ConfigError, match="a list of dicts; got list"):
        opened().write([{"a": 1}])


def test_wrong_arguments_are_told_at_once(config: Config) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigError) as caught:
        jobpipe.publisher("a b", parallelism=0, acks="some", min_subscribers=-1, partitioner=3, retention_tiem="1h")
    assert len(caught.value.fields["problems"]) == 6
    with pytest.raises(ConfigError, match="a name that does not begin with 'once:'"):  # as ids of appenders do
        jobpipe.publisher("orders", name="once:append:import", config=config)
    with pytest.raises(ConfigError, match="partition_by names city, and the rows have the columns customer, amount"):
        jobpipe.publisher("orders", schema=SCHEMA, partition_by="city", config=config)
    with pytest.raises(UnsupportedType, match="cannot be hashed without Spark"):
        jobpipe.publisher("orders", schema=pa.schema([("a", pa.list_(pa.int8()))]), partition_by="a", config=config)
    with pytest.raises(UnsupportedType, match="dictionary-encoded"):
        jobpipe.publisher("orders", schema=pa.schema([("a", pa.dictionary(pa.int8(), pa.string()))]), config=config)


@pytest.mark.parametrize(
    ("rows", "error", "why"),
    [
        (pa.table({"c": pa.array([1000, 1001], pa.timestamp("ns"))}), SchemaMismatch, "row 1: column 'c' cannot be"),
        (pa.table([[1], [2]], names=["c", "c"]), UnsupportedType, "two columns have the name c"),
        (pa.table({"c": pa.array([None], pa.decimal256(50, 2))}), UnsupportedType, r"c \(decimal256\(50, 2\)"),
        (pa.table({"c\0": [1]}), UnsupportedType, "NUL"),
        (pa.table({"c": [1]}).select([]), UnsupportedType, "the rows have no columns"),
        (pa.table({"c": ["x" * 5000]}), RowTooLarge, "row 0: it has 50.. bytes, 50.. of them in column 'c'"),
        (
            pa.table([[1]], schema=pa.schema([pa.field("c", pa.int64(), metadata={"x": "y" * 9_000_000})])),
            UnsupportedType,
            r"takes 9\d{6} bytes.*may take 2097152 \(schema bytes\)",
        ),
    ],
    ids=["nanoseconds", "two of one name", "decimal", "NUL", "no columns", "large row", "large metadata"],
)
def test_what_no_subscriber_could_read_is_refused(
    bus: Bus, opened: Any, monkeypatch: pytest.MonkeyPatch, rows: Any, error: type[Exception], why: str
) -> None:
    """P5, P6, P7, P9: where it is written, with what to do; the next batch is published and read."""
    monkeypatch.setattr(schema_validation, "ROW_MAX", 4096)
    orders = opened(name="importer")
    with pytest.raises(error, match=f"^topic {bus.topic!r}.*{why}"):
        orders.write(rows, batch_id=1)
    nanoseconds = pa.table({"c": pa.array([1000], pa.timestamp("ns", "UTC")), "n": pa.array([255], pa.uint8())})
    assert orders.write(nanoseconds, batch_id=1).position.n == 1
    orders.close(final=True)
    assert rows_of(bus) == [{"c": datetime(1970, 1, 1, 0, 0, 0, 1, UTC), "n": 255}]


def test_a_declared_schema_is_published_as_all_can_read_it(bus: Bus, opened: Any) -> None:
    """P5: dicts are read by the publisher's own schema, and converted from there."""
    schema = pa.schema([("at", pa.timestamp("ns", "UTC")), ("n", pa.uint64())])
    orders = opened(schema=schema)
    orders.write([{"at": 5000, "n": 2**64 - 1}])
    with pytest.raises(SchemaMismatch, match=f"topic {bus.topic!r}, row 1: column 'at'") as caught:
        orders.write([{"at": 5000, "n": 1}, {"at": 5001, "n": 1}])
    on_page(caught.value, "SchemaMismatch: topic '…', row …: column '…' cannot")
    orders.close(final=True)
    assert rows_of(bus) == [{"at": datetime(1970, 1, 1, 0, 0, 0, 5, UTC), "n": 2**64 - 1}]
    with pytest.raises(UnsupportedType, match="two columns have the name a"):
        opened(schema=pa.schema([("a", pa.int8()), ("a", pa.int8())]))


def test_dictionaries_come_decoded(bus: Bus, opened: Any) -> None:
    """As pandas' categories are; and what pandas notes in a schema does not make it another one."""
    orders = opened()
    frame = pa.table({"kind": pa.array(["a", "b", "a"]).dictionary_encode()}).replace_schema_metadata({"pandas": "{}"})
    orders.write(frame)
    orders.write(pa.table({"kind": ["c"]}))
    assert orders.status()["rows"] == 4
    orders.close(final=True)
    assert [row["kind"] for row in rows_of(bus)] == ["a", "b", "a", "c"]


def partitions_of(bus: Bus) -> list[list[int]]:
    """Return the numbers of each record batch, which is of one partition."""
    with bus.subscribe("all") as subscription:
        return [batch["number"].to_pylist() for batch in subscription.batches(timeout=PATIENCE)]


def test_rows_are_dealt_out(bus: Bus, opened: Any) -> None:
    """By equal runs, by Spark's hash, by a function."""
    table = pa.table({"number": range(8), "key": ["ABC", "x"] * 4})
    for given in ({}, {"partition_by": "key"}, {"partitioner": lambda batch, partitions: batch["number"]}):
        rows = table if "partitioner" not in given else table.slice(0, 4)
        orders = opened(parallelism=4, **given)
        orders.write(rows)
        assert orders.status()["parallelism"] == 4
        orders.close()
    opened().close(final=True)
    runs = [[0, 1], [2, 3], [4, 5], [6, 7]]
    by_key = [[0, 2, 4, 6], [1, 3, 5, 7]]  # 'ABC' is in partition 0 of 4, as docs/kafka.md says
    assert partitions_of(bus) == [*runs, *by_key, [0], [1], [2], [3]]


def test_threads_share_it(bus: Bus, opened: Any) -> None:
    """Each batch stays whole, and none is lost."""
    orders = opened()

    def write(number: int) -> None:
        for _ in range(5):
            orders.write(pa.table({"thread": [number] * 3}))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    orders.close(final=True)
    with bus.subscribe("all") as subscription:
        batches = [batch["thread"].to_pylist() for batch in subscription.batches(timeout=PATIENCE)]
    assert sorted(batches) == sorted([[number] * 3 for number in range(4) for _ in range(5)])


@pytest.mark.slow
def test_close_ends_the_wait_of_another_thread(bus: Bus) -> None:
    """A write that waits for ``acks=all`` does not hold up the end of the program; it is published all the same."""
    config = bus.config({"acks": "all", "acks.timeout": "10min"})
    orders = jobpipe.publisher(bus.topic, name="importer", required_subscribers="billing", config=config)
    failed: list[BaseException] = []

    def write() -> None:
        try:
            orders.write(pa.table({"a": [1]}), batch_id=7)
        except WaitTimeout as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    until(lambda: orders.status()["waiting"], PATIENCE, "the write waits for billing")
    orders.close()
    thread.join(PATIENCE)
    on_page(failed[0], "WaitTimeout: topic")
    assert "this publisher was closed; not acknowledged by billing" in str(failed[0])
    with pytest.raises(LinkClosed, match="this publisher is closed"):
        orders.write(pa.table({"a": [2]}))
    with jobpipe.publisher(bus.topic, name="importer", config=bus.config()) as again:
        assert again.last_batch_id == 7


@pytest.mark.slow
def test_its_coordinator_dies(own_bus: Bus) -> None:
    """As a sink's: another one is started, and the batches go on, each once."""
    with jobpipe.publisher(own_bus.topic, name="importer", config=own_bus.config()) as orders:
        for batch_id in range(4):
            if batch_id in (1, 3):
                kill(coordinator_of(orders._publisher))
            assert not orders.write(pa.table({"number": [batch_id]}), batch_id=batch_id).replayed
        orders.close(final=True)
    assert [row["number"] for row in rows_of(own_bus)] == [0, 1, 2, 3]


@pytest.mark.slow
def test_replace_and_close_by_name(bus: Bus, opened: Any) -> None:
    """U8: a cell that is run again; and one whose publisher nobody kept."""
    first = opened()
    with pytest.raises(TopicOwned, match=r"jobpipe\.close\(") as caught:
        opened()
    on_page(caught.value, "TopicOwned: topic '…' already has a publisher in this job")
    assert len(caught.value._render_traceback_()) == 1
    second = opened(replace=True)
    with pytest.raises(LinkClosed):
        first.write(pa.table({"a": [1]}))
    second.write(pa.table({"a": [1]}))
    assert jobpipe.close(bus.topic, final=True)
    assert not jobpipe.close(bus.topic)
    assert rows_of(bus) == [{"a": 1}]


def test_the_arguments() -> None:
    assert "batch_id" not in inspect.signature(jobpipe.publisher).parameters
    assert list(inspect.signature(jobpipe.publisher).parameters)[:2] == ["topic", "schema"]


@pytest.mark.slow
def test_killed_in_the_middle_of_writes(settings_of_test: dict[str, str], config: Config, tmp_path: Path) -> None:
    """``kill -9`` at random places, three times; each life goes on by id and note: 0 lost, 0 twice."""
    rows = NumberedRows("orders", partitions=2, rows=50)
    read: list[pa.RecordBatch] = []
    order = {"settings": settings_of_test, "topic": "orders", "journal": str(tmp_path / "journal"), "batches": 60}

    def follow() -> None:
        with jobpipe.subscribe("orders", name="all", starting="earliest", config=config) as subscription:
            read.extend(subscription)

    reading = threading.Thread(target=follow, daemon=True)
    coordinators: list[int] = []
    resumed = []
    try:
        for life, written in enumerate((3, 11, 17, None)):
            process = subprocess.Popen(
                [sys.executable, str(WRITER), json.dumps(order)],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            assert process.stdout is not None
            with process.stdout:
                said = json.loads(process.stdout.readline())
                coordinators.append(said["coordinator"])
                resumed.append(said["last_batch_id"])
                assert said["last_note"] == (None if resumed[-1] is None else f"after {resumed[-1]}")
                if life == 0:
                    reading.start()
                if written is not None:
                    for _ in range(written):
                        process.stdout.readline()
                    process.send_signal(signal.SIGKILL)
                process.stdout.read()
                assert process.wait(PATIENCE) == (0 if written is None else -signal.SIGKILL)
        reading.join(PATIENCE)
        assert not reading.is_alive()
    finally:
        for pid in coordinators:
            kill(pid, signal.SIGTERM)
    assert resumed[0] is None
    assert resumed[1:] == sorted(resumed[1:])
    checker = Checker(rows, Journal(tmp_path / "journal")).take_all(read)
    assert checker.check().rows == 60 * 100
