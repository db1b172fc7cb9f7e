"""Events that are cut off or damaged give an error of ours, never another, and never a loop."""

from __future__ import annotations

import random
import struct
import zlib

import pytest

from jobpipe.cdc.mariadb.binlog.binlog_decoder import BinlogDecoder
from jobpipe.cdc.mariadb.binlog.binlog_events import Begin, Change, End, Idle, Rows
from jobpipe.cdc.mariadb.binlog.binlog_position import Position
from jobpipe.cdc.mariadb.binlog.character_sets import CharacterSet, CharacterSets
from jobpipe.errors import (
    ConfigError,
    DataLoss,
    JobpipeError,
    LinkBroken,
    RemoteProtocolError,
    SchemaMismatch,
)
from tests.cdc.mysql.binlog.logged_server import LoggedDatabase

DECLARED = (ConfigError, DataLoss, LinkBroken, RemoteProtocolError, SchemaMismatch)
START = Position("binlog.000001", 4)
FORMAT, QUERY, GTID, ANONYMOUS, INCIDENT = 15, 2, 33, 34, 26
COLUMNS = """
    a int unsigned, b varchar(20), c char(10), d binary(5), e varbinary(9), f text, g blob, h enum('a', 'b'),
    i set('x', 'y'), j year, k bit(9), l decimal(17, 12), m float, n double, o datetime(3), p timestamp(6) NULL,
    q time(1), r date, s mediumint, t bigint, u tinyint, v longtext, PRIMARY KEY (a)
"""
VALUES = """
    1, 'b', 'c', 'd', 'e', 'f', 'g', 'b', 'x,y', 2000, 3, 1.25, 1.5, 2.5, '2020-01-02 03:04:05.678',
    '2020-01-02 03:04:05.678901', '-01:02:03.4', '2020-01-02', -5, 7, 1, 'v'
"""


class NoServer(CharacterSets):
    """Character sets that need no server."""

    def __init__(self) -> None:
        self._text = CharacterSet("utf8mb4", lambda value: value.decode().encode(), keeps_ascii=True)

    def name(self, collation: int) -> str:
        return "binary" if collation == 63 else "utf8mb4"

    def of(self, collation: int) -> CharacterSet:
        return self._text


def decoder(*, mariadb: bool) -> BinlogDecoder:
    return BinlogDecoder(
        NoServer(), mariadb=mariadb, wanted=lambda *_: True, kinds_of=lambda *_: {"d": "uuid"}, start=START
    )


def decoded(events: list[bytes], *, mariadb: bool) -> list[Change]:
    reader = decoder(mariadb=mariadb)
    for event in events:
        reader.feed(event)
    return list(reader.decoded)


def sealed(event: bytes) -> bytes:
    """Give an event its length and its checksum."""
    body = event[:9] + struct.pack("<I", len(event)) + event[13:-4]
    return body + struct.pack("<I", zlib.crc32(body))


@pytest.fixture
def recorded(logged: LoggedDatabase, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Events of a transaction and a statement, from the file's format on."""
    logged.run(f"CREATE TABLE t ({COLUMNS})")
    if not logged.mariadb:
        logged.run("ALTER TABLE t ADD COLUMN w json")
    start = logged.position()
    logged.run("BEGIN")
    values = VALUES if logged.mariadb else f"{VALUES}, JSON_OBJECT('a', JSON_ARRAY(1, 1.5))"
    logged.run(f"INSERT INTO t VALUES ({values})")
    logged.run("UPDATE t SET b = NULL")
    logged.run("DELETE FROM t")
    logged.run("COMMIT")
    logged.run("TRUNCATE TABLE t")
    events: list[bytes] = []
    feed = BinlogDecoder.feed

    def keep(self: BinlogDecoder, data: bytes) -> None:
        events.append(data)
        feed(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(BinlogDecoder, "feed", keep)
        logged.changes(start)
    first = next(place for place, event in enumerate(events) if event[4] == FORMAT)
    return events[first:]


def test_damaged_events(recorded: list[bytes], logged: LoggedDatabase) -> None:
    mariadb = logged.mariadb
    whole = decoded(recorded, mariadb=mariadb)
    assert [change.kind for change in whole if isinstance(change, Rows)] == ["insert", "update", "delete"]
    chance = random.Random(11)
    refused = 0
    for _ in range(500):
        place = chance.randrange(len(recorded))
        event = bytearray(recorded[place])
        match chance.randrange(4):
            case 0:
                del event[chance.randrange(19, len(event)) :]
            case 1:
                at = chance.randrange(19, len(event))
                del event[at : at + chance.randrange(1, 9)]
            case _:
                for _ in range(chance.choice([1, 1, 2, 8])):
                    event[chance.randrange(len(event))] = chance.choice([0, 255, 252, chance.randrange(256)])
        good = sealed(bytes(event).ljust(23, b"\0")) if chance.random() < 0.9 else bytes(event)
        try:
            decoded([*recorded[:place], good, *recorded[place + 1 :]], mariadb=mariadb)
        except DECLARED:
            refused += 1
    assert refused > 150


def test_events_that_are_cut_off(recorded: list[bytes], logged: LoggedDatabase) -> None:
    for place, event in enumerate(recorded):
        for length in range(0, len(event), 7):
            with pytest.raises(LinkBroken, match="malformed"):
                decoded([*recorded[:place], event[:length]], mariadb=logged.mariadb)


def test_a_wrong_checksum(recorded: list[bytes], logged: LoggedDatabase) -> None:
    for place, event in enumerate(recorded):
        broken = bytearray(event)
        broken[-6] ^= 1
        with pytest.raises(LinkBroken, match="checksum is wrong"):
            decoded([*recorded[:place], bytes(broken)], mariadb=logged.mariadb)


def changed(recorded: list[bytes], kind: int, body: bytes = b"\0" * 40, flags: int = 0) -> list[bytes]:
    """Return the format, and an event of another kind."""
    last = recorded[-1]
    event = last[:4] + bytes([kind]) + last[5:17] + struct.pack("<H", flags) + body + b"\0" * 4
    return [recorded[0], sealed(event)]


def placed(event: bytes, end: int, flags: int = 0) -> bytes:
    """Give an event another place in the log."""
    return sealed(event[:13] + struct.pack("<IH", end, flags) + event[19:])


def test_a_group_that_the_server_did_not_finish(recorded: list[bytes], logged: LoggedDatabase) -> None:
    """It crashed, and began a new file; there is no transaction of that GTID."""
    whole = decoded(recorded[:3], mariadb=logged.mariadb)
    head = struct.pack("<IBIIIH", 0, 4, 7, 0, 0, 0x20)
    rotation = sealed(head + struct.pack("<Q", 4) + b"binlog.000002" + b"\0" * 4)
    begin, *_, end, idle = decoded([*recorded[:3], rotation], mariadb=logged.mariadb)
    assert isinstance(begin, Begin)
    assert isinstance(end, End)
    assert (end.rolled_back, end.cut, idle) == (True, True, Idle(Position("binlog.000002", 4)))
    assert not any(isinstance(change, End) for change in whole)


def test_a_file_of_over_four_gigabytes(recorded: list[bytes], logged: LoggedDatabase) -> None:
    """The log has the lower 32 bits of places."""
    statement = recorded[-2:]
    sizes = [len(event) for event in statement]
    start = 2**32 - sizes[0] - 10
    reader = decoder(mariadb=logged.mariadb)
    reader.position = Position("binlog.000001", start)
    for event in [recorded[0], placed(statement[0], 2**32 - 10), placed(statement[1], sizes[1] - 10)]:
        reader.feed(event)
    begin, _, end = reader.decoded
    assert isinstance(begin, Begin)
    assert begin.start == Position("binlog.000001", start)
    assert end == End(Position("binlog.000001", 2**32 - 10 + sizes[1]), rolled_back=False)
    back = placed(statement[0], 100)
    with pytest.raises(LinkBroken, match="before that of the last one"):
        decoded([*recorded, back], mariadb=logged.mariadb)


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        (250, RemoteProtocolError, "an event of type 250 before binlog.000001:"),
        (20, RemoteProtocolError, "an event of type 20 "),
        (ANONYMOUS, ConfigError, "SET GLOBAL gtid_mode = ON"),
        (INCIDENT, DataLoss, "the server lost events"),
        (QUERY, LinkBroken, "malformed"),
        (23, LinkBroken, "outside of a transaction"),
    ],
)
def test_events_that_cannot_be_captured(
    recorded: list[bytes], logged: LoggedDatabase, kind: int, error: type[JobpipeError], words: str
) -> None:
    with pytest.raises(error, match=words):
        decoded(changed(recorded, kind), mariadb=logged.mariadb)


def test_events_that_may_be_ignored(recorded: list[bytes], logged: LoggedDatabase) -> None:
    assert len(decoded(changed(recorded, 250, flags=0x80), mariadb=logged.mariadb)) == 1
