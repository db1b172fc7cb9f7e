"""Listings of several topics: one that does not answer hides none of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from jobpipe.admin import TopicLine
from jobpipe.cli.common.topic_status import source_pairs, statuses
from jobpipe.discovery.topic_lookup import Location
from jobpipe.errors import JobpipeError, LinkBroken
from jobpipe.net.address import Endpoint
from jobpipe.operations.messages.source_messages import SourceStatus, TableReading
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({}, ["0/1A2B3C8, as of 1.5 s ago", "not known yet, 0 B of its log", "not known", None], id="new"),
        pytest.param(
            {
                "behind_seconds": 240.0,
                "behind_bytes": 3 << 20,
                "retained_bytes": 1 << 30,
                "safe_bytes": 5 << 20,
                "tables": (TableReading("public.orders", 500, 20_000), TableReading("public.new", 0)),
                "more_tables": 2,
            },
            [
                "0/1A2B3C8, as of 1.5 s ago",
                "4.0 min, 3.0 MiB of its log",
                "1.0 GiB, 5.0 MiB more before it removes changes",
                "public.orders (500 of about 20,000), public.new (0), 2 more tables",
            ],
            id="late",
        ),
    ],
)
def test_what_is_said_of_a_source(given: dict[str, Any], said: list[str | None]) -> None:
    source = SourceStatus(**{"position": "0/1A2B3C8", "behind_bytes": 0, "age": 1.5, **given})
    facts = source_pairs(source)
    assert [name for name, _ in facts] == ["source", "source lag", "source keeps", "source reads"]
    assert [value for _, value in facts] == said
    assert source_pairs(None) == []


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
