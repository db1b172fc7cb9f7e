"""Two runners of one job, the first cut off from the registry in the middle of a batch: never two that commit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import jobpipe
from jobpipe.pipelines.model.job_states import REPLACED
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.bus.kit import Reader
from tests.docs.troubleshooting import on_page
from tests.faults.pipelines.runners import BATCHES, HELD, ROWS, Runner, Runners, running

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.timeout(600)]

CUT_SECONDS = 30.0
BEFORE = list(range(HELD))  # what the first attempt has committed when it is held


def second_held(runners: Runners) -> Runner:
    """Order and start the second attempt; return it when it repeats the batch in which the first one is held."""
    runners.wait_until_leaseless()
    runners.order(2)
    second = runners.start(2)
    runners.wait_until_held(second)
    lease = runners.lease
    assert lease is not None
    assert (lease.attempt, lease.pid) == (2, second.process.pid)
    return second


def first_replaced(runners: Runners, first: Runner) -> None:
    """See that the first attempt ends by itself, and has not committed the batch."""
    assert first.wait() == REPLACED, first.said
    assert "this attempt was replaced" in first.said
    assert runners.committed == BEFORE


def second_finishes(runners: Runners, second: Runner) -> None:
    """Let the second attempt go on to its end; every row is once in what was committed."""
    second.release()
    assert second.wait() == 0, second.said
    assert runners.committed == list(range(BATCHES))
    assert [entry.batch for entry in runners.noted("begin", 1)] == [*BEFORE, HELD]
    assert [entry.batch for entry in runners.noted("begin", 2)] == list(range(HELD, BATCHES))
    assert runners.noted("begin", 1)[-1].rows == runners.noted("begin", 2)[0].rows
    ended = [*runners.noted("end", 1)[:HELD], *runners.noted("end", 2)]
    assert [entry.batch for entry in ended] == list(range(BATCHES))
    assert [row for entry in ended for row in entry.rows] == list(range(BATCHES * ROWS))
    end = runners.end
    assert end is not None
    assert (end.attempt, end.state, runners.lease) == (2, "FINISHED", None)


def test_cut_off_for_good(tmp_path: Path) -> None:
    """It never hears of the registry again: the mark beside the checkpoint ends it, in the middle of its batch."""
    with running(tmp_path) as (runners, first):
        runners.cut()
        second = second_held(runners)
        first_replaced(runners, first)
        on_page(first.said, "jobpipe: this attempt")
        assert [entry.batch for entry in runners.noted("end", 1)] == BEFORE
        second_finishes(runners, second)


def test_let_back(tmp_path: Path) -> None:
    """It does not see the mark, since its storage is away too: the registry ends it as soon as it is back."""
    view = tmp_path / "view"
    view.symlink_to(tmp_path / "state")
    with running(tmp_path, storage=view) as (runners, first):
        began = time.monotonic()
        runners.cut()
        view.unlink()
        second = second_held(runners)
        runners.wait_until(lambda: time.monotonic() - began > CUT_SECONDS, "half a minute", first, second)
        assert first.alive
        runners.let_back()
        first_replaced(runners, first)
        assert [entry.batch for entry in runners.noted("end", 1)] == BEFORE
        second_finishes(runners, second)


@pytest.mark.slow
def test_frozen_and_let_back(tmp_path: Path) -> None:
    """It stands still, and all comes back at once: its batch ends late in its sink, and is not committed by it."""
    with running(tmp_path) as (runners, first):
        began = time.monotonic()
        runners.cut()
        first.suspend()
        second = second_held(runners)
        runners.wait_until(lambda: time.monotonic() - began > CUT_SECONDS, "half a minute", second)
        first.release()
        runners.let_back()
        first.resume()
        first_replaced(runners, first)
        second_finishes(runners, second)


@pytest.mark.slow
def test_let_back_before_the_next_attempt(tmp_path: Path) -> None:
    """As long as no other attempt was ordered, it has the lease again, and goes on; then the order alone ends it."""
    with running(tmp_path) as (runners, first):
        runners.cut()
        runners.wait_until_leaseless()
        runners.let_back()
        lease = runners.wait_until(lambda: runners.lease, "it has the lease again", first)
        assert lease is not None
        assert lease.pid == first.process.pid
        runners.cut()
        runners.wait_until_leaseless()
        runners.order(2)
        runners.let_back()
        first_replaced(runners, first)
        assert runners.end is None


def test_cut_off_while_it_starts(tmp_path: Path) -> None:
    """Its lease is gone before it has a session of Spark: it must not put its mark over that of the next attempt."""
    with Runners(tmp_path) as runners:
        runners.order(1)
        first = runners.start(1, proxied=True, hold=-1)
        runners.wait_until(lambda: runners.lease, "the first attempt has the lease", first)
        first.suspend()
        runners.cut()
        runners.wait_until_leaseless()
        runners.order(2)
        second = runners.start(2)
        runners.wait_until_held(second)
        mark = runners.mark
        first.resume()
        runners.wait_until(lambda: "trying again" in first.said or not first.alive, "it looks for the registry", second)
        assert runners.mark == mark
        runners.let_back()
        assert first.wait() == REPLACED, first.said
        assert runners.mark == mark
        assert runners.noted("begin", 1) == []
        second.release()
        assert second.wait() == 0, second.said
        assert [row for entry in runners.noted("end", 2) for row in entry.rows] == list(range(BATCHES * ROWS))


def test_a_topic(tmp_path: Path) -> None:
    """The batch in which it is held is published already, and published again: readers have every row once."""
    topic = "orders"
    rows, journal = NumberedRows(topic, rows=ROWS), Journal()
    for batch in range(BATCHES):
        with journal.sealing(batch, rows.ranges(batch)):
            pass

    def sinks(held: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"type": "jobpipe", "topic": topic, "final": True}, {**held, "at-least-once": True}]

    view = tmp_path / "view"
    view.symlink_to(tmp_path / "state")
    with running(tmp_path, storage=view, rows=rows, sinks=sinks) as (runners, first):
        subscription = jobpipe.subscribe(topic, name="oracle", starting="earliest", config=runners.config)
        reader = Reader(subscription, Checker(rows, journal))
        try:
            reader.wait_rows((HELD + 1) * ROWS)
            runners.cut()
            view.unlink()
            second = second_held(runners)
            view.symlink_to(runners.storage)  # as it was: its batch ends now, and its mark is looked at then
            first.release()
            runners.let_back()
            first_replaced(runners, first)
            second_finishes(runners, second)
            reader.join()
            assert reader.checker.check().rows == BATCHES * ROWS
        finally:
            reader.close()
