"""``jobpipe certs``."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from jobpipe.net.certs import init_ca, issue
from jobpipe.net.tls import Credentials, client_context, server_context
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


def test_issue_for_topics(run: Run, tmp_path: Path) -> None:
    run("certs", "init", "--dir", str(tmp_path))
    assert run("certs", "issue", "billing", "--topic", "orders", "--dir", str(tmp_path)).exit_code == 0
    shown = json.loads(run("certs", "show", "--json", "--dir", str(tmp_path)).stdout)
    assert {Path(line["file"]).name: line["names"] for line in shown} == {
        "ca.crt": [],
        "node.crt": ["*.topic.jobpipe", "node.jobpipe"],
        "billing.crt": ["orders.topic.jobpipe"],
    }
    assert run("certs", "issue", "billing", "--dir", str(tmp_path)).exit_code == 2
    assert run("certs", "issue", "billing", "--replace", "--dir", str(tmp_path)).exit_code == 0


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
