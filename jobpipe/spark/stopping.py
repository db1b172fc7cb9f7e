"""The end of a query in the middle of a batch is no failure, whatever the callback was doing.

When a query was stopped Spark looks, by a regular expression over the error's text, whether its callback failed of an
interruption. Text that holds :data:`LIKE_AN_INTERRUPTION` is one, and the query ends without an error. On a long text,
such as Spark's own error of a cancelled job, the expression overflows the stack (seen on PySpark 4.3.0).
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jobpipe.errors import QueryStopped

log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
LIKE_AN_INTERRUPTION = (
    "(py4j.protocol.Py4JJavaError: An error occurred while calling it: java.lang.InterruptedException)"
)

LOOK_SECONDS = 0.1  # for how long one call looks for a moment at which a query can be ended

_ending: set[str] = set()  # ids of queries that end after the micro-batch they are in


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

        def active() -> bool:
            return query_id is None or find_run(df.sparkSession, query_id) is not None

        with stop_is_no_failure(active, "foreachBatch", batch_id):
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
        raise query_stopped(what, batch_id) from None  # Spark reads the whole text, causes included


def query_stopped(what: str, batch_id: int) -> QueryStopped:
    """Return the error that Spark takes for the end of the query."""
    return QueryStopped(f"{what}: the query was stopped in batch {batch_id} {LIKE_AN_INTERRUPTION}", batch_id=batch_id)


@dataclass(frozen=True)
class QueryRun:
    """One run of a query, from a start to its end, as the JVM knows it.

    A run is not known by ``spark.jobGroup.id``: Spark sets that to the run id, but users set job groups of their own.

    Attributes:
        query_id: from the checkpoint, the same at every start.
        id: another one at each start.
    """

    query_id: str
    id: str
    _execution: Any  # the JVM's StreamExecution

    @classmethod
    def of(cls, execution: Any) -> QueryRun:
        """Return the run of a StreamExecution."""
        return cls(str(execution.id().toString()), str(execution.runId().toString()), execution)

    def made(self, df: DataFrame) -> bool:
        """Tell whether a frame is of a micro-batch of this run, or was made of one: it has the run's own session."""
        return bool(self._execution.sparkSessionForStream().equals(df.sparkSession._jsparkSession))

    def runs_here(self) -> bool:
        """Tell whether this thread is the one in which Spark runs the query, and its callback."""
        jvm: Any = SparkContext._jvm
        return bool(jvm.java.lang.Thread.currentThread().equals(self._execution.queryExecutionThread()))

    def sink_class(self) -> str:
        """Return the class of what the query writes to."""
        return str(self._execution.sink().getClass().getName())

    def active(self) -> bool:
        """Tell whether this run is to go on, if only to the end of its micro-batch; one call of the JVM."""
        return self.query_id in _ending or bool(self._execution.isActive())

    def stop(self) -> None:
        """Stop it at once, from whatever session; one that has ended is left alone."""
        self._execution.stop()


def find_run(spark: SparkSession, query_id: str) -> QueryRun | None:
    """Return the run of a query that goes on now, None when it was stopped. Eight calls of the JVM: keep the answer.

    Args:
        spark: any session of the query. ``foreachBatch`` gets a clone, which knows none of the queries; what the
            sessions share knows all. An id runs once at a time there.
    """
    jvm: Any = spark._jvm
    shared = spark._jsparkSession.sharedState()
    try:
        key = jvm.java.util.UUID.fromString(query_id)
    except Py4JJavaError:  # set by a user: the id of no query
        return None
    execution = shared.activeStreamingQueries().get(key)
    if execution is None or not (query_id in _ending or execution.isActive()):
        return None
    return QueryRun.of(execution)


class GentleEnd:
    """Ends a query after the micro-batch it is in, commit included, if that is let run to its end."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._id = str(query.id)
        self._quiet = 0  # how often, one after the other, no micro-batch was seen
        self._is_last = False  # no other micro-batch begins
        _ending.add(self._id)

    def poll(self) -> bool:
        """Tell whether the query has ended; once no micro-batch is under way it is stopped, as it may be asleep."""
        try:
            self._is_last = self._is_last or self._no_more_batches()
            if not self._is_last:
                return False
            self._quiet = 0 if self._query.status["isTriggerActive"] else self._quiet + 1
        except (AttributeError, TypeError, PySparkException, Py4JError) as error:  # another Spark, Connect, no JVM
            log.debug("query %s cannot be ended gently: %s", self._id, error)
            self._quiet = 2
        if self._quiet < 2:  # a trigger that had just looked is active the next time
            return False
        self.now()
        return True

    def _no_more_batches(self) -> bool:
        """Let Spark begin no other micro-batch; False if one has begun and is not written yet: try again.

        Spark asks before each micro-batch whether the query is still active, and again before it writes it: if the
        query is not, it interrupts the thread, and so the callback (PySpark 4.3.0, MicroBatchExecution.runBatch). Later
        nothing asks. ``query.stop()`` changes the same state, and always interrupts the thread.

        Spark takes the progress lock to commit a micro-batch, and to look for the rows of the next one. While it is
        held here, a micro-batch that is being written stays the one that was seen, and none comes as far as the second
        question.
        """
        query: Any = self._query
        execution = query._jsq.streamingQuery()
        lock = execution.awaitProgressLock()
        until = time.monotonic() + LOOK_SECONDS
        while True:
            if lock.tryLock():  # else a source is asked for rows, for as long as it takes
                try:
                    if _terminate(execution):
                        return True
                finally:
                    lock.unlock()
            if time.monotonic() > until:
                return False
            time.sleep(LOOK_SECONDS / 20)  # of an idle query, a hundredth of a second lies between two triggers

    def at_once(self, seconds: float) -> None:
        """Stop the query, and wait at most so long: Spark waits for a callback that does not return, without end."""
        stopping = threading.Thread(target=self.now, name="jobpipe-stop", daemon=True)  # ends with the query
        stopping.start()
        stopping.join(seconds)

    def now(self) -> None:
        """Stop the query."""
        _ending.discard(self._id)
        try:
            self._query.stop()
        except (PySparkException, Py4JError) as error:
            log.debug("query %s: %s", self._id, error)


def _terminate(execution: Any) -> bool:
    """Set the state in which no micro-batch begins, unless Spark would interrupt one for it; tell whether it is set."""
    jvm: Any = SparkContext._jvm
    terminated = getattr(getattr(jvm.org.apache.spark.sql.execution.streaming.runtime, "TERMINATED$"), "MODULE$")
    state = execution.state()
    before = state.get()
    if before == terminated:
        return True
    seen = _look(execution)
    if seen is _Moment.BEGUN or not state.compareAndSet(before, terminated):
        return False
    if seen is _Moment.BETWEEN and _look(execution) is not _Moment.BETWEEN:  # the next one has begun meanwhile
        state.compareAndSet(terminated, before)
        return False
    return True


class _Moment(Enum):
    """What the thread of a query does."""

    BETWEEN = "nothing: between two triggers, or at the end of one without rows"
    BEGUN = "a micro-batch that is not being written yet, or not any more"
    WRITING = "it writes a micro-batch"


def _look(execution: Any) -> _Moment:
    jvm: Any = SparkContext._jvm
    stack = jvm.scala.runtime.ScalaRunTime.stringOf(execution.queryExecutionThread().getStackTrace())
    if _IN_TRIGGER not in stack or _ASLEEP.match(stack):
        return _Moment.BETWEEN
    if "SQLExecution$.withNewExecutionId" in stack and "MicroBatchExecution.runBatch" in stack:
        return _Moment.WRITING
    return _Moment.BEGUN


_IN_TRIGGER = "MicroBatchExecution.executeOneBatch("
# A trigger without rows waits a hundredth of a second before it returns; between triggers the frame is not there.
_ASLEEP = re.compile(
    r"Array\(([\w.@/]*java\.lang\.Thread\.sleep\w*\([^)]*\), )+[\w.$/]*\.MicroBatchExecution\.executeOneBatch\("
)
