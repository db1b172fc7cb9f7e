"""``jobpipe pipeline`` and ``jobpipe pipeline plugins``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobpipe.jobs.foreground import foreground_run
from jobpipe.jobs.foreground.foreground_run import RunResult
from tests.cli.conftest import DEADLINE, Run, environment

GOOD = """
pipeline: {name: shop, parameters: {topic: orders}}
jobs:
  a: {source: {type: rate}, sink: {type: jobpipe, topic: "${var.topic}"}}
  b: {source: {type: jobpipe, subscribe: orders}, sink: {type: python, foreach-batch: "nosuch:thing"}}
"""


@pytest.fixture
def pipe(tmp_path: Path) -> Callable[[str], str]:
    def pipe(text: str) -> str:
        path = tmp_path / "pipeline.yaml"
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    return pipe


def test_validate(run: Run, pipe: Callable[[str], str]) -> None:
    file = pipe(GOOD)
    found = run("pipeline", "validate", file)
    assert (found.exit_code, found.stdout, found.stderr) == (0, f"ok: {file}: pipeline shop, 2 jobs\n", "")
    as_json = run("pipeline", "validate", file, "--json")
    assert json.loads(as_json.stdout) == {"ok": True, "file": file, "problems": []}


def test_validate_warns_of_a_folder_that_others_can_change(run: Run, pipe: Callable[[str], str]) -> None:
    """As a volume of a pod, which cannot be mended there."""
    file = pipe(GOOD)
    folder = Path(file).parent
    folder.chmod(0o777)
    found = run("pipeline", "validate", file)
    assert (found.exit_code, found.stdout) == (0, f"ok: {file}: pipeline shop, 2 jobs\n")
    assert f"{file}:2: warning: others could have changed {folder}: everyone may write" in found.stderr


def test_validate_names_every_problem(run: Run, pipe: Callable[[str], str]) -> None:
    file = pipe(GOOD.replace("type: rate", "type: rat").replace("subscribe", "subscrib"))
    found = run("pipeline", "validate", file)
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.splitlines() == [
        "jobpipe: pipeline: 2 problems",
        f"  {file}:4: jobs.a.source.type: there is no source of type 'rat'; did you mean rate?",
        f"  {file}:5: jobs.b.source.subscrib: there is no such key; did you mean subscribe?",
    ]
    as_json = run("pipeline", "validate", file, "--json")
    assert as_json.exit_code == 2
    said = json.loads(as_json.stdout)
    assert said["ok"] is False
    assert [(each["line"], each["key"], each["severity"]) for each in said["problems"]] == [
        (4, "jobs.a.source.type", "error"),
        (5, "jobs.b.source.subscrib", "error"),
    ]
    assert set(said["problems"][0]) == {"file", "line", "key", "what", "remedy", "severity"}


def test_a_run_tells_of_no_gaps(run: Run, pipe: Callable[[str], str]) -> None:
    """It makes no scheduled intervals."""
    alerts = "alerts: [{type: webhook, url: 'env:ALERT_URL', on: [FAILED, GAP]}]"
    found = run("pipeline", "validate", pipe(GOOD.replace("name: shop", f"name: shop, {alerts}")))
    assert found.exit_code == 0
    assert "warning: pipeline.alerts[0].on: GAP is of scheduled intervals" in found.stderr


def test_warnings_go_to_standard_error(run: Run, pipe: Callable[[str], str]) -> None:
    file = pipe(GOOD)
    found = run("pipeline", "validate", file, "--set", "topic=refunds")
    assert found.exit_code == 0
    assert found.stderr.startswith(f"{file}:5: warning: jobs.b.source.subscribe: no job of this file publishes")
    assert json.loads(run("pipeline", "validate", file, "--set", "topic=x", "--json").stdout)["problems"] != []


def test_parameters_and_overlays(run: Run, pipe: Callable[[str], str], tmp_path: Path) -> None:
    file = pipe(GOOD)
    assert run("pipeline", "validate", file, "--set", "topc=x").exit_code == 2
    assert (
        "--set: topc: the file declares no such parameter; did you mean topic?"
        in run("pipeline", "validate", file, "--set", "topc=x").stderr
    )
    assert run("pipeline", "validate", file, "--set", "topic").exit_code == 2
    twice = run("pipeline", "validate", file, "--set", "topic=a", "--set", "topic=b")
    assert (twice.exit_code, "topic is given twice" in twice.stderr) == (2, True)
    over = tmp_path / "prod.yaml"
    over.write_text("pipeline: {topic-prefix: prod.}\n")
    over.chmod(0o600)
    shown = run("pipeline", "graph", file, "--overlay", str(over))
    assert "prod.orders  a → b" in shown.stdout


@pytest.mark.processes
def test_import(run: Run, pipe: Callable[[str], str]) -> None:
    found = run("pipeline", "validate", pipe(GOOD), "--import")
    assert found.exit_code == 2
    assert "jobs.b.sink.foreach-batch: nosuch:thing cannot be imported: ModuleNotFoundError" in found.stderr


def test_graph(run: Run, pipe: Callable[[str], str]) -> None:
    file = pipe(GOOD)
    assert "a  rate → topic orders" in run("pipeline", "graph", file).stdout
    assert run("pipeline", "graph", file, "--format", "dot").stdout.startswith('digraph "shop" {')
    found = json.loads(run("pipeline", "graph", file, "--format", "json").stdout)
    assert [topic["name"] for topic in found["topics"]] == ["orders"]
    assert run("pipeline", "graph", pipe("x: y\n")).exit_code == 2


def test_control_characters_do_not_reach_the_terminal(run: Run, pipe: Callable[[str], str]) -> None:
    found = run("pipeline", "validate", pipe('pipeline: {name: "x\\e[31m"}\njobs: {"\\e[0m": {}}\n'))
    assert found.exit_code == 2
    assert "\x1b" not in found.stderr


@pytest.mark.processes
def test_init(run: Run, tmp_path: Path) -> None:
    """The example is right, its function can be imported, and nothing is overwritten."""
    folder = tmp_path / "new" / "orders"
    made = run("pipeline", "init", str(folder))
    assert made.exit_code == 0
    assert sorted(map(Path, made.stdout.split())) == sorted(path for path in folder.rglob("*") if path.is_file())
    found = run("pipeline", "validate", str(folder / "pipeline.yaml"), "--import")
    assert (found.exit_code, found.stderr) == (0, "")
    (folder / "data" / "orders-1.csv").unlink()
    again = run("pipeline", "init", str(folder))
    assert again.exit_code == 2
    assert "pipeline.yaml, report.py, data/orders-2.csv already" in again.stderr
    assert not (folder / "data" / "orders-1.csv").exists()


def test_init_where_nothing_can_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = run("pipeline", "init", str(tmp_path / "file" / "orders"))
    assert (found.exit_code, "give another folder" in found.stderr) == (2, True)


def test_plugins(run: Run) -> None:
    table = run("pipeline", "plugins", "list").stdout.splitlines()
    assert table[0].split() == ["KIND", "TYPE", "DISTRIBUTION", "ABOUT"]
    rows = json.loads(run("pipeline", "plugins", "list", "--json").stdout)
    assert len(rows) == len(table) - 1
    assert {"kind": "sink", "type": "jobpipe", "distribution": "jobpipe"}.items() <= next(
        row for row in rows if (row["kind"], row["type"]) == ("sink", "jobpipe")
    ).items()
    both = run("pipeline", "plugins", "explain", "jobpipe").stdout
    assert "jobpipe (source of jobpipe)" in both
    assert "promise: exactly once: a repeated micro-batch" in both
    wrong = run("pipeline", "plugins", "explain", "jobpip")
    assert wrong.exit_code == 2
    assert "did you mean jobpipe?" in wrong.stderr


@pytest.mark.processes
def test_the_bus_needs_no_pydantic() -> None:
    """Neither the package nor the other commands load it, nor anything of pipelines."""
    code = (
        "import sys, jobpipe, jobpipe.cli.main, jobpipe.config\n"
        "print([name for name in sys.modules if name.startswith(('pydantic', 'jobpipe.pipelines'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, env=environment(), check=True
    )
    assert done.stdout == "[]\n"


def test_a_run_says_that_it_took_too_long(
    run: Run, pipe: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for late in (False, True):
        monkeypatch.setattr(foreground_run, "run_pipeline", lambda *_, late=late, **__: RunResult((), None, late, ()))
        ran = run("pipeline", "run", pipe(GOOD), "--timeout", "7")
        assert (ran.exit_code, "had not ended after 7 s (--timeout)" in ran.stderr) == (int(late), late)
