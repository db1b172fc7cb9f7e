"""Reads topics of dead letters: counts them by stage and error, and lets a redrive publish their rows again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa

from jobpipe.config import Config
from jobpipe.operations.reader_operations import Bounds
from jobpipe.pipelines.dead_letters.redrive import Letter, Outcome, Redrive, letters_of
from jobpipe.publishing.appender import Appender
from jobpipe.store.catalog.redrive_marks import SourceRow
from jobpipe.store.reading.boundary import EARLIEST, LATEST, Boundary
from jobpipe.store.spool.spool_files import is_topic
from jobpipe.subscribing.fetching.part_fetch import Fetched
from jobpipe.subscribing.topic_reader import TopicReader


class ServedTopics(Protocol):
    """Which topics can be read, and published to, now."""

    def serve(self, topic: str) -> bool:
        """Serve a topic that no publisher serves, if that is possible here; return whether we do."""

    def is_served(self, topic: str) -> bool:
        """Tell whether a coordinator is registered for a topic."""


class Condition(Protocol):
    """Chooses letters."""

    def numbers(self, batch: pa.RecordBatch) -> list[int]:
        """Return the numbers of the rows that are meant."""


@dataclass
class LetterGroup:
    """The letters of one topic, stage and error.

    Attributes:
        first, last: when rows failed; None if no letter says that.
        left: letters whose rows cannot be published again.
        rows: the others' rows, by topic.
        redriven: how many of those were published again; None: a topic that they came from cannot be asked.
    """

    topic: str
    stage: str
    error_class: str
    first: datetime | None = None
    last: datetime | None = None
    letters: int = 0
    left: int = 0
    rows: dict[str, list[SourceRow]] = field(default_factory=dict)
    redriven: int | None = 0

    def add(self, letter: Letter) -> None:
        """Count a letter."""
        if (at := letter.at) is not None:
            self.first = at if self.first is None else min(self.first, at)
            self.last = at if self.last is None else max(self.last, at)
        self.letters += 1
        if letter.hindrance is not None:
            self.left += 1
        else:
            self.rows.setdefault(letter.topic, []).append(letter.source)

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "topic": self.topic,
            "stage": self.stage,
            "error_class": self.error_class,
            "letters": self.letters,
            "redriven": self.redriven,
            "left": self.left,
            "first": None if self.first is None else self.first.isoformat(),
            "last": None if self.last is None else self.last.isoformat(),
        }


class LetterGroups:
    """Letters of one topic, as they are counted."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._found: dict[tuple[str, str], LetterGroup] = {}

    def add(self, letter: Letter) -> None:
        """Count a letter."""
        key = letter.text("stage"), letter.text("error_class")
        self._found.setdefault(key, LetterGroup(self._topic, *key)).add(letter)

    def all(self) -> list[LetterGroup]:
        """Return them by stage and error."""
        return [self._found[key] for key in sorted(self._found)]


class LetterReader:
    """Reads topics of dead letters; what is opened is closed with ``stack``."""

    def __init__(self, stack: ExitStack, config: Config, served: ServedTopics) -> None:
        self._stack = stack
        self._config = config
        self._served = served

    def reader(self, topic: str) -> TopicReader:
        """Return what reads a topic; the topic is served first, if that is possible and needed."""
        self._served.serve(topic)
        return self._stack.enter_context(TopicReader(self._config, topic))

    def read(
        self, topic: str, starting: Boundary, ending: Boundary | None, condition: Condition | None
    ) -> Generator[tuple[Fetched, list[int] | None], None, None]:
        """Yield record batches with the numbers of the rows that are meant, None for all."""
        reader = self.reader(topic)
        bounds = reader.bounds(starting, ending or LATEST)
        yield from _rows(reader, bounds, condition)

    def groups(self, topic: str) -> list[LetterGroup]:
        """Return how many letters there are, by stage and error."""
        found = LetterGroups(topic)
        for fetched, _ in self.read(topic, EARLIEST, None, None):
            for letter in letters_of(topic, fetched):
                found.add(letter)
        self.count_redriven(found.all())
        return found.all()

    def count_redriven(self, groups: list[LetterGroup]) -> None:
        """Ask the topics that the rows came from which of them were published again."""
        marked: dict[str, set[SourceRow]] = {}
        for topic in sorted({topic for group in groups for topic in group.rows}):
            if is_topic(topic) and (self._served.serve(topic) or self._served.is_served(topic)):
                rows = {row for group in groups for row in group.rows.get(topic, ())}
                marked[topic] = self.reader(topic).marked(tuple(rows))
        for group in groups:
            known = group.rows.keys() <= marked.keys()
            again = [row in marked[topic] for topic, rows in group.rows.items() for row in rows if known]
            group.redriven = sum(again) if known else None

    def redrive(
        self,
        topic: str,
        starting: Boundary,
        ending: Boundary | None,
        condition: Condition | None,
        allowed: Callable[[str], bool],
        *,
        dry_run: bool,
        stopped: Callable[[], bool] = lambda: False,
        enough: Callable[[Fetched], bool] = lambda _: False,
        outcome: Outcome | None = None,
    ) -> Outcome:
        """Publish the rows of the letters again.

        Args:
            stopped: tells whether to end early; what was taken by then is published, and another redrive does the rest.
            enough: tells of a record batch whether it is more than may be looked at; then this ends as if stopped.
            outcome: takes what becomes of them, as of :class:`Redrive`; it is also returned.
        """

        def open_topic(name: str, query_id: str) -> Appender:
            self._served.serve(name)
            return self._stack.enter_context(Appender(self._config, name, query_id))

        made = Redrive(open_topic, allowed, dry_run=dry_run, outcome=outcome)
        with closing(self.read(topic, starting, ending, condition)) as found:
            for fetched, numbers in found:
                if stopped() or enough(fetched):
                    made.outcome.is_complete = False
                    break
                letters = list(letters_of(topic, fetched))
                for letter in letters if numbers is None else [letters[number] for number in numbers]:
                    made.take(letter)
        return made.finish()


def _rows(
    reader: TopicReader, bounds: Bounds, condition: Condition | None
) -> Iterator[tuple[Fetched, list[int] | None]]:
    end = bounds.end or bounds.head
    if end == bounds.start:
        return
    for fetched in reader.fetch(bounds.start, end):
        yield fetched, None if condition is None else condition.numbers(fetched.batch)
