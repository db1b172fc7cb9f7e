"""Flow jobs on a cluster: an executor's Java is killed, and speculation starts a copy of a task that hangs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import jobpipe
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.testing import Checker
from tests.spark.clusters.test_speculation import master
from tests.spark.kit import Job, Place, start_job, until

__all__ = ["master"]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


class Line:
    """A publisher, a flow job in a driver program, and a client of what that publishes."""

    def __init__(self, place: Place, publisher: Publisher, job: Job, client: jobpipe.Subscription, sealed: int) -> None:
        self.job = job
        self._place = place
        self._publisher = publisher
        self._batches = client.batches(timeout=150.0)
        self._checker = Checker(*place.rows(publisher.topic))
        self._next = sealed

    def seal(self, batches: int) -> None:
        """Publish the next batches."""
        self._place.seal(self._publisher, range(self._next, self._next + batches))
        self._next += batches

    def take(self) -> None:
        """Wait until all that is published by now has arrived."""
        _, journal = self._place.rows(self._publisher.topic)
        while self._checker.rows < journal.rows:
            self._checker.take(pa.Table.from_batches([next(self._batches)]))

    def end(self) -> list[int]:
        """End the source; each row came once and in order. Return the claims."""
        self._publisher.close(final=True)
        for batch in self._batches:
            self._checker.take(pa.Table.from_batches([batch]))
        self._checker.check()
        claims: list[int] = self.job.result()
        return claims


@contextmanager
def line(place: Place, topic: str, folder: Path, master: str, **settings: str) -> Iterator[Line]:
    """Start all of them, behind two partitions."""
    place.rows(topic, partitions=2, rows=20)
    target, spool = f"{topic}-passed", str(folder / "spool")
    with place.publisher(topic, parallelism=2) as publisher:
        place.seal(publisher, range(1))
        job = start_job(place, "flow", master, folder, topic, target, json.dumps(settings), JOBPIPE__SPOOL__DIR=spool)
        try:
            config = place.config(**{"jobpipe.discovery.timeout": "200s"})  # a driver and its executors start
            with jobpipe.subscribe(target, name="client", starting="earliest", config=config) as client:
                made = Line(place, publisher, job, client, 1)
                made.take()
                yield made
        finally:
            job.kill()


def executor(folder: Path) -> psutil.Process | None:
    """Return the Java process whose Python worker runs the task; None while there is no task."""
    for path in folder.glob("task-*"):
        with contextlib.suppress(psutil.Error):
            above = psutil.Process(int(path.name.removeprefix("task-"))).parents()
            return next((each for each in above if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline())), None)
    return None


def test_an_executor_is_killed(place: Place, tmp_path: Path) -> None:
    """``kill -9`` of its Java, which takes the worker along; the task goes on elsewhere."""
    with line(place, "killed", tmp_path, "local-cluster[2,1,1024]", spark_executor_memory="512m") as chain:
        chain.seal(5)
        chain.take()
        for _ in range(2):
            found = until(lambda: executor(tmp_path), "a task", 60.0)
            found.kill()
            gone = set(tmp_path.glob("task-*"))
            chain.seal(10)
            until(lambda: set(tmp_path.glob("task-*")) > gone, "another attempt")  # noqa: B023
            for path in gone:
                path.unlink()
            chain.take()
        assert max(chain.end()) >= 3


def test_speculation(place: Place, tmp_path: Path, master: str) -> None:
    """The copy claims the partitions of the attempt that hangs; what that seals late is refused."""
    (tmp_path / "hang").touch()
    settings = {
        "spark_cores_max": "2",
        "spark_executor_cores": "1",
        "spark_executor_memory": "512m",
        "spark_speculation": "true",
        "spark_speculation_interval": "100ms",
        "spark_speculation_task_duration_threshold": "1s",  # the only way to a copy of a job's one task
    }
    with line(place, "copied", tmp_path, master, **settings) as chain:
        chain.seal(10)
        until(lambda: (tmp_path / "late").exists(), "the first attempt goes on", 150.0)
        chain.seal(10)
        chain.take()
        assert (tmp_path / "copied").exists()
        assert max(chain.end()) >= 2
