"""The one thread that works on a topic's log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TypeVar

from jobpipe.coordinator.topic.fair_executor import FairExecutor
from jobpipe.errors import JobpipeError, SpoolError, SpoolFull, TopicNotFound
from jobpipe.store.log.topic_log import TopicLog

R = TypeVar("R")
log = logging.getLogger(__name__)


class LogThread:
    """Runs work on a log, one piece at a time, round robin over the identities. Owns the log and its thread.

    Attributes:
        ran: pieces of work that it has begun so far.
    """

    def __init__(self, topic: str, store: TopicLog) -> None:
        self.store = store
        self._topic = topic
        self._thread = FairExecutor(f"log-{topic}")
        self._closing: asyncio.Future[None] | None = None
        self.ran = 0

    @property
    def closed(self) -> bool:
        """True from the call of :meth:`begin_close` on."""
        return self._closing is not None

    @property
    def idle(self) -> bool:
        """True while no work runs or waits."""
        return self._thread.idle

    async def run(
        self,
        work: Callable[[], R],
        then: Callable[[R], object] | None = None,
        *,
        reserve: bool = True,
        whose: str | None = None,
    ) -> R:
        """Run ``work`` in the log's thread: a slow disk never blocks the loop.

        Every change to a log may be repeated, so ``work`` runs once more: after a commit of unknown outcome, the log
        being opened again; and on a full disk, of which a seal alone must leave the rest untouched.

        Args:
            work: What uses the log. If the caller is cancelled before its turn it does not run; after that, it does.
            then: Called with the result, in the loop, before the caller goes on, and also if the caller is cancelled
                meanwhile: what ``work`` has changed in the log, ``then`` changes in memory.
            reserve: ``work`` may use the room that is kept for a full disk.
            whose: see :meth:`FairExecutor.run`.

        Raises:
            TopicNotFound: the log was closed meanwhile.
        """
        if self._closing is not None:
            raise TopicNotFound(f"topic {self._topic!r} is no longer served here", topic=self._topic)
        loop = asyncio.get_running_loop()

        def run_and_notify() -> R:
            self.ran += 1
            result = self._run_with_repair(work, reserve=reserve)
            if then is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended: no request is left
                    # The loop runs it before it learns that we are done, so calls keep the order of their work.
                    loop.call_soon_threadsafe(then, result)
            return result

        return await self._thread.run(run_and_notify, whose=whose)

    def _run_with_repair(self, work: Callable[[], R], *, reserve: bool) -> R:
        try:
            return work()
        except SpoolError as error:
            if error.fields.get("reopen"):
                log.warning("topic %s: %s; opening its catalog again", self._topic, error)
                self.store.reopen()
            elif isinstance(error, SpoolFull):
                self.store.make_room(reserve=reserve)
            else:
                raise
        return work()

    def begin_close(self) -> None:
        """Take no more work from now on, and close the log after what the thread was told before. Idempotent."""
        if self._closing is None:
            self._closing = self._thread.close(self._close)

    async def close(self, seconds: float) -> None:
        """Write what is pending and close the log; the thread ends. Idempotent.

        Args:
            seconds: to wait for what the thread was told before; its disk may hang. It closes the log when it can.
        """
        self.begin_close()
        assert self._closing is not None  # noqa: S101 - just begun
        done, _ = await asyncio.wait({self._closing}, timeout=seconds)
        if not done and seconds > 0:
            log.warning("topic %s: its disk does not answer; the log is closed when it does", self._topic)

    def _close(self) -> None:
        try:
            self.store.close()
        except JobpipeError:
            log.exception("topic %s: closing the log", self._topic)
