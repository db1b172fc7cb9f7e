"""``jobpipe certs``."""

from __future__ import annotations

import json
import ssl
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobpipe.net.tls.certificates import describe, init_ca, issue
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.net.tls.tls_context import Credentials, client_context, server_context
from tests.cli.conftest import Run


def test_init_makes_what_a_namespace_needs(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    result = run("certs", "init", "--dir", str(folder))
    assert result.exit_code == 0
    said = yaml.safe_load(result.stdout)["jobpipe"]["ssl"]
    files = Credentials(Path(said["ca"]), Path(said["cert"]), Path(said["key"]))
    assert isinstance(server_context(files), ssl.SSLContext)
    assert isinstance(client_context(files), ssl.SSLContext)


def test_what_init_says_is_a_configuration(run: Run, tmp_path: Path) -> None:
    said = run("certs", "init", "--dir", str(tmp_path / "certs")).stdout
    file = tmp_path / "ensemble.yaml"
    file.write_text(said + "  registerserver: {connect: 'zk1:2181'}\n")
    assert run("config", "check", str(file)).exit_code == 0


def test_init_never_replaces_a_ca(run: Run, tmp_path: Path) -> None:
    run("certs", "init", "--dir", str(tmp_path))
    before = (tmp_path / "ca.crt").read_bytes()
    assert run("certs", "init", "--dir", str(tmp_path)).exit_code == 2
    assert (tmp_path / "ca.crt").read_bytes() == before


def test_init_needs_no_valid_configuration(run: Run, write: Callable[..., str], tmp_path: Path) -> None:
    """An ensemble's configuration is wrong until there are certificates."""
    file = write({"jobpipe": {"registerserver.connect": "zk1:2181"}})
    refused = run("certs", "init", file=file)
    assert refused.exit_code == 2
    assert "--dir" in refused.stderr
    assert run("certs", "init", "--dir", str(tmp_path / "certs"), file=file).exit_code == 0


@pytest.mark.parametrize("option", ["--publish", "--subscription"])
@pytest.mark.parametrize("name", ["a b", "orders*", "", "../x"])
def test_issue_refuses_what_no_topic_is_called(run: Run, tmp_path: Path, option: str, name: str) -> None:
    init_ca(tmp_path)
    assert run("certs", "issue", "job", option, name, "--dir", str(tmp_path)).exit_code == 2
    assert not (tmp_path / "job.crt").exists()


def test_issue_by_kind(run: Run, tmp_path: Path) -> None:
    """Names and usages follow from what a certificate is for: only one for publishing can serve."""
    where = ("--dir", str(tmp_path))
    run("certs", "init", *where)
    assert run("certs", "issue", "team-a", "--publish", "orders", "--publish", "Pay.x", *where).exit_code == 0
    assert run("certs", "issue", "team-b", "--subscription", "billing", *where).exit_code == 0
    assert run("certs", "issue", "anna", *where).exit_code == 0
    shown = {Path(line["file"]).name: line for line in show(run, tmp_path)}
    assert {name: (line["names"], line["usages"]) for name, line in shown.items()} == {
        "ca.crt": ([], []),
        "node.crt": (["*.topic.jobpipe", "node.jobpipe"], ["server", "client"]),
        "team-a.crt": (["orders.topic.jobpipe", topic_server_name("Pay.x")], ["server", "client"]),
        "team-b.crt": (["billing.subscription.jobpipe"], ["client"]),
        "anna.crt": (["anna.jobpipe"], ["client"]),
    }
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.glob("*.key"))
    assert run("certs", "issue", "anna", *where).exit_code == 2, "never replaced by accident"


def test_init_of_a_ca_alone(run: Run, tmp_path: Path) -> None:
    assert run("certs", "init", "--ca-only", "--dir", str(tmp_path)).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "ca.crt", "ca.key"}


def test_renew_keeps_names_usages_and_key(run: Run, tmp_path: Path) -> None:
    then = datetime.now(UTC) - timedelta(days=820)
    init_ca(tmp_path, now=then)
    files = issue(tmp_path, "job", dns=["orders.topic.jobpipe"], usages=["client"], now=then)
    before, key = describe(files.cert), files.key.read_bytes()
    assert run("certs", "renew", "job", "ca", "--dir", str(tmp_path)).exit_code == 0
    after = describe(files.cert)
    assert (after.names, after.usages, files.key.read_bytes()) == (before.names, before.usages, key)
    assert after.not_after > before.not_after + timedelta(days=800)
    assert after.serial != before.serial
    assert describe(files.ca).not_after > datetime.now(UTC) + timedelta(days=3600)
    assert run("certs", "renew", "nobody", "--dir", str(tmp_path)).exit_code == 2


def test_revoke(run: Run, tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path))
    init_ca(tmp_path)
    for name in ("one", "two", "three"):
        issue(tmp_path, name)
    gone = describe(tmp_path / "three.crt").serial
    (tmp_path / "three.crt").unlink()
    assert run("certs", "revoke", "one", *where).exit_code == 0
    assert run("certs", "revoke", "--serial", gone, *where).exit_code == 0
    result = run("certs", "show", "--json", *where)
    assert result.exit_code == 1
    shown = {Path(line["file"]).name: line["revoked"] for line in json.loads(result.stdout)}
    serial = describe(tmp_path / "one.crt").serial
    assert shown == {"ca.crt": False, "one.crt": True, "two.crt": False, "ca.crl": [serial, gone]}
    assert run("certs", "renew", "one", *where).exit_code == 2, "others may have its key"
    key = (tmp_path / "one.key").read_bytes()
    assert run("certs", "issue", "one", *where).exit_code == 0, "anew, and with another key"
    assert (tmp_path / "one.key").read_bytes() != key
    assert run("certs", "show", *where).exit_code == 0


@pytest.mark.parametrize("args", [["nobody"], ["ca"], ["--serial", "xyz"], ["stranger"]])
def test_revoke_refuses(run: Run, tmp_path: Path, args: list[str]) -> None:
    init_ca(tmp_path)
    init_ca(tmp_path / "other")
    issue(tmp_path / "other", "stranger").cert.rename(tmp_path / "stranger.crt")
    assert run("certs", "revoke", *args, "--dir", str(tmp_path)).exit_code == 2
    assert not (tmp_path / "ca.crl").exists()


def show(run: Run, folder: Path) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = json.loads(run("certs", "show", "--json", "--dir", str(folder)).stdout)
    return lines


def test_show_without_certificates(run: Run, write: Callable[..., str], tmp_path: Path) -> None:
    file = write({"jobpipe": {"home": str(tmp_path / "home")}})
    result = run("certs", "show", file=file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert not (tmp_path / "home").exists()
    assert json.loads(run("certs", "show", "--json", file=file).stdout) == []


def test_show_of_the_configured_ones(run: Run, write: Callable[..., str], tmp_path: Path) -> None:
    init_ca(tmp_path)
    made = issue(tmp_path, "job")
    file = write({"jobpipe": {"ssl": {"ca": str(made.ca), "cert": str(made.cert), "key": str(made.key)}}})
    result = run("certs", "show", "--json", file=file)
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert [line["file"] for line in shown] == [str(made.ca), str(made.cert)]
    assert [line["is_ca"] for line in shown] == [True, False]
    assert all(line["valid"] and line["days_left"] > 800 for line in shown)
    assert "days left" in run("certs", "show", file=file).stdout


@pytest.mark.parametrize("years", [-5, 1])
def test_show_tells_what_is_not_valid(run: Run, tmp_path: Path, years: int) -> None:
    then = datetime.now(UTC) + timedelta(days=365 * years)
    init_ca(tmp_path, now=then)
    issue(tmp_path, "job", now=then)
    result = run("certs", "show", "--json", "--dir", str(tmp_path))
    assert result.exit_code == 1
    assert {Path(line["file"]).stem: line["valid"] for line in json.loads(result.stdout)}["job"] is False
