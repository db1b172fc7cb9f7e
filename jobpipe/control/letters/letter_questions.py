"""Asks topics of dead letters: bounded in rows and bytes, and without a subscription. Blocking."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa

from jobpipe.admin import NewestRows
from jobpipe.config import Config
from jobpipe.control.letters.letter_views import LetterCounts, LetterGroupView, LetterRow, LetterRows
from jobpipe.errors import TopicNotFound
from jobpipe.pipelines.dead_letters.letter_reader import LetterGroup, LetterGroups, LetterReader
from jobpipe.pipelines.dead_letters.redrive import Outcome, letters_of, rows_of
from jobpipe.store.reading.boundary import EARLIEST, Boundary
from jobpipe.subscribing.fetching.part_fetch import Fetched

MOST_LETTERS = 20_000  # that are looked at
MOST_BYTES = 64 << 20
ROW_CHARACTERS = 2000
TEXT_CHARACTERS = 1000
ANSWER_SECONDS = 5.0  # for a coordinator, or a server of data, that is away
Mask = Callable[[str, pa.RecordBatch], pa.RecordBatch]


class LetterAdmin(Protocol):
    """What is asked here of :class:`jobpipe.admin.Admin`."""

    def locate(self, topic: str) -> object: ...

    def newest(self, topic: str, rows: int) -> NewestRows: ...


class LetterQuestions:
    """Asks.

    Args:
        mask: takes out of a batch of letters, given their topic, what is not shown to anybody.
    """

    def __init__(self, config: Config, admin: LetterAdmin, mask: Mask = lambda _, batch: batch) -> None:
        self._config = config
        self._impatient = replace(config, discovery_timeout=ANSWER_SECONDS, read_timeout=ANSWER_SECONDS)
        self._admin = admin
        self._mask = mask

    def count(self, topic: str, stopped: Callable[[], bool]) -> LetterCounts:
        """Count letters by stage and error: all of them, or the newest if they are too many.

        Args:
            stopped: tells whether to end early; as of the methods below.
        """
        newest = self._admin.newest(topic, MOST_LETTERS)
        groups, looked = LetterGroups(topic), _Looked()
        with ExitStack() as stack:
            letters = LetterReader(stack, self._impatient, self)
            for fetched in _read(letters, topic, newest.start, None, looked, stopped):
                for letter in letters_of(topic, fetched):
                    groups.add(letter)
            found = groups.all()
            letters.count_redriven(found)
        return LetterCounts(letters=newest.all, looked_at=looked.rows, groups=tuple(map(_group_view, found)))

    def newest(self, topic: str, limit: int, stopped: Callable[[], bool]) -> LetterRows:
        """Return the newest letters, the newest first."""
        newest = self._admin.newest(topic, limit)
        note = ""
        with ExitStack() as stack:
            letters = LetterReader(stack, self._impatient, self)
            rows, looked = self._last(letters, topic, newest.start, None, limit, stopped)
            if looked.rows < newest.rows:
                note = f"The newest batches have {newest.rows:,} letters; these are of their first {looked.rows:,}"
            elif newest.rows < min(limit, newest.all):  # the batch before them has more than are missing
                more = limit - newest.rows
                before, looked = self._last(letters, topic, newest.start - 1, newest.start, more, stopped)
                if looked.is_complete:
                    rows = before + rows
                else:
                    note = f"The batch before these has too many letters to show its last {more:,}"
        return LetterRows(rows=tuple(reversed(rows)), note=note)

    def _last(
        self, letters: LetterReader, topic: str, start: int, end: int | None, most: int, stopped: Callable[[], bool]
    ) -> tuple[list[LetterRow], _Looked]:
        """Return the last letters from one offset to another, as far as they may be looked at."""
        rows: deque[LetterRow] = deque(maxlen=most)
        looked = _Looked()
        for fetched in _read(letters, topic, start, end, looked, stopped):
            rows.extend(_rows(fetched, self._mask(topic, fetched.batch)))
        return list(rows), looked

    def redrive(
        self,
        topic: str,
        allowed: Callable[[str], bool],
        stopped: Callable[[], bool],
        outcome: Outcome,
        *,
        dry_run: bool,
    ) -> None:
        """Publish the rows of all letters again that were not yet, or say what would be; as the command line does.

        A dry run ends where there is more than may be looked at; then the outcome is not complete.

        Args:
            outcome: takes what becomes of them, as far as it is known, also if this raises.
        """
        with ExitStack() as stack:
            letters = LetterReader(stack, self._impatient if dry_run else self._config, self)
            letters.redrive(
                topic,
                EARLIEST,
                None,
                None,
                allowed,
                dry_run=dry_run,
                stopped=stopped,
                enough=_Looked().is_too_much if dry_run else lambda _: False,
                outcome=outcome,
            )

    def serve(self, topic: str) -> bool:
        """Serve no topic: the server keeps those served that its jobs need."""
        return False

    def is_served(self, topic: str) -> bool:
        """Tell whether a coordinator is registered for a topic."""
        try:
            self._admin.locate(topic)
        except TopicNotFound:
            return False
        return True


@dataclass
class _Looked:
    """What was looked at, of what may be.

    Attributes:
        is_complete: nothing was left out.
    """

    rows: int = 0
    size: int = 0
    is_complete: bool = False

    def is_too_much(self, fetched: Fetched) -> bool:
        """Add a record batch, and tell whether that is more than may be looked at."""
        self.rows, self.size = self.rows + fetched.batch.num_rows, self.size + fetched.batch.nbytes
        return self.rows > MOST_LETTERS or self.size > MOST_BYTES


def _read(
    letters: LetterReader, topic: str, start: int, end: int | None, looked: _Looked, stopped: Callable[[], bool]
) -> Iterator[Fetched]:
    """Yield record batches from one offset to another, as many as may be looked at."""
    ending = None if end is None else Boundary("offset", end)
    with closing(letters.read(topic, Boundary("offset", start), ending, None)) as found:
        for fetched, _ in found:
            if looked.rows >= MOST_LETTERS or looked.size >= MOST_BYTES or stopped():
                return
            batch = fetched.batch.slice(0, MOST_LETTERS - looked.rows)
            yield replace(fetched, batch=batch)
            looked.rows, looked.size = looked.rows + batch.num_rows, looked.size + fetched.batch.nbytes
            if batch.num_rows < fetched.batch.num_rows:
                return
    looked.is_complete = True


def _group_view(group: LetterGroup) -> LetterGroupView:
    return LetterGroupView(
        stage=group.stage,
        error_class=group.error_class,
        letters=group.letters,
        redriven=group.redriven,
        left=group.left,
        first=None if group.first is None else group.first.timestamp(),
        last=None if group.last is None else group.last.timestamp(),
    )


def _rows(fetched: Fetched, batch: pa.RecordBatch) -> Iterator[LetterRow]:
    for number, values in enumerate(rows_of(batch)):
        row = values.get("row")
        at = values.get("at")
        yield LetterRow(
            offset=fetched.header.n,
            number=fetched.row + number,
            row=None if row is None else str(row)[:ROW_CHARACTERS],
            row_characters=0 if row is None else len(str(row)),
            error_class=_text(values, "error_class"),
            error_message=_text(values, "error_message"),
            stage=_text(values, "stage"),
            topic=_text(values, "topic"),
            source_offset=_number(values, "offset"),
            partition=_number(values, "partition"),
            row_number=_number(values, "row_number"),
            file=_text(values, "file"),
            run=_text(values, "run"),
            at=at.timestamp() if isinstance(at, datetime) else None,
        )


def _text(values: dict[str, Any], name: str) -> str | None:
    value = values.get(name)
    return None if value is None else str(value)[:TEXT_CHARACTERS]


def _number(values: dict[str, Any], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) else None
