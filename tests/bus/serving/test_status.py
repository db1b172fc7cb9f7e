"""What administrators see: status, topics, and lag that adds up."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.admin import Admin
from jobpipe.errors import TopicNotFound
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.subscribing.absent_publisher import without_publisher
from jobpipe.subscribing.one_off_requests import published_schemas
from jobpipe.subscribing.subscriber_session import SubscriberSession
from jobpipe.testing import SCHEMA, Checker, NumberedRows
from tests.bus.kit import PATIENCE, Bus, Driver, kill, named_link, publish, read, until
from tests.docs.troubleshooting import on_page


@pytest.mark.slow
def test_status_of_a_topic(bus: Bus) -> None:
    """Every field, before and after reading; numbers agree with what was sealed."""
    rows = NumberedRows(bus.topic, partitions=2)
    publisher = bus.publisher(name="billing-job", parallelism=2, required_subscribers=["required"])
    sealed = publish(publisher, rows, bus.journal, range(4))
    client, checker = bus.subscribe("reader"), Checker(rows, bus.journal)
    read(client, checker, 80)
    publish(publisher, rows, bus.journal, [4])
    status = publisher.status()
    size = sum(batch.bytes for batch in sealed)
    last = status["bytes"] - size
    assert {key: status[key] for key in ("topic", "log", "epoch", "publisher", "parallelism", "head", "tail")} == {
        "topic": bus.topic,
        "log": publisher.log_id,
        "epoch": publisher.epoch,
        "publisher": "billing-job",
        "parallelism": 2,
        "head": 5,
        "tail": 0,
    }
    assert (status["rows"], status["batches"], status["stored_bytes"]) == (100, 5, status["bytes"])
    assert (status["publishing"], status["ended"], status["waiting"]) == (True, False, None)
    assert status["endpoint"] != status["data"]
    lines = {line["name"]: line for line in status["subscriptions"]}
    required, reader = lines["required"], lines["reader"]
    assert {key: required["lag"][key] for key in ("batches", "rows", "bytes")} == {
        "batches": 5,
        "rows": 100,
        "bytes": size + last,
    }
    assert {key: reader["lag"][key] for key in ("batches", "rows", "bytes")} == {
        "batches": 1,
        "rows": 20,
        "bytes": last,
    }
    assert required["lag"]["seconds"] >= reader["lag"]["seconds"] >= 0
    assert (required["state"], required["position"], required["required"]) == ("absent", 0, True)
    assert (reader["state"], reader["position"], reader["required"], reader["reconnects"]) == ("connected", 4, False, 0)
    assert reader["where"]["pid"] == os.getpid()
    assert (reader["epoch"], required["epoch"]) == (publisher.epoch, 0)
    assert (required["last_seen"], required["since"], required["where"]) == (None, None, None)
    assert 0 <= reader["last_seen"] <= 15.0  # a live link is heard within its heartbeat
    assert reader["since"] > 0
    client.close()
    until(
        lambda: {line["name"]: line["state"] for line in publisher.status()["subscriptions"]}["reader"] == "absent",
        PATIENCE,
        "the goodbye is heard",
    )


@pytest.mark.slow
def test_a_link_that_breaks(own_bus: Bus) -> None:
    """Without a goodbye its reader is taken to come back; when it does, that is counted."""
    publisher = own_bus.publisher()

    def line() -> Any:
        return publisher.status()["subscriptions"][0]

    first = named_link(own_bus.config(), own_bus.topic, "billing", "instance-1")
    first.call("grant", {"host": "a", "pid": 1}, timeout=10)
    assert (line()["state"], line()["reconnects"]) == ("connected", 0)
    first.abort()
    until(lambda: line()["state"] == "reconnecting", PATIENCE, "the cut is seen")
    assert 0 <= line()["since"] == pytest.approx(line()["last_seen"], abs=1.0)
    assert line()["where"] == {"host": "a", "pid": 1}
    again = named_link(own_bus.config(), own_bus.topic, "billing", "instance-1")
    again.call("grant", {"host": "a", "pid": 1}, timeout=10)
    assert (line()["state"], line()["reconnects"]) == ("connected", 1)
    again.close()
    until(lambda: line()["state"] == "absent", PATIENCE, "the goodbye is heard")
    publisher.close()
    end_coordinators()
    known = own_bus.publisher().status()["subscriptions"][0]  # of a coordinator that never saw it
    assert (known["state"], known["since"], known["where"]) == ("absent", None, {"host": "a", "pid": 1})
    assert known["last_seen"] >= 0


@pytest.mark.slow
def test_a_subscriber_reports_its_links(own_bus: Bus, drive: Callable[..., Driver], tmp_path: Path) -> None:
    """What a query's progress shows: state, since when, reconnects, back-off, the next attempt, the last error."""
    driver = drive()
    shape = {"topic": own_bus.topic, "partitions": 1, "rows": 1, "payload": 1, "journal": str(tmp_path / "j")}
    coordinator = driver.ask("open", **shape)["coordinator"]
    session = SubscriberSession.open(own_bus.config(), [own_bus.topic], "billing")

    def report() -> Any:
        return (session.report() or {})[own_bus.topic]

    try:
        up = report()
        assert (up["state"], up["reconnects"], up["backoff"], up["next_attempt"]) == ("connected", 0, None, None)
        assert {"log", "epoch", "n", "r", "ended", "since", "last_error"} < set(up)
        driver.kill()
        kill(coordinator)
        down = until(lambda: report()["backoff"] is not None and report(), PATIENCE, "a pause between two attempts")
        assert (down["state"], down["reconnects"]) == ("reconnecting", 0)
        assert down["last_error"]
        assert 0 <= down["next_attempt"] <= down["backoff"] <= 2.0
        later = until(lambda: report()["since"] > down["since"] and report(), PATIENCE, "time passes")
        assert later["state"] == "reconnecting"
        own_bus.publisher()
        until(lambda: (report()["state"], report()["reconnects"]) == ("connected", 1), PATIENCE, "it is back")
    finally:
        session.close()


@pytest.mark.slow
def test_a_publisher_that_was_killed(own_bus: Bus, drive: Callable[..., Driver], tmp_path: Path) -> None:
    """U3: at once, and not only after its time is over: gone since when, and served for how long yet."""
    driver = drive({"coordinator.linger": "50s"})
    shape = {"topic": own_bus.topic, "partitions": 1, "rows": 1, "payload": 1, "journal": str(tmp_path / "j")}
    driver.ask("open", **shape)
    with Admin(own_bus.config()) as admin:
        status = admin.status(own_bus.topic)
        assert (status.publishing, status.publisher_gone, status.served_for) == (True, None, None)
        assert without_publisher(status) is None
        driver.kill()
        status = until(lambda: not (now := admin.status(own_bus.topic)).publishing and now, PATIENCE, "it is seen")
        assert 0 <= status.publisher_gone < 50
        assert 0 < status.served_for <= 50
        later = until(
            lambda: (now := admin.status(own_bus.topic)).publisher_gone > status.publisher_gone and now,
            PATIENCE,
            "time passes",
        )
        assert later.served_for < status.served_for
        on_page(without_publisher(later), "publisher gone for")
        assert re.match(r"publisher gone for [\d.]+ s, served for another [\d.]+ s; the last", without_publisher(later))


@pytest.mark.slow
def test_a_publisher_that_closed(own_bus: Bus) -> None:
    """U3: it is served until all have read; how long that may take without progress is told."""
    publisher = own_bus.publisher({"coordinator.linger": "50s"}, required_subscribers=["billing"])
    publish(publisher, NumberedRows(own_bus.topic), own_bus.journal, range(1))
    publisher.close()
    with Admin(own_bus.config()) as admin:
        status = admin.status(own_bus.topic)
    assert (status.publishing, status.publisher_gone) == (False, None)
    assert 0 < status.served_for <= 50


@pytest.mark.slow
def test_admin(bus: Bus) -> None:
    """Lists topics with their places, and asks one that is served; an unknown one is told at once."""
    publisher = bus.publisher(parallelism=3)
    with Admin(bus.config()) as admin:
        lines = {line.name: line.location for line in admin.topics()}
        location = lines[bus.topic]
        assert location is not None
        assert (location.parallelism, location.epoch, location.ssl) == (3, publisher.epoch, True)
        status = admin.status(bus.topic)
        assert (status.topic, status.endpoint, status.data) == (
            bus.topic,
            str(location.control),
            str(location.data),
        )
        with pytest.raises(TopicNotFound, match="jobpipe topics"):
            admin.status("nobody-has-it")
        publisher.close()


@pytest.mark.slow
def test_schema_before_the_first_batch(bus: Bus) -> None:
    """A declared schema is known at once; without it a question waits, and says what is missing."""
    publisher = bus.publisher()
    with pytest.raises(TopicNotFound, match="knows no schema yet") as caught:
        published_schemas(bus.config({"discovery.timeout": "500ms"}), [bus.topic])
    on_page(caught.value, "TopicNotFound: topic")
    publisher.declare(SCHEMA, "spark's own")
    found = published_schemas(bus.config(), [bus.topic])[bus.topic]
    assert (pa.ipc.read_schema(pa.py_buffer(found[0])), found[1]) == (SCHEMA, "spark's own")
    publish(publisher, NumberedRows(bus.topic), bus.journal, [0])
    found = published_schemas(bus.config(), [bus.topic])[bus.topic]
    assert (pa.ipc.read_schema(pa.py_buffer(found[0])), found[1]) == (SCHEMA, None)
