"""Keeps open pages live: a stream for each, of the parts that differ from what its browser shows."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor

from jobpipe.control.control_service import Control
from jobpipe.control.page.pages import Pages, asks_coordinators
from jobpipe.control.page.rendering import RenderedPage
from jobpipe.control.permissions import Caller

log = logging.getLogger(__name__)

MOST = 64  # streams
RENDERERS = 2  # threads that make pages for all of them
TICK_SECONDS = 2.0  # between two looks, if no event comes in between
SHORTEST_SECONDS = 0.25  # between two looks, however many events come
QUIET_SECONDS = 5.0  # then a browser gets to know that what it shows still holds
AGE_SECONDS = 15 * 60.0  # then it connects again, and its right is looked at again
WATCH_SECONDS = 1.0  # how long a thread waits for an event


class LiveUpdates:
    """The streams of a server: a bounded number. For one event loop, but :meth:`close`."""

    def __init__(self, control: Control, pages: Pages, most: int = MOST) -> None:
        self._control = control
        self._pages = pages
        self._most = most
        self._pool = ThreadPoolExecutor(RENDERERS, thread_name_prefix="page")
        self._slow_pool = ThreadPoolExecutor(RENDERERS, thread_name_prefix="page-slow")  # for what asks coordinators
        self._watcher_pool = ThreadPoolExecutor(1, thread_name_prefix="page-events")
        self._open = 0
        self._closed = False
        self._happened = asyncio.Event()  # replaced when it is set
        self._watcher: asyncio.Task[None] | None = None

    def take(self) -> bool:
        """Take a place for a stream; False if there is none."""
        if self._open >= self._most or self._closed:
            return False
        self._open += 1
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return True

    def leave(self) -> None:
        """Give a place back."""
        self._open -= 1
        if not self._open and self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    def end(self) -> None:
        """Let the streams end, within some seconds; does not wait."""
        self._closed = True

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        for pool in (self._pool, self._slow_pool, self._watcher_pool):
            pool.shutdown(wait=True, cancel_futures=True)

    async def stream(
        self, address: str, shape: str, caller_now: Callable[[], Caller | None], is_over: Callable[[], bool]
    ) -> AsyncGenerator[bytes, None]:
        """Yield what a page's stream has; the caller has a place.

        Args:
            address: the path of the page, with its query.
            shape: of what the browser shows.
            caller_now: returns whose browser it is, None once it has no right any more.
            is_over: whether its connection has to end.
        """
        loop, began = asyncio.get_running_loop(), time.monotonic()
        pool = self._slow_pool if asks_coordinators(address) else self._pool
        shown: dict[str, str] = {}
        told = float("-inf")
        while not (self._closed or is_over()):
            if (caller := caller_now()) is None:
                yield _message("sign-in", 0)
                return
            if time.monotonic() - began >= AGE_SECONDS:
                yield _message("again", 0)
                return
            happened = self._happened
            page = await loop.run_in_executor(pool, self._pages.render, address, caller)
            message = _difference(shown, shape, page)
            shown, shape = dict(page.parts), page.shape
            now = time.monotonic()
            if message is not None or now - told >= QUIET_SECONDS:
                told = now
                yield message or _message("same", 0)
            await asyncio.sleep(SHORTEST_SECONDS)
            try:
                async with asyncio.timeout(TICK_SECONDS - SHORTEST_SECONDS):
                    await happened.wait()
            except TimeoutError:
                pass

    async def _watch(self) -> None:
        """Wake the streams when something happens to a job."""
        loop = asyncio.get_running_loop()
        after: int | None = None
        while not self._closed:
            try:
                after, news = await loop.run_in_executor(self._watcher_pool, self._news, after)
            except Exception as error:  # noqa: BLE001 - whatever it is: streams look by themselves
                log.info("events cannot be read; pages look every %g s: %s", TICK_SECONDS, error)
                await asyncio.sleep(TICK_SECONDS)
                continue
            if news:
                self._pages.look_again()
                self._happened.set()
                self._happened = asyncio.Event()

    def _news(self, after: int | None) -> tuple[int, bool]:
        if after is None:
            newest = self._control.latest_events(1)
            return (newest[0].id if newest else 0), True
        events = () if self._closed else self._control.events(after, wait=WATCH_SECONDS, limit=1000)
        return (events[-1].id if events else after), bool(events)


def _difference(shown: dict[str, str], shape: str, page: RenderedPage) -> bytes | None:
    if page.shape != shape:
        return _message("page", {"title": page.title, "main": page.main, "shape": page.shape})
    changed = {id_: html for id_, html in page.parts.items() if shown.get(id_) != html}
    return _message("parts", changed) if changed else None


def _message(event: str, data: object) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()
