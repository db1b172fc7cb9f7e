"""The sink publishes every micro-batch of a query once, whatever Spark plays again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobpipe import JobPipeSink
from jobpipe.errors import DuplicateCall
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.spark.kit import Place, copy_checkpoint, file_stream, forget_commit, run_to_end, until, write_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


class Published:
    """A query that publishes the files of a folder, run as often as wanted; each run has a sink of its own."""

    def __init__(self, spark: SparkSession, place: Place, topic: str, **settings: str) -> None:
        self.spark, self.place, self.topic, self.settings = spark, place, topic, settings
        self.files = place.folder / f"files-{topic}"
        self.checkpoint = place.checkpoint(f"p-{topic}")
        self.rows, self.journal = NumberedRows(topic, rows=30), Journal()

    def add(self, *batch_ids: int) -> None:
        write_files(self.files, self.rows, batch_ids)
        for batch_id in batch_ids:
            with self.journal.sealing(batch_id, self.rows.ranges(batch_id)):
                pass

    def run(self, *, checkpoint: Path | None = None, repartition: int = 2, **given: str) -> dict[str, int]:
        """Run to the end of the files; return what the sink counted."""
        sink = self.place.sink(self.topic, parallelism=2, partition_by="partition", **self.settings, **given)
        try:

            def callback(df: DataFrame, batch_id: int) -> None:  # a replayed batch need not be the same
                sink(df.repartition(repartition).sortWithinPartitions("number").withColumn("by", F.rand()), batch_id)

            run_to_end(file_stream(self.spark, self.files), callback, checkpoint or self.checkpoint)
            counts: dict[str, int] = sink.status()["sink"]
            return counts
        finally:
            sink.close()

    def status(self) -> dict[str, int]:
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


@pytest.mark.core
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("recommended", {}),
        ("submitted", {CHECKPOINT_MANAGER: f"{CHECKPOINTS}.FileSystemBasedCheckpointFileManager"}),
        ("hadoop", {"fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.LocalFs"}),
    ],
    ids=["recommended", "recommended for spark-submit", "Spark's own checkpoints"],
)
def test_a_replayed_batch_is_published_once(
    spark: SparkSession, place: Place, name: str, settings: dict[str, str]
) -> None:
    """A crash between our seal and Spark's commit: the batch comes again, and nothing is published."""
    job = Published(spark, place, f"replay-{name}")
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


def test_a_replay_of_a_batch_that_retention_has_removed(spark: SparkSession, place: Place) -> None:
    """What was sealed is known from a row of its own, not from the batch."""
    retention = {"jobpipe.retention.time": "0s", "jobpipe.retention.ack_grace": "0s", "jobpipe.retention.bytes": "1MiB"}
    job = Published(spark, place, "removed", **retention)
    job.add(0, 1)
    job.run()
    forget_commit(job.checkpoint, 1)
    sink = place.sink("removed", **retention)
    until(lambda: sink.status()["tail"] == 2, "retention")
    sink.close()
    assert place.read(spark, "removed").count() == 0
    again = job.run()
    assert (again["batches"], again["replayed"]) == (0, 1)
    assert job.status()["head"] == 2


def test_an_older_checkpoint_fails_and_a_deleted_one_appends(spark: SparkSession, place: Place) -> None:
    """An old copy would publish what is published, under other ids; a new checkpoint is a new query."""
    job = Published(spark, place, "older")
    job.add(0)
    job.run()
    copy = copy_checkpoint(job.checkpoint, place.checkpoint("p-older-copy"))
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
