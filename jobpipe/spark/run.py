"""``jobpipe.run``: the last line of a job. Waits for its queries, ends them gently at a signal, closes its sinks."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from jobpipe.errors import JobpipeError
from jobpipe.publisher.opened import OpenPublisher, open_publishers
from jobpipe.spark.await_end import EndWatch
from jobpipe.spark.signals import Signals
from jobpipe.spark.stopping import end_after_batch

__all__ = ["run"]

POLL_SECONDS = 0.1
STOP_SECONDS = 3.0  # of a stop in the middle of a micro-batch
FAILED = 1
OURS = "jobpipe.errors."  # before the name of an error of ours, in what Spark prints of a failed query


def run(
    *queries: StreamingQuery,
    sinks: Sequence[OpenPublisher] | None = None,
    final: bool = False,
    timeout: float | None = None,
) -> int:
    """Run a job to its end: ``sys.exit(jobpipe.run(query))``.

    Waits until each query has ended by itself, or has committed the ends of all its jobpipe topics, as
    :func:`jobpipe.await_end`. At SIGINT (Ctrl-C) or SIGTERM the queries end after the micro-batch they are in, so no
    callback is cut short; at a second signal they are stopped at once, and Spark repeats the batch at the next start.
    Then the sinks are closed, and one line on standard error says how it went. Signals reach the main thread only:
    called from another one it just waits.

    Args:
        queries: one or more, of this process.
        sinks: to be closed; by default all sinks and plain publishers that are open in this process.
        final: seal the end mark of each sink if all queries came to their end: for a job whose topic ends with it.
            After a signal, a failure or a timeout the topics stay open.
        timeout: seconds after which the queries are stopped as by a signal.

    Returns:
        The exit code: 0 at the end, 1 if a query or a sink failed or ``timeout`` passed, 130 after SIGINT, 143 after
        SIGTERM.
    """
    signals = Signals()
    with signals.noted():
        began = time.monotonic()
        failure = _wait(queries, signals, None if timeout is None else began + timeout)
        ended = not failure and signals.first is None and not any(query.isActive for query in queries)
        if not ended:
            _end(queries, signals)
            failure = failure or _first_failure(queries)
        late = not (ended or failure or signals.first)
        failure = _close(open_publishers() if sinks is None else sinks, final=final and ended) or failure
        names = ", ".join(query.name or str(query.id) for query in queries)
        _tell(f"{names} {_how(failure, signals, late=late)}, after {time.monotonic() - began:.0f} s")
        if failure or late:
            return FAILED
        return 0 if signals.first is None else 128 + signals.first


def _wait(queries: Sequence[StreamingQuery], signals: Signals, deadline: float | None) -> str:
    """Return why a query failed, or an empty text once all are at their ends, or a signal or the deadline came."""
    watches = {query: EndWatch(query) for query in queries}
    while watches and signals.first is None and (deadline is None or time.monotonic() < deadline):
        for query, watch in list(watches.items()):
            if query.isActive and watch.at_end():
                query.stop()
            if not query.isActive:
                del watches[query]
                if failure := _failure(query):
                    return failure
        time.sleep(POLL_SECONDS if watches else 0.0)
    return ""


def _end(queries: Sequence[StreamingQuery], signals: Signals) -> None:
    """End all queries after their micro-batches; at a second signal at once."""
    active = [query for query in queries if query.isActive]
    if active and signals.first is not None:
        _tell(f"{signals.first.name}: each query ends after the micro-batch it is in; once more ends it at once")
    ends = [end_after_batch(query) for query in active]
    while ends and not signals.again:
        ends = [end for end in ends if not end.poll()]
        time.sleep(POLL_SECONDS if ends else 0.0)
    for end in ends:
        end.at_once(STOP_SECONDS)


def _close(sinks: Sequence[OpenPublisher], *, final: bool) -> str:
    failures = []
    for sink in sinks:
        try:
            sink.close(final)
        except JobpipeError as error:
            failures.append(f"topic {sink.topic!r}: {error}")
    return "; ".join(failures)


def _first_failure(queries: Sequence[StreamingQuery]) -> str:
    return next((failure for query in queries if (failure := _failure(query))), "")


def _failure(query: StreamingQuery) -> str:
    try:
        error = query.exception()
    except (PySparkException, Py4JError) as gone:  # with its JVM
        return f"{query.name or query.id}: {type(gone).__name__}"
    return "" if error is None else _short(error)


def _short(error: StreamingQueryException) -> str:
    """Return our own error out of Spark's message, else the error at the end of Python's trace, else its first line."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if ours := [line.partition(OURS)[2] for line in lines if OURS in line]:
        return ours[-1]
    traces = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    frames = lines[traces[-1] + 1 :] if traces else []
    return next((line.strip() for line in frames if not line[0].isspace()), lines[0].strip())


def _how(failure: str, signals: Signals, *, late: bool) -> str:
    if failure:
        return f"failed: {failure}"
    if late:
        return "stopped before its end, as the timeout says"
    if signals.first is None:
        return "came to its end"
    if signals.again:
        return f"stopped at once by {signals.first.name}; its last micro-batch is repeated at the next start"
    return f"stopped by {signals.first.name} after a whole micro-batch"


def _tell(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more
        print(f"jobpipe: {text}", file=sys.stderr, flush=True)  # noqa: T201 - what the job says to whoever started it
