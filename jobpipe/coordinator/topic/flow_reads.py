"""What tasks of flow jobs read: those that ask at one time are answered by one run in the log's thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from jobpipe.coordinator.topic.fair_executor import resolve_future
from jobpipe.coordinator.topic.topic_state import TopicState
from jobpipe.errors import JobpipeError, SpoolError, SpoolFull
from jobpipe.net.servers.identity_quota import asking
from jobpipe.operations.flow_operations import MAX_PARTS, FollowRequest
from jobpipe.store.reading.change_feed import ChangeFeedPage

GROUP = 16
"""Requests that share a turn, of at most MAX_PARTS partitions together: no turn takes longer than one request may."""

Unread: TypeAlias = tuple[FollowRequest, asyncio.Future[ChangeFeedPage]]


class FlowReads:
    """Reads for the tasks of one topic. Belongs to the event loop.

    A batch wakes all tasks whose partitions got rows, and a turn of the thread costs more than what one of them reads.
    Identities share no turn, so the thread still serves them in turn.
    """

    def __init__(self, topic: TopicState) -> None:
        self._topic = topic
        self._unread: dict[str, deque[Unread]] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}

    async def read(self, asked: FollowRequest) -> ChangeFeedPage:
        """Return what follows the cursors of a task; errors are those of ``ChangeFeed.read`` of the change feed."""
        found: asyncio.Future[ChangeFeedPage] = asyncio.get_running_loop().create_future()
        identity = asking.get()
        self._unread.setdefault(identity, deque()).append((asked, found))
        if identity not in self._reading:  # it begins when all that the same news has woken have asked
            reading = asyncio.create_task(self._read_for(identity), name=f"read-parts-{self._topic.topic}")
            self._reading[identity] = reading
        return await found

    async def _read_for(self, identity: str) -> None:
        try:
            while group := self._next_group(identity):
                await self._read_group(group)
        finally:
            del self._reading[identity]
            for _, found in self._unread.pop(identity, ()):
                found.cancel()

    def _next_group(self, identity: str) -> list[Unread]:
        """Take those off the queue that share the next turn. An answer is kept by nothing but its request."""
        unread, parts = self._unread[identity], 0
        group: list[Unread] = []
        while unread and len(group) < GROUP and (not group or parts + len(unread[0][0].parts) <= MAX_PARTS):
            asked, found = unread.popleft()
            if not found.done():  # else its task has gone
                group.append((asked, found))
                parts += len(asked.parts)
        return group

    async def _read_group(self, group: Sequence[Unread]) -> None:
        reader = self._topic.store.parts

        def one(asked: FollowRequest) -> ChangeFeedPage | JobpipeError:
            wanted = [(part.partition, part.at) for part in asked.parts]
            try:
                return reader.read(asked.name, wanted, partitions=asked.partitions, skip_removed=asked.skip_removed)
            except SpoolError as error:
                if error.fields.get("reopen") or isinstance(error, SpoolFull):
                    raise  # LogThread mends that, and all are read again
                return error
            except JobpipeError as error:
                return error

        def work() -> list[ChangeFeedPage | JobpipeError]:
            return [one(asked) for asked, _ in group]

        try:
            answers: Sequence[ChangeFeedPage | BaseException]
            try:
                answers = await self._topic.run(work)
            except Exception as error:  # noqa: BLE001 - told to all who ask
                answers = [error] * len(group)
            for (_, found), answer in zip(group, answers, strict=True):
                resolve_future(found, answer)
        finally:
            for _, found in group:
                found.cancel()  # only if this task was cancelled
