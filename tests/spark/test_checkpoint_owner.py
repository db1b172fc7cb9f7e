"""A checkpoint and the jobs that may go on from it, by ``jobpipe pipeline run``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobpipe.pipelines.checkpoint_owner import NAME
from tests.pipelines.running import SECONDS, Runner, write_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(4 * SECONDS)]


def copy(source: str, path: str) -> dict[str, Any]:
    """Return jobs that copy what is there, and end."""
    return {
        "copy": {
            "source": {"type": source, "path": path, "schema": "id BIGINT"},
            "trigger": {"available-now": True},
            "errors": {"tolerance": "all", "dead-letters": "bad"},
            "sink": {"type": "json", "path": "out", "at-least-once": True},
        }
    }


def ids(folder: Path) -> list[int]:
    """Return what was copied."""
    return sorted(
        json.loads(line)["id"] for file in (folder / "out").glob("*.json") for line in file.read_text().splitlines()
    )


def test_another_source_and_another_pipeline(tmp_path: Path, home: Path) -> None:
    """Spark's own error says nothing of the checkpoint (B1); the other pipeline would leave out rows (V6)."""
    for name, text in (("a.csv", "1\n"), ("b.json", '{"id": 2}\n')):
        (tmp_path / name.partition(".")[0]).mkdir()
        (tmp_path / name.partition(".")[0] / name).write_text(text)
    file, state = write_pipeline(tmp_path, copy("csv", "a")), f"file://{tmp_path}/state/copy"
    name = yaml.safe_load(file.read_text())["pipeline"]["name"]
    with Runner(tmp_path, home, file) as runner:
        assert runner.run() == 0, runner.told
        write_pipeline(tmp_path, copy("json", "b"), **{"name": name, "topic-prefix": f"{name}."})
        assert runner.run() == 1
        said = (
            f"the checkpoint in {state} does not fit job copy: among its sources is now json path b, and was csv path a"
        )
        assert said in runner.output
        assert "restart" not in runner.output.lower()
        assert runner.run("--new-checkpoint", "cpy") == 2
        assert "this run has no job 'cpy'" in runner.output
        assert runner.run("--new-checkpoint", "copy") == 0, runner.told
        assert f"job copy begins without its checkpoint, which is in {tmp_path}/state/copy.before-" in runner.output
        assert ids(tmp_path) == [1, 2]
    write_pipeline(tmp_path, copy("json", "b"), **{"name": f"{name}x", "topic-prefix": f"{name}."})
    with Runner(tmp_path, home, file) as runner:
        assert runner.run() == 1
        assert f"belongs to job copy of pipeline {name} (namespace /test-" in runner.output
    note = json.loads((tmp_path / "state" / "copy" / NAME).read_text())
    assert (note["pipeline"], note["sources"]) == (name, [{"name": "", "type": "json", "which": {"path": "b"}}])
