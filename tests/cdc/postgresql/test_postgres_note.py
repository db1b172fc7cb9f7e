"""Where a capture is, as it is stored."""

from __future__ import annotations

import json
import random

import pytest

from jobpipe.cdc.postgresql.postgres_note import (
    MAX_TABLES,
    CaptureNote,
    Chunk,
    KeyRange,
    OpenTransaction,
    ToldTransaction,
    Visibility,
    have_room,
)
from jobpipe.cdc.topic_writer import max_note
from jobpipe.errors import SpoolError
from jobpipe.operations.publisher_operations import MAX_NOTE

NOTE = CaptureNote("7123456789012345678", 1, "shop", "jobpipe_shop", 0x16B374D48)


def test_what_is_stored_comes_back() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    running = frozenset(chance.sample(range(5_000_000_000, 5_000_003_000), 1000))
    seen = Visibility(min(running), 5_000_003_000, running)
    full = CaptureNote(
        *("7123456789012345678", 3, "shop", "jobpipe_shop", 2**63),
        last=ToldTransaction(2**63 - 9, 1_790_000_000_000),
        open=OpenTransaction(2**63 + 5, 1_790_000_000_001, 4_999_999),
        tables={16_384 + number: f"{chance.randrange(1 << 48):012x}" for number in range(5)},
        chunk=Chunk(16_400, ("a", "ä\n"), ("b", ""), seen, 2**63 + 9, partial=True),
    )
    for note in (NOTE, full):
        assert CaptureNote.from_bytes(note.to_bytes(), "orders") == note
    assert len(full.to_bytes()) < MAX_NOTE  # with a thousand transactions that are open


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"at": -1},
        {"at": 1 << 64},
        {"at": True},
        {"open": [1]},
        {"last": [1]},
        {"last": [-1, 0]},
        {"tables": {"x": "y"}},
        {"tables": []},
        {"chunk": {"table": 1}},
        {"chunk": 5},
    ],
)
def test_other_notes_are_refused(change: dict[str, object]) -> None:
    good = json.loads(NOTE.to_bytes())
    assert CaptureNote.from_bytes(json.dumps(good).encode(), "orders") == NOTE
    with pytest.raises(SpoolError, match="not that of a capture of PostgreSQL"):
        CaptureNote.from_bytes(json.dumps({**good, **change}).encode(), "orders")


@pytest.mark.parametrize("note", [b"", b"\xff", b"[]", b"12", b"[" * 100_000])
def test_what_is_no_note(note: bytes) -> None:
    with pytest.raises(SpoolError):
        CaptureNote.from_bytes(note, "orders")


def test_what_a_snapshot_sees() -> None:
    seen = Visibility.of("100:110:102,105")
    assert [xid for xid in range(98, 112) if seen.sees(xid)] == [98, 99, 100, 101, 103, 104, 106, 107, 108, 109]
    assert Visibility.of("100:100:").sees(99)


@pytest.mark.parametrize(
    ("following", "xid", "full"),
    [
        (1000, 999, 999),
        ((1 << 32) + 5, 3, (1 << 32) + 3),
        ((1 << 32) + 5, 0xFFFFFFFF, 0xFFFFFFFF),
        ((1 << 33) - 2, 4, (1 << 33) + 4),
        ((3 << 32) + 7, 7, (3 << 32) + 7),
    ],
)
def test_numbers_of_transactions_that_wrapped_around(following: int, xid: int, full: int) -> None:
    assert Visibility(1, following, frozenset()).full(xid) == full


def test_the_longest_note_has_room() -> None:
    """With a chunk whose keys have a hundred bytes, and a name of a topic that follows."""
    asked = KeyRange(1_000_000_000, ("x" * 110,), ("y" * 110,), "0" * 12)
    longest, fewest = 0, 8
    for count in range(1, 120):
        tables = {1_000_000_000 + number: "0" * 12 for number in range(count)}
        if len(json.dumps(tables)) > MAX_TABLES:
            break
        again = max((number for number in range(9) if have_room(tables, [asked] * number)), default=-1)
        note = CaptureNote(
            *("7123456789012345678", 99, "shop", "jobpipe_shop", 2**63),
            last=ToldTransaction(2**63 - 9, 1_790_000_000_000),
            open=OpenTransaction(2**63 + 5, 1_790_000_000_001, 4_999_999),
            tables=tables,
            chunk=Chunk(1, ("k" * 50,), ("k" * 50,), Visibility(2**40, 2**40, frozenset()), 2**63 + 9, key="0" * 12),
            again=(asked,) * again,
        )
        longest, fewest = max(longest, len(note.to_bytes())), min(fewest, again)
    assert (fewest, longest <= max_note("public.orders")) == (1, True)
    assert have_room({1: "0" * 12}, [asked] * 8)
