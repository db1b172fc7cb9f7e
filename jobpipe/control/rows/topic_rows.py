"""Reads rows of a topic for a person: bounded, up to its present end, and without a subscription.

A lease keeps what is read from retention meanwhile; it is given back however the read ends. Nothing is started: a topic
that is not served is an error that says what is known of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from jobpipe.config import Config
from jobpipe.control.rows.masked_columns import MaskedColumns
from jobpipe.control.rows.row_walk import RowPiece, RowWalk
from jobpipe.control.rows.rows_query import Ended, FoundPlace, RowCursor, RowPlace, RowsFound, RowsQuery
from jobpipe.control.rows.sql_condition import SqlCondition
from jobpipe.errors import DataLoss, WaitTimeout
from jobpipe.operations.reader_operations import Bounds
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import EARLIEST, Boundary
from jobpipe.store.spool.spool_files import check_topic
from jobpipe.subscribing.topic_reader import TopicReader

MOST_READS = 2  # at a time
WAIT_SECONDS = 10.0  # for one of them
TRIES = 3
ANSWER_SECONDS = 5.0  # for a coordinator, or a server of data, that is away


class TopicRows:
    """Reads rows; from any thread, a bounded number at a time.

    Args:
        config: where the registry is, the certificate, which needs the right to read topics, and the masked columns.
        locate: returns where a topic is served, or raises TopicNotFound with what is known of it.
        clock: monotonic seconds.
    """

    def __init__(
        self, config: Config, locate: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._masked = config.server_masked_columns or ()
        self._config = replace(config, discovery_timeout=ANSWER_SECONDS, read_timeout=ANSWER_SECONDS)
        self._locate = locate
        self._clock = clock
        self._reads = threading.BoundedSemaphore(MOST_READS)

    def read(self, query: RowsQuery) -> RowsFound:
        """Return the rows that are asked for.

        Raises:
            TopicNotFound: no publisher serves the topic; TopicAway if one did.
            ConfigError: the condition is wrong; nothing was published since the time to begin at.
            WaitTimeout: others read now; or the condition takes too long.
            NotAuthorized: the server may not read the topic.
            JobpipeError: rows cannot be read.
        """
        check_topic(query.topic)
        condition = SqlCondition(query.where) if query.where.strip() else None
        if not self._reads.acquire(timeout=WAIT_SECONDS):
            raise WaitTimeout(f"{MOST_READS} others read rows of topics now; try again in a moment")
        try:
            self._locate(query.topic)
            until = self._clock() + query.bounds.seconds
            with TopicReader(self._config, query.topic) as reader:
                for _ in range(TRIES - 1):
                    with contextlib.suppress(DataLoss):  # retention came between two questions
                        return self._read(reader, query, condition, until)
                return self._read(reader, query, condition, until)
        finally:
            self._reads.release()

    def _read(self, reader: TopicReader, query: RowsQuery, condition: SqlCondition | None, until: float) -> RowsFound:
        walk = RowWalk(reader)
        span = _span(reader, walk, query)
        masked = MaskedColumns(self._masked, query.topic)
        search = _Search(query, condition, masked, self._clock, until)
        if span.start.n < span.end.n:
            with reader.hold_range(span.start, span.end):
                there = sum(plan.rows for plan in reader.ranges(span.start, span.end).plans)
                step = walk.backwards if query.place.backwards else walk.forwards
                with contextlib.closing(step(span.start, span.end, span.cursor)) as pieces:
                    search.run(pieces)
            return search.found(span, there)
        return search.found(span, 0)


@dataclass(frozen=True)
class _Span:
    """What a read may look at: from ``start`` to ``end``; ``cursor`` lies in its first batch, or backwards its last."""

    start: Position
    end: Position
    cursor: RowCursor | None
    bounds: Bounds
    notes: tuple[str, ...] = ()


def _span(reader: TopicReader, walk: RowWalk, query: RowsQuery) -> _Span:
    start = query.place.start
    cursor = start if isinstance(start, RowCursor) else None
    boundary = Boundary("offset", start.offset) if isinstance(start, RowCursor) else start
    try:
        bounds = reader.bounds(boundary)
        here = bounds.start
    except DataLoss:
        bounds = reader.bounds(EARLIEST)
        if cursor is None:
            raise
        head, tail = bounds.head.n, bounds.tail.n
        if cursor.offset < tail:
            note = f"offset {cursor.offset:,} was removed; the topic has rows from offset {tail:,} on"
        elif head == 0:
            note = f"offset {cursor.offset:,} is not there yet; nothing was published so far"
        else:
            note = f"offset {cursor.offset:,} is not there yet; the newest one is {head - 1:,}"
        at = bounds.tail if cursor.offset < tail else bounds.head
        return _Span(at, at if query.place.backwards else bounds.head, None, bounds, (note,))
    if not query.place.backwards:
        return _Span(here, bounds.head, cursor, bounds)
    if cursor is None or cursor.is_whole or here.n >= bounds.head.n:
        return _Span(bounds.tail, here, None, bounds)
    return _Span(bounds.tail, walk.position(here.n + 1), cursor, bounds)


@dataclass
class _Search:
    """Looks at pieces until there are rows enough, or a bound is reached."""

    query: RowsQuery
    condition: SqlCondition | None
    masks: MaskedColumns
    clock: Callable[[], float]
    until: float
    ended: Ended = Ended.ALL
    looked: int = 0
    looked_bytes: int = 0
    kept: int = 0
    kept_bytes: int = 0
    source: pa.Schema | None = None  # as it is published
    schema: pa.Schema | None = None  # without what is masked
    batches: list[pa.RecordBatch] = field(default_factory=list)
    places: list[list[FoundPlace]] = field(default_factory=list)
    begin: RowCursor | None = None  # of what was looked at first
    stop: RowCursor | None = None  # up to where rows were looked at, in the direction of the read
    offsets: tuple[int, int] | None = None

    def run(self, pieces: Iterator[RowPiece]) -> None:
        try:
            for piece in pieces:
                if (ended := self._look(piece)) is not None:
                    self.ended = ended
                    return
        except DataLoss:
            if self.stop is None:
                raise
            self.ended = Ended.LOSS

    def _look(self, piece: RowPiece) -> Ended | None:
        """Look at a piece; return why the read ends before, or with, it."""
        if self.source is None:
            self.source = piece.batch.schema
            self.schema = self.masks.schema(self.source)
        elif not piece.batch.schema.equals(self.source):
            return Ended.SCHEMA
        bounds = self.query.bounds
        most = bounds.rows - self.looked
        if self.condition is None:
            most = min(most, self.query.limit - self.kept)
        piece = self._nearest(piece, most)
        clean = self.masks.apply(piece.batch)
        every = range(piece.batch.num_rows)
        numbers = list(every) if self.condition is None else self.condition.numbers(clean, self.until, self.clock)
        room = self.query.limit - self.kept
        if len(numbers) > room:
            back = self.query.place.backwards
            first, stop = (numbers[-room], len(every)) if back else (0, numbers[room - 1] + 1)
            piece, clean = piece.cut(first, stop), clean.slice(first, stop - first)
            numbers = [number - first for number in (numbers[-room:] if back else numbers[:room])]
        self._note(piece)
        if numbers:
            self._keep(piece, clean, numbers)
        if self.kept >= self.query.limit:
            return Ended.LIMIT
        if self.looked >= bounds.rows:
            return Ended.ROWS
        if self.looked_bytes >= bounds.bytes or self.kept_bytes >= bounds.kept_bytes:
            return Ended.BYTES
        return Ended.TIME if self.clock() >= self.until else None

    def _nearest(self, piece: RowPiece, most: int) -> RowPiece:
        """Return at most so many rows of a piece, those that are met first."""
        rows = piece.batch.num_rows
        if rows <= most:
            return piece
        return piece.cut(rows - most, rows) if self.query.place.backwards else piece.cut(0, most)

    def _note(self, piece: RowPiece) -> None:
        rows, offset = piece.batch.num_rows, piece.cursor.offset
        self.looked += rows
        self.looked_bytes += piece.batch.nbytes
        first, last = piece.at(0), piece.at(rows)
        back = self.query.place.backwards
        self.begin = self.begin or (last if back else first)
        self.stop = first if back else last
        low, high = self.offsets or (offset, offset)
        self.offsets = (min(low, offset), max(high, offset))

    def _keep(self, piece: RowPiece, clean: pa.RecordBatch, numbers: list[int]) -> None:
        taken = clean if len(numbers) == clean.num_rows else clean.take(pa.array(numbers, pa.int64()))
        self.batches.append(taken)
        self.kept += len(numbers)
        self.kept_bytes += taken.nbytes
        cursor = piece.cursor
        self.places.append(
            [FoundPlace(cursor.offset, cursor.partition, piece.number + each, piece.published) for each in numbers]
        )

    def found(self, span: _Span, there: int) -> RowsFound:
        """Return what was found; ``there``: rows of the span."""
        back = self.query.place.backwards
        batches, places = self.batches, self.places
        if back:
            batches, places = batches[::-1], places[::-1]
        older, newer = self._links(span)
        low, high = self.offsets or (None, None)
        return RowsFound(
            schema=self.schema,
            masked=() if self.source is None else self.masks.names(self.source),
            batches=tuple(batches),
            places=[place for listed in places for place in listed],
            ended=self.ended,
            looked_rows=self.looked,
            first=low,
            last=high,
            there=there,
            older=older,
            newer=newer,
            notes=span.notes,
        )

    def _links(self, span: _Span) -> tuple[RowPlace | None, RowPlace | None]:
        """Return where rows before, and after, those that were looked at are."""
        tail, head = RowCursor(span.bounds.tail.n), RowCursor(span.bounds.head.n)
        if self.begin is None or self.stop is None:  # there was nothing in that direction
            at = RowCursor(span.end.n if self.query.place.backwards else span.start.n)
            low = high = span.cursor or at
        else:
            low, high = sorted((self.begin, self.stop))
        more = self.ended is not Ended.ALL
        if self.query.place.backwards:
            older = RowPlace(low, backwards=True) if more else None
            at_end = span.end.n >= head.offset and span.cursor is None
            return older, None if at_end else RowPlace(span.cursor or RowCursor(span.end.n))
        begin = span.cursor or RowCursor(span.start.n)
        older = RowPlace(begin, backwards=True) if begin > tail else None
        return older, RowPlace(high) if more else None
