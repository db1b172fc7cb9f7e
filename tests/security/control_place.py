"""A control server beyond loopback, its CA, and people who ask it."""

from __future__ import annotations

import contextlib
import http.client
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobpipe.config import load
from jobpipe.control.rest.http_listener import HttpLimits
from jobpipe.control.rest.rest_client import ControlClient, ServerAddress
from jobpipe.control.rest.rest_server import RestServer
from jobpipe.control.server_files import ServerFiles
from jobpipe.errors import JobpipeError
from jobpipe.net.tls.certificates import BOTH, CLIENT, init_ca, issue
from jobpipe.net.tls.tls_context import Credentials
from tests.control_api.conftest import PORTS
from tests.control_api.kit import MemoryControl

DEADLINE = 20.0
SOON = 12.0  # seconds within which a running server has taken in new files, and old connections are gone
PEOPLE = ("anna", "ben", "carl")
ACCESS = "operate: [anna.jobpipe, gone.subscription.jobpipe]\nview: [ben.jobpipe, {}]\n"
FILES = {"ssl.ca": "ca.crt", "ssl.cert": "control.crt", "ssl.key": "control.key"}


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


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    """A CA that a test may change."""
    init_ca(tmp_path / "ca")
    return tmp_path / "ca"


def right_of(place: Place, files: Credentials | str) -> str | None:
    try:
        return str(place.client(place.tls(files)).index().right)
    except JobpipeError:
        return None
