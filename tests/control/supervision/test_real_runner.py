"""A job of the server with the real runner and launcher: Spark, ZooKeeper, and a server that is killed in between."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from jobpipe.config import load
from jobpipe.control.control_server import ControlServer
from jobpipe.jobs.launchers.local_launcher import RUNNER
from jobpipe.pipelines.model.job_states import ENDED, JobState
from tests.pipelines.running import SMALL
from tests.pipelines.waiting import eventually
from tests.spark.kit import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.timeout(300)]


@pytest.fixture
def server_of_home(home: Path) -> Iterator[None]:
    """Let the home, which other tests have too, be without a server's store before and afterwards."""
    shutil.rmtree(home / "server", ignore_errors=True)
    yield
    shutil.rmtree(home / "server", ignore_errors=True)


@pytest.mark.usefixtures("server_of_home")
def test_a_job_goes_on_from_one_server_to_the_next(tmp_path: Path, settings_of_test: dict[str, str]) -> None:
    file = tmp_path / "jobpipe.yaml"
    file.write_text(yaml.safe_dump({**settings_of_test, "jobpipe.server.roots": str(tmp_path)}))
    file.chmod(0o600)
    name = f"p{uuid.uuid4().hex[:8]}"
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "rows.txt").write_text("one\ntwo\n")
    tree = {
        "pipeline": {"name": name, "configuration": SMALL, "launcher": {"type": "local", "master": "local[1]"}},
        "jobs": {
            "copy": {
                "source": {"type": "text", "path": "input"},
                "trigger": {"available-now": True},
                "sink": {"type": "json", "path": "output"},
            }
        },
    }
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(tree))
    status = tmp_path / "status.json"
    program = [sys.executable, "-m", "tests.control.server_program", str(file), str(tmp_path), RUNNER]
    with subprocess.Popen(program, stdin=subprocess.PIPE, cwd=Path(__file__).parents[3]) as first:
        try:
            assert first.stdin is not None
            first.stdin.write(b"submit\n")
            first.stdin.flush()
            eventually(lambda: '"launched": "{' in status.read_text() if status.exists() else False, PATIENCE)
        finally:
            first.kill()
    (before,) = json.loads(status.read_text())["runs"]
    with ControlServer(load(file, environ={}), config_file=file) as second:
        eventually(lambda: second.run(before["id"]).state in ENDED, PATIENCE)
        told = "\n".join(second.log(name, "copy"))
        view = second.run(before["id"])
        assert (view.state, len(view.attempts)) == (JobState.FINISHED, 1), (view, told)
        assert (view.attempts[0].rows, view.attempts[0].batches) == (2, 1)
        assert view.attempts[0].launched == before["attempts"][0]["launched"]
    text = "".join(part.read_text() for part in (tmp_path / "output").glob("*.json"))
    assert sorted(json.loads(line)["value"] for line in text.splitlines()) == ["one", "two"]
