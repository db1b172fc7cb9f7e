"""U5: `close()` says who is still waited for, how long, and how to serve the topic longer."""

from __future__ import annotations

import logging

import pytest

from jobpipe.testing import Checker, NumberedRows
from tests.bus.kit import Bus, publish, read
from tests.docs.troubleshooting import on_page

LINES = "jobpipe.publishing.topic_publisher"


@pytest.mark.slow
@pytest.mark.parametrize("final", [False, True])
def test_who_is_waited_for_is_named(bus: Bus, caplog: pytest.LogCaptureFixture, final: bool) -> None:
    """U5: by name, with what is unread, for how long, and with the command that keeps it."""
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher(required_subscribers=["billing", "audit"])
    publish(publisher, rows, bus.journal, range(3))
    client = bus.subscribe("audit")
    read(client, Checker(rows, bus.journal), bus.journal.rows)
    client.close()
    with caplog.at_level(logging.WARNING, LINES):
        publisher.close(final=final)
    (record,) = [entry for entry in caplog.records if entry.name == LINES]
    text = record.getMessage()
    assert f"topic {bus.topic}: closed, but not yet fully read by " in text
    on_page(text, "topic …: closed, but")
    assert f"billing ({3 + final} batches)" in text
    linger = bus.config().linger
    assert f"none of them has advanced for {linger:g} s (jobpipe.coordinator.linger)" in text
    assert f"`jobpipe topics serve {bus.topic}` on this host serves it longer" in text


def test_nobody_is_waited_for(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """U5: no subscription exists: it is served no longer, and where it lies is told."""
    publisher = bus.publisher()
    publish(publisher, NumberedRows(bus.topic), bus.journal, range(1))
    with caplog.at_level(logging.WARNING, LINES):
        publisher.close()
    (record,) = [entry for entry in caplog.records if entry.name == LINES]
    for part in ("no longer served", str(bus.config().spool_dir / bus.topic), f"`jobpipe topics serve {bus.topic}`"):
        assert part in record.getMessage()
    on_page(record.getMessage(), "topic …: closed, and")


def test_nothing_is_left_to_say(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """U5: all is read, or nothing was published."""
    with caplog.at_level(logging.WARNING, LINES):
        bus.publisher().close()
        rows = NumberedRows(bus.topic)
        publisher = bus.publisher(required_subscribers=["billing"])
        publish(publisher, rows, bus.journal, range(2))
        client = bus.subscribe("billing")
        read(client, Checker(rows, bus.journal), bus.journal.rows)
        client.close()
        publisher.drain(30.0)
        publisher.close()
    assert [entry for entry in caplog.records if entry.name == LINES] == []
