"""A checkpoint and the jobs that may go on from it, by ``jobpipe pipeline run``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession

from jobpipe.jobs.workloads.progress_reports import Reporter
from jobpipe.jobs.workloads.query_shape import QueryShape, shape_of
from jobpipe.jobs.workloads.query_workload import NAMED_SOURCES, QueryWorkload
from jobpipe.pipelines.checkpoints.checkpoint_owner import NAME
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.plugins.job_context import JobContext, name_of_source
from tests.pipelines.running import SECONDS, Runner, write_pipeline
from tests.spark.kit import Place, run_to_end

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
        said = f"the checkpoint in {state} does not fit job copy: among its sources is now json path {tmp_path}/b, and"
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
    assert (note["pipeline"], note["sources"]) == (name, [{"type": "json", "which": {"path": f"{tmp_path}/b"}}])


def streams(folder: Path, name: str, columns: str = "id BIGINT") -> dict[str, Any]:
    """Return a source that reads a folder, which is made."""
    (folder / name).mkdir(exist_ok=True)
    return {"type": "csv", "path": f"{name}/*.csv", "schema": columns}


def ending(sink: str = "out", **job: Any) -> dict[str, Any]:
    """Return a job that ends when it has read what is there."""
    return {
        "copy": {
            **job,
            "trigger": {"available-now": True},
            "sink": {"type": "json", "path": sink, "at-least-once": True, **job.pop("to", {})},
        }
    }


def test_sources_that_change_places(tmp_path: Path, home: Path) -> None:
    """Spark knows them by their numbers: each would be read from where the other one was, from the beginning here.

    One that a function makes has no name, and so none has.
    """
    reading = f"spark.readStream.schema('id BIGINT').csv('{tmp_path}/b')"
    (tmp_path / "functions.py").write_text(f"def b(spark):\n    return {reading}\n")
    for number, name in enumerate("ab", 1):
        streams(tmp_path, name)
        (tmp_path / name / "1.csv").write_text(f"{number}\n")
    sources = {"a": streams(tmp_path, "a"), "b": {"type": "python", "function": "functions:b"}}

    def jobs(query: str) -> dict[str, Any]:
        return ending(sources=sources, transform=[{"query": query}])

    file = write_pipeline(tmp_path, jobs("SELECT * FROM a UNION ALL SELECT * FROM b"))
    name = yaml.safe_load(file.read_text())["pipeline"]["name"]
    section = {"name": name, "topic-prefix": f"{name}."}
    with Runner(tmp_path, home, file) as runner:
        assert runner.run() == 0, runner.told
        write_pipeline(tmp_path, jobs("SELECT id FROM a WHERE id > 0 UNION ALL SELECT id + 0 FROM b"), **section)
        assert runner.run() == 0, runner.told
        write_pipeline(tmp_path, jobs("SELECT * FROM b UNION ALL SELECT * FROM a"), **section)
        assert runner.run() == 1
        assert "does not fit the query of job copy: Spark knows its sources by their order" in runner.output
        assert "which is now b, then a, and was a, then b. Undo that change. With --new-checkpoint" in runner.output
        assert "restart" not in runner.output.lower()
    assert ids(tmp_path) == [1, 2]


def test_sources_with_names_come_go_and_change_places(tmp_path: Path, home: Path) -> None:
    """Each file is read once, whatever is added and left out. A source that went comes back under another name."""

    def jobs(*names: str) -> dict[str, Any]:
        sources = {name: streams(tmp_path, name) for name in names}
        query = " UNION ALL ".join(f"SELECT * FROM `{name}`" for name in names)  # noqa: S608
        return ending(sources=sources, transform=[{"query": query}])

    def add(number: int) -> None:
        for of, name in enumerate(("a1", "b_1", "c"), 1):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{number}.csv").write_text(f"{10 * number + of}\n")

    file = write_pipeline(tmp_path, jobs("a1", "b_1"))
    name = yaml.safe_load(file.read_text())["pipeline"]["name"]
    section = {"name": name, "topic-prefix": f"{name}."}
    steps = [
        (("a1", "b_1"), [11, 12]),
        (("b_1", "a1"), [21, 22]),
        (("c", "b_1", "a1"), [13, 23, 31, 32, 33]),
        (("b_1", "c"), [42, 43]),
        (("b_1", "c"), [52, 53]),
    ]
    seen: list[int] = []
    commits = tmp_path / "state" / "copy" / "commits"
    with Runner(tmp_path, home, file) as runner:
        for number, (names, expected) in enumerate(steps, 1):
            add(number)
            write_pipeline(tmp_path, jobs(*names), **section)
            if number == 3:  # as if the driver had been killed before it noted the end of a micro-batch
                max(commits.glob("[0-9]*"), key=lambda file: int(file.name)).unlink()
            assert runner.run() == 0, runner.told
            seen = sorted([*seen, *expected])
            assert sorted(set(ids(tmp_path))) == seen, names
        write_pipeline(tmp_path, jobs("b_1", "c", "a1"), **section)
        assert runner.run() == 1
        assert "its source a1 was left out before, and how far it was read is not known any more" in runner.output
        other = jobs("b_1", "c")
        other["copy"]["sources"]["c"] = streams(tmp_path, "d")
        write_pipeline(tmp_path, other, **section)
        assert runner.run() == 1
        assert f"its source c is now csv path {tmp_path}/d/*.csv, and was csv path {tmp_path}/c/*.csv" in runner.output


def test_topics_with_names_come_and_go(spark: SparkSession, place: Place) -> None:
    """Spark knows a Python source by its name as it does its own."""
    for key, value in NAMED_SOURCES.items():
        spark.conf.set(key, value)
    try:
        received: dict[str, list[int]] = {}
        with contextlib.ExitStack() as stack:
            writers = {name: stack.enter_context(place.publisher(f"named-{name}")) for name in "ab"}
            for step, names in enumerate((["a"], ["b", "a"], ["b"])):
                for number, publisher in enumerate(writers.values()):
                    publisher.seal("q", step, [pa.table({"id": [10 * step + number]})])
                frames = [_named(spark, place, f"named-{name}") for name in names]
                seen = received[f"{step}"] = []
                run_to_end(
                    reduce(DataFrame.unionAll, frames),
                    lambda rows, _, seen=seen: seen.extend(row.id for row in rows.collect()),  # type: ignore[misc]
                    place.checkpoint("named"),
                )
        assert [sorted(each) for each in received.values()] == [[0], [1, 10, 11], [21]]
    finally:
        for key in NAMED_SOURCES:
            spark.conf.unset(key)


def _named(spark: SparkSession, place: Place, topic: str) -> DataFrame:
    options = {"subscribe": topic, "name": topic, "startingOffsets": "earliest", **place.settings}
    return spark.readStream.name(name_of_source(topic)).format("jobpipe").options(**options).load()


def test_a_query_with_state_that_was_killed_while_it_wrote_its_first_offsets(tmp_path: Path, home: Path) -> None:
    """Spark would refuse to begin it, at each attempt."""
    source = streams(tmp_path, "a")
    (tmp_path / "a" / "1.csv").write_text("1\n")
    offsets = tmp_path / "state" / "copy" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.d5c1.tmp").write_text("v1")
    file = write_pipeline(tmp_path, ending(source=source, transform=[{"type": "deduplicate", "keys": "id"}]))
    with Runner(tmp_path, home, file) as runner:
        assert runner.run() == 0, runner.told
    assert ids(tmp_path) == [1]


@pytest.fixture
def shaped(spark: SparkSession, tmp_path: Path) -> Callable[..., QueryShape]:
    """Return the shape of a query of one or two streams."""

    def shape(transform: list[dict[str, Any]], *views: str, output_mode: str = "append", **source: Any) -> QueryShape:
        given = {**streams(tmp_path, "a", "id BIGINT, t TIMESTAMP, u TIMESTAMP"), **source}
        sources: dict[str, Any] = {"source": given}
        if views:
            sources = {"sources": {view: {**given, "path": f"{view}/*.csv"} for view in views}}
            for view in views:
                (tmp_path / view).mkdir(exist_ok=True)
        file = tmp_path / "p.yaml"
        file.write_text(yaml.safe_dump({"pipeline": {"name": "p"}, "jobs": ending(**sources, transform=transform)}))
        file.chmod(0o600)
        pipeline = load_pipeline(file)
        job = pipeline.jobs["copy"]
        context = JobContext(
            pipeline="p",
            job="copy",
            mode=Mode.STREAMING,
            storage=str(tmp_path / "s"),
            folder=tmp_path,
            run=RunValues("r"),
        )
        work = QueryWorkload(spark, pipeline, job, context, Reporter(None))
        frames = work._sources()
        return shape_of(work._apply_transforms(frames), job, frames, output_mode)

    return shape


def hourly(delay: str) -> list[dict[str, Any]]:
    """Return transforms that count the rows of hours."""
    count = "SELECT window(t, '1 hour') w, count(*) c FROM input GROUP BY window(t, '1 hour')"
    return [{"type": "watermark", "column": "t", "delay": delay}, {"query": count}]


KEEPS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "filter": (
        [{"query": "SELECT id, count(*) c FROM input GROUP BY id"}],
        [{"query": "SELECT id, count(*) c FROM input GROUP BY id HAVING id > 1"}],
    ),
    "seed": ([{"query": "SELECT id, rand() r FROM input"}], [{"query": "SELECT id, rand() r FROM input WHERE id > 1"}]),
    "delay of an aggregate": (hourly("1 minute"), hourly("2 hours")),
    "delay": (
        [{"type": "watermark", "column": "t", "delay": "1 minute"}, {"type": "deduplicate", "keys": "id"}],
        [{"type": "watermark", "column": "t", "delay": "2 minutes"}, {"type": "deduplicate", "keys": "id"}],
    ),
}
CHANGES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], str]] = {
    "aggregate": (
        [{"query": "SELECT id, count(*) c FROM input GROUP BY id"}],
        [{"query": "SELECT id, sum(id) c FROM input GROUP BY id"}],
        "sum(id)",
    ),
    "group": (
        [{"query": "SELECT id, count(*) c FROM input GROUP BY id"}],
        [{"query": "SELECT id + 1 id, count(*) c FROM input GROUP BY id + 1"}],
        "(id + ",
    ),
    "watermark": (
        [{"type": "watermark", "column": "t", "delay": "1 minute"}, {"type": "deduplicate", "keys": "id"}],
        [{"type": "watermark", "column": "u", "delay": "1 minute"}, {"type": "deduplicate", "keys": "id"}],
        "the watermark of u",
    ),
    "keys": (
        [{"type": "deduplicate", "keys": "id"}],
        [{"type": "deduplicate", "keys": ["id", "t"]}],
        "Deduplicate [id, t]",
    ),
    "distinct": ([{"query": "SELECT id FROM input"}], [{"query": "SELECT DISTINCT id FROM input"}], "Distinct"),
}


@pytest.mark.parametrize("case", list(KEEPS))
def test_what_does_not_change_the_state(shaped: Callable[..., QueryShape], case: str) -> None:
    one, other = KEEPS[case]
    assert shaped(other).difference(shaped(one)) == ""


@pytest.mark.parametrize("case", list(CHANGES))
def test_what_changes_the_state(shaped: Callable[..., QueryShape], case: str) -> None:
    one, other, said = CHANGES[case]
    assert shaped(one).difference(shaped(one)) == ""
    told = shaped(other).difference(shaped(one))
    assert told.startswith("among what keeps state is now ")
    assert said in told


def test_a_watermark_of_the_source(shaped: Callable[..., QueryShape]) -> None:
    deduplicate = [{"type": "deduplicate", "keys": "id"}]
    one, other = (shaped(deduplicate, watermark={"column": name, "delay": "1 minute"}) for name in "tu")
    assert "the watermark of u" in other.difference(one)


def test_joins_and_views(shaped: Callable[..., QueryShape]) -> None:
    def joined(condition: str) -> QueryShape:
        query = f"SELECT a.id FROM a JOIN b ON {condition}"  # noqa: S608 - the test's own
        return shaped([{"query": query}], "a", "b")

    one = joined("a.id = b.id")
    assert [source.which["path"].rpartition("/")[0][-1] for source in one.sources] == ["a", "b"]
    assert one.difference(joined("a.id = b.id")) == ""
    assert "Join" in joined("a.id = b.id AND a.t < b.t").difference(one)
    twice = shaped([{"query": "SELECT * FROM b UNION ALL SELECT * FROM a UNION ALL SELECT * FROM b"}], "a", "b")
    assert [source.which["path"].rpartition("/")[0][-1] for source in twice.sources] == ["b", "a"]
    told = twice.difference(one.model_copy(update={"state": ()}))
    assert told == "Spark knows its sources by their order, which is now b, then a, and was a, then b"


def test_the_output_mode_of_what_keeps_state(shaped: Callable[..., QueryShape]) -> None:
    count, plain = [{"query": "SELECT id, count(*) c FROM input GROUP BY id"}], [{"query": "SELECT id FROM input"}]
    one, other = (shaped(count, output_mode=mode) for mode in ("update", "complete"))
    assert other.difference(one) == "its output-mode is complete, and was update"
    assert shaped(plain, output_mode="update").difference(shaped(plain)) == ""
    assert other.model_copy(update={"spark": "9"}).difference(one) == ""  # which may write plans in another way
