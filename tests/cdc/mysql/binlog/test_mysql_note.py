"""The note of a batch: what it says comes back; what is none is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobpipe.cdc.mariadb.binlog.binlog_position import GtidState, Position
from jobpipe.cdc.mariadb.mysql_note import BinlogNote, OpenTransaction, Place, ReadUpTo
from jobpipe.errors import SpoolError

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def note(mariadb: bool, **more: Any) -> BinlogNote:
    state = GtidState.of("0-1-100,3-2-7" if mariadb else f"{UUID}:1-5:7", mariadb)
    place = Place(Position("binlog.000012", 1 << 40), state, 1_800_000_000)
    return BinlogNote(mariadb, "1" if mariadb else UUID, place, **more)


@pytest.mark.parametrize("mariadb", [True, False])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"open": OpenTransaction("0-1-101", {"shop.orders": 7, "größe.x y": 0})},
        {"tables": {"shop.orders": "abc", "größe.x y": ""}},
        {"reading": ReadUpTo("shop.orders", (b"", b"\0\xff", "ü".encode()), "p")},
        {"again": ("shop.a", "shop.b")},
        {"open": OpenTransaction("0-1-1", {}), "reading": ReadUpTo("a.b", (b"1",), "p"), "again": ("x.y",)},
    ],
)
def test_it_comes_back(mariadb: bool, more: dict[str, Any]) -> None:
    made = note(mariadb, **more)
    assert BinlogNote.from_bytes(made.to_bytes(), "t") == made
    assert len(made.to_bytes()) < 350


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"kind": "wal"},
        {"file": None, "pos": None},
        {"pos": -1},
        {"pos": 1 << 63},
        {"pos": True},
        {"pos": "4"},
        {"made": -1},
        {"gtid": "0-1"},
        {"gtid": f"{UUID}:1"},
        {"tables": ["a"]},
        {"open": ["0-1-1"]},
        {"open": ["0-1-1", {"a.b": -1}]},
        {"reading": ["a.b", ["?"], "p"]},
        {"reading": ["a.b", None, "p"]},
        {"again": 5},
    ],
)
def test_what_is_none(change: dict[str, Any]) -> None:
    value = json.loads(note(True).to_bytes())
    BinlogNote.from_bytes(json.dumps(value).encode(), "t")
    value.update(change)
    with pytest.raises(SpoolError, match="topic 't': the note of its last batch is not that of a capture"):
        BinlogNote.from_bytes(json.dumps(value).encode(), "t")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff", b'{"v": 1}', b"[" * 100_000])
def test_what_is_no_json_of_it(text: bytes) -> None:
    with pytest.raises(SpoolError, match="is not that of a capture"):
        BinlogNote.from_bytes(text, "t")
