"""What a session of a capture is made of, and which tables it takes; for all databases."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from jobpipe.cdc.capture_options import CaptureOptions, SchemaChange
from jobpipe.cdc.changes import Table
from jobpipe.cdc.database_problems import Problem
from jobpipe.cdc.topic_writer import TopicWriter, following
from jobpipe.errors import ConfigError, SchemaMismatch

log = logging.getLogger(__name__)

Key = TypeVar("Key", int, str)
Options = TypeVar("Options", bound=CaptureOptions)
Server = TypeVar("Server")
Note = TypeVar("Note")


class Listed(Protocol):
    """A table as a catalog lists it."""

    @property
    def schema(self) -> str:
        """The schema, or database, it is in."""

    @property
    def name(self) -> str:
        """Its name there."""


Found = TypeVar("Found", bound=Listed)
NamingKey = TypeVar("NamingKey", bound="int | str", covariant=True)


class Naming(Protocol[NamingKey]):
    """A note that names tables."""

    @property
    def named(self) -> Collection[NamingKey]:
        """All tables of which something is published."""


@dataclass(frozen=True)
class KnownTables(Generic[Key]):
    """The tables that a capture has captured, by what its notes name them by.

    A table that has come since the capture began is left out if it cannot be captured; before that it is an error.

    Attributes:
        known: by sessions before this one, also of other processes; empty: the capture has not begun.
        left_out: tables that were told of.
    """

    capture: str
    known: set[Key] = field(default_factory=set)
    left_out: set[Key] = field(default_factory=set)

    def takes(self, table: Key, problems: Callable[[], Sequence[Problem]]) -> bool:
        """Tell whether a table is captured.

        Args:
            problems: returns why it cannot be; not called if that is an error.
        """
        if not self.known or table in self.known:
            return True
        found = problems()
        if found and table not in self.left_out:
            self.left_out.add(table)
            for problem in found:
                log.warning("capture %s: %s: %s; it is left out", self.capture, problem.what, problem.remedy)
        return not found


@dataclass(frozen=True)
class SessionParts(Generic[Options, Server, Key]):
    """What a session is made of.

    Attributes:
        writer: returns the writer of a topic, opened once; given its name, and that of its first version.
        stopped: tells whether the capture is to end.
    """

    options: Options
    database: Server
    writer: Callable[[str, str], TopicWriter]
    stopped: Callable[[], bool]
    tables: KnownTables[Key]


@dataclass(frozen=True)
class OpenedTopic(Generic[Note]):
    """The newest version of a topic.

    Attributes:
        note: the note of its last batch; None: nothing is published.
        before: that of the version before it, if nothing of it is published itself.
    """

    writer: TopicWriter
    note: Note | None
    before: Note | None

    @property
    def notes(self) -> list[Note]:
        """Where the capture goes on, if it has begun."""
        return [each for each in (self.note, self.before) if each is not None]


@dataclass(frozen=True)
class TableSearch(Generic[Options, Server, Key, Found]):
    """Finds the tables that are captured: all that match, but those that are left out.

    Attributes:
        listed: returns all that match.
        key: what notes name a table by.
        problems: returns why a table cannot be captured, given others that are.
    """

    parts: SessionParts[Options, Server, Key]
    listed: Callable[[], Iterable[Found]]
    key: Callable[[Found], Key]
    problems: Callable[[Found, Sequence[Found]], Sequence[Problem]]

    def found(self) -> list[Found]:
        """Return the tables."""
        tables, found = self.parts.tables, list[Found]()
        for each in sorted(self.listed(), key=lambda table: self.key(table) not in tables.known):
            if tables.takes(self.key(each), partial(self.problems, each, found)):
                found.append(each)
        return found

    def found_first(self, noted: Callable[[Sequence[Found]], Collection[Key]]) -> list[Found]:
        """Return the tables for the first session of a process.

        What another process has begun goes on without new ones that cannot be captured; one that the options name must
        be.

        Args:
            noted: returns the tables that the notes of the topics of some tables name.
        """
        known, named, found = self.parts.tables.known, self.parts.options.tables, self.found()
        if known:
            return found
        unfit = (
            place for place, each in enumerate(found) if str(each) not in named and self.problems(each, found[:place])
        )
        if next(unfit, None) is None or not (before := noted(found)):
            return found
        known.update(before, (self.key(each) for each in found if str(each) in named))
        return self.found()


def noted_tables(
    parts: SessionParts[Options, Server, Key], found: Iterable[Listed], read: Callable[[bytes, str], Naming[Key]]
) -> set[Key]:
    """Return the tables that the notes of the topics of some tables name; ``read`` as for :func:`open_topic`."""
    topics = [open_topic(parts, topic, read) for topic in topics_of(parts.options, found)]
    return {table for topic in topics for note in topic.notes for table in note.named}


def open_topics(
    parts: SessionParts[Options, Server, Key], found: Iterable[Listed], read: Callable[[bytes, str], Note]
) -> dict[str, OpenedTopic[Note]]:
    """Open the topics of some tables, as :func:`open_topic`; by the name that the options give. Raises ConfigError."""
    names = {parts.options.topic_of(each.schema, each.name) for each in found}
    return {name: open_topic(parts, name, read) for name in sorted(names)}


def open_topic(
    parts: SessionParts[Options, Server, Key], topic: str, read: Callable[[bytes, str], Note]
) -> OpenedTopic[Note]:
    """Open a topic, and the versions that follow it; older ones stay open for those who read them.

    Args:
        read: returns a note from its bytes and the name of the topic.
    """
    name, before = topic, None
    while True:
        writer = parts.writer(name, topic)
        if (text := writer.last_note) is None:
            return OpenedTopic(writer, None, before)
        note = read(text, name)
        if (next_one := following(text)) is None:
            return OpenedTopic(writer, note, None)
        name, before = next_one, note


def next_version(topic: str, first: str) -> str:
    """Return the name of the version after one.

    >>> next_version("public.orders", "public.orders"), next_version("public.orders.v2", "public.orders")
    ('public.orders.v2', 'public.orders.v3')
    """
    number = topic.removeprefix(f"{first}.v")
    return f"{first}.v{int(number) + 1 if number.isdecimal() else 2}"


def topic_problems(
    options: CaptureOptions, new: Table, others: Iterable[Found], table_of: Callable[[Found], Table | None]
) -> list[Problem]:
    """Return why a table fits no topic, or not that of some others.

    Args:
        table_of: asks for the columns of one of these; None: it is gone.
    """
    try:
        topic = options.topic_of(new.schema, new.name)
    except ConfigError as error:
        return [Problem(f"table {new} has no topic", error.message)]
    if not new.columns:
        return [Problem(f"table {new} has no columns", "add some")]
    listed = next((each for each in others if options.topic_of(each.schema, each.name) == topic), None)
    same = None if listed is None else table_of(listed)
    if same is None or new.has_columns_of(same):
        return []
    return [Problem(f"table {new} has other columns than {same}", f"give it another topic than {topic} by route")]


def topics_of(options: CaptureOptions, tables: Iterable[Listed]) -> list[str]:
    """Return the topics of some tables; of those whose names cannot be a topic's, none."""
    found = set()
    for each in tables:
        with contextlib.suppress(ConfigError):
            found.add(options.topic_of(each.schema, each.name))
    return sorted(found)


def require_equal_columns(capture: str, topic: str, tables: Sequence[Table]) -> None:
    """Check that tables may be in one topic; raises ConfigError."""
    for other in tables[1:]:
        if not tables[0].has_columns_of(other):
            raise ConfigError(
                f"capture {capture!r}: tables {tables[0]} and {other} go to topic {topic}, and have different columns; "
                "give each a topic of its own by route",
                key="route",
                topic=topic,
            )


def require_known_columns(options: CaptureOptions, table: str, print_: str, known: str) -> None:
    """Check that a table has the columns that it had, if it must; raises SchemaMismatch.

    Args:
        print_, known: fingerprints of its columns, now and as they were.
    """
    if options.schema_change is SchemaChange.EXCEPTION and print_ != known:
        raise SchemaMismatch(
            f"table {table} has other columns than when it was captured last, and schema-change-behavior is exception. "
            "Allow it by evolve",
            table=table,
        )


def columns_error(options: CaptureOptions, before: Table, after: Table) -> SchemaMismatch | None:
    """Return the error if columns may not change while a table is captured."""
    if options.schema_change is not SchemaChange.EXCEPTION:
        return None
    old, new = ({column.name: column.declared for column in each.columns} for each in (before, after))
    changed = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    return SchemaMismatch(
        f"table {after}: its columns have changed ({', '.join(changed) or 'the key'}), and schema-change-behavior is "
        "exception. Allow it by evolve",
        table=str(after),
        columns=changed,
    )


def require_short_notes(capture: str, sizes: Mapping[str, tuple[int, int]], limit: int) -> None:
    """Check that the notes of topics can name all of their tables; raises ConfigError.

    Args:
        sizes: by topic: how many tables, and how many bytes the note needs for them.
    """
    for topic, (count, size) in sizes.items():
        if size > limit:
            raise ConfigError(
                f"capture {capture!r}: topic {topic} would have {count} tables, more than the note of a batch can "
                "name. Give some of them another topic by route",
                key="route",
                topic=topic,
            )
