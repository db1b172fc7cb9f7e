"""Dead letters of a real job, there and back: rows come to the mended job once, with exactly the values they had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from jobpipe.cli.common.row_filter import RowFilter
from jobpipe.errors import ConfigError
from jobpipe.jobs.workloads.progress_reports import Reporter
from jobpipe.jobs.workloads.query_workload import QueryWorkload
from jobpipe.jobs.workloads.stop_request import StopRequest
from jobpipe.pipelines.dead_letters.source_rows import RowReader
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.transforms.column_transforms import WHOLE_JSON
from tests.docs.troubleshooting import on_page
from tests.pipelines.running import read_topic
from tests.spark.kit import Place
from tests.spark.pipelines.test_pipeline_stages import context_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MODULE = "tests.spark.pipelines.test_redrive"
BERLIN = pa.timestamp("us", tz="Europe/Berlin")
ORDERS = pa.schema(
    [
        ("id", pa.string()),
        ("amount", pa.decimal128(12, 3)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)
OLD = datetime(1890, 1, 1, 0, 0, 0, 7, UTC)
Run = Callable[[str], list[dict[str, Any]]]


def bill(row: dict[str, Any], file: str) -> dict[str, Any]:
    """Take no order whose number is in the file now."""
    if str(row["id"]) in Path(file).read_text().split():
        raise ValueError(f"not {row['id']}")
    return {"id": row["id"]}


def orders(*ids: str) -> pa.Table:
    rows = [
        {
            "id": each,
            "amount": Decimal("12345678.125"),
            "at": datetime(1890, 1, 1, 0, 0, 0, 7, UTC),
            "tags": ["ä", None],
        }
        for each in ids
    ]
    return pa.Table.from_pylist(rows, ORDERS)


@pytest.fixture
def topic(tmp_path: Path) -> str:
    return f"{tmp_path.name.strip('_')}-in"


@pytest.fixture(params=[False, True], ids=["plain", "with metadata"])
def run(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    place: Place,
    tmp_path: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Return what runs the job over what is new since; it returns the lines that it has written so far."""
    for name, value in place.environ().items():
        monkeypatch.setenv(name, value)
    settings = {key.removeprefix("jobpipe."): value for key, value in place.settings.items()}
    source = {"type": "jobpipe", "subscribe": topic, "startingOffsets": "earliest", "includeMetadata": request.param}
    function = {"type": "python", "row-function": f"{MODULE}:bill", "schema": "id INT"}
    job = {
        "source": {**source, **settings},
        "transform": [{"type": "Cast", "spec": "id:int"}, {**function, "options": {"file": str(tmp_path / "bad")}}],
        "trigger": {"available-now": True},
        "errors": {"tolerance": "all", "dead-letters": f"{topic}-dead"},
        "sink": {"type": "json", "path": str(tmp_path / "out"), "at-least-once": True},
    }
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump({"pipeline": {"name": "p"}, "jobs": {"a": job}}))
    file.chmod(0o600)
    pipeline = load_pipeline(file)

    def run(bad: str) -> list[dict[str, Any]]:
        (tmp_path / "bad").write_text(bad)
        context = context_of(pipeline, pipeline.jobs["a"], tmp_path / "state", RunValues("r1"))
        done = QueryWorkload(spark, pipeline, pipeline.jobs["a"], context, Reporter(None)).run(StopRequest(60.0))
        assert done.error == ""
        lines = [line for path in (tmp_path / "out").glob("*.json") for line in path.read_text().splitlines()]
        return sorted(json.loads(line)["id"] for line in lines)

    return run


def command(*args: str) -> subprocess.CompletedProcess[str]:
    """Run ``jobpipe`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "jobpipe.cli.main", "dead-letters", *args],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=120,
        check=False,
    )


def test_rows_come_to_the_mended_job_once(run: Run, place: Place, topic: str) -> None:
    """Of a function after a Cast, and of the Cast; one whose number is none stays dead, as a letter of its own."""
    with place.publisher(topic, parallelism=2) as publisher:
        publisher.seal("q", 0, [orders("1", "2"), orders("3", "x")])
        assert run("2 3") == [1]
        letters = list(read_topic(place.config(), f"{topic}-dead"))
        assert sorted(str(each["stage"]) for each in letters) == ["Cast", "python", "python"]
        cast = command("show", "--topic", f"{topic}-dead", "--where", "stage = 'Cast' AND at IS NOT NULL", "--json")
        assert [json.loads(line)["stage"] for line in cast.stdout.splitlines()] == ["Cast"], cast.stderr
        redrive = ("redrive", "--topic", f"{topic}-dead", "--into", topic, "--json")
        first = command(*redrive)
        assert first.returncode == 0, first.stderr
        assert json.loads(first.stdout)["published"] == {topic: 3}
        publisher.seal("q", 1, [orders("4"), orders()])
        assert run("") == [1, 2, 3, 4]
        again = command(*redrive)
        told = json.loads(again.stdout)
        assert (told["published"], told["already"]) == ({topic: 1}, 3)  # of the number that is none
        status = publisher.status()
        assert status["rows"] == 4 + 3 + 1 + 1
    rows = [row for row in read_topic_open(place, topic) if row["id"] in "23x"]
    assert all(repr(row) == repr(orders(str(row["id"])).to_pylist()[0]) for row in rows)
    assert sorted(str(row["id"]) for row in rows) == ["2", "2", "3", "3", "x", "x", "x"]


def read_topic_open(place: Place, topic: str) -> Iterator[dict[str, object]]:
    """Yield the rows of a topic that has no end mark."""
    with place.publisher(topic, parallelism=2) as publisher:
        publisher.close(final=True)
    yield from read_topic(place.config(), topic)


KINDS: dict[str, tuple[Any, list[Any]]] = {
    "numbers": (pa.struct([("a", pa.int8()), ("b", pa.int64())]), [{"a": -128, "b": 2**63 - 1}, None]),
    "float": (pa.float32(), [0.1, -0.0, float("nan"), float("-inf"), 3.4028234663852886e38, 1e-45, 16777216.0]),
    "double": (pa.float64(), [0.1, -0.0, float("nan"), float("inf"), 1.7976931348623157e308, 5e-324, 1e22]),
    "decimal": (pa.decimal128(38, 10), [Decimal("1E-10"), Decimal("9" * 28), Decimal("-0.5")]),
    "text": (pa.string(), ["", 'ä\n"\\\u2028', "\U0001f600"]),
    "binary": (pa.binary(), [b"", b"\x00\xff" * 40]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10)]),
    "timestamp": (BERLIN, [datetime(1890, 1, 1, 0, 0, 0, 1, UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)]),
    "timestamp_ntz": (pa.timestamp("us"), [datetime(1, 1, 1), datetime(2026, 3, 29, 2, 30, 0, 1)]),  # noqa: DTZ001
    "map": (pa.map_(pa.int32(), pa.string()), [[(-1, "x"), (2, None)], []]),
    "nested": (
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(BERLIN)))])),
        [[{"m": [("k", [datetime(1700, 1, 1, tzinfo=UTC), None])]}, None], []],
    ),
}


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_what_spark_writes_comes_back(spark: SparkSession, zone: str) -> None:
    """Each type, whatever the session's time zone is; PySpark before 4.0 makes no DataFrame of Arrow's tables."""
    settings = {"spark.sql.session.timeZone": zone, "spark.sql.timestampType": "TIMESTAMP_NTZ"}  # times without a zone
    before = {key: spark.conf.get(key) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        for name, (kind, values) in KINDS.items():
            schema = pa.schema([("value", kind)])
            table = pa.table([pa.array([*values, None], kind)], schema=schema)
            frame = spark.createDataFrame(table).select(sf.to_json(sf.struct("value"), WHOLE_JSON).alias("json"))
            texts = [row.json for row in frame.collect()]
            reader = RowReader("orders", schema)
            again = reader.batch([reader.values(text) for text in texts])
            assert repr(again.to_pylist()) == repr(table.to_pylist()), name
    finally:
        for key, old in before.items():
            spark.conf.set(key, str(old))


def test_a_condition(spark: SparkSession) -> None:
    rows = pa.record_batch(
        {"id": pa.array([1, 2, 3]), "at": pa.array([datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)])}
    )
    assert RowFilter("id != 2 AND at >= '2026-01-01T00:00:00'").numbers(rows) == [0, 2]
    assert RowFilter("id > 7").numbers(rows) == []
    with pytest.raises(ConfigError) as refused:
        RowFilter("no_column = 1").numbers(rows)
    on_page(f"jobpipe: {refused.value}", "jobpipe: --where: Spark does not take")
