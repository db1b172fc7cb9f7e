"""A backlog that outgrows memory: 5 GB published through tasks, then read by a fresh subscriber in small micro-batches.

Measures the peak memory of every Python process of both sides, and the time of each side. The limit is 600 MB for each
process; the script fails above it, or when a row is missing.

    python benchmarks/backlog.py [--gigabytes 5]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

LIMIT_MB = 600
ROW_BYTES = 108  # a long and a string of 96 characters, with its offset
BATCHES = 4


def publish(work: Path, rows: int) -> None:
    """Publish ``rows`` in a few large batches, each by two tasks."""
    from pyspark.sql import functions as F  # noqa: N812

    from jobpipe import JobPipeSink

    spark = session()
    sink = JobPipeSink(
        "backlog",
        parallelism=2,
        write_path="tasks",
        spool_max_bytes="40GiB",
        retention_bytes="40GiB",
        retention_time="2h",
    )
    began = time.monotonic()
    per_batch = rows // BATCHES
    for number in range(BATCHES):
        df = spark.range(number * per_batch, (number + 1) * per_batch, 1, 2)
        sink(df.withColumn("text", F.rpad(F.col("id").cast("string"), 96, "x")), number)
    seconds = time.monotonic() - began
    status = sink.status()
    print(json.dumps({"rows": status["rows"], "bytes": status["bytes"], "seconds": seconds}), flush=True)
    sys.stdin.readline()  # serve until the subscriber is done
    sink.close()


def subscribe(work: Path, rows: int) -> None:
    """Read everything in micro-batches a quarter of the size of the published ones."""
    from jobpipe import await_end

    spark = session()
    df = (
        spark.readStream.format("jobpipe")
        .option("subscribe", "backlog")
        .option("name", "reader")
        .option("startingOffsets", "earliest")
        .option("maxRowsPerTrigger", rows // BATCHES // 4)
        .load()
    )
    seen = {"rows": 0, "sum": 0, "batches": 0}

    def count(batch, number):  # type: ignore[no-untyped-def]
        row = batch.selectExpr("count(*) AS n", "sum(id) AS s", "sum(length(text)) AS l").first()
        seen["rows"] += row.n
        seen["sum"] += row.s or 0
        seen["batches"] += 1

    began = time.monotonic()
    writer = df.writeStream.foreachBatch(count).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(work / "ck")).start()
    await_end(query, 3600)
    seconds = time.monotonic() - began
    print(json.dumps({**seen, "seconds": seconds}), flush=True)


def session():  # type: ignore[no-untyped-def]
    """A session as the tuning page has it."""
    from pyspark.sql import SparkSession

    from jobpipe.spark.session.job_session import recommended_conf

    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    conf |= recommended_conf(checkpoints_local=True)
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Peaks:
    """Peak resident memory of the Python processes that this one started, by what they are."""

    def __init__(self) -> None:
        self.mb: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._thread.start()
        yield
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        home = os.environ["JOBPIPE__HOME"]
        while not self._stop.wait(0.2):
            for process in psutil.process_iter(["cmdline", "name"]):
                try:
                    line = process.info["cmdline"] or []
                    if "python" not in (process.info["name"] or "") or process.pid == me.pid:
                        continue
                    if process.environ().get("JOBPIPE__HOME") != home:
                        continue
                    kind = kind_of(line)
                    self.mb[kind] = max(self.mb.get(kind, 0.0), process.memory_info().rss / 1e6)
                except psutil.Error:
                    continue


def kind_of(line: list[str]) -> str:
    """Name a process by its command line."""
    text = " ".join(line)
    for mark, name in (
        ("jobpipe.coordinator.data.data_process", "data process"),
        ("jobpipe.coordinator", "coordinator"),
        ("python_streaming_source_runner", "source runner"),
        ("pyspark.daemon", "Spark worker"),
        ("pyspark.worker", "Spark worker"),
        ("jobpipe_registry", "registry supervisor"),
        ("--role publish", "publisher driver"),
        ("--role subscribe", "subscriber driver"),
    ):
        if mark in text:
            return name
    return "other: " + text[:60]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--role", choices=["publish", "subscribe"])
    parser.add_argument("--work", type=Path)
    args = parser.parse_args()
    rows = int(args.gigabytes * 1e9 / ROW_BYTES) // (BATCHES * 2) * BATCHES * 2
    if args.role:
        {"publish": publish, "subscribe": subscribe}[args.role](args.work, rows)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"JOBPIPE__HOME": f"{folder}/home", "PYSPARK_PYTHON": sys.executable}
        common = [sys.executable, __file__, "--gigabytes", str(args.gigabytes), "--work", folder]
        peaks = Peaks()
        with peaks.watching():
            publisher = subprocess.Popen(
                [*common, "--role", "publish"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            published = json.loads(publisher.stdout.readline())
            size, seconds = published["bytes"] / 1e9, published["seconds"]
            print(f"published {size:.2f} GB, {published['rows']:,} rows in {seconds:.1f} s")
            done = subprocess.run([*common, "--role", "subscribe"], stdout=subprocess.PIPE, text=True, check=True)
            read = json.loads(done.stdout.splitlines()[-1])
            print(f"read {read['rows']:,} rows in {read['batches']} micro-batches in {read['seconds']:.1f} s")
            publisher.communicate("\n", timeout=120)
        from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper

        EmbeddedZooKeeper(Path(folder) / "home").stop()
    for kind, mb in sorted(peaks.mb.items()):
        print(f"{kind:24} {mb:7.0f} MB")
    whole = read["rows"] == published["rows"] == rows and read["sum"] == rows * (rows - 1) // 2
    print(f"every row once: {'yes' if whole else 'NO'}; largest {max(peaks.mb.values()):.0f} MB, limit {LIMIT_MB} MB")
    return 0 if whole and max(peaks.mb.values()) < LIMIT_MB else 1


if __name__ == "__main__":
    sys.exit(main())
