"""What a topic keeps in memory follows its log, also when the request that changed it was cancelled."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpipe.coordinator.registration.claimed_epoch_check import ClaimedEpochCheck
from jobpipe.errors import LinkBroken, LinkTimeout, NameTaken, RegistryUnavailable, TopicNotFound
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.boundary import Boundary
from jobpipe.store.subscriptions.positions import Subscriptions
from tests.coordinator.kit import Gate, World, run, seal, until

LINK = cast("Any", SimpleNamespace(ended=None, silence=0.0, peer_names=()))
WHERE = {"host": "a", "pid": 1}


async def cancelled_inside(
    work: Any, kind: type, method: str, monkeypatch: pytest.MonkeyPatch, *, after: bool = True
) -> None:
    """Start ``work``, cancel it while the log's thread is at the end of a method, and let that go on."""
    gate = Gate()
    with monkeypatch.context() as patch:
        patch.setattr(kind, method, gate.wrap(getattr(kind, method), after=after))
        task = asyncio.create_task(work)
        await gate.arrived()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.go_on.set()


def test_a_seal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R10: head and news are those of the log, or a subscriber waits for the next batch to hear of this one."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        topic.writing.add("other")
        woken = asyncio.create_task(topic.news.wait(10))
        await asyncio.sleep(0)
        await cancelled_inside(seal(topic, 0), TopicLog, "seal", monkeypatch)
        assert await woken
        assert topic.head == await topic.run(topic.store.batches.head)
        assert topic.head.n == 1
        await host.close()

    run(work())


@pytest.mark.parametrize("after", [False, True])
def test_an_end_mark(world: World, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    """R10: closed again after a cut, the topic ends once."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        await seal(topic, 0)
        await cancelled_inside(host.close_publisher(topic, final=True), TopicLog, "seal", monkeypatch, after=after)
        again = [host.close_publisher(topic, final=True) for _ in range(3)]
        await asyncio.gather(*again)
        assert (topic.ended, topic.publishing, topic.head.n) == (True, False, 2)
        assert await topic.run(topic.store.batches.head) == topic.head
        await host.close()

    run(work())


def test_end_marks_at_the_same_time(world: World) -> None:
    """R10: they are one call."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        await seal(topic, 0)
        await asyncio.gather(*(topic.seal_end() for _ in range(3)))
        assert topic.head.n == 2
        await host.close()

    run(work())


def test_an_acknowledgement(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R10: a publisher that waits for it hears of it."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        await seal(topic, 0)
        holder = await topic.subscribers.grant("billing", "i", LINK, WHERE)
        await topic.subscribers.first_position("billing", Boundary("earliest"), None, skip_removed=False)
        woken = asyncio.create_task(topic.acked.wait(10))
        await asyncio.sleep(0)
        await cancelled_inside(
            topic.subscribers.acknowledge("billing", holder.grant, topic.head),
            Subscriptions,
            "acknowledge",
            monkeypatch,
        )
        assert await woken
        await host.close()

    run(work())


def test_a_grant(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R10: the older holder is fenced in memory as it is in the log, and no name is without a holder."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        ended = cast("Any", SimpleNamespace(ended=LinkBroken("cut"), silence=0.0, peer_names=()))
        await cancelled_inside(
            topic.subscribers.grant("billing", "i", ended, WHERE), Subscriptions, "subscribe", monkeypatch
        )
        await until(lambda: "billing" in topic.subscribers._session_owners)
        known = (await topic.run(topic.store.subscriptions.all))[0]
        holder = topic.subscribers._session_owners["billing"]
        assert (holder.grant, holder.link) == (known.grant, None)  # its link ended meanwhile: not connected for ever
        second = await topic.subscribers.grant("billing", "j", LINK, WHERE)
        assert second.grant == known.grant + 1
        await host.close()

    run(work())


class Silent:
    """A link whose peer answers no ping until the test says so."""

    ended, silence, peer_names = None, 0.0, ()

    def __init__(self) -> None:
        self.pinged = asyncio.Event()
        self.given_up = asyncio.Event()

    async def ping(self, seconds: float) -> None:
        self.pinged.set()
        await self.given_up.wait()
        raise LinkTimeout("no answer")


def test_a_silent_reader_delays_nobody_else(world: World) -> None:
    """Who asks for its name waits for its ping; other names do not, and neither does it when it comes back."""

    async def work() -> None:
        host, silent = world.host(), Silent()
        topic = await host.open_topic("orders", world.order())
        names = topic.subscribers
        await names.grant("billing", "i", cast("Any", silent), WHERE)
        asking = [asyncio.create_task(names.seek("billing", Boundary("latest"), dry_run=True)) for _ in range(8)]
        asking += [asyncio.create_task(names.drop("billing", dry_run=True))]
        newcomer = asyncio.create_task(names.grant("billing", "j", LINK, WHERE))
        await silent.pinged.wait()
        async with asyncio.timeout(10):
            assert (await names.grant("audit", "k", LINK, WHERE)).grant == 1
            assert (await names.require("other", required=True, dry_run=True)).required == ("other",)
            names._session_owners["audit"].link = None
            names._session_owners["audit"].seen = -1e9
            await names.forget_undecided()
            assert "audit" not in names._session_owners
            assert (await names.grant("billing", "i", cast("Any", silent), WHERE)).grant == 1, "it comes back"
        assert not any(task.done() for task in (newcomer, *asking))
        silent.given_up.set()
        async with asyncio.timeout(10):
            await asyncio.gather(*asking)
            assert (await newcomer).grant == 2
        await host.close()

    run(work())


def test_a_reader_that_comes_back_while_it_is_pinged_keeps_its_name(world: World) -> None:
    """It was its link that was silent; the one it has now is asked before the name passes on."""

    async def work() -> None:
        host, silent = world.host(), Silent()
        topic = await host.open_topic("orders", world.order())
        await topic.subscribers.grant("billing", "i", cast("Any", silent), WHERE)
        newcomer = asyncio.create_task(topic.subscribers.grant("billing", "j", LINK, WHERE))
        await silent.pinged.wait()
        alive = SimpleNamespace(ended=None, silence=0.0, peer_names=(), ping=lambda seconds: asyncio.sleep(0))
        holder = await topic.subscribers.grant("billing", "i", cast("Any", alive), WHERE)
        silent.given_up.set()
        with pytest.raises(NameTaken):
            await newcomer
        assert topic.subscribers.held("billing", holder.grant) is holder
        await host.close()

    run(work())


def test_a_drop_and_a_grant_take_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R10: a reader that takes the name while it is being dropped gets a new subscription, not one that is gone."""

    async def work() -> None:
        host, gate = world.host(), Gate()
        topic = await host.open_topic("orders", world.order())
        await topic.subscribers.grant("billing", "i", cast("Any", SimpleNamespace(ended=None, peer_names=())), WHERE)
        topic.subscribers._session_owners["billing"].link = None
        monkeypatch.setattr(Subscriptions, "drop", gate.wrap(Subscriptions.drop))
        dropping = asyncio.create_task(topic.subscribers.drop("billing", dry_run=False))
        await gate.arrived()
        granting = asyncio.create_task(topic.subscribers.grant("billing", "j", LINK, WHERE))
        await asyncio.sleep(0)
        gate.go_on.set()
        await dropping
        holder = await granting
        assert topic.subscribers.held("billing", holder.grant) is holder
        await topic.subscribers.first_position("billing", Boundary("earliest"), None, skip_removed=False)
        await host.close()

    run(work())


def test_taking_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R10: cancelled between the new epoch and the batch that is taken back, it goes on; again, it changes nothing."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        await seal(topic, 0)

        async def must(query_id: str, batch_id: int) -> bool:
            return topic.head.n == 1

        monkeypatch.setattr(topic, "must_be_sealed_again", must)
        monkeypatch.setattr(
            "jobpipe.store.log.host_segments.HostSegments.take_back", lambda self, query_id, batch_id: taken.append(1)
        )
        monkeypatch.setattr(topic.store.batches, "head", lambda: SimpleNamespace(n=0))
        taken: list[int] = []
        await cancelled_inside(host.take_back(topic, "q", 0), TopicLog, "take_over", monkeypatch)
        await until(lambda: topic.head.n == 0)
        assert (topic.epoch, taken) == (2, [1])
        owner = world.handler().owner("orders")
        assert owner is not None
        assert owner.epoch == 2
        await host.take_back(topic, "q", 0)
        assert (topic.epoch, taken) == (2, [1])
        await host.close()

    run(work())


def test_a_status_whose_asker_left_is_not_told_to_the_next(world: World) -> None:
    """R10: the answer to a question of long ago."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        asking = asyncio.create_task(topic.status())
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await seal(topic, 0)
        assert (await topic.status()).head == 1
        await host.close()

    run(work())


def test_a_commit_that_seemed_to_fail_is_heard_of(world: World) -> None:
    """R10: the seal was not answered, and its publisher does not repeat it; the tick finds the batch."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        before = topic.head
        await seal(topic, 0)
        topic.head = before
        await topic.tick(retain=True)
        assert topic.head.n == 1
        await host.close()

    run(work())


# -- epochs that peers name --------------------------------------------------------------------------------------------


class Registered:
    """A registry's epoch, and how often it was asked for."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.asked = 0

    def __call__(self) -> int:
        self.asked += 1
        if self.epoch < 0:
            raise RegistryUnavailable("away")
        return self.epoch


@pytest.mark.parametrize(
    ("registered", "exists"), [(1, False), (2, True), (2**53 - 1, False), (1_000_002, False), (-1, False)]
)
def test_an_epoch_is_believed_if_the_registry_says_so(world: World, registered: int, exists: bool) -> None:
    """R5: a reader that names 2^53-1 ends nobody; nor does a number in the registry that no publisher can have."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        known = Registered(registered)
        higher = ClaimedEpochCheck(topic, known, host._background)
        for _ in range(100):
            assert await higher.exists() is exists
        assert known.asked == 1  # the answer is good for a while
        said = higher.refusal(2**53 - 1, exists=exists).message
        assert "9007199254740991" in said
        assert exists or "neither the catalog nor the registry confirms" in said
        await host.close()

    run(work())


def test_an_epoch_is_believed_if_the_catalog_says_so(world: World) -> None:
    """R5: also while the registry is away."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        other = await asyncio.to_thread(TopicLog.open, world.folder / "spool" / "orders", "orders")
        await asyncio.to_thread(other.take_over, 5, "newcomer")
        assert await ClaimedEpochCheck(topic, Registered(-1), host._background).exists()
        await asyncio.to_thread(other.close)
        await host.close()

    run(work())


def test_a_liar_costs_neither_topic_nor_registry(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R5: HELLO after HELLO, side by side and one after the other; the publisher seals on."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        known = Registered(1)
        monkeypatch.setattr(host._registration, "highest_epoch", lambda name: known())
        for _ in range(20):
            found = await asyncio.gather(*(host.refuse_epoch(topic, 2**53 - 1) for _ in range(20)))
            assert all(isinstance(error, TopicNotFound) for error in found)
        assert known.asked == 1
        assert host.topics == {"orders": topic}
        await seal(topic, 0)
        await host.close()

    run(work())


def test_an_epoch_that_we_are_about_to_take_fences_nobody(world: World) -> None:
    """R5: drawn from the registry, not yet in the log: it is ours."""

    async def work() -> None:
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        topic.epoch_drawn = 2
        assert not await ClaimedEpochCheck(topic, Registered(2), host._background).exists()
        await host.close()

    run(work())
