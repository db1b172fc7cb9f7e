"""``jobpipe.close``; and the topics that queries of this program publish by ``writeStream.format("jobpipe")``."""

from __future__ import annotations

import sys

import psutil

from jobpipe.config import load
from jobpipe.coordinator.presence import Parent
from jobpipe.publisher import opened
from jobpipe.publisher.shared import SharedTopic, shared_topics
from jobpipe_registry.machine import start_ticks


def written_topics() -> list[SharedTopic]:
    """Return the topics that the JVM of this program's session publishes; none without a classic session.

    Those that a query opened with an option of its own for home, registry or namespace are not found.

    Raises:
        ConfigError: the session's settings do not fit.
    """
    if "pyspark" not in sys.modules:
        return []
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    from jobpipe.spark.classic import session_settings

    spark = None if is_remote() else getattr(SparkSession, "_instantiatedSession", None)
    jvm = None if spark is None else spark.sparkContext._jvm
    if spark is None or jvm is None:
        return []
    try:
        process = psutil.Process(int(jvm.java.lang.ProcessHandle.current().pid()))
        driver = Parent(process.pid, process.create_time(), start_ticks(process.pid))
    except psutil.Error:  # on another host, or gone
        return []
    return shared_topics(driver, load(spark=session_settings(spark)))


def close(topic: str, final: bool = False) -> bool:
    """Close this program's publisher of ``topic``; with ``final`` seal an end mark.

    It is a sink, a plain publisher, or what queries and batch writes by ``format("jobpipe")`` have opened. For a
    notebook that made the sink inline, and has nothing left to call ``close()`` of. Queries that publish by it are left
    alone. With their next batch those with a sink fail, and those with the format open the topic again: stop them
    first.

    Returns:
        False if there was none.
    """
    found = opened.close(topic, final)
    for shared in written_topics():
        if shared.topic == topic:
            shared.close(final)
            found = True
    return found
