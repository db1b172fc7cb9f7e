"""Stops a subscriber's query at the end marks of its topics: a Spark source cannot end its own query."""

from __future__ import annotations

import json
import time
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from jobpipe.errors import WaitTimeout

__all__ = ["await_end"]

POLL_SECONDS = 0.1  # Spark tells Python no event when a query goes idle


def await_end(query: StreamingQuery, timeout: float | None = None) -> None:
    """Wait until the query has committed and acknowledged the end marks of all its jobpipe topics, then stop it.

    Returns too when the query ends by itself (``availableNow``).

    Raises:
        WaitTimeout: ``timeout`` seconds passed; the query goes on.
        pyspark.errors.StreamingQueryException: the query failed.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while query.isActive:
        progress = query.lastProgress
        # With the end committed and no data available, the source was asked again since: the end is acknowledged.
        if progress is not None and _at_end(progress) and not query.status["isDataAvailable"]:
            query.stop()
            break
        if deadline is not None and time.monotonic() > deadline:
            raise WaitTimeout(f"query {query.name or query.id}: not at the end of its topics within {timeout:g} s")
        query.awaitTermination(POLL_SECONDS)  # type: ignore[arg-type]  # takes fractions; raises the query's own error
    failure = query.exception()
    if failure is not None:
        raise failure


def _at_end(progress: Any) -> bool:
    found = False
    for source in progress["sources"]:
        latest, end = _json(source.get("latestOffset")), _json(source.get("endOffset"))
        if not isinstance(latest, dict) or not all(isinstance(v, dict) and "ended" in v for v in latest.values()):
            continue  # some other source
        found = True
        for topic, head in latest.items():
            here = end.get(topic) if isinstance(end, dict) else None
            if not head["ended"] or here is None or any(here[key] != head[key] for key in ("log", "epoch", "n", "r")):
                return False
    return found


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
