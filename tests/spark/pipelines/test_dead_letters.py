"""Dead letters: how many a micro-batch may have, and that a row is good or dead, whatever happens meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from jobpipe.errors import TooManyDeadLetters
from jobpipe.pipelines.checkpoints import checkpoint_storage
from jobpipe.pipelines.dead_letters import dead_letter_split
from jobpipe.pipelines.dead_letters.dead_letter_split import DeadLetters
from jobpipe.pipelines.dead_letters.letter_ledger import LetterLedger
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.api import DEAD, UNPARSED, Transform
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.transforms.column_transforms import dead_struct

pytestmark = pytest.mark.spark

Handle = Callable[..., list[int]]


class Stage(Transform):
    """Makes ``copies`` of each row, none of odd ones if ``odd`` is false; rows from id ``dead_from`` on are dead."""

    type = "stage"
    tolerant = True

    def __init__(self, copies: int, dead_from: int, *, odd: bool = True) -> None:
        self._copies = copies
        self._dead_from = dead_from
        self._odd = odd

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        """Fail."""
        raise NotImplementedError

    def apply_tolerant(self, frame: DataFrame, job: JobContext) -> DataFrame:
        """Make the copies."""
        is_dead = sf.col("id") >= self._dead_from
        copies = sf.when(is_dead, 1).when(~sf.lit(self._odd) & (sf.col("id") % 2 == 1), 0).otherwise(self._copies)
        found = frame.withColumn(DEAD, sf.when(is_dead, dead_struct(frame, sf.lit("Bad"), sf.lit("bad"))))
        return found.withColumn("n", sf.explode(sf.sequence(sf.lit(0), copies))).where("n > 0").drop("n")


def job_in(folder: Path, mode: Mode = Mode.BATCH) -> JobContext:
    run = RunValues("r1")
    return JobContext(pipeline="p", job="a", mode=mode, storage=str(folder / "state"), folder=folder, run=run)


@pytest.fixture
def handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Handle:
    """Return what handles a micro-batch; it returns how many rows are published as dead, and how many are written."""

    def handle(batch: DataFrame, ratio: float | None, *stages: Transform) -> list[int]:
        job = job_in(tmp_path)
        letters, found = DeadLetters(job, "dead", "csv", [("stage", stage) for stage in stages], ratio), []
        monkeypatch.setattr(letters, "_publish", lambda rows, batch_id: found.append(rows.count()))
        letters.handle(batch, 0, lambda rows, batch_id: found.append(rows.count()))
        return found

    return handle


def test_rows_that_a_stage_drops_count(spark: SparkSession, handle: Handle) -> None:
    """One of a hundred is dead, and one is left: that is one in a hundred."""
    drops = Stage(0, 99)
    assert handle(spark.range(100), 0.01, drops) == [1, 0]
    with pytest.raises(TooManyDeadLetters, match=r"1 dead letters of 100 rows are more than errors\.max-ratio 0\.009"):
        handle(spark.range(100), 0.009, drops)


def test_rows_that_a_stage_makes_do_not_count(spark: SparkSession, handle: Handle) -> None:
    """Nine of ten are dead, and of the other a hundred are made: that is nine in ten."""
    makes = Stage(100, 1)
    with pytest.raises(TooManyDeadLetters, match="9 dead letters of 10 rows"):
        handle(spark.range(10), 0.8, makes)
    assert handle(spark.range(10), 0.9, makes) == [9, 100]
    assert handle(spark.range(10), None, makes) == [9, 100]


def test_a_later_stage_and_the_source(spark: SparkSession, handle: Handle) -> None:
    """The dead of all stages, of the rows of the source with those that it could not parse."""
    text = sf.when(sf.col("id") == 0, sf.lit("x"))
    batch = spark.range(10).withColumn(UNPARSED, text)
    stages = Stage(1, 100, odd=False), Stage(1, 8)  # of 1 to 9 four are left, of which one is dead
    assert handle(batch, 0.2, *stages) == [2, 3]
    with pytest.raises(TooManyDeadLetters, match="2 dead letters of 10 rows"):
        handle(batch, 0.19, *stages)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ([1, 1, 99, 2, 1], None),  # together 101 rows with 3 bad ones, then 3 with 2, of which 100 may have 3
        ([1, 1, 1, 1], "4 dead letters of 4 rows"),  # whatever the other 96 were
        ([100, 1, 1], None),
        ([1, 1, 1, 30, 1], "4 dead letters of 33 rows"),
        ([130, 1, 130, 1, 1, 1, 1], "4 dead letters of 4 rows"),
    ],
)
def test_small_micro_batches_of_a_stream_count_together(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], told: str | None
) -> None:
    """Each has one bad row; three of a hundred may be."""
    letters = DeadLetters(job_in(tmp_path, Mode.STREAMING), "dead", "csv", [("stage", Stage(1, 0))], 0.03)
    monkeypatch.setattr(letters, "_publish", lambda rows, batch_id: None)
    with pytest.raises(TooManyDeadLetters, match=told) if told else nullcontext():
        for batch_id, size in enumerate(sizes):
            letters.handle(spark.range(1 - size, 1), batch_id, lambda rows, _: None)


@pytest.mark.parametrize("ratio", [None, 0.5])
def test_the_source_is_read_once(spark: SparkSession, handle: Handle, ratio: float | None) -> None:
    read = spark.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read.add(batch.num_rows)
            yield batch

    batch: Any = spark.range(0, 4, numPartitions=1).mapInArrow(count, "id long")
    assert handle(batch, ratio, Stage(1, 3)) == [1, 3]
    assert read.value == 4


class Topic:
    """Takes letters as a topic does, each batch of a series once."""

    def __init__(self) -> None:
        self.ids: list[list[int]] = []
        self._seen: set[tuple[str, int]] = set()

    def publish(self, rows: DataFrame, batch_id: int, *, series: str, once: bool = False) -> None:
        """Take them."""
        assert once  # a run of a BATCH job
        if (series, batch_id) not in self._seen:
            self._seen.add((series, batch_id))
            self.ids.append(sorted(json.loads(row["row"])["id"] for row in rows.collect()))


class Chosen(Transform):
    """Rows are dead whose ids are in a file, at the time when they are computed."""

    type = "chosen"
    tolerant = True

    def __init__(self, file: Path) -> None:
        self._file = str(file)

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        """Fail."""
        raise NotImplementedError

    def apply_tolerant(self, frame: DataFrame, job: JobContext) -> DataFrame:
        """Look into the file."""
        file = self._file
        is_dead = sf.udf(lambda number: str(number) in open(file).read().split(), "boolean")  # noqa: SIM115
        return frame.withColumn(DEAD, sf.when(is_dead("id"), dead_struct(frame, sf.lit("Bad"), sf.lit("bad"))))


@dataclass
class Attempts:
    """Attempts of one run, of the rows with the ids 0 to 9."""

    spark: SparkSession
    folder: Path
    topic: Topic = field(default_factory=Topic)

    def __call__(self, dead: str, *, in_write: Callable[[], None] = lambda: None) -> list[int]:
        """Handle the rows as a new attempt; return the good ones."""
        (self.folder / "dead").write_text(dead)
        letters, good = DeadLetters(job_in(self.folder), "dead", "csv", [("c", Chosen(self.folder / "dead"))], None), []
        letters._sink = self.topic  # type: ignore[assignment]

        def write(rows: DataFrame, _: int) -> None:
            in_write()
            good.extend(sorted(row["id"] for row in rows.collect()))

        letters.handle(self.spark.range(10), 0, write)
        return good

    def killed(self, dead: str) -> None:
        """End before the good rows are written."""

        def kill() -> None:
            raise KeyError("killed")

        with pytest.raises(KeyError):
            self(dead, in_write=kill)

    def notes(self) -> list[str]:
        """Return what is noted of batches that are not finished."""
        return [path.read_text() for path in (self.folder / "state" / "dead-letters").iterdir()]


@pytest.fixture
def attempts(spark: SparkSession, tmp_path: Path) -> Attempts:
    return Attempts(spark, tmp_path)


def test_a_repeated_batch_publishes_its_letters_once(attempts: Attempts) -> None:
    attempts.killed("8 9")
    assert len(attempts.notes()) == 1
    assert attempts("9 8") == [*range(8)]
    assert attempts.topic.ids == [[8, 9]]
    assert attempts.notes() == []


@pytest.mark.parametrize("dead", ["8", "7", "7 8 9", "1 2"])
def test_a_repeated_batch_with_other_letters_loses_no_row(attempts: Attempts, dead: str) -> None:
    """A function is not deterministic: what is dead this time is published too, since it is not written."""
    attempts.killed("8 9")
    ids = [int(number) for number in dead.split()]
    assert attempts(dead) == [number for number in range(10) if number not in ids]
    assert attempts.topic.ids == [[8, 9], ids]
    assert attempts.notes() == []


def test_a_note_that_was_cut_short_is_another_one(attempts: Attempts) -> None:
    """A host went down while it was written: twice is better than never."""
    attempts.killed("8 9")
    (note,) = (attempts.folder / "state" / "dead-letters").iterdir()
    note.write_text("")
    attempts("8 9")
    assert attempts.topic.ids == [[8, 9], [8, 9]]


def test_no_letters_after_some(attempts: Attempts) -> None:
    """They were published, and the rows are written as well."""
    attempts.killed("8 9")
    assert attempts("") == [*range(10)]
    assert attempts.topic.ids == [[8, 9]]
    assert attempts.notes() == []


def test_rows_that_were_lost_with_an_executor(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed again, and sorted in another way, is found after the good rows were written."""

    def lose() -> None:
        attempts.spark.catalog.clearCache()
        (attempts.folder / "dead").write_text("7 9")

    monkeypatch.setattr(dead_letter_split, "_may_lose_rows", lambda frame: True)
    assert attempts("9", in_write=lose) == [number for number in range(10) if number not in (7, 9)]
    assert attempts.topic.ids == [[9], [7, 9]]


def test_notes_in_another_file_system(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on HDFS or an object store, by Hadoop's classes."""
    monkeypatch.setattr(checkpoint_storage, "local_folder", lambda storage: None)
    for storage in (tmp_path.as_uri(), str(tmp_path)):
        notes = LetterLedger(spark, storage)
        assert notes.of("5") is None
        notes.note("5", "1:7")
        notes.note("6", "ä")
        notes.note("6", "b")
        again = LetterLedger(spark, storage)
        assert (again.of("5"), again.of("6")) == ("1:7", "b")
        again.forget("5")
        again.forget("6")
        again.forget("7")
        assert LetterLedger(spark, storage).of("5") is None


def test_a_letter_has_the_whole_row(spark: SparkSession) -> None:
    """Nulls, microseconds, bytes: what from_json makes of it is the row that came."""
    columns = "at TIMESTAMP, local TIMESTAMP_NTZ, none STRING, raw BINARY, inside STRUCT<at: TIMESTAMP, none: INT>"
    frame = spark.sql(
        "SELECT TIMESTAMP'2026-01-02 03:04:05.000006' AS at, TIMESTAMP_NTZ'2026-01-02 03:04:05.000006' AS local, "
        "CAST(NULL AS STRING) AS none, X'FF00' AS raw, "
        "named_struct('at', TIMESTAMP'2026-01-02 03:04:05.999999', 'none', CAST(NULL AS INT)) AS inside"
    )
    text = frame.select(dead_struct(frame, sf.lit("Bad"), sf.lit("bad"))["row"].alias("row"))
    (row,) = text.collect()
    assert json.loads(row["row"])["none"] is None
    assert json.loads(row["row"])["at"] == "2026-01-02T03:04:05.000006Z"
    assert text.select(sf.from_json("row", columns).alias("found")).select("found.*").collect() == frame.collect()
