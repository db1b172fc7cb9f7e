"""A query as a job: its end at a micro-batch boundary, and in a line why it failed."""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from jobpipe.spark.termination.await_end import EndWatch
from jobpipe.spark.termination.query_stop import GracefulStop

NO_WORKER = "Python worker failed to connect back"
TOO_BUSY = "the host was too busy to start Python in the ten seconds that Spark waits; start the job again"
OURS = "jobpipe.errors."  # before the name of an error of ours, in what Spark prints of a failed query


class QueryJob:
    """A query that :func:`jobpipe.run`, or a pipeline, waits for; see :class:`.await_termination.RunningJob`."""

    unit = "micro-batch"
    boundary = "each query ends after the micro-batch it is in"

    def __init__(self, query: StreamingQuery) -> None:
        self.name = query.name or f"query {query.id}"
        self._query = query
        self._watch = EndWatch(query)
        self._end: GracefulStop | None = None

    @property
    def cut_short(self) -> bool:
        """Whether it was stopped, perhaps in the middle of a micro-batch."""
        return self._end is not None and self._end.cut_short

    @property
    def active(self) -> bool:
        return self._query.isActive

    def at_end(self) -> bool:
        """Tell whether it has ended by itself, or has committed the ends of its topics; such a one is stopped."""
        if self._query.isActive and self._watch.at_end():
            self._query.stop()
        return not self._query.isActive

    def failure(self) -> str:
        """Return in a line why it failed, an empty text if it did not."""
        try:
            error = self._query.exception()
        except (PySparkException, Py4JError) as gone:  # with its JVM
            return f"{type(gone).__name__}: query {self.name} is gone with its JVM"
        return "" if error is None else _short(error)

    def begin_end(self) -> None:
        """Let it end after the micro-batch it is in."""
        if self._query.isActive:
            self._end = GracefulStop(self._query)

    def has_ended(self) -> bool:
        """Tell whether it has, since :meth:`begin_end`."""
        return self._end is None or self._end.poll()

    def end_at_once(self, seconds: float) -> None:
        """Stop it in the middle of a micro-batch."""
        if self._end is not None:
            self._end.at_once(seconds)


def _short(error: StreamingQueryException) -> str:
    """Return our own error out of Spark's message, else the error at the end of Python's trace, else its first line."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if ours := [line.partition(OURS)[2] for line in lines if OURS in line]:
        return ours[-1]
    traces = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    frames = lines[traces[-1] + 1 :] if traces else []
    return with_remedy(next((line.strip() for line in frames if not line[0].isspace()), lines[0].strip()))


def with_remedy(said: str) -> str:
    """Return what Spark says of an error, with what to do where its words do not tell."""
    return f"{said.rstrip('.')}: {TOO_BUSY}" if said.rstrip(".").endswith(NO_WORKER) else said
