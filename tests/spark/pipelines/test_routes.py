"""Routes: the rows of several topics in several others, each row once, also when a micro-batch is repeated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyspark.sql import SparkSession

from jobpipe.jobs.workloads.progress_reports import Reporter
from jobpipe.jobs.workloads.query_workload import QueryWorkload
from jobpipe.jobs.workloads.stop_request import StopRequest
from jobpipe.jobs.workloads.workload import WorkloadOutcome
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.sinks.topic_sink import JobpipeSink
from tests.spark.kit import Place
from tests.spark.pipelines.test_pipeline_stages import context_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SOURCES = {"in.orders.eu": [1, 2], "in.orders.us": [3], "in.audit": [4, 5, 6], "in.refunds": [7]}
ROUTES = [
    {"source-table": r"in\.orders\..*", "sink-table": "out.orders"},
    {"source-table": r"in\.(\w+)\.eu", "sink-table": "out.eu.$1"},
    {"source-table": r"in\.audit", "sink-table": "out.<>", "replace-symbol": "<>"},
]
READERS = {
    "by-name": {"source": {"type": "jobpipe", "subscribe": "out.eu.orders"}, "sink": {"type": "console"}},
    "by-pattern": {"source": {"type": "jobpipe", "subscribePattern": r"out\..*orders"}, "sink": {"type": "console"}},
}
SINKS = {
    "out.orders": [1, 2, 3],
    "out.eu.orders": [1, 2],
    "out.in.audit": [4, 5, 6],
    "out.others": [7],
}


def work(
    spark: SparkSession, place: Place, folder: Path, others: Mapping[str, Any] = MappingProxyType({}), **more: Any
) -> QueryWorkload:
    """Return the job's work; topics have a prefix."""
    settings = {key.removeprefix("jobpipe."): value for key, value in place.settings.items()}
    job = {
        "source": {"type": "jobpipe", "subscribe": list(SOURCES), "startingOffsets": "earliest", **settings},
        "transform": [{"type": "ReplaceField", "include": ["id"]}, {"projection": "id, id * 10 AS tens"}],
        "route": ROUTES,
        "sink": {"type": "jobpipe", "topic": "out.others", "final": True, **settings},
        **more,
    }
    file = folder / "p.yaml"
    file.write_text(
        yaml.safe_dump(
            {"pipeline": {"name": folder.name, "topic-prefix": f"{folder.name}."}, "jobs": {"a": job, **others}}
        )
    )
    file.chmod(0o600)
    pipeline = load_pipeline(file)
    of = pipeline.jobs["a"]
    return QueryWorkload(
        spark, pipeline, of, context_of(pipeline, of, folder / "state", RunValues("r1")), Reporter(None)
    )


@pytest.fixture
def folder(tmp_path: Path, place: Place) -> Path:
    """A folder, whose name is the prefix of topics that are there."""
    made = tmp_path / f"p{abs(hash(tmp_path))}"
    made.mkdir()
    for topic, ids in SOURCES.items():
        with place.publisher(f"{made.name}.{topic}") as publisher:
            publisher.seal("q", 0, [pa.table({"id": ids, "name": [f"n{number}" for number in ids]})])
    return made


def published(spark: SparkSession, place: Place, folder: Path) -> dict[str, list[int]]:
    """Return the rows of each topic."""
    found = {}
    for topic in SINKS:
        rows = place.read(spark, f"{folder.name}.{topic}", startingOffsets="earliest").collect()
        assert all(row.asDict() == {"id": row.id, "tens": row.id * 10} for row in rows)
        found[topic] = sorted(row.id for row in rows)
    return found


def test_a_stream_that_is_repeated(
    spark: SparkSession, place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job fails when two of the topics have their rows, and begins again with the same micro-batch."""
    written: list[str] = []
    write = JobpipeSink.write

    def failing(sink: JobpipeSink, *given: Any) -> None:
        if len(written) == 2:
            raise RuntimeError("the test wants this")
        write(sink, *given)
        written.append(str(sink.topics().names[0]))

    trigger = {"trigger": {"available-now": True}}
    with monkeypatch.context() as patch:
        patch.setattr(JobpipeSink, "write", failing)
        failed = work(spark, place, folder, **trigger).run(StopRequest(60.0))
    assert "the test wants this" in failed.message
    assert len(set(written)) == 2
    done = work(spark, place, folder, **trigger).run(StopRequest(60.0))
    assert (done.error, done.batches) == ("", 1)
    assert published(spark, place, folder) == SINKS


def test_topics_keep_rows_for_the_jobs_of_the_file(
    spark: SparkSession, place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those whose names come from the rows."""
    required: dict[str, tuple[str, ...]] = {}

    def noted(sink: JobpipeSink, *given: Any) -> None:
        arguments = sink.arguments(given[-1])
        required[arguments["topic"].removeprefix(given[-1].topic_prefix)] = arguments["required_subscribers"]

    monkeypatch.setattr(JobpipeSink, "open", noted)
    monkeypatch.setattr(JobpipeSink, "write", noted)
    assert work(spark, place, folder, READERS, trigger={"available-now": True}).run(StopRequest(60.0)).error == ""
    by_name, by_pattern = f"{folder.name}.by-name", f"{folder.name}.by-pattern"
    assert required == {
        "out.orders": (by_pattern,),
        "out.eu.orders": (by_name, by_pattern),
        "out.in.audit": (),
        "out.others": (),
    }


def test_a_run(spark: SparkSession, place: Place, folder: Path) -> None:
    """Of a BATCH job; what is repeated is known by the run's id."""
    for _ in range(2):
        done = work(spark, place, folder, {}, execution={"runtime-mode": "BATCH"}).run(StopRequest(60.0))
        assert done == WorkloadOutcome(batches=1)
    assert published(spark, place, folder) == SINKS
