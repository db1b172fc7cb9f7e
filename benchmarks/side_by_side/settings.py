"""The Spark settings, one for all contestants: those that docs/tuning.md recommends, and what a small machine needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from jobpipe.spark.session.job_session import recommended_conf

DRIVER_MEMORY = "1g"


def session(name: str, folder: Path, cores: int, more: Mapping[str, str]) -> SparkSession:
    """Return the session of one job: ``local[cores]``, Python workers over unix domain sockets, quick checkpoints.

    Args:
        more: What the contestant's own format needs: jars; nothing that makes Spark itself faster.
    """
    conf = {
        **recommended_conf(checkpoints_local=True),
        "spark.hadoop.fs.file.impl": "jobpipe.hadoop.InProcessLocalFileSystem",  # the same for the files of `files`
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **more,
    }
    return SparkSession.builder.appName(name).master(f"local[{cores}]").config(map=conf).getOrCreate()
