"""What is asked of a topic's rows, and what was found: the seam between the page and what reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from jobpipe.config.types.value_types import BadValueError
from jobpipe.errors import ConfigError, short_repr
from jobpipe.store.catalog.position import MAX_NUMBER
from jobpipe.store.reading.boundary import EARLIEST, LATEST, Boundary

NEWEST = "newest"
PAGE_ROWS = 500
DEFAULT_ROWS = 50
EXPORT_ROWS = 100_000
MAX_CONDITION = 1000  # characters
_CURSOR = re.compile(r"(\d{1,18})-(\d{1,18})-(\d{1,18})-(\d{1,18})", re.ASCII)
_BEFORE = "before "


@dataclass(frozen=True, order=True)
class RowCursor:
    """A place between two rows, in the order in which they are shown.

    Attributes:
        offset: of the batch.
        partition: of that batch; all of its rows come before those of the next one.
        record_batch: number within the partition.
        row: number within the record batch.
    """

    offset: int
    partition: int = 0
    record_batch: int = 0
    row: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it lies before a whole batch."""
        return not (self.partition or self.record_batch or self.row)

    def __str__(self) -> str:
        return str(self.offset) if self.is_whole else f"{self.offset}-{self.partition}-{self.record_batch}-{self.row}"


@dataclass(frozen=True)
class RowPlace:
    """Where to read.

    Attributes:
        start: a row, or one end of the topic, an offset or a time.
        backwards: the last rows before ``start``, not the first ones from there on.
    """

    start: Boundary | RowCursor
    backwards: bool = False

    @classmethod
    def of(cls, text: str) -> RowPlace:
        """Return what a person wrote, or :meth:`__str__` did.

        Raises:
            ConfigError: it is no place.
        """
        if text in ("", NEWEST):
            return cls(LATEST, backwards=True)
        backwards, rest = text.startswith(_BEFORE), text.removeprefix(_BEFORE).strip()
        if (found := _CURSOR.fullmatch(rest)) is not None:
            return cls(RowCursor(*map(int, found.groups())), backwards)
        try:
            start = Boundary.read(rest, () if backwards else ("earliest",))
        except BadValueError as error:
            raise ConfigError(
                f"from: {short_repr(text)} is no place; expected newest, earliest, an offset such as 12, before 12, or "
                "a time such as 2026-11-21T10:00:00Z",
                key="from",
            ) from error
        if start.kind == "offset" and isinstance(start.value, int):
            return cls(RowCursor(start.value), backwards)
        return cls(start, backwards)

    def __str__(self) -> str:
        if self.start == LATEST:
            return NEWEST
        start = "earliest" if self.start == EARLIEST else str(self.start)
        if isinstance(self.start, Boundary) and self.start.kind == "time":
            start = str(self.start.value).zfill(12)
        return f"{_BEFORE}{start}" if self.backwards else start


@dataclass(frozen=True)
class RowBounds:
    """How much one read may look at.

    Attributes:
        rows, bytes: that are looked at; bytes as Arrow has them in memory.
        kept_bytes: of the rows that are returned.
        seconds: until the read stops with what it has; checked between record batches.
    """

    rows: int
    bytes: int
    kept_bytes: int
    seconds: float


PAGE_BOUNDS = RowBounds(20_000, 64 << 20, 4 << 20, 10.0)
EXPORT_BOUNDS = RowBounds(1_000_000, 256 << 20, 64 << 20, 30.0)


@dataclass(frozen=True, kw_only=True)
class RowsQuery:
    """What is asked.

    Attributes:
        limit: rows, from 1 to 100,000.
        where: a condition in SQLite's SQL; "" for all rows.
    """

    topic: str
    place: RowPlace
    limit: int = DEFAULT_ROWS
    where: str = ""
    bounds: RowBounds = PAGE_BOUNDS

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= EXPORT_ROWS:
            raise ConfigError(f"limit: {self.limit} is not from 1 to {EXPORT_ROWS:,}", key="limit")
        if len(self.where) > MAX_CONDITION:
            raise ConfigError(f"the condition has more than {MAX_CONDITION:,} characters", key="where")
        cursor = self.place.start
        if isinstance(cursor, RowCursor) and max(cursor.offset, cursor.row) >= MAX_NUMBER:
            raise ConfigError(f"from: {short_repr(str(cursor))} is no place in a topic", key="from")


class Ended(StrEnum):
    """Why a read stopped where it did."""

    ALL = "all"  # there is no more in that direction
    LIMIT = "limit"
    ROWS = "rows"  # looked at
    BYTES = "bytes"
    TIME = "time"
    SCHEMA = "schema"  # the next rows have other columns
    LOSS = "loss"  # the next rows were removed while they were read


@dataclass(frozen=True)
class FoundPlace:
    """Where a row is: offset and partition of its batch, its number within both; ``published``: seconds since 1970."""

    offset: int
    partition: int
    number: int
    published: float


@dataclass(frozen=True, kw_only=True)
class RowsFound:
    """The rows that were found, the oldest first. All have the same columns.

    Attributes:
        schema: of the rows, without what is masked; None if no row was looked at.
        masked: columns, and fields as ``column.field``, that are masked.
        batches: the rows, together as many as there are places.
        ended: why the read stopped.
        looked_rows: how many rows were looked at, from offset ``first`` to ``last``; both None if none was.
        there: rows that the topic has from the place on (or before it), whether or not the condition holds for them.
        older, newer: where to go on; None where there is nothing more.
        notes: what a reader must know, such as that rows were removed.
    """

    schema: pa.Schema | None = None
    masked: tuple[str, ...] = ()
    batches: tuple[pa.RecordBatch, ...] = ()
    places: Sequence[FoundPlace] = ()
    ended: Ended = Ended.ALL
    looked_rows: int = 0
    first: int | None = None
    last: int | None = None
    there: int = 0
    older: RowPlace | None = None
    newer: RowPlace | None = None
    notes: tuple[str, ...] = ()
