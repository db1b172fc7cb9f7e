"""Cases 67, 68 and 71 while rows flow: certificates, CAs, revocations and rights change, links grow old."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jobpipe.admin import Admin
from jobpipe.discovery.topic_lookup import locate
from jobpipe.net.tls.certificates import NODE_LIFE, describe, init_ca, issue, renew
from jobpipe.net.tls.peer_names import subscription_name, topic_server_name
from jobpipe.net.tls.revocation import revoke
from jobpipe.net.tls.tls_context import Credentials
from tests.faults.conftest import shared_zookeeper as shared_zookeeper
from tests.faults.rig import FILES, PATIENCE, SHARED, conclude, later_rows, more
from tests.harness.processes import Harness
from tests.security.kit import TOPIC, settings

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(240)]

SOON = 12.0  # seconds within which a running server has taken in new files, and old links are gone
ACCESS = """
orders:
  read: [all.subscription.jobpipe, two.subscription.jobpipe]
"""


class Live:
    """A publisher and subscribers, each with a certificate of its own in a folder that a test changes."""

    def __init__(self, folder: Path, rig: Harness, files: dict[str, Credentials]) -> None:
        self.ca = folder / "ca"
        self.folder = folder
        self.rig = rig
        self.files = files

    @property
    def log(self) -> str:
        """What coordinator and data process wrote."""
        logs = self.rig.folder / "home" / "logs"
        return "".join(path.read_text() for path in sorted(logs.glob("*.log")))

    def start(self, name: str, **options: Any) -> None:
        """Start a subscriber with the certificate of its name."""
        mine = self.files[name]
        known = self.rig.subscribers_config
        self.rig.subscribers_config = replace(known, ssl_ca=mine.ca, ssl_cert=mine.cert, ssl_key=mine.key)
        self.rig.consumer(name).start(**options)
        self.rig.subscribers_config = known

    def served_serial(self, port: str = "control") -> str:
        """Return the serial number that a new connection to the server is shown."""
        mine = self.files["all"]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(mine.ca)
        context.load_cert_chain(mine.cert, mine.key)
        place = getattr(locate(self.rig.config, TOPIC, PATIENCE), port)
        with (
            socket.create_connection((place.host, place.port), timeout=10.0) as raw,
            context.wrap_socket(raw, server_hostname=topic_server_name(TOPIC)) as link,
        ):
            shown = link.getpeercert()
        assert shown is not None
        return f"{int(str(shown['serialNumber']), 16):x}"

    def reconnects(self, name: str) -> int:
        """Return how often a subscriber's control link was made anew, as the publisher counts."""
        with Admin(self.rig.config) as admin:
            lines = admin.status(TOPIC).subscriptions
        return next(line.reconnects for line in lines if line.name == name)

    def links_renewed(self, name: str, times: int = 1, timeout: float = PATIENCE) -> None:
        """Wait until a subscriber's link was made anew so often."""
        target = self.reconnects(name) + times
        self.rig.wait_until(lambda: self.reconnects(name) >= target, f"{times} new links of {name}", timeout)


@contextmanager
def live(folder: Path, *names: str, access: str = ACCESS, age: str = "24h", **how: Any) -> Iterator[Live]:
    """Run a publisher with a certificate for its topic, and subscribers with theirs."""
    ca = folder / "ca"
    init_ca(ca)
    (folder / "access.yaml").write_text(access)
    files = {name: issue(ca, name, dns=[subscription_name(name)], usages=["client"]) for name in names}
    files["publisher"] = issue(ca, "publisher", dns=[topic_server_name(TOPIC)])
    given = {**settings(files["publisher"], folder / "access.yaml"), "ssl.max_connection_age": age}
    with Harness(folder / "rig", topic=TOPIC, settings=given, zookeeper=SHARED.zookeeper, **how) as rig:
        made = Live(folder, rig, files)
        rig.publisher.start(pause=0.02)
        for name in names:
            made.start(name)
        for name in names:
            more(rig, name)
        yield made
    assert rig._marked() == []


def swap(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file whole."""
    fresh = path.with_name(f"{path.name}.fresh")
    write(fresh)
    os.replace(fresh, path)


@pytest.mark.slow
def test_links_grow_old(tmp_path: Path) -> None:
    """Case 71: every link is told to end each second; nobody notices."""
    with live(tmp_path, "all", "two", age="1s", **FILES) as now:
        now.links_renewed("all", 5)
        now.links_renewed("two", 1)
        assert later_rows(now.rig) < 5.0
        assert now.rig.publisher.starts == now.rig.consumer("all").starts == 1
        assert " ERROR " not in now.log
        conclude(now.rig, "all", "two")


@pytest.mark.slow
def test_rotation(tmp_path: Path) -> None:
    """Case 71, [M 5]: certificates that are about to end are renewed; those who run go on beyond the end."""
    with live(tmp_path, "all", age="2s") as now:
        ends = datetime.now(UTC) + timedelta(seconds=15)
        for name in ("publisher", "all"):
            renew(now.ca, name, now=ends - NODE_LIFE)
        first = describe(now.files["publisher"].cert).serial
        now.rig.wait_until(lambda: now.served_serial() == now.served_serial("data") == first, "a shorter one", SOON)
        for name in ("publisher", "all"):
            renew(now.ca, name)
        second = describe(now.files["publisher"].cert).serial
        now.rig.wait_until(lambda: now.served_serial() == now.served_serial("data") == second, "a new one", SOON)
        now.rig.wait_until(lambda: datetime.now(UTC) > ends + timedelta(seconds=1), "the old ones' end")
        now.links_renewed("all", 2)
        more(now.rig)
        assert now.rig.publisher.starts == now.rig.consumer("all").starts == 1
        conclude(now.rig)


@pytest.mark.slow
def test_rotation_with_another_key(tmp_path: Path) -> None:
    """Two files cannot change at once: between them, the server goes on with the pair it has."""
    with live(tmp_path, "all", age="1s") as now:
        served = now.served_serial()
        fresh = issue(now.ca, "fresh", dns=[topic_server_name(TOPIC)])
        mine = now.files["publisher"]
        swap(mine.key, lambda path: shutil.copy(fresh.key, path))
        now.rig.wait_until(lambda: "the previous certificates stay in use" in now.log, "a word of it", SOON)
        assert now.served_serial() == served
        swap(mine.cert, lambda path: shutil.copy(fresh.cert, path))
        now.rig.wait_until(lambda: now.served_serial() == describe(fresh.cert).serial, "the new pair", SOON)
        now.links_renewed("all", 2)
        conclude(now.rig)


@pytest.mark.slow
def test_revocation(tmp_path: Path) -> None:
    """Cases 67 and 71: who is revoked loses the link it has, hears why, and gets no other; the others go on."""
    with live(tmp_path, "all", "two") as now:
        began = time.monotonic()
        revoke(now.ca, ["two"])
        two = now.rig.consumer("two")
        while two.alive:
            assert time.monotonic() - began < 45.0, "the link lives on"
            time.sleep(0.05)
        assert two.process.returncode != 0
        assert "CERTIFICATE_REVOKED" in two.log_end()
        assert "certificate revoked" in now.log
        two._hurt = True  # as meant
        got = now.rig.received("two")
        now.links_renewed("all", 0)
        more(now.rig)
        assert now.rig.received("two") == got
        assert now.rig.consumer("all").starts == 1
        now.rig._consumers.pop("two")
        conclude(now.rig)


@pytest.mark.slow
def test_ca_rollover(tmp_path: Path) -> None:
    """Case 71: two CAs in one bundle, then certificates of the new one, then the old one is trusted no more."""
    with live(tmp_path, "all", age="2s") as now:
        old, new = now.ca, tmp_path / "new"
        init_ca(new)
        trusted = old / "ca.crt"
        both = trusted.read_bytes() + (new / "ca.crt").read_bytes()
        swap(trusted, lambda path: path.write_bytes(both))  # all jobs here name this one file
        now.links_renewed("all", 2)
        for name, dns, usages in (
            ("publisher", topic_server_name(TOPIC), ["server", "client"]),
            ("all", subscription_name("all"), ["client"]),
        ):
            made, mine = issue(new, name, dns=[dns], usages=usages), now.files[name]
            swap(mine.key, lambda path, made=made: shutil.copy(made.key, path))  # type: ignore[misc]
            swap(mine.cert, lambda path, made=made: shutil.copy(made.cert, path))  # type: ignore[misc]
        serial = describe(now.files["publisher"].cert).serial
        now.rig.wait_until(lambda: now.served_serial() == now.served_serial("data") == serial, "the new CA's", SOON)
        now.links_renewed("all", 2)
        swap(trusted, lambda path: shutil.copy(new / "ca.crt", path))
        now.rig.wait_until(lambda: "CAs or revocation list have changed" in now.log, "a word of it", SOON)
        now.links_renewed("all", 2)
        more(now.rig)
        assert now.rig.publisher.starts == now.rig.consumer("all").starts == 1
        conclude(now.rig)


@pytest.mark.slow
def test_rights_change(tmp_path: Path) -> None:
    """Case 68: the list is read anew; who is taken off it is refused on the link it has, who comes onto it gets in."""
    only = "orders: {read: [all.subscription.jobpipe]}\n"
    with live(tmp_path, "all", "two") as now:
        swap(tmp_path / "access.yaml", lambda path: path.write_text("orders: {read: [nonsense"))
        now.rig.wait_until(lambda: "the access list stays as it was" in now.log, "a word of it", SOON)
        more(now.rig, "two")
        swap(tmp_path / "access.yaml", lambda path: path.write_text(only))
        two = now.rig.consumer("two")
        deadline = time.monotonic() + PATIENCE
        while two.alive:
            assert time.monotonic() < deadline, "it reads on"
            time.sleep(0.05)
        assert "NotAuthorized" in two.log_end(60)
        two._hurt = True  # as meant
        swap(tmp_path / "access.yaml", lambda path: path.write_text(ACCESS))
        now.start("two")  # at once: who would refuse it looks at the file again
        more(now.rig, "two")
        conclude(now.rig, "all", "two")


@pytest.mark.slow
def test_warnings_before_the_end(tmp_path: Path) -> None:
    """Case 71: a coordinator says so in its log 30, 7 and 1 days before a certificate ends."""
    with live(tmp_path, "all") as now:
        assert " ends " not in now.log
    other = tmp_path / "other"
    ca = other / "ca"
    init_ca(ca)
    files = issue(ca, "job", dns=[topic_server_name(TOPIC)], now=datetime.now(UTC) - NODE_LIFE + timedelta(days=5))
    with Harness(other / "rig", topic=TOPIC, settings=settings(files), zookeeper=SHARED.zookeeper) as rig:
        rig.publisher.start(pause=0.02)
        log = rig.folder / "home" / "logs" / "coordinator.log"
        rig.wait_until(lambda: log.exists() and "renew it: jobpipe certs renew job" in log.read_text(), "a warning")
        (line,) = [line for line in log.read_text().splitlines() if "jobpipe certs renew job" in line]
        assert " WARNING " in line
        assert "4 days left" in line
