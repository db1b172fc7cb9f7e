"""How much one micro-batch takes, and when it has to wait for more: maxRowsPerTrigger, minRowsPerTrigger and so on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jobpipe.operations.subscriber_operations import Backlog, PlanReply
from jobpipe.spark.options.read_options import SourceOptions
from jobpipe.spark.session.spark_versions import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import Boundary, ReadLimits


@dataclass(frozen=True)
class TopicLimit:
    """What one topic may take of a micro-batch; with ``count`` it is to be told how much there is."""

    rows: int | None
    bytes: int | None
    count: bool

    @property
    def is_nothing(self) -> bool:
        """True when others have taken everything: the topic is asked only to acknowledge."""
        return self.rows == 0 or self.bytes == 0

    def limits(self, end: Boundary | None) -> ReadLimits:
        """Return what a plan is limited by, where the read ends at ``end``."""
        return ReadLimits(end, self.rows or None, self.bytes or None)


class MicroBatchLimits:
    """The limits of a stream. One object lives as long as the reader; each micro-batch begins with :meth:`begin`.

    Args:
        options: of the ``load()``.
        clock: monotonic seconds.
    """

    def __init__(self, options: SourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_rows = options.max_rows
        self._max_bytes = options.max_bytes
        self._min_rows = options.min_rows
        self._max_delay = options.max_trigger_delay
        self._clock = clock
        self._planned_at = clock()  # the newest micro-batch; before the first one, the start of this run
        self._first: str | None = None  # whose turn it is: the topic that got nothing the last time
        self._rows: int | None = None  # left of what this micro-batch may take
        self._bytes: int | None = None
        self._all = False  # Spark wants whatever is there
        self._must = False  # something forbids to wait for more
        self._used: dict[str, tuple[int, int]] = {}  # rows and bytes planned, by topic
        self._ahead: dict[str, Backlog] = {}  # by topic, of those with something ahead

    def default(self) -> ReadLimit:
        """Return what Spark hands to ``latestOffset``, unless ``Trigger.Once`` wants everything.

        Never ReadAllAvailable, so that one can be told from the other; the numbers in it are for Spark's log only.
        """
        return ReadMaxBytes(self._max_bytes) if self._max_rows is None else ReadMaxRows(self._max_rows)

    def begin(self, limit: ReadLimit, *, drains: bool) -> None:
        """Begin to plan a micro-batch.

        Args:
            limit: as Spark gave it.
            drains: ``availableNow``: nothing that comes later counts.
        """
        self._all = isinstance(limit, ReadAllAvailable)
        self._rows = None if self._all else self._max_rows
        self._bytes = None if self._all else self._max_bytes
        self._must = self._all or drains or self._min_rows is None
        self._ahead = {}
        self._used = {}

    def shares(self, positions: Mapping[str, Position]) -> Iterator[tuple[str, Position, TopicLimit]]:
        """Yield each topic with its position and what it may take, counting :meth:`take` of those before it.

        An equal share of what is left: a topic without news leaves its share to those after it, and :meth:`rest` to
        those before. One that gets nothing, since a single record batch of another was more than all of it, is the
        first the next time.
        """
        topics = sorted(positions)
        turn = topics.index(self._first) if self._first in topics else 0
        self._first = None
        for number, topic in enumerate(topics[turn:] + topics[:turn]):
            rows, size = (_part(left, len(topics) - number) for left in (self._rows, self._bytes))
            share = TopicLimit(rows, size, count=self._min_rows is not None)
            if share.is_nothing and self._first is None:
                self._first = topic
            yield topic, positions[topic], share

    def rest(self, short: Sequence[str]) -> Iterator[tuple[str, TopicLimit]]:
        """Yield larger shares of topics, to be planned again from where they began, with what all have left over.

        Args:
            short: those that have more than they were given, counting :meth:`take` of those before.
        """
        for number, topic in enumerate(short):
            more_rows, more_bytes = (_part(left, len(short) - number) for left in (self._rows, self._bytes))
            if topic not in self._used or more_rows == 0 or more_bytes == 0:
                continue
            rows, size = self._used.pop(topic)
            self._rows = None if self._rows is None else self._rows + rows
            self._bytes = None if self._bytes is None else self._bytes + size
            count = self._min_rows is not None
            yield (
                topic,
                TopicLimit(
                    None if more_rows is None else rows + more_rows,
                    None if more_bytes is None else size + more_bytes,
                    count,
                ),
            )

    def take(self, topic: str, plan: PlanReply, *, moved: bool) -> None:
        """Count what was planned of a topic.

        Args:
            topic: which one.
            plan: the answer of the coordinator.
            moved: The log has its beginning at another position than Spark's: that does not wait.
        """
        rows, size = plan.rows, plan.bytes
        self._used[topic] = (rows, size)
        self._rows = None if self._rows is None else max(self._rows - rows, 0)
        self._bytes = None if self._bytes is None else max(self._bytes - size, 0)
        self._must = self._must or moved
        ahead = plan.ahead
        if ahead is not None and ahead.end != plan.start:
            self._ahead[topic] = ahead
            self._must = self._must or ahead.final or ahead.waiting

    def holds(self) -> bool:
        """Tell whether what was planned has to wait for more rows: ``minRowsPerTrigger``.

        It does not when ``maxTriggerDelay`` is over, when nothing would follow or a publisher waits, or
        when there is more than a micro-batch takes anyway.
        """
        rows = sum(ahead.rows for ahead in self._ahead.values())
        size = sum(ahead.bytes for ahead in self._ahead.values())
        return not (
            self._must
            or self._min_rows is None
            or rows >= self._min_rows
            or (self._max_rows is not None and rows >= self._max_rows)
            or size >= self._max_bytes
            or self._clock() >= self._planned_at + self._max_delay
        )

    def known(self, positions: Mapping[str, Position]) -> dict[str, Position]:
        """Return the positions up to which everything was counted: what lies beyond them is news."""
        return {**positions, **{topic: ahead.end for topic, ahead in self._ahead.items()}}

    @property
    def held(self) -> frozenset[str]:
        """Topics of which something lies ahead."""
        return frozenset(self._ahead)

    def patience(self) -> float:
        """Return for how many seconds what lies ahead may be held back still; endless when nothing does."""
        return max(self._planned_at + self._max_delay - self._clock(), 0.0) if self._ahead else math.inf

    def planned(self) -> None:
        """Note that a micro-batch takes something."""
        self._planned_at = self._clock()


def _part(left: int | None, count: int) -> int | None:
    return None if left is None else -(-left // count)
