"""What the binary log says, decoded: groups of changes, changed rows, statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from jobpipe.cdc.mariadb.binlog.binlog_position import Position
from jobpipe.cdc.mariadb.binlog.row_images import BinlogTable, RowImages


@dataclass(frozen=True, slots=True)
class Begin:
    """A group of changes begins, which is committed as one.

    Attributes:
        start: where its first event begins.
        committed_ms: when it was committed, in milliseconds since 1970; MariaDB has whole seconds.
        xa: it belongs to a transaction of XA, and is only prepared.
    """

    gtid: str
    start: Position
    committed_ms: int
    xa: bool


@dataclass(frozen=True, slots=True)
class Rows:
    """Changed rows of a table, before and after.

    Attributes:
        kind: insert, update or delete.
        size: of the event, in bytes.
    """

    table: BinlogTable
    kind: str
    rows: RowImages
    size: int


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement in a group: it changes tables themselves, or its changes of rows are not in the log."""

    database: str
    text: str


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A place in a group, to which a later statement may go back; the server writes few of them."""

    name: str


@dataclass(frozen=True, slots=True)
class End:
    """The group has ended; ``at`` is after its last event.

    Attributes:
        rolled_back: what came of it is not to be done.
        cut: the server crashed while it wrote the group, so there is no transaction of its GTID.
        one_phase: the group of XA is committed, not only prepared.
    """

    at: Position
    rolled_back: bool
    cut: bool = False
    one_phase: bool = False


@dataclass(frozen=True, slots=True)
class Idle:
    """No group is open, and all before a place has come."""

    at: Position


Change: TypeAlias = Begin | Rows | Statement | Savepoint | End | Idle


def rolled_back_to(statement: Statement) -> str | None:
    """Return the savepoint to which a statement goes back: rows since then are not changed; None if it does not."""
    return savepoint_name(statement.text, "ROLLBACK TO ")


def savepoint_name(text: str, words: str) -> str | None:
    """Return the name after some words, without quotes; None if a statement begins with other words."""
    if text[: len(words)].upper() != words:
        return None
    name = text[len(words) :].strip()
    quote = name[:1]
    if len(name) > 1 and quote in '`"' and name.endswith(quote):
        name = name[1:-1].replace(quote * 2, quote)
    return name
