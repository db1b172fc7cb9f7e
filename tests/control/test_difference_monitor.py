"""Differences of the ledger as events of jobs: each is written once, over all servers, and no flood of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from jobpipe.control.control_server import ControlServer
from jobpipe.control.monitoring.difference_monitor import AGAIN_SECONDS, DIFFERENCE, DifferenceMonitor
from jobpipe.errors import LinkBroken
from jobpipe.jobs.storage.job_rows import Event
from jobpipe.ledger.hop_states import NEWS_SECONDS
from jobpipe.metrics.metric_samples import TopicsSnapshot
from jobpipe.operations.messages.ledger_messages import HopCounts, RowDifference
from tests.control.world import NAME, World, job_of
from tests.pipelines.waiting import eventually
from tests.statuses import subscription_status, topic_status

READS = {"report": job_of(source={"type": "jobpipe", "subscribe": "flights"})}
FOUND = RowDifference(
    first=41, end=44, published=100, read=99, partitions=(2,), found=1_795_943_642.0, reason="counted"
)
LOST = HopCounts(committed=600, read=599, lost=1, differences=1, newest=FOUND)


class Clock:
    now = FOUND.found + 1.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Looks:
    """How topics stand, and what time it is, as a test says."""

    server: ControlServer
    clock: Clock
    topics: TopicsSnapshot = field(default_factory=lambda: TopicsSnapshot({}, 0.0))
    asked: int = 0
    monitor: DifferenceMonitor = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Let another one look, which knows what is in the store alone."""
        self.monitor = DifferenceMonitor(self.server.store, self.snapshot, self.clock)

    def snapshot(self, max_age: float) -> TopicsSnapshot:
        self.asked += 1
        return self.topics

    def put(self, counts: HopCounts | None, name: str = f"{NAME}.report", topic: str = "flights") -> None:
        status = topic_status(topic, subscriptions=(subscription_status(name, rows=9, counts=counts),))
        self.topics = TopicsSnapshot({topic: status, "silent": LinkBroken("refused")}, 0.0)

    def events(self) -> list[Event]:
        """What was written by now, after one more look."""
        self.monitor.work()
        return self.server.store.events_called(DIFFERENCE)


@pytest.fixture
def looks(world: World) -> Looks:
    clock = Clock()
    server = world.server(clock=clock)
    server.submit(world.submission(READS))
    return Looks(server, clock)


def test_a_difference_is_an_event_of_its_job_once(looks: Looks) -> None:
    """With its range; also for the next server."""
    looks.put(LOST)
    (event,) = looks.events()
    assert (event.pipeline, event.job) == (NAME, "report")
    assert event.detail == (
        f"topic 'flights', subscription '{NAME}.report': offsets 41 to 43, partition 2: 99 rows read of 100 "
        "published; its readers counted other rows than were published; found 2026-11-29 09:14:02 UTC"
    )
    looks.clock.now += 2 * AGAIN_SECONDS
    assert len(looks.events()) == 1
    looks.restart()
    assert len(looks.events()) == 1


def test_each_further_one_is_told_but_at_most_once_a_minute(looks: Looks) -> None:
    looks.put(LOST)
    assert len(looks.events()) == 1
    for number in range(2, 9):
        later = replace(FOUND, first=40 + number, end=44 + number, found=FOUND.found + number)
        looks.put(replace(LOST, differences=number, newest=later))
        assert len(looks.events()) == 1
    looks.restart()  # this is no way around it
    assert len(looks.events()) == 1
    looks.clock.now += AGAIN_SECONDS
    assert [event.detail.rpartition("; ")[2] for event in looks.events()] == [
        "found 2026-11-29 09:14:02 UTC",
        "8 ranges differ in all",
    ]


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param(None, id="no account"),
        pytest.param(HopCounts(committed=600, read=600), id="equal, with lag"),
        pytest.param(HopCounts(committed=600, read=0, unproven=600), id="unproven"),
        pytest.param(HopCounts(committed=600, read=600, moved=9), id="moved"),
        pytest.param(replace(LOST, newest=replace(FOUND, found=FOUND.found - NEWS_SECONDS)), id="of long ago"),
    ],
)
def test_what_is_no_event(looks: Looks, counts: HopCounts | None) -> None:
    looks.put(counts)
    assert looks.events() == []
    looks.put(LOST)
    assert len(looks.events()) == 1


def test_subscriptions_of_others_are_left_out(looks: Looks) -> None:
    """A view of the job is its own, whatever the topic."""
    for name in ("notebook", f"{NAME}.another", "report", f"{NAME}2.report"):
        looks.put(LOST, name)
        assert looks.events() == []
    looks.put(LOST, f"{NAME}.report.view", "another")
    (event,) = looks.events()
    assert (event.job, event.fields["topic"]) == ("report", "another")


def test_a_pipeline_that_was_deleted_and_submitted(world: World, looks: Looks) -> None:
    """Begins again: its events are of another one."""
    looks.put(LOST)
    assert len(looks.events()) == 1
    assert looks.asked == 1
    looks.server.stop(NAME)
    eventually(lambda: all(job.state.name in ("STOPPED", "FINISHED") for job in looks.server.pipeline(NAME).jobs))
    looks.server.delete(NAME)
    eventually(lambda: not looks.server.store.jobs())
    looks.monitor.work()
    assert looks.asked == 1  # there is no job to look at


def test_a_server_looks_by_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    status = topic_status("flights", subscriptions=(subscription_status(f"{NAME}.report", counts=LOST),))
    found = TopicsSnapshot({"flights": status}, 0.0)
    monkeypatch.setattr("jobpipe.control.monitoring.difference_monitor.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("jobpipe.metrics.topics_snapshots.TopicsSnapshots.newest", lambda *_: found)
    server = world.server(clock=lambda: FOUND.found + 1.0)
    server.submit(world.submission(READS))
    eventually(lambda: [event.job for event in server.events() if event.what == DIFFERENCE] == ["report"])
