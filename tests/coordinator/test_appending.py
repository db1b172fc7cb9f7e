"""Who publishes beside a topic's publisher, through its coordinator: what it may do, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jobpipe.errors import (
    AlreadyRedriven,
    ConfigError,
    NotAuthorized,
    RemoteProtocolError,
    SchemaMismatch,
    SpoolError,
    SpoolFull,
    TopicNotFound,
)
from jobpipe.operations import publisher_operations
from jobpipe.operations.coordinator_operations import CONTROL
from jobpipe.operations.messages.message_fields import RequestFor
from jobpipe.operations.publisher_operations import (
    NO_ROOM,
    BeginReply,
    BeginRequest,
    CloseRequest,
    DeclareRequest,
    OpenRequest,
    RedrivenRequest,
    RedrivenRow,
    Schema,
    SealReply,
    SealRequest,
)
from jobpipe.store.catalog import batches
from jobpipe.store.catalog.batches import APPENDERS
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.spool.segment_index import INLINE_MAX
from jobpipe.store.spool.spool_files import new_write_id
from tests.coordinator.kit import World, run
from tests.coordinator.test_prepared import JOB, SMALL, A, Asking
from tests.docs.troubleshooting import on_page
from tests.store.build import SCHEMA, rows, written

QUERY = f"{APPENDERS}x"


def marked(*rows: tuple[int, int]) -> tuple[RedrivenRow, ...]:
    """Return rows of partition 0 by offset and number."""
    return tuple(RedrivenRow(offset, 1000 + offset, 0, number) for offset, number in rows)


class Beside(Asking):
    """A publisher, and an appender next to it."""

    async def publish(self, number: int) -> SealReply:
        """Seal a batch of the topic's publisher."""
        begun = await self.ask(BeginRequest("q", number, "r1"))
        assert begun.admitted is not None
        return await self.seal("q", number, begun.admitted.write_id, await self.small(begun.admitted.write_id, number))

    async def small(self, write_id: str, number: int, *, inline: bool = True, count: int = 1) -> tuple[Any, ...]:
        """Write some rows."""
        store, parts = self.topic.store, [(0, rows(0, 100 * number, count))]
        return tuple((await self.topic.run(lambda: written(store, parts, inline=inline, write_id=write_id)))[1])

    async def beside(self, request: RequestFor[Any]) -> Any:
        """Ask without the job's secret."""
        return await self.ask(request, job="", role="appender")

    async def begin(self, number: int, query: str = QUERY) -> BeginReply:
        """Begin a batch beside the publisher."""
        begun: BeginReply = await self.beside(BeginRequest(query, number))
        return begun

    def sealing(self, number: int, begun: BeginReply, segments: tuple[Any, ...], *marks: tuple[int, int]) -> Any:
        """Return the request that seals a batch."""
        assert begun.appending is not None
        return SealRequest(
            query_id=QUERY,
            batch_id=number,
            run_id="",
            write_id=new_write_id(),
            schema=Schema(SCHEMA.serialize().to_pybytes(), None),
            partitions=begun.appending.partitions,
            partitioner=begun.appending.partitioner,
            segments=segments,
            redriven=marked(*marks),
        )

    async def append(self, number: int, *marks: tuple[int, int]) -> SealReply:
        """Publish as many rows as are marked, or one."""
        begun = await self.begin(number)
        segments = await self.small(new_write_id(), number, count=max(1, len(marks)))
        reply: SealReply = await self.beside(self.sealing(number, begun, segments, *marks))
        return reply

    def queries(self) -> list[str]:
        """Return who sealed the batches, in their order."""
        found = self.topic.store._db.all("SELECT query_id FROM batches ORDER BY n")
        return [row["query_id"] for row in found]


def test_batches_of_both_in_turn(world: World) -> None:
    async def scenario() -> None:
        asking = Beside(world)
        await asking.open()
        for number in range(3):
            assert (await asking.publish(number)).position.n == 2 * number + 1
            reply = await asking.append(number, (number, 0))
            assert (reply.position.n, reply.admitted) == (2 * number + 2, None)
        assert asking.queries() == ["q", QUERY] * 3
        assert asking.topic.store.batches.shape(6).first_n == 0  # type: ignore[union-attr]
        found = await asking.beside(RedrivenRequest(marked((0, 0), (5, 0), (1, 0))))
        assert found.rows == marked((0, 0), (1, 0))

    run(scenario())


def test_the_publishers_batch_in_progress_is_left_alone(world: World) -> None:
    """Its files are not swept, and it is sealed as it was admitted, by the answer of its last seal too."""

    async def scenario() -> None:
        asking = Beside(world)
        await asking.open()
        sealed = await asking.publish(0)
        assert sealed.admitted is not None
        write_id = sealed.admitted.write_id
        segments = await asking.write(write_id, 1)
        await asking.append(0)
        assert await asking.swept() == 0
        assert (await asking.seal("q", 1, write_id, segments)).position.n == 3

    run(scenario())


def test_it_is_told_what_it_needs_and_no_more(world: World) -> None:
    async def scenario() -> None:
        asking = Beside(world)
        await asking.open()
        await asking.publish(0)
        begun = await asking.begin(0)
        assert begun.appending is not None
        assert (begun.appending.partitions, begun.appending.partitioner) == (2, "hash")
        assert (begun.admitted, begun.newest) == (None, None)

    run(scenario())


@pytest.mark.parametrize("name", sorted(set(CONTROL) - {"begin", "seal", "redriven", "schema"}))
def test_it_may_do_nothing_else(world: World, name: str) -> None:
    """Not even what a publisher may do, with the publisher's secret."""

    async def scenario() -> None:
        asking = Beside(world)
        await asking.open()
        known: dict[str, RequestFor[Any]] = {
            "close": CloseRequest(final=False),
            "open": asking.order(),
            "declare": DeclareRequest(None, SCHEMA.serialize().to_pybytes()),
        }
        request = known.get(name)
        if request is not None and not isinstance(request, OpenRequest):
            await asking.ask(request)  # the publisher may
            await asking.open()
        with pytest.raises(NotAuthorized, match="not for the role 'appender'"):
            await asking.ask_raw(name, {} if request is None else request.to_json(), role="appender", job=JOB)

    run(scenario())


def test_it_cannot_take_a_publishers_number(world: World) -> None:
    """Under a publisher's id its next batch would count as sealed, and never come."""

    async def scenario() -> None:
        asking = Beside(world)
        await asking.open()
        await asking.publish(0)
        begun = await asking.begin(0)
        request = asking.sealing(0, begun, await asking.small(new_write_id(), 1))
        for query in ("q", "", "once:q", "once:append-x", "append:x"):
            with pytest.raises(NotAuthorized, match="query id"):
                await asking.begin(1, query)
            with pytest.raises(NotAuthorized, match="query id"):
                await asking.beside(replace(request, query_id=query))
        long = APPENDERS + "x" * 128
        with pytest.raises(NotAuthorized, match="at most 128 characters"):
            await asking.begin(1, long)
        assert (await asking.beside(request)).position.n == 2
        assert (await asking.publish(1)).position.n == 3
        for taken in (BeginRequest(QUERY, 9), replace(request, batch_id=9)):  # nor a publisher an appender's
            with pytest.raises(NotAuthorized, match="not for the role 'publisher'"):
                await asking.ask(taken)

    run(scenario())


def test_a_row_is_marked_once(world: World) -> None:
    async def scenario() -> None:
        asking = Beside(world)
        await asking.open()
        await asking.publish(0)
        await asking.append(0, (4, 0), (4, 3))
        with pytest.raises(AlreadyRedriven):
            await asking.append(1, (4, 3))
        assert (await asking.append(1, (4, 4))).position.n == 3
        begun = await asking.begin(1)
        assert begun.last is not None  # as it learns whose answer was lost
        assert (begun.last.batch_id, begun.last.position.n, begun.admitted) == (1, 3, None)
        begun = await asking.begin(2)
        segments = await asking.small(new_write_id(), 2, count=2)
        for given, said in (((5, 0),), 1), (((5, 0), (5, 0)), 1), (((5, 0), (5, 1), (5, 2)), 3):
            with pytest.raises(RemoteProtocolError, match=f"a batch of 2 rows marks {said}"):
                await asking.beside(asking.sealing(2, begun, segments, *given))
        assert (await asking.beside(asking.sealing(2, begun, segments, (5, 0), (5, 1)))).position.n == 4

    run(scenario())


def test_a_schema_that_changed_meanwhile(world: World) -> None:
    async def scenario() -> None:
        asking = Beside(world)
        await asking.open()
        await asking.publish(0)
        begun = await asking.begin(0)
        segments = await asking.small(new_write_id(), 1)
        more = SCHEMA.append(SCHEMA.field(0).with_name("more"))
        await asking.ask(DeclareRequest(None, more.serialize().to_pybytes()))
        with pytest.raises(SchemaMismatch):
            await asking.beside(asking.sealing(0, begun, segments))
        await asking.ask(DeclareRequest(None, SCHEMA.serialize().to_pybytes()))
        assert (await asking.beside(asking.sealing(0, begun, segments))).position.n == 2

    run(scenario())


def test_beside_acks_all_it_is_refused(world: World) -> None:
    """A recovery point says that what is before a batch was committed: its publisher waits for that, others do not."""

    async def scenario() -> None:
        asking = Beside(world)
        await asking.open(required=("billing",))
        await asking.publish(0)
        begun = await asking.begin(0)
        asking.topic._keep_recovery_point = lambda _: None
        with pytest.raises(ConfigError, match="acks=all"):
            await asking.begin(0)
        with pytest.raises(ConfigError, match="acks=all"):
            await asking.beside(asking.sealing(0, begun, await asking.small(new_write_id(), 0)))

    run(scenario())


def test_a_topic_that_is_served_without_its_publisher(world: World) -> None:
    async def scenario() -> None:
        asking = Beside(world)
        await asking.open()
        await asking.publish(0)
        await asking.ask(CloseRequest(final=True))
        assert (await asking.append(0, (1, 0))).position.n == 3  # after the end mark, and before another one
        assert (asking.topic.head.n, asking.topic.ended) == (4, True)  # else readers would wait for more
        await asking.ask(asking.order(serve=True))
        assert (await asking.append(1, (2, 0))).position.n == 5
        assert (asking.topic.head.n, asking.topic.ended) == (6, True)
        await asking.ask(asking.order())
        assert (await asking.append(2, (3, 0))).position.n == 7
        assert not asking.topic.ended  # its publisher will say when
        assert (await asking.publish(1)).position.n == 8

    run(scenario())


def test_a_full_spool_without_its_publisher(world: World) -> None:
    """Nothing is removed then, whatever the configuration of who serves it says."""

    async def scenario() -> None:
        asking = Beside(world, **SMALL, spool__on_full="drop_oldest")
        await asking.open()
        await asking.publish(0)
        assert (await asking.begin(0)).full is None
        while asking.topic.store.used_bytes() < asking.topic.config.spool_max_bytes:
            await asking.publish(asking.topic.head.n)
        head = asking.topic.head
        await asking.ask(CloseRequest(final=False))
        await asking.ask(asking.order(serve=True))
        begun = await asking.begin(0)
        assert "is full" in (begun.full or "")
        assert begun.admitted is None
        assert (asking.topic.head, asking.topic.store.batches.tail_n()) == (head, 0)

    run(scenario())


def test_a_topic_that_is_not_served_here(world: World) -> None:
    async def scenario() -> None:
        asking = Beside(world)
        with pytest.raises(TopicNotFound):
            await asking.begin(0)
        await asking.open()
        await asking.begin(0)

    run(scenario())


def test_it_writes_no_file(world: World) -> None:
    """Files would have to be counted, kept from a sweep, and removed when it goes; what it sends may become one."""

    async def scenario() -> None:
        asking = Beside(world)
        await asking.open()
        await asking.publish(0)
        begun = await asking.begin(0)
        for wrong in (
            await asking.small(new_write_id(), 1, inline=False),
            tuple(replace(each, host="h", file="x-0.seg", data=None) for each in await asking.small(new_write_id(), 1)),
        ):
            with pytest.raises(RemoteProtocolError, match="travel with the request"):
                await asking.beside(asking.sealing(0, begun, wrong))
        large = await asking.small(new_write_id(), 1, count=2000) + await asking.small(new_write_id(), 50, count=2000)
        assert sum(segment.length for segment in large) > INLINE_MAX
        assert (await asking.beside(asking.sealing(0, begun, large))).position.n == 2
        assert await asking.swept() == 1  # what was refused above; not what was sealed

    run(scenario())


@pytest.mark.parametrize(
    ("cap", "value", "said"),
    [("MAX_APPENDED", 100, "at most 100 bytes"), ("MAX_SEGMENTS_APPENDED", 0, "in 0 segments")],
)
def test_how_large_a_batch_may_be(
    world: World, monkeypatch: pytest.MonkeyPatch, cap: str, value: int, said: str
) -> None:
    async def scenario() -> None:
        asking = Beside(world)
        await asking.open()
        await asking.publish(0)
        begun = await asking.begin(0)
        request = asking.sealing(0, begun, await asking.small(new_write_id(), 1))
        with pytest.raises(RemoteProtocolError, match="of 0 rows"):  # which could fill the catalog
            await asking.beside(replace(request, segments=()))
        with monkeypatch.context() as patch:
            patch.setattr(publisher_operations, cap, value)
            with pytest.raises(RemoteProtocolError, match=said):
                await asking.beside(request)
        assert (await asking.beside(request)).position.n == 2

    run(scenario())


def test_it_takes_no_write_id_of_others(world: World) -> None:
    """Under the publisher's, its next seal would fail; and one of its own may come twice."""

    async def scenario() -> None:
        asking = Beside(world)
        await asking.open()
        sealed = await asking.publish(0)
        assert sealed.admitted is not None
        write_id = sealed.admitted.write_id
        segments = await asking.write(write_id, 1)
        begun = await asking.begin(0)
        for number in (0, 1):
            request = asking.sealing(number, begun, await asking.small(new_write_id(), 2))
            assert (await asking.beside(replace(request, write_id=write_id))).position.n == 2 + number
        assert (await asking.beside(replace(request, write_id=write_id))).position.n == 3  # its answer was lost
        for _ in range(1001):  # more than a publisher may have writers
            await asking.begin(9)
        assert await asking.swept() == 0
        assert (await asking.seal("q", 1, write_id, segments)).position.n == 4

    run(scenario())


def test_room_is_asked_for_as_it_is_sealed(world: World) -> None:
    """Many may have begun while there was some. What an appender waits for is not told as the publisher's wait."""

    async def scenario() -> None:
        asking = Beside(world, **SMALL)
        await asking.open(min_subscribers=1)
        await asking.publish(0)
        begun = await asking.begin(0)
        number = 0
        while asking.topic.store.used_bytes() < asking.topic.config.spool_max_bytes:
            await asking.beside(asking.sealing(number, begun, await asking.small(new_write_id(), number)))
            number += 1
        request = asking.sealing(number, begun, await asking.small(new_write_id(), number))
        with pytest.raises(SpoolFull, match="ask for room first") as refused:
            await asking.beside(request)
        assert (refused.value.fields["reason"], number > 0) == (NO_ROOM, True)
        assert "is full" in ((await asking.begin(number)).full or "")
        assert asking.topic.waiting is None
        await asking.topic.run(asking.topic.store.cleaner.drop_oldest, 1000)
        assert (await asking.append(number)).position.n == asking.topic.head.n

    run(scenario())


def test_its_ids_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(batches, "APPENDERS_KEPT", 2)
        asking = Beside(world)
        await asking.open()
        await asking.publish(0)
        begun = await asking.begin(0)
        for number, name in enumerate("abba"):
            request = asking.sealing(number, begun, await asking.small(new_write_id(), number))
            await asking.beside(replace(request, query_id=APPENDERS + name))
        with pytest.raises(SpoolError) as refused:
            await asking.beside(replace(request, query_id=APPENDERS + "c"))
        on_page(refused.value, "SpoolError: topic '…': … redrives and replays published to it in the last days")
        assert (await asking.publish(1)).position.n == 6

    run(scenario())


def test_a_killed_coordinator_has_both_or_neither(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without marks, or marks without rows, are in no catalog."""

    async def scenario() -> None:
        asking = Beside(world)
        await asking.open(A)
        await asking.publish(0)
        await asking.append(0, (1, 0))
        with monkeypatch.context() as patch:
            patch.setattr("jobpipe.store.catalog.redrive_marks.RedriveMarks.mark", _fails)
            with pytest.raises(SpoolError, match="power"):
                await asking.append(1, (2, 0))
        store: TopicLog = asking.topic.store
        assert (store.batches.next_n(), store.redriven.marked(row.source for row in marked((1, 0), (2, 0)))) == (
            2,
            (marked((1, 0))[0].source,),
        )
        assert (await asking.append(1, (2, 0))).position.n == 3

    run(scenario())


def _fails(*_: object) -> None:
    raise SpoolError("the power went")
