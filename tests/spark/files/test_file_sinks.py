"""Spark's file sink: it leaves out micro-batches that another query has written, and its readers see only its files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file_formats.file_sink_log import FileLog, Writer
from tests.spark.files.file_jobs import CSV, JSON, FileJob

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NOTE = "out/_spark_metadata/_jobpipe_query"
LOST = r"Spark would leave out the micro-batches of this one"


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> FileJob:
    """A stream that has written two rows."""
    job = FileJob(spark, tmp_path)
    job.write("a.csv", "1,ada\n2,ben\n")
    job.run()
    return job


@pytest.mark.core
def test_another_checkpoint_is_refused_before_the_first_row(job: FileJob) -> None:
    """Spark would write none of the micro-batches whose numbers are in the folder's log, and say nothing."""
    shutil.rmtree(job.folder / "state")
    job.write("b.csv", "3,cleo\n")
    with pytest.raises(ConfigError, match=rf"of job copy.copy with checkpoint .*/state, has written to .*/out.*{LOST}"):
        job.run()
    assert not (job.folder / "state").exists()
    with pytest.raises(ConfigError, match=LOST):
        job.run("another state")


@pytest.mark.parametrize("remedy", ["path", "checkpoint", "delete"])
def test_each_remedy_of_the_error(job: FileJob, remedy: str) -> None:
    job.write("b.csv", "3,cleo\n")
    with pytest.raises(ConfigError, match="give another path, or the checkpoint of that query, or delete the folder"):
        job.run("another state")
    if remedy == "path":
        job.sink = {**JSON, "path": "out2"}
        job.run("another state")
        assert job.ids("out2") == [1, 2, 3]
    elif remedy == "checkpoint":
        job.run()
        assert job.ids() == [1, 2, 3]
    else:
        shutil.rmtree(job.folder / "out")
        job.run("another state")
        assert job.ids() == [1, 2, 3]


def test_a_query_goes_on(job: FileJob) -> None:
    """Also where its checkpoint has moved, and where an older version of ours has written."""
    job.write("b.csv", "3,cleo\n")
    job.run()
    (job.folder / "state").rename(job.folder / "moved")
    job.write("c.csv", "4,dora\n")
    job.run("moved")
    assert json.loads((job.folder / NOTE).read_text())["storage"] == str(job.folder / "moved")
    (job.folder / NOTE).unlink()
    job.write("d.csv", "5,ed\n")
    job.run("moved")
    assert job.ids() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("checksum", ["right", "wrong"])
@pytest.mark.parametrize("note", [None, "", "{}", "[1", '{"job": "copy.copy", "storage": "x", "query": ""}'])
def test_a_note_that_says_nothing(job: FileJob, note: str | None, checksum: str) -> None:
    """As of a folder that an older version has written, or if the job ended before it had said which query it is."""
    (job.folder / NOTE).unlink() if note is None else (job.folder / NOTE).write_text(note)
    if checksum == "right":
        (job.folder / NOTE).with_name("._jobpipe_query.crc").unlink()
    job.write("b.csv", "3,cleo\n")
    with pytest.raises(ConfigError, match=LOST):
        job.run("another state")
    job.run()
    assert job.ids() == [1, 2, 3]


def test_another_job_of_as_many_micro_batches(job: FileJob) -> None:
    """Its numbers go on from those of the folder, and yet the next of either would be left out."""
    other = FileJob(job.spark, job.folder, sink={**JSON, "path": "out2"}, name="other")
    other.run("state of the other")
    other.sink = JSON
    with pytest.raises(ConfigError, match=r"of job copy.copy with checkpoint"):
        other.run("state of the other")


def test_a_folder_that_was_copied_with_its_log(job: FileJob) -> None:
    """Readers in Spark would read the files of the first folder, and not these."""
    shutil.copytree(job.folder / "out", job.folder / "copied")
    job.sink = {**JSON, "path": "copied"}
    job.write("b.csv", "3,cleo\n")
    with pytest.raises(ConfigError, match=r"copied was copied or moved.*delete"):
        job.run()
    shutil.rmtree(job.folder / "copied")
    job.run()
    assert job.ids("copied") == [3]


@pytest.mark.parametrize("name", ["x.json", "day=1/x.json", "_day=1/x.json"])
def test_files_that_were_there_before(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Readers in Spark would not see them any more."""
    job = FileJob(spark, tmp_path)
    job.write("a.csv", "1,ada\n")
    before = tmp_path / "out" / name
    before.parent.mkdir(parents=True)
    before.write_text('{"id": 9}\n')
    with pytest.raises(ConfigError, match=r"holds files that no stream.*x.json.*give another path"):
        job.run()
    before.rename(before.with_name("_SUCCESS"))
    job.run()
    assert job.ids() == [1]


def test_a_folder_that_another_has_claimed(spark: SparkSession, tmp_path: Path) -> None:
    """Two jobs that begin at the same time: one of them says it first."""
    log = FileLog(spark, str(tmp_path / "out"))
    log.claim(Writer("other.job", str(tmp_path / "state of the other")))
    job = FileJob(spark, tmp_path)
    job.write("a.csv", "1,ada\n")
    with pytest.raises(ConfigError, match=r"of job other.job with checkpoint .* has begun to write to"):
        job.run()
    shutil.rmtree(tmp_path / "out")
    log.claim(Writer("copy.copy", str(tmp_path / "another state")))
    with pytest.raises(ConfigError, match=r"of job copy.copy with checkpoint .*/another state, has begun to write to"):
        job.run()
    shutil.rmtree(tmp_path / "out")
    log.claim(Writer("copy.copy", str(tmp_path / "state")))  # by an attempt that ended before its query began
    job.run()
    assert job.ids() == [1]


def test_a_query_that_cannot_start_leaves_no_log(spark: SparkSession, tmp_path: Path) -> None:
    """Readers in Spark would go by it, and another query would be refused."""
    job = FileJob(spark, tmp_path, sink={**JSON, "partition-by": ["nope"]})
    job.write("a.csv", "1,ada\n")
    with pytest.raises(AnalysisException, match="nope"):
        job.run()
    assert not (tmp_path / "out" / "_spark_metadata").exists()
    FileJob(spark, tmp_path).run("another state")
    assert job.ids() == [1]


def test_an_attempt_that_was_killed_in_its_first_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    """It has left files that no log names; the next attempt goes on."""
    job = FileJob(spark, tmp_path)
    job.write("a.csv", "1,ada\n")
    job.run()
    for entry in ("out/_spark_metadata/0", "out/_spark_metadata/.0.crc", "state/commits/0", "state/commits/.0.crc"):
        (tmp_path / entry).unlink()
    job.run()
    assert [row.id for row in spark.read.json(str(tmp_path / "out")).collect()] == [1]


def test_a_checkpoint_that_is_older_than_the_folder(job: FileJob) -> None:
    """As from a backup: it is of the same query, and yet its next micro-batch would be left out."""
    shutil.copytree(job.folder / "state", job.folder / "backup")
    job.write("b.csv", "3,cleo\n")
    job.run()
    job.write("c.csv", "4,dora\n")
    with pytest.raises(ConfigError, match=r"micro-batches up to 1, and checkpoint .*/backup knows of 1.*is it older"):
        job.run("backup")
    job.run()
    assert job.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize("type_", ["json", "PARQUET", "org.apache.spark.sql.json"])
def test_sinks_of_each_kind(spark: SparkSession, tmp_path: Path, type_: str) -> None:
    sink = {"type": "json", "path": "out"} if type_ == "json" else {"type": "spark", "format": type_, "path": "out"}
    job = FileJob(spark, tmp_path, sink=sink)
    job.write("a.csv", "1,ada\n")
    job.run()
    job.write("b.csv", "2,ben\n")
    with pytest.raises(ConfigError, match=LOST):
        job.run("another state")
    job.run()
    assert spark.read.format(sink.get("format", type_)).load(str(tmp_path / "out")).count() == 2


@pytest.mark.parametrize("type_", ["json", "spark"])
@pytest.mark.parametrize(
    "options", [{"mode": "append"}, {"mode": "overwrite", "options": {"partitionOverwriteMode": "dynamic"}}]
)
def test_a_run_adds_nothing_to_a_stream_s_files(job: FileJob, options: dict[str, object], type_: str) -> None:
    """Readers in Spark would not see its files."""
    sink = {**JSON, "partition-by": ["name"], **options}
    if type_ == "spark":
        sink = {**sink, "type": "spark", "format": "json", "mode": "append"}
    run = FileJob(job.spark, job.folder, CSV, sink, mode="BATCH", name="run")
    with pytest.raises(ConfigError, match="readers in Spark would not see the files of this job"):
        run.run()
    run.sink = {**sink, "path": "out2"}
    run.run()
    assert run.ids("out2") == [1, 2]


def test_a_run_takes_the_place_of_a_stream_s_files(job: FileJob) -> None:
    """The log goes with them; the stream itself may not go on there."""
    run = FileJob(job.spark, job.folder, CSV, {**JSON, "mode": "overwrite"}, mode="BATCH", name="run")
    run.run()
    assert sorted(row.id for row in job.spark.read.json(str(job.folder / "out")).collect()) == [1, 2]
    with pytest.raises(ConfigError, match="holds files that no stream"):
        job.run()


# -- what is in the files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_csv_keeps_blanks(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """By default Spark cuts them off where it writes."""
    source = {"type": "json", "path": "in", "schema": CSV["schema"]}
    job = FileJob(spark, tmp_path, source, {"type": "csv", "path": "out"}, mode=mode)
    job.write("a.json", json.dumps({"id": 1, "name": "\t a "}))
    job.run()
    assert [row[1] for row in spark.read.csv(str(tmp_path / "out")).collect()] == ["\t a "]
    job = FileJob(
        spark, tmp_path, source, {"type": "csv", "path": "out2", "options": {"IGNORELEADINGWHITESPACE": "true"}}
    )
    job.run("state2")
    assert [row[1] for row in spark.read.csv(str(tmp_path / "out2")).collect()] == ["a "]


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
@pytest.mark.parametrize("value", [None, "a\nb", "a\rb"])
def test_a_text_is_a_line(spark: SparkSession, tmp_path: Path, value: str | None, mode: str) -> None:
    source = {"type": "json", "path": "in", "schema": "name STRING"}
    job = FileJob(spark, tmp_path, source, {"type": "text", "path": "out"}, mode=mode)
    file = job.write("a.json", json.dumps({"name": value}))
    with pytest.raises(Exception, match=r"a sink of type text writes each text as a line, and this one is null"):
        job.run()
    file.write_text(json.dumps({"name": "a b"}))
    job.run()
    assert [row.value for row in spark.read.text(str(tmp_path / "out")).collect()] == ["a b"]


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
@pytest.mark.parametrize("line_sep", [None, "|"])
def test_a_text_next_to_partitions(spark: SparkSession, tmp_path: Path, line_sep: str | None, mode: str) -> None:
    """The column of the text is looked at, and what ends its lines."""
    source = {"type": "json", "path": "in", "schema": "day INT, name STRING"}
    options = {} if line_sep is None else {"lineSep": line_sep}
    sink = {"type": "text", "path": "out", "partition-by": ["day"], "options": options}
    job = FileJob(spark, tmp_path, source, sink, mode=mode)
    end = line_sep or "\n"
    file = job.write("a.json", json.dumps({"day": 1, "name": f"a{end}b"}))
    with pytest.raises(Exception, match="a sink of type text"):
        job.run()
    text = "a b" if line_sep is None else "a\nb"
    file.write_text(json.dumps({"name": text}))
    job.run()
    written = spark.read.option("lineSep", end).text(str(tmp_path / "out")).collect()
    assert [(row.value, row.day) for row in written] == [(text, None)]
