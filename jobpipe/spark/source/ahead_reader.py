"""The stream reader of ``readAhead``: a micro-batch is planned, and its tasks run, before its rows are there.

An end offset is the position where the batch begins and the id of a *slot*. Each task asks the topic's coordinator to
bind the slot: it waits for news, binds it to a range, once, and every task, retry and replay gets that range.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import NoReturn

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from jobpipe.errors import ConfigError
from jobpipe.net.retry import RETRYABLE
from jobpipe.operations.subscriber_operations import SlotReply
from jobpipe.spark.options.read_options import SourceOptions
from jobpipe.spark.session.spark_versions import ReadAllAvailable, ReadLimit
from jobpipe.spark.session.user_errors import hide_traceback
from jobpipe.spark.source.offset_ranges import pass_over, read_place, write_place
from jobpipe.spark.source.partition_reader import read_range
from jobpipe.spark.source.stream_reader import IDLE_MAX_SECONDS, IDLE_MIN_SECONDS, JobPipeStreamReader, Offset
from jobpipe.spark.source.subscribed_topics import SubscribedTopics
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import ReadLimits
from jobpipe.subscribing.fetching.count_report import CountedRange, counted
from jobpipe.subscribing.fetching.part_fetch import FetchRange
from jobpipe.subscribing.fetching.slot_binding import SlotRange, bind

log = logging.getLogger(__name__)


class SlotPartition(InputPartition):
    """The share of one task in a slot: the publisher's partitions whose number is ``task`` modulo ``tasks``."""

    def __init__(self, wanted: SlotRange, task: int, tasks: int) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.task = task
        self.tasks = tasks


class ReadAheadStreamReader(JobPipeStreamReader):
    """Reads one topic ahead. Goes on from a checkpoint of :class:`JobPipeStreamReader`, which goes on from ours."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._made: str | None = None  # the newest slot that this process had made
        self._empty: str | None = None  # the last slot: at the end, without a row
        self._fit: dict[int, bool] = {}  # by the id of a schema, of those that were judged

    @hide_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        """Refuse."""
        _refuse("availableNow")

    @hide_traceback
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Acknowledge the slot of ``start``, whose batch Spark has committed by now, and return a new one after it.

        Returns ``start`` when it is the end, or the publisher cannot be asked now. The last slot is at the end, empty.

        Raises:
            ConfigError: the trigger is ``Once``, or the topic's publisher uses ``acks=all``.
            DataLoss: the slot is not known, ``start`` does not fit the log, or a lost host server kept what comes next.
            Fenced, NameTaken: another reader has the subscription's name.
            SchemaMismatch: what comes next does not fit; all before it is delivered and acknowledged.
        """
        if isinstance(limit, ReadAllAvailable):
            _refuse("once")
        topics = self._open()
        topics.follow(start)
        ((topic, value),) = start.items()
        here, last = read_place(value)
        self._ends.fix_latest(topics.session, [topic])
        slot, end = uuid.uuid4().hex, self._ends.of(topic)
        witnessed = last is not None and last == self._made
        try:
            found = topics.session.next_slot(topic, here, last, slot, end, witnessed=witnessed)
            self._ends.note_stop(topic, found.stop)
            pass_over(topic, found.lost, fail=True)
            begin = found.start
            if not self._ends.is_past_end(topic, begin):
                self._judge(topics, topic, found)
        except RETRYABLE as error:
            log.debug("topic %s: no slot now (%s)", topic, error)
            return self._wait(topics, topic, here, last, answered=topics.session.connected)
        if not found.made:
            return self._wait(topics, topic, begin, last, answered=False)
        self._idle = IDLE_MIN_SECONDS
        self._made, self._empty = slot, slot if found.over else None
        self._newest_end = {topic: begin}
        return {topic: write_place(begin, slot)}

    def _wait(
        self, topics: SubscribedTopics, topic: str, here: Position, last: str | None, *, answered: bool
    ) -> Offset:
        """Wait, from nothing to one second, growing, and return where we stand, once more.

        Args:
            answered: The coordinator is there and has refused, so that news is no reason to ask again at once.
        """
        self._newest_end = {topic: here}
        topics.session.wait({} if answered else self._ends.ahead({topic: here}), self._idle)
        self._idle = min(self._idle * 2, IDLE_MAX_SECONDS)
        return {topic: write_place(here, last)}

    def _judge(self, topics: SubscribedTopics, topic: str, found: SlotReply) -> None:
        topics.require_fit(topic, found, stop=found.stop)
        if found.schema_id is not None:
            self._fit[found.schema_id] = True
        if found.newest is not None and found.newest not in self._fit:
            self._fit[found.newest] = topics.fits(topic, found.newest)

    @hide_traceback
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return as many input partitions as the publisher has now; what they read is decided when they do.

        Raises:
            JobpipeError: see :class:`JobPipeStreamReader`, for a batch that was planned without ``readAhead``.
        """
        topics = self._open()
        topics.follow(end)
        ((topic, value),) = end.items()
        _, slot = read_place(value)
        if slot is None:
            return super().partitions(start, end)
        if slot == self._empty:
            return []  # its coordinator may be gone: all is acknowledged
        self._ends.fix_latest(topics.session, [topic])
        grant, place = topics.session.place(topic)
        wanted = SlotRange(
            topic=topic,
            name=self._options.need_name(),
            grant=grant,
            slot=slot,
            limits=ReadLimits(self._ends.of(topic), self._options.max_rows, self._options.max_bytes),
            schemas=tuple(sorted(number for number, fits in self._fit.items() if fits)),
            control=str(place.control),
        )
        return [SlotPartition(wanted, task, place.parallelism) for task in range(place.parallelism)]

    @hide_traceback
    def commit(self, end: Offset) -> None:
        """Do nothing for a slot: the next :meth:`latestOffset` acknowledges it, which alone knows where it ends."""
        if all(read_place(value)[1] is None for value in end.values()):
            super().commit(end)

    # -- in executor workers -------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Bind the slot, and yield the rows of our share of its range; stateless."""
        if not isinstance(partition, SlotPartition):
            return super().read(partition)
        return self._read_slot(partition)

    def _read_slot(self, partition: SlotPartition) -> Iterator[pa.RecordBatch]:
        wanted = partition.wanted
        bound = bind(wanted, self._options.config)
        pass_over(wanted.topic, bound.lost, fail=True)
        counts = CountedRange(wanted.name, bound.start, bound.end, wanted.slot)
        for k in range(partition.task, bound.partitions, partition.tasks):
            share = FetchRange(wanted.topic, bound.start, bound.end, k, bound.data, counts.part(k))
            rows = read_range(share, self._schema, self._options)
            yield from counted(rows, share, self._options.config)


def _refuse(trigger: str) -> NoReturn:
    raise ConfigError(
        f"format('jobpipe'): readAhead=true cannot be combined with the trigger {trigger}: a run that ends reads "
        "what is there already, so there is nothing to gain. Leave readAhead out",
        problems=[{"key": "readAhead", "value": "true", "expected": f"it without the trigger {trigger}"}],
    )
