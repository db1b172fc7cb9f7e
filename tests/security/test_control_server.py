"""What the coordinators' tests ask of their listeners, asked of the control server: V2, V4."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jobpipe.control.control_service import Submission
from jobpipe.errors import JobpipeError, LinkBroken, NotAuthorized
from jobpipe.net.servers import listener as net_listener
from jobpipe.net.tls.certificates import BOTH, CLIENT, NODE_LIFE, describe, init_ca, issue, renew
from jobpipe.net.tls.revocation import revoke
from jobpipe.net.tls.tls_context import Credentials
from tests.control_api.kit import tree, until
from tests.security.control_place import DEADLINE, SOON, Person, Place, right_of, serving
from tests.security.control_place import ca as ca
from tests.security.kit import VERSIONS, World, without_usage


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers look at their files and connections all the time."""
    monkeypatch.setattr(net_listener, "TEND_SECONDS", 0.02)
    monkeypatch.setattr(net_listener, "SPREAD_SECONDS", 0.0)


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


def served_serial(place: Place) -> str:
    raw = socket.create_connection(("localhost", place.port), DEADLINE)
    with place.tls("anna").wrap_socket(raw, server_hostname="localhost") as link:
        shown = link.getpeercert()
    assert shown is not None
    return f"{int(str(shown['serialNumber']), 16):x}"


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


def test_without_a_usage_is_as_meant(ca: Path) -> None:
    """The certificate of `no usage` is one that OpenSSL takes."""
    issue(ca, "anna", usages=[CLIENT])
    made = without_usage(ca, Credentials(ca / "ca.crt", ca / "anna.crt", ca / "anna.key"), "anna.jobpipe")
    assert describe(made.cert).usages == ()
