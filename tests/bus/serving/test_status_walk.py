"""How many topics are asked how they stand: one link a coordinator, all coordinators at once."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import jobpipe.status_walk
from jobpipe.admin import Admin
from jobpipe.discovery.topic_lookup import Location
from jobpipe.errors import LinkError, LinkTimeout, RemoteProtocolError, TopicAway
from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import Link, connect
from jobpipe.operations.status_operations import LedgerReply, LedgerRequest, TopicStatus
from jobpipe.status_walk import StatusWalk
from jobpipe.testing import NumberedRows
from tests.bus.kit import PATIENCE, Bus, publish, until


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[Endpoint]:
    """Where links were opened to."""
    found: list[Endpoint] = []

    async def counted(endpoint: Endpoint, *args: Any, **options: Any) -> Link:
        found.append(endpoint)
        return await connect(endpoint, *args, **options)

    monkeypatch.setattr(jobpipe.status_walk, "connect", counted)
    return found


@pytest.fixture
def topics(bus: Bus) -> list[str]:
    """Topics of one coordinator, with a batch each."""
    names = [f"{bus.topic}-{letter}" for letter in "abc"]
    for name in names:
        publish(bus.publisher(topic=name), NumberedRows(name), bus.journal, [0])
    return names


@contextlib.contextmanager
def silent(count: int) -> Iterator[list[Endpoint]]:
    """Ports that take connections and say nothing."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
        yield [Endpoint(*listener.getsockname()) for listener in listeners]


def test_one_link_for_all_topics_of_a_coordinator(bus: Bus, topics: list[str], dialled: list[Endpoint]) -> None:
    with Admin(bus.config()) as admin:
        for _ in range(2):  # it is kept, and where topics are served, too
            found = admin.statuses(topics, PATIENCE)
            assert {topic: status.topic for topic, status in found.items()} == {topic: topic for topic in topics}
            assert [status.batches for status in found.values()] == [1, 1, 1]
        assert len(dialled) == 1
        assert {line.name for line in admin.topics() if line.location is not None} >= set(topics)


def test_ledgers_are_asked_over_the_same_link(
    bus: Bus, topics: list[str], dialled: list[Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the minutes, and of the subscription, that are wanted; an answer for another topic is refused."""
    asked: list[LedgerRequest] = []

    async def answer(link: Link, request: LedgerRequest, *, timeout: float) -> LedgerReply:
        asked.append(request)
        topic = request.topic or link.hello.topic
        return LedgerReply(topic="another" if topic == topics[2] else topic, at=1.0, minutes=(), hops=())

    with Admin(bus.config()) as admin:
        admin.statuses(topics, PATIENCE)
        monkeypatch.setattr(jobpipe.status_walk, "ask", answer)
        found = admin.ledgers(topics, PATIENCE, minutes=5, name="billing")
        assert found.keys() == set(topics)
        assert [found[topic].topic for topic in topics[:2]] == topics[:2]  # type: ignore[union-attr]
        assert isinstance(found[topics[2]], RemoteProtocolError)
    assert len(dialled) == 1
    assert {(request.minutes, request.name) for request in asked} == {(5, "billing")}
    assert {request.topic for request in asked} - set(topics) <= {None}


def test_a_link_that_has_ended_is_made_again(bus: Bus, topics: list[str], dialled: list[Endpoint]) -> None:
    with Admin(bus.config()) as admin:
        admin.statuses(topics, PATIENCE)
        for kept in admin._walk._links.values():
            kept.link.abort()
        until(lambda: all(kept.link.ended for kept in admin._walk._links.values()), PATIENCE, "the end")
        assert len(admin.statuses(topics, PATIENCE)) == 3
    assert len(dialled) == 2


@pytest.mark.slow
def test_a_topic_that_has_moved_is_looked_up_again(own_bus: Bus) -> None:
    """Its former coordinator does not serve it; what is not served at all is said to be away."""
    publisher = own_bus.publisher()
    with Admin(own_bus.config()) as admin:
        (line,) = admin.topics()
        assert line.location is not None
        nowhere = replace(line.location, control=Endpoint("127.0.0.1", 1))
        admin._places = {own_bus.topic: nowhere, "gone": replace(nowhere, topic="gone")}
        answers = admin.answers([own_bus.topic, "gone", "never"], PATIENCE)
        assert isinstance(answers[own_bus.topic], TopicStatus)
        assert isinstance(answers["gone"], LinkError)
        assert isinstance(answers["never"], TopicAway)
        publisher.close()


def test_a_silent_coordinator_hides_no_other(bus: Bus, topics: list[str]) -> None:
    walk = StatusWalk(bus.config())
    with Admin(bus.config()) as admin, silent(2) as ports:
        place = admin.locate(topics[0])
        places = [replace(place, topic=topic) for topic in topics]
        away = [replace(place, topic=f"away-{port.port}-{i}", control=port) for port in ports for i in range(2)]
        found = walk.ask([*away, *places], 1.0)
        assert [type(found[place.topic]) for place in places] == [TopicStatus] * 3
        assert [type(found[place.topic]) for place in away] == [LinkTimeout] * 4
    walk.close()


@pytest.mark.slow
def test_silent_coordinators_cost_their_time_together(bus: Bus, topics: list[str]) -> None:
    walk = StatusWalk(bus.config())
    with Admin(bus.config()) as admin, silent(100) as ports:
        place = admin.locate(topics[0])
        away: list[Location] = [replace(place, topic=f"away-{port.port}", control=port) for port in ports]
        began = time.monotonic()
        found = walk.ask([*away, place], 2.0)
        assert time.monotonic() - began < 20.0  # one after another that would be 200
    assert isinstance(found[topics[0]], TopicStatus)
    assert sum(isinstance(answer, LinkTimeout) for answer in found.values()) == 100
    walk.close()


def test_a_coordinator_that_does_not_serve_the_first_topic_is_asked_for_the_others(bus: Bus, topics: list[str]) -> None:
    walk = StatusWalk(bus.config())
    with Admin(bus.config()) as admin:
        place = admin.locate(topics[0])
    found = walk.ask([replace(place, topic=topic) for topic in ("gone", *topics, "gone-too")], PATIENCE)
    assert [type(found[topic]) for topic in topics] == [TopicStatus] * 3
    assert "is not served here" in str(found["gone"])
    assert "is not served here" in str(found["gone-too"])
    walk.close()


def test_a_topic_that_hangs_takes_no_other(bus: Bus, topics: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A log whose disk hangs: the link lives, and answers for the others."""
    real = jobpipe.status_walk.ask

    async def hanging(link: Link, request: Any, *, timeout: float) -> Any:
        if (request.topic or link.hello.topic) == topics[0]:
            raise LinkTimeout("it hangs")
        return await real(link, request, timeout=timeout)

    monkeypatch.setattr(jobpipe.status_walk, "ask", hanging)
    monkeypatch.setattr(jobpipe.status_walk, "TOPICS_AT_ONCE", 2)
    with Admin(bus.config()) as admin:
        answers = admin.answers(topics, PATIENCE)
    assert [type(answers[topic]) for topic in topics] == [LinkTimeout, TopicStatus, TopicStatus]


def test_links_are_kept_up_to_a_number_and_for_a_time(
    bus: Bus, topics: list[str], dialled: list[Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobpipe.status_walk, "LINKS_KEPT", 1)
    walk = StatusWalk(bus.config())
    with Admin(bus.config()) as admin:
        place = admin.locate(topics[0])
    other = replace(place, topic=topics[1], control=Endpoint("localhost", place.control.port))
    for _ in range(2):
        assert [type(each) for each in walk.ask([place, other], PATIENCE).values()] == [TopicStatus] * 2
    assert len(walk._links) == 1
    assert len(dialled) == 3  # one of the two is kept
    monkeypatch.setattr(jobpipe.status_walk, "UNUSED_SECONDS", 0.0)
    walk.ask([place], PATIENCE)
    assert walk._links == {}
    walk.close()


def test_an_accident_is_an_answer(bus: Bus, topics: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("no such thing")

    monkeypatch.setattr(jobpipe.status_walk, "connect", broken)
    with Admin(bus.config()) as admin:
        answers = admin.answers(topics, PATIENCE)
    assert [str(answer) for answer in answers.values() if "no such thing" in str(answer)] == [
        str(answers[topic]) for topic in topics
    ]
