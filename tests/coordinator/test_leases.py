"""S3: whose each lease is, how many there may be, and when they end. Without a log."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.coordinator import leases as module
from jobpipe.coordinator.leases import Leases
from jobpipe.errors import DataLoss, LinkError, NotAuthorized, RemoteProtocolError
from jobpipe.net.budget import Budgets
from jobpipe.operations.reading import LeaseRequest


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test's coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Topic:
    """What leases need of a topic: a log that keeps the last call, or fails."""

    def __init__(self) -> None:
        self.topic = "orders"
        self.held: dict[str, float] = {}
        self.fail: Exception | None = None
        self.store = SimpleNamespace(
            leases=SimpleNamespace(hold=self._lease, release=self.held.pop, shorten=self.held.__setitem__)
        )
        self.acked = SimpleNamespace(ring=lambda: None)

    def _lease(self, key: str, first: int, last: int, seconds: float) -> None:
        if self.fail is not None:
            raise self.fail
        self.held[key] = seconds

    async def run(self, work: Any, *args: Any) -> Any:
        await asyncio.sleep(0)
        return work(*args)


def link(name: str) -> Any:
    return SimpleNamespace(peer_names=(name,), peer=f"{name}:1", ended=None)


def asked(key: str, seconds: float = 600.0) -> LeaseRequest:
    return LeaseRequest(key, 0, 3, seconds)


def made(limit: int = 3) -> tuple[Topic, Budgets, Leases]:
    topic, budgets = Topic(), Budgets({"leases": limit})
    return topic, budgets, Leases(topic, budgets)  # type: ignore[arg-type]


@in_loop
async def test_an_identity_has_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: 328 MiB of catalog in four seconds."""
    topic, budgets, leases = made()
    mallory, other = link("mallory"), link("other")
    for number in range(3):
        await leases.take(mallory, asked(f"l{number}"))
    with pytest.raises(LinkError, match="mallory holds 3 leases here, and at most 3"):
        await leases.take(link("mallory"), asked("l3"))
    await leases.take(mallory, asked("l0"))  # renewed
    await leases.take(other, asked("x"))
    monkeypatch.setattr(module, "MAX_LEASES", 4)
    with pytest.raises(LinkError, match="has 4 leases"):
        await leases.take(other, asked("y"))
    await leases.release(mallory, "l0")
    await leases.release(mallory, "l0")
    await leases.take(mallory, asked("l3"))
    assert sorted(topic.held) == ["l1", "l2", "l3", "x"]
    leases.close()
    assert budgets.describe().get("other") is None


@in_loop
async def test_leases_of_others_are_theirs() -> None:
    topic, _, leases = made()
    await leases.take(link("good"), asked("one"))
    for work in (leases.take(link("mallory"), asked("one")), leases.release(link("mallory"), "one")):
        with pytest.raises(NotAuthorized, match="is of good"):
            await work
    assert topic.held == {"one": 600.0}


@in_loop
async def test_what_held_nothing_does_not_count() -> None:
    topic, budgets, leases = made(1)
    topic.fail = DataLoss("gone")
    with pytest.raises(DataLoss):
        await leases.take(link("a"), asked("one"))
    assert budgets.held("a", "leases") == 0
    with pytest.raises(RemoteProtocolError):
        await leases.take(link("a"), LeaseRequest("one", 3, 1, 1.0))
    topic.fail = None
    await leases.take(link("a"), asked("one"))
    topic.fail = DataLoss("gone")
    with pytest.raises(DataLoss):
        await leases.take(link("a"), asked("one"))
    assert budgets.held("a", "leases") == 1, "what it has held is held still"


@in_loop
async def test_the_end_of_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: a lease ends a grace after its link, unless it is renewed over another."""
    monkeypatch.setattr(module, "LEASE_GRACE_SECONDS", 0.0)
    topic, budgets, leases = made()
    first = link("a")
    for key in ("one", "two"):
        await leases.take(first, asked(key))
    leases.disconnected(first)
    await leases.take(link("a"), asked("two"))
    leases.tell_store()
    assert topic.held["one"] <= 0.0
    assert topic.held["two"] == 600.0
    leases.expire()
    assert budgets.held("a", "leases") == 1
    gone = link("a")
    gone.ended = LinkError("it ended while the disk worked")
    await leases.take(gone, asked("three"))
    leases.expire()
    assert budgets.held("a", "leases") == 1
