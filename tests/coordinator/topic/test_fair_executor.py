"""The thread that works for many identities, round robin."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from jobpipe.coordinator.topic.fair_executor import AHEAD, FairExecutor
from jobpipe.net.servers.identity_quota import asking
from tests.coordinator.kit import run, until


class Held:
    """A thread whose first pieces of work wait, so that others queue; what runs says so in order."""

    def __init__(self) -> None:
        self.thread = FairExecutor("tested")
        self.order: list[str] = []
        self.go_on = threading.Event()
        self._first = [asyncio.create_task(self.thread.run(self.go_on.wait)) for _ in range(AHEAD)]

    def ask(self, name: str, whose: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.thread.run(lambda: self.order.append(name), whose=whose))

    async def close(self) -> None:
        self.go_on.set()
        await asyncio.gather(*self._first)
        await self.thread.close(lambda: None)
        assert not self.thread._waiting


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("tested"):
            thread.join(10.0)
            assert not thread.is_alive()


def test_round_robin_over_identities() -> None:
    """One that asks for much does not keep others waiting; of each the first call is the first."""

    async def scenario() -> None:
        held = Held()
        asked = [held.ask(f"a{number}", "a") for number in range(5)]
        await asyncio.sleep(0)
        asked += [held.ask(f"b{number}", "b") for number in range(2)]
        asked.append(held.ask("own", ""))
        await asyncio.sleep(0)
        held.go_on.set()
        await asyncio.gather(*asked)
        assert held.order == ["a0", "b0", "own", "a1", "b1", "a2", "a3", "a4"]
        await held.close()

    run(scenario())


def test_work_counts_to_whom_it_is_done_for() -> None:
    async def scenario() -> None:
        held = Held()

        async def serve(identity: str, name: str) -> None:
            asking.set(identity)
            await held.thread.run(lambda: held.order.append(name))

        asked = [asyncio.create_task(serve(*each)) for each in [("a", "a0"), ("a", "a1"), ("b", "b0")]]
        await asyncio.sleep(0)
        held.go_on.set()
        await asyncio.gather(*asked)
        assert held.order == ["a0", "b0", "a1"]
        await held.close()

    run(scenario())


def test_what_is_cancelled_before_its_turn_does_not_run() -> None:
    """Also when the turn has just come; the others do, and an error is the caller's."""

    async def scenario() -> None:
        held = Held()
        asked = [held.ask(f"a{number}", "a") for number in range(6)]
        await asyncio.sleep(0)
        for number in (0, 2, 5):
            asked[number].cancel()
        await asyncio.sleep(0)

        def fails() -> None:
            raise ValueError("of the work")

        failing = asyncio.create_task(held.thread.run(fails, whose="b"))
        await asyncio.sleep(0)
        held.go_on.set()
        with pytest.raises(ValueError, match="of the work"):
            await failing
        await asyncio.wait(asked)
        assert [task.cancelled() for task in asked] == [True, False, True, False, False, True]
        assert held.order == ["a1", "a3", "a4"]
        await held.close()
        assert held.thread._given == 0

    run(scenario())


def test_a_caller_that_leaves_while_its_work_waits_in_the_thread() -> None:
    async def scenario() -> None:
        held = Held()
        first, second = held.ask("first", "a"), held.ask("second", "a")
        await asyncio.sleep(0)
        held._first[1].cancel()  # it is given, and has not begun: its place goes to the first one
        await until(lambda: len(held.thread._waiting["a"]) == 1)
        first.cancel()
        await asyncio.wait([first])
        held.go_on.set()
        await second
        assert held.order == ["second"]
        held._first.pop()
        await held.close()

    run(scenario())


def test_closing_comes_after_all_that_was_asked_before() -> None:
    async def scenario() -> None:
        held = Held()
        asked = [held.ask(f"{identity}{number}", identity) for identity in "ab" for number in range(3)]
        await asyncio.sleep(0)
        closing = held.thread.close(lambda: held.order.append("closed"))
        held.go_on.set()
        await asyncio.gather(closing, *asked, *held._first)
        assert held.order == ["a0", "b0", "a1", "b1", "a2", "b2", "closed"]
        with pytest.raises(RuntimeError, match="shutdown"):
            await held.thread.run(lambda: None)

    run(scenario())
