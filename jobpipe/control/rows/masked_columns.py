"""Takes masked columns out of record batches, before anything else sees them.

An entry is a column, a field within one (``customer.card``, also within lists and maps), or either after the name of
a topic and a dot. Where an entry can be read in more than one way, all of them are masked; letter case does not count.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

LETTER_VALUES = ("row", "source_row", "error_message")  # columns of dead letters that have values of rows
ITEMS = frozenset({"element", "item", "key", "value"})


class MaskedColumns:
    """What is masked of one topic."""

    def __init__(self, entries: Iterable[str], topic: str) -> None:
        prefix = _folded(f"{topic}.")
        folded = {_folded(entry) for entry in entries}
        folded |= {entry.removeprefix(prefix) for entry in folded}
        self._paths = frozenset(folded | {_without_items(entry) for entry in folded})

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of what is left."""
        masks = self._for(schema)
        return pa.schema([field for each in schema if (field := masks._left(each, "")) is not None])

    def names(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return what is masked of a schema: columns, and fields with dots between the names."""
        masks = self._for(schema)
        return tuple(name for each in schema for name in masks._masked(each, ""))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a record batch without what is masked."""
        kept, columns, masks = [], [], self._for(batch.schema)
        for field, column in zip(batch.schema, batch.columns, strict=True):
            left = masks._left(field, "")
            if left is not None:
                kept.append(left)
                columns.append(column if left.type.equals(field.type) else column.cast(left.type))
        if not kept:  # no column, but as many rows
            return batch.select([])
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(kept))

    def _for(self, schema: pa.Schema) -> MaskedColumns:
        """Return what is masked of a schema: of dead letters without ``row``, neither what else has values of rows."""
        if "row" not in self._paths or not {"row", "error_message"} <= set(schema.names):
            return self
        found = MaskedColumns((), "")
        found._paths = self._paths | frozenset(LETTER_VALUES)
        return found

    def _is_masked(self, path: str) -> bool:
        return _folded(path) in self._paths

    def _left(self, field: pa.Field[Any], above: str) -> pa.Field[Any] | None:
        """Return what is left of a column or field; None if nothing is."""
        path = f"{above}{field.name}"
        if self._is_masked(path):
            return None
        kind = self._left_type(field.type, path)
        return None if kind is None else field if kind.equals(field.type) else field.with_type(kind)

    def _left_type(self, kind: pa.DataType, path: str) -> pa.DataType | None:
        if isinstance(kind, pa.StructType):
            fields = [left for each in _fields(kind) if (left := self._left(each, f"{path}.")) is not None]
            return pa.struct(fields) if fields or not kind.num_fields else None
        if isinstance(kind, pa.MapType):
            key, item = self._left_type(kind.key_type, path), self._left_item(kind.item_field, path)
            return None if key is None or item is None else pa.map_(key, item.type, kind.keys_sorted)
        if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
            item = self._left_item(kind.value_field, path)
            if item is None:
                return None
            if isinstance(kind, pa.FixedSizeListType):
                return pa.list_(item, kind.list_size)
            return pa.large_list(item) if isinstance(kind, pa.LargeListType) else pa.list_(item)
        # Of another type that has types in it, nothing can be taken out: it goes as a whole.
        inside = f"{_folded(path)}."
        return None if kind.num_fields and any(each.startswith(inside) for each in self._paths) else kind

    def _left_item(self, field: pa.Field[Any], path: str) -> pa.Field[Any] | None:
        kind = self._left_type(field.type, path)
        return None if kind is None else field.with_type(kind)

    def _masked(self, field: pa.Field[Any], above: str) -> Iterator[str]:
        path = f"{above}{field.name}"
        if self._left(field, above) is None:
            yield path
        else:
            yield from self._masked_inside(field.type, path)

    def _masked_inside(self, kind: pa.DataType, path: str) -> Iterator[str]:
        if isinstance(kind, pa.StructType):
            for each in _fields(kind):
                yield from self._masked(each, f"{path}.")
        elif isinstance(kind, pa.MapType):
            yield from self._masked_inside(kind.item_type, path)
        elif isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
            yield from self._masked_inside(kind.value_type, path)


def _folded(text: str) -> str:
    """Return a text as it is compared: without letter case, and in one of Unicode's forms."""
    return unicodedata.normalize("NFC", text).casefold()


def _without_items(path: str) -> str:
    """Return a path without what Spark and Arrow call the items of lists and maps on the way."""
    first, *rest = path.split(".")
    return ".".join([first, *(part for part in rest[:-1] if part not in ITEMS), *rest[-1:]])


def _fields(kind: pa.StructType) -> list[pa.Field[Any]]:
    return [kind.field(number) for number in range(kind.num_fields)]
