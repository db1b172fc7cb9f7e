"""Case 68 with Spark on both sides: a job of each team, with a certificate of its own; executors write and read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.testing import NumberedRows
from tests.security.kit import TOPIC, World, full, registry_of, settings
from tests.spark.conftest import only_our_settings as only_our_settings
from tests.spark.conftest import spark as spark
from tests.spark.kit import Place, Received, file_stream, run_to_end, write_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def teams(home: Path, tmp_path: Path, world: World) -> Iterator[tuple[Place, Place]]:
    """The publishing team's place and the reading team's."""
    shared = full(
        {
            "home": str(tmp_path / "home"),
            **registry_of(home),
            "registerserver.topic.storage": f"/spark-{uuid.uuid4().hex[:12]}/topics",
            "registerserver.session.timeout": "4s",
            "sinkserver.subnet": "127.0.0.0/8",
            "spool.dir": str(tmp_path / "spool"),
            "coordinator.linger": "3s",
            "ssl.max_connection_age": "2s",
        }
    )
    ours = Place(tmp_path / "a", {**shared, **full(settings(world.orders, world.access))})
    theirs = Place(tmp_path / "b", {**shared, **full(settings(world.billing))})
    yield ours, theirs
    end_coordinators()


def test_two_teams(spark: SparkSession, teams: tuple[Place, Place]) -> None:
    ours, theirs = teams
    rows = NumberedRows(TOPIC, partitions=2, rows=50)
    write_files(ours.folder / "files", rows, range(3))
    sink = ours.sink(TOPIC, parallelism=2, write_path="tasks")
    try:
        run_to_end(file_stream(spark, ours.folder / "files"), sink, ours.checkpoint("orders"))
        received = Received()
        stream = theirs.stream(spark, TOPIC, "billing", startingOffsets="earliest")
        run_to_end(stream, received, theirs.checkpoint("billing"))
        got = [(row["partition"], row["number"]) for table in received.batches.values() for row in table.to_pylist()]
        assert sorted(got) == [(partition, number) for partition in range(2) for number in range(150)]
        assert theirs.read(spark, TOPIC).count() == 300
        with pytest.raises(Exception, match=r"jobpipe does not give the right to read it as .*'audit'"):
            run_to_end(theirs.stream(spark, TOPIC, "audit"), Received(), theirs.checkpoint("audit"))
    finally:
        sink.close(final=True)
