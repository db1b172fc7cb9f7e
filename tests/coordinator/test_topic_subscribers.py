"""What the coordinator says of a subscription's link."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpipe.coordinator.topic import session_owner as holding
from jobpipe.coordinator.topic.session_owner import SessionOwner
from jobpipe.coordinator.topic.topic_subscribers import TopicSubscribers
from jobpipe.errors import JobpipeError, LinkBroken, LinkEnded, LinkTimeout

WHERE = {"host": "a", "pid": 1}
LINE: dict[str, Any] = {"name": "billing", "holder": None, "silent": 7.0}


def held(link: Any) -> TopicSubscribers:
    made = TopicSubscribers(cast("Any", SimpleNamespace(topic="orders")))
    made._session_owners["billing"] = SessionOwner("instance", 1, link, WHERE, reconnects=2)
    return made


def test_a_link_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    made = held(SimpleNamespace(silence=0.25))
    now = made._session_owners["billing"].since + 2.5
    monkeypatch.setattr(holding, "time", SimpleNamespace(monotonic=lambda: now))
    state = made.state(LINE)
    assert (state["state"], state["reconnects"], state["last_seen"], state["where"]) == ("connected", 2, 0.25, WHERE)
    assert state["since"] == 2.5


@pytest.mark.parametrize(
    ("why", "state"),
    [(LinkBroken("x"), "reconnecting"), (LinkTimeout("x"), "reconnecting"), (LinkEnded("x"), "absent")],
)
def test_a_link_that_is_gone(why: JobpipeError, state: str) -> None:
    """Who said goodbye does not come back by himself."""
    link = cast("Any", SimpleNamespace(silence=0.0))
    made = held(link)
    made.disconnected(link, why)
    assert made.state(LINE)["state"] == state


def test_who_does_not_come_back_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    link = cast("Any", SimpleNamespace(silence=0.0))
    made = held(link)
    made.disconnected(link, LinkBroken("x"))
    now = time.monotonic() + holding.RECONNECT_SECONDS
    monkeypatch.setattr(holding, "time", SimpleNamespace(monotonic=lambda: now))
    state = made.state(LINE)
    assert state["state"] == "absent"
    assert state["since"] >= 29
    assert state["last_seen"] >= 29


@pytest.mark.parametrize(
    ("stored", "seen", "where"),
    [(None, None, None), ({"instance": "x", **WHERE}, 7.0, WHERE), ({"instance": "x"}, 7.0, None)],
)
def test_who_was_only_seen_by_an_earlier_coordinator(stored: Any, seen: Any, where: Any) -> None:
    state = TopicSubscribers(cast("Any", SimpleNamespace(topic="orders"))).state({**LINE, "holder": stored})
    assert state == {"state": "absent", "since": None, "reconnects": 0, "last_seen": seen, "where": where}
