"""S3, R14: leases of bounded reads have a bound, an owner and an end, and are renewed while they are read."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql.types import StructType

from jobpipe.admin import Admin
from jobpipe.cli.main import cli
from jobpipe.coordinator.topic import topic_leases as leases_module
from jobpipe.errors import SpoolFull, TopicNotFound
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.operations.admin_operations import LeaseReply
from jobpipe.operations.reader_operations import lease_name
from jobpipe.spark.source.data_source import JobPipeDataSource
from jobpipe.subscribing import lease_renewal as lease_keeping
from jobpipe.subscribing.lease_renewal import HeldLease, held_while
from jobpipe.testing import Checker, NumberedRows
from tests.bus.kit import PATIENCE, Bus, publish, until
from tests.bus.serving.test_discovery import greet

SOON = {"retention.time": "0s", "retention.ack_grace": "0s"}


@pytest.fixture
def reader(bus: Bus) -> Iterator[BlockingLink]:
    """A reader's control link to a topic with three batches."""
    publish(bus.publisher(), NumberedRows(bus.topic), bus.journal, range(3))
    with contextlib.closing(greet(bus.config(), bus.topic)) as link:
        yield link


def secret(key: str) -> str:
    return key.ljust(32, "_")


def name(key: str) -> str:
    return lease_name(secret(key))


def take(link: BlockingLink, key: str, first: int = 0, last: int = 3, seconds: float = 600.0) -> None:
    link.call("lease", {"secret": secret(key), "first": first, "last": last, "seconds": seconds}, timeout=10.0)


@pytest.mark.slow
def test_leases_are_told_and_taken_away(bus: Bus, reader: BlockingLink) -> None:
    """S3: nobody could list or remove them."""
    take(reader, "one")
    with Admin(bus.config()) as admin:
        (line,) = admin.status(bus.topic).leases
        assert (line.id, line.first, line.last, line.connected) == (name("one"), 0, 3, True)
        assert line.owner
        assert 0 <= line.since < PATIENCE
        assert 500 < line.left <= 600
        assert admin.status(bus.topic).identities[line.owner]["leases"] == 1
        assert secret("one") not in json.dumps(admin.status(bus.topic).to_json()), "T3: the secret is the lease's owner"
        assert admin.drop_lease(bus.topic, name("one"), dry_run=True).first == 0
        assert admin.status(bus.topic).leases
        admin.drop_lease(bus.topic, name("one"))
        assert admin.status(bus.topic).leases == ()
        with pytest.raises(TopicNotFound, match="no lease"):
            admin.drop_lease(bus.topic, name("one"))
        take(reader, "two")
        reader.call("release", {"secret": secret("two")}, timeout=10.0)
        assert "leases" not in admin.status(bus.topic).identities.get(line.owner, {})


@pytest.mark.slow
def test_a_link_that_ends_takes_its_leases_with_it(bus: Bus, reader: BlockingLink) -> None:
    """S3: after a grace, in which the reader may come back."""
    take(reader, "long", seconds=86_000.0)
    reader.abort()
    with Admin(bus.config()) as admin:

        def line() -> LeaseReply:
            return admin.status(bus.topic).leases[0]

        left = until(lambda: not (now := line()).connected and now.left < 2000 and now.left, PATIENCE, "a cut")
        assert left <= leases_module.LEASE_GRACE_SECONDS
        with contextlib.closing(greet(bus.config(), bus.topic)) as again:
            take(again, "long", seconds=80_000.0)
            assert line().connected
            assert 70_000 < line().left <= 80_000


@pytest.mark.slow
def test_a_full_spool_names_the_lease(own_bus: Bus) -> None:
    """S3, R14: it named a subscription that had read everything."""
    small = {"spool.max_bytes": "40KiB", "segment.max_bytes": "4KiB", "acks.timeout": "1s"}
    publisher = own_bus.publisher({**SOON, **small})
    rows = NumberedRows(own_bus.topic, rows=200)
    client = own_bus.subscribe("fast")

    def fill() -> None:
        for number in range(100):
            publisher.seal("q", number, rows.tables(number), run_id="r1")
            for _ in client.batches(timeout=0.05):
                pass

    with contextlib.closing(greet(own_bus.config(), own_bus.topic)) as link:
        take(link, "holding", 0, 1)
        with pytest.raises(SpoolFull, match=rf"lease {name('holding')} of .* keeps batches from offset 0 on") as caught:
            fill()
        assert "jobpipe topics leases drop" in str(caught.value)


@pytest.mark.slow
def test_the_command_lists_and_ends_leases(bus: Bus, reader: BlockingLink, tmp_path: Path) -> None:
    take(reader, "mine")
    file = tmp_path / "jobpipe.yaml"
    file.write_text(json.dumps(bus.config().to_dict()))
    run = lambda *words: CliRunner().invoke(cli, ["--config", str(file), "topics", "leases", *words])  # noqa: E731
    told = run("list", bus.topic)
    assert name("mine") in told.output, told.output
    assert f"would end lease {name('mine')}" in run("drop", bus.topic, name("mine"), "--dry-run").output
    assert json.loads(run("drop", bus.topic, name("mine"), "--json").output)["first"] == 0
    assert run("list", bus.topic).output.strip() == "no leases"


@pytest.mark.slow
def test_a_long_read_renews_its_lease(bus: Bus, reader: BlockingLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """R14: `spark.read` took one lease and never renewed it: a long batch read lost its rows in the middle."""
    monkeypatch.setattr(lease_keeping, "_renewed", {})
    held = HeldLease(bus.topic, secret("read"), 0, 3, reader.peer, 1.0)
    reader.call("lease", held.request().to_json(), timeout=10.0)
    with Admin(bus.config()) as admin:
        began = time.monotonic()
        with held_while(held, bus.config()):
            while time.monotonic() - began < 2.5:
                assert [line.id for line in admin.status(bus.topic).leases] == [held.name]
                time.sleep(0.1)
        until(lambda: not admin.status(bus.topic).leases, PATIENCE, "its end")
    json.dumps(held.request().to_json())


@pytest.mark.slow
def test_a_read_that_takes_longer_than_its_lease(bus: Bus, module_settings: dict[str, str]) -> None:
    """R14: tasks that read slowly, one after the other, find their rows, though retention keeps none of them."""
    rows = NumberedRows(bus.topic, partitions=2)
    publisher = bus.publisher(SOON, parallelism=2)
    seconds = 2.0
    with contextlib.closing(greet(bus.config(), bus.topic)) as link:
        publish(publisher, rows, bus.journal, [0])
        take(link, "until-planned", 0, 0)
        publish(publisher, rows, bus.journal, [1, 2])
        source = JobPipeDataSource({**module_settings, "subscribe": bus.topic, "jobpipe.read.timeout": f"{seconds}s"})
        reader = source.reader(StructType.fromJson(json.loads(source.schema().json())))
        parts = reader.partitions()
        link.call("release", {"secret": secret("until-planned")}, timeout=10.0)
    checker = Checker(rows, bus.journal)
    began = time.monotonic()
    for number, part in enumerate(parts, 1):
        for batch in reader.read(part):
            checker.take(batch)
            while time.monotonic() - began < 1.5 * seconds * number:
                assert publisher.status()["leases"], "given up while it is read"
                time.sleep(0.1)
    assert (len(parts), checker.check().rows) == (2, 60)
    until(lambda: publisher.status()["batches"] == 0, PATIENCE, "its end: nothing else keeps the rows")
