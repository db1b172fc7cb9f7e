"""Dead letters, on their way back: which of them can be published again, and that each row is, once.

It reads letters and hands rows to appenders; where the letters come from, and what is printed, is the command's. What a
letter says is only its author's word: its row goes to no topic but those that the caller names.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from jobpipe.arrow.ipc_validation import parse_arrow_schema
from jobpipe.errors import (
    AlreadyRedriven,
    ConfigError,
    NotAuthorized,
    RowTooLarge,
    SchemaMismatch,
    TopicNotFound,
    short_repr,
)
from jobpipe.pipelines.dead_letters.source_rows import RowReader
from jobpipe.publishing.appender import BatchShape, Make, NewRows
from jobpipe.store.catalog.batches import APPENDERS
from jobpipe.store.catalog.redrive_marks import MARKS, SourceRow
from jobpipe.store.spool.spool_files import is_topic
from jobpipe.subscribing.fetching.part_fetch import Fetched

log = logging.getLogger(__name__)

BATCH_ROWS = MARKS
BATCH_CHARACTERS = 4 * 1024 * 1024
NAMED = 20  # letters that are left, with their reasons
NEEDED = ("row", "error_class", "error_message", "stage", "topic", "at")
PLACE = ("offset", "published_ms", "partition", "row_number")
COLUMNS = (*NEEDED, *PLACE, "file", "source_row")
OF_THE_TOPIC = (TopicNotFound, NotAuthorized, ConfigError, SchemaMismatch)  # errors that another try does not mend
UNREADABLE = (ArithmeticError, LookupError, TypeError, ValueError, pa.ArrowException)  # of a value, to Python
AS_IT_IS = "as it is now"  # in a reason; what follows quotes a value
TRIES = 100  # at a batch some of whose rows other redrives publish at the same time


def without_value(why: str) -> str:
    """Return why a letter is left without the value of its row that the reason may quote."""
    before, found, _ = why.partition(f" {AS_IT_IS}: ")
    return f"{before} {AS_IT_IS}" if found else why


class Target(Protocol):
    """An appender of the topic that rows go back to."""

    def shape(self) -> BatchShape: ...

    def schemas(self) -> Sequence[bytes]: ...

    def redriven(self, rows: Sequence[SourceRow]) -> set[SourceRow]: ...

    def append(self, batch_id: int, make: Make) -> bool: ...


@dataclass(frozen=True)
class Letter:
    """A dead letter.

    Attributes:
        offset, number: of its batch in the letters' topic, and of the letter in it.
        values: by column, of :data:`COLUMNS`; a column that the topic does not have is null.
    """

    offset: int
    number: int
    values: Mapping[str, Any]

    @property
    def topic(self) -> str:
        """The topic that its row came from; "" for none."""
        return self.text("topic")

    @property
    def at(self) -> datetime | None:
        """When its row failed; None if it does not say, or names a time that is none."""
        at = self.values["at"]
        if not isinstance(at, datetime):
            return None
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)

    def text(self, name: str) -> str:
        """Return the text in a column; "" for none."""
        value = self.values[name]
        return value if isinstance(value, str) else ""

    @property
    def source(self) -> SourceRow:
        """Where its row was; only if nothing hinders it."""
        return SourceRow(*(self.values[name] for name in PLACE))

    @property
    def hindrance(self) -> str | None:
        """Why its row cannot be published again, whatever its topic is like now; None if nothing says so."""
        if not self.topic and self.values["file"] is not None:
            return "its row came from a file: repair it there, or put it into another file that the job reads"
        if not self.topic:
            return "it is not known which topic's row it was: the job reads none, or a stage before this one changed it"
        if not is_topic(self.topic):
            return f"what it says that its row came from is not a topic name: {short_repr(self.topic)}"
        if not isinstance(self.values["source_row"], str):
            return "it does not say what its row was in the topic: a stage before this one changed the columns"
        if not all(isinstance(self.values[name], int) and 0 <= self.values[name] < 2**53 for name in PLACE):
            return "it does not say where its row was in the topic, so it would not be known that it was published"
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
    for number, row in enumerate(rows_of(batch.select(known))):
        yield Letter(fetched.header.n, fetched.row + number, {**nothing, **row})


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows by column; a value that Python cannot have, such as a time in the year 100000, is None."""
    columns = [_values(column) for column in batch.columns]
    for number in range(batch.num_rows):
        yield {name: values[number] for name, values in zip(batch.schema.names, columns, strict=True)}


def _values(column: pa.Array[Any]) -> list[Any]:
    try:
        return column.to_pylist()
    except UNREADABLE:
        return [_value(each) for each in column]


def _value(value: pa.Scalar[Any]) -> Any:
    try:
        return value.as_py()
    except UNREADABLE:
        return None


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
        is_complete: whether all letters were taken, and not only the first.
    """

    published: Counter[str] = field(default_factory=Counter)
    already: int = 0
    left: Counter[str] = field(default_factory=Counter)
    named: list[Left] = field(default_factory=list)
    is_complete: bool = True

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
    letters: list[Letter] = field(default_factory=list)
    characters: int = 0
    batches: int = 0


class Redrive:
    """Publishes the rows of letters again, in the order in which they come, batch by batch.

    Args:
        open_topic: returns what publishes to a topic, given its name and a query id.
        allowed: tells of a topic whether rows may go there.
        dry_run: nothing is published.
        outcome: takes what becomes of the letters, batch by batch, so that it is known too if an error ends this.
    """

    def __init__(
        self,
        open_topic: Callable[[str, str], Target],
        allowed: Callable[[str], bool],
        *,
        dry_run: bool = False,
        outcome: Outcome | None = None,
    ) -> None:
        self.outcome = Outcome() if outcome is None else outcome
        self._open = open_topic
        self._allowed = allowed
        self._dry_run = dry_run
        self._query_id = f"{APPENDERS}{uuid.uuid4().hex}"
        self._topics: dict[str, _Waiting] = {}
        self._failed: dict[str, str] = {}  # topics that take nothing, with the reason
        self._would: set[tuple[str, SourceRow]] = set()  # rows that a dry run would have published

    def take(self, letter: Letter) -> None:
        """Take a letter; its row is published with the next full batch, or by :meth:`finish`."""
        topic = letter.topic
        why = letter.hindrance or self._failed.get(topic)
        if why is None and not self._allowed(topic):
            why = f"rows may not go to its topic {topic}: give --into {topic} if the job reads it"
        if why is not None:
            self.outcome.leave([Left(letter, why)])
            return
        if topic not in self._topics:
            try:
                self._topics[topic] = _Waiting(self._open(topic, self._query_id))
            except OF_THE_TOPIC as error:
                self._fail(topic, [letter], error.message)
                return
        waiting = self._topics[topic]
        waiting.letters.append(letter)
        waiting.characters += len(letter.values["source_row"])
        if len(waiting.letters) >= BATCH_ROWS or waiting.characters >= BATCH_CHARACTERS:
            self._flush(topic, waiting)

    def finish(self) -> Outcome:
        """Publish what waits, and return what became of all letters."""
        for topic, waiting in self._topics.items():
            self._flush(topic, waiting)
        return self.outcome

    def _fail(self, topic: str, letters: Iterable[Letter], why: str) -> None:
        self._failed[topic] = why
        self.outcome.leave(Left(letter, why) for letter in letters)

    def _flush(self, topic: str, waiting: _Waiting) -> None:
        letters, waiting.letters, waiting.characters = waiting.letters, [], 0
        try:
            self._publish(topic, waiting, letters)
        except OF_THE_TOPIC as error:  # the others' rows go on
            self._fail(topic, letters, error.message)

    def _publish(self, topic: str, waiting: _Waiting, letters: list[Letter]) -> None:
        """Publish a batch; nothing of it if this raises."""
        already = 0
        for _ in range(TRIES):
            left = self._not_yet(topic, waiting, letters)
            already, letters = already + len(letters) - len(left), left
            batch = _Batch(topic, letters, waiting.target.schemas)
            try:
                if letters and self._dry_run:
                    batch(waiting.target.shape())
                elif letters:
                    waiting.target.append(waiting.batches, batch)
            except AlreadyRedriven as error:
                log.info("%s", error)
                continue
            except RowTooLarge as error:
                self.outcome.already += already
                self._publish_halves(topic, waiting, letters, error)
                return
            waiting.batches += 1
            gone = {each.letter.source for each in batch.left}
            if self._dry_run:
                self._would.update((topic, letter.source) for letter in letters if letter.source not in gone)
            self.outcome.already += already
            if published := len(letters) - len(batch.left):
                self.outcome.published[topic] += published
            self.outcome.leave(batch.left)
            return
        raise AlreadyRedriven(f"topic {topic!r}: other redrives publish the same rows again and again", topic=topic)

    def _publish_halves(self, topic: str, waiting: _Waiting, letters: list[Letter], error: RowTooLarge) -> None:
        """Publish what is too large for one batch; leave a letter whose row alone is."""
        if len(letters) == 1:
            self.outcome.leave([Left(letters[0], error.message)])
            return
        half = len(letters) // 2
        for part in (letters[:half], letters[half:]):
            self._publish(topic, waiting, part)

    def _not_yet(self, topic: str, waiting: _Waiting, letters: list[Letter]) -> list[Letter]:
        """Return the letters whose rows were not published again yet, the first one of each row."""
        first: dict[SourceRow, Letter] = {}
        for letter in letters:
            if (topic, letter.source) not in self._would:
                first.setdefault(letter.source, letter)
        marked = waiting.target.redriven(tuple(first)) if first else set()
        return [letter for source, letter in first.items() if source not in marked]


class _Batch:
    """Makes a batch of letters' rows, as often as it is asked; the last time counts.

    Attributes:
        left: letters whose rows are not of the schema.
    """

    def __init__(self, topic: str, letters: list[Letter], schemas: Callable[[], Sequence[bytes]]) -> None:
        self.left: list[Left] = []
        self._schemas = schemas
        self._topic = topic
        self._letters = letters

    def __call__(self, shape: BatchShape) -> NewRows | None:
        parse = partial(parse_arrow_schema, self._topic)
        reader = RowReader(self._topic, parse(shape.arrow), lambda: map(parse, self._schemas()))
        self.left = []
        parts: dict[int, list[Mapping[str, Any]]] = {}
        taken: list[SourceRow] = []
        for letter in self._letters:
            try:
                row = reader.values(letter.values["source_row"])
            except ValueError as error:
                self.left.append(Left(letter, f"its row does not fit topic {self._topic} {AS_IT_IS}: {error}"))
                continue
            taken.append(letter.source)
            parts.setdefault(letter.source.partition % shape.partitions, []).append(row)
        if not taken:
            return None
        rows: list[tuple[pa.RecordBatch, int]] = [(reader.batch(part), number) for number, part in parts.items()]
        return NewRows(reader.schema, rows, tuple(taken))
