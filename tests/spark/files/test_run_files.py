"""The files of a BATCH run, when its attempts are killed at each step of putting them in place."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.sinks.format_sinks import ParquetSink
from jobpipe.pipelines.sinks.staged_files import StagedFiles

pytestmark = pytest.mark.spark

STEPS = ("_save", "_delete", "_rename", "_create")


class Killed(BaseException):
    """The attempt ends here."""


class Writer:
    """Runs that write a folder."""

    def __init__(self, spark: SparkSession, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.spark = spark
        self.folder = folder
        self._patch = patch

    def write(
        self,
        run: str,
        attempt: int,
        mode: str | None,
        rows: range,
        kill_at: int | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> int:
        """Write rows in two files, and two partitions; return how many steps it took."""
        steps = count()

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def step(*given: Any) -> Any:
                if next(steps) == kill_at:
                    raise Killed
                return function(*given)

            return step

        job = JobContext(
            pipeline="shop",
            job="copy",
            mode=Mode.BATCH,
            storage=str(self.folder / "state"),
            folder=self.folder,
            run=RunValues(run),
            attempt=attempt,
            check=check,
        )
        given = {"path": "out", "partition-by": ["odd"], "options": {}}
        sink = ParquetSink(ParquetSink.parse(given if mode is None else {**given, "mode": mode}, self.folder))
        frame = self.spark.range(rows.start, rows.stop, 1, 2).selectExpr("id", "id % 2 AS odd")
        with self._patch.context() as patch:
            for name in STEPS:
                patch.setattr(StagedFiles, name, counted(getattr(StagedFiles, name)))
            sink.write(frame, 0, job)
        return next(steps)

    def rows(self) -> list[int]:
        """Return the rows; none if the folder is not there."""
        if not (self.folder / "out").exists():
            return []
        return sorted(row.id for row in self.spark.read.parquet(str(self.folder / "out")).collect())

    def clear(self) -> None:
        for path in (self.folder / "out", *self.folder.glob(".out*")):
            shutil.rmtree(path, ignore_errors=True)

    def hidden(self) -> list[str]:
        """Return what is left of attempts."""
        chosen = [path.name for path in (self.folder / "out" / "_jobpipe_runs").glob("*.attempt")]
        return chosen + [path.name for path in self.folder.iterdir() if path.name.startswith(".")]


def job_in(folder: Path, mode: Mode) -> JobContext:
    storage = str(folder / "state")
    return JobContext(pipeline="shop", job="copy", mode=mode, storage=storage, folder=folder, run=RunValues("r1"))


@pytest.fixture
def writer(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    return Writer(spark, tmp_path, monkeypatch)


@pytest.mark.parametrize(("mode", "kept"), [("append", True), ("overwrite", False), (None, None), ("ignore", None)])
def test_killed_at_each_step(writer: Writer, mode: str | None, kept: bool | None) -> None:
    """The rows are in place once, and whatever was there before is as the mode says; nothing is left beside it."""
    before: list[int] = []
    killed = 0
    for step in count():
        run, rows = f"r{step}", range(100 * (step + 1), 100 * (step + 1) + 10)
        if kept is None and step:
            writer.clear()
        try:
            writer.write(run, 1, mode, rows, kill_at=step)
        except Killed:
            killed += 1
            if kept is not True and before and (writer.folder / "out").exists():
                assert writer.rows() in (before, [*rows])
            writer.write(run, 2, mode, rows)
        before = [*before, *rows] if kept else [*rows]
        assert writer.rows() == before, f"killed at step {step}"
        assert writer.hidden() == []
        if killed <= step:
            break
    assert killed >= 3


OLD, KILLED, NEXT = [1, 2], [11, 12], [21, 22]


@pytest.mark.parametrize(
    ("mode", "following", "none", "whole"),
    [
        ("append", "append", OLD + NEXT, OLD + KILLED + NEXT),
        ("append", "error", OLD, OLD + KILLED),
        ("overwrite", "append", OLD + NEXT, KILLED + NEXT),
        ("overwrite", "overwrite", NEXT, NEXT),
        ("overwrite", "ignore", OLD, KILLED),
        ("error", "error", NEXT, KILLED),
        ("ignore", "append", NEXT, KILLED + NEXT),
    ],
)
def test_another_run_follows_the_killed_one(
    writer: Writer, mode: str, following: str, none: list[int], whole: list[int]
) -> None:
    """The rows of the killed one are there as a whole or not at all, those before it as the modes say."""
    found = []
    for step in count():
        writer.clear()
        if mode in ("append", "overwrite"):
            writer.write("before", 1, None, range(1, 3))
        ended = True
        try:
            writer.write("killed", 1, mode, range(11, 13), kill_at=step)
        except Killed:
            ended = False
        with suppress(ConfigError):  # the folder is there already
            writer.write("next", 1, following, range(21, 23))
        found.append(writer.rows())
        assert writer.hidden() == []
        if ended:
            break
    assert len(found) > 3
    assert (found[0], found[-1]) == (none, whole)
    assert all(rows in (none, whole) for rows in found), found


def test_folders_of_other_jobs_and_targets_stay(writer: Writer) -> None:
    """Another job's attempt may be writing the same folder; a longer name is of another target."""
    with pytest.raises(Killed):
        writer.write("r1", 1, "append", range(3), kill_at=1)
    (aside,) = writer.hidden()
    others = [aside.replace(".out.", ".out.more."), ".out.0123456789abcdef.0123456789abcdef.1"]
    for other in others:
        (writer.folder / other).mkdir()
    writer.write("r2", 1, "append", range(3))
    assert sorted(writer.hidden()) == sorted(others)


def test_an_attempt_that_was_replaced_deletes_nothing(writer: Writer) -> None:
    """What is there may be its successor's, which is still being written."""

    def replaced() -> None:
        raise Killed

    with pytest.raises(Killed):
        writer.write("r2", 1, "append", range(3), kill_at=1)
    (aside,) = writer.hidden()
    with pytest.raises(Killed):
        writer.write("r1", 1, "append", range(3), check=replaced)
    assert writer.hidden() == [aside]


def test_killed_twice(writer: Writer) -> None:
    """The attempt that moves files is killed, and the next one, too."""
    assert writer.write("r1", 1, "append", range(4)) > 5
    with pytest.raises(Killed):
        writer.write("r2", 1, "append", range(4, 9), kill_at=5)
    with pytest.raises(Killed):
        writer.write("r2", 2, "append", range(4, 9), kill_at=1)
    writer.write("r2", 3, "append", range(4, 9))
    assert writer.rows() == [*range(9)]


def test_a_run_that_ended_is_not_repeated(writer: Writer) -> None:
    """Its attempt was killed before it could say so."""
    for mode in ("overwrite", "append"):
        writer.write(mode, 1, mode, range(3))
    assert writer.write("append", 2, "append", range(3)) <= 2
    assert writer.rows() == [0, 0, 1, 1, 2, 2]


def test_what_is_there_already(writer: Writer) -> None:
    writer.write("r1", 1, None, range(3))
    with pytest.raises(ConfigError, match="is there already; give mode"):
        writer.write("r2", 1, None, range(5))
    writer.write("r2", 1, "ignore", range(5))
    assert writer.rows() == [0, 1, 2]


def test_partitions_alone(writer: Writer) -> None:
    """As Spark's own key says."""
    writer.write("r1", 1, None, range(3))
    writer.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        writer._patch.setattr(SparkSession, "range", lambda self, *_: self.sql("SELECT 11 AS id"))
        writer.write("r2", 1, "overwrite", range(1))
    finally:
        writer.spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert writer.rows() == [0, 2, 11]


def test_all_files_if_there_are_no_partitions(writer: Writer) -> None:
    """With Spark's key for partitions alone, Spark itself would delete the old files before it has written others."""
    given = {"path": "out", "mode": "overwrite", "options": {"partitionOverwriteMode": "dynamic"}}
    sink = ParquetSink(ParquetSink.parse(given, writer.folder))
    job = job_in(writer.folder, Mode.BATCH)
    sink.write(writer.spark.range(3), 0, job)
    with pytest.raises(PySparkException):
        sink.write(writer.spark.sql("SELECT raise_error('no') AS id"), 0, replace(job, run=RunValues("r2")))
    assert writer.rows() == [0, 1, 2]
    sink.write(writer.spark.range(2), 0, replace(job, run=RunValues("r3")))
    assert writer.rows() == [0, 1]


def test_files_of_a_stream_that_had_no_dead_letters(writer: Writer) -> None:
    """Spark's readers see only the files of its log: what is appended later, without it, would be lost to them."""
    job = job_in(writer.folder, Mode.STREAMING)

    def write(path: str) -> None:
        sink = ParquetSink(ParquetSink.parse({"path": path, "options": {}}, writer.folder))
        for batch_id in range(2):
            sink.write(writer.spark.range(2), batch_id, job)

    (writer.folder / "out" / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"has written to .*/out, .* give another path"):
        write("out")
    assert [path.name for path in (writer.folder / "out").iterdir()] == ["_spark_metadata"]
    write("other")
    assert writer.spark.read.parquet(str(writer.folder / "other")).count() == 4


class Interleaved:
    """Two attempts in threads, which go on in turn: one stands still at a step until the other has come to one.

    Their rows are files that were written before: what is tried is how they are put in place.
    """

    def __init__(self, writer: Writer, patch: pytest.MonkeyPatch) -> None:
        self.writer = writer
        self._gates: dict[int, tuple[int, threading.Event, threading.Event]] = {}  # by thread: stop at, reached, go on
        self._steps: Counter[int] = Counter()
        for name in (*STEPS, "_exists"):
            patch.setattr(StagedFiles, name, self._stopping(getattr(StagedFiles, name)))
        self.made = writer.folder / "made"
        for name, rows in (("one", range(11, 13)), ("two", range(21, 23)), ("before", range(1, 3))):
            frame = writer.spark.range(rows.start, rows.stop, 1, 2).selectExpr("id", "id % 2 AS odd")
            frame.write.parquet(str(self.made / name))

    def _stopping(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any) -> Any:
            me = threading.get_ident()
            if me in self._gates:
                stop_at, reached, go_on = self._gates[me]
                if self._steps[me] == stop_at:
                    reached.set()
                    assert go_on.wait(30)
                self._steps[me] += 1
            return function(*given)

        return step

    def write(self, rows: str, run: str, attempt: int, mode: str, check: Callable[[], None] = lambda: None) -> None:
        job = JobContext(
            pipeline="shop",
            job="copy",
            mode=Mode.BATCH,
            storage=str(self.writer.folder / "state"),
            folder=self.writer.folder,
            run=RunValues(run),
            attempt=attempt,
            check=check,
        )
        files = StagedFiles(self.writer.spark, str(self.writer.folder / "out"), job)
        files.write(mode, lambda folder: self._copy(rows, folder))

    def _copy(self, rows: str, uri: str) -> None:
        shutil.copytree(self.made / rows, unquote(urlsplit(uri).path))

    def start(self, stop_at: int, *given: Any) -> tuple[threading.Thread, threading.Event, list[BaseException]]:
        """Begin an attempt; return when it stands still at a step, or has ended."""
        reached, go_on, failed = threading.Event(), threading.Event(), list[BaseException]()

        def run() -> None:
            self._gates[threading.get_ident()] = (stop_at, reached, go_on)
            self._steps[threading.get_ident()] = 0
            try:
                self.write(*given)
            except BaseException as error:
                failed.append(error)
            finally:
                del self._gates[threading.get_ident()]
                reached.set()

        thread = threading.Thread(target=run)
        thread.start()
        assert reached.wait(30)
        return thread, go_on, failed


def test_numbers_of_attempts_that_begin_again(writer: Writer) -> None:
    """As after `pipeline delete`, or with another registry: what was put away before is put back."""
    writer.write("before", 1, None, range(1, 3))
    steps = writer.write("tried", 3, "overwrite", range(11, 13))
    for step in range(steps):
        writer.clear()
        writer.write("before", 1, None, range(1, 3))
        with pytest.raises(Killed):
            writer.write("killed", 2, "overwrite", range(11, 13), kill_at=step)
        writer.write("next", 1, "append", range(21, 23))
        assert writer.rows() in ([1, 2, 21, 22], [11, 12, 21, 22]), step
        assert writer.hidden() == []


def test_a_folder_that_is_being_deleted_is_not_taken_for_a_whole_one(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local disks and object stores delete file by file."""
    tried = Interleaved(writer, monkeypatch)
    delete = StagedFiles._delete

    def half(files: StagedFiles, path: Any) -> None:
        if path.getName().endswith(".1"):
            folder = Path(unquote(urlsplit(str(path)).path))
            next(iter(folder.glob("*.parquet"))).unlink()
            raise Killed
        delete(files, path)

    shutil.copytree(tried.made / "before", writer.folder / "out")
    first, let_first, _ = tried.start(6, "one", "run", 1, "append")  # all is there, and not chosen yet
    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(StagedFiles, "_delete", half)
        tried.write("two", "run", 2, "append")
    let_first.set()
    first.join(30)
    tried.write("two", "run", 3, "append")
    check_rows(writer, "append", same_run=True, where="")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", ["overwrite", "append"])
@pytest.mark.parametrize("same_run", [True, False])
def test_an_attempt_that_stood_still_takes_nothing_away(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, mode: str, same_run: bool
) -> None:
    """It stands still at each step; the next attempt does all of its work, or a part, before it goes on."""
    tried = Interleaved(writer, monkeypatch)
    begun = threading.Event()

    def check() -> None:
        if begun.is_set():
            raise Killed

    second_run = "first" if same_run else "second"
    for first_step, second_step in ((one, two) for one in count() for two in (*range(one % 3, 30, 3), 1000)):
        writer.clear()
        begun.clear()
        shutil.copytree(tried.made / "before", writer.folder / "out")
        first, let_first, _ = tried.start(first_step, "one", "first", 1, mode, check)
        ended_first = not first.is_alive()
        begun.set()
        second, let_second, failed = tried.start(second_step, "two", second_run, 2, mode)
        let_first.set()
        first.join(30)
        let_second.set()
        second.join(30)
        assert not first.is_alive()
        assert not second.is_alive()
        where = f"first at step {first_step}, second at step {second_step}"
        if not failed:
            check_rows(writer, mode, same_run=same_run, where=where)
        tried.write("two", second_run, 3, mode)
        check_rows(writer, mode, same_run=same_run, where=where)
        assert writer.hidden() == [], where
        if ended_first and second_step == 1000:
            break
    assert first_step > 8


def check_rows(writer: Writer, mode: str, *, same_run: bool, where: str) -> None:
    before, one, two = [1, 2], [11, 12], [21, 22]
    right = [two] if mode == "overwrite" else [before + two, before + one + two]
    if same_run:
        right = [one, two] if mode == "overwrite" else [before + one, before + two]
    files = [path for path in (writer.folder / "out").rglob("*.parquet") if "/." not in str(path)]
    found = sorted(row for path in files for row in parquet.read_table(path)["id"].to_pylist())
    assert found in right, where
