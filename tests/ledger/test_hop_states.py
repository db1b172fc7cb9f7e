"""The state of a hop and a minute, as a table of all cases."""

from __future__ import annotations

from itertools import product

import pytest

from jobpipe.ledger.hop_states import HopState, hop_state, minute_state, newest_since
from jobpipe.operations.messages.ledger_messages import HopCounts, HopMinute, RowDifference

FOUND = RowDifference(first=41, end=44, published=100, read=99, partitions=(2,), found=1000.0, reason="counted")


@pytest.mark.parametrize(
    ("minute", "expected"),
    [
        pytest.param(None, HopState.NO_ACCOUNT, id="before the account"),
        pytest.param(HopMinute(0, 0, 0), HopState.EQUAL, id="an end mark: no rows"),
        pytest.param(HopMinute(100, 100, 100), HopState.EQUAL, id="proven"),
        pytest.param(HopMinute(100, 0, 0), HopState.OPEN, id="nothing committed yet"),
        pytest.param(HopMinute(100, 60, 60), HopState.OPEN, id="a part committed"),
        pytest.param(HopMinute(100, 60, 50, unproven=10), HopState.OPEN, id="a part committed, some of it unproven"),
        pytest.param(HopMinute(100, 60, 60, moved=20), HopState.OPEN, id="a part moved, a part open"),
        pytest.param(HopMinute(100, 100, 0, unproven=100), HopState.UNPROVEN, id="none is proven"),
        pytest.param(HopMinute(100, 100, 99, unproven=1), HopState.UNPROVEN, id="one is not proven"),
        pytest.param(HopMinute(100, 90, 89, unproven=1, moved=10), HopState.UNPROVEN, id="unproven, and moved"),
        pytest.param(HopMinute(100, 0, 0, moved=100), HopState.MOVED, id="passed over"),
        pytest.param(HopMinute(100, 60, 60, moved=40), HopState.MOVED, id="a part passed over"),
        pytest.param(HopMinute(100, 100, 99), HopState.DIFFERENT, id="one lost"),
        pytest.param(HopMinute(100, 100, 101), HopState.DIFFERENT, id="one doubled"),
        pytest.param(HopMinute(100, 100, 0), HopState.DIFFERENT, id="none read"),
        pytest.param(HopMinute(100, 50, 49), HopState.DIFFERENT, id="one lost while others are open"),
        pytest.param(HopMinute(100, 100, 98, unproven=1), HopState.DIFFERENT, id="one lost, one unproven"),
        pytest.param(HopMinute(100, 60, 59, moved=40), HopState.DIFFERENT, id="one lost, others moved"),
        pytest.param(HopMinute(100, 100, 100, differs=True), HopState.DIFFERENT, id="one lost, one doubled"),
        pytest.param(HopMinute(100, 101, 101), HopState.DIFFERENT, id="more committed than published"),
        pytest.param(HopMinute(0, 0, 0, differs=True), HopState.DIFFERENT, id="a range ends in it"),
    ],
)
def test_a_minute(minute: HopMinute | None, expected: HopState) -> None:
    assert minute_state(minute) is expected


def test_a_minute_is_equal_exactly_if_its_three_counts_are() -> None:
    """Of all small minutes: no other one is called equal, and each of these is."""
    for published, committed, read, unproven, moved in product(range(4), repeat=5):
        minute = HopMinute(published, committed, read, unproven=unproven, moved=moved)
        is_equal = published == committed == read and not unproven and not moved
        assert (minute_state(minute) is HopState.EQUAL) == is_equal, minute


def test_what_is_no_difference_is_no_alarm() -> None:
    """Lag, rows that are not proven, and rows that were passed over."""
    for committed, unproven, moved in product(range(4), repeat=3):
        minute = HopMinute(9, committed + unproven, committed, unproven=unproven, moved=moved)
        assert minute_state(minute) is not HopState.DIFFERENT


@pytest.mark.parametrize(
    ("counts", "lag", "expected"),
    [
        pytest.param(None, 0, HopState.NO_ACCOUNT, id="no account"),
        pytest.param(HopCounts(committed=0, read=0), 0, HopState.EQUAL, id="a new one"),
        pytest.param(HopCounts(committed=100, read=100), 0, HopState.EQUAL, id="proven"),
        pytest.param(HopCounts(committed=100, read=100), 7, HopState.OPEN, id="lag"),
        pytest.param(HopCounts(committed=100, read=100), -7, HopState.EQUAL, id="the newest batch was taken back"),
        pytest.param(HopCounts(committed=100, read=90, unproven=10), 0, HopState.UNPROVEN, id="unproven"),
        pytest.param(HopCounts(committed=100, read=90, unproven=10), 7, HopState.OPEN, id="unproven, and lag"),
        pytest.param(HopCounts(committed=100, read=100, moved=5), 0, HopState.MOVED, id="moved"),
        pytest.param(HopCounts(committed=100, read=90, unproven=10, moved=5), 0, HopState.UNPROVEN, id="both"),
        pytest.param(
            HopCounts(committed=100, read=99, lost=1, differences=1, newest=FOUND), 7, HopState.DIFFERENT, id="lost"
        ),
    ],
)
def test_a_hop(counts: HopCounts | None, lag: int, expected: HopState) -> None:
    assert hop_state(counts, lag) is expected


def test_a_difference_is_news_for_a_time() -> None:
    counts = HopCounts(committed=100, read=99, lost=1, differences=1, newest=FOUND)
    assert newest_since(counts, 1000.0) is FOUND
    assert hop_state(counts, 0, 1000.0) is HopState.DIFFERENT
    assert newest_since(counts, 1000.5) is None
    assert hop_state(counts, 0, 1000.5) is HopState.EQUAL
    assert newest_since(None, 0.0) is None
