"""Errors as Spark's users should see them: our message, without the traceback that Spark prints above it."""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from jobpipe.errors import JobpipeError, NameTaken

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def hide_traceback(work: Callable[P, R]) -> Callable[P, R]:
    """Return ``work`` with its errors of ours stripped of where they come from, which is logged at DEBUG."""

    @functools.wraps(work)
    def hidden(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return work(*args, **kwargs)
        except JobpipeError as error:
            log.debug("%s", work.__qualname__, exc_info=True)
            if isinstance(error, NameTaken):
                raise _with_own_use(error) from None
            raise error.with_traceback(None) from None

    return hidden


def _with_own_use(error: NameTaken) -> NameTaken:
    """Return the error with what to do if the other reader is this query's own: Spark makes one for each use."""
    if (error.fields.get("holder") or {}).get("host") != socket.gethostname() or "own_use" in error.fields:
        return error
    return NameTaken(
        f"{error.message}. If this very query holds it, because it uses one load() more than once (a self-join): "
        "call load() once for each use, with a name of its own each; or use it once, and join inside "
        "foreachBatch, where df.persist() lets the rows be read once",
        **error.fields,
        own_use=True,
    )


class RefusedStream(DataSourceStreamReader):
    """A stream that cannot start: raises ``why`` in every call.

    Spark's runner answers an error of ``streamReader`` itself with one of its own, which hides ours (PySpark 4.3: it
    stops a reader that it does not have yet). So Spark hears why from the reader's first call.
    """

    def __init__(self, why: JobpipeError) -> None:
        self._why = why

    @hide_traceback
    def initialOffset(self) -> dict[str, Any]:
        """Raise the error."""
        raise self._why

    @hide_traceback
    def latestOffset(self, *start_and_limit: Any) -> dict[str, Any]:
        """Raise the error; Spark 4.0 and 4.1 give no arguments."""
        raise self._why

    @hide_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error."""
        raise self._why

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error; never reached, since there is nothing to read."""
        raise self._why
