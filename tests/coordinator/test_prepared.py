"""Batches that are prepared in one process, written in others and sealed in a third: write ids, room, openers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpipe.coordinator.coordinator import Coordinator
from jobpipe.coordinator.handlers.admin_handlers import AdminHandlers
from jobpipe.coordinator.topic import served_topic as topic_module
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.discovery.peer_authentication import PeerAuthentication
from jobpipe.errors import Fenced, FlowNotFound, NotAuthorized, SpoolError, TopicOwned
from jobpipe.net.servers.write_tokens import write_ticket
from jobpipe.operations.flow_operations import AdmitPartRequest, ClaimRequest, SealPartsRequest
from jobpipe.operations.messages.message_fields import R, RequestFor
from jobpipe.operations.publisher_operations import (
    BeginReply,
    BeginRequest,
    CloseRequest,
    OpenReply,
    OpenRequest,
    PrepareReply,
    PrepareRequest,
    RoomRequest,
    Schema,
    SealReply,
    SealRequest,
)
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.wire.wire_messages import Hello, Request
from tests.coordinator.kit import World, run
from tests.store.build import SCHEMA, rows, written

PLAIN = {"ssl__enabled": "false"}
SMALL = {"spool__max_bytes": "1KiB", "segment__max_bytes": "1KiB"} | {
    "retention__ack_grace": "0s",
    "retention__time": "0s",
}
JOB = "ab" * 32
A, B = "a" * 32, "b" * 32


class Asking:
    """Processes of one publisher, asking a coordinator as its service is asked, without a link."""

    def __init__(self, world: World, **changes: str) -> None:
        self.world = world
        self.changes: dict[str, Any] = {**PLAIN, **changes}
        self.host: Coordinator = world.host(**self.changes)
        self._service = AdminHandlers(self.host, PeerAuthentication(world.config(**self.changes)), JOB)

    async def ask(self, request: RequestFor[R], *, job: str = JOB, role: str = "publisher") -> R:
        """Return the reply, having travelled; with the secret of the job."""
        reply, blob = await self.ask_raw(request.op, request.to_json(), request.blob, job=job, role=role)
        return cast("R", request.reply.from_json(reply, blob))

    async def ask_raw(
        self, op: str, args: dict[str, Any], blob: bytes = b"", *, job: str = JOB, role: str = "publisher"
    ) -> tuple[dict[str, Any], bytes]:
        """Return the reply as it travels."""
        hello = Hello(topic="orders", role=role, instance="i")
        link = cast("Any", SimpleNamespace(hello=hello, peer_names=(), peer="", ended=None))
        return await self._service.handle(link, Request(1, op, {**args, **({"job": job} if job else {})}, blob))

    def order(self, opener: str = A, **given: Any) -> OpenRequest:
        """Return what opens the topic."""
        return replace(self.world.order(**self.changes), opener=opener, **given)

    async def open(self, opener: str = A, **given: Any) -> OpenReply:
        """Open the topic."""
        return await self.ask(self.order(opener, **given))

    async def prepare(self, writer: str) -> PrepareReply:
        """Begin a batch."""
        return await self.ask(PrepareRequest(writer))

    async def begin_written(self, query: str, batch_id: int, run_id: str = "r1") -> BeginReply:
        """Ask of a batch that was written."""
        return await self.ask(BeginRequest(query, batch_id, run_id, written=True))

    async def write(self, write_id: str, number: int = 0, count: int = 1) -> tuple[Any, ...]:
        """Write a file as a task does; return its segments."""
        parts = [(0, rows(0, 100 * number, count))]
        store = self.topic.store
        return tuple((await self.topic.run(lambda: written(store, parts, inline=False, write_id=write_id)))[1])

    async def seal(
        self, query: str, batch_id: int, write_id: str, segments: tuple[Any, ...], run_id: str = "r1"
    ) -> SealReply:
        """Seal a batch."""
        schema = Schema(SCHEMA.serialize().to_pybytes(), None)
        return await self.ask(
            SealRequest(
                query_id=query,
                batch_id=batch_id,
                run_id=run_id,
                write_id=write_id,
                schema=schema,
                partitions=2,
                partitioner="hash",
                segments=segments,
            )
        )

    async def fill(self) -> str:
        """Seal batches of query q until the spool is full; return how the reason begins."""
        while (await self.prepare(A)).full is None:
            number, write_id = self.topic.head.n, admitted(await self.prepare(A))
            await self.seal("q", number, write_id, await self.write(write_id, number, 8))
        return "the spool is full (1024 bytes); subscription 'billing' is slowest"

    @property
    def topic(self) -> ServedTopic:
        """The topic."""
        return self.host.topics["orders"]

    async def swept(self) -> int:
        """Return how many files a sweep removes."""
        topic = self.topic
        return await topic.run(topic.store.cleaner.sweep, topic.being_written)


def admitted(reply: PrepareReply) -> str:
    """Return the write id of a batch that was prepared."""
    return reply.admitted.write_id


def test_two_writers_do_not_give_up_each_others_files(world: World) -> None:
    """Queries of one application publish one topic: each has a batch in progress, which no sweep touches."""

    async def work() -> None:
        asking = Asking(world)
        await asking.open()
        ids = {writer: admitted(await asking.prepare(writer)) for writer in (A, B)}
        files = {writer: await asking.write(ids[writer], number) for number, writer in enumerate(ids)}
        assert await asking.swept() == 0
        for number, writer in enumerate(ids):
            assert (await asking.begin_written(writer, 0)).last is None
            reply = await asking.seal(writer, 0, ids[writer], files[writer])
            assert reply.position.n == number + 1
        assert await asking.swept() == 0
        await asking.host.close()

    run(work())


def test_a_writers_earlier_batch_is_given_up(world: World) -> None:
    """Spark has planned the batch again: what it had planned before may be swept, and is sealed no more."""

    async def work() -> None:
        asking = Asking(world)
        await asking.open()
        before, other = admitted(await asking.prepare(A)), admitted(await asking.prepare(B))
        of_before, of_other = await asking.write(before), await asking.write(other, 1)
        now = admitted(await asking.prepare(A))
        of_now = await asking.write(now, 2)
        assert len({before, other, now}) == 3
        # V11: queries with equal options are one writer here, as Spark does not say whose batch it plans.
        with pytest.raises(SpoolError, match=r"another batch has begun since\. .* give each a queryName"):
            await asking.seal("q", 0, before, of_before)
        assert await asking.swept() == 1
        assert (await asking.seal("q", 0, now, of_now)).position.n == 1
        assert (await asking.seal("other", 0, other, of_other)).position.n == 2
        await asking.host.close()

    run(work())


def test_of_too_many_writers_the_oldest_is_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the one that has prepared nothing for longest, not the one that came first."""
    monkeypatch.setattr(topic_module, "MAX_WRITERS", 4)  # one of them is the publisher itself

    async def work() -> None:
        asking = Asking(world)
        await asking.open()
        first = {writer: admitted(await asking.prepare(writer)) for writer in (A, B, "c")}
        again = admitted(await asking.prepare(A))
        later = [admitted(await asking.prepare(writer)) for writer in ("d", "e")]
        assert asking.topic.writing >= {again, first["c"], *later}
        assert first["b" * 32] not in asking.topic.writing
        assert len(asking.topic.writing) == 4
        segments = await asking.write(first[B])
        with pytest.raises(SpoolError, match="another batch has begun since"):
            await asking.seal("q", 0, first[B], segments)
        await asking.host.close()

    run(work())


def test_a_seal_leaves_the_batches_of_others(world: World) -> None:
    """It admits a next batch, of the publisher itself, which is none of the writers."""

    async def work() -> None:
        asking = Asking(world)
        await asking.open()
        ids = [admitted(await asking.prepare(writer)) for writer in (A, B)]
        for number in range(3):
            assert (await asking.seal("plain", number, f"{number:016x}", ())).admitted is not None
        assert asking.topic.writing >= set(ids)
        assert (await asking.seal("q", 0, ids[0], await asking.write(ids[0]))).position.n == 1
        await asking.host.close()

    run(work())


def test_room_is_told_to_who_shows_the_ticket(world: World) -> None:
    """S8: tasks do not know the job's secret; with a ticket of another batch, topic or job nothing is told."""

    async def work() -> None:
        asking = Asking(world)
        await asking.open()
        mine, other = admitted(await asking.prepare(A)), admitted(await asking.prepare(B))
        wrong = [
            write_ticket(JOB, "orders", other),
            write_ticket(JOB, "another", mine),
            write_ticket("another job", "orders", mine),
            "0" * 64,
        ]
        for ticket in wrong:
            for job in ("", JOB):
                with pytest.raises(NotAuthorized, match="of the job that publishes"):
                    await asking.ask(RoomRequest(mine, ticket), job=job)
        assert (await asking.ask(RoomRequest(mine, write_ticket(JOB, "orders", mine)), job="")).full is None
        with pytest.raises(NotAuthorized, match="for the job that started it"):
            await asking.ask(PrepareRequest(A), job="")
        await asking.host.close()

    run(work())


def test_a_task_waits_until_there_is_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """``prepare`` says at once why there is none, and gives a write id; who waits hears of what makes room."""

    async def work() -> None:
        asking, waits = Asking(world, **SMALL), asyncio.Event()
        await asking.open(required=("billing",))
        full = await asking.fill()
        prepared = await asking.prepare(A)
        assert prepared.full is not None
        assert prepared.full.startswith(full)
        mine = admitted(prepared)
        asked = RoomRequest(mine, write_ticket(JOB, "orders", mine))
        assert (await asking.ask(asked, job="")).full == prepared.full
        wake_up, subscribers = asking.topic.acked, asking.topic.subscribers
        wait = wake_up.wait

        async def noted(timeout: float) -> bool:
            waits.set()
            return await wait(timeout)

        monkeypatch.setattr(wake_up, "wait", noted)
        waiting = asyncio.create_task(asking.ask(replace(asked, wait=15.0), job=""))
        await waits.wait()
        await subscribers.require("billing", required=False, dry_run=False)
        await subscribers.drop("billing", dry_run=False)
        assert (await waiting).full is not None  # as it was: it asks again
        assert (await asking.ask(asked, job="")).full is None
        assert (await asking.prepare(A)).full is None
        await asking.host.close()

    run(work())


def test_a_written_batch_needs_neither_room_nor_a_write_id(world: World) -> None:
    """What matters is whether it is sealed already, and which query is the newest."""

    async def work() -> None:
        asking = Asking(world, **SMALL)
        await asking.open(required=("billing",))
        await asking.fill()
        number = asking.topic.head.n - 1
        assert (await asking.ask(BeginRequest("q", number + 1, "r1"))).full is not None
        ids = set(asking.topic.writing)
        reply = await asking.begin_written("q", number + 1)
        assert (reply.full, reply.admitted) == (None, None)
        assert reply.last is not None
        assert (reply.last.batch_id, reply.last.run_id, reply.last.position.n) == (number, "r1", number + 1)
        stranger = await asking.begin_written("q2", 0)
        assert (stranger.full, stranger.admitted, stranger.last) == (None, None, None)
        assert stranger.newest is not None
        assert stranger.newest.query_id == "q"
        assert set(asking.topic.writing) == ids
        await asking.host.close()

    run(work())


def test_a_prepared_batch_that_another_run_has_sealed_is_a_replay(world: World) -> None:
    """Its files are of no use any more: the next batch of the writer gives them up."""

    async def work() -> None:
        asking = Asking(world)
        await asking.open()
        first = admitted(await asking.prepare(A))
        sealed = await asking.seal("q", 0, first, await asking.write(first))
        again = admitted(await asking.prepare(A))
        segments = await asking.write(again)
        last = (await asking.begin_written("q", 0, "r2")).last
        assert last is not None
        assert (last.batch_id, last.run_id, last.position) == (0, "r1", sealed.position)
        assert (await asking.seal("q", 0, first, (), "r1")).position == sealed.position  # an answer that was lost
        assert await asking.swept() == 0
        await asking.prepare(A)
        assert await asking.swept() == 1
        assert len(segments) == 1
        assert asking.topic.head.n == 1
        await asking.host.close()

    run(work())


def test_the_processes_of_one_publisher_join(world: World) -> None:
    """Equal settings are the same publisher: nothing is opened again, whatever each of them writes just now."""

    async def work() -> None:
        asking = Asking(world)
        opened = await asking.open()
        topic = asking.topic
        write_id = admitted(await asking.prepare(A))
        joined = await asking.open(writing="0123456789abcdef")
        assert (joined.epoch, joined.log, joined.token) == (opened.epoch, opened.log, opened.token)
        assert asking.topic is topic
        assert (await asking.seal("q", 0, write_id, await asking.write(write_id))).position.n == 1
        await asking.host.close()

    run(work())


@pytest.mark.parametrize(
    "given", [{"parallelism": 5}, {"required": ("billing",)}, {"name": "other"}, {"min_subscribers": 1}]
)
def test_other_settings_open_the_topic_again(world: World, given: dict[str, Any]) -> None:
    """In a higher epoch of the same log; the batch that is opened for is kept."""

    async def work() -> None:
        asking = Asking(world)
        opened = await asking.open()
        write_id = admitted(await asking.prepare(A))
        segments = await asking.write(write_id)
        again = await asking.open(writing=write_id, **given)
        assert again.epoch == opened.epoch + 1
        assert again.log == opened.log
        assert all(getattr(asking.topic.asked, name) == value for name, value in given.items())
        assert (await asking.seal("q", 0, write_id, segments)).position.n == 1
        await asking.host.close()

    run(work())


def test_another_publisher_is_refused(world: World) -> None:
    """A sink of the same job, with settings that are the same or others; the one that has the topic goes on."""

    async def work() -> None:
        asking = Asking(world)
        opened = await asking.open()
        for opener, given in ((B, {}), (B, {"parallelism": 5}), ("", {})):
            with pytest.raises(TopicOwned, match="already has a publisher in this job: 'job'"):
                await asking.open(opener, **given)
        assert (await asking.open()).epoch == opened.epoch
        await asking.ask(CloseRequest(final=False))
        assert (await asking.open(B)).epoch == opened.epoch + 1
        await asking.host.close()

    run(work())


def test_nameless_publishers_do_not_join(world: World) -> None:
    """Only a name says that two are one."""

    async def work() -> None:
        asking = Asking(world)
        await asking.open("")
        with pytest.raises(TopicOwned):
            await asking.open("")
        await asking.host.close()

    run(work())


@pytest.mark.parametrize("final", [False, True])
def test_a_closed_topic_prepares_nothing(world: World, final: bool) -> None:
    """Neither is room told; opened again, it goes on."""

    async def work() -> None:
        asking = Asking(world)
        opened = await asking.open(required=("billing",))
        write_id = admitted(await asking.prepare(A))
        await asking.seal("q", 0, write_id, await asking.write(write_id))
        room = RoomRequest(write_id, write_ticket(JOB, "orders", write_id))
        await asking.ask(room, job="")
        await asking.begin_written("q", 1)
        await asking.ask(CloseRequest(final))
        with pytest.raises(Fenced, match="closed or replaced"):
            await asking.prepare(A)
        with pytest.raises(Fenced, match="closed or replaced"):
            await asking.ask(room, job="")
        with pytest.raises(Fenced, match="closed or replaced"):
            await asking.begin_written("q", 1)
        assert (await asking.open(required=("billing",))).epoch == opened.epoch + 1
        assert (await asking.prepare(A)).full is None
        await asking.host.close()

    run(work())


def test_a_replaced_publisher_prepares_nothing(world: World) -> None:
    """Another host took the log over; the coordinator has not heard of it yet."""

    async def work() -> None:
        asking = Asking(world)
        await asking.open()
        await asking.prepare(A)
        newcomer = TopicLog.open(world.folder / "spool" / "orders", "orders", fsync=False)
        newcomer.take_over(asking.topic.epoch + 1, "newcomer")
        newcomer.close()
        with pytest.raises(Fenced, match="belongs to epoch 2, ours is 1"):
            await asking.prepare(A)
        await asking.host.close()

    run(work())


@pytest.mark.parametrize(
    "request_of_a_task",
    [
        RoomRequest("ab" * 8, "00" * 32),
        ClaimRequest("alerts", "source", "00" * 8, (0,), token="cd" * 16),
        AdmitPartRequest("alerts", "cd" * 16, 0, 1),
        SealPartsRequest("alerts", "source", "00" * 8, (), token="cd" * 16),
    ],
    ids=lambda asked: asked.op,
)
def test_who_shows_no_secret_keeps_no_coordinator(world: World, request_of_a_task: RequestFor[Any]) -> None:
    """Else each peer that may publish keeps one that was closed, as long as its job lives."""

    async def work() -> None:
        asking = Asking(world)
        await asking.open()
        asking.host._touched = 0.0
        with pytest.raises((NotAuthorized, FlowNotFound)):
            await asking.ask(request_of_a_task, job="")
        assert asking.host._touched == 0.0
        await asking.prepare(A)
        assert asking.host._touched > 0.0
        await asking.host.close()

    run(work())
