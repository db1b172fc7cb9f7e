"""The topic of dead letters on a real bus: where their rows come from, and what a repeated run adds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyspark.sql import SparkSession

from jobpipe.jobs.workloads.progress_reports import Reporter
from jobpipe.jobs.workloads.query_workload import QueryWorkload
from jobpipe.jobs.workloads.stop_request import StopRequest
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.sinks.format_sinks import JsonSink
from tests.pipelines.running import read_topic
from tests.spark.kit import Place
from tests.spark.pipelines.test_pipeline_stages import context_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MODULE = "tests.spark.pipelines.test_letter_topics"

Run = Callable[[dict[str, Any]], list[dict[str, object]]]


def sort_out(row: dict[str, Any], file: str) -> dict[str, Any]:
    """Take no row whose number is in the file now."""
    if str(row["n"]) in Path(file).read_text().split():
        raise ValueError(f"not {row['n']}")
    return row


@pytest.fixture
def run(spark: SparkSession, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a job of run r1 once, over all that is there; it returns the dead letters, in order."""
    for name, value in place.environ().items():
        monkeypatch.setenv(name, value)
    topic = f"{tmp_path.name.strip('_')}-dead"

    def run(job: dict[str, Any]) -> list[dict[str, object]]:
        job = {**job, "errors": {"tolerance": "all", "dead-letters": topic}}
        file = tmp_path / "p.yaml"
        file.write_text(yaml.safe_dump({"pipeline": {"name": "p"}, "jobs": {"a": job}}))
        file.chmod(0o600)
        pipeline = load_pipeline(file)
        of = pipeline.jobs["a"]
        context = context_of(pipeline, of, tmp_path / "state", RunValues("r1"))
        done = QueryWorkload(spark, pipeline, of, context, Reporter(None)).run(StopRequest(60.0))
        assert done.error == ""
        return list(read_topic(place.config(), topic))

    return run


def test_where_rows_of_a_topic_come_from(run: Run, place: Place, tmp_path: Path) -> None:
    """Topic, offset, partition, and the row's number in it, of a Cast and of a function after it."""
    (tmp_path / "bad").write_text("7 8")
    topic = f"{tmp_path.name.strip('_')}-in"
    settings = {key.removeprefix("jobpipe."): value for key, value in place.settings.items()}
    with place.publisher(topic, parallelism=2) as publisher:
        for batch_id, (first, second) in enumerate(((["1", "2"], ["3"]), (["4", "x", "7"], ["8", "5", "y"]))):
            publisher.seal("q", batch_id, [pa.table({"n": first}), pa.table({"n": second})])
        dead = run(
            {
                "source": {"type": "jobpipe", "subscribe": topic, "startingOffsets": "earliest", **settings},
                "transform": [
                    {"type": "Cast", "spec": "n:int"},
                    {
                        "type": "python",
                        "row-function": f"{MODULE}:sort_out",
                        "schema": "n INT",
                        "options": {"file": str(tmp_path / "bad")},
                    },
                ],
                "trigger": {"available-now": True},
                "sink": {"type": "noop"},
            }
        )
    assert {row["topic"] for row in dead} == {topic}
    places = [[row[name] for name in ("stage", "row", "offset", "partition", "row_number", "file")] for row in dead]
    assert sorted(places) == [
        ["Cast", '{"n":"x"}', 1, 0, 1, None],
        ["Cast", '{"n":"y"}', 1, 1, 2, None],
        ["python", '{"n": 7}', 1, 0, 2, None],
        ["python", '{"n": 8}', 1, 1, 0, None],
    ]


def test_json_of_a_topic(run: Run, place: Place, tmp_path: Path) -> None:
    """Values that do not parse become dead letters that name their place; the others go on."""
    topic = f"{tmp_path.name.strip('_')}-in"
    settings = {key.removeprefix("jobpipe."): value for key, value in place.settings.items()}
    with place.publisher(topic) as publisher:
        for batch_id, values in enumerate(([b'{"id":1}', b'{"id":"x"}'], [b"\xff", None, b'{"id":2}', b""])):
            publisher.seal("q", batch_id, [pa.table({"value": pa.array(values, pa.binary())})])
        dead = run(
            {
                "source": {"type": "jobpipe", "subscribe": topic, "startingOffsets": "earliest", **settings},
                "transform": [
                    {"type": "FromJson", "field": "value", "schema": "id INT", "target": "parsed"},
                    {"type": "ExtractField", "field": "parsed"},
                ],
                "trigger": {"available-now": True},
                "sink": {"type": "json", "path": str(tmp_path / "out"), "at-least-once": True},
            }
        )
    lines = [line for path in (tmp_path / "out").glob("*.json") for line in path.read_text().splitlines()]
    assert sorted(lines) == ['{"id":1}', '{"id":2}', "{}"]
    places = [[row[name] for name in ("stage", "error_class", "row", "offset", "row_number")] for row in dead]
    assert sorted(places) == [
        ["FromJson", "MALFORMED_RECORD", '{"value":""}', 1, 3],
        ["FromJson", "MALFORMED_RECORD", '{"value":"/w=="}', 1, 0],
        ["FromJson", "MALFORMED_RECORD", '{"value":"eyJpZCI6IngifQ=="}', 0, 1],
    ]
    assert {row["error_message"] for row in dead} == {"column value is not a JSON object that fits the schema"}


@pytest.mark.parametrize(("second", "letters"), [("3", [3]), ("4", [3, 4]), ("", [3])])
def test_a_run_that_is_repeated(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str, letters: list[int]
) -> None:
    """Its letters come once; if the function sorts the rows in another way, those that are not written come too."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("1\n3\n4\n")
    job = {
        "execution": {"runtime-mode": "BATCH"},
        "source": {"type": "csv", "path": "in", "schema": "n INT"},
        "transform": [
            {
                "type": "python",
                "row-function": f"{MODULE}:sort_out",
                "schema": "n INT",
                "options": {"file": str(tmp_path / "bad")},
            }
        ],
        "sink": {"type": "json", "path": "out"},
    }

    def kill(*_: object) -> None:
        raise KeyError("killed")

    (tmp_path / "bad").write_text("3")
    with monkeypatch.context() as patch:
        patch.setattr(JsonSink, "write", kill)
        with pytest.raises(KeyError, match="killed"):
            run(job)
    (tmp_path / "bad").write_text(second)
    dead = run(job)
    assert [json.loads(str(row["row"]))["n"] for row in dead] == letters
    texts = [path.read_text() for path in (tmp_path / "out").glob("*.json")]
    written = [json.loads(line)["n"] for text in texts for line in text.splitlines()]
    assert sorted(written) == [n for n in (1, 3, 4) if str(n) not in second.split()]
