"""Messages of PostgreSQL's output plug-in, byte by byte."""

from __future__ import annotations

import struct

import pytest

from jobpipe.cdc.postgresql.stream.pgoutput import (
    Begin,
    Commit,
    Keepalive,
    LogicalMessage,
    Relation,
    RelationColumn,
    Truncate,
    decode,
    keepalive,
    lsn_number,
    lsn_text,
    status_update,
)
from jobpipe.errors import RemoteProtocolError


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"B" + struct.pack(">QqI", 0x16B374D48, 1_500_000, 77), Begin(0x16B374D48, 946_684_801_500, 77)),
        (b"C\0" + struct.pack(">QQq", 5, 9, 0), Commit(5, 9)),
        (
            b"R\0\0\0\7public\0t\0d\0\2\1id\0\0\0\0\x17\xff\xff\xff\xff\0name\0\0\0\0\x19\0\0\0\x05",
            Relation(
                *(7, "public", "t", "d"), (RelationColumn("id", 23, -1, True), RelationColumn("name", 25, 5, False))
            ),
        ),
        (b"T\0\0\0\2\0\0\0\0\7\0\0\0\x08", Truncate((7, 8))),
        (b"M\1" + struct.pack(">Q", 12) + b"jobpipe\0\0\0\0\2hi", LogicalMessage(12, "jobpipe", b"hi")),
        (b"Y\0\0\0\7public\0mood\0", None),
    ],
)
def test_messages(data: bytes, message: object) -> None:
    assert decode(data) == message
    assert decode(b"header" + data, 6) == message


@pytest.mark.parametrize("data", [b"", b"Z", b"B\0", b"R\0\0\0\7public", b"T\0\0\0\2\0"])
def test_wrong_messages(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(data)


def test_keepalives_and_answers() -> None:
    assert keepalive(b"k" + struct.pack(">QqB", 99, 0, 1)) == Keepalive(99, True)
    made = status_update(0x16B374D48, 946_684_800_000_000 + 5, reply=True)
    assert made == b"r" + struct.pack(">QQQqB", 0x16B374D48, 0x16B374D48, 0x16B374D48, 5, 1)


def test_places_in_the_log() -> None:
    assert lsn_text(0x16B374D48) == "1/6B374D48"
    assert lsn_number("1/6B374D48") == 0x16B374D48
