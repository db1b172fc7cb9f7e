"""How ``jobpipe server`` starts lineage: if it is wanted and installed, as docs/lineage.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from jobpipe.config import load
from jobpipe.control.lineage.lineage_destinations import destination_of
from jobpipe.control.process.job_environment import kept_variables
from tests.control.lineage.lineage_kit import as_client_has_it, ended, events_of, kinds
from tests.docs.pages import block, shell
from tests.pipelines.waiting import DEADLINE, eventually
from tests.spark.kit import PATIENCE

PAGE = "docs/lineage.md"
ROOT = Path(__file__).parents[3]
PROGRAM = r"""
import os, signal, sys, urllib.request
for name in sys.argv[1:]:
    sys.modules[name] = None  # as if it were not installed
from jobpipe.config import load
from jobpipe.control.process.control_program import serve
from jobpipe.errors import ConfigError
from tests.control_api.program import core

def tell(rest):
    print("serves", sorted(sys.modules.keys() & {"openlineage", "sqlglot"}), flush=True)
    token = rest.state.token.read_text().strip()
    ask = urllib.request.Request(f"{rest.state.url}/metrics", headers={"Authorization": f"Bearer {token}"})
    lines = urllib.request.urlopen(ask, timeout=20).read().decode().splitlines()
    print(*[line for line in lines if line.startswith("jobpipe_lineage") and "_created" not in line], sep="\n")
    os.kill(os.getpid(), signal.SIGTERM)

try:
    serve(load(), None, tell, make_core=core)
except ConfigError as error:
    print(error.message)
"""


def served(folder: Path, *missing: str, **lineage: str) -> str:
    """Return what a server says that ends as soon as it serves."""
    keys = {f"JOBPIPE__SERVER__LINEAGE__{key.upper()}": value for key, value in lineage.items()}
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, *missing],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/registry", "JOBPIPE__HOME": str(folder / "home"), **keys},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    return made.stdout


@pytest.mark.processes
def test_without_lineage_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    said = served(tmp_path)
    assert said.startswith("serves []\n")
    assert "jobpipe_lineage" not in said
    assert not (tmp_path / "home" / "server" / "lineage.db").exists()


@pytest.mark.processes
def test_with_lineage_the_server_serves_and_remembers(tmp_path: Path) -> None:
    assert served(tmp_path, file=str(tmp_path / "l.jsonl")).splitlines()[:4] == [
        "serves ['openlineage', 'sqlglot']",
        "jobpipe_lineage_waiting_events 0.0",
        "jobpipe_lineage_sent_events_total 0.0",
        "jobpipe_lineage_dropped_events_total 0.0",
    ]
    assert (tmp_path / "home" / "server" / "lineage.db").exists()
    assert events_of(tmp_path / "l.jsonl") == []


@pytest.mark.processes
@pytest.mark.parametrize("missing", ["openlineage", "sqlglot"])
def test_a_server_without_the_extra_says_what_to_install(tmp_path: Path, missing: str) -> None:
    said = served(tmp_path, missing, file=str(tmp_path / "l.jsonl"))
    assert "serves" not in said
    assert "pip install 'openlineage-python>=1.54' 'sqlglot>=30,<31'" in said
    assert missing in said


def test_jobs_do_not_get_the_key_of_the_backend(tmp_path: Path) -> None:
    """As they get what secrets of their own configuration refer to."""
    keys = {
        "jobpipe.home": str(tmp_path),
        "jobpipe.server.lineage.url": "https://lineage.example.org",
        "jobpipe.server.lineage.api_key": "env:LINEAGE_KEY",
        "jobpipe.ssl.key.password": "env:PASSWORD",
    }
    kept = kept_variables({"LINEAGE_KEY": "hunter2", "PASSWORD": "x"}, load(overrides=keys, environ={}))
    assert kept == {"PASSWORD": "x"}


def test_the_configuration_of_the_page(tmp_path: Path) -> None:
    tree = yaml.safe_load(block(PAGE, "lineage-http"))
    tree["jobpipe"]["home"] = str(tmp_path / "home")
    file = tmp_path / "jobpipe.yaml"
    file.write_text(yaml.safe_dump(tree))
    file.chmod(0o600)
    config = load(file, environ={})
    assert destination_of(config).name == "the lineage backend at lineage.example.org:443"
    assert config.server_lineage_namespace == "production"
    assert str(config.server_lineage_api_key) == "file:/etc/jobpipe/lineage.key"


@pytest.fixture
def environ(tmp_path: Path, settings_of_test: dict[str, str]) -> Iterator[dict[str, str]]:
    """Return the environment of a user with a home of the tests; its server ends with the test."""
    file = tmp_path / "jobpipe.yaml"
    file.write_text(yaml.safe_dump({**settings_of_test, "jobpipe.server.roots": str(tmp_path)}))
    file.chmod(0o600)
    found = {"JOBPIPE_CONFIG": str(file)}
    yield found
    shell("jobpipe server --stop", tmp_path, **found)


@pytest.mark.spark
@pytest.mark.zookeeper
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_page_is_tried(tmp_path: Path, environ: dict[str, str]) -> None:
    tried = shell(block(PAGE, "lineage-try"), tmp_path, 300.0, **environ)
    assert tried.returncode == 0, tried.stderr
    file = tmp_path / "lineage.jsonl"
    for job in ("publish", "totals", "report"):
        eventually(ended(file, f"orders.{job}"), PATIENCE)
        assert kinds(events_of(file), f"orders.{job}") == ["START", "COMPLETE"]
    (tmp_path / "read.py").write_text(block(PAGE, "lineage-read"))
    read = shell(f"{sys.executable} read.py", tmp_path)
    assert f"START orders.publish ['{tmp_path}/trial/data'] -> ['example.orders']" in read.stdout
    assert "COMPLETE orders.totals ['example.orders'] -> ['example.totals']" in read.stdout
    for event in events_of(file):
        as_client_has_it(event)
    assert "ann@" not in json.dumps(events_of(file))
