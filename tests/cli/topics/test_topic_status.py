"""Listings of several topics: one that does not answer hides none of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from jobpipe.admin import TopicLine
from jobpipe.cli.common.topic_status import statuses
from jobpipe.discovery.topic_lookup import Location
from jobpipe.errors import JobpipeError, LinkBroken
from jobpipe.net.address import Endpoint
from jobpipe.operations.status_operations import TopicStatus
from jobpipe.subscribing.absent_publisher import without_publisher
from tests.statuses import topic_status


class Topics:
    """Answers as :class:`jobpipe.admin.Admin` does; ``dead`` ones are registered, and their coordinator is gone."""

    def __init__(self, *names: str, dead: tuple[str, ...]) -> None:
        self._names = names
        self._dead = dead

    def topics(self) -> list[TopicLine]:
        place = Endpoint("127.0.0.1", 1)
        return [TopicLine(name, Location(name, place, place, 1, "i", 1, True)) for name in self._names]

    def status(self, topic: str, timeout: float = 5.0) -> TopicStatus:
        if topic in self._dead:
            raise LinkBroken(f"connect to 127.0.0.1:1: refused ({topic})")
        return topic_status(topic)

    def answers(self, topics: Sequence[str], timeout: float) -> dict[str, TopicStatus | JobpipeError]:
        found: dict[str, TopicStatus | JobpipeError] = {}
        for topic in topics:
            try:
                found[topic] = self.status(topic, timeout)
            except LinkBroken as error:
                found[topic] = error
        return found


def test_a_dead_one_hides_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    found = statuses(Topics("a", "b", "c", dead=("b",)), [], 1.0)  # type: ignore[arg-type]
    assert [status.topic for status in found] == ["a", "c"]
    assert "topic b does not answer: connect to 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize("asked", [[], ["b"]])
def test_when_none_answers_it_is_an_error(asked: list[str]) -> None:
    with pytest.raises(LinkBroken):
        statuses(Topics("b", dead=("b",)), asked, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"publishing": True}, None),
        (
            {"publishing": False, "publisher_gone": 4.0, "served_for": 56.0},
            "publisher gone for 4.0 s, served for another 56.0 s; the last one was shop, epoch 3",
        ),
        (
            {"publishing": False, "publisher_gone": None, "served_for": 600.0},
            "no publisher now; the last one was shop, epoch 3; sealed batches are served for another 10.0 min",
        ),
        (
            {"publishing": False, "publisher_gone": None, "served_for": None},
            "no publisher now; the last one was shop, epoch 3; sealed batches are served",
        ),
    ],
)
def test_what_is_said_of_a_publisher(state: dict[str, Any], said: str | None) -> None:
    """U3: gone since when, and served for how long yet."""
    assert without_publisher(topic_status(publisher="shop", epoch=3, **state)) == said
