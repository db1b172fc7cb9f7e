"""Moves of subscriptions with a real coordinator: counts are of real rows, and readers go on where they were moved."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import jobpipe
from jobpipe.admin import Admin
from jobpipe.config import Config
from jobpipe.control.positions.move_plan import MovePlan
from jobpipe.control.positions.subscription_moves import SubscriptionMoves
from jobpipe.errors import ConfigError, ControlConflict, DataLoss, TopicNotFound
from jobpipe.jobs.storage.job_store import Store
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.subscribing.python_client import subscribe
from tests.cli.buskit import publish
from tests.pipelines.waiting import eventually

pytestmark = pytest.mark.zookeeper
NAME = "billing"


@pytest.fixture
def publisher(config: Config) -> Iterator[Publisher]:
    """Three batches of four rows."""
    made = Publisher("orders", config=config, name="shop", parallelism=2)
    publish(made, 0, 1, 2)
    yield made
    made.close()


@pytest.fixture
def admin(config: Config) -> Iterator[Admin]:
    with Admin(config) as made:
        yield made


@pytest.fixture
def moves(admin: Admin, tmp_path: Path) -> SubscriptionMoves:
    return SubscriptionMoves(Store(tmp_path / "server.db", time.time), admin, time.time)


def undo(moves: SubscriptionMoves, plan: MovePlan) -> None:
    """Take the move back that a plan takes back."""
    assert plan.undoes is not None
    moves.undo("orders", NAME, number=plan.undoes.number, expected=plan.at, by="token")


def read(config: Config) -> list[int]:
    """Return the rows that the subscription has not read, and acknowledge them."""
    with subscribe("orders", name=NAME, starting="committed", config=config) as reader:
        return sorted(row["n"] for batch in reader.batches(timeout=0.0) for row in batch.to_pylist())


def read_all(config: Config) -> list[int]:
    with subscribe("orders", name=NAME, starting="earliest", config=config) as reader:
        return sorted(row["n"] for batch in reader.batches(timeout=0.0) for row in batch.to_pylist())


def test_rows_are_read_again_and_skipped(config: Config, publisher: Publisher, moves: SubscriptionMoves) -> None:
    """As many as the plan said."""
    assert read_all(config) == list(range(12))
    plan = moves.plan("orders", NAME, 1)
    assert (plan.before, plan.to, plan.rows, plan.obstacles) == (3, 1, 8, ())
    assert plan.said == "billing reads 8 rows again: offsets 1 to 2"
    moves.move("orders", NAME, 1, expected=plan.at, by="token")
    back = moves.plan_undo("orders", NAME)
    assert (back.said, back.obstacles) == ("billing skips 8 rows that it never reads: offsets 1 to 2", ())
    undo(moves, back)
    assert read(config) == []
    redo = moves.plan_undo("orders", NAME)
    undo(moves, redo)
    assert read(config) == list(range(4, 12))
    gone_on = moves.plan_undo("orders", NAME)
    assert gone_on.obstacles[-1].startswith("it stands at offset 3, and not at offset 1")
    with pytest.raises(ControlConflict, match="not at offset 1"):
        undo(moves, gone_on)
    publish(publisher, 3)
    plan = moves.plan("orders", NAME, "latest")
    assert plan.said == "billing skips 4 rows that it never reads: offset 3"
    moves.move("orders", NAME, plan.to, expected=plan.at, by="token")
    assert read(config) == []


def test_by_time(config: Config, publisher: Publisher, moves: SubscriptionMoves) -> None:
    read_all(config)
    assert moves.plan("orders", NAME, "2020-01-01T00:00:00Z").to == 0
    with pytest.raises(ConfigError, match="nothing was published at 2999"):
        moves.plan("orders", NAME, "2999-01-01T00:00:00Z")
    with pytest.raises(DataLoss):
        moves.plan("orders", NAME, 9)
    with pytest.raises(TopicNotFound):
        moves.plan("nothing", NAME, 0)


def test_a_connected_subscriber_is_named(config: Config, publisher: Publisher, moves: SubscriptionMoves) -> None:
    """It is planned all the same; once it has left, the move is made."""
    with subscribe("orders", name=NAME, starting="earliest", config=config) as live:
        live.position()
        plan = moves.plan("orders", NAME, "latest")
        assert plan.rows == 12
        assert "a subscriber is connected from" in plan.obstacles[0]
        with pytest.raises(ControlConflict, match="a subscriber is connected"):
            moves.move("orders", NAME, plan.to, expected=plan.at, by="token")
    eventually(lambda: not moves.plan("orders", NAME, "latest").obstacles)
    moves.move("orders", NAME, plan.to, expected=plan.at, by="token")
    assert read(config) == []


def test_a_subscription_that_lost_batches(config: Config, admin: Admin, moves: SubscriptionMoves) -> None:
    """They count as lost, not as skipped."""
    small = replace(config, spool_max_bytes=64 << 10, segment_max_bytes=8 << 10, on_full="drop_oldest")
    publisher = Publisher("orders", config=small, name="shop", required_subscribers=[NAME])
    for batch in range(20):
        publisher.seal("query", batch, [pa.table({"n": list(range(1000 * batch, 1000 * batch + 1000))})], run_id="1")
    status = admin.status("orders")
    assert status.tail > 0  # else nothing was lost
    plan = moves.plan("orders", NAME, "latest")
    assert f"Besides, {status.tail} batches from offset 0 on were removed" in plan.said
    assert (plan.rows, plan.obstacles) == (1000 * (status.head - status.tail), ())
    moves.move("orders", NAME, plan.to, expected=plan.at, by="token")
    with pytest.raises(ControlConflict, match=r"cannot be undone: .*batches 0 to"):
        moves.plan_undo("orders", NAME)
    publisher.close()


def test_cursors_of_a_flow(config: Config, publisher: Publisher, admin: Admin, moves: SubscriptionMoves) -> None:
    """Are in the way while a topic that is served keeps them."""
    flow = jobpipe.flow(
        subscribe="orders", name=NAME, function=lambda batch, _: None, starting="earliest", config=config
    )
    try:
        eventually(lambda: any(each.flow == NAME for each in admin.status("orders").flows))
    finally:
        flow.stop()
        flow.join(30.0)
    eventually(lambda: any("is a flow" in each for each in moves.plan("orders", NAME, 0).obstacles))
    admin.reset_flow("orders", NAME)
    eventually(lambda: not any("is a flow" in each for each in moves.plan("orders", NAME, 0).obstacles))
