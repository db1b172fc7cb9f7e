"""The columns of a topic while those of its tables change: what may follow what, and what is left out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa

from jobpipe.arrow.arrow_evolution import left_out, misfits
from jobpipe.cdc.capture_options import SchemaChange
from jobpipe.errors import SchemaMismatch

log = logging.getLogger(__name__)


class IncompatibleColumns(SchemaMismatch):
    """A column has become another one; nothing that has it was published."""


class TopicSchema:
    """Looks at the rows of one topic before they are published.

    Args:
        newest: returns the schema of the rows that are published last, None if there are none; called once.
        as_text: columns of its tables that are published as text now: what they were before does not count.
    """

    def __init__(
        self,
        topic: str,
        mode: SchemaChange,
        newest: Callable[[], pa.Schema | None],
        as_text: Collection[str] = (),
    ) -> None:
        self._topic = topic
        self._mode = mode
        self._newest = newest
        self._as_text = frozenset(as_text)
        self._known: pa.Schema | None = None  # also with columns that have gone: they may come again as others
        self._last: pa.Schema | None = None  # that was published
        self._asked = False

    def fitted(self, rows: pa.Table) -> pa.Table:
        """Return rows as they are published.

        ``evolve`` and ``exception``: as they are, if each column is the same as before, or wider, or narrower; columns
        may come and go. ``ignore``: with the columns that the topic had first.

        Raises:
            IncompatibleColumns: a column has become another one; names it.
            SchemaMismatch: with ``ignore`` it has values that do not fit; names it.
        """
        self._load()
        if self._known is None or rows.schema.equals(self._last or self._known):
            self._known = self._known or rows.schema
            return rows
        if self._mode is SchemaChange.IGNORE:
            return self._as_known(rows, self._known)
        self._require_fitting(rows.schema, self._known)
        self._last = rows.schema
        self._known = pa.schema(_united(list(rows.schema), list(self._known)))
        return rows

    def nothing(self) -> pa.Table | None:
        """Return no rows, with columns that the topic has had; None if it has had none."""
        self._load()
        known = self._last or self._known
        return None if known is None else known.empty_table()

    def _load(self) -> None:
        if not self._asked:
            self._known, self._asked = self._newest(), True

    def _require_fitting(self, new: pa.Schema, known: pa.Schema) -> None:
        narrower, wider = set(_columns_of(misfits(new, known))), set(_columns_of(misfits(known, new)))
        if changed := sorted(path for path in narrower & wider if _name_of(path) not in self._as_text):
            names = sorted({_name_of(path) for path in changed})
            old, now = _type_of(known, changed[0]), _type_of(new, changed[0])
            raise IncompatibleColumns(
                f"topic {self._topic!r}: column {', '.join(names)} has another type than before ({old}, now {now}), so "
                "that no subscription could read both; nothing of it was published. Publish it as text (text-columns), "
                "give the table another topic by route, let a new version of the topic follow "
                "(incompatible-change: new-topic), or keep the columns that the topic has by schema-change-behavior: "
                "ignore",
                topic=self._topic,
                columns=names,
            )

    def _as_known(self, rows: pa.Table, known: pa.Schema) -> pa.Table:
        if missed := left_out(rows.schema, known):
            log.warning(
                "topic %s: columns are left out, since schema-change-behavior is ignore: %s",
                *(self._topic, ", ".join(missed)),
            )
        columns = [self._conformed(_column(rows, field.name), field, field.name) for field in known]
        return pa.Table.from_arrays(columns, schema=known)

    def _conformed(self, column: Any, field: pa.Field[Any], path: str) -> Any:
        """Return a column, or a field of a struct, as it was before; null where it is gone."""
        kind: Any = field.type
        if column.type.equals(kind):
            return column
        if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
            there = {each.name: place for place, each in enumerate(column.type)}
            parts = [
                self._conformed(column.field(there[each.name]), each, f"{path}.{each.name}")
                if each.name in there
                else pa.nulls(len(column), each.type)
                for each in kind
            ]
            return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())
        try:
            return _cast(column, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # its text quotes the value
            raise SchemaMismatch(
                f"topic {self._topic!r}: column {path} is {column.type} now, and a row has a value that {kind} cannot "
                "hold, as the topic has it; nothing of it was published. schema-change-behavior: evolve publishes the "
                "columns as they are",
                topic=self._topic,
                column=path,
            ) from None


def _united(new: list[pa.Field[Any]], old: list[pa.Field[Any]]) -> list[pa.Field[Any]]:
    """Return new columns, and old ones that are not among them; the fields of structs, too."""
    before = {field.name: field for field in old}
    united = []
    for field in new:
        known = before.pop(field.name, None)
        if known is not None and pa.types.is_struct(field.type) and pa.types.is_struct(known.type):
            field = field.with_type(pa.struct(_united(list(field.type), list(known.type))))
        united.append(field)
    return [*united, *before.values()]


def _cast(column: Any, kind: Any) -> Any:
    """Return the same values in another type.

    Raises:
        ArrowInvalid: one would be another value, as a number for a time, or a time for its date.
    """
    made = column.cast(kind)
    if pa.types.is_string(column.type) or not misfits(_alone(column.type), _alone(kind)):
        return made
    times = pa.types.is_temporal(kind), pa.types.is_temporal(column.type)
    zones = getattr(kind, "tz", None), getattr(column.type, "tz", None)
    apart = not pa.types.is_string(kind) and (times[0] != times[1] or zones[0] != zones[1])
    if apart or not made.cast(column.type).equals(column):
        raise pa.ArrowInvalid("another value")
    return made


def _alone(kind: Any) -> pa.Schema:
    return pa.schema([pa.field("value", kind)])


def _column(rows: pa.Table, name: str) -> Any:
    place = rows.schema.get_field_index(name)
    return pa.nulls(rows.num_rows, pa.null()) if place < 0 else rows.column(place).combine_chunks()


def _name_of(path: str) -> str:
    """Return the table's column of a column of the topic, or of a field of its structs."""
    return path.removeprefix("before.").removeprefix("after.")


def _columns_of(lines: list[str]) -> list[str]:
    return [line.partition(": ")[0] for line in lines]


def _type_of(schema: pa.Schema, path: str) -> str:
    found: Any = pa.struct(list(schema))
    for name in path.replace("[]", "").split("."):
        place = found.get_field_index(name) if pa.types.is_struct(found) else -1
        if place < 0:
            return str(found)
        found = found.field(place).type
    return str(found)
