"""The sample plug-ins of examples/plugin with real Spark, from their folder; `make package` installs them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode, TriggerSpec
from jobpipe.pipelines.plugins.job_context import JobContext
from tests.docs.pages import ROOT
from tests.spark.kit import PATIENCE

PLUGIN = ROOT / "examples" / "plugin"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(PLUGIN))
    patch.syspath_prepend(str(PLUGIN / "tests"))
    import test_acme_jobpipe
    from acme_jobpipe.sqlite import SqliteSink

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

# Its own tests, in the session of all Spark tests.
globals().update({name: test for name, test in vars(test_acme_jobpipe).items() if name.startswith("test_")})
job = test_acme_jobpipe.job


class CountingSink(SqliteSink):
    """Knows which micro-batches it was given."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.given: list[int] = []

    def write(self, batch: DataFrame, batch_id: int, job: JobContext) -> None:
        self.given.append(batch_id)
        super().write(batch, batch_id, job)


def sink_in(folder: Path) -> CountingSink:
    return CountingSink(CountingSink.parse({"path": "rows.db", "table": "rows"}, folder))


def in_database(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "rows.db")) as database:
        return database.execute(query).fetchall()


def test_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """A micro-batch that Spark repeats after a restart is there once; another query's batch of that id is another."""
    data = tmp_path / "data"
    data.mkdir()
    for number in range(2):
        (data / f"{number}.csv").write_text(f"{number},Row {number}\n")

    def run(storage: str) -> list[int]:
        job = JobContext(
            pipeline="p",
            job="rows",
            mode=Mode.STREAMING,
            storage=str(tmp_path / storage),
            folder=tmp_path,
            run=RunValues("r1"),
            trigger=TriggerSpec.model_validate({"available-now": True}),
        )
        frame = spark.readStream.schema("id INT, title STRING").option("maxFilesPerTrigger", 1).csv(str(data))
        sink = sink_in(tmp_path)
        sink.open(frame, job)
        query = sink.start(frame, job)
        try:
            assert query.awaitTermination(PATIENCE)
        finally:
            query.stop()
            sink.close(ended=True)
        return sink.given

    assert run("state") == [0, 1]
    for name in ("1", ".1.crc"):
        (tmp_path / "state" / "commits" / name).unlink(missing_ok=True)
    assert run("state") == [1]
    assert sorted(in_database(tmp_path, "SELECT * FROM rows")) == [(0, "Row 0"), (1, "Row 1")]
    assert run("other") == [0, 1]
    assert in_database(tmp_path, "SELECT count(*) FROM rows") == [(4,)]
    assert in_database(tmp_path, "SELECT destination, batch FROM jobpipe_ledger") == [("rows", 1)] * 2


def test_a_batch_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path, job: JobContext) -> None:
    """Although the rows of its first partition were written already."""
    good = spark.range(4, numPartitions=2)
    failing = good.withColumn("id", sf.when(sf.col("id") < 3, sf.col("id")).otherwise(sf.raise_error("no")))
    sink = sink_in(tmp_path)
    sink.open(good, job)
    with pytest.raises(Py4JJavaError, match="USER_RAISED_EXCEPTION"):
        sink.write(failing, 0, job)
    assert in_database(tmp_path, "SELECT * FROM rows") == in_database(tmp_path, "SELECT * FROM jobpipe_ledger") == []
    sink.write(good, 0, job)
    assert sorted(in_database(tmp_path, "SELECT * FROM rows")) == [(0,), (1,), (2,), (3,)]


def test_types(spark: SparkSession, tmp_path: Path, job: JobContext) -> None:
    """Exact numbers and times as texts, nulls as nulls."""
    when = datetime(2026, 3, 1, 9, 30, 0, 250_000, tzinfo=UTC)
    row = (True, 2**62, 0.5, b"\0\1", Decimal("0.10"), when, date(2026, 3, 1), ["a", "b"], "é")
    schema = "a BOOLEAN, b BIGINT, c DOUBLE, d BINARY, e DECIMAL(9, 2), f TIMESTAMP, g DATE, h ARRAY<STRING>, i STRING"
    frame = spark.createDataFrame([row, (None,) * len(row)], schema)
    sink = sink_in(tmp_path)
    sink.open(frame, job)
    sink.write(frame, 0, job)
    texts = ("0.10", "2026-03-01 09:30:00.25", "2026-03-01", "[a, b]", "é")
    assert in_database(tmp_path, "SELECT * FROM rows ORDER BY a IS NULL") == [(1, *row[1:4], *texts), (None,) * 9]
