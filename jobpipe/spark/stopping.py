"""The end of a query in the middle of a batch is no failure, whatever the callback was doing.

When a query was stopped Spark looks, by a regular expression over the error's text, whether its callback failed of an
interruption. Text that holds :data:`LIKE_AN_INTERRUPTION` is one, and the query ends without an error. On a long text,
such as Spark's own error of a cancelled job, the expression overflows the stack (seen on PySpark 4.3.0).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from jobpipe.errors import QueryStopped

__all__ = ["QUERY_ID", "activity", "stop_is_no_failure", "stoppable"]

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
        shared, key = find()
        query = shared.activeStreamingQueries().get(key)
        return query is not None and bool(query.isActive())

    return active
