"""The sink apart from what it publishes: where its settings come from, and its waits inside a running query."""

from __future__ import annotations

import contextlib
import pickle
import threading

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from jobpipe import JobPipeSink, close
from jobpipe.errors import ConfigError, TopicOwned, WaitTimeout
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.spark.kit import Place, Received, file_stream, run_to_end, running, until, write_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_settings_of_the_session(spark: SparkSession, place: Place) -> None:
    """``spark.jobpipe.*`` counts, below the sink's own arguments, in any thread."""
    names = {f"spark.{key}": value for key, value in place.settings.items()}
    made: list[JobPipeSink] = []
    for key, value in names.items():
        spark.conf.set(key, value)
    spark.conf.set("spark.jobpipe.parallelism", "7")
    try:
        thread = threading.Thread(target=lambda: made.append(JobPipeSink("by-session")))
        thread.start()
        thread.join()
        assert made[0].status()["parallelism"] == 7
        made[0].close()
        with_argument = JobPipeSink("by-argument", parallelism=3)
        assert with_argument.status()["parallelism"] == 3
        with_argument.close()
    finally:
        for key in [*names, "spark.jobpipe.parallelism"]:
            spark.conf.unset(key)


def test_a_sink_stays_in_its_driver(place: Place) -> None:
    """Pickling it, as Spark Connect does, is refused."""
    sink = place.sink("pickled")
    with pytest.raises(ConfigError, match="cannot be pickled"):
        pickle.dumps(sink)
    sink.close()


def test_a_second_sink_of_a_topic_is_refused(place: Place) -> None:
    """It names the first."""
    sink = place.sink("owned", name="the first")
    with pytest.raises(TopicOwned, match="'owned' already has a publisher in this job: 'the first'"):
        place.sink("owned")
    sink.close()


def test_a_cell_that_is_run_again(spark: SparkSession, place: Place) -> None:
    """U8: ``replace=True`` closes the sink that nobody kept, and stops its query; the rest is published once."""
    rows, journal = place.rows("cell", rows=20)
    write_files(place.folder / "cell", rows, range(2))
    for batch_id in range(4):
        journal.intend(batch_id, rows.ranges(batch_id))
        journal.seal(batch_id)
    stream = file_stream(spark, place.folder / "cell")

    def cell() -> StreamingQuery:
        writer = stream.writeStream.foreachBatch(place.sink("cell", parallelism=1, replace=True))
        return writer.option("checkpointLocation", str(place.checkpoint("cell"))).start()

    first = cell()
    first.processAllAvailable()
    write_files(place.folder / "cell", rows, range(2, 4))
    second = cell()
    assert not first.isActive
    second.processAllAvailable()
    second.stop()
    assert close("cell", final=True)
    received = Received()
    run_to_end(place.stream(spark, "cell", "r", startingOffsets="earliest"), received, place.checkpoint("cell-r"))
    received.check(rows, journal)


def test_a_deleted_checkpoint(spark: SparkSession, place: Place) -> None:
    """U2: the query with a new one is refused, with both ids, where that is asked for; nothing is published."""
    rows, _ = place.rows("deleted", rows=20)
    write_files(place.folder / "deleted", rows, range(2))
    files = file_stream(spark, place.folder / "deleted")
    sink = place.sink("deleted", parallelism=1, on_new_checkpoint="refuse")
    run_to_end(files, sink, place.checkpoint("deleted"))
    last = sink.status()["last_query"]
    assert (last["batch_id"], last["n"]) == (1, 2)
    with pytest.raises(
        StreamingQueryException, match=f"NewCheckpoint: .*after query {last['query_id']}, whose last batch"
    ):
        run_to_end(files, sink, place.checkpoint("not-deleted"))
    assert sink.status()["head"] == 2
    run_to_end(files, sink, place.checkpoint("deleted"))  # the old one goes on
    sink.close()


def test_acks_all_waits_inside_a_query(spark: SparkSession, place: Place) -> None:
    """No batch returns to Spark before the required subscriber has committed it; then the query goes on."""
    rows, journal = place.rows("acks", rows=20)
    write_files(place.folder / "acks", rows, range(3))
    for batch_id in range(3):
        journal.intend(batch_id, rows.ranges(batch_id))
        journal.seal(batch_id)
    sink = place.sink("acks", parallelism=1, acks="all", required_subscribers=["r"], acks_timeout="2min")
    received = Received()
    checkpoint = place.checkpoint("acks-p")
    with running(file_stream(spark, place.folder / "acks"), sink, checkpoint) as query:
        until(lambda: sink.status()["waiting"], "the publisher to wait")
        assert sink.status()["head"] == 1
        assert not list((checkpoint / "commits").glob("*"))
        with running(place.stream(spark, "acks", "r"), received, place.checkpoint("acks-s")):
            until(lambda: (checkpoint / "commits" / "2").exists(), "the last commit")
            received.check(rows, journal)
        assert query.isActive
    sink.close()


def test_acks_timeout_ends_the_query_with_the_names(spark: SparkSession, place: Place) -> None:
    """Who did not acknowledge is named; the batch is sealed, and not published again by the next run."""
    rows, _ = place.rows("late-acks", rows=20)
    write_files(place.folder / "late-acks", rows, range(1))
    for _ in range(2):
        sink = place.sink("late-acks", acks="all", required_subscribers=["a", "b"], acks_timeout="1s")
        with pytest.raises(StreamingQueryException, match=r"WaitTimeout: .*not acknowledged by a, b"):
            run_to_end(file_stream(spark, place.folder / "late-acks"), sink, place.checkpoint("late-acks"))
        assert sink.status()["head"] == 1
        with pytest.raises(WaitTimeout, match=r"not drained within 0\.5 s: a \(1 batches behind\), b"):
            sink.drain(0.5)
        sink.close()


def test_a_full_spool_holds_the_query_back(spark: SparkSession, place: Place) -> None:
    """At the cap the query waits for the slow subscription, naming it, and goes on when it has read."""
    rows, journal = place.rows("full", rows=1000, payload=200)
    write_files(place.folder / "full", rows, range(4))
    for batch_id in range(4):
        journal.intend(batch_id, rows.ranges(batch_id))
        journal.seal(batch_id)
    caps = {"jobpipe.spool.max_bytes": "300KiB", "jobpipe.segment.max_bytes": "64KiB", "jobpipe.retention.bytes": "0"}
    grace = {"jobpipe.retention.ack_grace": "0s", "jobpipe.retention.time": "0s"}
    sink = place.sink("full", parallelism=1, required_subscribers=["slow"], **caps, **grace)
    received = Received()
    with running(file_stream(spark, place.folder / "full"), sink, place.checkpoint("full-p")) as query:
        until(lambda: "'slow' is slowest" in (sink.status()["waiting"] or ""), "the publisher to wait")
        assert sink.status()["head"] < 4
        with running(place.stream(spark, "full", "slow"), received, place.checkpoint("full-s")):
            until(lambda: received.rows >= 4000, "all rows")
        assert query.isActive
    received.check(rows, journal)
    sink.close()


def test_a_topic_for_each_value_of_a_column(spark: SparkSession, place: Place) -> None:
    """Several sinks in one callback, exactly once each, also when the job dies between two of them."""
    rows, journals = NumberedRows("by-kind", partitions=2, rows=20), {kind: Journal() for kind in (0, 1)}
    write_files(place.folder / "by-kind", rows, range(2))
    counts = []
    for dies in (True, False):
        sinks = {kind: place.sink(f"kind-{kind}", parallelism=1) for kind in (0, 1)}

        def publish(df: DataFrame, batch_id: int, sinks: dict[int, JobPipeSink] = sinks, dies: bool = dies) -> None:
            for kind, sink in sinks.items():
                if dies and (kind, batch_id) == (1, 1):
                    raise RuntimeError("the test wants the job to die here")
                sink(df.where(F.col("partition") == kind), batch_id)

        with pytest.raises(StreamingQueryException) if dies else contextlib.nullcontext():
            run_to_end(file_stream(spark, place.folder / "by-kind"), publish, place.checkpoint("by-kind"))
        counts += [[sink.status()["sink"][what] for what in ("batches", "replayed")] for sink in sinks.values()]
        for sink in sinks.values():
            sink.close()
    assert counts == [[2, 0], [1, 0], [0, 1], [1, 0]]
    for kind, journal in journals.items():
        for batch_id in range(2):
            with journal.sealing(batch_id, {kind: rows.ranges(batch_id)[kind]}):
                pass
        checker = Checker(rows, journal)
        read = place.read(spark, f"kind-{kind}", includeMetadata=True)
        checker.take(read.orderBy("_jobpipe.offset", "_jobpipe.row").drop("_jobpipe").toArrow())
        checker.check()
