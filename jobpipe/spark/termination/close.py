"""``jobpipe.close``; and the topics that this program's JVM publishes by ``format("jobpipe")``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import psutil

from jobpipe.config import load
from jobpipe.publishing import open_publishers
from jobpipe.publishing.coordinator_launcher import parent_of
from jobpipe.publishing.serving.shared_topics import SharedTopic, TopicMark, shared_topics

FORMAT = "jobpipe"
PYTHON_TABLE = ".PythonTable"  # the class of sinks in Python; some of the others refuse to tell their names


def _session() -> tuple[Any, psutil.Process] | None:
    """Return the classic session and its JVM; None if there is none here."""
    if "pyspark" not in sys.modules:
        return None
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    spark = None if is_remote() else getattr(SparkSession, "_instantiatedSession", None)
    jvm = None if spark is None else spark.sparkContext._jvm
    if jvm is None:
        return None
    try:
        return spark, psutil.Process(int(jvm.java.lang.ProcessHandle.current().pid()))
    except (Py4JError, OSError, psutil.Error):  # gone, or on another host
        return None


def written_topics() -> list[SharedTopic]:
    """Return the topics that the JVM of this program's session publishes; none without a classic session.

    Those that a query opened with options of its own for home, registry, namespace or certificates are not found.

    Raises:
        ConfigError: the session's settings do not fit.
    """
    found = _session()
    if found is None:
        return []
    from jobpipe.spark.session.classic_session import session_settings

    spark, jvm = found
    try:
        return shared_topics(parent_of(jvm), load(spark=session_settings(spark)))
    except psutil.Error:  # the JVM is gone
        return []


def topics_of(queries: Sequence[Any]) -> list[SharedTopic]:
    """Return the topics that classic queries publish by the format, if they have published nothing yet as well.

    Raises:
        ConfigError: the options of one, or the session's settings, do not fit.
    """
    found = _session()
    if found is None:
        return []
    from jobpipe.spark.options.write_options import WriterOptions
    from jobpipe.spark.session.classic_session import session_settings
    from jobpipe.spark.session.launch_settings import launch_of

    spark, jvm = found
    topics = []
    for query in queries:
        execution = query._jsq.streamingQuery()
        sink = execution.sink()
        if not sink.getClass().getName().endswith(PYTHON_TABLE) or sink.name() != FORMAT:
            continue
        written = execution.logicalPlan().writeOptions()
        pairs = (entry.next() for entry in [written.iterator()] for _ in range(written.size()))
        given = {str(pair._1()): str(pair._2()) for pair in pairs}
        options = WriterOptions.parse(given, launch_of(jvm), session_settings(spark), streaming=True)
        topics.append(SharedTopic(TopicMark(parent_of(jvm), options.config, options.topic), options.settings))
    return topics


def close(topic: str, final: bool = False) -> bool:
    """Close this program's publisher of ``topic``; with ``final`` seal an end mark.

    It is a sink, a plain publisher, or what queries and batch writes by ``format("jobpipe")`` have opened. For a
    notebook that made the sink inline, and has nothing left to call ``close()`` of. Queries that publish by it are left
    alone. With their next batch those with a sink fail, and those with the format open the topic again: stop them
    first.

    Returns:
        False if there was none.

    Raises:
        JobpipeError: with ``final``: the end mark may be missing; call it again.
    """
    found = open_publishers.close(topic, final)
    for shared in written_topics():
        if shared.topic == topic:
            shared.close(final)
            found = True
    return found
