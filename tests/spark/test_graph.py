"""What the processes of a Spark application tell the bus of themselves: all of them the same."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import jobpipe
from jobpipe.admin import Admin
from jobpipe.graph.namespace_graph import EdgeKind, NamespaceGraph, namespace_graph
from jobpipe.own_application import own_application
from tests.spark.kit import Place, file_stream, until, write_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def graph(place: Place) -> NamespaceGraph:
    with Admin(place.config()) as admin:
        admin.topics()
        return namespace_graph("test", admin.answers(["sunk", "written"], 10.0))


@pytest.mark.core
def test_sink_writer_reader_and_client_are_one_application(spark: SparkSession, place: Place) -> None:
    """They are in the driver's Python, and in processes that the JVM has started for the source and for the writer."""
    rows, _ = place.rows("sunk")
    folder = place.folder / "files"
    write_files(folder, rows, range(2))
    sunk = (
        file_stream(spark, folder)
        .writeStream.foreachBatch(place.sink("sunk"))
        .option("checkpointLocation", str(place.checkpoint("sunk")))
        .start()
    )
    written = (
        place.stream(spark, "sunk", "relay", startingOffsets="earliest")
        .writeStream.format("jobpipe")
        .options(**place.settings, topic="written")
        .option("checkpointLocation", str(place.checkpoint("written")))
        .start()
    )
    try:
        with jobpipe.subscribe("written", name="client", starting="earliest", config=place.config()) as batches:
            next(iter(batches))
            made = until(lambda: len((found := graph(place)).edges) == 4 and found, "both topics and their readers")
    finally:
        written.stop()
        sunk.stop()
    assert [(edge.topic, edge.kind) for edge in made.edges] == [
        ("sunk", EdgeKind.PUBLISHES),
        ("sunk", EdgeKind.READS),
        ("written", EdgeKind.PUBLISHES),
        ("written", EdgeKind.READS),
    ]
    own = own_application()
    (node,) = made.applications.values()
    assert node.id == own.id
    assert node.name in ("tests", own.name)  # Spark's name of it, but for the client
