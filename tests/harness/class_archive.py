"""``python -m tests.harness.class_archive spark`` or ``zookeeper``: archives with which JVMs start faster in tests.

Most of Spark's start is loading classes. A class data archive (JEP 350) has them as the JVM wants them in memory:
measured on 2 cores, a driver has done its fifth micro-batch after 4.3 s instead of 7.6 s. A driver program that does
what the tests do makes it. It lies beside the environment whose jars it is of. A JVM whose class path begins otherwise,
or whose jars have changed, starts without it and says nothing. So there are two: with our jar before Spark's, and
without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from kazoo.client import KazooClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.readwriter import DataStreamWriter

from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper
from tests.harness.jvm import DRIVER_ARCHIVE, PLAIN_ARCHIVE, QUICK, QUIET, ZOOKEEPER_ARCHIVE
from tests.spark.jobs.session import session

SECONDS = 300.0
SCHEMA = "id long, text string, at timestamp"


class Rows(DataSource):
    """A source in Python, as jobpipe's is."""

    def schema(self) -> str:
        """Return its columns."""
        return SCHEMA

    def reader(self, schema: object) -> DataSourceReader:
        """Return its batch reader."""
        return RowsReader()

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        """Return its stream reader."""
        return RowsStream()


class RowsReader(DataSourceReader):
    """Ten rows in each of two partitions."""

    def partitions(self) -> list[InputPartition]:
        """Return the partitions."""
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one."""
        ids = pa.array(range(10), pa.int64())
        times = pa.array(range(10), pa.timestamp("us", "UTC"))
        yield pa.record_batch([ids, ids.cast(pa.string()), times], names=["id", "text", "at"])


class RowsStream(DataSourceStreamReader):
    """The same rows again and again."""

    def __init__(self) -> None:
        self.at = 0

    def initialOffset(self) -> dict[str, int]:
        """Return where a stream begins."""
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        """Return one more each time."""
        self.at += 1
        return {"at": self.at}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the partitions of a micro-batch."""
        return RowsReader().partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one."""
        return RowsReader().read(partition)


def work(spark: SparkSession, folder: Path) -> None:
    """Do what the tests do: files, SQL, tasks in Python, streams with and without state."""
    spark.dataSource.register(Rows)
    spark.read.format("Rows").load().createOrReplaceTempView("rows")
    for kind in ("parquet", "csv", "json", "orc", "text"):
        columns = "text" if kind == "text" else "id, text"
        spark.sql(f"select {columns} from rows").write.format(kind).save(str(folder / kind))  # noqa: S608 - its own
        spark.read.format(kind).load(str(folder / kind)).collect()
    spark.sql(
        "select a.id, count(*) as n, sum(a.id) as total, max(b.text) as last, row_number() over (order by a.id) as nth "
        "from rows a join rows b on a.id = b.id where a.id % 2 = 0 and b.text like '%' group by a.id order by a.id"
    ).toArrow()
    spark.sql("select text, at from rows").mapInArrow(lambda batches: batches, "text string, at timestamp").collect()
    stream = spark.readStream.format("Rows").load()
    counts = stream.withWatermark("at", "1 second").groupBy("text").count()

    def publish(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        batch.repartition(2, "id").sortWithinPartitions("id").mapInArrow(lambda batches: batches, SCHEMA).toArrow()
        batch.unpersist()

    def count(batch: DataFrame, batch_id: int) -> None:
        batch.toArrow()

    files = spark.readStream.schema("id long, text string").parquet(str(folder / "parquet"))
    run(stream.writeStream.foreachBatch(publish), folder / "publish", batches=4)
    run(counts.writeStream.foreachBatch(count).outputMode("update"), folder / "counts", batches=4)
    run(files.writeStream.format("parquet").option("path", str(folder / "out")), folder / "files", batches=1)


def run(writer: DataStreamWriter, checkpoint: Path, batches: int) -> None:
    """Run a query until it has done so many micro-batches."""
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < batches - 1):
        query.awaitTermination(1)
    query.stop()


def make(kind: str, archive: Path) -> None:
    """Run this program in a process of its own, whose JVM writes the archive when it ends."""
    made = archive.with_suffix(f".{os.getpid()}")
    options = f"{QUICK} -XX:ArchiveClassesAtExit={made} {QUIET}"
    command = [sys.executable, "-m", __spec__.name, kind]
    environ = {**os.environ, "SPARK_SUBMIT_OPTS": options, "SPARK_LOCAL_IP": "127.0.0.1"}
    try:  # the pipe is at its end when the JVM is, too
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, timeout=SECONDS)
        if done.returncode or not made.is_file():
            sys.exit(f"no class archive for Spark's JVM was made:\n{done.stdout.decode(errors='replace')}")
        made.replace(archive)
    finally:
        made.unlink(missing_ok=True)


def use(options: dict[str, str]) -> None:
    """Do with a ZooKeeper what the tests do: nodes, watches, a transaction."""
    files = {"ca": options["ssl.ca"], "certfile": options["ssl.cert"], "keyfile": options["ssl.key"]}
    client = KazooClient(options["connect"], use_ssl=True, check_hostname=False, **files)
    try:
        client.start(SECONDS)
        for number in range(20):
            client.create(f"/node-{number}", b"value", ephemeral=bool(number % 2))
            client.exists(f"/node-{number}", watch=lambda event: None)
            client.set(f"/node-{number}", b"another")
        transaction = client.transaction()
        transaction.delete("/node-0")
        transaction.commit()
        client.get_children("/", watch=lambda event: None)
    finally:
        client.stop()
        client.close()


def make_zookeeper(archive: Path) -> None:
    """Run an embedded server, whose JVM writes the archive when it ends."""
    made = archive.with_suffix(f".{os.getpid()}")
    os.environ["SERVER_JVMFLAGS"] = f"-XX:ArchiveClassesAtExit={made} {QUIET}"
    try:
        with tempfile.TemporaryDirectory() as home:
            server = EmbeddedZooKeeper(Path(home))
            try:
                use(server.options())
            finally:
                server.stop()
        if not made.is_file():
            sys.exit("no class archive for ZooKeeper's JVM was made")
        made.replace(archive)
    finally:
        made.unlink(missing_ok=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["spark"]:
            with ThreadPoolExecutor() as pool:
                list(pool.map(make, ("plain", "driver"), (PLAIN_ARCHIVE, DRIVER_ARCHIVE)))
        case ["zookeeper"]:
            make_zookeeper(ZOOKEEPER_ARCHIVE)
        case [kind]:
            with tempfile.TemporaryDirectory() as scratch:
                spark = session("local[2]", checkpoints_local=kind == "driver")
                work(spark, Path(scratch))
            if kind == "plain":  # the classes of master and worker, which run in the driver here
                spark.stop()
                session("local-cluster[1,1,1024]", checkpoints_local=False).range(2).collect()
