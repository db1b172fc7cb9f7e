"""The page of a topic's rows: a form, what was found, and where to go on. It is not live: rows are read when asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from jobpipe.control.control_service import Control
from jobpipe.control.page.graph_drawing import topic_href
from jobpipe.control.page.rendering import RenderedPage, render_page
from jobpipe.control.rows.arrow_texts import Plain, is_binary, is_number, plain_values, text_of
from jobpipe.control.rows.rows_query import (
    DEFAULT_ROWS,
    EXPORT_BOUNDS,
    EXPORT_ROWS,
    NEWEST,
    PAGE_BOUNDS,
    PAGE_ROWS,
    Ended,
    FoundPlace,
    RowPlace,
    RowsFound,
    RowsQuery,
)
from jobpipe.errors import ConfigError, JobpipeError, TopicAway, TopicNotFound, short_repr
from jobpipe.plural import counted

CELL_CHARACTERS = 2000
LIMITS = (DEFAULT_ROWS, 100, PAGE_ROWS)
KINDS = {"csv": "CSV", "parquet": "Parquet"}
_STOPPED = {
    Ended.ROWS: "the search stopped after so many",
    Ended.BYTES: "the search stopped, since they have many bytes",
    Ended.TIME: "the search stopped, since it took long",
    Ended.SCHEMA: "the next ones have other columns, and so a page of their own",
    Ended.LOSS: "the next ones were removed meanwhile",
}


@dataclass(frozen=True)
class Column:
    """A column of the table; ``kind``: its type."""

    name: str
    kind: str
    is_number: bool


@dataclass(frozen=True)
class Cell:
    """A value as it is shown.

    Attributes:
        text: None for null.
        rest: how much is not shown, and of how much, in words; "" if all is shown.
    """

    text: str | None
    rest: str = ""


@dataclass(frozen=True)
class Row:
    """A row with where it is."""

    place: FoundPlace
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class RowsForm:
    """What a person asked for, word by word."""

    topic: str
    start: str
    where: str
    limit: str

    @classmethod
    def of(cls, topic: str, query: Mapping[str, str]) -> RowsForm:
        """Return that of an address."""
        return cls(
            topic,
            query.get("from", "").strip() or NEWEST,
            query.get("where", "").strip(),
            query.get("limit", "").strip() or str(DEFAULT_ROWS),
        )

    def query(self, *, for_export: bool = False) -> RowsQuery:
        """Return what that means.

        Raises:
            ConfigError: it cannot be asked.
        """
        most = EXPORT_ROWS if for_export else PAGE_ROWS
        text = self.limit
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
            raise ConfigError(f"limit: {short_repr(text)} is not from 1 to {most:,}", key="limit")
        return RowsQuery(
            topic=self.topic,
            place=RowPlace.of(self.start),
            limit=int(text),
            where=self.where,
            bounds=EXPORT_BOUNDS if for_export else PAGE_BOUNDS,
        )

    def href(self, place: RowPlace | str) -> str:
        """Return the address of the page at another place."""
        return f"{topic_href(self.topic)}/rows?{self._encoded(str(place), self.limit)}"

    def export_href(self, kind: str) -> str:
        """Return the address of a file with all rows that may be in it."""
        return f"{topic_href(self.topic)}/rows.{kind}?{self._encoded(self.start, str(EXPORT_ROWS))}"

    def _encoded(self, start: str, limit: str) -> str:
        return urlencode({"from": start, "where": self.where, "limit": limit})


def rows_page(control: Control, topic: str, query: Mapping[str, str]) -> RenderedPage:
    """Return the page; it says what is wrong next to the form."""
    form = RowsForm.of(topic, query)
    try:
        return _rendered(form, control.topic_rows(form.query()))
    except JobpipeError as error:
        return refused_page(form, error)


def refused_page(form: RowsForm, error: JobpipeError) -> RenderedPage:
    """Return the page with an error instead of rows."""
    is_gone = isinstance(error, TopicNotFound) and not isinstance(error, TopicAway)
    status = 400 if isinstance(error, ConfigError) else 404 if is_gone else 503
    return _rendered(form, RowsFound(), error, status)


def _rendered(form: RowsForm, found: RowsFound, error: JobpipeError | None = None, status: int = 200) -> RenderedPage:
    fields = [] if found.schema is None else list(found.schema)
    return render_page(
        "rows.html",
        f"Rows of {form.topic}",
        status,
        is_live=False,
        form=form,
        topic_href=topic_href(form.topic),
        limits=sorted({*map(str, LIMITS), form.limit}, key=lambda text: (len(text), text)),
        error=error,
        found=found,
        columns=[Column(field.name, str(field.type), is_number(field.type)) for field in fields],
        masked=[name for name in found.masked if found.schema is None or name.partition(".")[0] not in _names(found)],
        rows=_rows(found),
        summary=_summary(found),
        exports=[(KINDS[kind], form.export_href(kind)) for kind in KINDS] if found.places else [],
        export_said=_export_said(found, form),
    )


def _names(found: RowsFound) -> list[str]:
    return [] if found.schema is None else found.schema.names


def _rows(found: RowsFound) -> list[Row]:
    columns: list[list[Cell]] = [[] for _ in _names(found)]
    for batch in found.batches:
        for cells, column in zip(columns, batch.columns, strict=True):
            cells += map(_cell, _shortened(column))
    listed = zip(*columns, strict=True) if columns else (() for _ in found.places)
    return [Row(place, tuple(cells)) for place, cells in zip(found.places, listed, strict=True)]


def _shortened(column: pa.Array[Any]) -> list[tuple[Plain, str]]:
    """Return values with what is not shown of them."""
    if is_binary(column.type):
        return list(map(_some_bytes, plain_values(column)))
    return [(value, "") for value in plain_values(column)]


def _some_bytes(value: Plain) -> tuple[Plain, str]:
    most = CELL_CHARACTERS // 2  # two digits each
    if isinstance(value, bytes) and len(value) > most:
        return value[:most], f"of {counted(len(value), 'byte')}"
    return value, ""


def _cell(value: tuple[Plain, str]) -> Cell:
    plain, rest = value
    if plain is None:
        return Cell(None)
    text = text_of(plain)
    if len(text) > CELL_CHARACTERS:
        return Cell(text[:CELL_CHARACTERS], f"of {counted(len(text), 'character')}")
    return Cell(text, rest)


def _summary(found: RowsFound) -> str:
    """Return how much was looked at, and why the search stopped there."""
    if found.first is None or found.last is None:
        return ""
    offsets = f"offset {found.first:,}" if found.first == found.last else f"offsets {found.first:,} to {found.last:,}"
    said = f"{counted(len(found.places), 'row')}; looked at {counted(found.looked_rows, 'row')}, {offsets}"
    stopped = _STOPPED.get(found.ended)
    return said if stopped is None else f"{said}: {stopped}"


def _export_said(found: RowsFound, form: RowsForm) -> str:
    """Return what an export from here would leave out, before anyone downloads it."""
    end = "last" if form.start == NEWEST or form.start.startswith("before") else "first"
    bounds = f"{EXPORT_ROWS:,} rows and {EXPORT_BOUNDS.kept_bytes >> 20} MiB"
    if form.where and found.there > EXPORT_BOUNDS.rows:
        return f"It looks at the {end} {EXPORT_BOUNDS.rows:,} of {found.there:,} rows, and has at most {bounds}."
    if not form.where and found.there > EXPORT_ROWS:
        return f"It has only the {end} {EXPORT_ROWS:,} of {found.there:,} rows, and at most {bounds}."
    return f"It has at most {bounds}; the name of a file that is not whole ends in -part."
