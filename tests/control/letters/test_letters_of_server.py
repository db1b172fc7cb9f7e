"""The dead letters of a control server's jobs: which topics, and where their rows may go back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.control.letters.letter_views import LetterJob
from jobpipe.errors import TopicNotFound
from tests.control.world import World, job_of

ERRORS = {"tolerance": "all"}


def reading(topic: str, **more: Any) -> dict[str, Any]:
    sink = {"type": "jobpipe", "topic": f"{topic}-out"}
    return job_of(source={"type": "jobpipe", "subscribe": topic}, sink=sink, **more)


def test_topics_of_jobs_and_where_rows_may_go(world: World) -> None:
    """Those of jobs with a tolerance; rows go back only to what the letters' own job reads, with the prefix."""
    server = world.server()
    jobs = {"report": reading("orders", errors=ERRORS), "strict": reading("payments")}
    server.submit(world.submission(jobs, **{"topic-prefix": "shop."}))
    found = list(server._letter_jobs())
    assert found == [LetterJob("flights", "report", "shop.flights.report.dead-letters")]
    may_go = server._may_go_back(found[0])
    assert [may_go(topic) for topic in ("shop.orders", "shop.payments", "orders")] == [True, False, False]
    (shown,) = server.dead_letters.topics()
    assert (shown.pipeline, shown.job) == ("flights", "report")
    assert "is not served now" in shown.problem
    with pytest.raises(TopicNotFound):
        server.dead_letters.topic("shop.orders")


def test_none_after_the_tolerance_is_gone(world: World) -> None:
    server = world.server()
    server.submit(world.submission({"report": reading("orders", errors=ERRORS)}))
    assert len(server.dead_letters.topics()) == 1
    server.submit(world.submission({"report": reading("orders")}))
    assert server.dead_letters.topics() == ()


def test_masked_columns_of_letters_are_not_shown(world: World) -> None:
    """Named alone, or with their topic; of another topic they are left."""
    dead, other = "flights.report.dead-letters", "others.dead-letters"
    world.config = replace(world.config, server_masked_columns=("row", f"{dead}.error_message"))
    server = world.server()
    batch = pa.RecordBatch.from_pylist([{"row": "{}", "error_message": "bad price", "stage": "python"}])
    assert server._without_masked(dead, batch).schema.names == ["stage"]
    assert server._without_masked(other, batch).schema.names == ["stage"]  # an error may quote the row


def test_the_server_moves_subscriptions(world: World) -> None:
    """By its own store, so that an undo outlives it."""
    server = world.server()
    assert server.moves.last("flights") == {}
