"""What the coordinator says of a subscription's link."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpipe.coordinator.topic import session_owner as holding
from jobpipe.coordinator.topic.session_owner import Connection, SessionOwner, application_of
from jobpipe.coordinator.topic.topic_subscribers import TopicSubscribers
from jobpipe.errors import JobpipeError, LinkBroken, LinkEnded, LinkTimeout
from jobpipe.operations.messages.application import Application
from jobpipe.operations.status_operations import ReaderProcess
from jobpipe.store.log.catalog_status import StoredLag, SubscriptionLine

APPLICATION = Application("a-1-0", "billing")
PROCESS: dict[str, Any] = {"host": "a", "pid": 1}
WHERE: dict[str, Any] = {**PROCESS, "application": APPLICATION.to_json()}
LINE = SubscriptionLine(
    name="billing",
    acked=None,
    declared=None,
    required=False,
    grant=1,
    holder=None,
    silent=7.0,
    stale=0,
    lag=StoredLag(0, 0, 0, 0.0),
    hops=(),
    hop_seconds=0.0,
)


def held(link: Any) -> TopicSubscribers:
    made = TopicSubscribers(cast("Any", SimpleNamespace(topic="orders")))
    made._session_owners["billing"] = SessionOwner("instance", 1, link, WHERE, reconnects=2)
    return made


def test_a_link_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    made = held(SimpleNamespace(silence=0.25))
    now = made._session_owners["billing"].since + 2.5
    monkeypatch.setattr(holding, "time", SimpleNamespace(monotonic=lambda: now))
    assert made.connection(LINE) == Connection("connected", 2.5, 2, 0.25, ReaderProcess(**PROCESS), APPLICATION)


@pytest.mark.parametrize(
    ("why", "state"),
    [(LinkBroken("x"), "reconnecting"), (LinkTimeout("x"), "reconnecting"), (LinkEnded("x"), "absent")],
)
def test_a_link_that_is_gone(why: JobpipeError, state: str) -> None:
    """Who said goodbye does not come back by himself."""
    link = cast("Any", SimpleNamespace(silence=0.0))
    made = held(link)
    made.disconnected(link, why)
    assert made.connection(LINE).state == state


def test_who_does_not_come_back_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    link = cast("Any", SimpleNamespace(silence=0.0))
    made = held(link)
    made.disconnected(link, LinkBroken("x"))
    now = time.monotonic() + holding.RECONNECT_SECONDS
    monkeypatch.setattr(holding, "time", SimpleNamespace(monotonic=lambda: now))
    found = made.connection(LINE)
    assert found.state == "absent"
    assert found.since is not None
    assert found.since >= 29
    assert found.last_seen is not None
    assert found.last_seen >= 29


@pytest.mark.parametrize(
    ("stored", "seen", "where"),
    [
        (None, None, (None, None)),
        ({"instance": "x", **WHERE}, 7.0, (ReaderProcess(**PROCESS), APPLICATION)),
        ({"instance": "x", **PROCESS}, 7.0, (ReaderProcess(**PROCESS), None)),  # of an older version
        ({"instance": "x"}, 7.0, (None, None)),
    ],
)
def test_who_was_only_seen_by_an_earlier_coordinator(stored: Any, seen: Any, where: tuple[Any, Any]) -> None:
    found = TopicSubscribers(cast("Any", SimpleNamespace(topic="orders"))).connection(replace(LINE, holder=stored))
    assert found == Connection("absent", None, 0, seen, *where)


@pytest.mark.parametrize("stored", ["billing", 5, {"name": "x"}, {"id": 5}, {"id": "a b"}])
def test_an_application_in_another_form_hides_nothing(stored: Any) -> None:
    """As a catalog of another version may have it."""
    assert application_of({"application": APPLICATION.to_json()}) == APPLICATION
    assert application_of({"application": stored}) is None
