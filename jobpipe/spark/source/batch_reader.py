"""The batch reader: what lies between two ends of each topic, by default all that is there when it is planned."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from jobpipe.config import Config
from jobpipe.discovery.topic_lookup import TopicLocator
from jobpipe.errors import ConfigError, DataLoss
from jobpipe.net.retry import Deadline
from jobpipe.operations.messages.calls import ask_blocking
from jobpipe.operations.range_messages import PlannedRange
from jobpipe.operations.reader_operations import Bounds, BoundsRequest, CutReply, CutRequest, RangeRequest
from jobpipe.spark.options.read_options import SourceOptions
from jobpipe.spark.session.user_errors import hide_traceback
from jobpipe.spark.source.input_partitions import TopicRange, input_partitions
from jobpipe.spark.source.offset_ranges import ReadRange, pass_over
from jobpipe.spark.source.partition_reader import RangePartition, read_range
from jobpipe.spark.source.schema_check import BATCH, SchemaCheck
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import EARLIEST, LATEST, Boundary
from jobpipe.subscribing.lease_renewal import HeldLease, held_while, lease_seconds
from jobpipe.subscribing.one_off_requests import ask_schema, control_link
from jobpipe.subscribing.subscriber_session import removed_before

log = logging.getLogger(__name__)

UNDECIDED_SECONDS = 0.2  # between two questions whether the end of a range is decided


class JobPipeBatchReader(DataSourceReader):
    """Reads topics once, from where the options begin (``earliest``) to where they end (``latest``, at planning)."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._judge = SchemaCheck(schema, options, BATCH)
        self._held: dict[str, HeldLease] = {}  # by topic

    @hide_traceback
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read; a lease keeps the range from retention, and the tasks renew it while they read.

        Raises:
            ConfigError: ``assign`` names a partition that does not exist, or too many topics match the pattern; nothing
                was published since the time to begin at; the read begins after its end, or ends after the newest
                batch; or the options lead to too many input partitions.
            SchemaMismatch: batches do not fit the schema that is read; names topic, offset and columns.
            DataLoss: the log does not have where it begins, or a host server is lost that kept some of it, and
                ``failOnDataLoss`` is on.
        """
        config = self._options.config
        deadline = Deadline(config.discovery_timeout)
        locator = TopicLocator(config)
        try:
            pattern = self._options.pattern
            topics = self._options.topics if pattern is None else pattern.served(locator)
            windows = {topic: self._window(config, locator, topic, deadline) for topic in topics}
            found: list[TopicRange] = []
            for topic, window in windows.items():
                if window is not None and window[0] != window[1]:
                    found.extend(self._plan(config, locator, topic, *window))

            def cut(topic: str, asked: CutRequest) -> CutReply:
                with control_link(config, locator, topic, Deadline(config.read_timeout)) as link:
                    return ask_blocking(link, asked, timeout=30.0)

            made = input_partitions(found, self._options, cut)
            for each in made:
                each.held = self._held.get(each.wanted.topic)
            return made
        finally:
            locator.close()

    def _window(
        self, config: Config, locator: TopicLocator, topic: str, deadline: Deadline
    ) -> tuple[Position, Position] | None:
        """Return where the read begins and ends, held by a lease; None for a topic of a pattern without any batch."""
        start, end = self._options.starts.of(topic) or EARLIEST, self._options.ends.of(topic) or LATEST
        with control_link(config, locator, topic, deadline) as link:
            if self._options.pattern is not None and ask_schema(link) is None:
                return None
            asked = BoundsRequest(
                name=self._options.name or "", start=start, end=end, skip_removed=not self._options.fail_on_data_loss
            )
            bounds = ask_blocking(link, asked, timeout=10.0)
            while bounds.end is None and end.kind == "time" and self._options.ends.option == "upperBound":
                # By the topic's clock that time has not passed: rows may come that belong to the range.
                if deadline.passed:
                    raise ConfigError(
                        f"topic {topic!r}: upperBound lies after the time of the topic's host; give one that has "
                        "passed, or set that clock right",
                        topic=topic,
                        end=end.value,
                    )
                time.sleep(UNDECIDED_SECONDS)
                bounds = ask_blocking(link, asked, timeout=10.0)
            self._require_there(topic, start, bounds)
            head, begin = bounds.head, bounds.start
            if bounds.end is None and end.kind == "offset":
                raise ConfigError(
                    f"topic {topic!r}: the read is to end at offset {end.value}, but the log ends at {head.n}. Read "
                    "later, when it has these batches; or end at latest; or use a stream with this end, which waits",
                    topic=topic,
                    end=end.value,
                    head=head.to_json(),
                )
            if bounds.lost:
                log.warning("%s", removed_before(topic, begin, bounds.lost))
            stop = bounds.end or head
            held = HeldLease(topic, secrets.token_hex(16), begin.n, stop.n, link.peer, lease_seconds(config))
            ask_blocking(link, held.request(), timeout=10.0)
            self._held[topic] = held
            if begin == stop == head:
                nothing = PlannedRange(start=begin, end=begin, rows=0, bytes=0, partitions=0, ends=False)
                self._judge.require(topic, nothing, partial(ask_schema, link))
            return begin, stop

    def _require_there(self, topic: str, start: Boundary, bounds: Bounds) -> None:
        """Refuse a range by time of which rows were removed; a stream that starts at such a time begins at the oldest.

        Raises:
            DataLoss: rows of its time or later are gone, and ``failOnDataLoss`` is on.
        """
        if self._options.starts.option != "lowerBound" or start.kind != "time" or not isinstance(start.value, int):
            return
        if not start.value <= bounds.removed_ms:
            return
        since, until = (datetime.fromtimestamp(ms / 1000, UTC).isoformat() for ms in (start.value, bounds.removed_ms))
        what = f"topic {topic!r}: what was published up to {until} was removed, and the range begins at {since}"
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{what}. Skip the range, or read what is left of it with failOnDataLoss=false",
                topic=topic,
                reason="removed",
                removed=bounds.removed_ms,
            )
        log.warning("%s", what)

    def _plan(
        self, config: Config, locator: TopicLocator, topic: str, begin: Position, stop: Position
    ) -> list[TopicRange]:
        with control_link(config, locator, topic, Deadline(config.discovery_timeout)) as link:
            reply = ask_blocking(link, RangeRequest(start=begin, end=stop), timeout=30.0)
            for plan in reply.plans:
                self._judge.require(topic, plan, partial(ask_schema, link))
        pass_over(topic, reply.lost, fail=self._options.fail_on_data_loss)
        found: list[TopicRange] = []
        for plan in reply.plans:
            ranges = ReadRange(plan.start, plan.end, plan.partitions, False, plan.holes(reply.lost)).readable()
            wanted = self._options.partitions(topic, plan.partitions) if plan.rows else []
            rows = plan.rows // max(len(ranges), 1)
            found += [TopicRange(topic, low, high, wanted, reply.data, rows) for low, high in ranges]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one input partition; none for the empty one that Spark makes up."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return self._read(partition)

    def _read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        with held_while(partition.held, self._options.config):
            yield from read_range(partition.wanted, self._schema, self._options)
