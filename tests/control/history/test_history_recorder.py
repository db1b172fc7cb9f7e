"""When it looks, what an error leaves, and when it writes its file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from jobpipe.control.history import history_recorder
from jobpipe.control.history.history import History
from jobpipe.control.history.history_file import read_history
from jobpipe.control.history.history_recorder import LOOK_SECONDS, SAVE_SECONDS, HistoryRecorder
from jobpipe.control.history.look_samples import AttemptReport, JobReports
from jobpipe.control.history.series import SeriesKey
from jobpipe.errors import JobpipeError, RegistryUnavailable, StoreError
from jobpipe.jobs.workloads.progress_reports import Report
from jobpipe.metrics.metric_samples import TopicsSnapshot
from tests.control.history.history_kit import NOON, Clock
from tests.pipelines.waiting import eventually
from tests.statuses import subscription_status, topic_status

RATE = SeriesKey.published("orders")
LAG = SeriesKey.lag_rows("orders", "billing")
READ = SeriesKey.read("flights", "report")


class Cluster:
    """One topic, which gets ten rows a second, and one job, which reads five; the test moves its clock."""

    def __init__(self, folder: Path) -> None:
        self.monotonic = Clock(100.0)
        self.clock = Clock()
        self.takes = 0.01
        self.error: JobpipeError | None = None  # of the registry
        self.raises: Exception | None = None  # a snapshot
        self.store_error: StoreError | None = None
        self.history = History(self.clock)
        self.file = folder / "history.arrow"
        self.recorder = HistoryRecorder(self.history, self.file, self.snapshot, self.reports, self.monotonic)

    def snapshot(self) -> TopicsSnapshot:
        if self.raises is not None:
            raise self.raises
        if self.error is not None:
            return TopicsSnapshot({}, self.takes, self.error)
        line = subscription_status("billing", rows=7)
        status = topic_status("orders", rows=int(10 * self.monotonic.now), at=self.monotonic.now, subscriptions=(line,))
        return TopicsSnapshot({"orders": status}, self.takes)

    def reports(self) -> JobReports:
        if self.store_error is not None:
            raise self.store_error
        return {("flights", "report"): AttemptReport(1, Report(rows=int(5 * self.monotonic.now)))}

    def look(self, seconds: float) -> None:
        """Look once that time has passed."""
        self.clock.now += seconds
        self.monotonic.now += seconds
        self.recorder.work()

    def known(self, key: SeriesKey) -> dict[float, float]:
        """Return the values that are there, by how long after noon their slot begins."""
        line = self.history.line(key)
        found = ((line.start + number * line.step - NOON, value) for number, value in enumerate(line.values))
        return {at: value for at, value in found if value is not None}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_rates_are_known_from_the_second_look(cluster: Cluster) -> None:
    cluster.look(0.0)
    assert (cluster.known(RATE), cluster.known(LAG), cluster.known(READ)) == ({}, {0.0: 7.0}, {})
    cluster.look(20.0)
    assert cluster.known(RATE) == {10.0: 10.0, 20.0: 10.0}
    assert cluster.known(READ) == {10.0: 5.0, 20.0: 5.0}
    assert cluster.known(LAG) == {0.0: 7.0, 10.0: 7.0, 20.0: 7.0}


def test_a_look_that_fails_leaves_a_gap(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster.look(0.0)
    cluster.look(10.0)
    assert caplog.records == []
    cluster.error = RegistryUnavailable("no answer")
    cluster.look(10.0)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "history without topics: no answer")
    ]
    cluster.error = None
    for _ in range(2):
        cluster.look(10.0)
    assert cluster.known(LAG).keys() == {0.0, 10.0, 30.0, 40.0}
    assert cluster.known(RATE).keys() == {10.0, 40.0}
    assert cluster.known(READ).keys() == {10.0, 20.0, 30.0, 40.0}


@pytest.mark.parametrize("error", [JobpipeError("no"), ZeroDivisionError()])
def test_after_an_error_a_look_stands_for_its_slot_alone(cluster: Cluster, error: Exception) -> None:
    cluster.look(0.0)
    cluster.raises = error
    try:
        cluster.look(10.0)
    except ZeroDivisionError:
        assert not isinstance(error, JobpipeError)
    cluster.raises = None
    cluster.look(10.0)
    assert cluster.known(LAG).keys() == {0.0, 20.0}
    assert cluster.known(READ) == {}


def test_a_store_that_cannot_be_read_is_a_gap_of_jobs_alone(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster.look(0.0)
    cluster.store_error = StoreError("locked")
    cluster.look(10.0)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "history without jobs: locked")
    ]
    assert (cluster.known(RATE).keys(), cluster.known(READ)) == ({10.0}, {})


def test_a_look_that_comes_far_too_late_stands_for_its_slot_alone(cluster: Cluster) -> None:
    cluster.look(0.0)
    cluster.look(40.0)
    assert cluster.known(LAG).keys() == {0.0, 40.0}
    assert cluster.known(RATE) == {40.0: 10.0}


def test_a_clock_that_jumps_changes_no_rate(cluster: Cluster) -> None:
    cluster.look(0.0)
    cluster.clock.now += 600.0
    cluster.look(10.0)
    assert cluster.known(READ) == {610.0: 5.0}
    assert cluster.known(LAG).keys() == {0.0, 610.0}


def test_dear_snapshots_are_taken_less_often(cluster: Cluster) -> None:
    waits = []
    for takes in (0.4, 0.6, 3.0, 0.4):
        cluster.takes = takes
        cluster.look(10.0)
        waits.append(cluster.recorder._seconds)
    assert waits == [LOOK_SECONDS, pytest.approx(20.0), pytest.approx(100.0), LOOK_SECONDS]
    cluster.takes, cluster.error = 6.0, RegistryUnavailable("no answer")
    cluster.look(10.0)
    assert cluster.recorder._seconds == LOOK_SECONDS


def test_a_look_stands_for_a_longer_time_if_they_are_dear(cluster: Cluster) -> None:
    cluster.takes = 1.5
    cluster.look(0.0)
    cluster.look(50.0)
    assert cluster.known(LAG).keys() == {0.0, 10.0, 20.0, 30.0, 40.0, 50.0}


def test_the_file_is_written_now_and_then_and_at_the_end(cluster: Cluster) -> None:
    cluster.look(SAVE_SECONDS - 10.0)
    assert not cluster.file.exists()
    cluster.look(10.0)
    first = read_history(cluster.file)
    cluster.look(10.0)
    again = read_history(cluster.file)
    assert first is not None
    assert again is not None
    assert first.fine_slots == again.fine_slots
    cluster.recorder.close()
    last = read_history(cluster.file)
    assert last is not None
    assert last.fine_slots != first.fine_slots


def test_the_thread_goes_on_with_the_file(tmp_path: Path, cluster: Cluster) -> None:
    cluster.look(0.0)
    cluster.recorder.close()
    after = Cluster(tmp_path)
    after.clock.now += 1000.0
    after.recorder.start()
    eventually(lambda: 1000.0 in after.known(LAG))
    after.recorder.close()
    assert after.known(LAG) == {0.0: 7.0, 1000.0: 7.0}


def test_a_damaged_file_does_not_hold_up_the_start(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.file.write_bytes(b"what is this")
    cluster.recorder.start()
    eventually(lambda: cluster.known(LAG))
    cluster.recorder.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert read_history(cluster.file) is not None


def test_a_file_that_cannot_be_written_is_a_warning(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(history_recorder, "write_history", full)
    cluster.look(SAVE_SECONDS)
    cluster.recorder.close()
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == 2 * [
        ("WARNING", "the history is not written: no space left")
    ]
