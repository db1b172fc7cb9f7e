"""``jobpipe registry``."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobpipe.cli.doctor.registry_access_check import permissions
from jobpipe.config import load
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper
from tests.cli.conftest import Program, Run
from tests.docs.troubleshooting import on_page
from tests.harness.zookeeper import settings_of

KEYS = {"connect", "embedded", "running", "endpoint", "pid", "since", "namespace", "topics", "answer_seconds"}


@pytest.fixture
def fresh(tmp_path: Path, write: Callable[..., str]) -> Iterator[str]:
    """The file of a home whose ZooKeeper does not run; ended after the test."""
    yield write({"jobpipe.home": str(tmp_path / "fresh")})
    EmbeddedZooKeeper(tmp_path / "fresh").stop()


def ensemble(connect: str) -> dict[str, Any]:
    return {
        "jobpipe.registerserver.connect": connect,
        "jobpipe.registerserver.connect.timeout": "500ms",
        "jobpipe.sinkserver.subnet": "127.0.0.0/8",
        "jobpipe.ssl.enabled": False,
    }


def test_status_starts_nothing(run: Run, fresh: str, tmp_path: Path) -> None:
    result = run("registry", "status", "--json", file=fresh)
    assert result.exit_code == 1
    facts = json.loads(result.stdout)
    assert set(facts) == KEYS
    assert (facts["running"], facts["endpoint"], facts["pid"]) == (False, None, None)
    assert run("registry", "status", file=fresh).exit_code == 1
    assert not (tmp_path / "fresh").exists()


@pytest.mark.slow
@pytest.mark.zookeeper
def test_start_status_stop(run: Run, fresh: str) -> None:
    started = run("registry", "start", file=fresh)
    assert started.exit_code == 0
    assert run("registry", "start", "--linger", "5", file=fresh).stdout == started.stdout
    status = run("registry", "status", "--json", file=fresh)
    facts = json.loads(status.stdout)
    assert status.exit_code == 0
    assert (facts["running"], facts["topics"], facts["endpoint"]) == (True, 0, started.stdout.strip())
    assert started.stdout.strip() in run("registry", "status", file=fresh).stdout
    assert run("registry", "stop", file=fresh).exit_code == 0
    assert run("registry", "stop", file=fresh).exit_code == 0
    assert run("registry", "status", file=fresh).exit_code == 1


@pytest.mark.parametrize("command", ["start", "stop"])
def test_an_ensemble_is_not_ours_to_start_or_stop(run: Run, write: Callable[..., str], command: str) -> None:
    result = run("registry", command, file=write(ensemble("127.0.0.1:2181")))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "127.0.0.1:2181" in result.stderr


@pytest.mark.zookeeper
def test_status_of_an_ensemble_reads_it(run: Run, write: Callable[..., str], home: Path) -> None:
    server = EmbeddedZooKeeper(home)
    connect = server.ensure()
    login = {f"jobpipe.{key}": value for key, value in settings_of(server, connect).items()}
    result = run("registry", "status", "--json", file=write({**ensemble(connect), **login}))
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert set(facts) == KEYS
    assert (facts["embedded"], facts["endpoint"], facts["topics"]) == (False, connect, 0)


@pytest.mark.slow
@pytest.mark.zookeeper
def test_the_doctor_finds_nothing_to_say_of_the_embedded_one(fresh: str, tmp_path: Path) -> None:
    """Only who holds the home's certificate gets in."""
    EmbeddedZooKeeper(tmp_path / "fresh").ensure()
    assert list(permissions(load(fresh, environ={}))) == []


def test_an_ensemble_that_does_not_answer_is_3(run: Run, write: Callable[..., str]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        result = run("registry", "status", file=write(ensemble(f"127.0.0.1:{silent.getsockname()[1]}")))
    assert (result.exit_code, result.stdout) == (3, "")


@pytest.mark.slow
def test_a_registry_that_is_not_there_takes_one_line(start: Callable[..., Program], write: Callable[..., str]) -> None:
    """U12: the address is wrong: one line that says so, and none for each attempt."""
    settings = {**ensemble("127.0.0.1:1"), "jobpipe.registerserver.connect.timeout": "1500ms"}
    code, out, err = start("topics", file=write(settings)).end()
    assert (code, out) == (3, "")
    on_page(err, "jobpipe: registry …")
    assert err == "jobpipe: registry 127.0.0.1:1 is not available: Connection refused (tried for 1.5 s)\n"
