"""Placement "host": segments stay with the host server of who wrote them; away, back, lost, tidied (case 41).

All of it on one host: each "host" is a host server with a folder of its own, and the publisher says from which of them
the next batch is written.
"""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import jobpipe
from jobpipe.cli.main import cli
from jobpipe.config import Config
from jobpipe.errors import DataLoss, HostAway, SegmentCorrupt, SpoolError, WaitTimeout
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import EARLIEST
from jobpipe.subscribing.fetching import part_fetch as fetch_module
from jobpipe.subscribing.fetching.part_fetch import FetchRange, fetch
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.bus.hosts import HostServer
from tests.bus.kit import PATIENCE, Bus, Reader, coordinator_of, kill, named_link, read, until
from tests.bus.query import Query

HOST = {"spool.placement": "host", "hostserver.lost_after": "60s", "read.timeout": "30s"}
SOON = {**HOST, "hostserver.lost_after": "1s"}


class Place:
    """A bus with host servers A and B."""

    def __init__(self, bus: Bus, tmp_path: Path) -> None:
        self.bus = bus
        self.rows = NumberedRows(bus.topic, partitions=2, rows=1000, payload=100)  # too large for the catalog
        self.journal = Journal()
        self.a = HostServer(bus.config(HOST), tmp_path / "a")
        self.b = HostServer(bus.config(HOST), tmp_path / "b")

    def publisher(self, changes: dict[str, str], **options: Any) -> Publisher:
        return self.bus.publisher(changes, **options)

    def publish(self, publisher: Publisher, batch_id: int, host: HostServer | None, run: str = "r1") -> None:
        """Write a batch as a task on ``host`` does; None: on one without a host server."""
        folder = self.bus.config().home / "none" if host is None else host.folder
        publisher.config = dataclasses.replace(publisher.config, hostserver_dir=folder)
        with self.journal.sealing(batch_id, self.rows.ranges(batch_id)):
            publisher.seal("q", batch_id, self.rows.tables(batch_id), run_id=run)

    def checker(self) -> Checker:
        return Checker(self.rows, self.journal)

    def close(self) -> None:
        self.a.end()
        self.b.end()


@pytest.fixture
def place(own_bus: Bus, tmp_path: Path) -> Iterator[Place]:
    made = Place(own_bus, tmp_path)
    yield made
    own_bus.close()
    end_coordinators()
    made.close()


def state(publisher: Publisher, host: HostServer) -> str:
    return str(publisher.status().get("hosts", {}).get(host.id, {}).get("state"))


def newest(publisher: Publisher) -> tuple[int, int]:
    """Return epoch and offset of the log's head."""
    link = named_link(publisher.config, publisher.topic, "looker", "i1")
    try:
        head = link.call("bounds", {}, timeout=10.0).result["head"]
        return head["epoch"], head["n"]
    finally:
        link.close()


@pytest.mark.slow
def test_segments_stay_where_they_were_written(place: Place) -> None:
    """Each host keeps its own; where there is none the coordinator does; the status tells who served what."""
    publisher = place.publisher(HOST)
    for batch_id, host in enumerate((place.a, place.b, None, place.a)):
        place.publish(publisher, batch_id, host)
    assert (len(place.a.files()), len(place.b.files())) == (2, 1)
    assert len(list((publisher.config.spool_dir / publisher.topic / "segments").iterdir())) == 1
    checker = place.checker()
    read(place.bus.subscribe("s"), checker, 8000)
    checker.check()
    status = publisher.status()
    kept = status["hosts"]
    assert (kept[place.a.id]["segments"], kept[place.b.id]["segments"]) == (4, 2)
    assert kept[place.a.id]["bytes"] > 2 * kept[place.b.id]["bytes"] * 0.9
    assert {kept[place.a.id]["state"], kept[place.b.id]["state"]} == {"registered"}
    served = status["served"]
    assert served[place.a.id] == kept[place.a.id]["bytes"]
    assert served[place.b.id] == kept[place.b.id]["bytes"]
    assert 0 < served["data process"] < served[place.a.id]
    shown = CliRunner().invoke(cli, ["--config", str(place.a.file), "describe", publisher.topic])
    (line,) = [line.split() for line in shown.stdout.splitlines() if line.startswith(place.a.id)]
    assert line[1:4] == ["registered", "-", "4"]


@pytest.mark.slow
def test_a_task_of_another_user_uploads(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not write into the server's folder: then the server writes."""
    publisher = place.publisher(HOST)
    monkeypatch.setattr("jobpipe.publishing.local_host_server._is_ours", lambda place: False)
    place.publish(publisher, 0, place.a)
    assert len(place.a.files()) == 1
    assert place.a.files()[0].stat().st_mode & 0o077 == 0
    checker = place.checker()
    read(place.bus.subscribe("s"), checker, 2000)
    checker.check()


@pytest.mark.slow
def test_a_host_server_that_fails_in_the_middle_is_passed_over(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies after the rows were written into its folder: the coordinator gets the file, and nothing is left there."""
    publisher = place.publisher(HOST)
    real = BlockingLink.call

    def call(link: BlockingLink, op: str, *args: Any, **more: Any) -> Any:
        if op == "adopt":
            place.a.end(signal.SIGKILL)
        return real(link, op, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(BlockingLink, "call", call)
        place.publish(publisher, 0, place.a)
    assert place.a.files() == []
    place.publish(publisher, 1, place.a)  # its announcement is still there, and nobody answers
    assert len(list((publisher.config.spool_dir / publisher.topic / "segments").iterdir())) == 2
    checker = place.checker()
    read(place.bus.subscribe("s"), checker, 4000)
    checker.check()


@pytest.mark.slow
def test_a_host_that_comes_back_serves_its_segments_again(place: Place) -> None:
    """Readers wait for it meanwhile; it has its old id at another port."""
    publisher = place.publisher(HOST)
    place.publish(publisher, 0, place.a)
    place.publish(publisher, 1, place.b)
    known = place.a.id
    place.a.end(signal.SIGKILL)
    reader = Reader(place.bus.subscribe("s"), place.checker())
    try:
        until(lambda: state(publisher, place.a) == "absent", PATIENCE, "the host is not missed")
        place.publish(publisher, 2, place.b)
        assert reader.checker.rows == 0
        place.a.start()
        assert place.a.id == known
        reader.wait_rows(6000)
        reader.checker.check()
    finally:
        reader.close()


@pytest.mark.slow
def test_a_lost_host_is_named_with_the_exact_range(place: Place) -> None:
    publisher = place.publisher(SOON)
    for batch_id, host in enumerate((place.b, place.a, place.a, place.b, place.a)):
        place.publish(publisher, batch_id, host)
    place.a.end(signal.SIGKILL)
    until(lambda: state(publisher, place.a) == "lost", PATIENCE, "the host is not given up")
    assert publisher.status()["hosts"][place.a.id]["absent"] >= 1.0
    assert publisher.status()["hosts"][place.b.id]["absent"] == 0.0
    link = named_link(publisher.config, publisher.topic, "s", "i1")
    try:
        grant = link.call("grant", {"host": "h", "pid": 1}, timeout=10.0).result["grant"]
        first = link.call("first", {"grant": grant, "start": EARLIEST.to_json()}, timeout=10.0).result["position"]
        plan = link.call("plan", {"grant": grant, "start": first}, timeout=10.0).result
        assert [hole["start"]["n"] for hole in plan["lost"]] == [1, 2, 4]
        assert [hole["end"]["n"] for hole in plan["lost"]] == [2, 3, 5]
        assert {hole["rows"] for hole in plan["lost"]} == {2000}
        assert {tuple(hole["hosts"]) for hole in plan["lost"]} == {(place.a.id,)}
        again = link.call("range", {"grant": grant, "start": first, "end": plan["end"]}, timeout=10.0).result
        assert again["lost"] == plan["lost"]
    finally:
        link.close()
    start, end = Position.from_json(first), Position.from_json(plan["end"])
    with pytest.raises(DataLoss) as caught:
        list(fetch(FetchRange(publisher.topic, start, end, 0, publisher.status()["data"]), publisher.config))
    assert caught.value.fields["host"] == place.a.id
    assert caught.value.fields["offset"] == 1
    assert place.a.id in caught.value.message


@pytest.mark.slow
def test_a_flow_passes_over_a_lost_host(place: Place) -> None:
    """If it may: it names the offsets, and goes on with what is there; else it ends, and says how to go on."""
    publisher = place.publisher(SOON)
    for batch_id, host in enumerate((place.b, place.a, place.a, place.b)):
        place.publish(publisher, batch_id, host)
    place.a.end(signal.SIGKILL)
    until(lambda: state(publisher, place.a) == "lost", PATIENCE, "the host is not given up")
    seen = set[tuple[int, int]]()

    def look(batch: pa.RecordBatch, context: jobpipe.FlowContext) -> None:
        seen.add((context.offset, context.partition))

    def run(name: str, *, fail: bool) -> jobpipe.Flow:
        return jobpipe.flow(
            subscribe=publisher.topic,
            name=name,
            function=look,
            starting="earliest",
            fail_on_data_loss=fail,
            config=publisher.config,
        )

    with run("strict", fail=True) as flow, pytest.raises(DataLoss, match=place.a.id):
        flow.await_end(PATIENCE)
    seen.clear()
    with run("tolerant", fail=False) as flow:
        until(lambda: all(each.offset == 4 for each in flow.status().partitions), PATIENCE, "it is at the end")
    assert seen == {(n, partition) for n in (0, 3) for partition in (0, 1)}


@pytest.mark.slow
def test_a_silent_host_ends_a_read_with_its_name(place: Place) -> None:
    """Registered, and it does not answer: only the deadline tells (read.timeout)."""
    publisher = place.publisher(HOST)
    place.publish(publisher, 0, place.a)
    head = publisher.status()["head"]
    assert head == 1
    end = Position(publisher.log_id, publisher.epoch, 1)
    kill(place.a.pid, signal.SIGSTOP)
    try:
        config = dataclasses.replace(publisher.config, read_timeout=0.5)
        wanted = FetchRange(publisher.topic, Position(end.log, 0, 0), end, 0, publisher.status()["data"])
        with pytest.raises(HostAway) as caught:
            list(fetch(wanted, config))
    finally:
        kill(place.a.pid, signal.SIGCONT)
    assert (caught.value.fields["host"], caught.value.fields["offset"]) == (place.a.id, 0)
    assert list(fetch(wanted, publisher.config))


@pytest.mark.slow
def test_another_servers_bytes_are_not_believed(place: Place) -> None:
    """A host server's folder is damaged, or filled from elsewhere: the checksums are the catalog's."""
    publisher = place.publisher(HOST)
    place.publish(publisher, 0, place.a)
    (file,) = place.a.files()
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(bytes(damaged))
    end = Position(publisher.log_id, publisher.epoch, 1)
    data = publisher.status()["data"]

    def read_all() -> None:
        for k in range(2):
            list(fetch(FetchRange(publisher.topic, Position(end.log, 0, 0), end, k, data), publisher.config))

    with pytest.raises(SegmentCorrupt) as caught:
        read_all()
    assert caught.value.fields["offset"] == 0


@pytest.mark.slow
def test_what_is_not_needed_is_removed(place: Place) -> None:
    """Acknowledged batches, and files that lost attempts left; never those of the batch in progress (case 41)."""
    publisher = place.publisher({**SOON, "retention.time": "0s", "retention.ack_grace": "0s"})
    subscription = place.bus.subscribe("s")
    subscription.position()  # from now on batches are kept for it
    place.publish(publisher, 0, place.a)
    assert publisher.begin(BatchKey("q", 1, "r1")) is None
    left = publisher.target(2)
    left = dataclasses.replace(left, host_folder=place.a.folder)
    table = place.rows.tables(1)[0]
    pairs = [(batch, 0) for batch in table.to_batches()]
    assert left.write(table.schema, pairs, "lost")[0].host == place.a.id
    place.publish(publisher, 1, place.a)  # another write id: the attempt before it is an orphan now
    assert len(place.a.files()) == 3
    checker = place.checker()
    read(subscription, checker, 4000)
    checker.check()
    until(lambda: place.a.files() == [], PATIENCE, lambda: f"these stay: {place.a.files()}")
    assert publisher.status()["hosts"][place.a.id]["segments"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("removed", [True, False])
def test_a_file_that_goes_while_it_is_read(place: Place, monkeypatch: pytest.MonkeyPatch, removed: bool) -> None:
    """R15: what retention took is data loss, with the range; a file that is gone by itself is damage."""
    publisher = place.publisher({**SOON, "retention.time": "0s", "retention.ack_grace": "0s"})
    subscription = place.bus.subscribe("s")
    subscription.position()
    place.publish(publisher, 0, place.a)
    end = Position(publisher.log_id, publisher.epoch, 1)
    wanted = FetchRange(publisher.topic, Position(end.log, 0, 0), end, 0, publisher.status()["data"])
    host_server_part = fetch_module.host_server_part

    def late(*args: Any) -> Any:
        monkeypatch.setattr(fetch_module, "host_server_part", host_server_part)
        if removed:
            read(subscription, place.checker(), 2000)
            until(lambda: place.a.files() == [], PATIENCE, "the end of the files")
        for file in place.a.files():
            file.unlink()
        return host_server_part(*args)

    monkeypatch.setattr(fetch_module, "host_server_part", late)
    with pytest.raises(DataLoss if removed else SegmentCorrupt) as caught:
        list(fetch(wanted, publisher.config))
    if removed:
        assert caught.value.fields["reason"] == "removed"
    else:
        assert caught.value.fields["missing"]


@pytest.mark.slow
def test_a_batch_that_is_lost_before_all_have_it_is_written_anew(place: Place) -> None:
    """acks=all: the sink says so, Spark repeats the batch at the next start, and nothing is lost."""
    changes = {**SOON, "acks": "all"}
    publisher = place.publisher(changes, required_subscribers=("slow",))
    quick, slow = place.checker(), place.checker()
    with place.bus.subscribe("quick") as early, place.bus.subscribe("slow") as late:
        early.position(), late.position()  # both stand at the beginning
        reading = Reader(late, slow)
        try:
            place.publish(publisher, 0, place.b)
            reading.wait_rows(2000)
        finally:
            reading.close()
        failed: list[BaseException] = []

        def publish_one() -> None:
            try:
                place.publish(publisher, 1, place.a)
            except SpoolError as error:
                failed.append(error)

        writing = threading.Thread(target=publish_one)
        writing.start()
        read(early, quick, 4000)  # one subscriber has it, the other has not
        place.a.end(signal.SIGKILL)
        writing.join(PATIENCE)
    (error,) = failed
    assert isinstance(error, SpoolError)
    assert error.fields["hosts"] == [place.a.id]
    assert error.fields["missing"] == ["slow"]
    again = threading.Thread(target=lambda: place.publish(publisher, 1, place.b, run="r2"))
    again.start()
    until(lambda: newest(publisher) == (2, 2), PATIENCE, "it is not written anew, by epoch 2")
    # Their queries ended with DataLoss; started again they go on where they were.
    with (
        place.bus.subscribe("quick", "committed") as early,
        place.bus.subscribe("slow", "committed") as late,
    ):
        readers = [Reader(early, quick), Reader(late, slow)]
        try:
            again.join(PATIENCE)
            place.publish(publisher, 2, place.b, run="r2")
            for reader in readers:
                reader.wait_rows(6000)
                reader.checker.check()
        finally:
            for reader in readers:
                reader.close()
    assert publisher.status()["head"] == 3


@pytest.mark.slow
def test_a_lost_batch_is_written_anew_by_a_coordinator_that_was_just_started(place: Place) -> None:
    """acks=all: it cannot know how long the host has been away; once that is long enough, it needs no other start."""
    options: dict[str, Any] = {"required_subscribers": ("s",)}
    settings = {**HOST, "hostserver.lost_after": "3s", "acks": "all"}
    publisher = place.publisher({**settings, "acks.timeout": "3.5s"}, **options)
    with pytest.raises(WaitTimeout):
        place.publish(publisher, 0, place.a)
    place.a.end(signal.SIGKILL)
    end_coordinators()
    again = place.publisher(settings, **options)
    writing = threading.Thread(target=lambda: place.publish(again, 0, place.b, run="r2"))
    writing.start()
    until(lambda: bool(place.b.files()), PATIENCE, "it is not written anew")
    checker = place.checker()
    read(place.bus.subscribe("s"), checker, 2000)
    writing.join(PATIENCE)
    assert not writing.is_alive()
    checker.check()


@pytest.mark.slow
def test_the_coordinator_dies_and_knows_its_hosts_again(place: Place) -> None:
    publisher = place.publisher(HOST)
    place.publish(publisher, 0, place.a)
    kill(coordinator_of(publisher))
    place.publish(publisher, 1, place.a)
    checker = place.checker()
    read(place.bus.subscribe("s"), checker, 4000)
    checker.check()
    assert publisher.status()["hosts"][place.a.id]["segments"] == 4


@pytest.mark.slow
def test_one_server_a_folder(place: Place, tmp_path: Path, configure: Callable[..., Config]) -> None:
    """The second one says so and ends; SIGTERM ends the first with 0, and its announcement is gone (case 42)."""
    file = tmp_path / "a.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "jobpipe.cli.main", "--config", str(file), "server", "host"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert "another host server serves this folder" in done.stderr
    assert (tmp_path / "a" / "server.json").exists()
    assert place.a.end() == 0
    assert not (tmp_path / "a" / "server.json").exists()


@pytest.mark.slow
def test_reading_ahead_stops_before_what_is_lost(place: Place, settings_of_test: dict[str, str]) -> None:
    """A slot is bound up to there; what lies before is read and acknowledged, then the query fails with the offset."""
    publisher = place.publisher(SOON)
    place.publish(publisher, 0, place.b)
    options = {"subscribe": publisher.topic, "name": "ahead", "startingOffsets": "earliest", "readAhead": "true"}
    query = Query(**{**settings_of_test, **options})
    try:
        assert query.plan()
        for batch_id, host in ((1, place.b), (2, place.a), (3, place.b)):
            place.publish(publisher, batch_id, host)
        place.a.end(signal.SIGKILL)
        until(lambda: state(publisher, place.a) == "lost", PATIENCE, "the host is not given up")
        with pytest.raises(DataLoss) as caught:
            query.until(lambda: False, "the loss")
        assert caught.value.fields["offsets"] == [2]
        assert query.rows(publisher.topic) == 2 * 2000
        (line,) = publisher.status()["subscriptions"]
        assert line["position"] == 2
    finally:
        query.reader.stop()
