"""Dead letters, on their way back: which of them can be published again, and that each row is, once.

It reads letters and hands rows to appenders; where the letters come from, and what is printed, is the command's.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from jobpipe.errors import AlreadyRedriven, ConfigError, SchemaMismatch
from jobpipe.pipelines.source_rows import RowReader
from jobpipe.publisher.appender import Make, NewRows, Shape
from jobpipe.store.batches import APPENDERS
from jobpipe.store.redriven import MarkedSet, Marks, RowRange, ranges_of
from jobpipe.subscriber.checked import parse_arrow_schema
from jobpipe.subscriber.fetch import Fetched

log = logging.getLogger(__name__)

BATCH_ROWS = 1000
BATCH_CHARACTERS = 4 * 1024 * 1024
NAMED = 20  # letters that are left, with their reasons
NEEDED = ("row", "error_class", "error_message", "stage", "topic", "at")
COLUMNS = (*NEEDED, "offset", "partition", "row_number", "file", "source_row")
TRIES = 100  # at a batch some of whose rows other redrives publish at the same time


class Target(Protocol):
    """An appender of the topic that rows go back to."""

    def shape(self) -> Shape: ...

    def redriven(self, log_id: str, first: int, end: int) -> Iterator[RowRange]: ...

    def append(self, batch_id: int, make: Make) -> bool: ...


@dataclass(frozen=True)
class Letter:
    """A dead letter.

    Attributes:
        offset, number: of its batch in the letters' topic, and of the row in it.
        values: by column, of :data:`COLUMNS`; a column that the topic does not have is null.
    """

    offset: int
    number: int
    values: Mapping[str, Any]

    @property
    def place(self) -> tuple[int, int]:
        """Offset and number."""
        return self.offset, self.number

    @property
    def topic(self) -> str:
        """The topic that its row came from; "" for none."""
        return self.values["topic"] or ""

    @property
    def hindrance(self) -> str | None:
        """Why its row cannot be published again, whatever its topic is like now; None if nothing says so."""
        if not self.topic and self.values["file"] is not None:
            return "its row came from a file: repair it there, or put it into another file that the job reads"
        if not self.topic:
            return "it is not known which topic's row it was: the job reads none, or a stage before this one changed it"
        if self.values["source_row"] is None:
            return "it does not say what its row was in the topic: a stage before this one changed the columns"
        return None


def letters_of(topic: str, fetched: Fetched) -> Iterator[Letter]:
    """Yield the letters of a record batch.

    Raises:
        ConfigError: these are no dead letters.
    """
    batch = fetched.batch
    missing = [name for name in NEEDED if name not in batch.schema.names]
    if missing or fetched.header.partition:
        why = f"it has no column {', '.join(missing)}" if missing else "it has several partitions"
        raise ConfigError(
            f"topic {topic!r} is no topic of dead letters: {why}. `jobpipe dead-letters list` names those that are",
            topic=topic,
        )
    known = [name for name in COLUMNS if name in batch.schema.names]
    nothing = dict.fromkeys(COLUMNS)
    for number, row in enumerate(batch.select(known).to_pylist()):
        yield Letter(fetched.header.n, fetched.row + number, {**nothing, **row})


@dataclass(frozen=True)
class Left:
    """A letter whose row was not published again, and why."""

    letter: Letter
    why: str


@dataclass
class Outcome:
    """What became of the letters.

    Attributes:
        published: rows by topic; of a dry run, those that would be.
        already: letters whose rows were published again before.
        left: how many letters were left, by reason; ``named`` has some of them.
    """

    published: Counter[str] = field(default_factory=Counter)
    already: int = 0
    left: Counter[str] = field(default_factory=Counter)
    named: list[Left] = field(default_factory=list)

    def leave(self, letters: Iterable[Left]) -> None:
        """Note letters that are left."""
        for each in letters:
            self.left[each.why] += 1
            if len(self.named) < NAMED:
                self.named.append(each)


@dataclass
class _Waiting:
    """Letters of one topic whose rows are not published yet."""

    target: Target
    marked: MarkedSet = field(default_factory=MarkedSet)
    letters: list[Letter] = field(default_factory=list)
    characters: int = 0
    batches: int = 0


class Redrive:
    """Publishes the rows of letters again, in the order in which they come, batch by batch.

    Args:
        log_id: of the letters' topic.
        tail: offset of its first batch.
        start, end: offsets between which the letters lie.
        open_topic: returns what publishes to a topic, given its name and a query id.
        dry_run: nothing is published.
    """

    def __init__(
        self,
        log_id: str,
        tail: int,
        start: int,
        end: int,
        open_topic: Callable[[str, str], Target],
        *,
        dry_run: bool = False,
    ) -> None:
        self.outcome = Outcome()
        self._log_id = log_id
        self._tail = tail
        self._range = start, end
        self._open = open_topic
        self._dry_run = dry_run
        self._query_id = f"{APPENDERS}{uuid.uuid4().hex}"
        self._topics: dict[str, _Waiting] = {}

    def take(self, letter: Letter) -> None:
        """Take a letter; its row is published with the next full batch, or by :meth:`finish`."""
        if (why := letter.hindrance) is not None:
            self.outcome.leave([Left(letter, why)])
            return
        waiting = self._topics.get(letter.topic)
        if waiting is None:
            waiting = self._topics[letter.topic] = _Waiting(self._open(letter.topic, self._query_id))
            self._look(waiting, *self._range)
        if letter.place in waiting.marked:
            self.outcome.already += 1
            return
        waiting.letters.append(letter)
        waiting.characters += len(letter.values["source_row"])
        if len(waiting.letters) >= BATCH_ROWS or waiting.characters >= BATCH_CHARACTERS:
            self._publish(letter.topic, waiting)

    def finish(self) -> Outcome:
        """Publish what waits, and return what became of all letters."""
        for topic, waiting in self._topics.items():
            self._publish(topic, waiting)
        return self.outcome

    def _look(self, waiting: _Waiting, start: int, end: int) -> None:
        """Learn which letters' rows were published again already."""
        waiting.marked.update(waiting.target.redriven(self._log_id, start, end))

    def _publish(self, topic: str, waiting: _Waiting) -> None:
        letters, waiting.letters, waiting.characters = waiting.letters, [], 0
        for _ in range(TRIES):
            if not letters:
                return
            batch = _Batch(topic, letters, self._log_id, self._tail)
            try:
                if self._dry_run:
                    batch(waiting.target.shape())
                else:
                    waiting.target.append(waiting.batches, batch)
                    waiting.batches += 1
            except AlreadyRedriven as error:
                log.info("%s", error)
                self._look(waiting, letters[0].offset, letters[-1].offset + 1)
                left = [letter for letter in letters if letter.place not in waiting.marked]
                self.outcome.already += len(letters) - len(left)
                letters = left
            except SchemaMismatch as error:
                if "column" not in error.fields:
                    raise
                self.outcome.leave(Left(letter, error.message) for letter in letters)
                return
            else:
                if len(batch.left) < len(letters):
                    self.outcome.published[topic] += len(letters) - len(batch.left)
                self.outcome.leave(batch.left)
                return
        raise AlreadyRedriven(f"topic {topic!r}: other redrives publish the same rows again and again", topic=topic)


class _Batch:
    """Makes a batch of letters' rows, as often as it is asked; the last time counts.

    Attributes:
        left: letters whose rows are not of the schema.
    """

    def __init__(self, topic: str, letters: list[Letter], log_id: str, tail: int) -> None:
        self.left: list[Left] = []
        self._topic = topic
        self._letters = letters
        self._log_id = log_id
        self._tail = tail

    def __call__(self, shape: Shape) -> NewRows | None:
        reader = RowReader(self._topic, parse_arrow_schema(self._topic, shape.arrow))
        self.left = []
        parts: dict[int, list[Mapping[str, Any]]] = {}
        taken: list[tuple[int, int]] = []
        for letter in self._letters:
            try:
                row = reader.values(letter.values["source_row"])
            except ValueError as error:
                self.left.append(Left(letter, f"its row does not fit topic {self._topic} as it is now: {error}"))
                continue
            taken.append(letter.place)
            parts.setdefault((letter.values["partition"] or 0) % shape.partitions, []).append(row)
        if not taken:
            return None
        rows: list[tuple[pa.RecordBatch, int]] = [(reader.batch(part), number) for number, part in parts.items()]
        return NewRows(reader.schema, rows, Marks(self._log_id, self._tail, ranges_of(taken)))
