"""A driver whose JVM is killed before it sends what tasks returned: ``jvm_lost.py TOPIC sink|rows|collect``."""

import json
import os
import signal
import sys
from typing import Any

import psutil
import pyspark.util
from session import session

import jobpipe
from jobpipe.spark.session.collect_rows import collect_rows
from jobpipe.spark.sink import foreach_batch_sink as sink_module

MANY = 50_000
topic, what = sys.argv[1:]
sink_module.end_with_jvm = lambda spark: None  # type: ignore[assignment,misc]  # this program looks on
spark = session("local[2]")
assert spark.sparkContext._jvm is not None
jvm = psutil.Process(int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()))
connect = pyspark.util._create_local_socket


def connect_and_kill(info: Any) -> Any:
    """Connect to where the JVM serves results; it is gone on return."""
    opened = connect(info)
    jvm.send_signal(signal.SIGKILL)
    jvm.wait(30.0)
    return opened


rows = spark.range(100).withColumnRenamed("id", "n")
raised = sealed = None
if what == "sink":
    sink = jobpipe.JobPipeSink(topic, write_path="tasks", parallelism=2)
    pyspark.util._create_local_socket = connect_and_kill  # type: ignore[assignment]
    try:
        sink(rows, 0)
    except Exception as error:
        raised = type(error).__name__
    sealed = None if (last := sink._publisher.last_sealed(sink._own_query)) is None else last.batch_id
else:
    pyspark.util._create_local_socket = connect_and_kill  # type: ignore[assignment]
    try:
        many = spark.range(MANY).selectExpr("repeat('x', 1000)")  # more than fits between the two processes
        sealed = len(many.collect() if what == "collect" else collect_rows(many))
    except Exception as error:
        raised = type(error).__name__
print(json.dumps({"raised": raised, "sealed": None if sealed is None else str(sealed)}), flush=True)
os._exit(0)
