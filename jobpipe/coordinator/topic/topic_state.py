"""What the parts of a served topic share: the open request, the log's thread, the wake-ups of those who wait."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from jobpipe.coordinator.topic.log_thread import LogThread
from jobpipe.errors import TopicNotFound
from jobpipe.operations.publisher_operations import OpenRequest
from jobpipe.operations.range_messages import LostBatch
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.catalog_status import LogStatus
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.spool.segment_index import SegmentInfo

P = ParamSpec("P")
R = TypeVar("R")

RECENT = 1000  # seals of which it is remembered what partitions got rows


@dataclass(frozen=True)
class LogSnapshot:
    """What a log holds when it is taken over."""

    head: Position
    ended: bool
    kept: frozenset[str]
    status: LogStatus

    @classmethod
    def of(cls, store: TopicLog) -> LogSnapshot:
        """Ask the log; blocking."""
        return cls(
            head=store.batches.head(),
            ended=store.batches.ended(),
            kept=frozenset(store.hosts.kept()),
            status=store.status(),
        )


class WakeUp:
    """``notify_all()`` wakes all who wait at that moment. Nothing is remembered: waiters check again.

    Attributes:
        notifications: how often it was notified.
    """

    def __init__(self) -> None:
        self.notifications = 0
        self._event = asyncio.Event()

    def notify_all(self) -> None:
        """Wake all present waiters."""
        self.notifications += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout: float) -> bool:
        """Wait for the next notification, at most ``timeout`` seconds; False when none came."""
        return await _is_set(self._event, timeout)

    def begin_to_wait(self, timeout: float) -> asyncio.Task[bool]:
        """Wait as :meth:`wait` in a task: a notification counts from now on, though the task begins later."""
        return asyncio.create_task(_is_set(self._event, timeout))


async def _is_set(event: asyncio.Event, timeout: float) -> bool:
    try:
        async with asyncio.timeout(timeout):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def wait_for_any(wake_ups: Iterable[WakeUp], timeout: float) -> None:
    """Wait for the next notification of one of them, at most ``timeout`` seconds."""
    waits = [wake_up.begin_to_wait(timeout) for wake_up in wake_ups]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


class TopicState:
    """A log that is served: work on it is serialised in its thread, and what it holds is known here without asking it.

    A caller of any method may be cancelled at any time: then the log's thread still ends what it has begun. So what is
    kept here changes by :meth:`run_then`, never by what the caller does next.

    Attributes:
        topic, log_id: the topic, and the id of its log.
        asked, config: what the publisher asked for, and its configuration, which is in there.
        head, ended: the position after the newest batch, and whether that is an end mark.
        news: notified when the head moves, a schema is known, or the publisher waits.
        acked: notified when an acknowledgement advances.
        progress_at: when that was last, in seconds of the monotonic clock.
        kept: ids of the host servers that keep segments, those of now and some before.
        gone: those of them that are lost.
    """

    def __init__(self, topic: str, thread: LogThread, asked: OpenRequest, known: LogSnapshot) -> None:
        self.topic = topic
        self.asked = asked
        self.config = asked.config
        self.log_id = thread.store.log_id
        self.head = known.head
        self.ended = known.ended
        self.news = WakeUp()
        self.acked = WakeUp()
        self.progress_at = time.monotonic()
        self.kept = set(known.kept)
        self.gone: frozenset[str] = frozenset()
        self.recent: deque[tuple[int, frozenset[int] | None]] = deque(
            maxlen=RECENT
        )  # seals: head, partitions with rows
        self._store = thread.store
        self._thread = thread

    async def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``work`` in the log's thread; see :meth:`LogThread.run`."""
        return await self._thread.run(lambda: work(*args, **kwargs))

    async def run_then(
        self, work: Callable[[], R], then: Callable[[R], object], *, reserve: bool = True, whose: str | None = None
    ) -> R:
        """Run ``work`` in the log's thread, and ``then`` in the loop, whatever becomes of the caller.

        ``reserve`` and ``whose`` are those of :meth:`LogThread.run`.
        """
        return await self._thread.run(work, then, reserve=reserve, whose=whose)

    def note_sealed(self, head: Position, ended: bool, segments: Iterable[SegmentInfo] | None) -> None:
        """Note what was sealed, None where that is not known, and wake those who wait for it."""
        self.head, self.ended = head, ended
        self.kept |= {segment.host for segment in segments or () if segment.host is not None}
        self.recent.append((head.n, None if segments is None else frozenset(info.partition for info in segments)))
        self.news.notify_all()

    def has_rows_since(self, n: int, partitions: frozenset[int]) -> bool:
        """Tell whether one of the partitions may have got rows after offset ``n``; asks no disk."""
        if len(self.recent) == RECENT and self.recent[0][0] > n:
            return True
        return any(got is None or got & partitions for head, got in self.recent if head > n)

    @property
    def closed(self) -> bool:
        """True once the topic is not served here any more."""
        return self._thread.closed

    def require_served(self) -> None:
        """Raise TopicNotFound once the topic is not served here any more."""
        if self.closed:
            raise TopicNotFound(f"topic {self.topic!r} is no longer served here", topic=self.topic)

    @property
    def store(self) -> TopicLog:
        """The log; to be used through :meth:`run` only."""
        return self._store

    @property
    def uses_hosts(self) -> bool:
        """True where segments lie, or may be put, with host servers."""
        return self.config.spool_placement == "host" or bool(self.kept)

    async def missing_acks(self, n: int) -> list[str]:
        """Return the names that ``acks=all`` still waits for at offset ``n``."""

        def work() -> tuple[frozenset[str], dict[str, Position | None]]:
            return self._store.required.names(), {each.name: each.acked for each in self._store.subscriptions.all()}

        required, acked = await self.run(work)
        missing = [name for name in sorted(required) if (at := acked.get(name)) is None or at.n < n]
        done = sum(1 for position in acked.values() if position is not None and position.n >= n)
        if done < self.asked.min_subscribers:
            missing.append(f"{self.asked.min_subscribers - done} more of min_subscribers={self.asked.min_subscribers}")
        return missing

    async def lost(self, first: int, end: int) -> tuple[LostBatch, ...]:
        """Return the batches from ``first`` to ``end`` (exclusive) of which lost host servers kept a part."""
        if not self.gone:
            return ()

        def work() -> tuple[LostBatch, ...]:
            store = self._store
            return tuple(
                LostBatch(store.batches.at(batch.n), store.batches.at(batch.n + 1), batch.rows, tuple(batch.hosts))
                for batch in store.hosts.lost(first, end, self.gone)
            )

        return await self.run(work)

    async def refresh_kept(self) -> None:
        """Read again which host servers keep segments; those of a batch that is being sealed are added after that."""

        def seen(hosts: dict[str, Any]) -> None:
            self.kept = set(hosts)

        await self.run_then(self._store.hosts.kept, seen)

    def note_progress(self) -> None:
        """Note that an acknowledgement advanced."""
        self.progress_at = time.monotonic()
        self.acked.notify_all()

    async def lagging(self) -> dict[str, int]:
        """Return the subscriptions that have not acknowledged all, with their lag in batches."""
        status = await self.run(self._store.status)
        return {line.name: line.lag.batches for line in status.subscriptions if line.lag.batches > 0}
