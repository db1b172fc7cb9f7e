"""What the coordinators' tests ask of their listeners, asked of the control server: V2, V3, V4."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from jobpipe.config import load
from jobpipe.control.api_listener import HttpLimits
from jobpipe.control.api_server import RestServer
from jobpipe.control.client import ControlClient, ServerAddress
from jobpipe.control.interface import Submission
from jobpipe.control.rights import Right
from jobpipe.control.server_files import ServerFiles, read_token
from jobpipe.errors import JobpipeError, LinkBroken, NotAuthorized
from jobpipe.net import listener as net_listener
from jobpipe.net.certs import BOTH, CLIENT, NODE_LIFE, describe, init_ca, issue, renew
from jobpipe.net.revocation import revoke
from jobpipe.net.tls import Credentials
from tests.bus.kit import ROOT
from tests.control_api.conftest import PORTS
from tests.control_api.conftest import control as control
from tests.control_api.conftest import served as served
from tests.control_api.conftest import server_config as server_config
from tests.control_api.kit import MemoryControl, Served, tree
from tests.security.flood import hostile
from tests.security.kit import VERSIONS, World, without_usage

DEADLINE = 20.0
SOON = 12.0  # seconds within which a running server has taken in new files, and old connections are gone
PEOPLE = ("anna", "ben", "carl")
ACCESS = "operate: [anna.jobpipe, gone.subscription.jobpipe]\nview: [ben.jobpipe, {}]\n"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers look at their files and connections all the time."""
    monkeypatch.setattr(net_listener, "TEND_SECONDS", 0.02)
    monkeypatch.setattr(net_listener, "SPREAD_SECONDS", 0.0)


@dataclass
class Place:
    """A control server beyond loopback, and its people."""

    ca: Path
    access: Path
    port: int
    control: MemoryControl

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def tls(self, files: Credentials | str | None, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts the server, and shows whatever it likes."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.ca / "ca.crt")
        if isinstance(files, str):
            context.load_cert_chain(self.ca / f"{files}.crt", self.ca / f"{files}.key")
        elif files is not None:
            context.load_cert_chain(files.cert, files.key)
        if version is not None:
            context.minimum_version = context.maximum_version = version
        return context

    def client(self, tls: ssl.SSLContext) -> ControlClient:
        """Return a client, which connects again for each of its requests."""
        return ControlClient(ServerAddress(self.url, tls=tls))


class Person:
    """One connection that stays."""

    def __init__(self, place: Place, files: Credentials | str, tls: ssl.SSLContext | None = None) -> None:
        self._http = http.client.HTTPSConnection(
            "localhost", place.port, context=tls or place.tls(files), timeout=DEADLINE
        )
        self._http.connect()

    @property
    def raw(self) -> ssl.SSLSocket:
        """The connection."""
        found = self._http.sock
        assert isinstance(found, ssl.SSLSocket)
        return found

    def ask(self, path: str = "/pipelines") -> int:
        """Ask, and return the status."""
        self._http.request("GET", path)
        response = self._http.getresponse()
        response.read()
        return response.status

    def follow(self) -> http.client.HTTPResponse:
        """Begin to follow the events."""
        self._http.request("GET", "/events")
        response = self._http.getresponse()
        assert response.status == 200
        return response

    def ended(self, seconds: float = SOON) -> bool:
        """Wait until the server ends the connection; True at once if it has said that it will."""
        if self._http.sock is None:
            return True
        self.raw.settimeout(seconds)
        try:
            while self.raw.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        self._http.close()


@contextlib.contextmanager
def serving(
    ca: Path, folder: Path, access: str = ACCESS, limits: HttpLimits | None = None, **given: str
) -> Iterator[Place]:
    """Run a control server for people with certificates of a CA."""
    if not (ca / "control.crt").exists():
        issue(ca, "control", dns=["localhost"], usages=BOTH)
    for person in PEOPLE:
        if not (ca / f"{person}.crt").exists():
            issue(ca, person, usages=[CLIENT])
    listed = folder / "access.yaml"
    listed.write_text(access.format("billing.subscription.jobpipe"))
    listed.chmod(0o600)
    overrides = {
        "home": str(folder / "home"),
        "server.host": "0.0.0.0",  # noqa: S104 - what is tested; on loopback there is no TLS
        "server.port": PORTS,
        "server.access": str(listed),
        **{name: str(ca / file) for name, file in FILES.items()},
        **given,
    }
    config, control = load(overrides=overrides, environ={}), MemoryControl()
    with ServerFiles.of(config.home).locked():
        rest = RestServer(control, config, limits=limits)
        rest.start()
        try:
            yield Place(ca, listed, int(rest.state.url.rpartition(":")[2]), control)
        finally:
            rest.close()


FILES = {"ssl.ca": "ca.crt", "ssl.cert": "control.crt", "ssl.key": "control.key"}


@pytest.fixture
def limits() -> HttpLimits:
    """Of the server on loopback."""
    return HttpLimits(connections=8)


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    """A CA that a test may change."""
    init_ca(tmp_path / "ca")
    return tmp_path / "ca"


# ------------------------------------------------------------------------------------------------------------- who


@pytest.fixture(scope="module")
def place(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server for all kinds of certificates, as the coordinators of test_matrix.py meet them."""
    with serving(world.folder, tmp_path_factory.mktemp("control")) as found:
        yield found


BAD = {
    "no certificate": (None, "CERTIFICATE_REQUIRED"),
    "expired": ("expired", "CERTIFICATE_EXPIRED"),
    "other CA": ("stranger", "UNKNOWN_CA"),
    "wrong usage": ("serving", "UNSUPPORTED_CERTIFICATE"),
    "no usage": ("for_anything", "made for clients"),
    "revoked": ("revoked", "CERTIFICATE_REVOKED"),
    "not in the list": ("audit", "does not know who asks"),
}


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize("case", BAD)
def test_refused(place: Place, world: World, case: str, version: ssl.TLSVersion) -> None:
    """V4: the same certificates as at a coordinator; the names of all but one are in the list."""
    shown, hears = BAD[case]
    client = place.client(place.tls(None if shown is None else getattr(world, shown), version))
    with pytest.raises(JobpipeError) as caught:
        client.pipelines()
    error = caught.value
    if case == "no certificate" and version == ssl.TLSVersion.TLSv1_2:  # a protocol that has no word for it
        assert isinstance(error, LinkBroken)
    else:
        assert isinstance(error, NotAuthorized), error
        assert hears in str(error.fields.get("reason", error.message))
        assert "jobpipe" in error.message, "says what to do"


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize("shown", ["billing", "anna", "ben", "control"])
def test_let_in(place: Place, world: World, shown: str, version: ssl.TLSVersion) -> None:
    """V4: the same name as of the certificate without any usage, and those that operate."""
    files = world.billing if shown == "billing" else shown
    right = place.client(place.tls(files, version)).index().right
    assert right == ("view" if shown in ("billing", "ben") else "operate")


def test_a_refused_connection_does_nothing(place: Place, world: World) -> None:
    """V4: what it sends is not asked of the core, whatever it asks, and it is no longer there for more."""
    place.client(place.tls("anna")).pipelines()
    before = list(place.control.calls)
    person = Person(place, world.for_anything)
    with contextlib.closing(person):
        assert person.ask() == 401
        assert person.ended(DEADLINE)
    assert place.control.calls == before


# --------------------------------------------------------------------------------------------------------- how long


def test_who_is_revoked_loses_the_connection_it_has(ca: Path, tmp_path: Path, often: None) -> None:
    """V2: with requests all the time, or none, or following events; the others go on."""
    with serving(ca, tmp_path) as place, contextlib.ExitStack() as stack:

        def person(name: str) -> Person:
            made = Person(place, name)
            stack.callback(made.close)
            assert made.ask() == 200
            return made

        asking, idle, following, other = person("anna"), person("anna"), person("anna"), person("ben")
        events = following.follow()
        assert place.client(place.tls("anna")).index().right == "operate"
        revoke(ca, ["anna"])
        deadline = time.monotonic() + SOON
        with contextlib.suppress(OSError, http.client.HTTPException):
            while time.monotonic() < deadline:
                asking.ask()
        assert time.monotonic() < deadline, "it is still answered"
        assert idle.ended()
        while events.readline():  # it ends as a stream does, so that a client asks again
            assert time.monotonic() < deadline
        with pytest.raises(NotAuthorized, match="revoked"):
            place.client(place.tls("anna")).index()
        assert other.ended(), "all must prove themselves again"
        assert place.client(place.tls("ben")).index().right == "view"


@pytest.mark.parametrize("before", ["nothing", "health", "half a request", "half a body"])
def test_a_revoked_one_has_nothing_done(ca: Path, tmp_path: Path, often: None, before: str) -> None:
    """V2: whatever its connection did until then, also if nothing of that had a right."""
    stop = b"PUT /pipelines/flights/stop HTTP/1.1\r\nHost: localhost:%d\r\n"
    with serving(ca, tmp_path) as place:
        head = stop % place.port
        for revoked in (False, True):
            person, witness = Person(place, "anna"), Person(place, "anna")
            with contextlib.closing(person), contextlib.closing(witness):
                assert witness.ask() == 200
                if before == "health":
                    assert person.ask("/health") == 200
                said = {"half a request": head, "half a body": head + b"Transfer-Encoding: chunked\r\n\r\n"}.get(
                    before, b""
                )
                person.raw.sendall(said)
                if revoked:
                    revoke(ca, ["anna"])
                    assert witness.ended()
                place.control.calls.clear()
                rest = {"half a request": b"\r\n", "half a body": b"0\r\n\r\n"}.get(before, head + b"\r\n")
                with contextlib.suppress(OSError):
                    person.raw.sendall(rest)
                answer = b""
                with contextlib.suppress(OSError):
                    answer = person.raw.recv(65536)
            if revoked:
                assert answer == b"" or answer.startswith(b"HTTP/1.1 503"), answer
                assert ("stop", "flights", None) not in place.control.calls
            else:
                assert answer.startswith(b"HTTP/1.1 404"), answer
                assert ("stop", "flights", None) in place.control.calls


def test_connections_grow_old(ca: Path, tmp_path: Path, often: None) -> None:
    """V2: ``jobpipe.ssl.max_connection_age`` is for people too."""
    with serving(ca, tmp_path, **{"ssl.max_connection_age": "1s"}) as place:
        person = Person(place, "anna")
        with contextlib.closing(person):
            assert person.ask() == 200
            assert person.ended()
        assert place.client(place.tls("anna")).index().right == "operate"


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_the_end_of_a_certificate_ends_its_connections(
    ca: Path, tmp_path: Path, often: None, version: ssl.TLSVersion
) -> None:
    """V2: and a resumed TLS session brings it no further."""
    with serving(ca, tmp_path) as place:
        ends = time.time() + 4.0
        issue(ca, "anna", usages=[CLIENT], replace=True, now=datetime.now(UTC) - NODE_LIFE + timedelta(seconds=4))
        tls = place.tls("anna", version)
        person = Person(place, "anna", tls)
        with contextlib.closing(person):
            assert person.ask() == 200
            session = person.raw.session
            assert person.ended()
            assert time.time() > ends - 1.5
        time.sleep(max(0.0, ends + 1.1 - time.time()))  # certificates count whole seconds
        raw = socket.create_connection(("localhost", place.port), DEADLINE)
        with tls.wrap_socket(raw, server_hostname="localhost", session=session) as resumed:
            assert resumed.session_reused, "or this test tests nothing"
            resumed.sendall(f"GET /pipelines HTTP/1.1\r\nHost: localhost:{place.port}\r\n\r\n".encode())
            answer = b""
            while part := resumed.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 401"), answer
        assert b"has expired" in answer


def swap(path: Path, content: bytes) -> None:
    """Replace a file whole."""
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.write_bytes(content)
    fresh.chmod(path.stat().st_mode & 0o777)
    os.replace(fresh, path)


@pytest.mark.slow
def test_another_ca(ca: Path, tmp_path: Path, often: None, caplog: pytest.LogCaptureFixture) -> None:
    """V2: two CAs in one bundle, then the old one is trusted no more; certificates of ours change on the way."""
    old = tmp_path / "old"
    init_ca(tmp_path / "new")
    new = tmp_path / "new"
    issue(new, "anna", usages=[CLIENT])
    theirs = Credentials(new / "ca.crt", new / "anna.crt", new / "anna.key")
    with serving(ca, tmp_path) as place:
        shutil.copytree(ca, old)
        with pytest.raises(NotAuthorized, match="UNKNOWN_CA"):
            place.client(place.tls(theirs)).index()
        swap(ca / "ca.crt", (ca / "ca.crt").read_bytes() + (new / "ca.crt").read_bytes())
        until(lambda: right_of(place, theirs) == "operate")
        assert right_of(place, "anna") == "operate"
        stays = Person(place, "anna")
        with contextlib.closing(stays):
            assert stays.ask() == 200
            fresh = issue(new, "control", dns=["localhost"], usages=BOTH)
            swap(ca / "control.key", fresh.key.read_bytes())
            until(lambda: "the previous certificates stay in use" in caplog.text)
            assert stays.ask() == 200
            swap(ca / "control.crt", fresh.cert.read_bytes())
            until(lambda: served_serial(place) == describe(fresh.cert).serial)
            assert stays.ask() == 200, "another certificate of ours is no other trust"
            both = (ca / "ca.crt").read_bytes()
            swap(ca / "ca.crt", (new / "ca.crt").read_bytes())
            assert stays.ended()
            swap(old / "ca.crt", both)
        left = Place(old, place.access, place.port, place.control)
        with pytest.raises(NotAuthorized, match="UNKNOWN_CA"):
            left.client(left.tls("anna")).index()
        assert right_of(place, theirs) == "operate"


def right_of(place: Place, files: Credentials | str) -> str | None:
    try:
        return str(place.client(place.tls(files)).index().right)
    except JobpipeError:
        return None


def served_serial(place: Place) -> str:
    raw = socket.create_connection(("localhost", place.port), DEADLINE)
    with place.tls("anna").wrap_socket(raw, server_hostname="localhost") as link:
        shown = link.getpeercert()
    assert shown is not None
    return f"{int(str(shown['serialNumber']), 16):x}"


def until(holds: Any) -> None:
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.02)


def test_the_server_s_own_names_are_read_again(ca: Path, tmp_path: Path, often: None) -> None:
    """A renewed certificate with other names gives its holder the right, and the old names none."""
    with serving(ca, tmp_path) as place:
        assert place.client(place.tls("control")).index().right == "operate"
        before = place.tls("control")
        issue(ca, "control", dns=["localhost", "second.jobpipe"], usages=BOTH, replace=True)
        until(lambda: right_of(place, "control") == "operate")
        with pytest.raises(NotAuthorized, match="does not know who asks"):
            place.client(before).index()
        renew(ca, "control")
        until(lambda: right_of(place, "control") == "operate")


@pytest.mark.slow
def test_an_answer_is_sent_before_the_end(ca: Path, tmp_path: Path) -> None:
    """V2: a connection that ends after its answer waits until the client has taken it; a slow one, seconds long."""
    with serving(ca, tmp_path) as place:
        place.control.lines = ("x" * 40_000,) * 100
        place.control.submit(Submission(file=tmp_path / "p.yaml", folder=tmp_path, tree=tree()))
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        raw.connect(("127.0.0.1", place.port))
        with place.tls("anna").wrap_socket(raw, server_hostname="localhost") as sock:
            path = "/pipelines/flights/jobs/report/log"
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost:{place.port}\r\nConnection: close\r\n\r\n".encode())
            found, began = 0, time.monotonic()
            while part := sock.recv(16 * 1024):
                found += len(part)
                time.sleep(0.016)
        assert time.monotonic() - began > 3.0, "or this test tests nothing"
        assert found > 40_000 * 100


# --------------------------------------------------------------------------------------------------------- how many


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


def test_without_a_usage_is_as_meant(ca: Path) -> None:
    """The certificate of `no usage` is one that OpenSSL takes."""
    issue(ca, "anna", usages=[CLIENT])
    made = without_usage(ca, Credentials(ca / "ca.crt", ca / "anna.crt", ca / "anna.key"), "anna.jobpipe")
    assert describe(made.cert).usages == ()
