"""A topic that a pattern finds while the query runs: the application dies around its first batch, nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.testing import Checker
from tests.spark.kit import JOB_SECONDS, Job, Place, start_job, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(420)]

DEATHS = ("kill-offset", "kill-rows")
PATTERN = r"found-\w+"


def tables(folder: Path) -> list[pa.Table]:
    """Return what is stored, in order."""
    return [pq.read_table(path) for path in sorted((folder / "rows").glob("*.parquet"))]


def of_topic(table: pa.Table, topic: str) -> pa.Table:
    """Return the rows of a topic."""
    return table.filter(pa.array([value["topic"] == topic for value in table["_jobpipe"].to_pylist()], pa.bool_()))


def test_killed_around_the_first_batch_of_a_new_topic(place: Place) -> None:
    """Cases 3, 59: between plan and commit of the batch that names it first, and of the first with its rows."""
    folder = place.folder / "pattern"
    folder.mkdir()
    first, second = "found-a", "found-b"
    jobs: list[Job] = []

    def start() -> Job:
        jobs.append(start_job(place, "pattern", folder, PATTERN, second))
        return jobs[-1]

    def seal(publisher: Publisher, *batch_ids: int) -> None:
        place.seal(publisher, batch_ids, partitions=2, rows=20)

    try:
        with place.publisher(first, parallelism=2) as one, place.publisher("lost-b", parallelism=2) as other:
            seal(one, 0, 1)
            seal(other, 0)
            job = start()
            until(lambda: sum(table.num_rows for table in tables(folder)) == 80 or job.process.poll(), "rows")
            for order in DEATHS:
                (folder / order).touch()
            with place.publisher(second, parallelism=2) as two:
                for number, order in enumerate(DEATHS):
                    seal(two, 2 * number)
                    assert job.process.wait(JOB_SECONDS) != 0, job.errors[-2000:]
                    assert not (folder / order).exists(), job.errors[-4000:]
                    seal(one, 2 + number)
                    seal(two, 2 * number + 1)
                    job = start()
                one.close(final=True)
                two.close(final=True)
                assert job.result() == {"ended": True}
    finally:
        for job in jobs:
            job.kill()
    kept = tables(folder)
    for topic in (first, second):
        checker = Checker(*place.rows(topic))
        for table in kept:
            checker.take(of_topic(table, topic))
        checker.check()
    assert {value["topic"] for table in kept for value in table["_jobpipe"].to_pylist()} == {first, second}
