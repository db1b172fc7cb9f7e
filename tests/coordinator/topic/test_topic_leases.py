"""S3, T1, T3: whose each lease is, how many there may be, and when they end. Mostly without a log."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.coordinator.topic import topic_leases as module
from jobpipe.coordinator.topic.topic_leases import TopicLeases
from jobpipe.errors import DataLoss, LinkError, RemoteProtocolError, SpoolError, TopicNotFound
from jobpipe.net.servers.identity_quota import IdentityQuotas
from jobpipe.operations.reader_operations import LeaseRequest, lease_name
from tests.coordinator.kit import Gate, World, run, seal


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
            leases=SimpleNamespace(
                hold=self._lease, release=lambda key: self.held.pop(key, None), shorten=self.held.__setitem__
            )
        )
        self.acked = SimpleNamespace(notify_all=lambda: None)

    def _lease(self, key: str, first: int, last: int, seconds: float) -> None:
        if self.fail is not None:
            raise self.fail
        self.held[key] = seconds

    async def run(self, work: Any, *args: Any) -> Any:
        await asyncio.sleep(0)
        return work(*args)


def link(name: str) -> Any:
    return SimpleNamespace(peer_names=(name,), peer=f"{name}:1", ended=None)


def secret(key: str) -> str:
    return key.ljust(32, "_")


def name(key: str) -> str:
    return lease_name(secret(key))


def asked(key: str, seconds: float = 600.0) -> LeaseRequest:
    return LeaseRequest(secret(key), 0, 3, seconds)


def made(limit: int = 3) -> tuple[Topic, IdentityQuotas, TopicLeases]:
    topic, quotas = Topic(), IdentityQuotas({"leases": limit})
    return topic, quotas, TopicLeases(topic, quotas)  # type: ignore[arg-type]


@in_loop
async def test_an_identity_has_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: 328 MiB of catalog in four seconds."""
    topic, quotas, leases = made()
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
    await leases.release(secret("l0"))
    await leases.release(secret("l0"))
    await leases.take(mallory, asked("l3"))
    assert set(topic.held) == {name(key) for key in ("l1", "l2", "l3", "x")}
    leases.close()
    assert quotas.describe().get("other") is None


@in_loop
async def test_the_secret_is_the_owner() -> None:
    """T3: tasks renew what the driver took, from other hosts; the name, which all may know, gives no right."""
    topic, quotas, leases = made(1)
    await leases.take(link("driver"), asked("one"))
    await leases.take(link("executor"), asked("one", 800.0))
    assert topic.held == {name("one"): 800.0}
    assert (quotas.held("driver", "leases"), quotas.held("executor", "leases")) == (1, 0), "counted once"
    await leases.release(name("one"))
    await leases.take(link("mallory"), LeaseRequest(name("one").ljust(32, "0"), 0, 3, 1.0))
    assert topic.held[name("one")] == 800.0
    assert quotas.held("mallory", "leases") == 1
    await leases.release(secret("one"))
    assert name("one") not in topic.held


@in_loop
async def test_what_held_nothing_does_not_count() -> None:
    topic, quotas, leases = made(1)
    topic.fail = DataLoss("gone")
    with pytest.raises(DataLoss):
        await leases.take(link("a"), asked("one"))
    assert quotas.held("a", "leases") == 0
    with pytest.raises(RemoteProtocolError):
        await leases.take(link("a"), LeaseRequest(secret("one"), 3, 1, 1.0))
    topic.fail = None
    await leases.take(link("a"), asked("one"))
    topic.fail = DataLoss("gone")
    with pytest.raises(DataLoss):
        await leases.take(link("a"), asked("one"))
    assert quotas.held("a", "leases") == 1, "what it has held is held still"


@in_loop
async def test_the_end_of_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: a lease ends a grace after its link, unless it is renewed over another."""
    monkeypatch.setattr(module, "LEASE_GRACE_SECONDS", 0.0)
    topic, quotas, leases = made()
    first = link("a")
    for key in ("one", "two"):
        await leases.take(first, asked(key))
    leases.disconnected(first)
    await leases.take(link("a"), asked("two"))
    leases.write_to_store()
    assert topic.held[name("one")] <= 0.0
    assert topic.held[name("two")] == 600.0
    leases.expire()
    assert quotas.held("a", "leases") == 1
    gone = link("a")
    gone.ended = LinkError("it ended while the disk worked")
    await leases.take(gone, asked("three"))
    leases.expire()
    assert quotas.held("a", "leases") == 1


@in_loop
async def test_a_commit_of_unknown_outcome_counts() -> None:
    """T1: the log may hold it all the same."""
    topic, quotas, leases = made()
    topic.fail = SpoolError("the disk")
    with pytest.raises(SpoolError):
        await leases.take(link("a"), asked("one"))
    assert quotas.held("a", "leases") == 1
    leases.expire()
    assert quotas.held("a", "leases") == 1
    topic.fail = None
    await leases.take(link("a"), asked("one"))
    await leases.release(secret("one"))
    assert quotas.held("a", "leases") == 0


def stored(topic: Any) -> list[str]:
    return [lease.id for lease in topic.store.leases.all()]


@pytest.mark.parametrize("both", [False, True])
def test_links_that_are_cut_leave_no_lease_without_an_owner(
    world: World, monkeypatch: pytest.MonkeyPatch, both: bool
) -> None:
    """T1: two links ask for one lease, and the first, or both, are cut while they wait for the log's thread."""

    async def work() -> None:
        host, quotas = world.host(), IdentityQuotas({"leases": 3})
        topic = await host.open_topic("orders", world.order())
        await seal(topic, 0)
        leases = topic.leases = TopicLeases(topic, quotas)
        gate = Gate()
        busy = asyncio.create_task(topic.run(gate.wrap(lambda: None)))
        await gate.arrived()
        links = [link("a"), link("a")]
        takes = [asyncio.create_task(leases.take(each, LeaseRequest(secret("one"), 0, 0, 86_000.0))) for each in links]
        await asyncio.sleep(0)
        for number in range(1 + both):
            links[number].ended = LinkError("cut")
            leases.disconnected(links[number])
            takes[number].cancel()
            await asyncio.wait({takes[number]})
            assert quotas.held("a", "leases") == 1, "the log may store it"
        gate.go_on.set()
        await busy
        if not both:
            await takes[1]
        await leases._idle(name("one"))
        assert await topic.run(stored, topic) == [name("one")]
        assert quotas.held("a", "leases") == 1
        assert leases._known[name("one")].link is (None if both else links[1])
        if not both:
            links[1].ended = LinkError("cut")
            leases.disconnected(links[1])
        await topic.tick(retain=True)
        (line,) = await topic.run(topic.store.leases.all)
        assert 0 < line.left <= module.LEASE_GRACE_SECONDS, "shortened at the link's end"
        await leases.release(secret("one"))
        assert (await topic.run(stored, topic), quotas.held("a", "leases")) == ([], 0)
        await host.close()

    run(work())


def test_a_lease_is_not_shortened_that_was_renewed_since(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: the old link ends between the renewal's turn in the log's thread and its answer."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        await seal(topic, 0)
        old, new = link("a"), link("a")
        await topic.leases.take(old, LeaseRequest(secret("one"), 0, 0, 80_000.0))
        gate, hold = Gate(), topic.store.leases.hold
        monkeypatch.setattr(topic.store.leases, "hold", gate.wrap(hold, after=True))
        renewal = asyncio.create_task(topic.leases.take(new, LeaseRequest(secret("one"), 0, 0, 85_000.0)))
        await gate.arrived()
        old.ended = LinkError("cut")
        topic.leases.disconnected(old)
        gate.go_on.set()
        await renewal
        await topic.tick(retain=True)
        (line,) = await topic.run(topic.store.leases.all)
        assert line.left > 80_000
        await host.close()

    run(work())


def test_what_an_earlier_coordinator_stored_can_be_ended(world: World) -> None:
    """T1: the log holds leases that this coordinator has no entry for; an administrator finds each, its reader too."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        await seal(topic, 0)
        for number in range(150):
            await topic.run(topic.store.leases.hold, name(f"l{number}"), 0, 0, 0.0 if number == 149 else 600.0)
        status = await topic.status()
        assert (len(status.leases), status.lease_count) == (100, 150)
        for number in (120, 149):  # of no time at all: over, and held until retention looks
            assert (await topic.leases.drop(name(f"l{number}"), dry_run=False)).owner is None
            with pytest.raises(TopicNotFound):
                await topic.leases.drop(name(f"l{number}"), dry_run=False)
        await topic.leases.release(secret("l0"))
        assert (await topic.status()).lease_count == 147
        await host.close()

    run(work())
