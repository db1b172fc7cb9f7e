"""What tasks of flow jobs read: all that ask at one time share one turn of the log's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from jobpipe.coordinator.topic_state import TopicState
from jobpipe.errors import JobpipeError, SpoolError
from jobpipe.net.budget import asking
from jobpipe.operations.flows import FollowRequest
from jobpipe.store.follow import Followed

GROUP = 16  # requests that share a turn: each may bring 1 MiB, and other work waits meanwhile


Waiting: TypeAlias = tuple[FollowRequest, asyncio.Future[Followed]]


class FlowReads:
    """Reads for the tasks of one topic. Belongs to the event loop.

    A batch wakes all tasks whose partitions got rows, and a turn of the thread costs more than what one of them reads.
    Identities share no turn: one that asks much makes no other wait.
    """

    def __init__(self, topic: TopicState) -> None:
        self._topic = topic
        self._waiting: dict[str, list[Waiting]] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}

    async def read(self, asked: FollowRequest) -> Followed:
        """Return what follows the cursors of a task, and raise as :meth:`jobpipe.store.follow.PartReader.read`."""
        found: asyncio.Future[Followed] = asyncio.get_running_loop().create_future()
        identity = asking.get()
        self._waiting.setdefault(identity, []).append((asked, found))
        if identity not in self._reading:  # it begins when all that the same news has woken have asked
            reading = asyncio.create_task(self._read_for(identity), name=f"read-parts-{self._topic.topic}")
            self._reading[identity] = reading
        return await found

    async def _read_for(self, identity: str) -> None:
        try:
            while waiting := self._waiting.pop(identity, None):
                for first in range(0, len(waiting), GROUP):
                    group = [each for each in waiting[first : first + GROUP] if not each[1].done()]
                    if group:
                        await self._read_group(group)
        finally:
            del self._reading[identity]

    async def _read_group(self, group: Sequence[Waiting]) -> None:
        reader = self._topic.store.parts

        def one(asked: FollowRequest) -> Followed | JobpipeError:
            wanted = [(part.partition, part.at) for part in asked.parts]
            try:
                return reader.read(asked.name, wanted, partitions=asked.partitions, skip_removed=asked.skip_removed)
            except SpoolError:  # the catalog is opened again, and all are read once more
                raise
            except JobpipeError as error:
                return error

        def work() -> list[Followed | JobpipeError]:
            return [one(asked) for asked, _ in group]

        reading = asyncio.ensure_future(self._topic.run(work))
        await asyncio.wait({reading})
        error = reading.exception()
        answers: Sequence[Followed | BaseException] = [error] * len(group) if error is not None else reading.result()
        for (_, found), answer in zip(group, answers, strict=True):
            if found.done():  # its task has gone
                continue
            if isinstance(answer, BaseException):
                found.set_exception(answer)
            else:
                found.set_result(answer)
