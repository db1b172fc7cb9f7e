"""What the outbox keeps, over restarts and at its bounds."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobpipe.control.lineage import lineage_outbox
from jobpipe.control.lineage.lineage_outbox import LineageOutbox, OpenRun, WaitingEvent
from jobpipe.errors import StoreError

RUN = OpenRun(
    run="r-1",
    id="u-1",
    pipeline="shop",
    job="publish",
    version=3,
    lower=None,
    upper=None,
    began=1.0,
    told=2.0,
    before={"orders": ("log", 5, 50)},
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def dropped() -> list[tuple[int, str]]:
    return []


@pytest.fixture
def outbox(tmp_path: Path, clock: Clock, dropped: list[tuple[int, str]]) -> Iterator[LineageOutbox]:
    found = LineageOutbox(tmp_path / "lineage.db", clock, lambda count, why: dropped.append((count, why)))
    yield found
    found.close()


def waiting(outbox: LineageOutbox) -> list[str]:
    """Return the texts of events, in the order in which they are sent; they are removed."""
    found = []
    while (each := outbox.oldest()) is not None:
        found.append(each.text)
        outbox.remove(each.number)
    return found


def test_all_is_there_after_a_restart(outbox: LineageOutbox, tmp_path: Path, clock: Clock) -> None:
    assert (outbox.last_event(), outbox.open_run("r-1"), outbox.oldest()) == (None, None, None)
    with outbox.write():
        outbox.put_run(RUN)
        outbox.add("u-1", "START", "{}")
        outbox.note_event(7)
    again = LineageOutbox(tmp_path / "lineage.db", clock)
    try:
        assert (again.last_event(), again.open_run("r-1"), again.open_runs()) == (7, RUN, [RUN])
        assert again.oldest() == WaitingEvent(1, "{}")
        again.remove_run("r-1")
        again.remove(1)
        assert (again.open_runs(), again.oldest()) == ([], None)
    finally:
        again.close()


def test_a_change_that_fails_changes_nothing(outbox: LineageOutbox) -> None:
    def fail() -> None:
        with outbox.write():
            outbox.put_run(RUN)
            outbox.add("u-1", "START", "{}")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (outbox.open_runs(), outbox.oldest()) == ([], None)


def test_only_its_owner_reads_it(outbox: LineageOutbox) -> None:
    assert stat.S_IMODE(outbox.path.stat().st_mode) == 0o600


def test_of_what_says_that_a_run_goes_on_the_newest_waits(outbox: LineageOutbox) -> None:
    for id_, kind, text in (
        ("u-1", "START", "1"),
        ("u-1", "RUNNING", "2"),
        ("u-2", "RUNNING", "3"),
        ("u-1", "RUNNING", "4"),
        ("u-1", "COMPLETE", "5"),
    ):
        outbox.add(id_, kind, text)
    assert waiting(outbox) == ["1", "3", "4", "5"]


def test_where_too_many_wait_what_can_be_missed_goes_first(
    outbox: LineageOutbox, dropped: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage_outbox, "MOST_EVENTS", 3)
    for number, kind in enumerate(("START", "RUNNING", "START", "COMPLETE", "COMPLETE")):
        outbox.add(f"u-{number}", kind, str(number))
    assert waiting(outbox) == ["2", "3", "4"]
    assert [count for count, _ in dropped] == [1, 1]
    assert "wait" in dropped[0][1]


def test_events_are_bounded_in_characters_too(
    outbox: LineageOutbox, dropped: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage_outbox, "MOST_BYTES", 25)
    for text in ("a" * 10, "b" * 10, "c" * 10):
        outbox.add(text, "START", text)
    assert waiting(outbox) == ["b" * 10, "c" * 10]
    assert [count for count, _ in dropped] == [1]


def test_what_waited_for_days_is_dropped(outbox: LineageOutbox, clock: Clock, dropped: list[tuple[int, str]]) -> None:
    outbox.add("u-1", "START", "old")
    clock.now += lineage_outbox.MOST_AGE_SECONDS
    outbox.add("u-2", "START", "new")
    assert outbox.oldest() == WaitingEvent(1, "old")
    clock.now += 1.0
    assert outbox.oldest() == WaitingEvent(2, "new")
    assert [count for count, _ in dropped] == [1]


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    other.write_bytes(b"not a database, whatever it is called; " * 100)
    with pytest.raises(StoreError, match="move it away"):
        LineageOutbox(other)
    newer = tmp_path / "newer.db"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="format 99"):
        LineageOutbox(newer)
