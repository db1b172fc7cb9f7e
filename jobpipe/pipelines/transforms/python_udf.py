"""The user's function in Spark's tasks, with rows or record batches; tolerant ones tell which rows it cannot take."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from jobpipe.errors import ConfigError, TooManyDeadLetters
from jobpipe.pipelines.plugins.api import DEAD, ORIGIN, SOURCE, UNPARSED
from jobpipe.pipelines.transforms.json_values import json_row, json_value

if TYPE_CHECKING:
    import pyarrow as pa

DEAD_MOST = 1000  # of one record batch that a batch function is called with; more, and the job fails
TEXT_MOST = 10_000  # characters of a message

# What DEAD_TYPE says; to read it, Spark needs a session, and tasks have none.
_LETTER = (
    StructType()
    .add("row", StringType())
    .add("error_class", StringType())
    .add("error_message", StringType())
    .add("topic", StringType())
    .add("offset", LongType())
    .add("partition", IntegerType())
    .add("row_number", LongType())
    .add("published_ms", LongType())
    .add("file", StringType())
    .add("source_row", StringType())
)


def require_returns(function: Callable[..., Any], name: str) -> None:
    """Check that a function returns rows: a generator, or a coroutine, is no row, so each row would be bad.

    Raises:
        ConfigError: it yields them, or is asynchronous.
    """
    from jobpipe.flows.user_function import is_asynchronous  # which loads pyarrow

    for called in (function, getattr(type(function), "__call__", None)):  # noqa: B004 - of an object, the method
        if inspect.isgeneratorfunction(called):
            raise ConfigError(f"{name} is a generator: it yields; let it return a list of rows instead", key="function")
    if is_asynchronous(function):
        raise ConfigError(f"{name} is asynchronous; let it return rows", key="function")


def with_dead(schema: StructType) -> StructType:
    """Return the columns of a tolerant function's rows: all may be null, since those of a dead row are."""
    found = StructType()
    for field in schema.fields:
        found = found.add(field.name, field.dataType, True)
    return found.add(DEAD, _LETTER, True)


class PythonUdf:
    """Calls a function with record batches; pickled by value.

    Args:
        schema: of what it returns, as JSON.
        tolerant: rows for which it raises come back in column DEAD.
        names: of the columns, which come without; None if they come with their names.
        secrets: texts that no dead letter may show.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Mapping[str, Any],
        schema: StructType,
        *,
        tolerant: bool = False,
        names: Sequence[str] | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        self._function = function
        self._options = dict(options)
        self._schema = schema.json()
        self._tolerant = tolerant
        self._names = None if names is None else list(names)
        self._secrets = sorted(filter(None, secrets), key=len, reverse=True)  # one may be a part of another one

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the function makes of each record batch."""
        columns = self._columns()
        for given in batches:
            batch = given if self._names is None else given.rename_columns(self._names)
            if not self._tolerant:
                yield from self.made(batch, columns).to_batches()
                continue
            visible = batch.select([name for name in batch.schema.names if name not in (ORIGIN, UNPARSED)])
            for start, made in self.tried(visible, columns):
                if isinstance(made, Exception):
                    yield _dead(columns, batch, visible, start, made, self._message(made))
                else:
                    yield from _with_dead(made)

    def _message(self, error: Exception) -> str:
        text = _text(error)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text[:TEXT_MOST]

    def _columns(self) -> pa.Schema:
        from jobpipe.spark.schema.spark_arrow_schema import arrow_schema

        return arrow_schema(StructType.fromJson(json.loads(self._schema)))

    def made(self, batch: pa.RecordBatch, columns: pa.Schema) -> pa.Table:
        """Return what the function makes of a record batch, as a table with these columns."""
        raise NotImplementedError

    def tried(self, batch: pa.RecordBatch, columns: pa.Schema) -> Iterable[tuple[int, pa.Table | Exception]]:
        """Yield, for each part of a record batch, its first row's number, and what is made of it or why it is dead."""
        raise NotImplementedError


class RowCalls(PythonUdf):
    """Calls a function with each row, a dict; it returns a row, several, or None."""

    def made(self, batch: pa.RecordBatch, columns: pa.Schema) -> pa.Table:
        """Call it with each row."""
        import pyarrow as pa

        rows = [made for row in batch.to_pylist() for made in _rows(self._function(row, **self._options))]
        return pa.Table.from_pylist(rows, columns)

    def tried(self, batch: pa.RecordBatch, columns: pa.Schema) -> Iterable[tuple[int, pa.Table | Exception]]:
        """Call it with each row; what it returns must fit, too."""
        import pyarrow as pa

        begun = 0
        good: list[Any] = []
        for number, row in enumerate(_python_rows(batch)):
            try:
                if isinstance(row, Exception):
                    raise row
                made = _rows(self._function(row, **self._options))
                pa.Table.from_pylist(made, columns)
            except Exception as error:  # noqa: BLE001 - whatever the user's function raises
                if good:
                    yield begun, pa.Table.from_pylist(good, columns)
                yield number, error
                begun, good = number + 1, []
            else:
                good += made
        if good:
            yield begun, pa.Table.from_pylist(good, columns)


class BatchCalls(PythonUdf):
    """Calls a function with each record batch; it returns one, or a table, or None."""

    def made(self, batch: pa.RecordBatch, columns: pa.Schema) -> pa.Table:
        import pyarrow as pa

        returned = self._function(batch, **self._options)
        if returned is None:
            return columns.empty_table()
        table = pa.Table.from_batches([returned]) if isinstance(returned, pa.RecordBatch) else returned
        return table.select(columns.names).cast(columns)

    def tried(self, batch: pa.RecordBatch, columns: pa.Schema) -> Iterable[tuple[int, pa.Table | Exception]]:
        """Call it; where it raises, call it with each half, until a single row is left."""
        dead = 0
        waiting = [(0, batch.num_rows)]
        while waiting:
            start, stop = waiting.pop()
            try:
                yield start, self.made(batch.slice(start, stop - start), columns)
            except Exception as error:
                if stop - start > 1:
                    middle = (start + stop) // 2
                    waiting += [(middle, stop), (start, middle)]
                    continue
                if stop == start:
                    continue  # an empty record batch: there is no row to be dead
                dead += 1
                if dead > DEAD_MOST:
                    raise TooManyDeadLetters(
                        f"the batch-function cannot take more than {DEAD_MOST} rows of one record batch, and is not "
                        "asked about the others; give a row-function, or set "
                        f"spark.sql.execution.arrow.maxRecordsPerBatch to {DEAD_MOST} at most",
                        bound=DEAD_MOST,
                    ) from error
                yield start, error


def _python_rows(batch: pa.RecordBatch) -> list[Any]:
    """Return the rows as dicts; of one with a value that Python does not have, such as a day in the year 10000, why."""
    try:
        return list(batch.to_pylist())
    except Exception:  # noqa: BLE001 - pyarrow raises several
        return [_python_row(batch.slice(number, 1)) for number in range(batch.num_rows)]


def _python_row(one: pa.RecordBatch) -> Any:
    try:
        (row,) = one.to_pylist()
    except Exception as error:  # noqa: BLE001
        return error
    return row


def _rows(returned: Any) -> list[Any]:
    several = isinstance(returned, (list, tuple)) and not isinstance(returned, Row)
    rows = [row for row in (returned if several else [returned]) if row is not None]
    rows = [row.asDict(recursive=True) if isinstance(row, Row) else row for row in rows]
    for row in rows:
        if not isinstance(row, Mapping):  # pyarrow takes a text, for instance, for a row of nulls
            raise TypeError(f"the function returned {type(row).__name__} for a row; a row is a dict")
    return rows


def _with_dead(table: pa.Table) -> list[pa.RecordBatch]:
    """Return record batches of a table, with column DEAD, all null."""
    import pyarrow as pa

    kind: Any = _dead_type()
    return list(table.append_column(DEAD, pa.nulls(table.num_rows, kind)).to_batches())


def _dead(
    columns: pa.Schema, batch: pa.RecordBatch, visible: pa.RecordBatch, number: int, error: Exception, message: str
) -> pa.RecordBatch:
    """Return the dead letter of one row, as a record batch."""
    import pyarrow as pa

    value = {
        "row": _json(json_row(visible, number)),
        "error_class": type(error).__name__,
        "error_message": message,
        **(_origin(batch.column(ORIGIN)[number]) if ORIGIN in batch.schema.names else {}),
    }
    kinds: list[Any] = [field.type for field in columns]
    arrays: list[Any] = [*(pa.nulls(1, kind) for kind in kinds), pa.array([value], _dead_type())]
    return pa.RecordBatch.from_arrays(arrays, names=[*columns.names, DEAD])


def _json(row: Any) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False)


def _origin(scalar: Any) -> dict[str, Any]:
    """Return where a row comes from, and, if the column has it, the row as the source gave it."""
    if not scalar.is_valid:
        return {}
    found = {name: scalar[name].as_py() for name in scalar.type.names if name != SOURCE}
    return {**found, "source_row": _json(json_value(scalar[SOURCE]))} if SOURCE in scalar.type.names else found


def _text(value: object) -> str:
    """Return a text that Arrow takes, also of an error whose own text is none, or has half a character."""
    try:
        text = str(value)
    except Exception as error:  # noqa: BLE001 - of the user's class
        text = f"it has no text: its __str__ raises {type(error).__name__}"
    return text.encode("utf-8", "backslashreplace").decode()


def _dead_type() -> Any:
    from jobpipe.spark.schema.spark_arrow_schema import arrow_schema

    return arrow_schema(StructType().add(DEAD, _LETTER)).field(0).type
