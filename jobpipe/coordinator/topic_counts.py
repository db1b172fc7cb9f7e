"""Brings what the data process reports to the ledgers of the topics, in order, in each log's own thread."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from functools import partial
from weakref import WeakSet

from jobpipe.coordinator.data.count_pipe import BEAT_SECONDS, Beat, Broken, Counted, Doubt, Line
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.errors import JobpipeError
from jobpipe.store.ledger.range_counts import CountedPiece
from jobpipe.store.ledger.topic_ledger import TopicLedger

log = logging.getLogger(__name__)

MAX_WAITING = 1_000  # lines of one topic whose log's thread is busy


class TopicCounts:
    """The lines that wait for their topics. Belongs to the event loop.

    Args:
        topics: those that are served.
    """

    def __init__(self, topics: Mapping[str, ServedTopic]) -> None:
        self._topics = topics
        self._waiting: dict[ServedTopic, deque[Line]] = {}
        self._tasks: dict[ServedTopic, asyncio.Task[None]] = {}
        self._failed: WeakSet[ServedTopic] = WeakSet()  # a line did not get to their ledger
        self._closed = False

    def take(self, line: Line) -> None:
        """Take a line of the data process."""
        if self._closed:
            return
        match line:
            case Beat(owing=owing):
                for topic in list(self._topics.values()):
                    if topic.topic not in owing and (topic in self._waiting or topic.store.ledger.is_waiting):
                        self._put(topic, line)
            case Doubt(topic=None):
                for topic in list(self._topics.values()):
                    self._put(topic, line)
            case Doubt(topic=str(name)) | Counted(topic=name) | Broken(topic=name):
                if (served := self._topics.get(name)) is not None:
                    self._put(served, line)

    async def close(self) -> None:
        """Take no further line to its topic."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _put(self, topic: ServedTopic, line: Line) -> None:
        waiting = self._waiting.setdefault(topic, deque())
        if len(waiting) >= MAX_WAITING or topic in self._failed:
            self._failed.discard(topic)
            waiting.clear()
            waiting.append(Doubt())
        waiting.append(line)
        if topic not in self._tasks:
            self._tasks[topic] = asyncio.create_task(self._bring(topic), name=f"counts-{topic.topic}")

    async def _bring(self, topic: ServedTopic) -> None:
        try:
            while waiting := self._waiting.pop(topic, None):
                await topic.run(partial(_apply, topic.store.ledger, tuple(waiting)))
        except JobpipeError as error:  # the topic is closed, or its disk fails: what was counted is not known then
            self._failed.add(topic)
            log.debug("topic %s: %s", topic.topic, error)
        finally:
            self._waiting.pop(topic, None)
            del self._tasks[topic]


def _apply(ledger: TopicLedger, lines: tuple[Line, ...]) -> None:
    """Enter some lines; in the log's thread."""
    for line in lines:
        match line:
            case Beat():
                ledger.advance(BEAT_SECONDS)
            case Doubt(name=name):
                ledger.doubt(None if name is None else [name])
            case Broken(part=part):
                ledger.broken(part.name, part.start, part.end, part.reading, part.number)
            case Counted(count=count):
                pieces = [CountedPiece(each.number, each.partition, each.rows) for each in count.pieces]
                ledger.counted(count.name, count.start, count.end, count.reading, pieces)
