"""Silent, hostile and too many connections keep nobody out of the control server: V3."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from jobpipe.control.permissions import Right
from jobpipe.control.rest.http_listener import HttpLimits
from jobpipe.control.rest.rest_client import ControlClient, ServerAddress
from jobpipe.control.server_files import ServerFiles, read_token
from jobpipe.errors import JobpipeError
from jobpipe.net.tls.certificates import BOTH, CLIENT, issue
from tests.bus.kit import ROOT
from tests.control_api.conftest import PORTS
from tests.control_api.conftest import control as control
from tests.control_api.conftest import served as served
from tests.control_api.conftest import server_config as server_config
from tests.control_api.kit import MemoryControl, Served, until
from tests.security.control_place import DEADLINE, FILES, Person, Place, serving
from tests.security.control_place import ca as ca
from tests.security.floods.flood import hostile


@pytest.fixture
def limits() -> HttpLimits:
    """Of the server on loopback."""
    return HttpLimits(connections=8)


SILENT = (b"", b"\x16\x03\x01\x02\x00\x01", b"\x16")


def test_silent_connections_keep_nobody_out(ca: Path, tmp_path: Path) -> None:
    """V3: as many as there is room for, from one address, before TLS; another is served, and so is the same one."""
    limits = HttpLimits(connections=24, per_address=16, rate=1e6)
    with serving(ca, tmp_path, limits=limits) as place, contextlib.ExitStack() as stack:
        anna = Person(place, "anna")
        stack.callback(anna.close)
        assert anna.ask() == 200
        for number in range(60):
            sock = socket.create_connection(("127.0.0.1", place.port), DEADLINE, (f"127.0.0.{2 + number % 2}", 0))
            stack.callback(sock.close)
            sock.sendall(SILENT[number % 3])
            if number % 10 == 0:
                assert place.client(place.tls("ben")).index().right == "view"
        assert anna.ask() == 200, "who is let in makes room for nobody"


def test_strangers_who_ask_keep_nobody_out(served: Served, control: MemoryControl) -> None:
    """V3: on loopback, other users of the host, who are answered without a token, or with a wrong one, all the time."""
    port = int(served.host.rpartition(":")[2])
    wrong = {"Authorization": "Bearer " + "x" * 43}
    with contextlib.ExitStack() as stack:
        mine = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
        stack.callback(mine.close)
        right = {"Authorization": f"Bearer {served.address.token}"}

        def ask() -> int:
            mine.request("GET", "/pipelines", headers=right)
            response = mine.getresponse()
            response.read()
            return response.status

        assert ask() == 200
        for number in range(20):
            stranger = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
            stack.callback(stranger.close)
            path, headers, status = (("/health", {}, 200), ("/pipelines", wrong, 401))[number % 2]
            stranger.request("GET", path, headers=headers)
            response = stranger.getresponse()
            response.read()
            assert response.status == status
            assert served.ask("GET", "/pipelines").status == 200
        assert ask() == 200


def test_a_certificate_has_its_share(ca: Path, tmp_path: Path) -> None:
    """V3: and hears that it has too many connections; the others are let in."""
    with serving(ca, tmp_path, limits=HttpLimits(per_identity=2)) as place, contextlib.ExitStack() as stack:
        for _ in range(2):
            person = Person(place, "anna")
            stack.callback(person.close)
            assert person.ask() == 200
        one_more = Person(place, "anna")
        stack.callback(one_more.close)
        assert one_more.ask() == 503
        assert one_more.ended(DEADLINE)
        assert place.client(place.tls("ben")).index().right == "view"


def test_refused_ones_make_room(ca: Path, tmp_path: Path) -> None:
    """V3: a certificate that has its share, and asks nothing on the connections beyond it, takes no place of others."""
    limits = HttpLimits(connections=16, per_address=8, per_identity=4, rate=1e6)
    with serving(ca, tmp_path, limits=limits) as place, contextlib.ExitStack() as stack:
        tls = place.tls("carl")
        for number in range(40):
            raw = socket.create_connection(("127.0.0.1", place.port), DEADLINE, (f"127.0.0.{2 + number % 2}", 0))
            stack.callback(raw.close)
            with contextlib.suppress(OSError):  # made room
                stack.callback(tls.wrap_socket(raw, server_hostname="localhost").close)
        assert place.client(place.tls("anna")).index().right == "operate"


def test_a_probe_is_no_failure(ca: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its connections have no right, and end after their answer; a silent one is a failure."""
    caplog.set_level(logging.INFO, "jobpipe.net")
    with serving(ca, tmp_path) as place:
        for person in (Person(place, "anna"), Person(place, "carl")):
            with contextlib.closing(person):
                assert person.ask("/health") == 200
        Person(place, "anna").close()
        until(lambda: "is not let in" in caplog.text)
    assert caplog.text.count("is not let in") == 1


@dataclass
class Good:
    """A person who asks all the time, each time with a new connection, and how long each took, in seconds."""

    client: ControlClient
    seconds: list[float] = field(default_factory=list)
    failures: list[JobpipeError] = field(default_factory=list)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Ask until the block ends."""
        over = threading.Event()

        def ask() -> None:
            while not over.wait(0.05):
                began = time.monotonic()
                try:
                    self.client.pipelines()
                except JobpipeError as error:
                    self.failures.append(error)
                self.seconds.append(time.monotonic() - began)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(DEADLINE)

    def summary(self) -> str:
        """Return the figures as one line, in milliseconds."""
        ranked = sorted(self.seconds)
        return (
            f"n={len(ranked)} median={statistics.median(ranked) * 1e3:.1f} "
            f"p99={ranked[int(len(ranked) * 0.99)] * 1e3:.1f} max={ranked[-1] * 1e3:.1f} ms, "
            f"{len(self.failures)} failures"
        )


@contextlib.contextmanager
def program(ca: Path, folder: Path, **given: str) -> Iterator[psutil.Process]:
    """Run a control server as a process of its own, with a core in memory."""
    file = folder / "jobpipe.yaml"
    file.write_text(yaml.safe_dump({"jobpipe": {"home": str(folder / "home"), "server.port": PORTS, **given}}))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.control_api.program"],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"JOBPIPE_CONFIG": str(file)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("where", "kind"), [("beyond", "silent"), ("beyond", "connect"), ("loopback", "silent")])
def test_a_flood_keeps_nobody_out(ca: Path, tmp_path: Path, kind: str, where: str) -> None:
    """V3: hostile hosts against people with certificates; on loopback, another user of the host against its own.

    There all come from one address; what a flood of connects does is said in SECURITY.md.
    """
    for name in ("anna", "ben"):
        issue(ca, name, usages=[CLIENT])
    issue(ca, "control", dns=["localhost"], usages=BOTH)
    access = tmp_path / "access.yaml"
    access.write_text("operate: [anna.jobpipe]\n")
    access.chmod(0o600)
    beyond = {
        "server.host": "0.0.0.0",  # noqa: S104 - from addresses of loopback
        "server.access": str(access),
        **{name: str(ca / file) for name, file in FILES.items()},
    }
    with program(ca, tmp_path, **(beyond if where == "beyond" else {})) as process:
        state = ServerFiles.of(tmp_path / "home").read_state()
        assert state is not None
        port = int(state.url.rpartition(":")[2])
        if where == "beyond":
            address = ServerAddress(state.url, tls=Place(ca, access, port, MemoryControl()).tls("anna"))
        else:
            address = ServerAddress(state.url, read_token(ServerFiles.of(tmp_path / "home").token(Right.OPERATE)))
        tls = [str(ca / name) for name in ("ca.crt", "ben.crt", "ben.key")] + ["localhost"]
        order: dict[str, Any] = {
            "kind": kind,
            "seconds": 6,
            "count": 500,
            "endpoints": [["127.0.0.1", port]],
            "sources": [f"127.0.0.{number}" for number in range(2, 10)] if where == "beyond" else ["127.0.0.1"],
            "tls": tls if where == "beyond" else None,
        }
        quiet, good = Good(ControlClient(address)), Good(ControlClient(address))
        with quiet.at_work():
            time.sleep(2.0)
        files, memory = process.num_fds(), process.memory_info().rss
        with good.at_work(), hostile(**order) as report:
            time.sleep(order["seconds"])
        print(f"\nquiet: {quiet.summary()}\n{kind} {where}: {good.summary()}; {report}")
        until(lambda: process.num_fds() <= files + 2)
        print(f"memory kept: {(process.memory_info().rss - memory) >> 20} MiB")
        assert not quiet.failures
        assert not good.failures, good.failures[0]
        assert max(good.seconds) < 2.0 + max(quiet.seconds)
        assert process.memory_info().rss - memory < 96 * 2**20  # its allocator keeps half of it for good
