"""What administrators see: status, topics, and lag that adds up."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest

from jobpipe.admin import Admin
from jobpipe.errors import TopicNotFound
from jobpipe.subscriber.questions import published_schemas
from jobpipe.testing import SCHEMA, Checker, NumberedRows
from tests.bus.kit import PATIENCE, Bus, publish, read, until


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
    assert (required["state"], required["position"], required["required"]) == ("disconnected", 0, True)
    assert (reader["state"], reader["position"], reader["required"], reader["reconnects"]) == ("connected", 4, False, 0)
    assert reader["where"]["pid"] == os.getpid()
    client.close()
    until(
        lambda: (
            {line["name"]: line["state"] for line in publisher.status()["subscriptions"]}["reader"] == "disconnected"
        ),
        PATIENCE,
        "the closed link is seen",
    )


def test_admin(bus: Bus) -> None:
    """Lists topics with their places, and asks one that is served; an unknown one is told at once."""
    publisher = bus.publisher(parallelism=3)
    with Admin(bus.config()) as admin:
        lines = {line.name: line.location for line in admin.topics()}
        location = lines[bus.topic]
        assert location is not None
        assert (location.parallelism, location.epoch, location.ssl) == (3, publisher.epoch, True)
        status = admin.status(bus.topic)
        assert (status["topic"], status["endpoint"], status["data"]) == (
            bus.topic,
            str(location.control),
            str(location.data),
        )
        with pytest.raises(TopicNotFound, match="jobpipe topics"):
            admin.status("nobody-has-it")
        publisher.close()


def test_schema_before_the_first_batch(bus: Bus) -> None:
    """A declared schema is known at once; without it a question waits, and says what is missing."""
    publisher = bus.publisher()
    with pytest.raises(TopicNotFound, match="knows no schema yet"):
        published_schemas(bus.config({"discovery.timeout": "500ms"}), [bus.topic])
    publisher.declare(SCHEMA, "spark's own")
    found = published_schemas(bus.config(), [bus.topic])[bus.topic]
    assert (pa.ipc.read_schema(pa.py_buffer(found[0])), found[1]) == (SCHEMA, "spark's own")
    publish(publisher, NumberedRows(bus.topic), bus.journal, [0])
    found = published_schemas(bus.config(), [bus.topic])[bus.topic]
    assert (pa.ipc.read_schema(pa.py_buffer(found[0])), found[1]) == (SCHEMA, None)
