"""What a session of a capture knows of its tables, its topics and its place in the stream."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jobpipe.cdc.changes import Table
from jobpipe.cdc.postgresql.database.database_catalog import DatabaseCatalog, FoundTable, ReadableTable
from jobpipe.cdc.postgresql.database.slot_history import SlotHistory
from jobpipe.cdc.postgresql.postgres_note import Chunk, KeyRange, OpenTransaction, ToldTransaction, Visibility
from jobpipe.cdc.postgresql.postgres_options import PostgresOptions
from jobpipe.cdc.postgresql.stream.pgoutput import Begin
from jobpipe.cdc.postgresql.waiting.waiting_rows import WaitingRows
from jobpipe.cdc.topic_writer import TopicWriter

if TYPE_CHECKING:
    from jobpipe.cdc.postgresql.database.database_catalog import Connection


@dataclass
class CapturedTable:
    """A table, and how far it is read.

    Attributes:
        print: of its columns, as they were last.
        done: it was read to its end.
        chunk: that was read last; None before the first one, and once it is done.
        unfinished: what was published cannot be gone on from: it is taken back before the table is read again.
        rows: read by this process.
        gone: it was dropped while it was read.
    """

    found: FoundTable
    readable: ReadableTable
    topic: TopicState
    print: str
    done: bool = False
    chunk: Chunk | None = None
    unfinished: Chunk | None = None
    rows: int = 0
    gone: bool = False

    @property
    def number(self) -> int:
        """Its number in the database."""
        return self.found.number

    def begin_again(self) -> None:
        """Let it be read from its beginning; what was published of it is taken back first."""
        if self.chunk is not None:
            self.unfinished, self.chunk = replace(self.chunk, partial=True), None
        self.rows = 0

    def take_back(self) -> None:
        """Let it be read again, though it was read to its end; what was published of it is taken back first."""
        self.chunk = self.chunk or Chunk(self.number, None, None, Visibility(0, 0, frozenset()), 0)
        self.done = False
        self.begin_again()


@dataclass
class TopicState:
    """A topic, and what of the stream it has.

    Attributes:
        waiting: changes that are not published.
        at: it has all transactions before this place in the log.
        open: the one of which it has a part.
        skipped: how many changes of the transaction that is coming it has already.
        again: what is to be read again; ``unnoted`` if no note has the newest of it.
    """

    writer: TopicWriter
    waiting: WaitingRows = field(default_factory=WaitingRows)
    at: int = 0
    open: OpenTransaction | None = None
    skipped: float = 0
    again: list[KeyRange] = field(default_factory=list)
    unnoted: bool = False
    tables: list[CapturedTable] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OpenRun:
    """Changes of one table that come one after the other, in one transaction.

    Attributes:
        table: its number, as messages have it.
        messages: of rows; they wait in the table's topic.
    """

    table: bytes
    messages: list[bytes]


@dataclass
class CaptureState:
    """All of it.

    Attributes:
        control: a connection for questions, and for marks in the log; ``catalog`` asks it.
        reading: a connection whose transactions read tables; ``reading_catalog`` asks it.
        running: what the database saw when the session began: the first chunk must see all that ran then.
        tables: by number.
        topics: by name.
        relations: the tables as the stream has told of them, by number.
        at: all transactions before this place are published, or wait to be.
        last: the newest transaction that the stream has told of, also to sessions before; None: not known.
        begun: the transaction that is coming; None between two.
        changes: of it, how many are taken.
        run: changes of rows that come now, and are of the same table as the last one, are added to it.
    """

    options: PostgresOptions
    history: SlotHistory
    control: Connection
    reading: Connection
    catalog: DatabaseCatalog
    reading_catalog: DatabaseCatalog
    running: Visibility = field(default_factory=lambda: Visibility(0, 0, frozenset()))
    tables: dict[int, CapturedTable] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)
    relations: dict[int, Table] = field(default_factory=dict)
    at: int = 0
    last: ToldTransaction | None = None
    begun: Begin | None = None
    changes: int = 0
    run: OpenRun | None = None

    @property
    def name(self) -> str:
        """Of the capture."""
        return self.options.name

    def end_transaction(self) -> None:
        """Note that the transaction that was coming is there."""
        begun, self.begun = self.begun, None
        if begun is not None and (self.last is None or begun.commit_lsn > self.last.commit_lsn):
            self.last = ToldTransaction(begun.commit_lsn, begun.committed_ms)


def seen_now(connection: Connection) -> Visibility:
    """Return what a new snapshot of the database sees."""
    row = connection.execute("SELECT pg_catalog.pg_current_snapshot()::text").fetchone()
    assert row is not None  # noqa: S101 - it returns one
    return Visibility.of(row[0])
