"""``jobpipe doctor``: each fault is found, with a remedy."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jobpipe.cli.doctor import bus_checks, host_checks
from jobpipe.net.tls.certificates import ensure_home, init_ca, issue
from jobpipe.net.tls.revocation import revoke
from tests.cli.conftest import Run
from tests.docs.troubleshooting import on_page

Write = Callable[..., str]


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {"jobpipe.home": str(tmp_path / "home")}


@pytest.fixture
def examine(run: Run, write: Write) -> Callable[..., dict[str, list[dict[str, str]]]]:
    """Run the doctor; return its findings by check, after looking at exit code and form."""

    def examine(settings: dict[str, Any]) -> dict[str, list[dict[str, str]]]:
        result = run("doctor", "--json", file=write(settings))
        lines = json.loads(result.stdout)
        assert all(set(line) == {"check", "status", "detail", "remedy"} for line in lines)
        assert all(bool(line["remedy"]) == (line["status"] != "ok") for line in lines)
        assert result.exit_code == any(line["status"] == "fail" for line in lines)
        found: dict[str, list[dict[str, str]]] = {}
        for line in lines:
            found.setdefault(line["check"], []).append(line)
        return found

    return examine


def statuses(found: dict[str, list[dict[str, str]]], check: str) -> list[str]:
    return [line["status"] for line in found[check]]


@pytest.mark.processes
def test_a_sound_machine(examine: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    found = examine(settings)
    host = ("python", "user", "java", "zookeeper", "pyspark", "worker python")
    for check in (*host, "configuration", "certificates", "registry", "subnet", "ports"):
        assert statuses(found, check) == ["ok"], found[check]
    assert not (tmp_path / "home").exists()  # it changes nothing


def test_a_variable_that_is_not_ours_but_for_its_underscores() -> None:
    named = {"JOBPIPE__HOME": "/h", "JOBPIPE__SPOOL__MAX_BYTES": "1g", "JOBPIPE_CONFIG": "/c", "JOBPIPE_MINE": "x"}
    assert list(host_checks.variables(named)) == []
    meant = [found.remedy for found in host_checks.variables({"JOBPIPE_HOME": "/h", "jobpipe_spool_max_bytes": "1g"})]
    assert "JOBPIPE__HOME," in meant[0]
    assert "JOBPIPE__SPOOL__MAX_BYTES," in meant[1]


def test_as_text(run: Run, write: Write, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = run("doctor", file=write(settings))
    assert result.exit_code == 1
    assert any(line.startswith("fail  java") for line in result.stdout.splitlines())
    assert "\x1b" not in result.stdout


def java_that_says(folder: Path, text: str, code: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
    program.chmod(0o755)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "code", "status"),
    [
        ('openjdk version "17.0.2" 2022-01-18', 0, "ok"),
        ('openjdk version "21" 2023-09-19', 0, "ok"),
        ('java version "1.8.0_202"', 0, "fail"),
        ('openjdk version "11.0.1"', 0, "fail"),
        ("who knows", 0, "warn"),
        ("broken", 1, "fail"),
    ],
)
def test_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int, status: str) -> None:
    java_that_says(tmp_path / "bin", text, code)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert host_checks.java().status == status


def test_unix_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert host_checks.unix_sockets().status == "warn"
    (tmp_path / "spark-defaults.conf").write_text("# x\nspark.python.unix.domain.socket.enabled   true\n")
    assert host_checks.unix_sockets().status == "ok"


def test_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says to put into Spark's defaults is right; half of it would stop every query."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    finding = host_checks.local_files()
    assert finding.status == "warn"
    lines = re.findall(r"`(spark\.\S+ \S+)`", finding.remedy)
    assert len(lines) == 2
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
    assert host_checks.local_files().status == "ok"
    (tmp_path / "spark-defaults.conf").write_text(lines[1])
    finding = host_checks.local_files()
    assert finding.status == "fail"
    assert "not on the class path" in finding.detail


@pytest.mark.processes
def test_a_wrong_configuration_ends_the_examination(examine: Any) -> None:
    found = examine({"jobpipe.acks": "some"})
    assert statuses(found, "configuration") == ["fail"]
    assert "registry" not in found


@pytest.mark.processes
def test_an_address_without_certificates_is_tried(examine: Any) -> None:
    """U7: a mistyped address is named, and not only the certificates that are missing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        assert statuses(examine({"jobpipe.registerserver.connect": there}), "registry") == ["ok"]
        assert bus_checks.address(f"127.0.0.1:1,{there}/chroot").status == "ok"
    found = examine({"jobpipe.registerserver.connect": "no.such.host.invalid:2181,127.0.0.1:1/chroot"})
    assert statuses(found, "configuration") == statuses(found, "registry") == ["fail"]
    (finding,) = found["registry"]
    on_page(finding["detail"], "no connection to a ZooKeeper")
    assert bus_checks.address("[::1]:1").status == "fail"


@pytest.mark.processes
def test_a_subnet_that_is_not_here(examine: Any, settings: dict[str, Any]) -> None:
    found = examine({**settings, "jobpipe.sinkserver.subnet": "203.0.113.0/24"})
    assert statuses(found, "subnet") == ["fail"]


@pytest.mark.processes
def test_one_port_is_not_enough(examine: Any, settings: dict[str, Any]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found = examine({**settings, "jobpipe.sinkserver.port.range": str(port)})
    assert statuses(found, "ports") == ["fail"]


@pytest.mark.processes
def test_a_spool_that_cannot_be_written(examine: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = examine({**settings, "jobpipe.spool.dir": str(tmp_path / "file" / "spool")})
    assert statuses(found, "spool") == ["fail"]


@pytest.mark.processes
def test_a_disk_smaller_than_the_cap(examine: Any, settings: dict[str, Any]) -> None:
    assert statuses(examine({**settings, "jobpipe.spool.max_bytes": "1000000TiB"}), "spool") == ["warn"]


@pytest.mark.processes
def test_encryption_switched_off(examine: Any, settings: dict[str, Any]) -> None:
    assert statuses(examine({**settings, "security.ssl.enabled": False}), "certificates") == ["warn"]


@pytest.mark.processes
@pytest.mark.parametrize(("days", "expected"), [(0, ["ok", "ok"]), (810, ["ok", "warn"]), (830, ["ok", "fail"])])
def test_certificates_age(
    examine: Any, settings: dict[str, Any], tmp_path: Path, days: int, expected: list[str]
) -> None:
    then = datetime.now(UTC) - timedelta(days=days)
    init_ca(tmp_path / "certs", now=then)
    made = issue(tmp_path / "certs", "job", now=then)
    files = {"jobpipe.ssl.ca": str(made.ca), "jobpipe.ssl.cert": str(made.cert), "jobpipe.ssl.key": str(made.key)}
    assert statuses(examine({**settings, **files}), "certificates") == expected


@pytest.mark.processes
def test_revoked_lists_and_access(examine: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    """The revocation list has an end too, our own certificate may stand in it, and an access list be wrong."""
    init_ca(tmp_path / "certs")
    made = issue(tmp_path / "certs", "job")
    files = {"jobpipe.ssl.ca": str(made.ca), "jobpipe.ssl.cert": str(made.cert), "jobpipe.ssl.key": str(made.key)}
    access = tmp_path / "access.yaml"
    given = {**settings, **files, "security.access": str(access)}
    access.write_text("orders: {read: [a.jobpipe]}")
    revoke(tmp_path / "certs", now=datetime.now(UTC) - timedelta(days=360))
    found = examine(given)
    assert statuses(found, "certificates") == ["ok", "ok", "warn"]
    assert statuses(found, "access list") == ["ok"]
    access.write_text("orders: {read: ['*']}")
    revoke(tmp_path / "certs", ["job"])
    found = examine(given)
    assert statuses(found, "certificates") == ["fail", "ok", "ok", "ok"]
    assert statuses(found, "access list") == ["fail"]
    revoke(tmp_path / "certs", now=datetime.now(UTC) - timedelta(days=400))
    assert statuses(examine(given), "certificates") == ["fail"]


@pytest.mark.processes
def test_a_key_that_others_may_read(examine: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    ensure_home(tmp_path / "home").key.chmod(0o644)
    assert statuses(examine(settings), "certificates") == ["fail"]


@pytest.mark.processes
def test_a_registry_that_does_not_answer(examine: Any, settings: dict[str, Any]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound, not listening: refused
        found = examine(
            {
                **settings,
                "jobpipe.registerserver.connect": f"127.0.0.1:{silent.getsockname()[1]}",
                "jobpipe.registerserver.connect.timeout": "500ms",
                "jobpipe.sinkserver.subnet": "127.0.0.0/8",
                "jobpipe.ssl.enabled": False,
            }
        )
    assert statuses(found, "registry") == ["fail"]


@pytest.mark.zookeeper
def test_a_registry_that_answers(examine: Any, settings_of_test: dict[str, str]) -> None:
    found = examine(settings_of_test)
    assert statuses(found, "registry") == ["ok"]
    assert "0 topics" in found["registry"][0]["detail"]
    assert statuses(found, "certificates")[-1] == "ok"


@pytest.mark.processes
def test_the_python_of_the_workers(examine: Any, settings: dict[str, Any], monkeypatch: Any, tmp_path: Path) -> None:
    """U1: the doctor starts the Python that Spark would, and tells whether it can import jobpipe."""
    monkeypatch.setattr(
        "jobpipe.spark.session.python_interpreter._chosen", None
    )  # what is set below is the user's own choice
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert statuses(examine(settings), "worker python") == ["ok"]
    stranger = tmp_path / "bin" / "python3"
    stranger.parent.mkdir()
    stranger.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'jobpipe'\" >&2; exit 1\n")
    stranger.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stranger.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("PYSPARK_PYTHON")
    [line] = examine(settings)["worker python"]
    assert line["status"] == "fail"
    assert f"Spark starts python3 ({stranger}, by the PATH): it cannot import jobpipe" in line["detail"]
    assert f"export PYSPARK_PYTHON={sys.executable}" in line["remedy"]
    monkeypatch.setenv("PYSPARK_PYTHON", "no-such-python")
    [line] = examine(settings)["worker python"]
    assert "there is no program 'no-such-python'" in line["detail"]
    assert line["remedy"] == f"export PYSPARK_PYTHON={sys.executable}"
