"""One live publisher a topic: refusal of a second one, and take-over from closed, killed and stopped ones."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobpipe.discovery.registry_handler import open_handler
from jobpipe.errors import Fenced, SpoolError, TopicOwned, WaitTimeout
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.bus.kit import PATIENCE, Bus, Driver, alive, coordinator_of, kill, publish, read, stopped, until

SHAPE = {"partitions": 2, "rows": 500, "payload": 100}  # with files
ROWS = NumberedRows("orders", **SHAPE)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal that jobs in other processes write."""
    return tmp_path / "journal"


def open_topic(driver: Driver, journal: Path, **options: object) -> dict[str, object]:
    """Let a job open the topic."""
    return driver.ask("open", topic="orders", journal=str(journal), **SHAPE, **options)


@pytest.mark.slow
def test_second_publisher_of_the_same_job(own_bus: Bus) -> None:
    """Refused with the name of the first; once that one is closed, the topic is free."""
    first = own_bus.publisher(name="the-first")
    with pytest.raises(TopicOwned, match="'the-first'") as caught:
        own_bus.publisher(name="the-second")
    assert caught.value.fields["owner"]["name"] == "the-first"
    assert str(os.getpid()) in str(caught.value)
    publish(first, ROWS, own_bus.journal, [0])
    first.close()
    second = own_bus.publisher(name="the-second", parallelism=2)
    assert (second.epoch, second.log_id) == (first.epoch + 1, first.log_id)
    publish(second, ROWS, own_bus.journal, [1])
    with pytest.raises(TopicOwned, match="'the-second'"):
        own_bus.publisher()


@pytest.mark.slow
def test_publisher_of_another_job(own_bus: Bus, drive: Callable[..., Driver], journal: Path) -> None:
    """Case 50: refused while the first lives, naming it; taken over at once after its clean close, with its backlog."""
    driver = drive()
    opened = open_topic(driver, journal, name="job-a", application="nightly")
    driver.ask("seal", first=0, count=3)
    with pytest.raises(TopicOwned, match=r"'job-a'.*one topic has one live publisher") as caught:
        own_bus.publisher(name="job-b")
    owner = caught.value.fields["owner"]
    assert (owner["name"], owner["pid"]) == ("job-a", opened["coordinator"])
    assert owner["driver"] == {"pid": driver.pid, "application": "nightly"}
    said = f"'job-a' on {socket.gethostname()}, application 'nightly', driver pid {driver.pid}, coordinator pid "
    assert said + str(opened["coordinator"]) in str(caught.value)  # who can be stopped, and who serves
    driver.ask("seal", first=3, count=1)  # the refusal did it no harm
    driver.ask("close", final=False)
    began = time.monotonic()
    publisher = own_bus.publisher(name="job-b", parallelism=2)
    assert time.monotonic() - began < 10
    assert (publisher.log_id, publisher.epoch) == (opened["log"], opened["epoch"] + 1)
    checked = Journal(journal)
    publish(publisher, ROWS, checked, range(4, 6))
    publisher.close(final=True)
    assert Checker(ROWS, checked).take_all(own_bus.subscribe("all").batches(timeout=30)).check().rows == 6000


@pytest.mark.slow
def test_driver_killed(own_bus: Bus, drive: Callable[..., Driver], journal: Path) -> None:
    """Case 1: the coordinator serves the backlog and hands over at once; same log, higher epoch, nothing lost."""
    driver = drive()
    opened = open_topic(driver, journal)
    driver.ask("seal", first=0, count=5)
    driver.tell("seal", first=5, count=10_000)
    until(lambda: Journal(journal).batches > 8, PATIENCE, "some batches more")
    driver.kill()
    checked = Journal(journal)
    checker, client = Checker(ROWS, checked), own_bus.subscribe("all")
    read(client, checker, checked.rows)  # while nobody publishes
    assert checker.check().faults == {}
    assert alive(driver.coordinators[0])

    began = time.monotonic()
    publisher = own_bus.publisher(parallelism=2)
    assert time.monotonic() - began < 10
    assert (publisher.log_id, publisher.epoch) == (opened["log"], opened["epoch"] + 1)
    next_id = max(batch for batch, _ in enumerate(checked.possible()[0]))  # the last intended one: sealed or not
    publish(publisher, ROWS, checked, range(next_id, next_id + 3), run="r2")
    publisher.close(final=True)
    checker.take_all(client.batches(timeout=30))
    assert checker.check().rows == checked.rows
    until(lambda: not alive(driver.coordinators[0]), 30, "the old coordinator ends: it has nothing to serve")


@pytest.mark.slow
def test_coordinator_killed(own_bus: Bus) -> None:
    """The publisher goes on with a new coordinator and a new epoch; a reader loses and repeats nothing."""
    publisher = own_bus.publisher(parallelism=2)
    reader = own_bus.reader("all", ROWS)
    epochs = []
    for round_ in range(2):
        publish(publisher, ROWS, own_bus.journal, range(round_ * 4, round_ * 4 + 4))
        epochs.append((publisher.epoch, publisher.log_id))
        kill(coordinator_of(publisher))
    publish(publisher, ROWS, own_bus.journal, range(8, 10))
    epochs.append((publisher.epoch, publisher.log_id))
    publisher.close(final=True)
    reader.join()
    assert reader.checker.check().rows == 10 * 1000
    assert len({log for _, log in epochs}) == 1
    assert [epoch for epoch, _ in epochs] == sorted({epoch for epoch, _ in epochs})


@pytest.mark.slow
def test_coordinator_killed_while_the_source_is_quiet(own_bus: Bus) -> None:
    """No batch comes that would notice: the backlog is served again all the same."""
    publisher = own_bus.publisher(parallelism=2)
    publish(publisher, ROWS, own_bus.journal, range(3))
    first = coordinator_of(publisher)
    kill(first)
    checker = Checker(ROWS, own_bus.journal)
    read(own_bus.subscribe("all"), checker, 3000)
    assert checker.check().rows == 3000
    assert coordinator_of(publisher) != first


@pytest.mark.slow
def test_coordinator_killed_between_write_and_seal(own_bus: Bus) -> None:
    """Case 2: files written for a batch in progress outlive the coordinator, and are sealed by the next one."""
    publisher = own_bus.publisher(parallelism=2)
    assert publisher.begin(BatchKey("q", 0, "r1")) is None
    target = publisher.target()
    tables = ROWS.tables(0)
    pairs = ((batch, number) for number, table in enumerate(tables) for batch in table.to_batches())
    segments = target.write(tables[0].schema, pairs, "0")
    assert all(segment.file for segment in segments)
    kill(coordinator_of(publisher))
    with own_bus.journal.sealing(0, ROWS.ranges(0)):
        publisher.commit(BatchKey("q", 0, "r1"), target, tables[0].schema, None, segments)
    publisher.close(final=True)
    assert Checker(ROWS, own_bus.journal).take_all(own_bus.subscribe("all").batches(timeout=30)).check().rows == 1000


@pytest.mark.slow
def test_ghost_registration(own_bus: Bus, drive: Callable[..., Driver], journal: Path) -> None:
    """Case 23: driver and coordinator killed; the claim of a dead process of this host is not waited for."""
    driver = drive({"registerserver.session.timeout": "40s"})
    open_topic(driver, journal)
    driver.ask("seal", first=0, count=3)
    driver.kill()
    kill(driver.coordinators[0])
    until(lambda: not alive(driver.coordinators[0]), 10, "the coordinator is dead")
    began = time.monotonic()
    publisher = own_bus.publisher(parallelism=2)
    checked = Journal(journal)
    publish(publisher, ROWS, checked, range(3, 5))
    reader_done = Checker(ROWS, checked)
    read(own_bus.subscribe("all"), reader_done, 5000)
    assert time.monotonic() - began < 20  # far below the 40 s that the ghost stays in ZooKeeper by itself
    assert reader_done.check().rows == 5000


@pytest.mark.slow
def test_two_newcomers_at_once(drive: Callable[..., Driver], tmp_path: Path) -> None:
    """Case 50: of two that open the topic at the same moment exactly one gets it; the other learns which."""
    drivers = [drive(), drive()]
    for number, driver in enumerate(drivers):
        driver.tell("open", topic="orders", journal=str(tmp_path / f"{number}"), name=f"job-{number}", **SHAPE)
    refused, won = [], []
    for number, driver in enumerate(drivers):
        try:
            driver.hear()
            won.append(number)
        except TopicOwned as error:
            refused.append(error)
    assert len(won) == len(refused) == 1
    assert f"'job-{won[0]}'" in str(refused[0])


@pytest.mark.slow
def test_stopped_owner_is_fenced(own_bus: Bus, drive: Callable[..., Driver], journal: Path) -> None:
    """Case 5: a coordinator stopped for longer than its session loses the topic; awake again, it seals nothing."""
    driver = drive()
    opened = open_topic(driver, journal)
    driver.ask("seal", first=0, count=2)
    checked = Journal(journal)
    with stopped(driver.coordinators[0]):
        publisher = own_bus.publisher(parallelism=2)  # waits for the session of the silent one
        publish(publisher, ROWS, checked, [2])
    assert publisher.epoch > int(str(opened["epoch"]))
    with pytest.raises(Fenced):
        driver.ask("seal", first=77, count=1)
    publish(publisher, ROWS, checked, [3])
    publisher.close(final=True)
    checker = Checker(ROWS, checked).take_all(own_bus.subscribe("all").batches(timeout=30))
    assert checker.check().rows == 4000


@pytest.mark.slow
def test_with_acks_all_the_registry_fences_before_the_seal(bus: Bus) -> None:
    """Case 6: a publisher that was replaced on another host, with another spool, seals nothing more in its own."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher({"acks": "all", "acks.timeout": "1s"}, required_subscribers=["billing"])
    with pytest.raises(WaitTimeout, match="billing"):
        publisher.seal("q", 0, rows.tables(0), run_id="r1")
    handler = open_handler(bus.config())
    try:
        handler.next_epoch(bus.topic, 1)
    finally:
        handler.shutdown()
    with pytest.raises(Fenced, match="took it over"):
        publisher.seal("q", 1, rows.tables(1), run_id="r1")
    assert publisher.status()["head"] == 1


@pytest.mark.slow
def test_a_spool_belongs_to_one_namespace(own_bus: Bus) -> None:
    """Two topics that are alike in name only: neither is taken for the other, whoever opens the spool (case 34)."""
    first = own_bus.publisher()
    rows = NumberedRows("orders")
    publish(first, rows, own_bus.journal, [0])
    first.close()
    end_coordinators()
    with pytest.raises(SpoolError) as caught:
        own_bus.publisher({"registerserver.topic.storage": "/elsewhere/topics"})
    assert caught.value.fields["namespace"] == first.config.namespace
    assert "jobpipe.spool.dir of its own" in caught.value.message
    again = own_bus.publisher()
    assert again.log_id == first.log_id
