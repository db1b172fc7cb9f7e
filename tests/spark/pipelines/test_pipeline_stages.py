"""Sources and sinks of pipelines: the example over a real bus, as a runner would run it, and Spark's formats."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import jobpipe
from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.loading.scaffold import copy_example
from jobpipe.pipelines.model.graph import subscriptions_of
from jobpipe.pipelines.model.pipeline import Job, Pipeline
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.plugins.start_query import start_for_each_batch
from tests.pipelines.waiting import eventually
from tests.spark.kit import PATIENCE, Place

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def context_of(pipeline: Pipeline, job: Job, storage: Path, run: RunValues) -> JobContext:
    """Return what the job's plug-ins are told."""
    topics = [name for stage in job.sinks for name in stage.plugin.topics().names]
    prefix = pipeline.spec.topic_prefix
    return JobContext(
        pipeline=pipeline.name,
        job=job.name,
        mode=job.mode,
        storage=str(storage / job.name),
        folder=pipeline.folder,
        run=run,
        topic_prefix=prefix,
        trigger=job.spec.trigger,
        output_mode=next((getattr(stage.spec, "output_mode", None) for stage in job.sinks), None),
        subscribers={topic: subscriptions_of(pipeline, prefix + topic) for topic in topics},
    )


def rows_of(spark: SparkSession, job: Job, context: JobContext) -> DataFrame:
    """Load and transform."""
    views = {
        view: stage.make(context.run).load(spark, replace(context, view=view)) for view, stage in job.sources.items()
    }
    named = {view: frame for view, frame in views.items() if view is not None}
    frame = next(iter(views.values()))
    for stage in job.transforms:
        frame = stage.make(context.run).apply(frame, replace(context, views=named))
    return frame


def run_stream(spark: SparkSession, pipeline: Pipeline, name: str, storage: Path) -> None:
    """Run a streaming job to its end."""
    job = pipeline.jobs[name]
    context = context_of(pipeline, job, storage, RunValues("r1"))
    frame = rows_of(spark, job, context)
    (stage,) = job.sinks
    sink = stage.make(context.run)
    sink.open(frame, context)
    ended = False
    try:
        query = sink.start(frame, context)
        with ending(query):
            jobpipe.await_end(query, timeout=PATIENCE) if job.spec.trigger is None else query.awaitTermination(PATIENCE)
            assert not query.isActive
            assert query.name == f"{pipeline.name}.{name}"
        ended = True
    finally:
        sink.close(ended=ended)


@contextmanager
def ending(query: StreamingQuery) -> Iterator[None]:
    """Stop the query at the end of the block."""
    try:
        yield
    finally:
        query.stop()


@pytest.fixture
def example(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """The example in a folder, its jobs with the settings of this namespace; topics with a prefix."""
    folder = tmp_path / "orders"
    copy_example(folder)
    settings = {key.removeprefix("jobpipe."): value for key, value in place.settings.items()}
    jobs: dict[str, Any] = {
        "publish": {"sink": settings},
        "totals": {"source": settings, "sink": settings},
        "report": {"source": settings},
    }
    over = folder / "test.yaml"
    over.write_text(yaml.safe_dump({"pipeline": {"topic-prefix": "dev."}, "jobs": jobs}))
    over.chmod(0o600)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "report", raising=False)
    pipeline = load_pipeline(folder / "pipeline.yaml", overlays=[over], given={"work": str(tmp_path / "work")})
    assert pipeline.warnings == ()
    return pipeline


@pytest.mark.core
def test_the_example(spark: SparkSession, example: Pipeline, place: Place, tmp_path: Path) -> None:
    """Files to a topic to totals to a report: each row once; then a bounded read of what was published."""
    for name in ("publish", "totals", "report"):
        run_stream(spark, example, name, tmp_path / "work" / "state")
    with (tmp_path / "work" / "report.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    assert lines == [
        ["customer", "orders", "amount"],
        ["ada", "3", "15.0"],
        ["ben", "1", "120.0"],
        ["cleo", "1", "40.0"],
    ]


def test_a_bounded_run(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """A BATCH job reads between the bounds of its run, and writes where the run's path says."""
    with place.publisher("dev.readings", required_subscribers=["keeper"]) as publisher:
        place.seal(publisher, range(3))
        settings = {key.removeprefix("jobpipe."): value for key, value in place.settings.items()}
        text = {
            "pipeline": {"name": "x", "topic-prefix": "dev."},
            "jobs": {
                "a": {
                    "execution": {"runtime-mode": "BATCH"},
                    "source": {"type": "jobpipe", "subscribe": "readings", **settings},
                    "sink": {"type": "parquet", "path": "out/${run.lower:%Y}-${run.id}", "mode": "overwrite"},
                }
            },
        }
        file = tmp_path / "x.yaml"
        file.write_text(yaml.safe_dump(text))
        file.chmod(0o600)
        pipeline = load_pipeline(file)
        job = pipeline.jobs["a"]
        assert job.mode is Mode.BATCH
        now = datetime.now(UTC)
        counts = {}
        for name, bounds in {
            "all": (now - timedelta(days=1), now + timedelta(seconds=1)),
            "none": (now - timedelta(days=2), now - timedelta(days=1)),
        }.items():
            context = context_of(pipeline, job, tmp_path, RunValues(name, *bounds))
            frame = rows_of(spark, job, context)
            sink = job.sinks[0].make(context.run)
            sink.open(frame, context)
            sink.write(frame, 0, context)
            sink.close(ended=True)
            counts[name] = spark.read.parquet(str(tmp_path / "out" / f"{bounds[0]:%Y}-{name}")).count()
        numbered, _ = place.rows("dev.readings")
        assert counts == {
            "all": sum(table.num_rows for batch in range(3) for table in numbered.tables(batch)),
            "none": 0,
        }


def test_the_arguments_of_a_sink(example: Pipeline) -> None:
    """As the file gives them, with the jobs of the file as required subscribers, and full names."""
    job = example.jobs["publish"]
    context = context_of(example, job, Path("/nowhere"), RunValues("r1"))
    given = job.sinks[0].plugin.arguments(context)
    assert given["topic"] == "dev.orders"
    assert tuple(given["partition_by"]) == ("customer",)
    assert given["required_subscribers"] == ("orders.totals",)
    assert (given["name"], given["parallelism"]) == ("orders.publish", 2)


SOURCE = """
def rows(spark, count, password):
    assert password == "open sesame"
    return spark.range(count)

def nothing(spark):
    return 5
"""


def test_a_function_as_a_source(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its options, secrets revealed; what is no DataFrame is told."""
    (tmp_path / "pipeline_source.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PIPELINE_SECRET", "open sesame")
    file = tmp_path / "x.yaml"

    def rows(source: str) -> DataFrame:
        file.write_text(
            "pipeline: {name: x}\nexecution: {runtime-mode: BATCH}\n"
            f"source: {{type: python, {source}}}\n"
            "sink: {type: csv, path: out}\n"
        )
        file.chmod(0o600)
        pipeline = load_pipeline(file)
        job = pipeline.jobs["x"]
        return rows_of(spark, job, context_of(pipeline, job, tmp_path, RunValues("r1")))

    given = "options: {count: 3, password: 'env:PIPELINE_SECRET'}"
    assert rows(f"function: 'pipeline_source:rows', {given}").count() == 3
    with pytest.raises(ConfigError, match="nothing returned int, not a DataFrame"):
        rows("function: 'pipeline_source:nothing'")


def test_several_sources_and_sinks(spark: SparkSession, tmp_path: Path) -> None:
    """The sources by their names, in a query; each sink is given the same micro-batch."""
    for name, text in {"orders": "1,7\n2,8\n", "names": "1,ada\n2,ben\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_text(text)
    file = tmp_path / "x.yaml"
    file.write_text("""
pipeline: {name: x}
jobs:
  a:
    sources:
      orders: {type: csv, path: orders, schema: "id INT, item INT"}
      names: {type: csv, path: names, schema: "id INT, name STRING"}
    transform:
      - {type: sql, query: "SELECT name, item FROM orders JOIN names USING (id)"}
      - {type: Cast, spec: "item:string"}
    trigger: {available-now: true}
    sinks:
      - {type: json, path: out, at-least-once: true}
      - {type: console, at-least-once: true}
""")
    file.chmod(0o600)
    pipeline = load_pipeline(file)
    job = pipeline.jobs["a"]
    context = context_of(pipeline, job, tmp_path / "state", RunValues("r1"))
    frame = rows_of(spark, job, context)
    sinks = [stage.make(context.run) for stage in job.sinks]

    def write(batch: DataFrame, batch_id: int) -> None:
        for sink in sinks:
            sink.write(batch, batch_id, context)

    query = start_for_each_batch(frame, context, write)
    with ending(query):
        assert query.awaitTermination(PATIENCE)
    found = spark.read.json(str(tmp_path / "out")).orderBy("name").collect()
    assert [(row.name, row.item) for row in found] == [("ada", "7"), ("ben", "8")]


def test_files_to_files(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's formats, with the schema in a file and Spark's own options."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id;name\n1;NA\n2;b\n")
    (tmp_path / "rows.ddl").write_text("id INT, name STRING\n")
    file = tmp_path / "x.yaml"
    file.write_text("""
pipeline: {name: x}
source: {type: csv, path: in, schema: "file:rows.ddl", options: {header: true, sep: ";", nullValue: NA}}
trigger: {available-now: true}
sink: {type: json, path: out, partition-by: id, options: {ignoreNullFields: false}}
""")
    file.chmod(0o600)
    run_stream(spark, load_pipeline(file), "x", tmp_path / "state")
    found = spark.read.json(str(tmp_path / "out")).orderBy("id").collect()
    assert [(row.id, row.name) for row in found] == [(1, None), (2, "b")]
    assert (tmp_path / "out" / "id=2").is_dir()


def test_jdbc_to_jdbc(spark: SparkSession, tmp_path: Path) -> None:
    """Tables of a real database, Derby, whose driver comes with Spark: a run, then a stream of micro-batches."""
    url = f"jdbc:derby:{tmp_path / 'shop'}"
    assert spark._jvm is not None
    spark._jvm.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))  # else in this folder
    orders = spark.createDataFrame([(1, "ada"), (2, "ben"), (3, "eve")], "id INT, name STRING")
    orders.write.jdbc(f"{url};create=true", "orders")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("4,joe\n")
    file = tmp_path / "x.yaml"
    file.write_text("""
pipeline: {name: x, parameters: {url: ""}}
jobs:
  copy:
    execution: {runtime-mode: BATCH}
    source: {type: jdbc, options: {url: "${var.url}", query: 'SELECT * FROM orders WHERE "id" > 1'}}
    sink: {type: jdbc, options: {url: "${var.url}", dbtable: copies}}
  more:
    source: {type: csv, path: in, schema: "id INT, name STRING"}
    trigger: {available-now: true}
    sink: {type: jdbc, options: {url: "${var.url}", dbtable: copies}}
""")
    file.chmod(0o600)
    pipeline = load_pipeline(file, given={"url": url})
    job = pipeline.jobs["copy"]
    context = context_of(pipeline, job, tmp_path, RunValues("r1"))
    rows = rows_of(spark, job, context)
    (stage,) = job.sinks
    stage.make(context.run).write(rows, 0, context)
    with pytest.raises(AnalysisException, match="already exists"):
        stage.make(context.run).write(rows, 0, context)
    run_stream(spark, pipeline, "more", tmp_path / "state")
    found = spark.read.jdbc(url, "copies").collect()
    assert sorted((row.id, row.name) for row in found) == [(2, "ben"), (3, "eve"), (4, "joe")]


def test_formats_for_trials(spark: SparkSession, tmp_path: Path) -> None:
    """Files as rows, and rows that Spark makes, into nothing."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.bin").write_bytes(b"\\x00\\x01")
    file = tmp_path / "x.yaml"
    file.write_text("""
pipeline: {name: x}
jobs:
  files:
    source: {type: binaryFile, path: in}
    trigger: {available-now: true}
    sink: {type: noop}
  run:
    execution: {runtime-mode: BATCH}
    source: {type: binaryFile, path: in}
    sink: {type: noop}
  rows:
    source: {type: rate-micro-batch, options: {rowsPerBatch: 3}}
    sink: {type: noop}
""")
    file.chmod(0o600)
    pipeline = load_pipeline(file)
    run_stream(spark, pipeline, "files", tmp_path / "state")
    job = pipeline.jobs["run"]
    context = context_of(pipeline, job, tmp_path, RunValues("r1"))
    frame = rows_of(spark, job, context)
    assert [bytes(row.content) for row in frame.collect()] == [b"\\x00\\x01"]
    job.sinks[0].make(context.run).write(frame, 0, context)
    job = pipeline.jobs["rows"]
    context = context_of(pipeline, job, tmp_path / "state", RunValues("r1"))
    query = job.sinks[0].make(context.run).start(rows_of(spark, job, context), context)
    with ending(query):
        eventually(lambda: query.recentProgress)
        assert {each["numInputRows"] for each in query.recentProgress} == {3}
