"""The session of a driver program of the tests; settings of jobpipe come by environment."""

import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from jobpipe.spark.session.job_session import recommended_conf
from tests.harness.jvm import quick_plain


def session(master: str, *, checkpoints_local: bool = True, **conf: str) -> SparkSession:
    """Return a session with the tests' settings; underscores in ``conf`` stand for dots."""
    builder = SparkSession.builder.master(master).appName("job")
    settings = {
        **recommended_conf(checkpoints_local),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.extraJavaOptions": quick_plain(),
        "spark.sql.shuffle.partitions": "2",
        **{key.replace("_", "."): value for key, value in conf.items()},
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def started(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query, and wait until it runs; again when Spark could not start the Python process of its source.

    Spark gives that process 10 s, whatever else starts at the same time: start queries one after the other.
    """
    for attempts_left in range(9, -1, -1):
        query = writer.start()
        while query.isActive and query.status["message"].startswith(("Initializing", "Terminated")):
            time.sleep(0.05)
        if query.isActive or not attempts_left or "failed to connect back" not in str(query.exception()):
            break
    return query
