"""The rings: slots, gaps, what each slot keeps, and what goes."""

from __future__ import annotations

import math
import threading

import pytest

from jobpipe.control.history.history import COARSE_SLOTS, FINE_SLOTS, MOST, NEVER, History
from jobpipe.control.history.series import Line, SeriesKey
from tests.control.history.history_kit import NOON, Clock, bits

RATE = SeriesKey.published("orders")
LAG = SeriesKey.lag_rows("orders", "billing")
TOOK = SeriesKey.batch_seconds("flights", "report")


def known(line: Line) -> dict[float, float]:
    """Return the values that are there, by how long after noon their slot begins."""
    found = ((line.start + number * line.step, value) for number, value in enumerate(line.values))
    return {at - NOON: round(value, 3) for at, value in found if value is not None}


def test_a_value_is_in_its_slot_and_all_others_are_gaps() -> None:
    clock = Clock(NOON + 25.0)
    history = History(clock)
    history.feed({RATE: 0.0})
    hour, day = history.line(RATE), history.line(RATE, hours=24)
    assert (known(hour), known(day)) == ({20.0: 0.0}, {0.0: 0.0})
    assert (len(hour.values), hour.step, hour.start) == (FINE_SLOTS, 10.0, NOON + 30.0 - 3600.0)
    assert (len(day.values), day.step, day.start) == (COARSE_SLOTS, 120.0, NOON + 120.0 - 86_400.0)
    clock.now += 3650.0
    assert known(history.line(RATE)) == {}
    history.feed({})
    assert known(history.line(RATE)) == {}
    assert known(history.line(RATE, hours=24)) == {0.0: 0.0}


def test_the_present_slot_is_left_out_until_it_has_a_sample() -> None:
    clock = Clock()
    history = History(clock)
    history.feed({RATE: 1.0})
    clock.now = NOON + 10.0
    assert history.line(RATE).values[-1] == 1.0
    clock.now = NOON + 20.0
    assert history.line(RATE).values[-2:] == (1.0, None)
    history.feed({RATE: 2.0})
    assert history.line(RATE).values[-3:] == (1.0, None, 2.0)


def test_what_a_slot_keeps_of_several_samples() -> None:
    """Of rates the mean, and the mean of the slots of 10 s; else the highest."""
    clock = Clock()
    history = History(clock)
    for now, value in ((0.0, 1.0), (1.0, 6.0), (2.0, 2.0), (10.0, 9.0), (120.0, 5.0)):
        clock.now = NOON + now
        history.feed(dict.fromkeys((RATE, LAG, TOOK), value))
    assert known(history.line(RATE)) == {0.0: 3.0, 10.0: 9.0, 120.0: 5.0}
    assert known(history.line(RATE, hours=24)) == {0.0: 6.0, 120.0: 5.0}
    for key in (LAG, TOOK):
        assert known(history.line(key)) == {0.0: 6.0, 10.0: 9.0, 120.0: 5.0}
        assert known(history.line(key, hours=24)) == {0.0: 9.0, 120.0: 5.0}


def test_a_value_stands_for_the_time_since_the_look_before() -> None:
    """So a look that comes a little late leaves no gap."""
    clock = Clock(NOON + 9.0)
    history = History(clock)
    history.feed({RATE: 1.0})
    clock.now = NOON + 21.0
    history.feed({RATE: 4.0}, 12.0)
    assert known(history.line(RATE)) == {0.0: 1.0, 10.0: 4.0, 20.0: 4.0}
    clock.now = NOON + 130.0
    history.feed({RATE: 7.0}, 25.0)
    assert known(history.line(RATE)) == {0.0: 1.0, 10.0: 4.0, 20.0: 4.0, 110.0: 7.0, 120.0: 7.0, 130.0: 7.0}
    assert known(history.line(RATE, hours=24)) == {0.0: 4.0, 120.0: 7.0}
    history.feed({RATE: 8.0}, 1e9)
    assert known(history.line(RATE)).keys() == {130.0 - 10.0 * number for number in range(FINE_SLOTS)}


def test_an_hour_later_the_same_cells_have_other_slots() -> None:
    clock = Clock()
    history = History(clock)
    history.feed({RATE: 1.0, LAG: 5.0})
    clock.now = NOON + 3600.0
    history.feed({RATE: 2.0})
    assert known(history.line(RATE)) == {3600.0: 2.0}
    assert known(history.line(LAG)) == {}
    assert known(history.line(LAG, hours=24)) == {0.0: 5.0}
    clock.now = NOON + 86_400.0
    history.feed({RATE: 3.0})
    assert known(history.line(RATE, hours=24)) == {3600.0: 2.0, 86_400.0: 3.0}
    assert known(history.line(LAG, hours=24)) == {}


def test_a_slot_of_a_day_has_nothing_of_an_hour_ago() -> None:
    clock = Clock(NOON + 10.0)
    history = History(clock)
    history.feed({RATE: 100.0, LAG: 100.0})
    clock.now = NOON + 3600.0
    history.feed({RATE: 2.0, LAG: 2.0})
    for key in (RATE, LAG):
        assert known(history.line(key, hours=24)) == {0.0: 100.0, 3600.0: 2.0}


@pytest.mark.parametrize("jump", [-1e9, -7200.0, -30.0, 7200.0, 3e5, 1e9, 1e15])
def test_a_clock_that_jumps_harms_nothing(jump: float) -> None:
    """What was known is there again when the clock is right again, but for the cells it came to."""
    clock = Clock()
    history = History(clock)
    for _ in range(100):
        history.feed({RATE: 1.0, LAG: 2.0}, 10.0)
        clock.now += 10.0
    there = clock.now
    clock.now += jump
    history.feed({RATE: 3.0}, 10.0)
    assert history.line(RATE).values[-1] == 3.0
    assert len(history) == 2
    clock.now = there
    history.feed({RATE: 1.0, LAG: 2.0}, 10.0)
    for key, value in ((RATE, 1.0), (LAG, 2.0)):
        for hours, most in ((1, 101), (24, 9)):
            found = list(known(history.line(key, hours)).values())
            assert found.count(value) >= most - 1, (key, hours)
            assert len(found) - found.count(value) <= 1


def test_values_that_are_none() -> None:
    clock = Clock()
    history = History(clock)
    history.feed({RATE: math.nan, LAG: math.inf, TOOK: -1.0})
    assert len(history) == 0
    history.feed({RATE: 1e300, LAG: 2**63})
    assert history.line(RATE).values[-1] == pytest.approx(MOST)
    assert history.line(LAG).values[-1] == 2**63


def test_what_was_not_fed_for_longest_goes_first() -> None:
    clock = Clock()
    history = History(clock, max_series=3)
    first, second, third, fourth = (SeriesKey.published(name) for name in "abcd")
    history.feed(dict.fromkeys((first, second, third), 1.0))
    clock.now += 10.0
    history.feed(dict.fromkeys((first, third), 1.0))
    history.feed({fourth: 1.0})
    assert [bool(known(history.line(key))) for key in (first, second, third, fourth)] == [True, False, True, True]
    assert len(history) == 3


def test_of_more_series_than_there_is_room_the_first_keep_their_place() -> None:
    clock = Clock()
    history = History(clock, max_series=3)
    keys = [SeriesKey.published(name) for name in "abcde"]
    for _ in range(3):
        history.feed(dict.fromkeys(keys, 1.0))
        clock.now += 10.0
    assert [len(known(history.line(key))) for key in keys] == [3, 3, 3, 0, 0]


def test_what_was_not_fed_for_a_day_goes() -> None:
    clock = Clock()
    history = History(clock)
    history.feed({RATE: 1.0})
    for _ in range(COARSE_SLOTS - 1):
        clock.now += 120.0
        history.feed({LAG: 1.0})
    assert len(history) == 2
    clock.now += 120.0
    history.feed({LAG: 1.0})
    assert len(history) == 1
    assert len(known(history.line(LAG, hours=24))) == COARSE_SLOTS


def test_what_is_stored_is_all_there_is() -> None:
    clock = Clock()
    history = History(clock)
    for number in range(100):
        history.feed({RATE: clock.now - NOON} if number < 50 else {LAG: 1.0})
        clock.now += 10.0
    stored = history.stored()
    copied = bits(stored)
    history.feed({RATE: 5.0, LAG: 5.0})
    assert bits(stored) == copied != bits(history.stored())
    assert [each.age for each in stored.series] == [4, 0]
    other = History(clock)
    other.restore(stored)
    assert bits(other.stored()) == copied
    other.feed({RATE: 5.0})
    assert bits(stored) == copied
    assert known(other.line(RATE)) == {**{10.0 * number: 10.0 * number for number in range(50)}, 1000.0: 5.0}
    assert (stored.fine_slots.count(NEVER), len(stored.series[0].fine)) == (FINE_SLOTS - 100, FINE_SLOTS)
    few = History(clock, max_series=1)
    few.restore(stored)
    assert [each.key for each in few.stored().series] == [LAG]


def test_the_time_while_nothing_was_fed_is_a_gap() -> None:
    clock = Clock()
    before, after = History(clock), History(clock)
    before.feed({RATE: 1.0})
    clock.now += 1800.0
    after.restore(before.stored())
    after.feed({RATE: 2.0})
    assert known(after.line(RATE)) == {0.0: 1.0, 1800.0: 2.0}


def test_there_are_an_hour_and_a_day() -> None:
    with pytest.raises(ValueError, match="1 and 24"):
        History(Clock()).line(RATE, hours=2)


def test_threads_that_feed_and_read() -> None:
    history = History(Clock(), max_series=50)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(60):
                history.feed({SeriesKey.published(f"{number}-{turn}-{each}"): 1.0 for each in range(20)})
                history.stored()
                history.line(SeriesKey.published(f"{number}-{turn}-1"))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(history) == 50
