"""Schedules on the server: their state, the runs that they make, and what people may do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from jobpipe.control.control_server import ControlServer
from jobpipe.control.control_service import IntervalView
from jobpipe.errors import ConfigError, ControlConflict, PipelineError, RunNotFound
from jobpipe.jobs.schedules.schedule_decisions import IntervalState
from jobpipe.jobs.supervision import reconciler
from jobpipe.pipelines.loading.snapshot import Snapshot
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.pipelines.plugins.plugin_discovery import PlugInKind, Plugins, plug_in_error
from jobpipe_registry.job_records import EndRecord, Order
from tests.control.world import NAME, Worker, World, job_of, status
from tests.control_schedules.rules import at
from tests.pipelines.waiting import eventually

BEGAN = "2026-11-21 12:30"


class Clock:
    """Stands still but where the test moves it."""

    def __init__(self) -> None:
        self.now = at(BEGAN).timestamp()

    def __call__(self) -> float:
        return self.now

    def to(self, text: str) -> None:
        self.now = at(f"2026-11-21 {text}" if len(text) == 5 else text).timestamp()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Hourly:
    """A server with a job that reads hour after hour; its attempts are counted."""

    def __init__(self, world: World, clock: Clock) -> None:
        self.world, self.clock = world, clock
        self.server = self.begin()
        self._attempts = 0

    def begin(self) -> ControlServer:
        return self.world.server(clock=self.clock)

    def submit(self, **schedule: Any) -> None:
        job = job_of(
            execution={"runtime-mode": "BATCH"},
            source={"type": "jobpipe", "subscribe": "orders"},
            sink={"type": "json", "path": "out/${run.lower}"},
            schedule={"every": "hour", **schedule},
        )
        self.server.submit(self.world.submission({"report": job}))

    def has_followed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Wait until all that has changed so far was looked at: the thread that does it takes one after the other."""
        marker, looked, look = ("no", "job"), [], self.server._scheduler._evaluate_or_retry
        monkeypatch.setattr(self.server._scheduler, "_evaluate_or_retry", lambda key: (look(key), looked.append(key)))
        self.server._scheduler.wake(marker)
        eventually(lambda: marker in looked)

    def fire(self, text: str) -> None:
        """Let time come, and the engine fire."""
        self.clock.to(text)
        self.server._scheduler._fire(f"{NAME}.report", at(BEGAN))

    def work(self) -> tuple[Worker, Snapshot]:
        """Let the next attempt take its lease."""
        self._attempts += 1
        snapshot = Snapshot.read(self.world.attempt(self._attempts).snapshot)
        return self.world.work(self._attempts), snapshot

    def end(self, state: str = "FINISHED") -> tuple[str, str]:
        """Let the next attempt end; return its run and the hours that it read."""
        worker, snapshot = self.work()
        more = {"error": "DataLoss"} if state == "FAILED" else {}  # is not tried again
        worker.end(state, 0 if state == "FINISHED" else 1, **more)
        lower, upper = snapshot.lower, snapshot.upper
        assert isinstance(lower, datetime)
        assert isinstance(upper, datetime)
        return snapshot.run, f"{lower:%H:%M}-{upper:%H:%M}"

    def end_by_offsets(self) -> None:
        """Let the next attempt end."""
        worker, _ = self.work()
        worker.end("FINISHED", 0)
        eventually(lambda: self.server.schedule(NAME, "report").running == 0)

    def states(self) -> list[str]:
        """Return the intervals with their states, the oldest first."""
        found = self.server.intervals(NAME, "report", limit=1000)
        return [f"{_hour(each.lower)}-{_hour(each.upper)} {each.state}" for each in reversed(found)]

    def settled(self, *states: str) -> None:
        eventually(lambda: self.states() == list(states))

    def interval(self, hour: str) -> IntervalView:
        (found,) = [each for each in self.server.intervals(NAME, "report") if _hour(each.lower) == hour]
        return found


def _hour(text: str) -> str:
    return text[11:16]


@pytest.fixture
def hourly(world: World, clock: Clock) -> Hourly:
    return Hourly(world, clock)


def test_each_interval_is_run_once(hourly: Hourly) -> None:
    hourly.submit()
    assert hourly.states() == []
    hourly.fire("12:59")
    assert hourly.states() == []
    hourly.fire("13:00")
    hourly.fire("13:00")
    assert hourly.states() == ["12:00-13:00 RUNNING"]
    assert hourly.end()[1] == "12:00-13:00"
    hourly.settled("12:00-13:00 SUCCEEDED")
    hourly.fire("16:10")  # one after the other: a job has one lease
    assert [hourly.end()[1] for _ in range(3)] == ["13:00-14:00", "14:00-15:00", "15:00-16:00"]
    hourly.settled(*(f"{hour}:00-{hour + 1}:00 SUCCEEDED" for hour in range(12, 16)))
    view = hourly.server.schedule(NAME, "report")
    assert (view.accepted, view.next_due) == ("2026-11-21T16:00:00Z", at("2026-11-21 17:00").timestamp())
    assert (view.rule, view.active, view.waiting, view.running, view.failed) == ("every hour", True, 0, 0, 0)
    assert view.last is not None
    assert (view.last.lower, view.last.state) == ("2026-11-21T15:00:00Z", "SUCCEEDED")
    assert status(hourly.server).schedule == view
    assert [view] == list(hourly.server.schedules()) == list(hourly.server.schedules(NAME))
    assert len(hourly.server.runs(NAME, "report")) == 4


def test_a_run_waits_for_the_delay(hourly: Hourly) -> None:
    hourly.submit(delay="10m")
    hourly.fire("13:09")
    assert hourly.states() == []
    hourly.fire("13:10")
    assert hourly.states() == ["12:00-13:00 RUNNING"]


def test_missed_intervals_in_one_run(hourly: Hourly) -> None:
    hourly.submit(catchup="latest")
    hourly.fire("16:10")
    assert hourly.end()[1] == "12:00-16:00"
    hourly.settled("12:00-16:00 SUCCEEDED")


def test_missed_intervals_that_are_left_out_and_run_later(hourly: Hourly) -> None:
    hourly.submit(catchup="none")
    hourly.fire("16:10")
    assert hourly.end()[1] == "15:00-16:00"
    hourly.settled("12:00-15:00 LEFT_OUT", "15:00-16:00 SUCCEEDED")
    assert [each.detail for each in hourly.server.events() if each.what == "left out"] == [
        "no run reads [2026-11-21T12:00:00Z, 2026-11-21T15:00:00Z)"
    ]
    done = hourly.server.backfill(NAME, "report", at("2026-11-21 13:00"), at("2026-11-21 17:00"))
    assert (done.added, done.repeated, done.done, done.ahead) == (2, 0, 1, 1)
    assert [hourly.end()[1] for _ in range(2)] == ["13:00-14:00", "14:00-15:00"]
    hourly.settled("12:00-13:00 LEFT_OUT", "13:00-14:00 SUCCEEDED", "14:00-15:00 SUCCEEDED", "15:00-16:00 SUCCEEDED")


def test_what_was_before_the_schedule(hourly: Hourly) -> None:
    hourly.submit()
    done = hourly.server.backfill(NAME, "report", at("2026-11-21 10:00"), at("2026-11-21 12:00"))
    assert done.added == 2
    assert [hourly.end()[1] for _ in range(2)] == ["10:00-11:00", "11:00-12:00"]
    hourly.settled("10:00-11:00 SUCCEEDED", "11:00-12:00 SUCCEEDED")
    again = hourly.server.backfill(NAME, "report", at("2026-11-21 10:00"), at("2026-11-21 12:00"))
    assert (again.added, again.done) == (0, 2)
    (first, second) = (hourly.interval(hour).run for hour in ("10:00", "11:00"))
    forced = hourly.server.backfill(NAME, "report", at("2026-11-21 10:00"), at("2026-11-21 11:00"), force=True)
    assert forced.repeated == 1
    run, hours = hourly.end()
    assert hours == "10:00-11:00"
    assert run not in (first, second)  # a new one, so that topics get the rows once more
    with pytest.raises(ConfigError, match="ends after it begins"):
        hourly.server.backfill(NAME, "report", at("2026-11-21 12:00"), at("2026-11-21 12:00"))


def test_a_failed_interval_waits_for_a_person(hourly: Hourly) -> None:
    hourly.submit()
    hourly.fire("15:00")
    first, _ = hourly.end("FAILED")
    second, hours = hourly.end()  # the next one does not wait for it
    assert hours == "13:00-14:00"
    hourly.end()
    hourly.settled("12:00-13:00 FAILED", "13:00-14:00 SUCCEEDED", "14:00-15:00 SUCCEEDED")
    with pytest.raises(ControlConflict, match="has succeeded; force it to run again"):
        hourly.server.retry(second)
    with pytest.raises(ControlConflict, match="has succeeded; there is nothing to skip"):
        hourly.server.skip(second)
    assert hourly.server.retry(first).state == "WAITING"
    run, hours = hourly.end()
    assert (run, hours) == (first, "12:00-13:00")  # under its id, so that sinks know what they have of it
    hourly.settled("12:00-13:00 SUCCEEDED", "13:00-14:00 SUCCEEDED", "14:00-15:00 SUCCEEDED")
    view = hourly.server.run(first)
    assert (view.state, len(view.attempts), view.detail) == (JobState.FINISHED, 2, "")
    with pytest.raises(RunNotFound):
        hourly.server.retry("no-run")


def test_intervals_that_depend_on_those_before(hourly: Hourly) -> None:
    hourly.submit(**{"self-depend": True})
    hourly.fire("15:00")
    first, _ = hourly.end("FAILED")
    hourly.settled("12:00-13:00 FAILED")
    hourly.fire("15:30")
    assert hourly.states() == ["12:00-13:00 FAILED"]
    assert hourly.server.skip(first).state == "SKIPPED"
    assert [hourly.end()[1] for _ in range(2)] == ["13:00-14:00", "14:00-15:00"]
    hourly.settled("12:00-13:00 SKIPPED", "13:00-14:00 SUCCEEDED", "14:00-15:00 SUCCEEDED")


def test_an_interval_whose_job_was_stopped_is_run_when_it_goes_on(hourly: Hourly) -> None:
    hourly.submit()
    hourly.fire("13:00")
    worker, _ = hourly.work()
    run = hourly.interval("12:00").run
    hourly.server.stop(NAME)
    worker.end("STOPPED", 0)
    hourly.settled("12:00-13:00 WAITING")
    hourly.fire("15:00")
    assert hourly.states() == ["12:00-13:00 WAITING"]
    assert not hourly.server.schedule(NAME, "report").active
    hourly.server.resume(NAME)
    assert hourly.end() == (run, "12:00-13:00")
    assert [hourly.end()[1] for _ in range(2)] == ["13:00-14:00", "14:00-15:00"]


def test_a_run_that_is_canceled_waits_for_a_person(hourly: Hourly) -> None:
    hourly.submit()
    hourly.fire("13:00")
    worker, _ = hourly.work()
    hourly.server.cancel(str(hourly.interval("12:00").run))
    worker.end("STOPPED", 0)
    hourly.settled("12:00-13:00 FAILED")


def test_a_schedule_that_is_paused(hourly: Hourly) -> None:
    hourly.submit()
    hourly.fire("13:00")
    view = hourly.server.pause(NAME, "report")
    assert (view.paused, view.active, view.next_due) == (True, False, None)
    hourly.end()
    hourly.settled("12:00-13:00 SUCCEEDED")
    hourly.fire("15:00")
    assert hourly.states() == ["12:00-13:00 SUCCEEDED"]
    hourly.server.pause(NAME, "report", paused=False)
    assert [hourly.end()[1] for _ in range(2)] == ["13:00-14:00", "14:00-15:00"]


def test_the_next_server_goes_on(hourly: Hourly) -> None:
    hourly.submit()
    hourly.fire("14:30")
    hourly.world.attempt(1)
    hourly.server.close()
    hourly.clock.to("16:10")
    hourly.server = hourly.begin()
    assert [hourly.end()[1] for _ in range(4)] == ["12:00-13:00", "13:00-14:00", "14:00-15:00", "15:00-16:00"]
    hourly.settled(*(f"{hour}:00-{hour + 1}:00 SUCCEEDED" for hour in range(12, 16)))


def test_a_changed_rule_goes_on_where_the_one_before_was(hourly: Hourly) -> None:
    hourly.submit()
    hourly.fire("13:00")
    hourly.end()
    hourly.settled("12:00-13:00 SUCCEEDED")
    hourly.submit(every="2 hours")
    hourly.fire("16:00")
    assert [hourly.end()[1] for _ in range(2)] == ["13:00-14:00", "14:00-16:00"]


def test_a_job_without_its_schedule(hourly: Hourly, world: World) -> None:
    hourly.submit()
    hourly.fire("13:00")
    hourly.end()
    hourly.settled("12:00-13:00 SUCCEEDED")
    hourly.server.submit(world.submission())
    with pytest.raises(ConfigError, match="has no schedule"):
        hourly.server.schedule(NAME, "report")
    assert hourly.server.schedules() == ()
    assert status(hourly.server).schedule is None


def test_a_rule_without_moments_is_refused(hourly: Hourly) -> None:
    hourly.submit(every=None, crontab="0 0 29 2 *")
    with pytest.raises(PipelineError, match="schedule"):
        hourly.submit(every=None, crontab="0 0 30 2 *")


def test_a_stream_that_takes_what_is_available(hourly: Hourly, world: World) -> None:
    world.topics.served.add("orders")
    job = job_of(source={"type": "jobpipe", "subscribe": "orders"}, schedule={"every": "hour", "mode": "available-now"})
    hourly.server.submit(world.submission({"report": job}))
    eventually(lambda: _held(world) == at("2026-11-21 12:00"))
    hourly.fire("14:30")
    worker, snapshot = hourly.work()
    assert (snapshot.lower, snapshot.upper) == (None, None)
    trigger = hourly.server._definitions.get(NAME, 1).jobs["report"].trigger
    assert trigger is not None
    assert trigger.available_now
    worker.end("FINISHED", 0)
    hourly.settled("12:00-14:00 SUCCEEDED")
    eventually(lambda: _held(world) == at("2026-11-21 14:00"))


def test_what_a_schedule_needs_is_held(hourly: Hourly, world: World) -> None:
    held: Callable[[], datetime | None] = lambda: _held(world)  # noqa: E731
    world.topics.served.add("orders")
    hourly.submit()
    eventually(lambda: held() == at("2026-11-21 12:00"))
    hourly.fire("14:00")
    run, _ = hourly.end("FAILED")
    hourly.end()
    hourly.settled("12:00-13:00 FAILED", "13:00-14:00 SUCCEEDED")
    assert held() == at("2026-11-21 12:00")
    world.topics.gaps[("orders", f"{NAME}.report")] = "the spool was full"
    hourly.server.skip(run)
    eventually(lambda: held() == at("2026-11-21 14:00"))
    eventually(lambda: any(each.what == "gap" for each in hourly.server.events()))
    (gap,) = [each for each in hourly.server.events() if each.what == "gap"]
    assert (gap.job, gap.detail) == ("report", "topic orders: the spool was full; 3 batches may be missing")
    hourly.server.backfill(NAME, "report", at("2026-11-21 06:00"), at("2026-11-21 08:00"))
    eventually(lambda: held() == at("2026-11-21 06:00"))  # a hold does not go back; there is one at any moment
    eventually(lambda: len(world.topics.held) == 1)
    for _ in range(2):
        hourly.end()
    eventually(lambda: held() == at("2026-11-21 14:00"))
    world.topics.held.clear()  # the topic was made again
    hourly.server._hold_keeper.wake()
    eventually(lambda: held() == at("2026-11-21 14:00"))
    assert "is gone: it was dropped, or the topic was made again" in hourly.server.events()[-1].detail
    hourly.server.stop(NAME)
    hourly.server.delete(NAME)
    eventually(lambda: held() is None)


def _held(world: World) -> datetime | None:
    """Return from when on rows are kept."""
    found = [since for (topic, _), since in world.topics.held.items() if topic == "orders"]
    return datetime.fromtimestamp(min(found) / 1000, at(BEGAN).tzinfo) if found else None


def test_bounds_that_are_offsets(hourly: Hourly, world: World) -> None:
    world.topics.heads["orders"] = 7
    hourly.submit(boundaryType="OFFSET", catchup="latest")
    bounds = []
    for number, (hour, tail) in enumerate((("13:00", 7), ("14:00", 12), ("15:00", 12)), 1):
        world.topics.heads["orders"] = tail
        hourly.fire(hour)
        snapshot = Snapshot.read(world.attempt(number).snapshot)
        bounds.append((snapshot.lower, snapshot.upper))
        world.work(number).end("FINISHED", 0)
        eventually(lambda: hourly.server.schedule(NAME, "report").running == 0)
    assert bounds == [(7, 7), (7, 12), (12, 12)]


def test_a_bus_that_does_not_answer(hourly: Hourly, world: World) -> None:
    hourly.submit(boundaryType="OFFSET", catchup="latest")
    hourly.fire("13:00")
    view = hourly.server.schedule(NAME, "report")
    assert (view.problem, view.running, view.accepted) == (
        "topic 'orders' is not served",
        0,
        "2026-11-21T12:00:00Z",
    )
    assert [each.detail for each in hourly.server.events() if each.what == "schedule"] == [view.problem]
    world.topics.heads["orders"] = 5
    hourly.fire("13:10")
    view = hourly.server.schedule(NAME, "report")
    assert (view.problem, view.running, view.accepted) == ("", 1, "2026-11-21T13:00:00Z")


def test_what_failed_is_found_whatever_its_age(hourly: Hourly) -> None:
    """The earliest first."""
    hourly.submit()
    for hour, state in ((13, "FAILED"), (14, "FINISHED"), (15, "FAILED")):
        hourly.fire(f"{hour}:00")
        hourly.end(state)
        eventually(lambda: hourly.server.schedule(NAME, "report").running == 0)
    failed = hourly.server.intervals_in(NAME, "report", IntervalState.FAILED)
    assert [_hour(each.lower) for each in failed] == ["12:00", "14:00"]
    assert hourly.server.intervals_in(NAME, "report", IntervalState.FAILED, limit=1) == failed[:1]
    assert len(hourly.server.intervals_in(NAME, "report", IntervalState.SUCCEEDED)) == 1
    with pytest.raises(ConfigError, match="limit"):
        hourly.server.intervals_in(NAME, "report", IntervalState.FAILED, limit=0)


def test_stopped_and_resumed_before_it_has_ended(hourly: Hourly) -> None:
    hourly.submit()
    hourly.fire("13:00")
    worker, _ = hourly.work()
    run = hourly.interval("12:00").run
    hourly.server.stop(NAME)
    eventually(lambda: hourly.world.order() == Order(str(run), worker.number, "stop"))
    hourly.server.resume(NAME)
    worker.end("STOPPED", 0)
    assert hourly.end() == (run, "12:00-13:00")
    hourly.settled("12:00-13:00 SUCCEEDED")


def test_a_run_that_is_canceled_before_it_begins(hourly: Hourly, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job has processes that still end; the intervals after it are not forgotten."""
    monkeypatch.setattr(reconciler, "LEAVE_SECONDS", 1e9)  # hours pass, and they end when the test says so
    hourly.submit()
    hourly.fire("13:00")
    worker, _ = hourly.work()
    worker.handler.jobs.release_lease(NAME, "report", EndRecord(worker.run, worker.number, "FINISHED", 1.5e9))
    hourly.settled("12:00-13:00 SUCCEEDED")  # its process lives
    hourly.fire("15:00")
    hourly.settled("12:00-13:00 SUCCEEDED", "13:00-14:00 RUNNING")
    hourly.server.cancel(str(hourly.interval("13:00").run))
    hourly.settled("12:00-13:00 SUCCEEDED", "13:00-14:00 FAILED", "14:00-15:00 RUNNING")
    worker.gone(0)
    assert hourly.end()[1] == "14:00-15:00"


def test_a_stream_that_gets_a_schedule(hourly: Hourly, world: World) -> None:
    """The run that never ends is told to; else no interval would ever be run."""
    job = job_of(source={"type": "jobpipe", "subscribe": "orders"})
    hourly.server.submit(world.submission({"report": job}))
    worker, _ = hourly.work()
    scheduled = {**job, "schedule": {"every": "hour", "mode": "available-now"}}
    hourly.server.submit(world.submission({"report": scheduled}))
    eventually(lambda: hourly.world.order() == Order(worker.run, worker.number, "stop"))
    hourly.fire("13:00")
    assert hourly.states() == []
    worker.end("STOPPED", 0)
    hourly.settled("12:00-13:00 RUNNING")
    worker, _ = hourly.work()
    hourly.server.submit(world.submission({"report": job}))  # and the other way round
    worker.end("STOPPED", 0)
    _, snapshot = hourly.work()
    assert (snapshot.lower, snapshot.run) == (None, hourly.server.runs(NAME)[0].id)
    assert len(hourly.server.runs(NAME)) == 3


def test_a_retry_after_a_change_has_the_bounds_of_its_interval(hourly: Hourly, world: World) -> None:
    job = job_of(source={"type": "jobpipe", "subscribe": "orders"}, schedule={"every": "hour", "mode": "available-now"})
    hourly.server.submit(world.submission({"report": job}))
    hourly.fire("13:00")
    worker, _ = hourly.work()
    worker.end("FAILED", 1, error="DataLoss")
    hourly.settled("12:00-13:00 FAILED")
    hourly.submit()
    hourly.server.retry(worker.run)
    assert hourly.end() == (worker.run, "12:00-13:00")


def test_a_backfill_of_what_was_left_out_by_another_rule(hourly: Hourly) -> None:
    hourly.submit(catchup="none")
    hourly.fire("16:10")
    hourly.end()
    hourly.settled("12:00-15:00 LEFT_OUT", "15:00-16:00 SUCCEEDED")
    hourly.submit(catchup="none", every="2 hours")
    assert hourly.server.backfill(NAME, "report", at("2026-11-21 10:00"), at("2026-11-21 14:00")).added == 2
    there = ["10:00-12:00 RUNNING", "12:00-14:00 WAITING", "14:00-15:00 LEFT_OUT"]
    eventually(lambda: hourly.states()[:3] == there)


def test_a_schedule_that_is_over_holds_nothing(hourly: Hourly, world: World) -> None:
    world.topics.served.add("orders")
    hourly.submit(end="2026-11-21T14:00:00Z")
    eventually(lambda: _held(world) == at("2026-11-21 12:00"))
    hourly.fire("15:00")
    for _ in range(2):
        hourly.end()
    hourly.settled("12:00-13:00 SUCCEEDED", "13:00-14:00 SUCCEEDED")
    eventually(lambda: _held(world) is None)
    assert hourly.server.schedule(NAME, "report").next_due is None


def test_offsets_of_what_is_left_out_and_of_a_topic_that_is_made_again(hourly: Hourly, world: World) -> None:
    hourly.submit(boundaryType="OFFSET", catchup="none")
    found = []
    for number, (hour, tail) in enumerate((("13:00", 7), ("17:10", 50), ("18:00", 60), ("19:00", 4)), 1):
        world.topics.heads["orders"] = tail
        hourly.fire(hour)
        if hour == "17:10":
            continue  # what the bus would have said is not known
        snapshot = Snapshot.read(world.attempt(number - (hour > "17:10")).snapshot)
        found.append((snapshot.lower, snapshot.upper))
        hourly.end_by_offsets()
    assert found == [(7, 7), (50, 60), (0, 4)]
    with pytest.raises(ControlConflict, match="another boundaryType"):
        hourly.submit()
    assert hourly.states() == [
        "12:00-13:00 SUCCEEDED",
        "13:00-17:00 LEFT_OUT",
        "17:00-18:00 SUCCEEDED",
        "18:00-19:00 SUCCEEDED",
    ]


def test_a_hold_that_is_refused_leaves_the_others_alone(hourly: Hourly, world: World) -> None:
    world.topics.served.add("orders")
    world.topics.refused.add(f"{NAME}.first")
    schedule = {"every": "hour"}
    jobs = {
        name: job_of(
            execution={"runtime-mode": "BATCH"},
            source={"type": "jobpipe", "subscribe": "orders"},
            sink={"type": "json", "path": f"{name}/${{run.lower}}"},
            schedule=schedule,
        )
        for name in ("first", "second")
    }
    hourly.server.submit(world.submission(jobs))
    eventually(lambda: ("orders", f"{NAME}.second") in world.topics.held)
    eventually(lambda: any(each.what == "gap" for each in hourly.server.events()))
    (gap,) = [each for each in hourly.server.events() if each.what == "gap"]
    assert gap.job == "first"
    assert "cannot be held: another identity has it" in gap.detail


def test_a_gap_is_told_once_each_time(hourly: Hourly, world: World) -> None:
    world.topics.served.add("orders")
    hourly.submit()
    name = ("orders", f"{NAME}.report")
    eventually(lambda: name in world.topics.held)
    for count in (1, 2):
        world.topics.gaps[name] = "it was too old"
        hourly.server._hold_keeper.wake()
        eventually(lambda: name not in world.topics.gaps)
        hourly.server._hold_keeper.wake()
        eventually(lambda: name in world.topics.held)
        told = lambda: sum(each.what == "gap" for each in hourly.server.events())  # noqa: E731
        eventually(lambda told=told, count=count: told() == count)
        looks = world.topics.looks
        eventually(lambda looks=looks: (hourly.server._hold_keeper.wake() or world.topics.looks) > looks + 2)
        assert told() == count


def test_a_schedule_that_begins_later_holds_nothing(hourly: Hourly, world: World) -> None:
    world.topics.served.add("orders")
    hourly.submit(start="2026-12-24T00:00:00Z")
    looks = world.topics.looks
    eventually(lambda: (hourly.server._hold_keeper.wake() or world.topics.looks) >= looks)
    assert _held(world) is None


def test_another_scheduler_says_when(hourly: Hourly, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an external engine the server fires nothing by itself; a trigger begins what is due, as often as it comes."""
    hourly.submit(engine={"type": "external"})
    assert hourly.server.schedule(NAME, "report").engine == "external"
    hourly.has_followed(monkeypatch)
    hourly.clock.to("12:59")
    assert hourly.server.trigger(NAME, "report").running == 0
    hourly.clock.to("14:00")
    assert hourly.states() == []
    assert hourly.server.trigger(NAME, "report").running == 1
    assert hourly.server.trigger(NAME, "report").running == 1
    assert [hourly.end()[1] for _ in range(2)] == ["12:00-13:00", "13:00-14:00"]
    hourly.settled("12:00-13:00 SUCCEEDED", "13:00-14:00 SUCCEEDED")
    hourly.server.submit(hourly.world.submission({"report": job_of()}))
    with pytest.raises(ConfigError, match="has no schedule"):
        hourly.server.trigger(NAME, "report")


def test_the_engine_of_a_schedule_is_checked_and_changed(hourly: Hourly) -> None:
    """A wrong one is refused with the file; a right one takes the place of the one before."""
    with pytest.raises(PipelineError, match=r"schedule\.engine\.type: there is no engine of type 'externals'"):
        hourly.submit(engine={"type": "externals"})
    with pytest.raises(PipelineError, match=r"schedule\.engine\.url"):
        hourly.submit(engine={"type": "external", "url": "http://localhost"})
    hourly.submit()
    assert hourly.server.schedule(NAME, "report").engine == "builtin"
    hourly.submit(engine={"type": "external"})
    assert hourly.server.schedule(NAME, "report").engine == "external"
    hourly.server.close()
    hourly.server = hourly.begin()
    assert hourly.server.schedule(NAME, "report").engine == "external"
    hourly.clock.to("13:00")
    assert hourly.server.trigger(NAME, "report").running == 1


def test_a_range_is_skipped(hourly: Hourly) -> None:
    """What waits or has failed there; not what has succeeded or is under way. A backfill runs it after all."""
    hourly.submit()
    hourly.fire("13:00")
    hourly.end()
    hourly.settled("12:00-13:00 SUCCEEDED")
    hourly.fire("14:00")
    hourly.end("FAILED")
    hourly.settled("12:00-13:00 SUCCEEDED", "13:00-14:00 FAILED")
    hourly.fire("15:00")
    worker, _ = hourly.work()
    hourly.clock.to("18:00")
    hourly.server.backfill(NAME, "report", at("2026-11-21 10:00"), at("2026-11-21 12:00"))
    done = hourly.server.skip_range(NAME, "report", at("2026-11-21 11:00"), at("2026-11-21 16:30"))
    assert (done.skipped, done.done, done.under_way, done.ahead) == (2, 1, 1, 1)
    assert hourly.states() == [
        "10:00-11:00 WAITING",
        "11:00-12:00 SKIPPED",
        "12:00-13:00 SUCCEEDED",
        "13:00-14:00 SKIPPED",
        "14:00-15:00 RUNNING",
    ]
    worker.end("FINISHED", 0)
    assert [hourly.end()[1] for _ in range(4)] == ["10:00-11:00", "15:00-16:00", "16:00-17:00", "17:00-18:00"]
    again = hourly.server.backfill(NAME, "report", at("2026-11-21 13:00"), at("2026-11-21 14:00"))
    assert again.repeated == 1
    assert hourly.end()[1] == "13:00-14:00"
    with pytest.raises(ConfigError, match="a range ends after it begins"):
        hourly.server.skip_range(NAME, "report", at("2026-11-21 12:00"), at("2026-11-21 12:00"))


def test_a_range_lies_in_years_that_there_are(hourly: Hourly) -> None:
    hourly.submit()
    for lower, upper in (("0001-01-01 00:00", "2026-11-21 12:00"), ("2026-11-21 12:00", "9999-01-01 00:00")):
        for act in (hourly.server.skip_range, hourly.server.backfill):
            with pytest.raises(ConfigError, match="1970 to 2999"):
                act(NAME, "report", at(lower), at(upper))
    assert hourly.server.skip_range(NAME, "report", at("1970-01-01 00:00"), at("2999-01-01 00:00")).ahead == 10_000


def test_an_engine_that_is_missing_by_now(hourly: Hourly, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plug-in was uninstalled: the schedule has a problem, and its job runs all the same."""
    hourly.submit(engine={"type": "external"})
    hourly.server.close()
    find = Plugins.find

    def without(self: Plugins, kind: PlugInKind, type_: str) -> type[Any]:
        if (kind, type_) == (PlugInKind.ENGINE, "external"):
            raise plug_in_error("there is no engine of type 'external'", "install it")
        return find(self, kind, type_)

    monkeypatch.setattr(Plugins, "find", without)
    hourly.server = hourly.begin()
    eventually(lambda: "there is no engine of type 'external'" in hourly.server.schedule(NAME, "report").problem)
    hourly.clock.to("13:00")
    assert hourly.server.trigger(NAME, "report").running == 1
    assert hourly.end()[1] == "12:00-13:00"
