"""A program as a new user writes it: ``first_import.py early|late``; prints what happened as JSON.

``early``: jobpipe is imported before the session; a topic is published by tasks and read. ``late``: the session is
there first.
"""

import json
import os
import sys

from pyspark.sql import SparkSession

found = {}
when = sys.argv[1]
if when == "early":
    import jobpipe  # noqa: F401  for what the import does

    found["variable"] = os.environ.get("PYSPARK_PYTHON")
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")


def attempt(name, work):
    try:
        found[name] = work()
    except Exception as error:
        found[name] = str(error)


def read():
    return spark.read.format("jobpipe").option("subscribe", "first").option("discoveryTimeout", "30s").load().count()


def publish():
    from jobpipe import JobPipeSink

    sink = JobPipeSink("first", write_path="tasks")
    try:
        sink(spark.range(10), 0)
        return read()
    finally:
        sink.close()


if when == "late":
    attempt("read", read)
attempt("publish", publish)
print(json.dumps(found))
spark.stop()
