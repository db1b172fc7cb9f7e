"""The alerts of a run in the foreground."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.jobs.alerts.alert_queue import Alert, AlertQueue
from jobpipe.jobs.foreground.foreground_alerts import CLOSE_SECONDS, ForegroundAlerts
from jobpipe.jobs.foreground.foreground_jobs import JobView
from jobpipe.jobs.monitor.topic_poller import SubscriptionView, TopicView
from jobpipe.pipelines.loading.spec_checks import left_out_by_run
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.pipelines.model.pipeline import Pipeline
from tests.pipelines.conftest import Write, loaded
from tests.pipelines.waiting import eventually

FILE = """
pipeline:
  name: flights
  alerts:
    - {type: webhook, url: "env:ONE"}
    - {type: webhook, url: "env:TWO", on: [FAILED, BLOCKED, LAGGING], lag-rows: 10, lag-time: 1ms}
jobs:
  publish:
    source: {type: rate}
    sink: {type: jobpipe, topic: flights}
  report:
    source: {type: jobpipe, subscribe: flights}
    sink: {type: console}
"""


class Kept(AlertQueue):
    """Keeps what it is given; none of its threads is started."""

    def __init__(self, left: int = 0) -> None:
        super().__init__()
        self.alerts: list[Alert] = []
        self.calls: list[object] = []
        self._left = left

    def start(self) -> None:
        self.calls.append("start")

    def add(self, alert: Alert) -> None:
        self.alerts.append(alert)

    def close(self, within: float = 0.0, join: float = 0.0) -> int:
        self.calls.append(within)
        return self._left

    @property
    def told(self) -> list[tuple[str, str | None, int]]:
        return [(alert.name, alert.job, alert.number) for alert in self.alerts]


@pytest.fixture
def pipeline(write: Write) -> Pipeline:
    return loaded(write(FILE))


def view(state: JobState, detail: str = "", cause: str = "") -> JobView:
    return JobView("report", state, 1, 1, 3.0, detail, 0, 0, Path("report.log"), cause)


def test_states_are_told_to_those_that_named_them(pipeline: Pipeline) -> None:
    queue = Kept()
    with ForegroundAlerts(pipeline, ["flights"], queue) as alerts:
        for state in ("RUNNING", "BLOCKED", "BLOCKED", "LOST", "RUNNING", "BLOCKED", "FAILED", "FAILED"):
            alerts.update([view(JobState(state))], [])
    two = ("BLOCKED", "report", 2)
    assert queue.told == [two, ("LOST", "report", 1), two, ("FAILED", "report", 1), ("FAILED", "report", 2)]
    assert queue.calls == ["start", CLOSE_SECONDS]
    events = [alert.event for alert in queue.alerts]
    assert events[-1] == events[-2]
    assert events[:-1] == sorted(set(events))


def test_what_an_error_says_is_not_told(pipeline: Pipeline) -> None:
    """It may have values of rows; the log has it, and the terminal."""
    queue = Kept()
    with ForegroundAlerts(pipeline, ["flights"], queue) as alerts:
        cause = "ValueError: no flight UA1545: of Anna"
        alerts.update([view(JobState.FAILED, f"{cause} (transform 1)", cause)], [])
    assert queue.alerts[0].detail == "ValueError (transform 1)"


def test_a_lag_is_told_once(pipeline: Pipeline) -> None:
    queue = Kept()

    def topic(rows: int) -> TopicView:
        return TopicView("flights", "live", subscriptions=(SubscriptionView("flights.report", "x", 1, rows, 0),))

    with ForegroundAlerts(pipeline, ["flights"], queue) as alerts:
        alerts.update([view(JobState.RUNNING)], [topic(9)])

        def told() -> bool:
            alerts.update([view(JobState.RUNNING)], [topic(10)])
            return bool(queue.alerts)

        eventually(told)
        told()
    assert queue.told == [("LAGGING", "report", 2)]


def test_the_end_says_what_was_not_delivered(pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    queue = Kept(left=3)
    with pytest.raises(KeyboardInterrupt), ForegroundAlerts(pipeline, [], queue):
        raise KeyboardInterrupt
    assert queue.calls == ["start", 0.0]
    assert "pipeline flights: 3 alerts could not be delivered before the end" in caplog.text


def test_without_alerts_nothing_begins(write: Write) -> None:
    queue = Kept()
    plain = loaded(write("pipeline: {name: flights}\n" + FILE[FILE.index("jobs:") :]))
    with ForegroundAlerts(plain, ["flights"], queue) as alerts:
        alerts.update([view(JobState.FAILED)], [])
    assert (queue.calls, queue.alerts) == ([CLOSE_SECONDS], [])


def test_what_a_run_does_not_tell(write: Write, pipeline: Pipeline) -> None:
    assert list(left_out_by_run(pipeline)) == []
    for name in ("GAP", "DIFFERENCE"):
        (problem,) = left_out_by_run(loaded(write(FILE.replace("LAGGING]", f"{name}]"))))
        assert (problem.key, problem.severity) == ("pipeline.alerts[1].on", "warning")
        assert problem.what.startswith(name)
