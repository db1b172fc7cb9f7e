"""The event loop for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from jobpipe.errors import DataLoss, ForkedProcess, LinkClosed, LocalProtocolError, WaitTimeout
from jobpipe.net.links.event_loop_thread import EventLoopThread


@pytest.fixture
def loop_thread() -> Iterator[EventLoopThread]:
    """One of its own."""
    loop_thread = EventLoopThread()
    yield loop_thread
    loop_thread.close()
    assert not loop_thread.alive


async def value() -> int:
    return 7


def test_a_result_and_an_error_come_back(loop_thread: EventLoopThread) -> None:
    """As they are."""

    async def fail() -> None:
        raise DataLoss("gone", n=1)

    async def late() -> None:
        raise TimeoutError("its own")

    assert loop_thread.run(value, 5, doing="wait") == 7
    assert loop_thread.run(value, None, doing="wait") == 7
    with pytest.raises(DataLoss) as caught:
        loop_thread.run(fail, 5, doing="wait")
    assert caught.value.fields == {"n": 1}
    with pytest.raises(TimeoutError, match="its own"):
        loop_thread.run(late, 5, doing="wait")


def test_a_coroutine_that_cannot_be_made(loop_thread: EventLoopThread) -> None:
    """Its maker's error is the caller's."""

    def broken() -> Coroutine[Any, Any, int]:
        raise DataLoss("none")

    with pytest.raises(DataLoss):
        loop_thread.run(broken, 5, doing="wait")
    assert loop_thread.run(value, 5, doing="wait") == 7


def test_what_takes_too_long_is_cancelled(loop_thread: EventLoopThread) -> None:
    """The caller gets an error of ours, and nothing runs on."""
    cancelled = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(WaitTimeout, match=r"^asking one: not done within 0\.05 s$") as caught:
        loop_thread.run(wait, 0.05, doing="asking one")
    assert caught.value.fields == {"seconds": 0.05}
    assert cancelled.wait(5)
    assert loop_thread.run(value, 5, doing="wait") == 7


def test_its_own_thread_is_refused(loop_thread: EventLoopThread) -> None:
    """It would wait for itself."""

    async def nested() -> None:
        loop_thread.run(value, 1, doing="wait")

    with pytest.raises(LocalProtocolError):
        loop_thread.run(nested, 5, doing="wait")


def test_one_for_each_process() -> None:
    """The same until it is closed; then a new one."""
    first = EventLoopThread.get()
    assert EventLoopThread.get() is first
    first.close()
    second = EventLoopThread.get()
    assert second is not first
    assert second.run(value, 5, doing="wait") == 7
    second.close()


def test_close_fails_those_who_wait(loop_thread: EventLoopThread) -> None:
    """They do not hang; later callers are refused."""
    started = threading.Event()
    got: list[BaseException] = []

    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            loop_thread.run(wait, None, doing="wait")
        except LinkClosed as error:
            got.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert started.wait(5)
    loop_thread.close()
    thread.join(5)
    assert len(got) == 1
    with pytest.raises(LinkClosed):
        loop_thread.run(value, 1, doing="wait")
    loop_thread.close()


@pytest.mark.processes
def test_a_fork_gets_its_own() -> None:
    """Spark forks its workers."""
    loop_thread = EventLoopThread.get()
    assert loop_thread.run(value, 5, doing="wait") == 7

    def child() -> None:
        mine = EventLoopThread.get()
        refused = False
        try:
            loop_thread.run(value, 1, doing="wait")
        except ForkedProcess:
            refused = True
        fine = refused and mine is not loop_thread and mine.run(value, 5, doing="wait") == 7
        mine.close()
        os._exit(0 if fine else 1)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(20)
    assert process.exitcode == 0
    process.close()
    assert loop_thread.run(value, 5, doing="wait") == 7
    loop_thread.close()
