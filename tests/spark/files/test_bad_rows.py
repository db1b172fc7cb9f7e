"""Without tolerance a row that a stage cannot take fails the job, and the end record says where it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import yaml
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from jobpipe.errors import ConfigError
from jobpipe.jobs.workloads.progress_reports import Reporter
from jobpipe.jobs.workloads.query_workload import QueryWorkload
from jobpipe.jobs.workloads.stop_request import StopRequest
from jobpipe.jobs.workloads.workload import WorkloadOutcome, failure
from jobpipe.pipelines.dead_letters import dead_letter_split
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.sinks.format_sinks import JsonSink
from tests.spark.kit import Place
from tests.spark.pipelines.test_pipeline_stages import context_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

COLUMNS = "id BIGINT, name STRING"
GOOD_AND_BAD = {
    "csv": ["1,ada\n", "2,ben\nthree,cleo\n"],
    "json": ['{"id": 1, "name": "ada"}\n', '{"id": 2, "name": "ben"}\n{"id": "three", "name": "cleo"}\n'],
    "xml": [
        "<rows><row><id>1</id><name>ada</name></row></rows>\n",
        "<rows><row><id>2</id><name>ben</name></row><row><id>three</id><name>cleo</name></row></rows>\n",
    ],
}
OPTIONS = {"xml": {"rowTag": "row"}}
MUTE = """
def call(given):
    if "three" in str(given):
        raise ValueError("no voice")
    return given
"""

Run = Callable[..., WorkloadOutcome]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a job to its end, over all that is there."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(job: dict[str, Any], *, batch: bool = False) -> WorkloadOutcome:
        how: dict[str, Any] = (
            {"execution": {"runtime-mode": "BATCH"}} if batch else {"trigger": {"available-now": True}}
        )
        sink = {"type": "json", "path": "out", "at-least-once": not batch}
        file = tmp_path / "p.yaml"
        file.write_text(yaml.safe_dump({"pipeline": {"name": "p"}, "jobs": {"a": {**job, **how, "sink": sink}}}))
        file.chmod(0o600)
        pipeline = load_pipeline(file)
        of = pipeline.jobs["a"]
        context = context_of(pipeline, of, tmp_path / "state", RunValues("r1"))
        try:
            return QueryWorkload(spark, pipeline, of, context, Reporter(None)).run(StopRequest(60.0))
        except (PySparkException, Py4JError) as error:  # as the attempt does
            return failure(error)

    return run


def source_of(kind: str, folder: Path, **options: object) -> dict[str, Any]:
    """Return a source of two files, of which the second one has a bad row."""
    (folder / "input").mkdir()
    for number, text in enumerate(GOOD_AND_BAD[kind]):
        (folder / "input" / f"{number}.{kind}").write_text(text)
    given = {**OPTIONS.get(kind, {}), **options}
    return {"type": kind, "path": "input", "schema": COLUMNS, "options": given}


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("kind", ["csv", "json", "xml"])
def test_a_file(run: Run, tmp_path: Path, kind: str, batch: bool) -> None:
    done = run({"source": source_of(kind, tmp_path)}, batch=batch)
    assert done.error, "a bad row became nulls"
    assert done.place == f"file {(tmp_path / 'input' / f'1.{kind}').as_uri()}"


@pytest.mark.parametrize("schema", ["id BIGINT", f"{COLUMNS}, more STRING"])
def test_a_schema_of_other_columns(run: Run, tmp_path: Path, schema: str) -> None:
    """A row of csv that has more or fewer values than the schema is bad, unless the user says otherwise."""
    source = source_of("csv", tmp_path)
    (tmp_path / "input" / "1.csv").unlink()
    done = run({"source": {**source, "schema": schema}}, batch=True)
    assert done.place == f"file {(tmp_path / 'input' / '0.csv').as_uri()}"
    source = {**source, "schema": schema, "options": {"mode": "PERMISSIVE"}}
    assert run({"source": source}, batch=True).error == ""
    (row,) = [json.loads(line) for path in (tmp_path / "out").glob("*.json") for line in path.read_text().splitlines()]
    assert row["id"] == 1


def test_by_its_name_for_any_format(run: Run, tmp_path: Path) -> None:
    """`type: spark` with `format: csv` is Spark's csv as well."""
    source = {**source_of("csv", tmp_path), "type": "spark", "format": "csv"}
    assert run({"source": source}).place.endswith("/input/1.csv")


@pytest.mark.parametrize("own", ["mode", "columnNameOfCorruptRecord", "a column of Spark's name"])
def test_as_the_user_says(run: Run, tmp_path: Path, own: str) -> None:
    """Whoever names the mode, or takes the text, has what Spark has."""
    options = {"mode": {"mode": "DROPMALFORMED"}, "columnNameOfCorruptRecord": {own: "bad"}}.get(own, {})
    source = source_of("csv", tmp_path, **options)
    more = {"mode": "", "columnNameOfCorruptRecord": ", bad STRING"}.get(own, ", _corrupt_record STRING")
    assert run({"source": {**source, "schema": COLUMNS + more}}, batch=True).error == ""
    rows = [json.loads(line) for path in (tmp_path / "out").glob("*.json") for line in path.read_text().splitlines()]
    names, texts = sorted(row["name"] for row in rows), [text for row in rows for text in row.values()]
    assert names == (["ada", "ben"] if own == "mode" else ["ada", "ben", "cleo"])
    assert ("three,cleo" in texts) == (own != "mode")


@pytest.mark.parametrize(
    ("transform", "error"),
    [
        ({"type": "Cast", "spec": "name:int"}, "CAST_INVALID_INPUT"),
        ({"type": "python", "row-function": "mute_row:call", "schema": "name STRING"}, "no voice"),
        ({"type": "python", "batch-function": "mute_batch:call", "schema": "name STRING"}, "no voice"),
    ],
)
def test_a_topic(
    spark: SparkSession, run: Run, place: Place, tmp_path: Path, transform: dict[str, Any], error: str
) -> None:
    """Of rows that came from a topic: what the micro-batch read of it."""
    for name in ("mute_row", "mute_batch"):
        if f"{name}:call" in transform.values():
            (tmp_path / f"{name}.py").write_text(MUTE)
            spark.sparkContext.addPyFile(str(tmp_path / f"{name}.py"))  # the workers live already
    topic = tmp_path.name.strip("_")
    with place.publisher(topic) as publisher:
        for batch_id, names in enumerate((["1"], ["2"], ["three", "4"])):
            publisher.seal("q", batch_id, [pa.table({"name": names})])
        settings = {key.removeprefix("jobpipe."): value for key, value in place.settings.items()}
        source = {
            "type": "jobpipe",
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxRowsPerTrigger": 1,
            **settings,
        }
        done = run({"source": source, "transform": [transform]})
    assert error in done.message
    stage, _, rows = done.place.rpartition(" jobs.a.transform[0], ")
    assert (bool(stage), rows) == ("spec" not in transform, f"topic {topic}, offset 2")


def test_a_sink_that_cannot_be_opened(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic of the dead letters, which was taken over before, is given up."""

    class Topic:
        closed: ClassVar[list[bool]] = []

        def __init__(self, **_: object) -> None:
            return

        def close(self, *, final: bool) -> None:
            self.closed.append(final)

    def fail(*_: object) -> None:
        raise ConfigError("no")

    monkeypatch.setattr(dead_letter_split, "JobPipeSink", Topic)
    monkeypatch.setattr(JsonSink, "open", fail)
    source = source_of("csv", tmp_path)
    for batch in (True, False):
        with pytest.raises(ConfigError, match="no"):
            run({"source": source, "errors": {"tolerance": "all"}}, batch=batch)
    assert Topic.closed == [False, False]
