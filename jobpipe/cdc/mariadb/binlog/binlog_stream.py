"""The stream of a server's binary log, as a replica reads it."""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jobpipe.cdc.mariadb.binlog.binlog_decoder import BinlogDecoder
from jobpipe.cdc.mariadb.binlog.binlog_events import Change
from jobpipe.cdc.mariadb.binlog.binlog_packets import Packets
from jobpipe.cdc.mariadb.binlog.binlog_position import GtidState, Position
from jobpipe.cdc.mariadb.binlog.character_sets import CharacterSets
from jobpipe.cdc.mariadb.binlog.table_maps import KindsOf
from jobpipe.errors import ConfigError, LinkBroken

if TYPE_CHECKING:
    import pymysql

    Connection: TypeAlias = pymysql.connections.Connection[Any]

_DUMP, _DUMP_GTID = 0x12, 0x1E
_THROUGH_GTID: Final = 4
_MARIADB_GTID_CAPABILITY: Final = 4
FIRST_EVENT: Final = 4  # the offset of the first event of a file
_MAX_OFFSET: Final = 2**32 - 1
SILENT_SECONDS = 120.0  # after which a stream is dead; what came meanwhile, unread, is not silence
_WRITE_SECONDS: Final = 86_400  # for which the server waits until we take more
_BUSY_SECONDS: Final = 0.1  # for which a read goes on with changes of other tables after its time
_OK, _EOF, _ERROR = 0x00, 0xFE, 0xFF


class BinlogStream:
    """Changes from a server's binary log; a context manager.

    Args:
        connection: nothing else may use it; it is closed at the end.
        control: a connection for questions, whose own character set is utf8mb4.
        start: a place, from which on all is streamed; or a state, and all that is not in it is streamed.
        server_id: of this client as a replica; the server ends the stream of another one with the same.
        wanted: whether rows of a table are wanted, by its database and name; others are skipped.
        kinds_of: the columns of a table that have the types uuid, inet6 and inet4, by name.
        wake: a file descriptor that ends a wait once something is written to it.
        heartbeat: after so many seconds without an event the server tells where it is.

    Raises:
        pymysql.err.MySQLError: the server refuses.
    """

    def __init__(
        self,
        connection: Connection,
        control: Connection,
        *,
        start: Position | GtidState,
        server_id: int,
        mariadb: bool,
        wanted: Callable[[str, str], bool],
        kinds_of: KindsOf,
        wake: int,
        heartbeat: float = 1.0,
    ) -> None:
        self._connection = connection
        self._start = start
        self._decoder = BinlogDecoder(
            CharacterSets(control),
            mariadb=mariadb,
            wanted=wanted,
            kinds_of=kinds_of,
            start=start if isinstance(start, Position) else Position("", 0),
        )
        raw: Any = connection  # PyMySQL has no other way to read what is not a result
        try:
            command = _command(start, server_id, mariadb=mariadb)
            self._prepare(server_id, heartbeat, mariadb=mariadb)
            raw._execute_command(*command)
        except BaseException:
            raw._force_close()
            raise
        socket = raw._sock
        socket.setblocking(False)
        self._packets = Packets(socket, raw._next_seq_id)
        self._wake = wake
        self._heard_at = time.monotonic()
        self._poll = select.poll()
        self._poll.register(socket, select.POLLIN)
        self._poll.register(wake, select.POLLIN)

    def __enter__(self) -> BinlogStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raw: Any = self._connection
        raw._force_close()

    @property
    def sent(self) -> Position:
        """Where the newest event that came has ended; before the first one, where the stream begins."""
        return self._decoder.position

    @property
    def file_made(self) -> tuple[str, int]:
        """The newest file that has begun, and when the server made it, in seconds since 1970; without a name: none."""
        return self._decoder.file_made

    def read(self, wait: float) -> Change | None:
        """Return the next change.

        None if there is none within so many seconds, or as soon as there is something to be read from ``wake``.

        Raises:
            LinkBroken: the stream has ended, or is malformed.
            pymysql.err.MySQLError: the server has ended it, and says why.
            ConfigError, SchemaMismatch, DataLoss, RemoteProtocolError: an event cannot be captured.
        """
        decoded = self._decoder.decoded
        if decoded:
            return decoded.popleft()
        deadline = time.monotonic() + wait
        while True:
            while (packet := self._packets.take()) is not None:
                self._take(packet)
                if decoded:
                    return decoded.popleft()
            left = deadline - time.monotonic()
            if left < -_BUSY_SECONDS or not self._ready(max(left, 0)):
                return None
            self._packets.receive()

    def _ready(self, seconds: float) -> bool:
        """Wait for bytes of the server."""
        if self._packets.pending:
            seconds = 0
        ready = {descriptor for descriptor, _ in self._poll.poll(seconds * 1000)}
        now = time.monotonic()
        if self._packets.pending or ready - {self._wake}:
            self._heard_at = now
        elif now - self._heard_at > SILENT_SECONDS:
            raise LinkBroken(
                f"nothing has come from the server for {SILENT_SECONDS:g} s, not even a heartbeat, after {self.sent}: "
                "the stream's connection is dead"
            )
        return self._wake not in ready and (bool(ready) or self._packets.pending)

    def _take(self, packet: bytes) -> None:
        if not packet or packet[0] == _EOF:
            raise LinkBroken(f"the server has ended the stream of the binary log at {self.sent}")
        if packet[0] == _ERROR:
            from pymysql import err

            err.raise_mysql_exception(packet)
        if packet[0] != _OK:
            raise LinkBroken(f"the server sent a packet of the unknown kind {packet[0]} at {self.sent}")
        self._decoder.feed(packet[1:])

    def _prepare(self, server_id: int, heartbeat: float, *, mariadb: bool) -> None:
        """Tell the server what this client can take, as a replica does."""
        period = int(heartbeat * 1e9)
        replica = f"6a6f6270-6970-6500-8000-{server_id:012x}"
        variables: dict[str, int | str] = {
            "@master_binlog_checksum": "CRC32",
            "@source_binlog_checksum": "CRC32",
            "@master_heartbeat_period": period,
            "@source_heartbeat_period": period,
            "@slave_uuid": replica,
            "@replica_uuid": replica,
            "SESSION net_write_timeout": _WRITE_SECONDS,
        }
        if mariadb:
            variables["@mariadb_slave_capability"] = _MARIADB_GTID_CAPABILITY
            if isinstance(self._start, GtidState):
                variables["@slave_connect_state"] = self._start.text
                # A server that does not have the last transaction, but later ones, must not go on from those.
                variables["@slave_gtid_strict_mode"] = 1
        with self._connection.cursor() as cursor:
            cursor.execute(f"SET {', '.join(f'{name} = %s' for name in variables)}", list(variables.values()))


def _command(start: Position | GtidState, server_id: int, *, mariadb: bool) -> tuple[int, bytes]:
    """Return the command that begins the stream, and what belongs to it."""
    if isinstance(start, Position):
        if start.offset > _MAX_OFFSET:
            raise ConfigError(
                f"no stream can begin at {start}: the protocol's places have 32 bits. Begin from GTIDs",
                position=str(start),
            )
        return _DUMP, struct.pack("<IHI", start.offset, 0, server_id) + start.file.encode()
    if mariadb:
        return _DUMP, struct.pack("<IHI", FIRST_EVENT, 0, server_id)
    encoded = start.encoded()
    head = struct.pack("<HIIQI", _THROUGH_GTID, server_id, 0, FIRST_EVENT, len(encoded))
    return _DUMP_GTID, head + encoded
