"""Which stage a job failed of while it ran: named where it can be one alone, and else not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from jobpipe.jobs.workloads.progress_reports import Reporter
from jobpipe.jobs.workloads.query_workload import QueryWorkload
from jobpipe.jobs.workloads.stop_request import StopRequest
from jobpipe.jobs.workloads.workload import failure
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.loading.loader import load_pipeline
from tests.spark.pipelines.test_pipeline_stages import context_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Places = Callable[..., str]
PARQUET = {"type": "parquet", "path": "out"}
CALL = {"type": "python", "foreach-batch": "failed_stage_code:sink"}
CAST = {"type": "sql", "projection": "id, CAST(name AS INT) AS name"}
SAME_CAST = {"type": "sql", "projection": "*", "filter": "CAST(name AS INT) > 0"}
IN_TASKS = {"type": "python", "row-function": "failed_stage_code:row", "schema": "id BIGINT, name STRING"}
QUIET = {**IN_TASKS, "row-function": "failed_stage_code:same"}
CODE = """
def sink(batch, batch_id):
    batch.collect()
    raise OSError("disk full")

def row(given):
    raise ValueError("no voice")

def same(given):
    return given
"""


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Return what runs a job, and returns where it failed."""
    (tmp_path / "failed_stage_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    spark.sparkContext.addPyFile(str(tmp_path / "failed_stage_code.py"))  # the workers live already
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("1,ada\n")

    def place(transform: list[dict[str, Any]], *sinks: dict[str, Any], batch: bool = False) -> str:
        how: dict[str, Any] = (
            {"execution": {"runtime-mode": "BATCH"}} if batch else {"trigger": {"available-now": True}}
        )
        source = {"type": "csv", "path": "in", "schema": "id BIGINT, name STRING"}
        job = {"source": source, "transform": transform, "sinks": list(sinks), **how}
        file = tmp_path / "p.yaml"
        file.write_text(yaml.safe_dump({"pipeline": {"name": "p"}, "jobs": {"a": job}}))
        file.chmod(0o600)
        pipeline = load_pipeline(file)
        of = pipeline.jobs["a"]
        context = context_of(pipeline, of, tmp_path / "state", RunValues("r1"))
        try:
            done = QueryWorkload(spark, pipeline, of, context, Reporter(None)).run(StopRequest(60.0))
        except Exception as error:
            done = failure(error)
        assert done.error
        return done.place.partition(" ")[2]

    return place


@pytest.mark.parametrize("batch", [False, True])
def test_a_sink_of_the_user(place: Places, batch: bool) -> None:
    assert place([], CALL, batch=batch) == "jobs.a.sinks[0]"


def test_the_second_sink(place: Places) -> None:
    sinks = ({**PARQUET, "at-least-once": True}, {**CALL, "at-least-once": True})
    assert place([], *sinks) == "jobs.a.sinks[1]"


@pytest.mark.parametrize("batch", [False, True])
def test_sql(place: Places, batch: bool) -> None:
    """By Spark's own writer of streams, and by ours of a run."""
    assert place([{"type": "sql", "filter": "id > 0"}, CAST], PARQUET, batch=batch) == "jobs.a.transform[1]"


@pytest.mark.parametrize(
    ("transform", "sink"),
    [([SAME_CAST, CAST], PARQUET), ([CAST], CALL), ([{"type": "Cast", "spec": "name:int"}], PARQUET)],
    ids=["two alike", "code of the user's", "no SQL"],
)
def test_what_is_not_certain(place: Places, transform: list[dict[str, Any]], sink: dict[str, Any]) -> None:
    assert place(transform, sink) == ""


def test_a_function_in_tasks(place: Places) -> None:
    assert place([{"type": "sql", "filter": "id > 0"}, IN_TASKS], CALL) == "jobs.a.transform[1]"
    assert place([QUIET, IN_TASKS], PARQUET) == ""
