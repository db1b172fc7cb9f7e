"""Whether what a stream tells is what was published."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jobpipe.cdc.postgresql.database.history_check import HistoryCheck
from jobpipe.cdc.postgresql.postgres_note import CaptureNote, OpenTransaction, ToldTransaction
from jobpipe.cdc.postgresql.stream.pgoutput import Begin
from jobpipe.errors import DataLoss

CONFIRMED = 100
LAST = ToldTransaction(250, 9)
OPEN = OpenTransaction(320, 11, 5)


def note(at: int, last: ToldTransaction | None, opened: OpenTransaction | None = None) -> CaptureNote:
    return CaptureNote("1", 1, "d", "s", at, last=last, open=opened)


def told(check: HistoryCheck, transactions: Sequence[tuple[int, int]], end: int) -> bool:
    """Let a stream tell of transactions, by place and time, and of its end; return whether all was there."""
    for lsn, committed_ms in transactions:
        assert not check.done
        check.take(Begin(lsn, committed_ms, 1))
    check.reach(end)
    return check.done


@pytest.mark.parametrize(
    ("notes", "transactions", "end"),
    [
        ([note(300, LAST)], [(250, 9)], 300),
        ([note(300, LAST)], [(110, 1), (240, 2), (250, 9)], 400),
        ([note(300, LAST), note(200, ToldTransaction(150, 3))], [(150, 3), (250, 9)], 300),
        ([note(300, LAST, OPEN)], [(250, 9), (320, 11)], 320),
        (
            [note(300, LAST, OPEN), note(240, ToldTransaction(90, 1), OpenTransaction(250, 9, 2))],
            [(250, 9), (320, 11)],
            320,
        ),
        ([note(300, ToldTransaction(90, 1))], [], 300),
        ([note(300, ToldTransaction(0, 0))], [], 300),
        ([note(300, None, OpenTransaction(320, 0, 5))], [(270, 8), (320, 11)], 320),  # of a version without these
    ],
)
def test_what_was_published_is_there(notes: list[CaptureNote], transactions: list[tuple[int, int]], end: int) -> None:
    assert told(HistoryCheck("c", CONFIRMED, notes), transactions, end)


@pytest.mark.parametrize(
    ("notes", "transactions", "end", "found"),
    [
        ([note(300, LAST)], [(250, 10)], 300, "another transaction at 0/FA"),
        ([note(300, LAST)], [(110, 1), (240, 2), (260, 9)], 400, "no transaction at 0/FA, where one was"),
        ([note(300, LAST)], [], 300, "no transaction at 0/FA, where one was"),
        ([note(300, LAST)], [(250, 9), (260, 10)], 400, "a transaction at 0/104, where there was none"),
        ([note(300, ToldTransaction(0, 0))], [(110, 1)], 400, "a transaction at 0/6E, where there was none"),
        (
            [note(300, LAST), note(200, ToldTransaction(150, 3))],
            [(250, 9)],
            300,
            "no transaction at 0/96, where one was",
        ),
        ([note(300, LAST, OPEN)], [(250, 9), (310, 9)], 400, "a transaction at 0/136, where there was none"),
        ([note(300, LAST, OPEN)], [(250, 9), (320, 10)], 400, "another transaction at 0/140"),
        ([note(300, LAST, OPEN)], [(250, 9), (330, 10)], 400, "no transaction at 0/140, where one was"),
        ([note(300, LAST, OPEN)], [(250, 9)], 321, "no transaction at 0/140, where one was"),
    ],
)
def test_another_history(notes: list[CaptureNote], transactions: list[tuple[int, int]], end: int, found: str) -> None:
    with pytest.raises(DataLoss, match=f"log has {found}: an older copy of it was restored") as caught:
        told(HistoryCheck("c", CONFIRMED, notes), transactions, end)
    assert caught.value.fields["reason"] == "restored"


def test_a_slot_that_has_confirmed_all_has_nothing_to_tell() -> None:
    assert HistoryCheck("c", 300, [note(300, LAST)]).done
    assert not HistoryCheck("c", 299, [note(300, LAST)]).done
    assert not HistoryCheck("c", 300, [note(300, LAST, OPEN)]).done
