"""SIGTERM: each process ends within 10 s, whoever is connected and whatever he does, and nobody loses a row."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from jobpipe.discovery.configured_tls import client_tls
from jobpipe.discovery.topic_lookup import locate
from jobpipe.net.address import Endpoint
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.wire.wire_messages import Hello
from tests.faults.rig import FILES, OWN_ZOOKEEPER, PAUSE, conclude, gone, later_rows, more, running
from tests.harness.jobs.consume import Received
from tests.harness.processes import Harness

pytestmark = [pytest.mark.slow, pytest.mark.zookeeper, pytest.mark.timeout(180)]

LIMIT = 10.0  # seconds


def bad_clients(rig: Harness, stack: ExitStack) -> None:
    """Connect what a server meets: one that says nothing, one in mid-handshake, one idle, one that reads no data."""
    location = locate(rig.config, rig.topic, 10.0)
    for endpoint in (location.control, location.data):
        for said in (b"", b"\x16\x03\x01\x02\x00\x01\x00"):
            plain = stack.enter_context(socket.create_connection((endpoint.host, endpoint.port), 5.0))
            plain.sendall(said)
    stack.callback(link(rig, location.control, "admin").close)
    read = Received(rig._store("all")).position
    assert read is not None
    stalled = link(rig, location.data, "reader")
    stack.callback(stalled.abort)
    wanted = {"start": replace(read, epoch=0, n=0).to_json(), "end": read.to_json(), "partition": 0, "skip": 0}
    stalled.start_stream("fetch", wanted, timeout=10.0)  # megabytes, of which nothing is read


def link(rig: Harness, endpoint: Endpoint, role: str) -> BlockingLink:
    """Connect as somebody."""
    hello = Hello(topic=rig.topic, role=role, name="x", instance=role)
    name = topic_server_name(rig.topic)
    return BlockingLink.connect(endpoint, hello, tls=client_tls(rig.config), server_hostname=name)


def ends(process: psutil.Process) -> float:
    """Send SIGTERM; return how long the end takes."""
    began = time.monotonic()
    process.terminate()
    gone([process], LIMIT)
    return time.monotonic() - began


def test_coordinator_and_data_process(tmp_path: Path) -> None:
    """Case 7: with silent, half-handshaken, idle and stalled clients; the publisher goes on with others."""
    with running(tmp_path, **FILES) as rig, ExitStack() as stack:
        more(rig, rows=12_000)  # far more than socket buffers hold
        bad_clients(rig, stack)
        more(rig)
        ends(rig.data_process())
        later_rows(rig)
        bad_clients(rig, stack)
        data = rig.data_process()
        ends(rig.coordinator())
        gone([data], LIMIT)
        later_rows(rig)
        assert rig.publisher.starts == 1
        conclude(rig)


def test_publisher_and_subscriber(tmp_path: Path) -> None:
    """Case 7: a rolling restart of both sides, with the same clients connected to the coordinator."""
    with running(tmp_path, **FILES) as rig, ExitStack() as stack:
        more(rig, rows=12_000)
        for _ in range(2):
            bad_clients(rig, stack)
            assert rig.consumer().terminate(LIMIT) == 0
            assert rig.publisher.terminate(LIMIT) == 0
            rig.publisher.start(pause=PAUSE)
            rig.consumer().start()
            later_rows(rig)
        conclude(rig)


def test_each_while_zookeeper_is_away(tmp_path: Path) -> None:
    """Cases 7 and 21: nobody waits for a farewell that it cannot take."""
    with running(tmp_path, consumers=("all", "two"), **OWN_ZOOKEEPER) as rig:
        rig.zookeeper.kill()
        assert rig.consumer("two").terminate(LIMIT) == 0
        assert rig.publisher.terminate(LIMIT) == 0
        ends(rig.coordinator())
        rig.zookeeper.start()
        rig.publisher.start(pause=PAUSE)
        rig.consumer("two").start()
        later_rows(rig, "two")
        later_rows(rig)
        conclude(rig, "all", "two")
