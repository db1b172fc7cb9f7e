"""The built-in schedule engine with its real threads, on a clock that runs from a set moment."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from jobpipe.control.scheduler import builtin_engine
from jobpipe.control.scheduler.builtin_engine import BuiltinEngine
from jobpipe.errors import ConfigError
from jobpipe.pipelines.plugins.schedule_engine import Fire, Schedule
from tests.control_schedules.rules import at, spec

DEADLINE = 60.0


class Clock:
    """Stands still until it is set; the engine looks at it often."""

    def __init__(self, text: str) -> None:
        self.set(text)

    def set(self, text: str) -> None:
        self._shown = at(text).timestamp()

    def __call__(self) -> float:
        return self._shown


class Fired:
    """What was fired."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[str, datetime]] = queue.SimpleQueue()

    def __call__(self, id_: str, moment: datetime) -> None:
        self.calls.put((id_, moment))

    def next(self) -> tuple[str, datetime]:
        return self.calls.get(timeout=DEADLINE)


Start = Callable[[Clock, Fire], BuiltinEngine]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return what starts engines; they end with the test, with all their threads."""
    monkeypatch.setattr(builtin_engine, "LONGEST_WAIT", 0.02)
    before = set(threading.enumerate())
    made: list[BuiltinEngine] = []

    def start(clock: Clock, fire: Fire) -> BuiltinEngine:
        engine = BuiltinEngine(None, fire, clock=clock)
        engine.start()
        made.append(engine)
        return engine

    yield start
    for engine in made:
        engine.stop()
    assert set(threading.enumerate()) <= before


def minutes(id_: str = "shop.daily", **more: Any) -> Schedule:
    return Schedule(id_, spec("minute", **more))


def test_it_fires_when_an_interval_is_due(start: Start) -> None:
    """After its end and the delay; not before, and not for what was due when it was registered."""
    fired = Fired()
    clock = Clock("2026-11-01 09:30:05")
    engine = start(clock, fired)
    engine.register(minutes("shop.late", delay="10s"))
    engine.register(minutes("shop.prompt"))
    clock.set("2026-11-01 09:31:09")
    assert {fired.next(), fired.next()} == {
        ("shop.late", at("2026-11-01 09:30")),
        ("shop.prompt", at("2026-11-01 09:31")),
    }
    clock.set("2026-11-01 09:31:10")
    assert fired.next() == ("shop.late", at("2026-11-01 09:31"))
    assert fired.calls.empty()


def test_a_change_wakes_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a schedule of the year to come, and hears of another one, of a change, and of an end."""
    monkeypatch.setattr(builtin_engine, "LONGEST_WAIT", DEADLINE * 10)
    fired = Fired()
    clock = Clock("2026-11-01 09:29:59")
    engine = start(clock, fired)
    engine.register(Schedule("shop.yearly", spec("0 0 1 1 *")))
    engine.register(minutes("shop.gone"))
    engine.unregister("shop.gone")
    engine.unregister("shop.gone")
    clock.set("2026-11-01 09:30:01")
    engine.update(Schedule("shop.yearly", spec("30 9 * * *")))
    assert fired.next() == ("shop.yearly", at("2026-11-01 09:30"))
    assert fired.calls.empty()
    with pytest.raises(ConfigError, match="never matches"):
        engine.update(Schedule("shop.yearly", spec("0 0 30 2 *")))


def test_an_update_loses_nothing_that_has_become_due(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin_engine, "LONGEST_WAIT", DEADLINE * 10)
    fired = Fired()
    clock = Clock("2026-11-01 09:29:59")
    engine = start(clock, fired)
    engine.register(minutes())
    clock.set("2026-11-01 09:30:01")
    engine.update(minutes())
    assert fired.next() == ("shop.daily", at("2026-11-01 09:30"))


def test_what_is_registered_before_the_start() -> None:
    fired = Fired()
    clock = Clock("2026-11-01 09:29:59")
    engine = BuiltinEngine(None, fired, clock=clock)
    engine.register(minutes())
    clock.set("2026-11-01 09:30:01")
    engine.start()
    try:
        assert fired.next()[1] == at("2026-11-01 09:30")
        with pytest.raises(RuntimeError, match="started already"):
            engine.start()
    finally:
        engine.stop()


def test_a_clock_that_is_set(start: Start) -> None:
    """Forward: all that was missed is one call. Backwards, from years ahead: it fires as before."""
    fired = Fired()
    clock = Clock("2026-11-01 09:30:10")
    engine = start(clock, fired)
    engine.register(minutes())
    clock.set("2031-01-01 00:00:30")
    assert fired.next() == ("shop.daily", at("2031-01-01 00:00"))
    assert fired.calls.empty()
    clock.set("2026-11-01 09:30:30")
    deadline = time.monotonic() + DEADLINE
    while engine._last_now > at("2026-11-01 09:30:30"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    clock.set("2026-11-01 09:31:00")
    assert fired.next() == ("shop.daily", at("2026-11-01 09:31"))


def test_a_slow_call_delays_no_other_schedule(start: Start) -> None:
    """Nor does it pile up: what becomes due meanwhile is one more call."""
    calls: queue.SimpleQueue[tuple[str, datetime]] = queue.SimpleQueue()
    go_on = threading.Event()

    def fire(id_: str, moment: datetime) -> None:
        calls.put((id_, moment))
        if id_ == "shop.slow" and not go_on.wait(DEADLINE):
            raise TimeoutError

    clock = Clock("2026-11-01 09:29:59")
    engine = start(clock, fire)
    for id_ in ("shop.slow", "shop.quick"):
        engine.register(minutes(id_))
    clock.set("2026-11-01 09:30:00")
    assert {calls.get(timeout=DEADLINE)[0] for _ in range(2)} == {"shop.slow", "shop.quick"}
    for minute in (1, 2, 3):
        clock.set(f"2026-11-01 09:3{minute}:00")
        assert calls.get(timeout=DEADLINE) == ("shop.quick", at(f"2026-11-01 09:3{minute}"))
    go_on.set()
    assert calls.get(timeout=DEADLINE) == ("shop.slow", at("2026-11-01 09:33"))


def test_a_call_that_fails_is_made_again(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(builtin_engine, "RETRY_SECONDS", 0.0)
    fired = Fired()

    def fire(id_: str, moment: datetime) -> None:
        fired(id_, moment)
        if fail.is_set():
            fail.clear()
            raise OSError("disk full")

    fail = threading.Event()
    fail.set()
    clock = Clock("2026-11-01 09:29:59")
    with caplog.at_level(logging.ERROR):
        start(clock, fire).register(minutes())
        clock.set("2026-11-01 09:30:00")
        assert fired.next() == ("shop.daily", at("2026-11-01 09:30"))
        assert fired.next() == ("shop.daily", at("2026-11-01 09:30"))
    assert "schedule shop.daily: the call for 2026-11-01 09:30:00+00:00 failed" in caplog.text
    assert "disk full" in caplog.text


def test_stop_waits_for_no_hanging_call(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(builtin_engine, "STOP_SECONDS", 0.2)
    begun, go_on = threading.Event(), threading.Event()

    def fire(id_: str, moment: datetime) -> None:
        begun.set()
        assert go_on.wait(DEADLINE)

    clock = Clock("2026-11-01 09:29:59")
    engine = start(clock, fire)
    engine.register(minutes())
    clock.set("2026-11-01 09:30:00")
    assert begun.wait(DEADLINE)
    engine.stop()
    assert "has not ended within" in caplog.text
    go_on.set()
    monkeypatch.setattr(builtin_engine, "STOP_SECONDS", DEADLINE)
    engine.stop()


def test_schedules_that_change_often_leave_nothing_behind(start: Start) -> None:
    engine = start(Clock("2026-11-01 09:30:10"), Fired())
    for _ in range(500):
        engine.register(minutes())
    assert len(engine._heap) < 200
    engine.unregister("shop.daily")
