"""The server's binary log: which server it is, how far its log goes, and whether it still has what follows a note."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobpipe.cdc.mariadb.binlog.binlog_position import GtidState, Position
from jobpipe.cdc.mariadb.mysql_note import BinlogNote, Place
from jobpipe.errors import ConfigError, DataLoss
from jobpipe.pipelines.databases.mysql import execute, is_mariadb

if TYPE_CHECKING:
    from jobpipe.pipelines.databases.mysql import Connection

_NO_EVENT = 1220  # at an offset of a file
_AGAIN = "To read all tables again, start the capture under another name"


@dataclass(frozen=True)
class LogHead:
    """How far a log goes.

    Attributes:
        do_db, ignore_db: filters of databases; empty for none.
    """

    position: Position
    do_db: str
    ignore_db: str


class ServerLog:
    """Asks one connection of the server.

    Attributes:
        mariadb: it is MariaDB.
        version: such as (10, 11).
        server: its server_id, or of MySQL its server_uuid.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.mariadb = is_mariadb(connection)
        text = str(self.variable("version")).removeprefix("5.5.5-").split("-")[0]
        self.version = tuple(int(part) for part in text.split(".")[:2])
        self.server = str(self.variable("server_id" if self.mariadb else "server_uuid"))
        self._status = "SHOW MASTER STATUS" if self.mariadb or self.version < (8, 2) else "SHOW BINARY LOG STATUS"

    def variable(self, name: str) -> object:
        """Return a global variable; None if the server has none of that name."""
        rows = execute(self._connection, "SHOW GLOBAL VARIABLES WHERE Variable_name = %s", name).fetchall()
        return rows[0][1] if rows else None

    def head(self) -> LogHead | None:
        """Return how far the log goes; None if the server writes none."""
        rows = execute(self._connection, self._status).fetchall()
        if not rows:
            return None
        file, offset, do_db, ignore_db = rows[0][:4]
        return LogHead(Position(str(file), int(offset)), str(do_db or ""), str(ignore_db or ""))

    def executed(self) -> GtidState:
        """Return what MySQL has committed; all snapshots from now on see it."""
        ((text,),) = execute(self._connection, "SELECT @@GLOBAL.gtid_executed").fetchall()
        return self._gtids(str(text))

    def gtids_at(self, position: Position) -> GtidState | None:
        """Return what MariaDB had executed at a place of its log; None if that is no place of it."""
        rows = execute(self._connection, "SELECT BINLOG_GTID_POS(%s, %s)", position.file, position.offset).fetchall()
        return None if rows[0][0] is None else self._gtids(str(rows[0][0]))

    def files(self) -> dict[str, int]:
        """Return the files of the log, oldest first, and their sizes in bytes."""
        return {str(row[0]): int(row[1]) for row in execute(self._connection, "SHOW BINARY LOGS")}

    def bytes_between(self, start: Position, end: Position) -> int:
        """Return how much of the log lies between two places."""
        if start.file == end.file:
            return max(0, end.offset - start.offset)
        if end < start:
            return 0
        sizes = {Position(file, 0): size for file, size in self.files().items()}
        first, last = Position(start.file, 0), Position(end.file, 0)
        between = sum(size for file, size in sizes.items() if first < file < last)
        return max(0, sizes.get(first, start.offset) - start.offset) + between + end.offset

    def now(self) -> Place:
        """Return where a capture begins that has published nothing.

        Raises:
            ConfigError: the server writes no log.
        """
        if not self.mariadb:
            gtids = self.executed()  # first: what is committed after it is streamed
            head = self._require_head()
            return Place(head.position, gtids)
        head = self._require_head()
        return Place(head.position, self.gtids_at(head.position) or self._gtids(""))

    def _require_head(self) -> LogHead:
        head = self.head()
        if head is None:
            raise ConfigError("the server writes no binary log: start it with log-bin", key="hostname")
        return head

    def _gtids(self, text: str) -> GtidState:
        return GtidState.of(text.replace("\n", ""), self.mariadb)

    # -- what follows a note -------------------------------------------------------------------------------------------

    def require_continuous(self, name: str, notes: Sequence[BinlogNote]) -> Place:
        """See that the server has what follows the notes; return the earliest of their places.

        Args:
            name: of the capture.
            notes: of all topics that have published something.

        Raises:
            ConfigError: it is another server.
            DataLoss: changes are gone; names the range.
        """
        if any(note.mariadb != self.mariadb for note in notes):
            what = "MariaDB" if self.mariadb else "MySQL"
            raise ConfigError(
                f"capture {name!r}: this server is {what}, and what is published is of another product. Give the "
                "address of the right one, or the capture another name",
                key="hostname",
            )
        if self.mariadb:
            return self._continue_mariadb(name, notes)
        return self._continue_mysql(name, notes)

    def is_same(self, notes: Sequence[BinlogNote]) -> bool:
        """Tell whether notes are of this very server, so that places in files mean the same."""
        return all(note.server == self.server for note in notes)

    def _continue_mariadb(self, name: str, notes: Sequence[BinlogNote]) -> Place:
        if not self.is_same(notes):
            return self._continue_elsewhere(name, notes)
        files, first = self.files(), min(notes, key=lambda note: note.at.position)
        for note in notes:
            position = note.at.position
            if position.file not in files and position < Position(next(iter(files)), 0):
                raise self._purged(name, str(position), next(iter(files)))
            known = files.get(position.file)
            gtids = None if known is None or position.offset > known else self.gtids_at(position)
            if gtids is None or gtids.text != note.at.gtids.text:
                there = "no such place" if gtids is None else f"{gtids.text or 'no GTID'} there"
                raise DataLoss(
                    f"capture {name!r}: changes up to {position} ({note.at.gtids.text or 'no GTID'}) are published, "
                    f"and the server's log has {there}: an older copy of the server was restored, or its log was "
                    f"reset. {_AGAIN}",
                    reason="restored",
                    position=str(position),
                )
        return first.at

    def _continue_elsewhere(self, name: str, notes: Sequence[BinlogNote]) -> Place:
        """Another server of MariaDB goes on, as after a failover: it is asked by GTID."""
        head = self._require_head()
        there = self.gtids_at(head.position) or self._gtids("")
        earliest = _earliest(notes)
        for note in notes:
            if not there.covers(note.at.gtids):
                raise DataLoss(
                    f"capture {name!r}: transactions up to {note.at.gtids} are published, and server {self.server} has "
                    f"{there.text or 'none'} in its log: it is another database, it lacked the newest changes when it "
                    f"took over, or it does not log what it replicates (log_slave_updates). {_AGAIN}",
                    reason="restored",
                    gtid=note.at.gtids.text,
                )
        oldest = self.gtids_at(Position(next(iter(self.files())), 4))
        if oldest is None or not earliest.gtids.covers(oldest):
            raise self._purged(name, earliest.gtids.text, f"GTID {oldest}")
        return earliest

    def _continue_mysql(self, name: str, notes: Sequence[BinlogNote]) -> Place:
        executed, earliest, files = self.executed(), _earliest(notes), self.files()
        for note in notes:
            if note.server == self.server and self._lacks(files, note.at):
                raise DataLoss(
                    f"capture {name!r}: changes up to {note.at.position} are published, and the server's log has no "
                    f"such place: an older copy of the server was restored, or its log was reset. {_AGAIN}",
                    reason="restored",
                    position=str(note.at.position),
                )
            if not executed.covers(note.at.gtids):
                raise DataLoss(
                    f"capture {name!r}: transactions {note.at.gtids} are published, and the server has executed "
                    f"{executed.text or 'none'}: it is another database, an older copy of it was restored, or a "
                    f"replica took over that lacked the newest changes. {_AGAIN}",
                    reason="restored",
                    gtid=note.at.gtids.text,
                )
        ((text,),) = execute(self._connection, "SELECT @@GLOBAL.gtid_purged").fetchall()
        if not earliest.gtids.covers(self._gtids(str(text))):
            raise self._purged(name, earliest.gtids.text, next(iter(self.files())))
        return earliest

    def _lacks(self, files: dict[str, int], at: Place) -> bool:
        """Tell whether a log of MySQL, of the same name as at a place, has no such place, or other transactions there.

        One with transactions of the same sizes before it does not differ; when the file was made does.
        """
        import pymysql

        position, newest = at.position, next(reversed(files))
        if position.file.rpartition(".")[0] != newest.rpartition(".")[0]:
            return False
        if position.file not in files:
            return position > Position(newest, files[newest])
        if position.offset > files[position.file]:
            return True
        statement = f"SHOW BINLOG EVENTS IN '{position.file}' FROM {position.offset} LIMIT 1"
        try:
            rows = execute(self._connection, statement).fetchall()
        except pymysql.MySQLError as error:
            if error.args[0] != _NO_EVENT:
                raise
            return True
        found = re.search(r"GTID_NEXT= *'([^']+)'", str(rows[0][5])) if rows else None
        return found is not None and ":" in found[1] and at.gtids.contains(found[1])

    def _purged(self, name: str, published: str, oldest: str) -> DataLoss:
        return DataLoss(
            f"capture {name!r}: changes up to {published} are published, and the server's log begins with {oldest}: "
            "what followed was removed (binlog_expire_logs_seconds, or PURGE BINARY LOGS) while the capture did not "
            "run. "
            f"{_AGAIN}",
            reason="removed",
            position=published,
        )


def _earliest(notes: Sequence[BinlogNote]) -> Place:
    """Return the place of which all others have what it has."""
    found = notes[0].at
    for note in notes[1:]:
        if not note.at.gtids.covers(found.gtids):
            found = note.at
    return found
