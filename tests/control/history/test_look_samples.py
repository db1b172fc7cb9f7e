"""What two looks say, and what they do not know."""

from __future__ import annotations

from typing import Any

import pytest

from jobpipe.control.history.look_samples import AttemptReport, Look, look_samples
from jobpipe.control.history.series import SeriesKey
from jobpipe.errors import WaitTimeout
from jobpipe.jobs.workloads.progress_reports import Report
from jobpipe.operations.status_operations import Lag
from tests.statuses import subscription_status, topic_status

RATE = SeriesKey.published("orders")
JOB = ("flights", "report")
READ, TOOK = SeriesKey.read(*JOB), SeriesKey.batch_seconds(*JOB)


def at(seconds: float, rows: int, **more: Any) -> Look:
    """Return a look at a topic; its coordinator's clock is another one than ours."""
    status = topic_status("orders", rows=rows, **{"at": 5000.0 + 2 * seconds, "endpoint": "host:1", **more})
    return Look(seconds, {"orders": status})


def did(seconds: float, attempt: int = 1, **report: Any) -> Look:
    return Look(seconds, jobs={JOB: AttemptReport(attempt, Report(**report))})


def test_the_rate_of_a_topic_is_by_its_coordinators_clock() -> None:
    assert look_samples(at(10.0, 300), at(0.0, 100)) == {RATE: 10.0}
    assert look_samples(at(10.0, 100), at(0.0, 100)) == {RATE: 0.0}
    assert look_samples(at(10.0, 90), at(0.0, 100)) == {RATE: 0.0}


@pytest.mark.parametrize(
    "before",
    [
        None,
        Look(0.0),
        Look(0.0, {"orders": WaitTimeout("no answer")}),
        at(0.0, 100, log=16 * "1"),
        at(0.0, 100, endpoint="host:2"),
        at(0.0, 100, at=0.0),
        at(10.0, 100),
        at(20.0, 100),
    ],
)
def test_the_rate_of_a_topic_that_is_not_known(before: Look | None) -> None:
    assert look_samples(at(10.0, 300), before) == {}


def test_a_topic_that_does_not_answer_has_no_samples() -> None:
    assert look_samples(Look(10.0, {"orders": WaitTimeout("no answer")}), at(0.0, 100)) == {}


def test_the_lag_of_subscriptions() -> None:
    billing = subscription_status("billing", rows=7, batches=1)
    object.__setattr__(billing, "lag", Lag(1, 7, 70, 2.5))
    ahead = subscription_status("ahead", rows=-3)
    found = look_samples(Look(0.0, {"orders": topic_status("orders", subscriptions=(billing, ahead))}), None)
    assert found == {
        SeriesKey.lag_rows("orders", "billing"): 7,
        SeriesKey.lag_seconds("orders", "billing"): 2.5,
        SeriesKey.lag_rows("orders", "ahead"): 0,
        SeriesKey.lag_seconds("orders", "ahead"): 0.0,
    }


def test_what_a_job_did() -> None:
    before = did(0.0, batches=2, rows=100, durations=(2, 0), duration_seconds=1.0)
    after = did(20.0, batches=5, rows=160, durations=(3, 2), duration_seconds=2.5)
    assert look_samples(after, before) == {READ: 3.0, TOOK: 0.5}
    assert look_samples(did(20.0, batches=2, rows=100, durations=(2, 0), duration_seconds=1.0), before) == {READ: 0.0}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(None, did(10.0, rows=5, durations=(1,), duration_seconds=1.0), id="the first look"),
        pytest.param(Look(0.0), did(10.0, rows=5, durations=(1,), duration_seconds=1.0), id="no report"),
        pytest.param(did(0.0, rows=5), did(10.0, 2, rows=50, durations=(1,)), id="another attempt"),
        pytest.param(did(0.0, batches=1), did(10.0, batches=3), id="rows are not counted"),
        pytest.param(
            did(0.0, rows=5, durations=(2,), duration_seconds=2.0),
            did(10.0, rows=4, durations=(1,), duration_seconds=1.0),
            id="less than before",
        ),
        pytest.param(did(10.0, rows=5), did(10.0, rows=9), id="no time"),
        pytest.param(did(0.0, rows=5), Look(10.0), id="it has ended"),
    ],
)
def test_what_is_not_known_of_a_job(before: Look | None, after: Look) -> None:
    assert look_samples(after, before) == {}


def test_the_first_rows_of_an_attempt_count() -> None:
    assert look_samples(did(10.0, batches=1, rows=50), did(0.0)) == {READ: 5.0}
