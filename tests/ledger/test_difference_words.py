"""A difference in words: the range, the counts, the reason, and nothing that a terminal obeys."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobpipe.ledger.difference_words import (
    REASONS,
    REMEDIES,
    difference_words,
    hop_name,
    minute_words,
    moment_words,
    range_words,
    remedy_words,
)
from jobpipe.operations.messages.ledger_messages import MAX_NAMED, RowDifference

FOUND = RowDifference(
    first=41, end=44, published=100, read=99, partitions=(2,), found=1_795_943_642.0, reason="counted"
)


def test_a_sentence() -> None:
    assert difference_words(FOUND) == (
        "offsets 41 to 43, partition 2: 99 rows read of 100 published; its readers counted other rows than were "
        "published; found 2026-11-29 09:14:02 UTC"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "offsets 41 to 43, partition 2"),
        ({"end": 42}, "offset 41, partition 2"),
        ({"end": 41}, "offset 41, partition 2"),  # of a peer that is wrong
        ({"partitions": ()}, "offsets 41 to 43"),
        ({"partitions": (0, 7)}, "offsets 41 to 43, partitions 0, 7"),
        ({"first": 1_000_000, "end": 1_000_001, "partitions": ()}, "offset 1,000,000"),
    ],
)
def test_a_range(given: dict[str, object], expected: str) -> None:
    assert range_words(replace(FOUND, **given)) == expected


def test_partitions_that_were_left_out_are_said() -> None:
    assert range_words(replace(FOUND, partitions=tuple(range(MAX_NAMED)))).endswith("14, 15, and perhaps more")


def test_each_reason_has_a_remedy_and_another_one_is_no_error() -> None:
    """A coordinator may be of a later version."""
    assert REASONS.keys() == REMEDIES.keys() == {"counted", "unread", "removed"}
    assert "does not know the reason" in difference_words(replace(FOUND, reason="stolen"))
    assert "version" in remedy_words("stolen")


def test_names_are_quoted_and_short() -> None:
    assert hop_name("orders", "billing") == "topic 'orders', subscription 'billing'"
    hostile = hop_name("\x1b[2Jo\n\u202egnp", "x" * 10_000)
    assert hostile.isprintable()
    assert len(hostile) < 300


def test_times_that_no_calendar_has() -> None:
    """They are numbers of a peer."""
    assert moment_words(0.0) == "1970-01-01 00:00:00 UTC"
    assert moment_words(1e12) == "1000000000000 s after 1970"
    assert minute_words(29_932_394) == "2026-11-29 09:14"
    assert minute_words(2**53) == f"{60 * 2**53} s after 1970"
