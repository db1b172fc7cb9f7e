"""How counts get from the data process to the ledgers: in order, bounded, and never lost without a doubt."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.coordinator.data import count_pipe
from jobpipe.coordinator.data.count_pipe import Beat, Broken, Counted, CountPipe, Doubt, read_line
from jobpipe.coordinator.topic_counts import MAX_WAITING, TopicCounts
from jobpipe.errors import SpoolError
from jobpipe.operations.data_operations import CountedPart, CountRequest, PieceCount
from jobpipe.store.catalog.position import Position
from tests.coordinator.kit import run

AT, END = (Position("0123456789abcdef", 1, n) for n in (3, 5))
COUNT = CountRequest("billing", AT, END, "a" * 32, (PieceCount(2, 1, 7),))
PART = CountedPart("billing", AT, END, "a" * 32, 2)


def test_a_line_is_read_as_it_was_written() -> None:
    lines: list[Any] = []
    pipe = CountPipe()
    pipe._write = lines.append  # type: ignore[method-assign]
    pipe.counted("orders", COUNT)
    pipe.broken("orders", PART)
    pipe.doubt("orders", "billing")
    found = [read_line(json.dumps(line).encode()) for line in [*lines, {"doubt": True}, {"owing": ["orders"]}]]
    assert found == [
        Counted("orders", COUNT),
        Broken("orders", PART),
        Doubt("orders", "billing"),
        Doubt(),
        Beat(frozenset({"orders"})),
    ]


def test_what_was_dropped_is_doubted_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that reads nothing: the data process never waits, and says so with the first line that fits."""
    monkeypatch.setattr(count_pipe, "BUFFER_BYTES", 10_000)

    async def scenario() -> list[Any]:
        reading, writing = os.pipe()
        pipe = CountPipe()
        await pipe.open(os.fdopen(writing, "wb", 0), tuple)
        for _ in range(2_000):  # more than the pipe and the buffer hold
            pipe.counted("orders", COUNT)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 20)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", 0)
        )
        found: list[Any] = []
        try:
            async with asyncio.timeout(20.0):
                while not found or not isinstance(found[-1], Beat):
                    found.append(read_line(await reader.readline()))
        finally:
            pipe.close()
            transport.close()
        return found

    found = run(scenario())
    assert len(found) < 2_000
    assert found[-2:] == [Doubt(), Beat()]
    assert found[:-2] == [Counted("orders", COUNT)] * (len(found) - 2)


class Topic:
    """Stands in for a topic that is served: its log's thread runs when it is let to."""

    def __init__(self, name: str = "orders", *, waiting: bool = True) -> None:
        self.topic = name
        self.calls: list[tuple[Any, ...]] = []
        self.go = asyncio.Event()
        self.error: SpoolError | None = None

        def note(what: str) -> Callable[..., None]:
            return lambda *args: self.calls.append((what, *args))

        ledger = SimpleNamespace(is_waiting=waiting, **{each: note(each) for each in ("advance", "doubt", "broken")})
        ledger.counted = lambda *args: self.calls.append(("counted", args[0]))
        self.store = SimpleNamespace(ledger=ledger)

    async def run(self, work: Callable[[], object]) -> None:
        await self.go.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        work()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_lines_come_in_order_and_time_passes_for_those_who_wait() -> None:
    async def scenario() -> None:
        topic, idle, owed = Topic(), Topic("idle", waiting=False), Topic("owed")
        topics: Any = {each.topic: each for each in (topic, idle, owed)}
        counts = TopicCounts(topics)
        for each in topics.values():
            each.go.set()
        counts.take(Counted("orders", COUNT))
        counts.take(Broken("orders", PART))
        counts.take(Beat(frozenset({"owed"})))
        counts.take(Doubt("orders", "billing"))
        counts.take(Counted("elsewhere", COUNT))
        await settled()
        assert topic.calls == [
            ("counted", "billing"),
            ("broken", "billing", AT, END, "a" * 32, 2),
            ("advance", 1.0),
            ("doubt", ["billing"]),
        ]
        assert (idle.calls, owed.calls) == ([], []), "nothing waits, or a reader owes a count"
        counts.take(Doubt())
        await settled()
        assert [each.calls[-1] for each in (topic, idle, owed)] == [("doubt", None)] * 3
        await counts.close()
        counts.take(Doubt())
        await settled()
        assert len(idle.calls) == 1

    run(scenario())


def test_a_topic_whose_thread_is_busy_holds_few_lines() -> None:
    async def scenario() -> None:
        topic = Topic()
        counts = TopicCounts({"orders": topic})  # type: ignore[dict-item]
        for _ in range(3 * MAX_WAITING):
            counts.take(Counted("orders", COUNT))
        await settled()
        topic.go.set()
        await settled()
        assert len(topic.calls) <= 2 * MAX_WAITING
        assert ("doubt", None) in topic.calls
        await counts.close()

    run(scenario())


def test_a_line_that_does_not_get_there_is_doubted() -> None:
    """The disk failed: what was counted is not known, and nothing that is missing counts as lost."""

    async def scenario() -> None:
        topic = Topic()
        counts = TopicCounts({"orders": topic})  # type: ignore[dict-item]
        topic.error = SpoolError("the disk fails")
        topic.go.set()
        counts.take(Counted("orders", COUNT))
        await settled()
        assert not topic.calls
        counts.take(Beat())
        await settled()
        assert topic.calls == [("doubt", None), ("advance", 1.0)]
        await counts.close()

    run(scenario())
