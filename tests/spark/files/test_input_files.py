"""What a source of files reads: each file once, under names of any kind, and nothing that its path does not name."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from jobpipe.errors import ConfigError
from jobpipe.pipelines.sources.input_files import Input, InputFiles
from tests.spark.files.file_jobs import CSV, JSON, FileJob

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

DAY = 86400.0
TEXT = {"type": "text", "path": "in"}
ODD_NAMES = ("orders [2026]", "a{b,c}", "*", "back\\slash", "shop?", "[!a]", "x[", "50% {", "a b+c#d")


def set_time(path: Path, days: float) -> None:
    """Set a file's time of change, counted from now."""
    moment = time.time() + days * DAY
    os.utime(path, (moment, moment))


# -- files by their times ----------------------------------------------------------------------------------------------


@pytest.mark.core
def test_a_file_with_an_old_time_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """As ``cp -p``, ``rsync -a`` and ``unzip`` bring it; by default Spark leaves it out without a word."""
    job = FileJob(spark, tmp_path)
    job.write("new.csv", "1,ada\n")
    job.run()
    set_time(job.write("late.csv", "2,ben\n"), -9)
    set_time(job.write("later.csv", "3,cleo\n"), -20 * 365)
    job.run()
    assert job.ids() == [1, 2, 3]


def test_files_after_one_of_the_future_are_read(spark: SparkSession, tmp_path: Path) -> None:
    job = FileJob(spark, tmp_path)
    set_time(job.write("first.csv", "1,ada\n"), 100 * 365)
    job.run()
    job.write("second.csv", "2,ben\n")
    job.run()
    assert job.ids() == [1, 2]


def test_a_restart_with_few_files_of_each_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    """The newest file comes first among those of a week's stop."""
    job = FileJob(spark, tmp_path, {**CSV, "options": {"maxFilesPerTrigger": 1, "latestFirst": "true"}})
    job.write("0.csv", "0,ada\n")
    job.run()
    for number in range(1, 4):
        set_time(job.write(f"{number}.csv", f"{number},ada\n"), -10 * number)
    job.run()
    assert job.ids() == [0, 1, 2, 3]


@pytest.mark.parametrize("key", ["maxFileAge", "MAXFILEAGE"])
def test_who_wants_an_age_says_so(spark: SparkSession, tmp_path: Path, key: str) -> None:
    job = FileJob(spark, tmp_path, {**CSV, "options": {key: "1d"}})
    job.write("new.csv", "1,ada\n")
    job.run()
    set_time(job.write("late.csv", "2,ben\n"), -9)
    job.run()
    assert job.ids() == [1]


@pytest.mark.parametrize("type_", ["spark", "text"])
def test_old_files_of_other_types(spark: SparkSession, tmp_path: Path, type_: str) -> None:
    source: dict[str, Any] = {**CSV, "type": "spark", "format": "CSV"} if type_ == "spark" else TEXT
    job = FileJob(spark, tmp_path, source)
    job.write("new.csv", "1,ada\n")
    job.run()
    set_time(job.write("late.csv", "2,ben\n"), -9)
    job.run()
    rows = spark.read.schema("id BIGINT, name STRING, value STRING").json(str(tmp_path / "out")).collect()
    assert sorted((row.id or int(row.value[0])) for row in rows) == [1, 2]


# -- names that Hadoop takes for patterns ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [pytest.param(ODD_NAMES[0], marks=pytest.mark.core), *ODD_NAMES[1:]])
def test_the_folder_of_the_file_is_a_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Its own files are read once, and none of the folders that it would match."""
    for other in ("orders 2", "ab", "ac", "foreign", "backslash", "shop1", "b", "50% "):
        FileJob(spark, tmp_path / other).write("a.csv", "9,foreign\n")
    job = FileJob(spark, tmp_path / name)
    job.write("a.csv", "1,ada\n")
    job.run()
    for number in (2, 3, 4):
        job.write(f"{number}.csv", f"{number},ben\n")
    job.run()
    assert job.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
@pytest.mark.parametrize("path", ["${var.data}", "${var.data}/in", "data*/${var.data}"])
def test_a_parameter_is_a_name_and_what_the_path_says_a_pattern(
    spark: SparkSession, tmp_path: Path, path: str, mode: str
) -> None:
    for folder in ("a [1]", "a 1", "a [1]/in", "a 1/in", "data1/a [1]", "data1/a 1"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "x.csv").write_text(f"{1 if '[' in folder else 9},ada\n")
    job = FileJob(spark, tmp_path, {**CSV, "path": path}, parameters={"data": "a [1]"}, mode=mode)
    job.run()
    assert job.ids() == [1]


def test_a_pattern_is_one(spark: SparkSession, tmp_path: Path) -> None:
    job = FileJob(spark, tmp_path / "[x]", {**CSV, "path": "in/{a,b}*"})
    for number, name in enumerate(("a1.csv", "b1.csv", "c1.csv")):
        job.write(name, f"{number},ada\n")
    job.run()
    assert job.ids() == [0, 1]


@pytest.mark.parametrize("kind", ["csv", "binaryFile", "spark"])
def test_sources_of_each_kind(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Those with columns of their own and those by Spark's name, too."""
    more: dict[str, Any] = {"csv": {**CSV}, "binaryFile": {"path": "in"}, "spark": {**CSV, "format": "csv"}}[kind]
    job = FileJob(spark, tmp_path / "[x]", {**more, "type": kind}, {"type": "json", "path": "out"})
    job.write("1", "1,ada\n")
    job.run()
    assert spark.read.json(str(tmp_path / "\\[x\\]" / "out")).count() == 1


def test_a_folder_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    """Its name escaped would be a pattern that matches nothing."""
    job = FileJob(spark, tmp_path / "[x]", {**CSV, "path": "nowhere"})
    with pytest.raises(ConfigError, match=r"\[x\]/nowhere does not exist"):
        job.run()
    (tmp_path / "[x]" / "nowhere").mkdir()
    (tmp_path / "[x]" / "nowhere" / "a.csv").write_text("1,ada\n")
    job.run()
    assert job.ids() == [1]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_run_writes_where_its_path_says(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """The files of a run are listed when they are put in place."""
    FileJob(spark, tmp_path / "x1")
    job = FileJob(spark, tmp_path / "x[1]", sink={**JSON, "mode": mode}, mode="BATCH")
    job.write("a.csv", "1,ada\n")
    job.run()
    job.run(run="r2")
    assert job.ids() == ([1, 1] if mode == "append" else [1])
    assert not (tmp_path / "x1" / "out").exists()


@pytest.mark.parametrize("options", [{}, {"maxFilesPerTrigger": "7"}, {"recursiveFileLookup": "true"}])
@pytest.mark.parametrize("path", ["in", "i*"])
def test_many_files_in_such_a_folder(spark: SparkSession, tmp_path: Path, path: str, options: dict[str, str]) -> None:
    """Spark would read each of them three times."""
    job = FileJob(spark, tmp_path / "[x]", {**CSV, "path": path, "options": options})
    for number in range(3):
        job.write(f"{number}.csv", f"{number},ada\n")
    job.run()
    assert job.ids() == [0, 1, 2]


def test_what_cannot_be_read_in_such_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    job = FileJob(spark, tmp_path / "[x]", {**CSV, "options": {"maxBytesPerTrigger": "10000"}})
    job.write("a.csv", "1,ada\n")
    with pytest.raises(ConfigError, match="without maxBytesPerTrigger; rename the folder"):
        job.run()
    job = FileJob(spark, tmp_path / "[y]")
    job.write("day=1/a.csv", "1,ada\n")
    with pytest.raises(ConfigError, match="cannot read its partitions; rename the folder"):
        job.run()


@pytest.mark.parametrize("name", [pytest.param("a[1].csv", marks=pytest.mark.core), "a{1}", "a*", "what?.csv", "a\\b"])
def test_a_file_whose_name_is_a_pattern(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Spark would read it, and the others of its micro-batch, several times."""
    plain = FileJob(spark, tmp_path)
    plain.write("b%5B 50%.csv", "1,ada\n")
    plain.write("ä (1)+#.csv", "2,ben\n")
    plain.run()
    assert plain.ids() == [1, 2]
    plain.write(name, "3,cleo\n")
    plain.write("z.csv", "4,dora\n")
    with pytest.raises(ConfigError, match=r"name of file .*recursiveFileLookup: true"):
        plain.run()
    begin_a_batch(plain)  # while the stream runs, it is found in the rows
    assert plain.ids() == [1, 2]
    plain.source = {**CSV, "options": {"recursiveFileLookup": "true"}}
    plain.run()
    assert plain.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize("renamed", [False, True])
def test_after_such_a_file_has_failed(spark: SparkSession, tmp_path: Path, renamed: bool) -> None:
    """Its micro-batch is in the checkpoint, with all its files: only the remedy of the error reads each once."""
    job = FileJob(spark, tmp_path)
    odd = [job.write("a[1].csv", "1,ada\n"), job.write("b.csv", "2,ben\n"), job.write("c.csv", "3,cleo\n")][0]
    begin_a_batch(job)
    with pytest.raises(ConfigError, match=r"name of file .*a%5B1%5D.csv has one of.*recursiveFileLookup: true"):
        job.run()
    if renamed:
        odd.rename(odd.with_name("a.csv"))
    with pytest.raises(ConfigError, match=r"name of file .*a%5B1%5D.csv"):
        FileJob(spark, tmp_path, {**CSV, "options": {"maxFilesPerTrigger": 1}}).run()
    job.source = {**CSV, "options": {"recursiveFileLookup": "true"}}
    if renamed:
        odd.with_name("a.csv").rename(odd)
    job.run()
    assert job.ids() == [1, 2, 3]


def begin_a_batch(job: FileJob) -> None:
    """Let a micro-batch of all files begin and fail, as one that was begun before such a file was known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            InputFiles, "_each_file_once", lambda *_, **__: Input(str(job.folder / "in"), guarded="file_name")
        )
        with pytest.raises(StreamingQueryException, match="name of file"):
            job.run()


def test_such_a_file_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    """No row can tell of it; it is found before the first one."""
    job = FileJob(spark, tmp_path)
    for name, text in (("a[1].csv", ""), ("b.csv", "2,ben\n"), ("c (1).csv", "3,cleo\n")):
        job.write(name, text)
    with pytest.raises(ConfigError, match=r"name of file .*a\[1\].csv has one of"):
        job.run()
    (tmp_path / "in" / "a[1].csv").unlink()
    job.run()
    assert job.ids() == [2, 3]


@pytest.mark.parametrize(
    ("odd", "options"),
    [
        ("old [2025]/b.csv", {}),
        ("_tmp[1].csv", {}),
        (".tmp[1].csv", {}),
        ("notes[1].txt", {"pathGlobFilter": "*.csv"}),
        ("b (1), 50%.csv", {"pathGlobFilter": "a*"}),
    ],
)
def test_such_names_of_what_is_not_read(spark: SparkSession, tmp_path: Path, odd: str, options: dict[str, str]) -> None:
    job = FileJob(spark, tmp_path, {**CSV, "options": options})
    job.write("a.csv", "1,ada\n")
    job.write(odd, "2,ben\n")
    job.run()
    assert job.ids() == [1]


def test_such_files_one_by_one(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads them once, if a micro-batch has one file from the first on."""
    job = FileJob(spark, tmp_path, {**CSV, "options": {"maxFilesPerTrigger": "1"}})
    for number in range(3):
        job.write(f"[{number}].csv", f"{number},ada\n")
    job.run()
    assert job.ids() == [0, 1, 2]


def test_a_repeated_micro_batch_of_such_files_in_partitions(spark: SparkSession, tmp_path: Path) -> None:
    job = FileJob(spark, tmp_path)
    for number in range(3):
        job.write(f"day=1/[{number}].csv", f"{number},ada\n")
    job.run()
    for entry in (tmp_path / "state" / "commits").iterdir():
        entry.unlink()
    job.run()
    assert job.ids() == [0, 1, 2]


@pytest.mark.parametrize("path", ["in", "in/*"])
def test_such_files_in_partitions(spark: SparkSession, tmp_path: Path, path: str) -> None:
    """There Spark looks for a file's name."""
    job = FileJob(spark, tmp_path, {**CSV, "path": path})
    for number in range(3):
        job.write(f"day=1/[{number}].csv", f"{number},ada\n")
    if path == "in":
        job.run()
        assert job.ids() == [0, 1, 2]
    else:
        with pytest.raises(ConfigError, match="name of file"):
            job.run()


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
@pytest.mark.parametrize("name", ["10:30", "in/day=10:30", "in/10:30"])
def test_names_with_colons(spark: SparkSession, tmp_path: Path, name: str, mode: str) -> None:
    """Hadoop's patterns cannot take them."""
    job = FileJob(spark, tmp_path / "10:30" if name == "10:30" else tmp_path, mode=mode)
    job.write("day=10:30/a.csv" if "=" in name else "a.csv", "1,ada\n")
    if name == "in/10:30":
        job.write("10:30/b.csv", "2,ben\n")
    job.run()
    assert job.ids() == [1]


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_files_next_to_partitions(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """Spark would pass over them."""
    job = FileJob(spark, tmp_path, mode=mode)
    job.write("day=1/a.csv", "1,ada\n")
    job.write("b.csv", "2,ben\n")
    with pytest.raises(ConfigError, match=r"in/b.csv lies next to partitions.*recursiveFileLookup: true"):
        job.run()
    job.source = {**CSV, "options": {"recursiveFileLookup": "true"}}
    job.run()
    assert job.ids() == [1, 2]


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_files_next_to_partitions_that_a_pattern_matches(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    job = FileJob(spark, tmp_path, {**CSV, "path": "in/*"}, mode=mode)
    job.write("x/day=1/a.csv", "1,ada\n")
    beside = job.write("x/b.csv", "2,ben\n")
    with pytest.raises(ConfigError, match=r"in/x/b.csv lies next to partitions"):
        job.run()
    beside.unlink()
    if mode == "STREAMING":
        with pytest.raises(ConfigError, match=r"in/x has partitions.*name the folder"):
            job.run()
        job.source = {**CSV, "path": "in/x"}
    job.run()
    assert job.ids() == [1]


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
@pytest.mark.parametrize(
    ("part", "file", "options", "ids"),
    [
        ("day=1/a.csv", "README.md", {"pathGlobFilter": "*.csv"}, [1]),
        ("day=1/a.csv", "_SUCCESS", {}, [1]),
        ("day=1/_SUCCESS", "b.csv", {}, [2]),
    ],
)
def test_what_may_lie_next_to_partitions(
    spark: SparkSession, tmp_path: Path, part: str, file: str, options: dict[str, str], ids: list[int], mode: str
) -> None:
    job = FileJob(spark, tmp_path, {**CSV, "options": options}, mode=mode)
    job.write(part, "1,ada\n")
    job.write(file, "2,ben\n")
    job.run()
    assert job.ids() == ids


def test_a_pattern_of_a_folder_and_one_in_it(spark: SparkSession, tmp_path: Path) -> None:
    """Each has its own files; with those of sub-folders they would come twice."""
    job = FileJob(spark, tmp_path, {**CSV, "path": "{in,in/archive}"})
    job.write("a.csv", "1,ada\n")
    job.write("archive/b.csv", "2,ben\n")
    job.run()
    assert job.ids() == [1, 2]
    recursive = {**CSV, "path": "{in,in/archive}", "options": {"recursiveFileLookup": "true"}}
    with pytest.raises(ConfigError, match="in/archive twice"):
        FileJob(spark, tmp_path, recursive).run()


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
@pytest.mark.parametrize("path", ["{in/a*,in/*.csv}", "{in,in/a.csv}", "{in,in/*}"])
def test_a_pattern_that_matches_a_file_twice(spark: SparkSession, tmp_path: Path, path: str, mode: str) -> None:
    job = FileJob(spark, tmp_path, {**CSV, "path": path}, mode=mode)
    job.write("a.csv", "1,ada\n")
    job.write("b.csv", "2,ben\n")
    with pytest.raises(ConfigError, match=r"matches .*in/[ab].csv twice"):
        job.run()
    job.source = {**CSV, "path": "{in/a*,in/b*}"}
    job.run()
    assert job.ids() == [1, 2]


# -- another stream's files --------------------------------------------------------------------------------------------


def write_stream(spark: SparkSession, folder: Path) -> FileJob:
    """Let a stream write one row into ``out``, and leave a file there that its log does not have."""
    writer = FileJob(spark, folder)
    writer.write("a.csv", "1,ada\n")
    writer.run()
    (folder / "out" / "left-by-a-failed-batch.json").write_text('{"id": 8, "name": "x"}\n')
    return writer


@pytest.mark.parametrize("name", ["plain", "orders [2026]"])
@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_of_a_stream_s_folder_only_the_files_of_its_log_are_read(
    spark: SparkSession, tmp_path: Path, name: str, mode: str
) -> None:
    """A stream of Spark's finds no log in a folder whose name is a pattern."""
    folder = write_stream(spark, tmp_path / name).folder
    source = {"type": "json", "path": "out", "schema": CSV["schema"]}
    reader = FileJob(spark, folder, source, {"type": "json", "path": "read"}, mode=mode, name="read")
    if mode == "STREAMING" and name != "plain":
        with pytest.raises(ConfigError, match=r"is written by a stream.*rename the folder, or read it in a BATCH job"):
            reader.run("state of the reader")
        return
    reader.run("state of the reader")
    assert reader.ids("read") == [1]


@pytest.mark.parametrize("path", ["ou*", "out/*.json", "out/day=*"])
def test_a_pattern_reads_nothing_of_such_a_folder(spark: SparkSession, tmp_path: Path, path: str) -> None:
    folder = write_stream(spark, tmp_path).folder
    (folder / "out" / "day=1").mkdir()
    source = {"type": "json", "path": path, "schema": CSV["schema"]}
    reader = FileJob(spark, folder, source, {"type": "json", "path": "read"}, name="read")
    with pytest.raises(ConfigError, match=r"out, and its log says which files there are whole.*name the folder"):
        reader.run("state of the reader")


def test_a_copied_folder_names_the_files_of_the_old_one(spark: SparkSession, tmp_path: Path) -> None:
    folder = write_stream(spark, tmp_path).folder
    (folder / "out").rename(folder / "moved")
    source = {"type": "json", "path": "moved", "schema": CSV["schema"]}
    reader = FileJob(spark, folder, source, {"type": "json", "path": "read"}, name="read")
    with pytest.raises(ConfigError, match=r"moved was copied or moved.*names file.*/out/.*delete"):
        reader.run("state of the reader")
    (folder / "out").symlink_to(folder / "moved")  # its files are found, but not under the name of the reader's path
    with pytest.raises(ConfigError, match="another name of a folder"):
        reader.run("state of the reader")
    FileJob(spark, folder, {**source, "path": "out"}, reader.sink, name="read").run("state of the reader")
    assert reader.ids("read") == [1]


# -- what is left out --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["ignoreCorruptFiles", "ignoreMissingFiles"])
def test_no_setting_leaves_out_files(spark: SparkSession, tmp_path: Path, key: str) -> None:
    job = FileJob(spark, tmp_path)
    job.write("a.csv", "1,ada\n")
    spark.conf.set(f"spark.sql.files.{key}", "true")
    try:
        with pytest.raises(ConfigError, match=f"spark.sql.files.{key} is true.*options: {{{key}: true}}"):
            job.run()
        FileJob(spark, tmp_path, {**CSV, "options": {key: "true"}}).run()
    finally:
        spark.conf.unset(f"spark.sql.files.{key}")
    assert job.ids() == [1]


@pytest.mark.parametrize(
    ("file", "options", "told", "ids"),
    [
        ("old/b.csv", {}, True, [1]),
        ("old/b.csv", {"recursiveFileLookup": "true"}, False, [1, 2]),
        ("old/b.csv", {"recursiveFileLookup": "false"}, False, [1]),
        ("_old/b.csv", {}, False, [1]),
        (".b.csv", {}, False, [1]),
    ],
)
def test_sub_folders_are_not_read_without_a_word(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    file: str,
    options: dict[str, str],
    told: bool,
    ids: list[int],
) -> None:
    job = FileJob(spark, tmp_path, {**CSV, "options": options})
    job.write("a.csv", "1,ada\n")
    job.write(file, "2,ben\n")
    with caplog.at_level(logging.WARNING, "jobpipe"):
        job.run()
    assert job.ids() == ids
    assert [f"in/{file} is not read" in record.getMessage() for record in caplog.records] == ([True] if told else [])


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_partitions_are_read(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str) -> None:
    job = FileJob(spark, tmp_path, mode=mode)
    job.write("day=1/a.csv", "1,ada\n")
    job.run()
    assert (job.ids(), caplog.records) == ([1], [])


# -- what a stream of files is not, as docs/files.md says -------------------------------------------------------------


def test_a_file_that_changes_is_not_read_again(spark: SparkSession, tmp_path: Path) -> None:
    job = FileJob(spark, tmp_path)
    file = job.write("a.csv", "1,ada\n")
    job.run()
    file.write_text("1,ada\n2,ben\n")
    set_time(file, 1)
    job.write("b.csv", "3,cleo\n")
    job.run()
    assert job.ids() == [1, 3]


def test_a_file_with_another_name_is_read_again(spark: SparkSession, tmp_path: Path) -> None:
    job = FileJob(spark, tmp_path)
    file = job.write("a.csv", "1,ada\n")
    job.run()
    file.rename(file.with_name("b.csv"))
    job.run()
    assert job.ids() == [1, 1]


@pytest.mark.parametrize("name", ["_a.csv", ".a.csv", "a.csv._COPYING_"])
def test_hidden_files_are_not_read_until_they_are_renamed(spark: SparkSession, tmp_path: Path, name: str) -> None:
    job = FileJob(spark, tmp_path)
    file = job.write(name, "1,ada\n")
    job.write("b.csv", "2,ben\n")
    job.run()
    assert job.ids() == [2]
    file.rename(file.with_name("a.csv"))
    job.run()
    assert job.ids() == [1, 2]


@pytest.mark.parametrize(
    ("options", "ids"), [({}, [1, 2]), ({"fileNameOnly": "true"}, [1]), ({"pathGlobFilter": "*.txt"}, [])]
)
def test_options_that_leave_out_files(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], ids: list[int]
) -> None:
    """Who gives them says so."""
    job = FileJob(spark, tmp_path, {**CSV, "path": "in/*/", "options": options})
    job.write("x/a.csv", "1,ada\n")
    job.run()
    job.write("y/a.csv", "2,ben\n")
    job.run()
    assert (job.ids() if (tmp_path / "out").exists() else []) == ids


def test_a_partition_s_value_counts(spark: SparkSession, tmp_path: Path) -> None:
    """Not that of the file, if it has a column of this name."""
    job = FileJob(spark, tmp_path, {"type": "json", "path": "in", "schema": "id BIGINT, day INT"})
    job.write("day=7/a.json", '{"id": 1, "day": 8}\n')
    job.run()
    (row,) = spark.read.json(str(tmp_path / "out")).collect()
    assert (row.id, row.day) == (1, 7)


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_a_pattern_that_matches_nothing(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """A stream waits for files; who misspelt it is told."""
    job = FileJob(spark, tmp_path, {**CSV, "path": "in/*.tsv"}, mode=mode)
    job.write("a.csv", "1,ada\n")
    if mode == "BATCH":
        with pytest.raises(AnalysisException, match="does not exist"):
            job.run()
        return
    with caplog.at_level(logging.WARNING, "jobpipe"):
        job.run()
    assert ["in/*.tsv matches nothing" in record.getMessage() for record in caplog.records] == [True]
