"""What a session of a capture knows of its tables, its topics and its place in the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from jobpipe.cdc.capture_health import Freshness
from jobpipe.cdc.change_rows import ChangeRows
from jobpipe.cdc.changes import Change, Table, same_columns
from jobpipe.cdc.mariadb.binlog.binlog_position import GtidState, Position
from jobpipe.cdc.mariadb.mysql_note import Key, OpenTransaction, Place
from jobpipe.cdc.mariadb.mysql_options import MysqlOptions
from jobpipe.cdc.mariadb.server.server_catalog import FoundTable, ReadableTable, fingerprint
from jobpipe.cdc.session_tables import columns_error
from jobpipe.cdc.topic_writer import TopicWriter
from jobpipe.errors import DataLoss

log = logging.getLogger(__name__)

KNOWN_FILES = 16


@dataclass
class CapturedTable:
    """A table, and how far it is read.

    Attributes:
        table: as the log has told of it last; of it ``print`` is the fingerprint.
        done: it was read to its end.
        bound: the rows up to this key are published; None: none of them.
        take_back: something of it is published that no longer holds: a truncation comes first when it is read.
        wanted: it is read though the capture began with changes alone.
        rows: read by this process.
        changes: taken of the transaction that is coming; the first ``skipped`` of it are published.
    """

    found: FoundTable
    readable: ReadableTable
    topic: TopicState
    table: Table
    print: str
    done: bool = False
    bound: Key | None = None
    take_back: bool = False
    wanted: bool = False
    rows: int = 0
    changes: int = 0
    skipped: float = 0

    @property
    def name(self) -> str:
        """As database.table."""
        return str(self.found)

    @property
    def is_begun(self) -> bool:
        """Whether something of it is published."""
        return self.done or self.bound is not None

    @property
    def is_being_read(self) -> bool:
        """Whether its reading goes on after a restart."""
        return not self.done and (self.bound is not None or self.wanted)

    @property
    def had(self) -> int:
        """How many changes of the transaction that is coming are published, or wait to be.

        One that is sent once more may have had more than came.
        """
        return max(self.changes, 0 if self.skipped == float("inf") else int(self.skipped))

    def begin_again(self) -> None:
        """Let it be read from its beginning; what was published of it is taken back first."""
        self.take_back = self.take_back or self.is_begun
        self.done, self.bound, self.rows, self.wanted = False, None, 0, True


class WaitingChanges:
    """Changes of a topic that wait for their seal, in the order in which they came.

    Attributes:
        size: about so many bytes.
    """

    def __init__(self) -> None:
        self.size = 0
        self._changes: list[Change] = []

    def __len__(self) -> int:
        return len(self._changes)

    def fits(self, table: Table) -> bool:
        """Tell whether changes of a table can be in one batch with those that wait."""
        return not self._changes or same_columns(self._changes[-1].table.columns, table.columns)

    def add(self, changes: Sequence[Change], size: int = 0) -> None:
        """Let changes of about so many bytes in all wait; they must fit."""
        self._changes += changes
        self.size += size

    def undo(self, count: int) -> None:
        """Let all changes but the first ``count`` wait no longer."""
        del self._changes[count:]

    def rows(self, rows: ChangeRows) -> pa.Table:
        """Return the rows of what waits, at least one change. Raises SchemaMismatch."""
        return rows.rows(self._changes)

    def clear(self) -> None:
        """Let nothing wait any more."""
        self._changes, self.size = [], 0


@dataclass
class TopicState:
    """A topic, and what of the log it has.

    Attributes:
        waiting: changes that are not published.
        at: it has all transactions before this place; None: nothing is published.
        same_server: ``at`` is a place in files of this server.
        open: the transaction of which it has a part.
        replaying: the log may bring what it has already, or the rest of ``open``; its notes say where it is until then.
        absent: tables of which it has rows, and that are gone.
    """

    writer: TopicWriter
    waiting: WaitingChanges = field(default_factory=WaitingChanges)
    at: Place | None = None
    same_server: bool = True
    open: OpenTransaction | None = None
    replaying: bool = False
    tables: list[CapturedTable] = field(default_factory=list)
    absent: tuple[str, ...] = ()

    @property
    def skips(self) -> bool:
        """Whether it has changes of the transaction that is coming, so that these are skipped."""
        return any(table.skipped for table in self.tables)

    def begin(self, gtid: str, start: Position, before: GtidState) -> None:
        """Find what it has of a transaction that begins, before which others have come.

        Raises:
            DataLoss: what it has does not come in the order in which it came first.
        """
        had: dict[str, int] = {}
        whole = False
        if self.replaying and self.at is not None:
            whole = self.at.position > start if self.same_server else self.at.gtids.contains(gtid)
            if not whole:
                self._require_next(self.at, gtid, start, before)
                had = {} if self.open is None else self.open.changes
            self.replaying = whole
        for table in self.tables:
            table.skipped = float("inf") if whole else had.get(table.name, 0)

    def _require_next(self, at: Place, gtid: str, start: Position, before: GtidState) -> None:
        if self.open is not None and self.open.gtid != gtid:
            missing = f"a part of transaction {self.open.gtid} is"
        elif not (self.same_server or before.covers(at.gtids)):
            missing = f"transactions up to {at.gtids} are"
        else:
            return
        raise DataLoss(
            f"topic {self.writer.topic}: {missing} published, and the server's log has transaction {gtid} at {start} "
            "first: another server has the transactions in another order, or the server has lost some in a crash. To "
            "read all tables again, start the capture under another name",
            reason="order",
            gtid=gtid,
            topic=self.writer.topic,
        )

    def reach(self, place: Place) -> None:
        """Note that the log has come to a place between two transactions."""
        if self.replaying and self.at is not None:
            if self.open is not None:
                return
            if self.at.position > place.position if self.same_server else not place.gtids.covers(self.at.gtids):
                return
            self.replaying = False


@dataclass
class LogState:
    """All of it.

    Attributes:
        tables: by database and name.
        topics: by name.
        at: all transactions before this place are published, or wait to be.
        placed: the file and offset of ``at`` are a place in this server's log; else its GTIDs alone count.
        begun: the GTID of the transaction that is coming; None between two.
        freshness: up to when its changes are published.
        starting: it begins with changes alone, and some topics may have no note that says so.
        files_made: when the server made files of its log, the newest ones, in seconds since 1970.
    """

    options: MysqlOptions
    mariadb: bool
    server: str
    at: Place
    tables: dict[tuple[str, str], CapturedTable] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)
    placed: bool = True
    begun: str | None = None
    freshness: Freshness = field(default_factory=Freshness)
    starting: bool = False
    files_made: dict[str, int] = field(default_factory=dict)
    _counted: list[CapturedTable] = field(default_factory=list)  # that the transaction that is coming has changed
    _replayed: list[TopicState] = field(default_factory=list)  # that are replaying, or skip what comes

    def note_columns(self, captured: CapturedTable, table: Table) -> None:
        """Note that a table has other columns from here on in the log.

        Raises:
            SchemaMismatch: it may not.
        """
        if (error := columns_error(self.options, captured.table, table)) is not None:
            raise error
        log.info("capture %s: table %s has other columns from here on", self.options.name, table)
        captured.table, captured.print = table, fingerprint(table)

    def note_file(self, file: str, made: int) -> None:
        """Note when the server made a file of its log."""
        if self.files_made.get(file) != made:
            self.files_made[file] = made
            if len(self.files_made) > KNOWN_FILES:
                del self.files_made[next(iter(self.files_made))]

    def replay(self, *, same_server: bool) -> None:
        """Note that the log, of the server of the notes or another one, may bring what topics have already."""
        for topic in self.topics.values():
            topic.replaying, topic.same_server = topic.at is not None, same_server
            topic.reach(self.at)
        self._replayed = [topic for topic in self.topics.values() if topic.replaying]

    @property
    def is_replaying(self) -> bool:
        """Whether the log may bring what a topic has already."""
        return any(topic.replaying for topic in self._replayed)

    def begin(self, gtid: str, start: Position) -> None:
        """Note that a transaction begins; takes as long as topics replay and tables were changed, not as there are.

        Raises:
            DataLoss: see :meth:`TopicState.begin`.
        """
        for table in self._counted:
            table.changes = 0
        self._counted.clear()
        self.begun = gtid
        for topic in self._replayed:
            topic.begin(gtid, start, self.at.gtids)
        self._replayed = [topic for topic in self._replayed if topic.replaying or topic.skips]

    def count(self, table: CapturedTable, changes: int) -> None:
        """Count changes of a table that the transaction has brought."""
        if not table.changes:
            self._counted.append(table)
        table.changes += changes

    def reach(self, position: Position, gtid: str | None = None) -> None:
        """Note that the log has come to a place between two transactions; with ``gtid`` one of them has ended."""
        gtids = self.at.gtids if gtid is None else self.at.gtids.adding(gtid)
        self.at = Place(position, gtids, self.files_made.get(position.file, 0))
        for topic in self._replayed:
            topic.reach(self.at)
