"""The control server records, and goes on with what the one before it recorded."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from typing import cast

import pytest

from jobpipe.admin import TopicLine
from jobpipe.control.history.history import History
from jobpipe.control.history.history_file import read_history, write_history
from jobpipe.control.history.series import SeriesKey
from jobpipe.control.topic_monitor import TopicMonitor
from jobpipe.discovery.topic_lookup import Location
from jobpipe.status_walk import Answer
from tests.control.world import World
from tests.pipelines.waiting import eventually
from tests.statuses import subscription_status, topic_status


def test_a_server_records_how_topics_stand(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(topics: Sequence[str], timeout: float) -> dict[str, Answer]:
        lines = (subscription_status("billing", rows=7),)
        return {topic: topic_status(topic, subscriptions=lines) for topic in topics}

    monkeypatch.setattr(world.topics, "topics", lambda: [TopicLine("orders", cast("Location", object()))])
    monkeypatch.setattr(world.topics, "answers", answers)
    key = SeriesKey.lag_rows("orders", "billing")
    now = [1.8e9]
    server = world.server(clock=lambda: now[0])
    eventually(lambda: server.history.line(key).values[-1] == 7.0)
    server.close()
    file = world.config.home / "server" / "history.arrow"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.setattr(world.topics, "topics", list)
    now[0] += 600.0
    values = world.server(clock=lambda: now[0]).history.line(key).values
    assert [each for each in values if each is not None] == [7.0]


def test_a_start_that_fails_leaves_the_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: TopicMonitor) -> None:
        raise OSError("no more threads")

    world.server().close()
    file = world.config.home / "server" / "history.arrow"
    kept = History(lambda: 1.8e9)
    kept.feed({SeriesKey.published("orders"): 1.0})
    write_history(file, kept.stored())
    monkeypatch.setattr(TopicMonitor, "start", fails)
    with pytest.raises(OSError, match="no more threads"):
        world.server()
    found = read_history(file)
    assert found is not None
    assert len(found.series) == 1
