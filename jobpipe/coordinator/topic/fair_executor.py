"""A thread that works for many identities, round robin; and a fair queue of what they ask for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from jobpipe.net.servers.identity_quota import asking

R = TypeVar("R")
T = TypeVar("T")

AHEAD = 2
"""Pieces of work that the thread has at most: one that runs, and the next, so that it does not wait for the loop."""


class FairExecutor:
    """Runs work in a thread: round robin over the identities that ask, for each of them in the order of its calls.

    However much one identity asks for, another's work waits for a few pieces at most, so keep each piece short.
    Belongs to the event loop.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        # By identity, in the order of turns. Each future gets the work's own future, or is cancelled by its caller.
        self._waiting: dict[str, deque[tuple[Callable[[], Any], asyncio.Future[asyncio.Future[Any]]]]] = {}
        self._given = 0

    @property
    def idle(self) -> bool:
        """True while no work runs or waits."""
        return not self._given and not self._waiting

    async def run(self, work: Callable[[], R], *, whose: str | None = None) -> R:
        """Run ``work``; if the caller is cancelled before its turn it does not run, after that it does.

        Args:
            work: a function.
            whose: the identity that it counts to; None is the one whose request the current task answers.
        """
        if self._given < AHEAD:  # then no call waits
            return await self._start(work)
        turn: asyncio.Future[asyncio.Future[R]] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asking.get() if whose is None else whose, deque()).append((work, turn))
        try:
            started = await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                turn.result().cancel()
            raise
        return await started

    def close(self, last: Callable[[], R]) -> asyncio.Future[R]:
        """Run ``last`` after all that was asked for before; the thread ends then, and takes no more work."""
        while self._waiting:
            self._start_next()
        closing = asyncio.get_running_loop().run_in_executor(self._executor, last)
        self._executor.shutdown(wait=False)
        return closing

    def _start(self, work: Callable[[], R]) -> asyncio.Future[R]:
        started = asyncio.get_running_loop().run_in_executor(self._executor, work)
        self._given += 1
        started.add_done_callback(self._ended)
        return started

    def _start_next(self) -> None:
        """Start one piece of work of the identity whose turn it is, and let that identity be the last one."""
        identity, works = next(iter(self._waiting.items()))
        del self._waiting[identity]
        while works:
            work, turn = works.popleft()
            if not turn.done():
                turn.set_result(self._start(work))
                break
        if works:
            self._waiting[identity] = works

    def _ended(self, started: asyncio.Future[Any]) -> None:
        self._given -= 1
        while self._waiting and self._given < AHEAD:
            self._start_next()


class FairQueue(Generic[T]):
    """Items of many identities: one of each identity in turn, and of each in the order in which they came."""

    def __init__(self) -> None:
        self._items: dict[str, deque[T]] = {}  # in the order of turns

    def __bool__(self) -> bool:
        return bool(self._items)

    def extend(self, identity: str, items: Iterable[T]) -> None:
        """Add items of an identity, at least one."""
        self._items.setdefault(identity, deque()).extend(items)

    def take(self) -> T:
        """Remove and return the next item; the queue is not empty."""
        identity, items = next(iter(self._items.items()))
        del self._items[identity]
        item = items.popleft()
        if items:
            self._items[identity] = items
        return item

    def put_back(self, taken: Iterable[tuple[str, T]]) -> None:
        """Let items that were taken, each with its identity, come first again."""
        later, self._items = self._items, {}
        for identity, item in taken:
            self.extend(identity, (item,))
        for identity, items in later.items():
            self.extend(identity, items)


def resolve_future(future: asyncio.Future[R], outcome: R | BaseException) -> None:
    """Give a request its result, or raise an error there; one that has gone, or has its answer, is left alone.

    Not for a future whose result may be an error.
    """
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
        future.exception()  # seen: perhaps no request waits any more
    else:
        future.set_result(outcome)
