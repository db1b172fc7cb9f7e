"""M:N: publishers and subscribers of unlike parallelism, several of each, as separate Spark applications."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import jobpipe
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.spark.kit import Job, Place, Received, running, start_job, write_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PARALLELISM = (1, 2, 3, 5)
LANES = 6  # keys that rows are partitioned by; order holds in each
BATCHES = 3


@dataclass
class Outcome:
    """What everybody received, by subscriber."""

    folders: dict[str, Path]
    here: Received
    rows: dict[str, tuple[NumberedRows, Journal]]

    def tables(self, subscriber: str, topics: str) -> list[pa.Table]:
        """The micro-batches of one subscriber, in order."""
        files = sorted((self.folders[subscriber] / topics.replace(",", "+")).glob("*.parquet"))
        return [pq.read_table(path) for path in files]

    def check(self, topic: str, tables: list[pa.Table]) -> None:
        """Check the rows of one topic among ``tables``."""
        checker = Checker(*self.rows[topic])
        for table in tables:
            mine = pa.array([value["topic"] == topic for value in table["_jobpipe"].to_pylist()], pa.bool_())
            checker.take(table.filter(mine))
        checker.check()


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, place: Place) -> Outcome:
    """Run two subscriber applications, one more publisher application, and four publishers and a subscriber here."""
    topics = [*(f"p{n}" for n in PARALLELISM), "a", "b", "c"]
    rows = {topic: (NumberedRows(topic, partitions=LANES, rows=20), Journal()) for topic in topics}
    for topic, (numbered, journal) in rows.items():
        for batch_id in range(BATCHES):
            with journal.sealing(batch_id, numbered.ranges(batch_id)):
                pass
        write_files(place.folder / topic, numbered, range(BATCHES))
    folders = {master: place.folder / name for master, name in {"local[1]": "one", "local[3]": "three"}.items()}
    wanted = [*(f"p{n}" for n in PARALLELISM), "a,b,c"]
    # A closed topic is served until its subscriptions have read it; those that have not come yet must be named.
    readers = {
        topic: [
            f"{folder.name}-{wish.replace(',', '.')}" for folder in folders.values() for wish in wanted if topic in wish
        ]
        for topic in topics
    }
    readers["p3"].append("the-third")
    jobs: list[Job] = []
    try:
        # The subscribers come first and wait for their topics.
        jobs.extend(start_job(place, "subscribe", master, folder, *wanted) for master, folder in folders.items())
        jobs.append(
            start_job(
                place,
                "publish",
                "local-cluster[2,1,1024]",
                "c",
                place.folder / "c",
                place.checkpoint("publish-c"),
                "tasks",
                *readers["c"],
                JOBPIPE__COORDINATOR__LINGER="200s",  # it ends when they have read; a slow machine starts them slowly
            )
        )
        here = Received()
        for topic in topics[:-1]:
            parallelism = int(topic[1:]) if topic.startswith("p") else 2
            sink = place.sink(
                topic, parallelism=parallelism, partition_by="partition", required_subscribers=readers[topic]
            )
            for batch_id in range(BATCHES):
                table = pa.concat_tables(rows[topic][0].tables(batch_id))
                sink(spark.createDataFrame(table).repartition(3, "partition").sortWithinPartitions("number"), batch_id)
            sink.close(final=True)
        stream = place.stream(spark, "p3", "the-third", startingOffsets="earliest", includeMetadata=True)
        with running(stream, here, place.checkpoint("third")) as query:
            jobpipe.await_end(query, timeout=120)
        for job in jobs:
            job.result()
    finally:
        for job in jobs:
            job.kill()
    return Outcome(folders, here, rows)


@pytest.mark.parametrize("parallelism", PARALLELISM)
@pytest.mark.parametrize("master", ["local[1]", "local[3]"])
def test_parallelism_of_both_sides_is_independent(outcome: Outcome, parallelism: int, master: str) -> None:
    """All rows, once, in order within each key, whatever the parallelism of either side."""
    tables = outcome.tables(master, f"p{parallelism}")
    outcome.check(f"p{parallelism}", tables)
    places = {value["partition"] for table in tables for value in table["_jobpipe"].to_pylist()}
    assert len(places) <= parallelism
    assert (len(places) > 1) == (parallelism > 1)


@pytest.mark.parametrize("master", ["local[1]", "local[3]"])
def test_three_publishers_into_one_subscriber(outcome: Outcome, master: str) -> None:
    """One query over three topics, of two applications, one of them on a cluster of two executors."""
    for topic in ("a", "b", "c"):
        outcome.check(topic, outcome.tables(master, "a,b,c"))


def test_one_publisher_into_three_subscribers(outcome: Outcome) -> None:
    """Each of three applications has every row."""
    outcome.check("p3", [table for _, table in sorted(outcome.here.batches.items())])
    for master in outcome.folders:
        outcome.check("p3", outcome.tables(master, "p3"))


def test_the_partition_is_the_same_whoever_writes(spark: SparkSession, outcome: Outcome) -> None:
    """Executors of a cluster number rows as the driver does."""
    table = pa.concat_tables(outcome.tables("local[1]", "a,b,c"))
    df = spark.createDataFrame(table.select(["partition", "_jobpipe"]))
    expected = F.expr("pmod(hash(partition), _jobpipe.parallelism)")
    assert df.where(F.col("_jobpipe.partition") != expected).count() == 0
