"""The stream reader: offsets, plans and acknowledgements in the driver, ``read()`` in the workers.

One instance lives in Spark's long-lived source runner and holds the links. Executor workers read through copies of it,
pickled without the links. Offsets are ``{topic: position}`` with sorted keys and nothing else: Spark compares their
text. With ``readAhead`` a position also names a slot.

A topic that is found while the query runs is added to the next end offset, with its start position as its end. So the
micro-batch that ends there reads no rows of it. The start position is then in Spark's offset log. If that batch is
replayed after a restart, however late, the topic still begins at the same position.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from jobpipe.errors import DataLoss, JobpipeError, SchemaMismatch, UnsupportedType
from jobpipe.net.retry import RETRYABLE
from jobpipe.spark.options.read_options import SourceOptions
from jobpipe.spark.session.spark_versions import ReadLimit, SupportsTriggerAvailableNow
from jobpipe.spark.session.user_errors import hide_traceback
from jobpipe.spark.source.input_partitions import TopicRange, input_partitions
from jobpipe.spark.source.offset_ranges import ReadRange, pass_over, read_place
from jobpipe.spark.source.partition_reader import RangePartition, read_range
from jobpipe.spark.source.stream_ends import StreamEnds
from jobpipe.spark.source.subscribed_topics import SubscribedTopics
from jobpipe.spark.source.trigger_limits import MicroBatchLimits, TopicLimit
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import Boundary
from jobpipe.subscribing.fetching.count_report import CountedRange, counted
from jobpipe.subscribing.subscriber_session import SubscriberSession

log = logging.getLogger(__name__)

IDLE_MIN_SECONDS = 0.01
IDLE_MAX_SECONDS = 1.0
Offset = dict[str, Any]


class JobPipeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream under one subscription name."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._topics: SubscribedTopics | None = None
        self._lock = threading.Lock()
        self._prepare_error: JobpipeError | None = None  # why prepareForTriggerAvailableNow failed
        self._initial: Offset | None = None  # what initialOffset returned; None until Spark has asked
        self._new_topics: dict[str, Position] = {}  # topics that the newest end offset names for the first time
        self._newest_end: dict[str, Position] = {}  # the newest end offset
        self._ends = StreamEnds(options.ends.of)
        self._limits = MicroBatchLimits(options)
        self._idle = IDLE_MIN_SECONDS
        self._planned: dict[str, ReadRange] = {}  # the key is topic, start and end as one text
        self._slot_ends: dict[str, Position] = {}  # by slot (``readAhead``): the position at which it ends
        self._skipped: dict[str, int] = {}  # by topic: losses that failOnDataLoss=false skipped
        self._lost_rows: dict[str, int] = {}  # by topic: rows of skipped batches whose host server is lost

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["schema"])  # type: ignore[misc]

    # -- offsets, in the driver ----------------------------------------------------------------------------------------

    @hide_traceback
    def initialOffset(self) -> Offset:
        """Return where a new checkpoint begins.

        The coordinator stores the answer. So it stays the same after restarts, until more has been acknowledged.
        """
        if self._initial is None:
            self._initial = offset_of(self._open().first_positions())
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark passes to :meth:`latestOffset`; see :class:`MicroBatchLimits`."""
        return self._limits.default()

    @hide_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the positions up to which this run reads.

        If that fails, the next call that asks for the topics raises the error. Spark stops a query's readers only if
        all of them were prepared. If this call raised, the other readers would keep their subscriptions' names until
        the application ends (PySpark 4.3.0).
        """
        try:
            topics = self._open()
            self._ends.stop_now(topics.session, topics.at_start)
        except JobpipeError as error:
            self._prepare_error = error

    @hide_traceback
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Acknowledge ``start``, since Spark has committed everything before it by now, and plan what follows.

        If there is nothing to read, or ``minRowsPerTrigger`` holds rows back, it first waits for news: 10 ms, and twice
        as long each time that this happens again, up to 1 s.

        Raises:
            DataLoss: ``start`` does not fit the log.
            Fenced, NameTaken: another reader has the subscription's name.
            SchemaMismatch, UnsupportedType: what comes next in a topic does not fit; all before it is delivered and
                acknowledged.
            ConfigError: the pattern matches more than ``maxTopics`` topics, the options no longer name a topic of the
                checkpoint, or ``assign`` is wrong.
        """
        topics = self._open()
        topics.follow(start)
        positions = self._positions(topics, start)
        new_topics = self._new_topics = topics.new_topics(positions, found_by_now=self._ends.now)
        self._ends.fix_latest(topics.session, positions)
        planned = self._plan_all(topics.session, positions, limit)
        if planned == positions and not new_topics and not self._ends.now:
            known, held = self._ends.ahead(self._limits.known(positions)), self._limits.held
            if topics.session.wait(known, min(self._idle, self._limits.patience()), held=held):
                planned = self._plan_all(topics.session, positions, limit)
            self._idle = min(self._idle * 2, IDLE_MAX_SECONDS)
        if planned != positions:
            self._limits.planned()
            self._idle = IDLE_MIN_SECONDS
        self._newest_end = {**planned, **new_topics}
        return offset_of(self._newest_end)

    def reportLatestOffset(self) -> Offset | None:
        """Return each topic's head, for Spark's progress; ``ended`` tells ``await_end`` that nothing follows."""
        if self._topics is None:
            return None
        session = self._topics.session
        report = session.report(self._newest_end or self._topics.at_start)
        if report is None:
            return None
        self._ends.report(report, self._newest_end)
        for topic in report.keys() & (self._skipped.keys() | session.losses.keys()):
            report[topic]["losses"] = self._skipped.get(topic, 0) + session.losses.get(topic, 0)
            report[topic]["lost_rows"] = self._lost_rows.get(topic, 0)
        for topic in report:
            if columns := self._topics.left_out(topic):
                report[topic]["left_out"] = columns
        return report

    @hide_traceback
    def commit(self, end: Offset) -> None:
        """Acknowledge ``end``.

        Spark calls this one batch late. By then :meth:`latestOffset` has usually acknowledged it, as its ``start``.
        """
        topics = self._open()
        topics.follow(end)
        positions = self._positions(topics, end)
        for topic, position in positions.items():
            try:
                topics.session.acknowledge(topic, position)
            except RETRYABLE as error:
                log.info("topic %s: acknowledgement waits (%s)", topic, error)
            except DataLoss as error:  # the next plan raises it, or skips it (failOnDataLoss=false)
                log.info("topic %s: nothing to acknowledge: %s", topic, error)

    def stop(self) -> None:
        """Close the links, and release the subscription's name."""
        with self._lock:
            if self._topics is not None:
                self._topics.close()
                self._topics = None

    # -- plans ---------------------------------------------------------------------------------------------------------

    def _plan_all(
        self, session: SubscriberSession, positions: dict[str, Position], limit: ReadLimit
    ) -> dict[str, Position]:
        planned = {}
        unfit: JobpipeError | None = None
        self._planned.clear()
        self._limits.begin(limit, drains=self._ends.now)
        for topic, start, share in self._limits.shares(positions):
            try:
                planned[topic] = self._plan_one(session, topic, start, share)
            except (SchemaMismatch, UnsupportedType) as error:
                unfit = unfit or error  # plan the others all the same: that acknowledges what they delivered
        if unfit is not None:
            raise unfit
        if len(planned) > 1:
            ahead = self._ends.ahead(planned)
            cut_short = [
                topic
                for topic in ahead
                if planned[topic] != positions[topic] and session.has_more(topic, planned[topic])
            ]
            for topic, share in self._limits.rest(cut_short):
                planned[topic] = self._plan_one(session, topic, positions[topic], share)
        return dict(positions) if self._limits.holds() else planned

    def _plan_one(self, session: SubscriberSession, topic: str, start: Position, share: TopicLimit) -> Position:
        if self._ends.excludes(topic):
            return start
        end_at, begin = self._ends.of(topic), start
        wanted = self._options.assigned_partitions(topic)
        try:
            try:
                limits = share.limits(_at(start) if share.is_nothing else end_at)
                plan = session.plan(topic, start, limits, count=share.count, wanted=wanted)
            except DataLoss as loss:
                begin = self._after_loss(session, topic, loss)
                limits = share.limits(_at(begin) if share.is_nothing else end_at)
                plan = session.plan(topic, begin, limits, count=share.count, wanted=wanted)
            if not share.is_nothing:
                self._ends.note_stop(topic, plan.stop)
            if not self._ends.is_past_end(topic, plan.start):  # batches after our end are not read: any schema will do
                self._open().require_fit(topic, plan, stop=plan.stop)
        except RETRYABLE as error:
            log.debug("topic %s: no plan now (%s)", topic, error)
            return start
        if plan.rows:
            self._options.partitions(topic, plan.partitions)  # a wrong `assign` fails here, before Spark logs plan.end
        # plan.start is the same place as `begin`, with the epoch that the log has for it now.
        self._planned[_range_key(topic, start, plan.end)] = ReadRange(
            *(plan.start, plan.end, plan.partitions, begin != start, plan.lost, plan.rows, plan.data or "")
        )
        self._limits.take(topic, plan, moved=plan.start != start)
        return plan.end

    def _after_loss(self, session: SubscriberSession, topic: str, loss: DataLoss) -> Position:
        """Return where reading continues after what is lost, if ``failOnDataLoss=false`` allows it."""
        if self._options.fail_on_data_loss:
            raise loss
        tail = session.tail(topic)
        log.warning("%s; failOnDataLoss=false: reading continues at offset %d", loss, tail.n)
        return tail

    @hide_traceback
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the input partitions of each topic's range; see :func:`input_partitions`.

        Raises:
            DataLoss: the range does not fit the log any more.
            ConfigError: the options lead to too many input partitions.
        """
        topics = self._open()
        session = topics.session
        topics.follow(end)
        first, last = self._positions(topics, start), self._positions(topics, end, committed=False)
        found: list[TopicRange] = []
        reading = uuid.uuid4().hex
        for topic, stop in last.items():
            begin = first.get(topic) or self._start_of_new_topic(topics, topic, start, stop)
            if begin is None or begin == stop:
                continue
            known = self._planned.get(_range_key(topic, begin, stop))
            for plan in [known] if known else self._describe(session, topic, begin, stop):
                rows = pass_over(topic, plan.holes, fail=self._options.fail_on_data_loss)
                self._lost_rows[topic] = self._lost_rows.get(topic, 0) + rows
                if plan.lost or plan.holes:
                    self._skipped[topic] = self._skipped.get(topic, 0) + plan.lost + len(plan.holes)
                data = plan.data or session.data_endpoint(topic)
                wanted = self._options.partitions(topic, plan.partitions) if plan.rows else []
                parts = plan.readable()
                found.extend(
                    TopicRange(
                        *(topic, low, high, wanted, data, plan.rows // len(parts)),
                        counts=CountedRange(self._options.need_name(), low, high, reading),
                    )
                    for low, high in parts
                )
        return input_partitions(found, self._options, session.cut)

    def _start_of_new_topic(
        self, topics: SubscribedTopics, topic: str, start: Offset, stop: Position
    ) -> Position | None:
        """Return where a topic begins that is in a micro-batch's end only; None if no row of it is to be read."""
        if start == self._initial and self._new_topics.get(topic) != stop:
            # Batch 0 is replayed after a restart. Its end names `topic`, but this run's initialOffset does not, since
            # the topic was away.
            return topics.first_position(topic)
        return None

    def _describe(self, session: SubscriberSession, topic: str, begin: Position, stop: Position) -> list[ReadRange]:
        """Look up a range again that this run has not planned, and that is in Spark's log.

        With admission control a range has one schema and one parallelism. Without it, it may have several.
        """
        if begin.log == stop.log and begin.place > stop.place:
            raise DataLoss(
                f"topic {topic!r}: this checkpoint planned its first batch up to offset {stop.n} but never committed "
                f"it. Meanwhile another query used the subscription's name and moved it to offset {begin.n}. Give each "
                "query a name of its own, and this one a new checkpoint",
                topic=topic,
                position=stop.to_json(),
            )
        lost = False
        try:
            found = session.describe(topic, begin, stop)
        except DataLoss as loss:
            begin, lost = self._after_loss(session, topic, loss), True
            if begin.log != stop.log or begin.place >= stop.place:
                return [ReadRange(stop, stop, 0, lost)]  # all of it is lost
            found = session.describe(topic, begin, stop)
        if not found.plans:
            return [ReadRange(stop, stop, 0, lost)]
        ranges = []
        for plan in found.plans:
            self._open().require_fit(topic, plan, wait=True)
            ranges.append(
                ReadRange(*(plan.start, plan.end, plan.partitions, lost, plan.holes(found.lost), plan.rows, found.data))
            )
            lost = False  # counted once
        return ranges

    # -- in executor workers -------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one input partition; stateless."""
        assert isinstance(partition, RangePartition)  # noqa: S101 - Spark returns our own partitions
        rows = read_range(partition.wanted, self._schema, self._options)
        return counted(rows, partition.wanted, self._options.config)

    def _positions(self, topics: SubscribedTopics, offset: Offset, *, committed: bool = True) -> dict[str, Position]:
        """Return the positions in an offset; the coordinator is asked for the end of a slot (``readAhead``)."""
        found: dict[str, Position] = {}
        for topic, value in offset.items():
            here, slot = read_place(value)
            if slot is not None and slot not in self._slot_ends:
                self._slot_ends[slot] = topics.session.resolve_slot_end(topic, here, slot, committed=committed)
            found[topic] = here if slot is None else self._slot_ends[slot]
        return found

    def _open(self) -> SubscribedTopics:
        with self._lock:
            if self._prepare_error is not None:
                raise self._prepare_error
            if self._topics is None:
                self._topics = SubscribedTopics(self._options, self._schema)
            return self._topics


def _at(position: Position) -> Boundary:
    return Boundary("position", position)


def offset_of(positions: dict[str, Position]) -> Offset:
    """Return positions as Spark logs them."""
    return {topic: positions[topic].to_json() for topic in sorted(positions)}


def _range_key(topic: str, start: Position, end: Position) -> str:
    return json.dumps([topic, start.to_json(), end.to_json()], sort_keys=True)
