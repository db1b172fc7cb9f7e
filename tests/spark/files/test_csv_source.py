"""Source csv: a value stands in the column that its file says, and as the file has it; or the job says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.sources.format_sources import CsvSource
from tests.spark.files.file_jobs import FileJob

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

HEADED: dict[str, Any] = {"type": "csv", "path": "in", "schema": "customer STRING, city STRING"}


def rows(job: FileJob) -> list[tuple[str, ...]]:
    """Return what the job wrote."""
    frame = job.spark.read.schema("customer STRING, city STRING").json(str(job.folder / "out"))
    return sorted((row.customer, row.city) for row in frame.collect())


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
@pytest.mark.parametrize(
    "header",
    [
        pytest.param("city,customer", marks=pytest.mark.core),
        "customer,town",
        "customer",
        "customer,city,more",
        "customer,customer",
        "ben,Kiel",
    ],
    ids=["swapped", "renamed", "missing", "additional", "repeated", "no header"],
)
def test_a_header_that_disagrees_with_the_schema(spark: SparkSession, tmp_path: Path, header: str, mode: str) -> None:
    """The error says file, header and schema. By default Spark takes the columns by their places."""
    job = FileJob(spark, tmp_path, {**HEADED, "options": {"header": True}}, mode=mode)
    job.write("a.csv", "customer,city\nada,Bonn\n")
    wrong = job.write("b.csv", f"{header}\nKiel,ben\n")
    with pytest.raises(Exception, match=r"in/b\.csv") as caught:
        job.run()
    said = f"in/b.csv: its header does not name the columns; the header: {header}; the columns: customer, city. Mend"
    assert said in str(caught.value)
    wrong.write_text("customer,city\nben,Kiel\n")
    if mode == "BATCH":
        job.run()
        assert rows(job) == [("ada", "Bonn"), ("ben", "Kiel")]


@pytest.mark.parametrize("header", ["customer,city", "Customer,CITY", '"customer","city"', "\ufeffcustomer,city"])
def test_a_header_that_agrees(spark: SparkSession, tmp_path: Path, header: str) -> None:
    job = FileJob(spark, tmp_path, {**HEADED, "options": {"header": "TRUE"}})
    job.write("a.csv", f"{header}\nada,Bonn\n")
    job.write("empty.csv", "")
    job.write("header alone.csv", f"{header}\n")
    job.run()
    assert rows(job) == [("ada", "Bonn")]


@pytest.mark.parametrize("option", ["enforceSchema", "ENFORCESCHEMA"])
def test_who_wants_the_places_says_so(spark: SparkSession, tmp_path: Path, option: str) -> None:
    job = FileJob(spark, tmp_path, {**HEADED, "options": {"header": True, option: True}})
    job.write("a.csv", "x,y\nada,Bonn\n")
    job.run()
    assert rows(job) == [("ada", "Bonn")]


@pytest.mark.parametrize("more", [{}, {"multiLine": True}, {"sep": ";", "comment": "#"}])
def test_with_tolerance_too(spark: SparkSession, tmp_path: Path, more: dict[str, Any]) -> None:
    """A whole file is in question: that is no dead letter."""
    sep = more.get("sep", ",")
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "a.csv"
    file.write_text(f"city{sep}customer\nKiel{sep}ben\n")
    with pytest.raises(Exception, match=r"CSV header|its header does not name"):
        tolerant(spark, tmp_path, {"header": True, **more}).collect()
    file.write_text(f"customer{sep}city\nben{sep}Kiel\n")
    (row,) = tolerant(spark, tmp_path, {"header": True, **more}).collect()
    assert (row.customer, row.city) == ("ben", "Kiel")


def tolerant(spark: SparkSession, folder: Path, options: dict[str, Any]) -> DataFrame:
    """Return the rows of the source in a BATCH job with dead letters."""
    state, run = str(folder / "state"), RunValues("r1")
    job = JobContext(pipeline="p", job="a", mode=Mode.BATCH, storage=state, folder=folder, run=run)
    given = {"path": "in", "schema": HEADED["schema"], "options": options}
    frame = CsvSource(CsvSource.parse(given, folder)).load_tolerant(spark, job)
    assert frame is not None
    return frame
