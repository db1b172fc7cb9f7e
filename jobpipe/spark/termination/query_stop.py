"""How a query is stopped: in the middle of a micro-batch without a failure, or after one (:class:`GracefulStop`).

When the callback of a stopped query fails, Spark applies a regular expression to the error's text to decide whether the
cause was the interruption. If the text contains :data:`LIKE_AN_INTERRUPTION`, Spark takes it for one, and the query
ends without an error. On a long text, such as Spark's own error of a cancelled job, the expression overflows the stack
(seen on PySpark 4.3.0). So :func:`stop_is_no_failure` replaces such errors by a short one.
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
from jobpipe.spark.session.spark_versions import TRIGGER, session_for_stream, terminated

log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
LIKE_AN_INTERRUPTION = (
    "(py4j.protocol.Py4JJavaError: An error occurred while calling it: java.lang.InterruptedException)"
)

LOOK_SECONDS = 0.1  # for how long one call looks for a moment at which a query can be ended
LOCK_SECONDS = 1.5  # for how long it waits for Spark's lock: an idle source is asked for rows for up to a second

_ending: set[str] = set()  # ids of the queries that are to end after their current micro-batch


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

    ``spark.jobGroup.id`` does not identify a run: Spark sets it to the run id, but users may set one of their own.

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

    @functools.cached_property
    def _session(self) -> Any:
        return session_for_stream(self._execution, SparkContext._jvm)

    def made(self, df: DataFrame) -> bool:
        """Tell whether a frame is of a micro-batch of this run, or was made of one: it has the run's own session."""
        return bool(self._session.equals(df.sparkSession._jsparkSession))

    def runs_here(self) -> bool:
        """Tell whether this thread is the one in which Spark runs the query, and its callback."""
        jvm: Any = SparkContext._jvm
        return bool(jvm.java.lang.Thread.currentThread().equals(self._execution.queryExecutionThread()))

    def sink_class(self) -> str:
        """Return the class of what the query writes to."""
        return str(self._execution.sink().getClass().getName())

    def active(self) -> bool:
        """Return False once the run was stopped; one call of the JVM.

        A run that :class:`GracefulStop` is about to end counts as active until its current micro-batch is committed.
        """
        return self.query_id in _ending or bool(self._execution.isActive())

    def stop(self) -> None:
        """Stop it at once, from whatever session; one that has ended, also with its Spark context, is left alone."""
        try:
            self._execution.stop()
        except Py4JError:
            if not self._is_over():
                raise

    def _is_over(self) -> bool:
        """Tell whether the Spark context, or the JVM, has ended: no micro-batch of the query is run any more."""
        try:
            return bool(self._session.sparkContext().isStopped())
        except Py4JError:  # the JVM has ended
            return True


def find_run(spark: SparkSession, query_id: str) -> QueryRun | None:
    """Return the active run of a query, None when it was stopped. It takes nine calls of the JVM: keep the answer.

    Args:
        spark: any session of the application. ``foreachBatch`` gets a clone, which does not list the queries; the state
            that all sessions share does. A query id has at most one active run.
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


class GracefulStop:
    """Ends a query after its current micro-batch is committed, or, by :meth:`at_once` and :meth:`now`, in the middle.

    Attributes:
        cut_short: the query was stopped, perhaps in the middle of a micro-batch.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._id = str(query.id)
        self.cut_short = False
        self._quiet = 0  # number of successive polls that saw no active trigger
        self._is_last = False  # no other micro-batch begins
        _ending.add(self._id)

    def poll(self) -> bool:
        """Return True once the query has ended.

        When its last micro-batch is committed, stop it: its thread may be asleep, and would not notice that it is to
        end. If the JVM's objects cannot be reached, as over Spark Connect, stop it now.
        """
        try:
            self._is_last = self._is_last or self._no_more_batches()
            if not self._is_last:
                return False
            self._quiet = 0 if self._query.status["isTriggerActive"] else self._quiet + 1
        except (AttributeError, TypeError, PySparkException, Py4JError) as error:  # another Spark, Connect, no JVM
            log.debug("query %s cannot be ended gently: %s", self._id, error)
            self._quiet, self.cut_short = 2, True
        if self._quiet < 2:  # a trigger that began just before the end was prepared is active at the second poll
            return False
        self.now()
        return True

    def _no_more_batches(self) -> bool:
        """Let Spark begin no other micro-batch; False if one has begun and is not written yet: try again.

        Spark checks twice whether the query is still active: before each micro-batch, and when it begins to write it.
        If the second check fails, Spark interrupts the thread, and so the callback (PySpark 4.3.0,
        MicroBatchExecution.runBatch). ``query.stop()`` changes the same state, and always interrupts the thread.

        Spark takes the progress lock to commit a micro-batch, and to look for the rows of the next one. While we hold
        the lock, a micro-batch that is being written cannot be committed, and no new one reaches the second check.

        An idle query has the lock almost all the time. The lock is fair (StreamExecution.awaitProgressLock), so we get
        it when the source has answered, before Spark takes it again to end the trigger.
        """
        query: Any = self._query
        execution = query._jsq.streamingQuery()
        lock = execution.awaitProgressLock()
        until = time.monotonic() + LOOK_SECONDS
        while True:
            if lock.tryLock(int(LOCK_SECONDS * 1000), _milliseconds()):  # a source may take longer to answer
                try:
                    if _terminate(execution):
                        return True
                finally:
                    lock.unlock()
            if time.monotonic() > until:
                return False
            time.sleep(LOOK_SECONDS / 20)  # half of the time for which an idle query pauses between two triggers

    def at_once(self, seconds: float) -> None:
        """Stop the query; return after ``seconds`` at most. Spark itself would wait without limit for a callback."""
        self.cut_short = True
        stopping = threading.Thread(target=self.now, name="jobpipe-stop", daemon=True)  # ends with the query
        stopping.start()
        stopping.join(seconds)

    def now(self) -> None:
        _ending.discard(self._id)
        try:
            self._query.stop()
        except (PySparkException, Py4JError) as error:
            log.debug("query %s: %s", self._id, error)


def _terminate(execution: Any) -> bool:
    """Set the query's state to TERMINATED, so that no micro-batch begins; return whether it is set.

    It is not set if Spark would then interrupt a micro-batch that has begun.
    """
    end = terminated(SparkContext._jvm)
    state = execution.state()
    before = state.get()
    if before == end:
        return True
    seen = _current_phase(execution)
    if seen is _QueryPhase.BEGUN or not state.compareAndSet(before, end):
        return False
    if (
        seen is _QueryPhase.BETWEEN and _current_phase(execution) is not _QueryPhase.BETWEEN
    ):  # the next one has begun meanwhile
        state.compareAndSet(end, before)
        return False
    return True


def _milliseconds() -> Any:
    jvm: Any = SparkContext._jvm
    return jvm.java.util.concurrent.TimeUnit.MILLISECONDS


class _QueryPhase(Enum):
    """What the thread of a query does."""

    BETWEEN = "nothing: between two triggers, or at the end of one without rows"
    BEGUN = "a micro-batch that is not being written yet, or not any more"
    WRITING = "it writes a micro-batch"


def _current_phase(execution: Any) -> _QueryPhase:
    jvm: Any = SparkContext._jvm
    stack = jvm.scala.runtime.ScalaRunTime.stringOf(execution.queryExecutionThread().getStackTrace())
    if _IN_TRIGGER not in stack or _ASLEEP.match(stack) or _AT_END.search(stack):
        return _QueryPhase.BETWEEN
    if "SQLExecution$.withNewExecutionId" in stack and "MicroBatchExecution.runBatch" in stack:
        return _QueryPhase.WRITING
    return _QueryPhase.BEGUN


_IN_TRIGGER = f"MicroBatchExecution.{TRIGGER}("
# A trigger without rows waits a hundredth of a second before it returns; between triggers the frame is not there.
_ASLEEP = re.compile(r"Array\(([\w.@/]*java\.lang\.Thread\.sleep\w*\([^)]*\), )+[\w.$/]*\." + re.escape(_IN_TRIGGER))
# Each trigger takes the lock once more at its end, with or without rows, to tell those who wait for it.
_AT_END = re.compile(r"\.withProgressLocked\([^)]*\), [\w.$/]*\." + re.escape(_IN_TRIGGER))
