"""Finding one another: start order, and every way in which it cannot work, each with one clear error in time."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobpipe.config import Config
from jobpipe.discovery.configured_tls import client_tls
from jobpipe.discovery.registry_handler import open_handler
from jobpipe.discovery.topic_lookup import locate
from jobpipe.errors import (
    AddressError,
    Fenced,
    NotAuthorized,
    RegistryUnavailable,
    RemoteProtocolError,
    TopicNotFound,
)
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.tls.certificates import init_ca, issue
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.testing import NumberedRows
from jobpipe.wire.wire_messages import Hello
from jobpipe_registry.topic_records import RegisterRecord
from tests.bus.kit import PATIENCE, Bus, alive, coordinator_of, publish, until


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]


@pytest.mark.slow
def test_subscriber_starts_first(bus: Bus) -> None:
    """It waits for the publisher, and then misses nothing."""
    rows = NumberedRows(bus.topic)
    reader = bus.reader("early", rows)
    publisher = bus.publisher()
    publish(publisher, rows, bus.journal, range(3))
    publisher.close(final=True)
    reader.join()
    assert reader.checker.check().rows == 30


@pytest.mark.slow
def test_topic_comes_back(bus: Bus) -> None:
    """Between two publishers the topic is not registered at all; the subscriber finds the second by itself."""
    rows = NumberedRows(bus.topic)
    reader = bus.reader("all", rows)
    for run in range(2):
        publisher = bus.publisher()
        publish(publisher, rows, bus.journal, range(run * 3, run * 3 + 3))
        reader.wait_rows(bus.journal.rows)
        publisher.drain(PATIENCE)
        publisher.close(final=run == 1)
        if run == 0:
            ends = coordinator_of(publisher)
            until(lambda pid=ends: not alive(pid), PATIENCE, "all is read: it ends, although a subscriber waits")
    reader.join()
    assert reader.checker.check().rows == 60


@pytest.mark.slow
def test_topic_that_does_not_come(bus: Bus) -> None:
    """Within the time-out, and with what to do about it."""
    began = time.monotonic()
    with pytest.raises(TopicNotFound, match="start it, check the name") as caught:
        bus.subscribe("early", changes={"discovery.timeout": "1s"}).position()
    assert 0.9 < time.monotonic() - began < 10
    assert caught.value.fields["topic"] == bus.topic


@pytest.mark.slow
@pytest.mark.parametrize("who", ["publisher", "subscriber"])
def test_unreachable_registry(own_bus: Bus, free_port: int, who: str, tmp_path: Path) -> None:
    """Case 21: within the connect time-out, naming the hosts; certificates are not the issue here."""
    changes = {
        "registerserver.connect": f"127.0.0.1:{free_port}",
        "registerserver.connect.timeout": "1s",
        "security.ssl.enabled": "false",
        "sinkserver.subnet": "127.0.0.0/8",
    }
    come = {"publisher": own_bus.publisher, "subscriber": lambda given: own_bus.subscribe("early", changes=given)}
    began = time.monotonic()
    with pytest.raises(RegistryUnavailable, match=f"127.0.0.1:{free_port}"):
        come[who](changes)
    assert time.monotonic() - began < 20


def test_wrong_subnet(own_bus: Bus) -> None:
    """Told by the coordinator, raised by the publisher's constructor; names what interfaces there are."""
    with pytest.raises(AddressError, match=r"198\.51\.100\.0/24"):
        own_bus.publisher({"sinkserver.subnet": "198.51.100.0/24"})


@pytest.mark.slow
def test_exhausted_port_range(own_bus: Bus, free_port: int) -> None:
    """One port is too few for control and data; a taken one is too few for anything."""
    with pytest.raises(AddressError, match=str(free_port)):
        own_bus.publisher({"sinkserver.port.range": f"{free_port}"})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=str(port)):
            own_bus.publisher({"sinkserver.port.range": f"{port}"})
    own_bus.publisher().close()  # after the refusals nothing is in the way


@pytest.mark.slow
def test_encryption_on_one_side_only(own_bus: Bus) -> None:
    """Case 70: no guessing, no downgrade."""
    own_bus.publisher()
    with pytest.raises(NotAuthorized, match=r"encryption on.*this side off"):
        own_bus.subscribe("plain", changes={"security.ssl.enabled": "false"}).position()


@pytest.mark.slow
def test_certificate_of_another_ca(own_bus: Bus, tmp_path: Path, home: Path) -> None:
    """Case 67: the subscriber trusts another CA, and has a certificate of it."""
    own_bus.publisher()
    with pytest.raises(NotAuthorized):
        own_bus.subscribe("stranger", changes=foreign_credentials(tmp_path)).position()


@pytest.mark.slow
def test_wholly_plaintext(own_bus: Bus) -> None:
    """Both sides off, on loopback: it works."""
    plain = {"security.ssl.enabled": "false"}
    rows = NumberedRows(own_bus.topic)
    publisher = own_bus.publisher(plain)
    reader = own_bus.reader("plain", rows, changes=plain)
    publish(publisher, rows, own_bus.journal, range(2))
    publisher.close(final=True)
    reader.join()
    assert reader.checker.check().rows == 20


@pytest.mark.slow
def test_higher_epoch_seen_by_a_subscriber_ends_the_publisher(bus: Bus) -> None:
    """Case 12: at once, though its own session lives; but an epoch of another log says nothing about this one."""
    publisher = bus.publisher()
    publish(publisher, NumberedRows(bus.topic), bus.journal, [0])
    greet(bus.config(), bus.topic, epoch=publisher.epoch + 5, log="another").close()
    publish(publisher, NumberedRows(bus.topic), bus.journal, [1])
    registry = open_handler(bus.config())
    newer = registry.next_epoch(bus.topic, publisher.epoch + 5)  # as a publisher draws it
    registry.shutdown()
    with pytest.raises(TopicNotFound, match=f"a publisher with epoch {newer} exists"):
        greet(bus.config(), bus.topic, epoch=newer, log=publisher.log_id)
    with pytest.raises(Fenced):
        publish(publisher, NumberedRows(bus.topic), bus.journal, [2])


def test_what_a_role_may_not_ask(bus: Bus) -> None:
    """Case 76: operations belong to roles; unknown ones and malformed arguments are refused, and the link goes on."""
    publisher = bus.publisher()
    link = greet(bus.config(), bus.topic)
    with pytest.raises(NotAuthorized):
        link.call("seal", {}, timeout=10)
    with pytest.raises(NotAuthorized):
        link.call("open", {}, timeout=10)
    with pytest.raises(RemoteProtocolError, match="unknown operation"):
        link.call("format", {}, timeout=10)
    with pytest.raises(RemoteProtocolError, match="malformed"):
        link.call("range", {}, timeout=10)
    with pytest.raises(RemoteProtocolError, match="position"):
        link.call("range", {"start": {"n": "yesterday"}, "end": {}}, timeout=10)
    assert link.call("bounds", {}, timeout=10).result["head"]["n"] == 0
    link.close()
    with pytest.raises(TopicNotFound):
        greet(bus.config(), bus.topic, asked="nobody-has-it")
    publisher.close()


@pytest.mark.slow
def test_something_else_at_the_registered_port(own_bus: Bus, home: Path) -> None:
    """Cases 20 and 69: a registration is a hint; what does not prove the topic is not believed, and is tried again."""
    config = own_bus.config()
    rows = NumberedRows(own_bus.topic)
    handler = open_handler(config)
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        here = f"127.0.0.1:{impostor.getsockname()[1]}"
        record = RegisterRecord(
            host="127.0.0.1",
            port=impostor.getsockname()[1],
            parallelism=1,
            index=1,
            coordinator=here,
            data=here,
            epoch=0,
            instance="ghost",
            ssl=True,
        )
        handler.register(own_bus.topic, record)
        reader = own_bus.reader("all", rows)
        link, _ = impostor.accept()
        with link:
            link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            publisher = own_bus.publisher()
            publish(publisher, rows, own_bus.journal, range(2))
            reader.wait_rows(20)
            publisher.close(final=True)
            reader.join()
    handler.shutdown()
    assert reader.checker.check().rows == 20


def test_a_port_that_another_server_has_taken(bus: Bus) -> None:
    """Who asks a data process for what coordinators answer, or the other way, is to look the address up again.

    A port that is free again is soon that of another server of the same job, and the registry has the old address for
    as long as a session lives.
    """
    bus.publisher()
    with contextlib.closing(greet(bus.config(), bus.topic)) as control:
        with pytest.raises(TopicNotFound, match="was that of another server"):
            control.call("fetch", {}, timeout=10)
        assert control.call("bounds", {}, timeout=10).result["head"]["n"] == 0
    with contextlib.closing(greet(bus.config(), bus.topic, data=True)) as data:
        for operation in ("bounds", "grant", "adopt"):
            with pytest.raises(TopicNotFound, match="was that of another server"):
                data.call(operation, {}, timeout=10)
        with pytest.raises(RemoteProtocolError, match="unknown operation"):
            data.call("format", {}, timeout=10)


def greet(
    config: Config,
    topic: str,
    *,
    epoch: int = 0,
    log: str | None = None,
    asked: str | None = None,
    data: bool = False,
) -> BlockingLink:
    """Dial a topic's coordinator, or its data process, as a reader, for another topic if ``asked``."""
    wanted = asked or topic
    found = locate(config, topic, PATIENCE)
    return BlockingLink.connect(
        found.data if data else found.control,
        Hello(topic=wanted, role="reader", instance="test", epoch=epoch, log=log),
        tls=client_tls(config),
        server_hostname=topic_server_name(wanted),
    )


def foreign_credentials(folder: Path) -> dict[str, str]:
    """Return settings with certificates of a CA of one's own."""
    init_ca(folder)
    files = issue(folder, "stranger", dns=["*.topic.jobpipe"])
    return {"ssl.ca": str(files.ca), "ssl.cert": str(files.cert), "ssl.key": str(files.key)}


@pytest.mark.slow
def test_a_publisher_does_not_need_the_address_that_others_are_told(bus: Bus) -> None:
    """Behind a NAT it may not reach that one: its own coordinator is on this host."""
    behind = {"sinkserver.subnet": "127.0.0.1/32", "sinkserver.advertise": "127.0.0.3"}
    changes = {"registerserver.topic.storage": f"/nat-{bus.topic}/topics", **behind}  # a coordinator of its own
    publisher = bus.publisher(changes)
    publish(publisher, NumberedRows(bus.topic), bus.journal, range(2))
    found = locate(bus.config(changes), bus.topic, PATIENCE)
    assert (found.control.host, found.data.host) == ("127.0.0.3", "127.0.0.3")
    assert publisher.coordinator.endpoint.host == "127.0.0.1"
