"""Rows by way of the control server."""

from __future__ import annotations

import pytest

from jobpipe.control.rows.rows_query import RowPlace, RowsQuery
from jobpipe.errors import TopicAway
from tests.control.world import World


def test_the_server_says_what_is_known_of_a_topic_that_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its coordinators' directory says it."""

    def locate(topic: str) -> None:
        raise TopicAway(f"topic {topic!r} is not served: serve it with `jobpipe topics serve`")

    monkeypatch.setattr(world.topics, "locate", locate, raising=False)
    with pytest.raises(TopicAway, match="topic 'orders' is not served: serve it"):
        world.server().topic_rows(RowsQuery(topic="orders", place=RowPlace.of("newest")))
