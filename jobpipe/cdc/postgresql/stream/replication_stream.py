"""The stream of a replication slot: messages that come, and what is confirmed.

PostgreSQL ends a stream whose client says nothing for ``wal_sender_timeout``. A capture may wait long for room in a
spool, so a thread tells the server meanwhile what is confirmed.
"""

from __future__ import annotations

import select
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from jobpipe.cdc.postgresql.stream.pgoutput import Keepalive, keepalive, lsn_text, status_update
from jobpipe.errors import DataLoss, JobpipeError, LinkBroken

if TYPE_CHECKING:
    import psycopg

FEEDBACK_SECONDS = 10.0  # a sixth of wal_sender_timeout's default
MESSAGES_SINCE = 140_000  # the version from which logical messages are streamed
_IN_USE = "55006"
_SQLSTATE = ord("C")  # PG_DIAG_SQLSTATE
_LOST = ("42704", "58P01", "55000")  # the publication was not there then, a file of the log is gone, the slot is lost
_KEEPALIVE = ord("k")


class ReplicationStream:
    """A slot that is streamed; a context manager.

    Args:
        connection: in replication mode; nothing else may use it.
        slot: the name of the slot.
        publication: the name of the publication.
        wake: a file descriptor that ends a wait once something is written to it.
        start: the stream begins after the transactions that were committed before this, or before what the slot has
            confirmed, whichever is later.

    Attributes:
        sent: the server has sent all before it.

    Raises:
        LinkBroken: the slot is in use.
        psycopg.Error: it cannot be streamed.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], slot: str, publication: str, start: int, *, wake: int
    ) -> None:
        self.sent = start
        self._confirmed = start
        self._connection = connection
        self._pgconn = connection.pgconn
        self._lock = threading.Lock()  # of the connection: libpq's calls for one must not meet
        self._ended = threading.Event()
        self._over = False  # nothing follows
        self._wake = wake
        self._start(slot, publication)
        self._thread = threading.Thread(target=self._feed_back, name=f"cdc-feedback-{slot}", daemon=True)
        self._thread.start()

    def __enter__(self) -> ReplicationStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._connection.close()  # what else its context does cannot be done while it streams

    def read(self, seconds: float, limit: int) -> list[bytes]:
        """Return the next messages, at most ``limit``, each with its header of 25 bytes.

        None of them if there are none after so many seconds, or if the server has told how far it has sent meanwhile.

        Raises:
            LinkBroken: the stream has ended.
        """
        deadline = time.monotonic() + seconds
        while True:
            messages, heard, ended = self._copied(limit)
            if any(each.reply_wanted for each in heard):
                self._tell()
            if messages or (heard and seconds > 0):
                return messages
            if ended:
                raise self._end()
            if self._pgconn.socket not in self._ready(deadline - time.monotonic()):
                return []
            self._consume()

    def _start(self, slot: str, publication: str) -> None:
        from psycopg import Error, sql

        connection, start = self._connection, self._confirmed
        statement = sql.SQL("START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {}{})").format(
            sql.Identifier(slot),
            sql.SQL(lsn_text(start)),
            sql.Literal(f'"{publication.replace(chr(34), chr(34) * 2)}"'),
            sql.SQL(", messages 'true'" if connection.info.server_version >= MESSAGES_SINCE else ""),
        )
        try:
            connection.execute(statement)
        except Error as error:
            if error.sqlstate != _IN_USE:
                raise
            raise LinkBroken(
                f"replication slot {slot} is in use: {error.diag.message_primary}. Another process has it, or the "
                "server has not noticed yet that one is gone",
                slot=slot,
            ) from None

    def _copied(self, limit: int) -> tuple[list[bytes], list[Keepalive], bool]:
        """Return what libpq has: messages, keepalives, and whether nothing follows."""
        messages: list[bytes] = []
        heard: list[Keepalive] = []
        take = self._pgconn.get_copy_data
        with self._lock:
            while not self._over and len(messages) < limit:
                length, view = take(1)
                if length <= 0:
                    self._over = length < 0
                    break
                data = bytes(view)
                if data[0] == _KEEPALIVE:
                    heard.append(keepalive(data))
                    self.sent = max(self.sent, heard[-1].end_lsn)
                else:
                    messages.append(data)
        return messages, heard, self._over

    def _ready(self, seconds: float) -> list[int]:
        return select.select([self._pgconn.socket, self._wake], [], [], max(seconds, 0))[0]

    def _consume(self) -> None:
        from psycopg import Error

        try:
            with self._lock:
                self._pgconn.consume_input()
        except Error as error:
            raise LinkBroken(f"the stream of PostgreSQL is cut: {' '.join(str(error).split())}") from None

    def confirm(self, lsn: int) -> None:
        """Tell the server that nothing before a place is needed any more."""
        if lsn > self._confirmed:
            self._confirmed = lsn
            self._tell()

    def ask(self) -> None:
        """Ask the server how far it has sent."""
        self._tell(reply=True)

    def _tell(self, *, reply: bool = False) -> None:
        from psycopg import Error

        try:
            with self._lock:
                self._pgconn.put_copy_data(status_update(self._confirmed, time.time_ns() // 1000, reply=reply))
                self._pgconn.flush()
        except Error as error:
            raise LinkBroken(f"the stream of PostgreSQL is cut: {' '.join(str(error).split())}") from None

    def _feed_back(self) -> None:
        while not self._ended.wait(FEEDBACK_SECONDS):
            try:
                self._tell()
            except LinkBroken:  # the reader will hear of it
                return

    def _end(self) -> JobpipeError:
        """Return why the stream has ended."""
        with self._lock:
            result = self._pgconn.get_result()
        text = b"" if result is None else result.error_message
        state = b"" if result is None else result.error_field(_SQLSTATE) or b""
        said = " ".join((text or self._pgconn.error_message).decode("utf-8", "replace").split())
        if state.decode() in _LOST:
            return DataLoss(
                f"PostgreSQL cannot stream the changes from {lsn_text(self._confirmed)} on: {said} ({state.decode()}). "
                "What follows is lost to this capture. To read all tables again, drop the slot (`jobpipe cdc drop`), "
                "and start the capture under another name",
                reason="stream",
                lsn=lsn_text(self._confirmed),
            )
        return LinkBroken(f"PostgreSQL has ended the stream: {said or 'its server was stopped'}")
