"""Segments: damaged ones are never delivered, cut fetches resume, a dead data process is replaced, uploads arrive."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from jobpipe.config import Config
from jobpipe.discovery.configured_tls import client_tls
from jobpipe.discovery.topic_lookup import locate
from jobpipe.errors import NotAuthorized, RemoteProtocolError, SegmentCorrupt, SpoolError, SpoolFull
from jobpipe.net.address import Endpoint
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.servers.write_tokens import write_ticket
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.publishing.batch_target import WriteTarget
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.store.catalog.position import Position
from jobpipe.store.spool.segment_index import SegmentInfo
from jobpipe.store.spool.spool_files import write_id_of
from jobpipe.subscribing.fetching.part_fetch import FetchRange, fetch
from jobpipe.testing import Checker, NumberedRows
from jobpipe.wire import frames
from jobpipe.wire.wire_messages import Hello
from tests.bus.kit import (
    PATIENCE,
    Bus,
    alive,
    coordinator_of,
    data_process_of,
    kill,
    publish,
    read,
    until,
)


def _dated(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is removed just now
            yield path.stat().st_mtime_ns, path


def files_of(publisher: Publisher) -> list[Path]:
    """Return the topic's segment files, oldest first."""
    folder = publisher.config.spool_dir / publisher.topic / "segments"
    return [path for _, path in sorted(_dated(folder))]


def flip_bit(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))


def whole(topic: str, publisher: Publisher, end: Position, partition: int = 0) -> FetchRange:
    """Return the range from the beginning to ``end``."""
    start = Position(end.log, 0, 0, 0)
    return FetchRange(topic, start, end, partition, publisher.status()["data"])


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["deleted", "truncated", "emptied", "flipped"])
def test_damaged_segment_is_never_delivered(bus: Bus, fault: str) -> None:
    """Case 33: the error names topic, offset and partition, at once."""
    rows = NumberedRows(bus.topic, partitions=2, rows=2000, payload=100)
    publisher = bus.publisher({"read.timeout": "60s"}, parallelism=2)
    publish(publisher, rows, bus.journal, range(3))
    victim = files_of(publisher)[1]
    match fault:
        case "deleted":
            victim.unlink()
        case "truncated":
            os.truncate(victim, victim.stat().st_size // 2)
        case "emptied":
            os.truncate(victim, 0)
        case _:
            flip_bit(victim)
    checker = Checker(rows, bus.journal)
    client = bus.subscribe("all", changes={"read.timeout": "60s"})
    with pytest.raises(SegmentCorrupt) as caught:
        checker.take_all(client.batches(timeout=30))
    assert caught.value.fields["topic"] == bus.topic
    assert caught.value.fields["offset"] == 1
    assert caught.value.fields["partition"] in (0, 1)
    assert set(checker.report().faults) == {"lost"}  # what came is right, and nothing was acknowledged by it
    publish(publisher, rows, bus.journal, [3])  # neighbours are neither deleted nor refused
    assert publisher.status()["batches"] == 4


def test_damaged_row_of_the_catalog_itself(bus: Bus) -> None:
    """Small batches lie in the catalog: the same checksums guard them."""
    import sqlite3

    rows = NumberedRows(bus.topic)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, range(2))
    database = sqlite3.connect(publisher.config.spool_dir / bus.topic / "catalog.db")
    (data,) = database.execute("SELECT data FROM segments WHERE n = 1").fetchone()
    changed = bytearray(data)
    changed[len(changed) // 2] ^= 1
    database.execute("UPDATE segments SET data = ? WHERE n = 1", (bytes(changed),))
    database.commit()
    database.close()
    checker = Checker(rows, bus.journal)
    with pytest.raises(SegmentCorrupt) as caught:
        checker.take_all(bus.subscribe("all").batches(timeout=30))
    assert caught.value.fields["offset"] == 1
    assert set(checker.report().faults) == {"lost"}


def test_removed_under_a_reader(bus: Bus) -> None:
    """Case 40: files are only ever unlinked: a stream that is under way ends well."""
    rows = NumberedRows(bus.topic, rows=60_000, payload=200)
    publisher = bus.publisher()
    (sealed,) = publish(publisher, rows, bus.journal, [0])
    checker = Checker(rows, bus.journal)
    batches = fetch(whole(bus.topic, publisher, sealed.position), publisher.config)
    checker.take(next(batches).batch)  # the rest waits in socket buffers and at the server
    for path in files_of(publisher):
        path.unlink()
    for fetched in batches:
        checker.take(fetched.batch)
    assert checker.check().rows == 60_000


@pytest.mark.slow
def test_data_process_killed(own_bus: Bus) -> None:
    """The coordinator starts another one, tells the registry, and readers and writers go on by themselves."""
    rows = NumberedRows(own_bus.topic, partitions=2, rows=1000, payload=100)
    publisher = own_bus.publisher(parallelism=2)
    epoch, coordinator = publisher.epoch, coordinator_of(publisher)
    reader = own_bus.reader("all", rows)
    publish(publisher, rows, own_bus.journal, range(3))
    reader.wait_rows(6000)
    for round_ in (1, 2):
        before = data_process_of(coordinator)
        kill(before)
        publish(publisher, rows, own_bus.journal, range(3 * round_, 3 * round_ + 3))
        reader.wait_rows(own_bus.journal.rows)
        assert data_process_of(coordinator) != before
    assert alive(coordinator)
    assert publisher.epoch == epoch  # no take-over was needed
    assert str(locate(own_bus.config(), own_bus.topic, PATIENCE).data) == publisher.status()["data"]
    publisher.close(final=True)
    reader.join()
    assert reader.checker.check().rows == 9 * 2000


@pytest.mark.slow
def test_data_process_killed_with_no_port_left(own_bus: Bus) -> None:
    """It cannot be replaced at once: whatever the coordinator does, the publisher and its readers go on in the end."""
    rows = NumberedRows(own_bus.topic, rows=1000, payload=100)
    publisher = own_bus.publisher({"sinkserver.port.range": "29310-29311"})
    reader = own_bus.reader("all", rows)
    publish(publisher, rows, own_bus.journal, range(2))
    reader.wait_rows(2000)
    kill(data_process_of(coordinator_of(publisher)))
    publish(publisher, rows, own_bus.journal, range(2, 4))
    publisher.close(final=True)
    reader.join()
    assert reader.checker.check().rows == 4000


@pytest.mark.slow
def test_fetch_cut_half_way_resumes(own_bus: Bus) -> None:
    """Case 14: the data process dies in the middle of a stream: the rest comes from the next one, each row once."""
    rows = NumberedRows(own_bus.topic, rows=120_000, payload=200)
    publisher = own_bus.publisher()
    (sealed,) = publish(publisher, rows, own_bus.journal, [0])
    assert sealed.bytes > 24_000_000  # far more than all socket buffers hold
    checker = Checker(rows, own_bus.journal)
    for number, fetched in enumerate(fetch(whole(own_bus.topic, publisher, sealed.position), publisher.config)):
        checker.take(fetched.batch)
        if number in (0, 2):
            coordinator = coordinator_of(publisher)
            before = data_process_of(coordinator)
            kill(before)
            until(lambda gone=before: not alive(gone), PATIENCE, "it is dead")
    assert number > 3
    assert checker.check().rows == 120_000


@pytest.mark.slow
def test_upload_of_a_remote_task(bus: Bus) -> None:
    """A writer whose directory is not the coordinator's sends the same bytes over the link."""
    rows = NumberedRows(bus.topic, partitions=2, rows=5000, payload=200)
    publisher = bus.publisher(parallelism=2)
    assert publisher.begin(BatchKey("q", 0, "r1")) is None
    target = replace(publisher.target(), instance="on another host", directory="/nowhere")
    schema = rows.tables(0)[0].schema
    infos = write_tasks(target, rows, schema)
    assert len({info.file for info in infos}) == 2
    assert {path.name for path in files_of(publisher)} == {info.file for info in infos}
    with bus.journal.sealing(0, rows.ranges(0)):
        publisher.commit(BatchKey("q", 0, "r1"), target, schema, None, infos)
    publisher.close(final=True)
    checker = Checker(rows, bus.journal).take_all(bus.subscribe("all").batches(timeout=30))
    assert checker.check().rows == 10_000


def test_upload_of_small_segments_needs_no_connection(bus: Bus) -> None:
    """They travel in the task's result; the data endpoint need not even be there."""
    rows = NumberedRows(bus.topic, partitions=2, rows=5)
    publisher = bus.publisher(parallelism=2)
    publisher.begin(BatchKey("q", 0, "r1"))
    target = replace(publisher.target(), instance="on another host", directory="/nowhere", data="127.0.0.1:9")
    schema = rows.tables(0)[0].schema
    infos = write_tasks(target, rows, schema)
    assert all(info.file is None for info in infos)
    with bus.journal.sealing(0, rows.ranges(0)):
        publisher.commit(BatchKey("q", 0, "r1"), target, schema, None, infos)
    checker = Checker(rows, bus.journal)
    read(bus.subscribe("all"), checker, 10)
    assert checker.check().rows == 10


def test_uploads_side_by_side(bus: Bus) -> None:
    """Case 4: several tasks at once, one of them cut in the middle: its file is not left behind."""
    rows = NumberedRows(bus.topic, partitions=4, rows=5000, payload=100)
    publisher = bus.publisher(parallelism=4)
    publisher.begin(BatchKey("q", 0, "r1"))
    target = replace(publisher.target(), instance="on another host", directory="/nowhere")
    schema = rows.tables(0)[0].schema
    link = data_link(bus.config(), bus.topic, "publisher")
    cut = f"{target.write_id}-cut.seg"
    args = {"file": cut, "length": 1_000_000, "ticket": target.ticket}
    link.start_upload("put", args, length=1_000_000, timeout=10)
    link.send_data(b"x" * 500_000)
    until(lambda: cut in {path.name for path in files_of(publisher)}, PATIENCE, "the upload has begun")
    found: dict[int, list[SegmentInfo]] = {}

    def task(number: int) -> None:
        table = rows.tables(0)[number]
        found[number] = target.write(schema, ((batch, number) for batch in table.to_batches()), f"{number}-7")

    threads = [threading.Thread(target=task, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    link.abort()
    until(lambda: cut not in {path.name for path in files_of(publisher)}, PATIENCE, "the torn file is removed")
    infos = [info for number in range(4) for info in found[number]]
    with bus.journal.sealing(0, rows.ranges(0)):
        publisher.commit(BatchKey("q", 0, "r1"), target, schema, None, infos)
    publisher.close(final=True)
    checker = Checker(rows, bus.journal).take_all(bus.subscribe("all").batches(timeout=30))
    assert checker.check().rows == 20_000


@pytest.mark.parametrize("name", ["../catalog.db", "catalog.db", "", "0123456789abcdef-../x.seg", "/etc/passwd"])
def test_upload_to_another_place_is_refused(bus: Bus, name: str) -> None:
    """Case 74: the name is a segment's or nothing."""
    bus.publisher()
    link = data_link(bus.config(), bus.topic, "publisher")
    link.start_upload("put", {"file": name, "length": 3}, length=3, timeout=10)
    link.send_data(b"abc")
    with pytest.raises(RemoteProtocolError, match="not a segment"):
        link.end_upload(timeout=10)
    link.close()


def test_upload_by_a_reader_and_over_a_file_is_refused(bus: Bus) -> None:
    """Only publishers write, and never over what is there."""
    rows = NumberedRows(bus.topic, rows=2000, payload=100)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, [0])
    (file,) = files_of(publisher)
    content = file.read_bytes()
    for role, error in (("reader", NotAuthorized), ("publisher", SpoolError)):
        link = data_link(bus.config(), bus.topic, role)
        ticket = write_ticket(publisher.coordinator.secret, bus.topic, str(write_id_of(file.name)))
        link.start_upload("put", {"file": file.name, "length": 3, "ticket": ticket}, length=3, timeout=10)
        link.send_data(b"abc")
        with pytest.raises(error):
            link.end_upload(timeout=10)
        link.close()
    assert file.read_bytes() == content


def write_tasks(target: WriteTarget, rows: NumberedRows, schema: pa.Schema) -> list[SegmentInfo]:
    """Write a batch as one task for each partition would."""

    def pairs(number: int, table: pa.Table) -> Iterator[tuple[pa.RecordBatch, int]]:
        return ((batch, number) for batch in table.to_batches())

    written = [target.write(schema, pairs(number, table), f"{number}-0") for number, table in enumerate(rows.tables(0))]
    return [info for infos in written for info in infos]


def data_link(config: Config, topic: str, role: str) -> BlockingLink:
    """Dial the topic's data process."""
    endpoint: Endpoint = locate(config, topic, PATIENCE).data
    hello = Hello(topic=topic, role=role, instance="test")
    return BlockingLink.connect(endpoint, hello, tls=client_tls(config), server_hostname=topic_server_name(topic))


@pytest.mark.slow
def test_more_segments_than_one_seal_carries(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 4: refused here, before a byte is sent; the error says what to do, and the publisher goes on."""
    rows = NumberedRows(bus.topic, partitions=100)
    publisher = bus.publisher(parallelism=100)
    with monkeypatch.context() as patch:
        patch.setattr(frames, "CONTROL_LIMIT", 10_000)
        with pytest.raises(SpoolFull, match=r"it has 100 segments.*nothing was sealed.*fewer partitions \(now 100\)"):
            publisher.seal("q", 0, rows.tables(0), run_id="r1")
    publish(publisher, rows, bus.journal, [0])
    publisher.close(final=True)
    assert Checker(rows, bus.journal).take_all(bus.subscribe("all").batches()).check().rows == 1000
