"""The lineage of a pipeline that runs: a server, its runner, Spark and ZooKeeper, all real."""

from __future__ import annotations

import dataclasses
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from jobpipe.config import load
from jobpipe.control.control_server import ControlServer
from jobpipe.control.control_service import Submission
from jobpipe.control.lineage.dataset_names import topic_dataset
from jobpipe.control.lineage.lineage_reporter import LineageReporter
from jobpipe.pipelines.model.job_states import ENDED
from tests.control.lineage.lineage_kit import as_client_has_it, events_of, kinds, made_of, names
from tests.pipelines.running import SMALL
from tests.pipelines.waiting import eventually
from tests.spark.kit import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(400)]

JOBS = {
    "publish": {
        "source": {"type": "csv", "path": "in", "schema": "id BIGINT, name STRING, card STRING"},
        "transform": [{"type": "MaskField", "fields": ["card"]}, {"projection": "id, upper(name) AS name, card"}],
        "trigger": {"available-now": True},
        "sink": {"type": "jobpipe", "topic": "orders", "final": True},
    },
    "copy": {
        "source": {"type": "jobpipe", "subscribe": "orders", "startingOffsets": "earliest"},
        "transform": [{"query": "SELECT name, id + 1 AS next FROM input WHERE id > 0"}],
        "sinks": [
            {"type": "json", "path": "one", "at-least-once": True},
            {"type": "json", "path": "two", "at-least-once": True},
        ],
    },
    "broken": {
        "source": {"type": "csv", "path": "in", "schema": "id BIGINT, name STRING, card STRING"},
        "transform": [{"projection": "raise_error('no row passes') AS nothing"}],
        "trigger": {"available-now": True},
        "sink": {"type": "json", "path": "nothing"},
    },
}


@pytest.fixture
def server_of_home(home: Path) -> Iterator[None]:
    """Let the home, which other tests have too, be without a server's store afterwards."""
    yield
    shutil.rmtree(home / "server", ignore_errors=True)


@pytest.mark.usefixtures("server_of_home")
def test_a_pipeline_that_runs_has_the_lineage_of_its_jobs(tmp_path: Path, settings_of_test: dict[str, str]) -> None:
    """A chain of two jobs, the second of which writes its micro-batches in foreachBatch, and a job that fails."""
    file, lineage, name = tmp_path / "jobpipe.yaml", tmp_path / "lineage.jsonl", f"p{uuid.uuid4().hex[:8]}"
    file.write_text(yaml.safe_dump({**settings_of_test, "jobpipe.server.roots": str(tmp_path)}))
    file.chmod(0o600)
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.csv").write_text(f"{number},ann,4711\n{number + 10},bob,4712\n")
    section = {"name": name, "configuration": SMALL, "restart": {"max-attempts": 1}}
    tree = {"pipeline": {**section, "launcher": {"type": "local", "master": "local[1]"}}, "jobs": JOBS}
    config = dataclasses.replace(load(file, environ={}), server_lineage_file=lineage)
    with ControlServer(config, config_file=file) as server:
        reporter = LineageReporter(server, config, environ={}, running_seconds=1.0)
        reporter.start()
        try:
            submitted = server.submit(Submission(file=tmp_path / "pipeline.yaml", folder=tmp_path, tree=tree))
            eventually(lambda: all(server.run(run).state in ENDED for run in submitted.runs.values()), PATIENCE)
            logs = {job: "\n".join(server.log(name, job)[-20:]) for job in JOBS}
            eventually(lambda: len({*kinds(events_of(lineage), f"{name}.broken")} & {"FAIL"}) == 1)
            eventually(lambda: kinds(events_of(lineage), f"{name}.copy")[-1] in ("COMPLETE", "FAIL"))
            eventually(lambda: kinds(events_of(lineage), f"{name}.publish")[-1] in ("COMPLETE", "FAIL"))
        finally:
            reporter.close()
    events = events_of(lineage)
    for event in events:
        as_client_has_it(event)
    for job, end in (("publish", "COMPLETE"), ("copy", "COMPLETE"), ("broken", "FAIL")):
        types = kinds(events, f"{name}.{job}")
        assert types == ["START", *["RUNNING"] * (len(types) - 2), end], (types, logs[job])
        assert "RUNNING" in types
        assert len({each["run"]["runId"] for each in events if each["job"]["name"] == f"{name}.{job}"}) == 1
    last = {each["job"]["name"].partition(".")[2]: each for each in events}
    place, topic = f"{tmp_path}/in", topic_dataset(config, "orders")
    publish, copy, broken = last["publish"], last["copy"], last["broken"]
    assert names(publish["inputs"]) == [("file", place)]
    assert names(publish["outputs"]) == names(copy["inputs"]) == [(topic.namespace, topic.name)]
    assert names(copy["outputs"]) == [("file", f"{tmp_path}/one"), ("file", f"{tmp_path}/two")]
    assert made_of(publish["outputs"][0]) == {
        "id": [(place, "id", "IDENTITY")],
        "name": [(place, "name", "TRANSFORMATION")],
        "card": [(place, "card", "TRANSFORMATION")],
    }
    (way,) = publish["outputs"][0]["facets"]["columnLineage"]["fields"]["card"]["inputFields"][0]["transformations"]
    assert way["masking"] is True
    for output in copy["outputs"]:
        assert made_of(output) == {
            "name": [("orders", "name", "IDENTITY")],
            "next": [("orders", "id", "TRANSFORMATION")],
        }
    assert publish["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 6
    assert copy["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 6
    message = broken["run"]["facets"]["errorMessage"]["message"]
    assert message
    assert "4711" not in lineage.read_text(), "no value of a row is in it"
