"""``made_session.py ours|plain|submitted WORD``: what ``jobpipe.session`` makes of a builder, and what the doctor says.

The last line is JSON. WORD tells this program's sessions from others of this user.
"""

import json
import sys
from dataclasses import asdict

from pyspark.sql import SparkSession

import jobpipe
from jobpipe.cli.doctor.host_checks import running_sessions
from jobpipe.spark.session.job_session import ARROW_ROWS, SHUFFLE_PARTITIONS, UNIX_SOCKETS
from jobpipe.spark.session.local_checkpoint_files import FILE_IMPL

KEYS = (UNIX_SOCKETS, ARROW_ROWS, SHUFFLE_PARTITIONS, FILE_IMPL)


def builder():
    return (
        SparkSession.builder.master("local[3]")
        .appName(f"made {sys.argv[1]} {sys.argv[2]}")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
    )


def settings(spark):
    return {**{key: spark.conf.get(key, None) for key in KEYS}, "partitions": partitions(spark)}


def partitions(spark):
    """Return how many partitions a shuffle has; AQE would join small ones."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    return spark.range(100).repartition("id").rdd.getNumPartitions()


def found(spark):
    return {"settings": settings(spark), "doctor": [asdict(finding) for finding in running_sessions()]}


if sys.argv[1] == "ours":
    first = jobpipe.session(builder().config(ARROW_ROWS, "77"))
    answer = found(first)
    answer["again"] = jobpipe.session() is first and settings(first) == answer["settings"]
    first.stop()
    second = jobpipe.session(builder().config(SHUFFLE_PARTITIONS, "5"))
    answer["second"] = settings(second)
    second.stop()
    answer["third"] = settings(jobpipe.session(builder().master("local[2]")))
elif sys.argv[1] == "plain":
    spark = builder().getOrCreate()
    answer = {"before": found(spark), "after": settings(jobpipe.session())}
else:
    answer = found(jobpipe.session(builder()))
print(json.dumps(answer))
