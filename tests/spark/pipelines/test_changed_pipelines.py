"""A submitted file that is changed in each way: `plan` says before what the real jobs do after."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobpipe.config import load
from jobpipe.control.control_server import ControlServer
from jobpipe.control.control_service import Action, JobPlan, JobStatus, Plan, Submission
from jobpipe.errors import ConfigError, ControlConflict
from jobpipe.pipelines.model.job_states import JobState
from tests.pipelines.running import SMALL
from tests.pipelines.waiting import eventually
from tests.spark.kit import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.timeout(600)]

COUNTS = "SELECT value % 2 AS part, count(*) AS rows FROM input GROUP BY value % 2"
SUMS = "SELECT value % 2 AS part, sum(value) AS rows FROM input GROUP BY value % 2"


@pytest.fixture
def server_of_home(home: Path) -> Iterator[None]:
    """Let the home, which other tests have too, be without a server's store afterwards."""
    yield
    shutil.rmtree(home / "server", ignore_errors=True)


class Changed:
    """A pipeline of one server: its file now, and what its jobs do."""

    def __init__(self, server: ControlServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.name = f"p{uuid.uuid4().hex[:8]}"
        launcher = {"type": "local", "master": "local[1]"}
        self.section: dict[str, Any] = {"name": self.name, "configuration": SMALL, "launcher": launcher}
        self.jobs: dict[str, Any] = {
            "copy": {"source": {"type": "text", "path": "input"}, "sink": {"type": "json", "path": "output"}},
            "counts": {
                "source": {"type": "rate"},
                "transform": [{"type": "sql", "query": COUNTS}],
                "sink": {"type": "console", "output-mode": "complete"},
            },
        }

    @property
    def submission(self) -> Submission:
        tree = json.loads(json.dumps({"pipeline": self.section, "jobs": self.jobs}))
        return Submission(file=self.folder / "pipeline.yaml", folder=self.folder, tree=tree)

    def plan(self, *new_checkpoint: str) -> Plan:
        return self.server.plan(self.submission, new_checkpoint=new_checkpoint)

    def submit(self, plan: Plan, *new_checkpoint: str) -> None:
        self.server.submit(self.submission, new_checkpoint=new_checkpoint, base=plan.version)

    def status(self, job: str) -> JobStatus:
        (found,) = [each for each in self.server.pipeline(self.name).jobs if each.name == job]
        return found

    def wait(self, job: str, *states: JobState, after: str | None = None) -> JobStatus:
        """Wait for a state of a run that is not ``after``."""

        def settled() -> JobStatus | None:
            found = self.status(job)
            return found if found.state in states and found.run != after else None

        try:
            found = eventually(settled, PATIENCE)
        except AssertionError:
            told = "\n".join(self.server.log(self.name, job, lines=30))
            raise AssertionError(f"{states} did not come; it is {self.status(job)}\n{told}") from None
        assert isinstance(found, JobStatus)
        return found

    def rows(self) -> Counter[str]:
        parts = [part.read_text() for part in self.folder.glob("output*/*.json")]
        return Counter(json.loads(line)["value"] for text in parts for line in text.splitlines())

    def write(self, folder: str, row: str) -> None:
        """Add a file with one row; Spark leaves out what begins with a dot."""
        (self.folder / folder).mkdir(exist_ok=True)
        part = self.folder / folder / f".{row}.txt"
        part.write_text(f"{row}\n")
        part.rename(self.folder / folder / f"{row}.txt")


def of(plan: Plan, job: str) -> JobPlan:
    (found,) = [each for each in plan.jobs if each.job == job]
    return found


def actions(plan: Plan) -> list[Action]:
    return [each.action for each in plan.jobs]


@pytest.mark.slow
@pytest.mark.usefixtures("server_of_home")
def test_each_change_does_what_its_plan_says(tmp_path: Path, settings_of_test: dict[str, str]) -> None:
    file = tmp_path / "jobpipe.yaml"
    file.write_text(yaml.safe_dump({**settings_of_test, "jobpipe.server.roots": str(tmp_path)}))
    file.chmod(0o600)
    with ControlServer(load(file, environ={}), config_file=file) as server:
        changed = Changed(server, tmp_path)
        try:
            _change(changed)
        finally:
            server.stop(changed.name)
            eventually(lambda: _is_deleted(server, changed.name), PATIENCE)


def _is_deleted(server: ControlServer, name: str) -> bool:
    """Delete a pipeline, if its processes have ended."""
    try:
        server.delete(name)
    except ControlConflict:
        return False
    return True


def _change(changed: Changed) -> None:
    server = changed.server
    changed.write("input", "one")

    plan = changed.plan()
    assert (plan.version, actions(plan)) == (0, [Action.STARTED] * 2)
    changed.submit(plan)
    first = changed.wait("copy", JobState.RUNNING)
    counts = changed.wait("counts", JobState.RUNNING)
    eventually(lambda: changed.rows() == Counter(["one"]), PATIENCE)
    eventually(lambda: (changed.status("counts").batches or 0) > 1, PATIENCE)  # it keeps state by now

    changed.section["restart"] = {"delay": "1s", "max-attempts": 1}  # taken without a restart
    plan = changed.plan()
    assert actions(plan) == [Action.UNCHANGED] * 2
    assert plan.settings == ('pipeline.restart: {"delay": "1s", "max-attempts": 1} added',)
    changed.submit(plan)

    changed.jobs["copy"]["trigger"] = {"processing-time": "100ms"}  # restarted from its checkpoint
    plan = changed.plan()
    assert actions(plan) == [Action.RESTARTED, Action.UNCHANGED]
    assert (of(plan, "copy").from_checkpoint, of(plan, "copy").ends_run) == (True, True)
    changed.submit(plan)
    second = changed.wait("copy", JobState.RUNNING, after=first.run)
    assert server.run(str(first.run)).state is JobState.STOPPED
    assert changed.status("counts").run == counts.run  # neither change has touched it
    changed.write("input", "two")
    eventually(lambda: changed.rows() == Counter(["one", "two"]), PATIENCE)

    changed.section["topic-prefix"] = "dev."  # refused
    assert [why.partition(" is ")[0] for why in changed.plan().refused] == ["topic-prefix"]
    with pytest.raises(ConfigError, match="topic-prefix"):
        changed.submit(changed.plan())
    del changed.section["topic-prefix"]

    changed.write("other", "three")
    changed.jobs["copy"]["source"]["path"] = "other"
    assert "give the sink another" in of(changed.plan(), "copy").rows_again[-1]
    changed.jobs["copy"]["sink"]["path"] = "output2"  # needs a new checkpoint
    plan = changed.plan()
    assert actions(plan) == [Action.NEEDS_NEW_CHECKPOINT, Action.UNCHANGED]
    assert f"text path {changed.folder}/other" in of(plan, "copy").rows_again[0]
    with pytest.raises(ControlConflict, match="--new-checkpoint copy"):
        changed.submit(plan)
    assert changed.status("copy").run == second.run
    plan = changed.plan("copy")
    assert actions(plan) == [Action.NEW_CHECKPOINT, Action.UNCHANGED]
    changed.submit(plan, "copy")
    third = changed.wait("copy", JobState.RUNNING, after=second.run)
    eventually(lambda: changed.rows()["three"] == 1, PATIENCE)

    changed.jobs["counts"]["transform"] = [{"type": "sql", "query": SUMS}]  # restarted; Spark's plan is compared then
    plan = changed.plan()
    assert actions(plan) == [Action.UNCHANGED, Action.RESTARTED]
    changed.submit(plan)
    failed = changed.wait("counts", JobState.FAILED, after=counts.run)
    assert "CheckpointMismatch" in failed.detail

    server.stop(changed.name, "counts")  # stored, until it is resumed
    changed.jobs["counts"]["transform"] = [{"type": "sql", "query": COUNTS}]
    plan = changed.plan()
    assert actions(plan) == [Action.UNCHANGED, Action.STORED]
    changed.submit(plan)
    assert changed.status("counts").run == failed.run
    server.resume(changed.name, "counts")
    changed.wait("counts", JobState.RUNNING, after=failed.run)

    del changed.jobs["counts"]  # stopped
    plan = changed.plan()
    assert actions(plan) == [Action.UNCHANGED, Action.STOPPED]
    changed.submit(plan)
    eventually(lambda: [job.name for job in server.pipeline(changed.name).jobs] == ["copy"], PATIENCE)
    assert changed.status("copy").run == third.run

    revisions = server.revisions(changed.name)
    assert [each.version for each in revisions] == [7, 6, 5, 4, 3, 2, 1]
    assert [each.changed or each.removed or each.settings for each in revisions] == [
        ("counts",),
        ("counts",),
        ("counts",),
        ("copy",),
        ("copy",),
        ("pipeline.restart",),
        (),
    ]
    again = server.plan(server.revision(changed.name, 6))  # a job that goes leaves its checkpoint
    assert actions(again) == [Action.UNCHANGED, Action.STARTED]
    assert of(again, "counts").from_checkpoint
