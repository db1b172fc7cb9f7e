"""The end of a query in the middle of a batch is no failure, whatever the callback was doing.

When a query was stopped Spark looks, by a regular expression over the error's text, whether its callback failed of an
interruption. Text that holds :data:`LIKE_AN_INTERRUPTION` is one, and the query ends without an error. On a long text,
such as Spark's own error of a cancelled job, the expression overflows the stack (seen on PySpark 4.3.0).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobpipe.errors import QueryStopped

__all__ = ["QUERY_ID", "GentleEnd", "activity", "end_after_batch", "stop_is_no_failure", "stop_query", "stoppable"]

log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
LIKE_AN_INTERRUPTION = (
    "(py4j.protocol.Py4JJavaError: An error occurred while calling it: java.lang.InterruptedException)"
)


def stoppable(callback: Callable[[DataFrame, int], object]) -> Callable[[DataFrame, int], None]:
    """Return a callback for ``foreachBatch`` that ends quietly when its query is stopped in the middle of it.

    Without it ``query.stop()``, while the callback's own jobs run, makes Spark print a StackOverflowError or report a
    failure. In either case nothing is lost: the batch runs again at the next start.

    Raises, when called:
        QueryStopped: the query was stopped; Spark takes it for the end of the query.
    """

    @functools.wraps(callback)
    def called(df: DataFrame, batch_id: int) -> None:
        query_id = df.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        with stop_is_no_failure(activity(df.sparkSession, query_id), "foreachBatch", batch_id):
            callback(df, batch_id)

    return called


@contextmanager
def stop_is_no_failure(active: Callable[[], bool], what: str, batch_id: int) -> Iterator[None]:
    """Turn any error of the block into QueryStopped if the query was stopped meanwhile."""
    try:
        yield
    except Exception:
        if active():
            raise
        raise QueryStopped(
            f"{what}: the query was stopped in batch {batch_id} {LIKE_AN_INTERRUPTION}", batch_id=batch_id
        ) from None  # Spark reads the whole text, causes included


def activity(spark: SparkSession, query_id: str | None) -> Callable[[], bool]:
    """Return a question: is the query still to go on? Without a query it always is."""
    if query_id is None:
        return lambda: True

    # foreachBatch gets a clone of the query's session, which knows none of the queries; what they share knows all.
    @functools.cache
    def find() -> tuple[Any, Any]:  # seven calls of the JVM: only for who asks
        jvm: Any = spark._jvm
        return spark._jsparkSession.sharedState(), jvm.java.util.UUID.fromString(query_id)

    def active() -> bool:
        if query_id in _ending:  # to be ended after this batch, not in it
            return True
        shared, key = find()
        query = shared.activeStreamingQueries().get(key)
        return query is not None and bool(query.isActive())

    return active


_ending: set[str] = set()  # ids of queries that end after the micro-batch they are in


class GentleEnd:
    """The end of a query after the micro-batch it is in, commit included; made by :func:`end_after_batch`."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._id = str(query.id)
        self._quiet = 0  # how often, one after the other, no micro-batch was seen
        self._gentle = False
        _ending.add(self._id)
        try:
            self._no_more_batches()
            self._gentle = True
        except (
            AttributeError,
            TypeError,
            Py4JError,
        ) as error:  # another Spark
            log.debug("query %s cannot be ended gently: %s", self._id, error)

    def _no_more_batches(self) -> None:
        # Spark asks before each micro-batch whether the query is still active, and nothing asks in the middle of one;
        # query.stop() does the same and then interrupts the thread.
        query: Any = self._query
        jvm: Any = SparkContext._jvm
        runtime = jvm.org.apache.spark.sql.execution.streaming.runtime
        query._jsq.streamingQuery().state().set(getattr(getattr(runtime, "TERMINATED$"), "MODULE$"))

    def poll(self) -> bool:
        """Tell whether the query has ended; once no micro-batch is under way it is stopped, as it may be asleep."""
        if not self._gentle:
            self.now()
            return True
        self._quiet = 0 if self._query.status["isTriggerActive"] else self._quiet + 1
        if self._quiet < 2:  # a trigger that had just looked is active the next time
            return False
        self.now()
        return True

    def now(self) -> None:
        """Stop the query at once."""
        _ending.discard(self._id)
        try:
            self._query.stop()
        except (PySparkException, Py4JError) as error:
            log.debug("query %s: %s", self._id, error)


def end_after_batch(query: StreamingQuery) -> GentleEnd:
    """Let a query begin no further micro-batch; the one that is under way runs to its end, if it is let."""
    return GentleEnd(query)


def stop_query(spark: SparkSession, query_id: str) -> None:
    """Stop a query by its id, from whatever session; one that has ended is left alone."""
    jvm: Any = spark._jvm
    query = spark._jsparkSession.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query_id))
    if query is not None:
        query.stop()
