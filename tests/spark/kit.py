"""What the Spark tests share: topics of one namespace, rows that prove what they are, queries, driver programs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobpipe import JobPipeSink
from jobpipe.admin import Admin
from jobpipe.config import Config, load
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.testing import Checker, Journal, NumberedRows

JOBS = Path(__file__).parent / "jobs"
ROOT = Path(__file__).parents[2]
PATIENCE = 120.0  # seconds; the machine is shared, and nothing waits so long when all is well
JOB_SECONDS = 240.0  # of one driver program, several JVMs at once
NOISE = ("\tat ", "Traceback", "KeyboardInterrupt", "py4j", " ERROR ", "Exception")


def as_a_user(*others: str) -> dict[str, str]:
    """Return the environment without variables of Spark, of jobpipe, and those that begin with ``others``."""
    mine = ("PYSPARK_", "SPARK_", "JOBPIPE_", *others)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    quick = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")  # of tests/conftest.py: how fast Java starts
    return clean | {name: os.environ[name] for name in quick if name in os.environ}


@dataclass
class Place:
    """One namespace: where its settings are, and short ways to its topics."""

    folder: Path
    settings: dict[str, str]
    published: dict[str, tuple[NumberedRows, Journal]] = field(default_factory=dict)

    def config(self, **more: str) -> Config:
        """Return the namespace's configuration."""
        return load(overrides={**self.settings, **more}, environ={})

    def environ(self) -> dict[str, str]:
        """Return the settings as environment of another process."""
        names = {key.removeprefix("jobpipe.").replace(".", "__").upper(): value for key, value in self.settings.items()}
        return {f"JOBPIPE__{name}": value for name, value in names.items()}

    def sink(self, topic: str, **given: Any) -> JobPipeSink:
        """Return a sink for ``topic``."""
        return JobPipeSink(topic, **{**self.settings, **given})

    @contextmanager
    def publisher(self, topic: str, **given: Any) -> Iterator[Publisher]:
        """Give a publisher without Spark."""
        more = {key: given.pop(key) for key in list(given) if key.startswith("jobpipe.")}
        publisher = Publisher(topic, config=self.config(**more), **given)
        try:
            yield publisher
        finally:
            publisher.close()

    def status(self, topic: str) -> dict[str, Any]:
        """Return what ``jobpipe topics describe`` shows of a topic that is served."""
        with Admin(self.config()) as admin:
            return admin.status(topic, timeout=PATIENCE).to_json()

    def rows(self, topic: str, **given: int) -> tuple[NumberedRows, Journal]:
        """Return the rows that ``topic`` is to have, and the record of those that were sealed."""
        if topic not in self.published:
            self.published[topic] = (NumberedRows(topic, **given), Journal())
        return self.published[topic]

    def seal(self, publisher: Publisher, batch_ids: Iterable[int], **given: int) -> None:
        """Seal numbered batches."""
        rows, journal = self.rows(publisher.topic, **given)
        for batch_id in batch_ids:
            with journal.sealing(batch_id, rows.ranges(batch_id)):
                publisher.seal("q", batch_id, rows.tables(batch_id))

    def stream(self, spark: SparkSession, topics: str, name: str, **options: Any) -> DataFrame:
        """Return the topics as a stream."""
        given = {"subscribe": topics, "name": name, **_texts(options)}
        return spark.readStream.format("jobpipe").options(**self.settings).options(**given).load()

    def read(self, spark: SparkSession, topics: str, **options: Any) -> DataFrame:
        """Return what lies in the topics."""
        given = {"subscribe": topics, **_texts(options)}
        return spark.read.format("jobpipe").options(**self.settings).options(**given).load()

    def checkpoint(self, name: str) -> Path:
        """Return a folder for a checkpoint."""
        return self.folder / "checkpoints" / name


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}


class Received:
    """A callback for ``foreachBatch`` that keeps each micro-batch by its id, as an idempotent sink does."""

    def __init__(self, *, fail_at: int | None = None) -> None:
        self.batches: dict[int, pa.Table] = {}
        self.replayed: list[int] = []
        self.fail_at = fail_at  # raise after having taken this batch, once

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        table = df.toArrow()
        if batch_id in self.batches:
            self.replayed.append(batch_id)
            assert table.equals(self.batches[batch_id]), f"batch {batch_id} came again with other rows"
        self.batches[batch_id] = table
        if batch_id == self.fail_at:
            self.fail_at = None
            raise RuntimeError("the test wants this batch to fail")

    @property
    def rows(self) -> int:
        """How many rows are there."""
        return sum(table.num_rows for table in self.batches.values())

    def sizes(self) -> list[int]:
        """Return the rows of each micro-batch."""
        return [table.num_rows for _, table in sorted(self.batches.items())]

    def check(self, rows: NumberedRows, journal: Journal) -> None:
        """Check that every row that was sealed is there, once, in order, unchanged."""
        checker = Checker(rows, journal)
        for _, table in sorted(self.batches.items()):
            checker.take(table)
        checker.check()


def by_id(batch: pa.RecordBatch, partitions: int) -> list[int]:
    """Divide rows by their id."""
    return [number % partitions for number in batch.column("id").to_pylist()]


def our_lines(terminal: str) -> list[str]:
    """Return our lines of what stands on a terminal; there are no others that tell of an end."""
    noise = [line for line in terminal.splitlines() if any(each in line for each in NOISE)]
    assert not noise, terminal
    return [line for line in terminal.splitlines() if line.startswith("jobpipe: ")]


@contextmanager
def running(
    df: DataFrame, callback: Callable[[DataFrame, int], None], checkpoint: Path, **trigger: Any
) -> Iterator[StreamingQuery]:
    """Run a query; stop it at the end of the block."""
    writer = df.writeStream.foreachBatch(callback).option("checkpointLocation", str(checkpoint))
    query = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        yield query
    finally:
        query.stop()


def run_to_end(df: DataFrame, callback: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    """Run a query over what is there (``availableNow``)."""
    with running(df, callback, checkpoint, availableNow=True) as query:
        assert query.awaitTermination(int(PATIENCE)), f"not at its end within {PATIENCE:g} s"


def until(condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> Any:
    """Wait until the condition holds, and return its value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}")
        time.sleep(0.02)
    return value


def write_files(folder: Path, rows: NumberedRows, batch_ids: Iterable[int]) -> None:
    """Write the rows of each batch into a file of its own, of which :func:`file_stream` makes a micro-batch."""
    folder.mkdir(parents=True, exist_ok=True)
    for batch_id in batch_ids:
        part = (
            folder / f".{batch_id:04}.part"
        )  # a query that runs would take a file that is empty yet, and no more of it
        pq.write_table(pa.concat_tables(rows.tables(batch_id)), part)
        os.utime(part, (1_600_000_000 + batch_id, 1_600_000_000 + batch_id))
        part.rename(folder / f"{batch_id:04}.parquet")


def file_stream(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the files of a folder as a stream, one file a micro-batch."""
    schema = "partition int, number bigint, payload string, digest bigint"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def forget_commit(checkpoint: Path, batch_id: int) -> None:
    """Take the commit of a batch from a checkpoint: a crash after the batch, before Spark noted it."""
    forget_log(checkpoint, "commits", batch_id)


def forget_log(checkpoint: Path, log: str, batch_id: int) -> None:
    """Take an entry from one of Spark's two logs, with its checksum."""
    (checkpoint / log / str(batch_id)).unlink()
    (checkpoint / log / f".{batch_id}.crc").unlink(missing_ok=True)


def copy_checkpoint(checkpoint: Path, copy: Path) -> Path:
    """Make a copy of a checkpoint, as a backup would."""
    shutil.copytree(checkpoint, copy)
    return copy


@dataclass
class Job:
    """A driver program in a process of its own; its output goes to files."""

    process: subprocess.Popen[bytes]
    name: str
    output: Path

    @property
    def errors(self) -> str:
        """What it, and its Java, wrote to the standard error."""
        return self.output.with_suffix(".err").read_text()

    def result(self, timeout: float = JOB_SECONDS) -> Any:
        """Return the JSON that the program printed last.

        Raises:
            AssertionError: it failed, or did not end; with the end of its output.
        """
        try:
            code: object = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = f"none within {timeout:g} s"
        finally:
            self.kill()
        out = self.output.read_text()
        assert code == 0, f"{self.name}: exit {code}\n{out[-2000:]}\n{self.errors[-4000:]}"
        return json.loads(out.strip().splitlines()[-1])

    def kill(self) -> None:
        """End it, if it has not ended."""
        self.process.kill()
        self.process.wait()


def start_job(place: Place, name: str, *arguments: object, **environ: str) -> Job:
    """Start ``jobs/NAME.py``."""
    return start_program(place, sys.executable, JOBS / f"{name}.py", *arguments, **environ)


def start_program(place: Place, python: str, program: Path, *arguments: object, **environ: str) -> Job:
    """Start a driver program with a Python of one's choice."""
    name = program.stem
    output = place.folder / f"{name}-{len(list(place.folder.glob('*.out')))}.out"
    with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(
            [python, str(program), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **place.environ(), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": python, **environ},
        )
    return Job(process, f"{name} {' '.join(map(str, arguments))}", output)
