"""One walk for all who ask at a time, and the truth about a registry that is away."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from jobpipe.admin import TopicLine
from jobpipe.discovery.topic_lookup import Location
from jobpipe.errors import RegistryUnavailable, WaitTimeout
from jobpipe.metrics import topics_snapshots
from jobpipe.metrics.topics_snapshots import MAX_AGE_SECONDS, TopicsSnapshots
from tests.statuses import topic_status

DEADLINE = 10.0
SERVED = cast("Location", object())


class Questions:
    """Two topics, one of which is served."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.error: RegistryUnavailable | None = None
        self.gate: threading.Event | None = None

    def topics(self) -> list[TopicLine]:
        if self.error is not None:
            raise self.error
        return [TopicLine("orders", SERVED), TopicLine("old", None)]

    def answers(self, topics: Sequence[str], timeout: float) -> dict[str, Any]:
        self.asked.append(list(topics))
        if self.gate is not None:
            assert self.gate.wait(DEADLINE)
        return {topic: topic_status(topic, rows=len(self.asked)) for topic in topics}


def test_a_snapshot_is_kept_for_a_moment() -> None:
    questions, now = Questions(), [0.0]
    snapshots = TopicsSnapshots(questions, clock=lambda: now[0])
    first = snapshots.newest()
    assert (list(first.topics), first.error, questions.asked) == (["orders"], None, [["orders"]])
    now[0] = MAX_AGE_SECONDS
    assert snapshots.newest() is first
    now[0] += 0.1
    assert snapshots.newest() is not first
    assert snapshots.newest(max_age=60.0).topics["orders"] == topic_status("orders", rows=2)


def test_who_asks_meanwhile_waits_for_the_same_walk() -> None:
    questions = Questions()
    questions.gate = threading.Event()
    snapshots = TopicsSnapshots(questions)
    found: list[Any] = []
    askers = [threading.Thread(target=lambda: found.append(snapshots.newest())) for _ in range(4)]
    for asker in askers:
        asker.start()
    questions.gate.set()
    for asker in askers:
        asker.join(DEADLINE)
    assert len(found) == 4
    assert all(each is found[0] for each in found)
    assert questions.asked == [["orders"]]


@pytest.mark.parametrize("hangs", ["registry", "coordinators"])
def test_what_hangs_holds_up_no_scraper(monkeypatch: pytest.MonkeyPatch, hangs: str) -> None:
    """It is told; and who asks later gets the answer that came meanwhile."""
    monkeypatch.setattr(topics_snapshots, "WAIT_SECONDS", 0.05)
    questions = Questions()
    questions.gate = gate = threading.Event()
    if hangs == "registry":
        monkeypatch.setattr(questions, "topics", lambda: gate.wait(DEADLINE) and Questions.topics(questions))
    snapshots = TopicsSnapshots(questions)
    found = snapshots.newest()
    if hangs == "registry":
        assert isinstance(found.error, WaitTimeout)
        assert found.topics == {}
    else:
        assert found.error is None
        assert isinstance(found.topics["orders"], WaitTimeout)
    making = snapshots._making
    assert making is not None
    snapshots.newest()  # asks the thread for nothing more
    gate.set()
    assert making.result(DEADLINE).error is None
    assert snapshots.newest(max_age=60.0).topics["orders"] == topic_status("orders", rows=1)
    assert len(questions.asked) == 1
    snapshots.close()


def test_a_registry_that_is_away_is_told() -> None:
    questions, now = Questions(), [0.0]
    snapshots = TopicsSnapshots(questions, clock=lambda: now[0])
    assert snapshots.newest().error is None
    questions.error = RegistryUnavailable("no answer")
    now[0] = 60.0
    assert (snapshots.newest().topics, snapshots.newest().error) == ({}, questions.error)
    questions.error = None
    now[0] = 120.0
    assert list(snapshots.newest().topics) == ["orders"]
