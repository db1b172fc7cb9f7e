"""Which run of which query calls a sink: by that query's id a micro-batch that comes again is known.

Spark names the query in a local property of the thread that runs the callback. A thread that the callback starts does
not have it, and one of a pool may have that of a query it worked for before. So the frame counts too: Spark clones a
session for each run of a query, and micro-batches, with all that is made of them, belong to that clone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from jobpipe.errors import ConfigError
from jobpipe.spark.termination.query_stop import QUERY_ID, QueryRun, find_run, query_stopped

FOREACH_BATCH = "ForeachBatchSink"


def calling_run(df: DataFrame, known: QueryRun | None, topic: str, batch_id: int) -> QueryRun | None:
    """Return the run that publishes ``df``; None if certainly no query does.

    Args:
        df: what is published.
        known: the run that called last; saves looking for it.
        topic: for errors.
        batch_id: for errors.

    Raises:
        ConfigError: the thread and the frame are of two queries; or it cannot be told whether a query calls.
        QueryStopped: the query has ended.
    """
    session = df.sparkSession
    named = session.sparkContext.getLocalProperty(QUERY_ID)
    run = None
    if named is not None:
        usable = known is not None and known.query_id == named and known.active()
        run = known if usable else find_run(session, named)
        if run is not None and (run.made(df) or run.runs_here()):
            return run
    of_frame = next((other for other in _runs(session) if other.made(df)), None)
    if of_frame is not None:
        if named not in (None, of_frame.query_id):
            raise _two_queries(topic, str(named), of_frame.query_id)
        if not of_frame.active():
            raise query_stopped(f"topic {topic!r}", batch_id)
        return of_frame
    if named is not None:  # inherited by this thread; the frame is not of the micro-batch
        if run is None:
            raise query_stopped(f"topic {topic!r}", batch_id)
        return run
    if _is_clone(session):
        raise query_stopped(f"topic {topic!r}: these rows are of a query's micro-batch, and", batch_id)
    # Spark runs no callback in the main thread; what a callback hands to it is known by the frame.
    if threading.current_thread() is not threading.main_thread():
        _require_no_callback(session, topic)
    return None


def _runs(spark: SparkSession) -> Iterator[QueryRun]:
    """Yield the runs of all queries that the application has now, those that are ending too."""
    for execution in spark._jsparkSession.sharedState().activeStreamingQueries().values():
        if execution is not None:  # ended meanwhile
            yield QueryRun.of(execution)


def _is_clone(spark: SparkSession) -> bool:
    """Tell whether Spark made a session for the run of a query; newSession() makes one without a parent."""
    session: Any = spark._jsparkSession
    try:
        field = session.getClass().getDeclaredField("parentSessionState")
        field.setAccessible(True)
        return bool(field.get(session).isDefined())
    except (AttributeError, TypeError, Py4JError, Py4JJavaError):  # another Spark
        return False


def _require_no_callback(spark: SparkSession, topic: str) -> None:
    """See that no query runs that may have started this thread in its callback."""
    able = [run.query_id for run in _runs(spark) if FOREACH_BATCH in run.sink_class()]
    if not able:
        return
    inside = (
        "start the thread with pyspark.inheritable_thread_target(spark)(function) as its target, wrapped in the "
        "callback"
        if isinstance(SparkContext._gateway, ClientServer)
        else "leave PYSPARK_PIN_THREAD as it is by default (true)"
    )
    raise ConfigError(
        f"topic {topic!r}: the sink was called in the thread {threading.current_thread().name!r}, which names no "
        f"query, while queries with foreachBatch run ({', '.join(able)}), and these rows are not of a micro-batch's "
        "own DataFrame. If a callback wants them published, a repeated micro-batch would publish them twice. In a "
        f"callback, publish in its own thread, or {inside}. Outside of any query, call "
        "sink.publish(df, batch_id, series='...') instead, or call the sink in the main thread",
        topic=topic,
        queries=able,
    )


def _two_queries(topic: str, of_thread: str, of_frame: str) -> ConfigError:
    return ConfigError(
        f"topic {topic!r}: the thread {threading.current_thread().name!r} works for query {of_thread}, and these rows "
        f"are of a micro-batch of query {of_frame}. A thread of a pool keeps the query that was set last: wrap each "
        "function that a callback gives to a pool in pyspark.inheritable_thread_target(spark), or publish in the "
        "callback's own thread",
        topic=topic,
        queries=[of_thread, of_frame],
    )
