"""Fixtures: a REST server over loopback with a core in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobpipe.config import Config, load
from jobpipe.control.permissions import Right
from jobpipe.control.rest.http_listener import HttpLimits
from jobpipe.control.rest.rest_client import ServerAddress
from jobpipe.control.rest.rest_server import RestServer
from jobpipe.control.server_files import ServerFiles, read_token
from tests.control_api.kit import MemoryControl, Served

PORTS = "20000-29999"


@pytest.fixture
def server_config(tmp_path: Path) -> Config:
    """A home of its own, and a folder for pipelines."""
    (tmp_path / "work").mkdir()
    given = {"home": str(tmp_path / "home"), "server.port": PORTS, "server.roots": str(tmp_path / "work")}
    return load(overrides=given, environ={})


@pytest.fixture
def control() -> MemoryControl:
    return MemoryControl()


@pytest.fixture
def limits() -> HttpLimits:
    return HttpLimits()


@pytest.fixture
def served(server_config: Config, control: MemoryControl, limits: HttpLimits, tmp_path: Path) -> Iterator[Served]:
    """A server that runs."""
    files = ServerFiles.of(server_config.home)
    with files.locked():
        server = RestServer(control, server_config, limits=limits, streams=2)
        server.start()
        try:
            token = read_token(files.token(Right.OPERATE))
            yield Served(
                control=control,
                address=ServerAddress(server.state.url, token),
                view=read_token(files.token(Right.VIEW)),
                home=server_config.home,
                folder=tmp_path / "work",
            )
        finally:
            server.close()
