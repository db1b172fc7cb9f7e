"""Spark settings that jobpipe recommends, each with what it buys (measured on PySpark 4.3, 2 cores)."""

from __future__ import annotations

import logging

from jobpipe.spark.local_files import hindrance, in_process_conf

log = logging.getLogger(__name__)


def recommended_conf(checkpoints_local: bool = False) -> dict[str, bool | float | int | str | None]:
    """Return the settings for ``SparkSession.builder.config(map=...)``.

    Call it where the session is made: what it returns depends on whether the JVM runs already.

    Args:
        checkpoints_local: all checkpoints are ``file:`` on a local disk. Brings Spark's two logs from about 100 ms to
            3 ms a micro-batch, with the same files as otherwise. If the JVM runs already, as under spark-submit, to
            about 30 ms, with a weaker rename; the log (INFO) says why.

    Raises:
        ConfigError: Spark's own ``spark-defaults.conf`` cannot be read.
    """
    conf: dict[str, bool | float | int | str | None] = {
        # Every Python task loses 40 ms to delayed ACKs on its TCP socket otherwise.
        "spark.python.unix.domain.socket.enabled": "true",
        # Fewer, larger record batches than with the default of 10,000 rows; what that buys is little (docs/tuning.md).
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    }
    if checkpoints_local:
        if (why := hindrance()) is None:
            return conf | in_process_conf()
        log.info("Spark will start processes for the files of its checkpoints: %s (docs/tuning.md)", why)
        conf["spark.sql.streaming.checkpointFileManagerClass"] = (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        )
    return conf
