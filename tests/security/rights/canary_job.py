"""A Spark job that reads one topic and publishes another, then writes down all that others could see of it.

``python -m tests.security.rights.canary_job FOLDER`` with the settings as JSON on standard input.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import pickle
import sys
import urllib.request
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from jobpipe import JobPipeSink
from jobpipe.spark.options.read_options import SourceOptions
from jobpipe.spark.source.partition_reader import RangePartition
from jobpipe.store.catalog.position import Position
from jobpipe.subscribing.fetching.part_fetch import FetchRange

PAGES = ("environment/", "jobs/", "SQL/", "StreamingQuery/", "executors/")


def main() -> None:
    """Run."""
    faulthandler.dump_traceback_later(480, exit=True)  # a deadline for all of it
    folder, settings = Path(sys.argv[1]), json.load(sys.stdin)
    events = folder / "events"
    events.mkdir()
    builder = SparkSession.builder.master("local[2]").appName("canary")
    for key, value in {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        **{f"spark.{key}": value for key, value in settings.items() if key.startswith("jobpipe.ssl.")},
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("INFO")
    sink = JobPipeSink("onwards", **settings)
    stream = spark.readStream.format("jobpipe").options(**settings)
    query = (
        stream.options(subscribe="orders", name="canary", startingOffsets="earliest")
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    (folder / "progress.json").write_text(json.dumps(query.lastProgress, default=str))
    read = spark.read.format("jobpipe").options(**settings).option("subscribe", "onwards").load()
    (folder / "rows").write_text(str(read.count()))
    url = spark.sparkContext.uiWebUrl
    pages = [*PAGES, f"api/v1/applications/{spark.sparkContext.applicationId}/environment"]
    for number, page in enumerate(pages):
        with urllib.request.urlopen(f"{url}/{page}", timeout=30) as answer:  # noqa: S310 - our own, on loopback
            (folder / f"page-{number}").write_bytes(answer.read())
    options = SourceOptions.parse({**settings, "subscribe": "orders", "name": "canary"})
    place = Position("log", 1, 0)
    held = (
        options,
        options.config,
        RangePartition(FetchRange("orders", place, place, 0, "h:1")),
        sink._publisher.target(),
    )
    target, publisher = sink._publisher.target(), sink._publisher
    hidden = {"ticket": target.ticket, "token": target.log_token, "secret": publisher.coordinator.secret}
    (folder.parent / "hidden").write_text(json.dumps(hidden))  # what tasks write with, and what it follows from
    (folder / "pickled").write_bytes(pickle.dumps(held))
    (folder / "represented").write_text(repr(held) + str(read.schema) + read._jdf.queryExecution().toString())
    with (folder / "processes").open("wb") as file:
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            for name in ("cmdline", "environ"):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a worker that has just ended
                    file.write(Path(f"/proc/{process.pid}/{name}").read_bytes() + b"\n")
    sink.close()
    spark.stop()


if __name__ == "__main__":
    main()
