"""Holds of scheduled jobs, required names that change while a publisher runs, and topics that are away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jobpipe.admin import AWAY, Admin
from jobpipe.cli.main import cli
from jobpipe.errors import (
    ConfigError,
    DataLoss,
    HoldNotFound,
    SpoolFull,
    SubscriptionNotFound,
    TopicAway,
    TopicNotFound,
    WaitTimeout,
)
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.serving.spool_server import SpoolServer
from jobpipe.store.reading.boundary import Boundary
from jobpipe.testing import Checker, NumberedRows
from tests.bus.kit import PATIENCE, Bus, coordinator_of, kill, publish, read, until
from tests.bus.publishing.test_backpressure import SMALL, finish, in_thread
from tests.docs.pages import block
from tests.docs.troubleshooting import on_page

SOON = {"retention.time": "0s", "retention.ack_grace": "0s"}


@pytest.fixture
def command(bus: Bus, tmp_path: Path) -> Callable[..., Result]:
    """Return what runs the command line on the bus."""
    file = tmp_path / "jobpipe.yaml"
    file.write_text(json.dumps(bus.config().to_dict()))
    return lambda *words: CliRunner().invoke(cli, ["--config", str(file), *words])


def test_the_page(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/retention.md: a hold, from a program whose settings come from its environment."""
    for key, value in bus.config().to_dict().items():
        monkeypatch.setenv(f"JOBPIPE__{key.removeprefix('jobpipe.').replace('.', '__').upper()}", str(value))
    publish(bus.publisher(), NumberedRows(bus.topic), bus.journal, range(2))
    exec(block("docs/retention.md", "hold").replace('"orders"', repr(bus.topic)), {})  # noqa: S102 - our own page
    with Admin(bus.config()) as admin:
        (line,) = admin.holds(bus.topic)
    assert (line.name, line.offset) == ("nightly.audit", 0)


@pytest.mark.slow
def test_a_hold_keeps_rows_until_it_is_moved_on(bus: Bus) -> None:
    rows, checker = NumberedRows(bus.topic), Checker(NumberedRows(bus.topic), bus.journal)
    publisher = bus.publisher(SOON)
    with Admin(bus.config()) as admin:
        first = admin.hold(bus.topic, "nightly.audit", "earliest", max_time=3600.0)
        assert (first.offset, first.gap, first.max_time, first.left) == (0, None, 3600.0, None)
        publish(publisher, rows, bus.journal, range(4))
        again = admin.hold(bus.topic, "nightly.audit", "earliest")
        assert (again.offset, again.max_time) == (0, bus.config().hold_max_time)
        assert again.left is not None
        assert 0 <= again.max_time - again.left < PATIENCE
        read(bus.subscribe("quick"), checker, 40)
        admin.hold(bus.topic, "nightly.audit", 1)
        until(lambda: publisher.status()["tail"] == 1, PATIENCE, "that one batch goes")
        (line,) = admin.holds(bus.topic)
        assert (line.name, line.offset) == ("nightly.audit", 1)
        assert line.owner
        with pytest.raises(DataLoss):
            admin.hold(bus.topic, "late", 0)
        here = publisher.seal("q", 4, rows.tables(4), run_id="r1").position
        assert admin.hold(bus.topic, "nightly.audit", here).offset == 5, "the position where a bounded read ended"
        assert admin.release(bus.topic, "nightly.audit", dry_run=True).offset == 5
        assert admin.release(bus.topic, "nightly.audit").owner == line.owner
        with pytest.raises(HoldNotFound):
            admin.release(bus.topic, "nightly.audit")
        assert admin.holds(bus.topic) == []


@pytest.mark.slow
def test_a_hold_outlives_the_coordinator(own_bus: Bus) -> None:
    rows = NumberedRows(own_bus.topic)
    publisher = own_bus.publisher({**SOON, "hold.max_time": "600s"})
    with Admin(own_bus.config()) as admin:
        assert admin.hold(own_bus.topic, "nightly.audit", "earliest", max_time=86_400.0).max_time == 600.0, (
            "the topic's"
        )
        publish(publisher, rows, own_bus.journal, range(3))
        kill(coordinator_of(publisher))
        publish(publisher, rows, own_bus.journal, [3])
        checker = Checker(rows, own_bus.journal)
        read(own_bus.subscribe("quick"), checker, 40)
        (line,) = admin.holds(own_bus.topic)
        assert (line.offset, publisher.status()["tail"]) == (0, 0)
        admin.hold(own_bus.topic, "nightly.audit", 1)
        until(lambda: publisher.status()["tail"] == 1, PATIENCE, "that all goes but what is held")


@pytest.mark.slow
def test_a_full_spool_names_the_hold_and_goes_on_after_its_time(bus: Bus) -> None:
    rows = NumberedRows(bus.topic, rows=1000, payload=100)
    publisher = bus.publisher({**SMALL, **SOON})
    client, checker = bus.subscribe("fast"), Checker(rows, bus.journal)
    with Admin(bus.config()) as admin:
        owner = admin.hold(bus.topic, "nightly.audit", "latest", max_time=86_400.0).owner

        def fill() -> None:
            while (n := publisher.status()["head"]) < 10:
                publish(publisher, rows, bus.journal, [n])
                read(client, checker, 1000 * (n + 1))

        with pytest.raises(SpoolFull, match=r"hold 'nightly\.audit' of .* keeps batches from offset 0 on") as caught:
            fill()
        on_page(caught.value, "SpoolFull: topic '…': no room within … s: the spool is full (… bytes); hold")
        words = ("until a scheduled job has read them", " UTC at the latest", "topics holds drop", f"of {owner} keeps")
        assert [word for word in words if word not in str(caught.value)] == []
        assert publisher.status()["head"] == 4
        publisher.close()
        patiently = bus.publisher({**SMALL, **SOON, "acks.timeout": "60s"})
        thread, errors = in_thread(lambda: publish(patiently, rows, bus.journal, [4], run="r2"))
        waiting = until(lambda: patiently.status()["waiting"], PATIENCE, "that it waits")
        assert [word for word in words if word not in waiting] == []
        admin.hold(bus.topic, "nightly.audit", 0, max_time=1.0)
        finish(thread, errors)
        (gap,) = admin.holds(bus.topic)
        assert (gap.name, gap.offset, gap.left) == ("nightly.audit", 0, None)
        assert gap.gap == "not moved for its max_time"
        assert gap.lost >= 1
        with pytest.raises(DataLoss, match="batches 0 to"):
            admin.hold(bus.topic, "another", 0)


@pytest.mark.slow
def test_the_command_lists_and_drops_holds(bus: Bus, command: Callable[..., Result]) -> None:
    publish(bus.publisher(), NumberedRows(bus.topic), bus.journal, range(2))
    assert command("topics", "holds", "list", bus.topic).output.strip() == "no holds"
    with Admin(bus.config()) as admin:
        admin.hold(bus.topic, "nightly.audit", "earliest")
    for words in (("holds", "list"), ("describe",)):
        told = command("topics", *words, bus.topic).output
        assert "nightly.audit" in told, told
        assert "ENDS IN" in told
    assert json.loads(command("topics", "holds", "list", bus.topic, "--json").output)[0]["offset"] == 0
    assert (
        "would drop hold nightly.audit of"
        in command("topics", "holds", "drop", bus.topic, "nightly.audit", "--dry-run").output
    )
    assert json.loads(command("topics", "holds", "drop", bus.topic, "nightly.audit", "--json").output)["lost"] == 0
    again = command("topics", "holds", "drop", bus.topic, "nightly.audit")
    assert again.exit_code == 1
    assert "has no hold 'nightly.audit'" in again.output


@pytest.mark.slow
def test_a_publisher_that_waits_goes_on_at_once_when_a_name_is_required_no_more(bus: Bus) -> None:
    rows = NumberedRows(bus.topic)
    publisher = bus.publisher({"acks": "all", "acks.timeout": "60s"}, required_subscribers=["billing"])
    with Admin(bus.config()) as admin:
        thread, errors = in_thread(lambda: publish(publisher, rows, bus.journal, range(3)))
        until(lambda: publisher.status()["waiting"] == "acks=all: billing", PATIENCE, "that it waits")
        assert admin.require(bus.topic, "billing", required=False, dry_run=True).required == ()
        assert thread.is_alive()
        assert admin.require(bus.topic, "billing", required=False).before is True
        finish(thread, errors)
        assert (publisher.status()["head"], publisher.status()["waiting"]) == (3, None)
        assert admin.drop(bus.topic, "billing").name == "billing"
        admin.require(bus.topic, "late")
        assert [line["required"] for line in publisher.status()["subscriptions"]] == [True]
        thread, errors = in_thread(lambda: publish(publisher, rows, bus.journal, [3]))
        until(lambda: publisher.status()["waiting"] == "acks=all: late", PATIENCE, "that it waits for the new one")
        checker = Checker(rows, bus.journal)
        read(bus.subscribe("late", starting="committed"), checker, 40)
        finish(thread, errors)


@pytest.mark.slow
def test_required_names_outlive_the_coordinator_until_others_are_declared(own_bus: Bus) -> None:
    rows = NumberedRows(own_bus.topic)
    changes = {"acks": "all", "acks.timeout": "1s"}
    publisher = own_bus.publisher(changes, required_subscribers=["billing"])
    with Admin(own_bus.config()) as admin:
        admin.require(own_bus.topic, "billing", required=False)
        admin.require(own_bus.topic, "audit")
        kill(coordinator_of(publisher))
        with pytest.raises(WaitTimeout) as caught:
            publisher.seal("q", 0, rows.tables(0), run_id="r1")
        assert caught.value.fields["missing"] == ["audit"]
        publisher.close()
        same = own_bus.publisher(changes, required_subscribers=["billing"])
        assert {line["name"]: line["required"] for line in same.status()["subscriptions"]} == {
            "audit": True,
            "billing": False,
        }
        same.close()
        others = own_bus.publisher(changes, required_subscribers=["billing", "shipping"])
        assert {line["name"] for line in others.status()["subscriptions"] if line["required"]} == {
            "billing",
            "shipping",
        }


@pytest.mark.slow
def test_the_command_requires_names(bus: Bus, command: Callable[..., Result]) -> None:
    bus.publisher(required_subscribers=["billing"])
    said = [
        command("subscriptions", verb, bus.topic, "audit", *words).output.strip()
        for verb, *words in (("require", "--dry-run"), ("require",), ("require",), ("unrequire",), ("unrequire",))
    ]
    assert said == [
        "audit would be required; required: audit, billing",
        "audit is required; required: audit, billing",
        "audit was required; required: audit, billing",
        "audit is not required; required: billing",
        "audit was not required; required: billing",
    ]


@pytest.mark.slow
def test_what_is_asked_of_a_topic_that_is_away_can_be_asked_later(own_bus: Bus) -> None:
    """A caller queues it on a typed error; `topics serve` on the host of the spool lets an administrator do it."""
    topic = own_bus.topic
    publisher = own_bus.publisher(required_subscribers=["billing"])
    publish(publisher, NumberedRows(topic), own_bus.journal, range(3))
    with Admin(own_bus.config()) as admin:
        asked: list[Callable[[], object]] = [
            lambda: admin.require(topic, "billing", required=False),
            lambda: admin.drop(topic, "billing"),
            lambda: admin.release(topic, "nightly.audit"),
        ]
        admin.hold(topic, "nightly.audit", 1)
        publisher.close()
        end_coordinators()
        until(lambda: all(line.location is None for line in admin.topics()), PATIENCE, "that it is served no more")
        for work in asked:
            with pytest.raises(TopicAway, match="is not served: no publisher is registered now") as caught:
                work()
            assert isinstance(caught.value, AWAY)
            assert f"jobpipe topics serve {topic}" in str(caught.value)
        with pytest.raises(TopicNotFound) as never:
            admin.drop("nobody-published-this", "billing")
        assert not isinstance(never.value, AWAY)
        with pytest.raises(DataLoss, match=r"by billing \(3 batches\)"):
            admin.delete(topic, dry_run=True)
        with SpoolServer(own_bus.config(), topic):
            for work in asked:
                work()
            with pytest.raises(HoldNotFound):
                asked[2]()
            with pytest.raises(SubscriptionNotFound):
                asked[1]()
            assert admin.hold(topic, "nightly.audit", 2).offset == 2
            end_coordinators()
        until(lambda: all(line.location is None for line in admin.topics()), PATIENCE, "that it is served no more")
        with pytest.raises(DataLoss, match=r"by the holds nightly\.audit \(1 batches\)"):
            admin.delete(topic, dry_run=True)
        admin.delete(topic, unread=True)


@pytest.mark.slow
def test_a_hold_by_time(bus: Bus) -> None:
    publisher = bus.publisher()
    with Admin(bus.config()) as admin:
        latest = Boundary("time", 1_000, "latest")
        assert admin.hold(bus.topic, "nightly.audit", latest).offset == 0
        publish(publisher, NumberedRows(bus.topic), bus.journal, range(2))
        assert admin.hold(bus.topic, "other", latest).offset == 0
        far = Boundary("time", 4_000_000_000_000)
        with pytest.raises(ConfigError, match="nothing was published"):
            admin.hold(bus.topic, "third", far)
