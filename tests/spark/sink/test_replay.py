"""The sink publishes every micro-batch of a query once, whatever Spark plays again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobpipe import JobPipeSink
from jobpipe.errors import ConfigError, DuplicateCall, QueryStopped
from jobpipe.spark.termination.query_stop import QUERY_ID
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.docs.troubleshooting import on_page
from tests.spark.kit import Place, copy_checkpoint, file_stream, forget_commit, run_to_end, running, until, write_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


class Published:
    """A query that publishes the files of a folder, run as often as wanted; each run has a sink of its own.

    Args:
        way: ``sink``, or ``format`` for ``writeStream.format("jobpipe")``.
    """

    def __init__(self, spark: SparkSession, place: Place, topic: str, way: str = "sink", **settings: str) -> None:
        self.spark, self.place, self.topic, self.way, self.settings = spark, place, topic, way, settings
        self.files = place.folder / f"files-{topic}"
        self.checkpoint = place.checkpoint(f"p-{topic}")
        self.rows, self.journal, self.head = NumberedRows(topic, rows=30), Journal(), 0

    def add(self, *batch_ids: int) -> None:
        write_files(self.files, self.rows, batch_ids)
        for batch_id in batch_ids:
            with self.journal.sealing(batch_id, self.rows.ranges(batch_id)):
                pass

    def run(self, *, checkpoint: Path | None = None, repartition: int = 2, **given: str) -> dict[str, int]:
        """Run to the end of the files; return how many batches were published, and how many were replayed."""
        if self.way == "format":
            return self._run_by_format(checkpoint or self.checkpoint, repartition)
        sink = self.place.sink(self.topic, parallelism=2, partition_by="partition", **self.settings, **given)
        try:

            def callback(df: DataFrame, batch_id: int) -> None:  # a replayed batch need not be the same
                sink(df.repartition(repartition).sortWithinPartitions("number").withColumn("by", F.rand()), batch_id)

            run_to_end(file_stream(self.spark, self.files), callback, checkpoint or self.checkpoint)
            counts: dict[str, int] = sink.status()["sink"]
            return counts
        finally:
            sink.close()

    def _run_by_format(self, checkpoint: Path, repartition: int) -> dict[str, int]:
        stream = file_stream(self.spark, self.files).repartition(repartition, "partition")
        options = {"topic": self.topic, "parallelism": "2", "partitionBy": "partition", **self.settings}
        writer = stream.writeStream.format("jobpipe").options(**self.place.settings).options(**options)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query = writer.start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        before, self.head = self.head, self.status()["head"]
        batches = self.head - before
        return {"batches": batches, "replayed": len(query.recentProgress) - batches}

    def status(self) -> dict[str, int]:
        if self.way == "format":
            return self.place.status(self.topic)  # it is served as long as the application lives
        with self.place.publisher(self.topic) as publisher:
            return publisher.status()

    def check(self, times: int = 1) -> None:
        read = self.place.read(self.spark, self.topic, includeMetadata=True)
        table = read.orderBy("_jobpipe.offset", "number").toArrow()
        size = table.num_rows // times
        for part in range(times):
            checker = Checker(self.rows, self.journal)
            checker.take(table.slice(part * size, size))
            checker.check()


WAYS = pytest.mark.parametrize("way", ["sink", "format"])


SUBMITTED = {CHECKPOINT_MANAGER: f"{CHECKPOINTS}.FileSystemBasedCheckpointFileManager"}
SPARKS_OWN = {"fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.LocalFs"}


@pytest.mark.parametrize(
    ("way", "name", "settings"),
    [
        pytest.param("sink", "recommended", {}, marks=pytest.mark.core, id="recommended"),
        pytest.param("format", "format", {}, marks=pytest.mark.core, id="format"),
        pytest.param("sink", "submitted", SUBMITTED, id="recommended for spark-submit"),
        pytest.param("sink", "hadoop", SPARKS_OWN, marks=pytest.mark.core, id="Spark's own checkpoints"),
    ],
)
def test_a_replayed_batch_is_published_once(
    spark: SparkSession, place: Place, way: str, name: str, settings: dict[str, str]
) -> None:
    """A crash between our seal and Spark's commit: the batch comes again, and nothing is published."""
    job = Published(spark, place, f"replay-{name}", way)
    assert spark.conf.get(CHECKPOINT_MANAGER, None) is None
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        job.add(0, 1, 2)
        assert job.run()["batches"] == 3
        assert (job.checkpoint / "commits" / ".2.crc").exists()
        forget_commit(job.checkpoint, 2)
        again = job.run(repartition=3)
        assert (again["batches"], again["replayed"]) == (0, 1)
        job.add(3)
        forget_commit(job.checkpoint, 2)
        again = job.run(repartition=1)
        assert (again["batches"], again["replayed"]) == (1, 1)
        assert job.status()["head"] == 4
        job.check()
    finally:
        for key in settings:
            spark.conf.unset(key)


@WAYS
def test_a_replay_of_a_batch_that_retention_has_removed(spark: SparkSession, place: Place, way: str) -> None:
    """What was sealed is known from a row of its own, not from the batch."""
    retention = {"jobpipe.retention.time": "0s", "jobpipe.retention.ack_grace": "0s", "jobpipe.retention.bytes": "1MiB"}
    job = Published(spark, place, f"removed-{way}", way, **retention)
    job.add(0, 1)
    job.run()
    forget_commit(job.checkpoint, 1)
    if way == "format":
        until(lambda: job.status()["tail"] == 2, "retention")
    else:
        sink = place.sink(job.topic, **retention)
        until(lambda: sink.status()["tail"] == 2, "retention")
        sink.close()
    assert place.read(spark, job.topic).count() == 0
    again = job.run()
    assert (again["batches"], again["replayed"]) == (0, 1)
    assert job.status()["head"] == 2


@WAYS
def test_an_older_checkpoint_fails_and_a_deleted_one_appends(spark: SparkSession, place: Place, way: str) -> None:
    """An old copy would publish what is published, under other ids; a new checkpoint is a new query."""
    job = Published(spark, place, f"older-{way}", way)
    job.add(0)
    job.run()
    copy = copy_checkpoint(job.checkpoint, place.checkpoint(f"{job.topic}-copy"))
    job.add(1, 2)
    job.run()
    with pytest.raises(StreamingQueryException, match="CheckpointTooOld") as caught:
        job.run(checkpoint=copy)
    text = str(caught.value)
    assert "batch 1 of query" in text
    assert "batch 2 is sealed already" in text
    assert job.status()["head"] == 3
    job.check()
    shutil.rmtree(job.checkpoint)
    assert job.run()["batches"] == 3
    assert job.status()["head"] == 6
    job.check(times=2)


@pytest.mark.core
def test_two_calls_in_one_callback(spark: SparkSession, place: Place) -> None:
    """The second call in one batch is an error, not a replay that would lose its rows."""
    job = Published(spark, place, "twice")
    job.add(0)
    sink = place.sink("twice", parallelism=1)

    def callback(df: DataFrame, batch_id: int) -> None:
        sink(df.where("number < 10"), batch_id)
        sink(df.where("number >= 10"), batch_id)

    with pytest.raises(StreamingQueryException, match="DuplicateCall: topic 'twice': batch 0") as caught:
        run_to_end(file_stream(spark, job.files), callback, job.checkpoint)
    assert "call the sink once" in str(caught.value)
    sink.close()


@pytest.mark.parametrize("call", ["setJobGroup", "setLocalProperty"])
def test_a_job_group_of_the_users_own_at_each_start(spark: SparkSession, place: Place, call: str) -> None:
    """R2: a label that is the same at every start is no run id: a replay is a replay, and not a second call."""
    job = Published(spark, place, f"label-{call}".lower())
    job.add(0, 1)

    def callback(df: DataFrame, batch_id: int) -> None:
        context = df.sparkSession.sparkContext
        if call == "setJobGroup":
            context.setJobGroup("nightly", "the nightly load")
        else:
            context.setLocalProperty("spark.jobGroup.id", "nightly")
        sink(df, batch_id)

    for start in range(2):
        sink = place.sink(job.topic, parallelism=2)
        run_to_end(file_stream(spark, job.files), callback, job.checkpoint)
        assert sink.status()["sink"]["replayed"] == start
        assert sink.status()["sink"]["batches"] == 2 - 2 * start
        sink.close()
        forget_commit(job.checkpoint, 1)
    assert job.status()["head"] == 2


def test_a_job_group_changed_between_two_calls_in_one_batch(spark: SparkSession, place: Place) -> None:
    """R2: the second call's rows are not dropped in silence as a replay's."""
    job = Published(spark, place, "label-changed")
    job.add(0)
    sink = place.sink("label-changed", parallelism=1)

    def callback(df: DataFrame, batch_id: int) -> None:
        for label, rows in (("small", "number < 10"), ("large", "number >= 10")):
            df.sparkSession.sparkContext.setJobGroup(label, "")
            sink(df.where(rows), batch_id)

    with pytest.raises(StreamingQueryException, match="DuplicateCall: topic 'label-changed': batch 0"):
        run_to_end(file_stream(spark, job.files), callback, job.checkpoint)
    sink.close()


def test_one_sink_for_two_starts_of_a_query(spark: SparkSession, place: Place) -> None:
    """R2: the sink notices that the query has another run, though its id is the same."""
    job = Published(spark, place, "two-starts")
    job.add(0)
    sink = place.sink("two-starts", parallelism=1)
    run_to_end(file_stream(spark, job.files), sink, job.checkpoint)
    forget_commit(job.checkpoint, 0)
    run_to_end(file_stream(spark, job.files), sink, job.checkpoint)
    assert (sink.status()["sink"]["batches"], sink.status()["sink"]["replayed"]) == (1, 1)
    sink.close()


Publish = Callable[[DataFrame, int], object]


def in_a_thread(sink: Publish, df: DataFrame, batch_id: int) -> None:
    """Publish in a thread of the callback's own; raise what it raised."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(sink, df, batch_id).result()


def in_a_nested_thread(sink: Publish, df: DataFrame, batch_id: int) -> None:
    in_a_thread(partial(in_a_thread, sink), df.where("number >= 0"), batch_id)


def in_an_inheriting_thread(sink: Publish, df: DataFrame, batch_id: int) -> None:
    """Publish a frame of another session, in a thread to which Spark's own helper gave the query's id."""
    other = df.sparkSession.newSession().createDataFrame(df.toArrow())
    in_a_thread(inheritable_thread_target(df.sparkSession)(sink), other, batch_id)


def in_the_callback_without_its_properties(sink: Publish, df: DataFrame, batch_id: int) -> None:
    df.sparkSession.sparkContext.setLocalProperty(QUERY_ID, None)  # type: ignore[arg-type]
    sink(df, batch_id)


@pytest.mark.parametrize(
    "publish",
    [in_a_thread, in_a_nested_thread, in_an_inheriting_thread, in_the_callback_without_its_properties],
    ids=lambda publish: publish.__name__,
)
def test_a_replayed_batch_in_another_thread(spark: SparkSession, place: Place, publish: Any) -> None:
    """P1: the query is known by the frame, or by what the thread inherited, and not by the callback's thread alone."""
    job = Published(spark, place, f"thread-{publish.__name__}".replace("_", "-"))
    job.add(0, 1)
    for start in range(2):
        sink = place.sink(job.topic, parallelism=2, partition_by="partition")
        run_to_end(file_stream(spark, job.files), partial(publish, sink), job.checkpoint)
        counts = sink.status()["sink"]
        assert (counts["batches"], counts["replayed"]) == (2 - 2 * start, start)
        sink.close()
        forget_commit(job.checkpoint, 1)
    assert job.status()["head"] == 2
    job.check()


@pytest.mark.parametrize("made", ["createDataFrame", "newSession", "range"])
def test_a_frame_of_no_query_in_a_thread_of_a_callback(spark: SparkSession, place: Place, made: str) -> None:
    """P1: what cannot be told is refused, and not appended in silence."""
    job = Published(spark, place, f"frame-{made}".lower())
    job.add(0)
    sink = place.sink(job.topic, parallelism=1)

    def callback(df: DataFrame, batch_id: int) -> None:
        other = spark.newSession() if made == "newSession" else spark
        frame = other.range(3) if made == "range" else other.createDataFrame(df.toArrow())
        in_a_thread(sink, frame, batch_id)

    with pytest.raises(StreamingQueryException, match="ConfigError") as caught:
        run_to_end(file_stream(spark, job.files), callback, job.checkpoint)
    on_page(str(caught.value), "ConfigError: topic '…': the sink was called in the thread")
    assert sink.status()["head"] == 0
    sink.close()


def test_two_threads_of_one_callback(spark: SparkSession, place: Place) -> None:
    """P1: the sink writes for one after the other, and the second call in one batch is an error."""
    job = Published(spark, place, "two-threads")
    job.add(0)
    sink = place.sink(job.topic, parallelism=1)

    def callback(df: DataFrame, batch_id: int) -> None:
        with ThreadPoolExecutor(2) as pool:
            for call in [pool.submit(sink, df.where(rows), batch_id) for rows in ("number < 10", "number >= 10")]:
                call.result()

    with pytest.raises(StreamingQueryException, match="DuplicateCall: topic 'two-threads': batch 0"):
        run_to_end(file_stream(spark, job.files), callback, job.checkpoint)
    assert sink.status()["head"] == 1
    sink.close()


def test_a_thread_that_worked_for_another_query(spark: SparkSession, place: Place) -> None:
    """P1: a pool's thread keeps the other query's id, by which rows would be dropped as a replay's."""
    jobs = [Published(spark, place, f"pool-{n}") for n in range(2)]
    for job in jobs:
        job.add(0)
    sink = place.sink("pool", parallelism=1)
    with ThreadPoolExecutor(1) as pool:

        def first(df: DataFrame, batch_id: int) -> None:
            pool.submit(inheritable_thread_target(df.sparkSession)(sink), df, batch_id).result()

        def second(df: DataFrame, batch_id: int) -> None:
            pool.submit(sink, df, batch_id).result()

        with running(file_stream(spark, jobs[0].files), first, jobs[0].checkpoint) as query:
            query.processAllAvailable()
            with pytest.raises(StreamingQueryException, match="ConfigError: topic 'pool': the thread") as caught:
                run_to_end(file_stream(spark, jobs[1].files), second, jobs[1].checkpoint)
        assert "inheritable_thread_target" in str(caught.value)
        run_to_end(file_stream(spark, jobs[1].files), first, jobs[1].checkpoint)
    assert sink.status()["head"] == 2
    sink.close()


def test_batches_of_no_query_while_another_query_runs(spark: SparkSession, place: Place) -> None:
    """P1: the main thread appends as ever; in another one, what to do is said; after the query all threads append."""
    job = Published(spark, place, "beside")
    job.add(0)
    sink = place.sink("no-query", parallelism=1)
    kept: list[DataFrame] = []
    with running(file_stream(spark, job.files), lambda df, _: kept.append(df), job.checkpoint) as query:
        query.processAllAvailable()
        sink(spark.range(3), 0)
        with pytest.raises(ConfigError, match="the sink was called in the thread"):
            in_a_thread(sink, spark.range(3), 1)
        in_a_thread(partial(sink.publish, series="nightly"), spark.range(3), 0)
    with pytest.raises(QueryStopped, match="these rows are of a query's micro-batch"):
        in_a_thread(sink, kept[0], 1)
    in_a_thread(sink, spark.newSession().range(3), 1)
    assert sink.status()["head"] == 3
    sink.close()


def test_outside_a_query_a_sink_appends(spark: SparkSession, place: Place) -> None:
    """A batch job's calls count by its own ids; another sink of the same topic starts over."""
    for _ in range(2):
        sink: JobPipeSink = place.sink("batch-job", parallelism=1)
        sink(spark.range(3), 0)
        with pytest.raises(DuplicateCall):
            sink(spark.range(3), 0)
        sink(spark.range(3, 5), 7)
        sink.close()
    assert sorted(row.id for row in place.read(spark, "batch-job").collect()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_empty_micro_batches_are_published(spark: SparkSession, place: Place) -> None:
    """A micro-batch without rows passes, through both ways, and is known when it is played again."""
    for path in ("collect", "tasks"):
        job = Published(spark, place, f"empty-{path}", **{"jobpipe.write_path": path})
        job.add(0, 1)
        sink = place.sink(job.topic, parallelism=2, **job.settings)
        stream = file_stream(spark, job.files)
        run_to_end(stream.where("number >= 30"), sink, job.checkpoint)
        sink.close()
        assert place.read(spark, job.topic).count() == 30
        forget_commit(job.checkpoint, 1)
        again = place.sink(job.topic, parallelism=2, **job.settings)
        run_to_end(stream.where("number < 0"), again, job.checkpoint)
        assert again.status()["sink"]["replayed"] == 1
        again.close()
        assert place.read(spark, job.topic).count() == 30
