"""Stops a subscriber's query at the ends of its topics: a Spark source cannot end its own query."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from jobpipe.errors import WaitTimeout
from jobpipe.net.retry import Deadline
from jobpipe.spark.session.spark_versions import require_admission_control

POLL_SECONDS = 0.1  # Spark tells Python no event when a query goes idle


def await_end(query: StreamingQuery, timeout: float | None = None) -> None:
    """Wait until the query has committed and acknowledged the ends of all its jobpipe topics, then stop it.

    A topic ends where its publisher closed it for good, or where the source's options end, whichever comes first.

    Returns too when the query ends by itself (``availableNow``).

    Raises:
        UnsupportedSpark: before 4.2 Spark does not ask a source for its end.
        WaitTimeout: ``timeout`` seconds passed; the query goes on.
        pyspark.errors.StreamingQueryException: the query failed.
    """
    require_admission_control("jobpipe.await_end")
    deadline = Deadline(timeout)
    watch = EndWatch(query)
    while query.isActive:
        if watch.at_end():
            query.stop()
            break
        if timeout is not None and deadline.passed:
            raise WaitTimeout(f"query {query.name or query.id}: not at the end of its topics within {timeout:g} s")
        query.awaitTermination(POLL_SECONDS)  # type: ignore[arg-type]  # takes fractions; raises the query's own error
    failure = query.exception()
    if failure is not None:
        raise failure


class EndWatch:
    """Tells when a query has committed and acknowledged the ends of all its jobpipe topics."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._idle: threading.Event | None = None

    def at_end(self) -> bool:
        """Look at the query's progress; False for one without jobpipe topics."""
        progress = self._query.lastProgress
        if progress is None or not _at_end(progress):
            return False
        # The end is committed, and acknowledged as soon as Spark has asked the sources once more.
        self._idle = self._idle or _next_idle(self._query)
        return self._idle.is_set() or _asked_again(progress)


def _next_idle(query: StreamingQuery) -> threading.Event:
    """Return an event that is set once a whole trigger found no data; never while another source always has some."""
    idle = threading.Event()

    def wait() -> None:
        with contextlib.suppress(Exception):  # the query's own error, which awaitTermination raises too
            query.processAllAvailable()
        idle.set()

    threading.Thread(target=wait, name="jobpipe-await-end", daemon=True).start()  # ends with the query at the latest
    return idle


def _asked_again(progress: Any) -> bool:
    return all(source.get("startOffset") == source.get("endOffset") for source in _ours(progress))


def _ours(progress: Any) -> list[Any]:
    found = []
    for source in progress["sources"]:
        latest = _json(source.get("latestOffset"))
        if isinstance(latest, dict) and all(isinstance(v, dict) and "ended" in v for v in latest.values()):
            found.append(source)
    return found


def _at_end(progress: Any) -> bool:
    sources = _ours(progress)
    for source in sources:
        latest, end = _json(source["latestOffset"]), _json(source.get("endOffset"))
        for topic, head in latest.items():
            here = end.get(topic) if isinstance(end, dict) else None
            if not head["ended"] or here is None or any(here[key] != head[key] for key in ("log", "epoch", "n", "r")):
                return False
    return bool(sources)


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
