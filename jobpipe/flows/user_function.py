"""The user's function: what it is called with, and what it may return."""

from __future__ import annotations

import inspect
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from jobpipe.arrow.list_offsets import with_offsets
from jobpipe.arrow.schema_validation import readable
from jobpipe.errors import FlowFailed, JobpipeError, SchemaMismatch
from jobpipe.subscribing.fetching.part_fetch import Fetched

_OURS = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class FlowContext:
    """Where a record batch comes from; the same each time it is given again.

    Topic, log, offset, partition and index together name it for ever: a key for idempotent writes.

    Attributes:
        topic, log: of the source.
        offset: of the batch that holds it.
        partition: the publisher's.
        index: which record batch of this partition of this batch it is, from 0.
        row: number of its first row within its partition of the batch.
        sealed: when it was published.
        publisher: who did.
        setup: what ``setup()`` returned in this task; None without one.
    """

    topic: str
    log: str
    offset: int
    partition: int
    index: int
    row: int
    sealed: datetime
    publisher: str
    setup: Any = None


Returned: TypeAlias = pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch] | None
Function: TypeAlias = Callable[[pa.RecordBatch, FlowContext], Returned]
Setup: TypeAlias = Callable[[], Any]


def context_of(topic: str, log: str, fetched: Fetched, index: int, setup: Any) -> FlowContext:
    """Return the context of a record batch."""
    header = fetched.header
    return FlowContext(
        topic=topic,
        log=log,
        offset=header.n,
        partition=header.partition,
        index=index,
        row=fetched.row,
        sealed=datetime.fromtimestamp(header.sealed_ms / 1000, UTC),
        publisher=header.publisher,
        setup=setup,
    )


def is_asynchronous(called: object) -> bool:
    """Whether what it returns is to be awaited: a coroutine function, also as the ``__call__`` of an object."""
    functions = (called, getattr(type(called), "__call__", None))  # noqa: B004 - of an object, the method
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in functions)


def call(
    function: Function, batch: pa.RecordBatch, context: FlowContext, schema: pa.Schema | None
) -> list[pa.RecordBatch]:
    """Call the function; return its rows with exactly the schema that is published.

    Args:
        function: the user's.
        batch, context: what it gets.
        schema: of what is published; None where nothing is.

    Raises:
        FlowFailed: it raised, or returned what it may not; names topic, offset, partition and rows.
    """
    try:
        returned = function(batch, context)
        return [_fitted(piece, schema) for piece in _pieces(returned) if piece.num_rows > 0]
    except BaseException as error:  # an exit, or an asyncio.CancelledError, would end the task's thread without a word
        _let_pass(error)
        last = context.row + max(batch.num_rows, 1) - 1
        rows = f"row {last}" if last == context.row else f"rows {context.row} to {last}"
        said = error.message if isinstance(error, JobpipeError) else describe(error)
        raise FlowFailed(
            f"the flow's function failed with topic {context.topic!r}, offset {context.offset}, partition "
            f"{context.partition}, {rows}: {said}",
            topic=context.topic,
            offset=context.offset,
            partition=context.partition,
            row=context.row,
            rows=batch.num_rows,
        ) from error


def set_up(setup: Setup | None) -> Any:
    """Call the user's setup; return what it returns, None without one.

    Raises:
        FlowFailed: it raised.
    """
    try:
        return None if setup is None else setup()
    except BaseException as error:  # as in call()
        _let_pass(error)
        raise FlowFailed(f"the flow's setup failed: {describe(error)}") from error


def _let_pass(error: BaseException) -> None:
    """Raise a Ctrl-C that came to this thread: it is none of the function's."""
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error


def describe(error: BaseException) -> str:
    """Return what an error of the user's code says, and where in that it was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    place = f" ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})" if own else ""
    return f"{type(error).__name__}: {error}{place}"


def _pieces(returned: Any) -> list[pa.RecordBatch]:
    if returned is None:
        return []
    if isinstance(returned, pa.RecordBatch):
        return [returned]
    if isinstance(returned, pa.Table):
        return list(returned.to_batches())
    found = list(returned) if isinstance(returned, Iterable) else [returned]
    for piece in found:
        if not isinstance(piece, pa.RecordBatch):
            of = "" if piece is returned else f" of {type(piece).__name__}"
            raise TypeError(f"it returned {type(returned).__name__}{of}; expected record batches, a table, or None")
    return found


def _fitted(piece: pa.RecordBatch, schema: pa.Schema | None) -> pa.RecordBatch:
    if schema is None:
        raise TypeError("it returned rows, and the flow publishes nothing; give publish= and schema=")
    missing = [name for name in schema.names if name not in piece.schema.names]
    unknown = [name for name in piece.schema.names if name not in schema.names]
    unknown += [name for name in schema.names if piece.schema.names.count(name) > 1]
    if missing or unknown:
        raise SchemaMismatch(
            f"columns {missing} are missing, columns {unknown} are not in the flow's schema",
            missing=missing,
            unknown=unknown,
        )
    for field in schema:
        if not field.nullable and piece.column(field.name).null_count:
            raise SchemaMismatch(
                f"column {field.name!r} has nulls, and the flow's schema allows none", column=field.name
            )
    given = with_offsets(piece.select(schema.names))
    rows = readable(None, pa.Table.from_batches([given]), schema).combine_chunks()
    return rows.to_batches()[0]
