"""A program whose settings come after its JVM: ``settings.py MASTER TOPIC KEY=VALUE...``, run by spark-submit."""

import json
import sys

from pyspark.sql import SparkSession
from session import session

import jobpipe


def rows(spark: SparkSession) -> int | str:
    """Return how many rows the topic has, or why it cannot be read."""
    try:
        options = {"subscribe": topic, "discoveryTimeout": "2s"}
        return spark.read.format("jobpipe").options(**options).load().count()
    except Exception as error:
        return str(error)


master, topic, *pairs = sys.argv[1:]
spark = session(master, **dict(pair.split("=", 1) for pair in pairs))
before = rows(spark)
jobpipe.register(spark)
print(json.dumps({"before": before, "after": rows(spark)}))
spark.stop()
