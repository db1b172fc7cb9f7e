"""The batch reader: what lies between two ends of each topic, by default all that is there when it is planned."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from jobpipe.config import Config
from jobpipe.discovery.locate import TopicLocator
from jobpipe.errors import ConfigError
from jobpipe.spark.fitness import BATCH, SchemaJudge
from jobpipe.spark.input_partitions import Stretch, input_partitions
from jobpipe.spark.options import SourceOptions
from jobpipe.spark.plainly import plainly
from jobpipe.spark.ranges import ReadRange, pass_over
from jobpipe.spark.reading import RangePartition, read_range
from jobpipe.store import Position
from jobpipe.store.boundary import EARLIEST, LATEST
from jobpipe.subscriber.hold import Held, held_while, lease_seconds
from jobpipe.subscriber.questions import ask_schema, control_link
from jobpipe.subscriber.session import removed_before

__all__ = ["JobPipeBatchReader"]

log = logging.getLogger(__name__)


class JobPipeBatchReader(DataSourceReader):
    """Reads topics once, from where the options begin (``earliest``) to where they end (``latest``, at planning)."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._judge = SchemaJudge(schema, options, BATCH)
        self._held: dict[str, Held] = {}  # by topic

    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read; a lease keeps the range from retention, and the tasks renew it while they read.

        Raises:
            ConfigError: ``assign`` names a partition that there is not, or too many topics match the pattern; nothing
                was published since the time to begin at; the read begins behind its end, or ends behind the newest
                batch; or the options lead to too many input partitions.
            SchemaMismatch: batches do not fit the schema that is read; names topic, offset and columns.
            DataLoss: the log does not have where it begins, or a host server is lost that kept some of it, and
                ``failOnDataLoss`` is on.
        """
        config = self._options.config
        deadline = time.monotonic() + config.discovery_timeout
        locator = TopicLocator(config)
        try:
            pattern = self._options.pattern
            topics = self._options.topics if pattern is None else pattern.served(locator)
            windows = {topic: self._window(config, locator, topic, deadline) for topic in topics}
            found: list[Stretch] = []
            for topic, window in windows.items():
                if window is not None and window[0] != window[1]:
                    found.extend(self._plan(config, locator, topic, *window))

            def cut(topic: str, args: dict[str, Any]) -> dict[str, Any]:
                with control_link(config, locator, topic, time.monotonic() + config.read_timeout) as link:
                    return link.call("cut", args, timeout=30.0).result

            made = input_partitions(found, self._options, cut)
            for each in made:
                each.held = self._held.get(each.wanted.topic)
            return made
        finally:
            locator.close()

    def _window(
        self, config: Config, locator: TopicLocator, topic: str, deadline: float
    ) -> tuple[Position, Position] | None:
        """Return where the read begins and ends, held by a lease; None for a topic of a pattern without any batch."""
        start, end = self._options.start_of(topic) or EARLIEST, self._options.end_of(topic) or LATEST
        with control_link(config, locator, topic, deadline) as link:
            if self._options.pattern is not None and ask_schema(link) is None:
                return None
            args = {
                "name": self._options.name or "",
                "start": start.to_json(),
                "end": end.to_json(),
                "skip_removed": not self._options.fail_on_data_loss,
            }
            bounds = link.call("bounds", args, timeout=10.0).result
            head, begin = Position.from_json(bounds["head"]), Position.from_json(bounds["start"])
            if bounds["end"] is None and end.kind == "offset":
                raise ConfigError(
                    f"topic {topic!r}: the read is to end at offset {end.value}, and the log ends at {head.n}. Read it "
                    "when so many batches are there, as a stream with this end waits for them; or end at latest",
                    topic=topic,
                    end=end.value,
                    head=head.to_json(),
                )
            if bounds["lost"]:
                log.warning("%s", removed_before(topic, begin, int(bounds["lost"])))
            stop = Position.from_json(bounds["end"] or bounds["head"])
            held = Held(topic, uuid.uuid4().hex, begin.n, stop.n, link.peer, lease_seconds(config))
            link.call("lease", held.args(), timeout=10.0)
            self._held[topic] = held
            if begin == stop == head:
                self._judge.demand(topic, {"start": bounds["start"], "end": bounds["start"]}, partial(ask_schema, link))
            return begin, stop

    def _plan(
        self, config: Config, locator: TopicLocator, topic: str, begin: Position, stop: Position
    ) -> list[Stretch]:
        with control_link(config, locator, topic, time.monotonic() + config.discovery_timeout) as link:
            answer = link.call("range", {"start": begin.to_json(), "end": stop.to_json()}, timeout=30.0).result
            for plan in answer["plans"]:
                self._judge.demand(topic, plan, partial(ask_schema, link))
        pass_over(topic, answer["lost"], fail=self._options.fail_on_data_loss)
        found: list[Stretch] = []
        for plan in answer["plans"]:
            start, end = Position.from_json(plan["start"]), Position.from_json(plan["end"])
            holes = [hole for hole in answer["lost"] if start.n <= hole["start"]["n"] < end.n]
            ranges = ReadRange(start, end, int(plan["partitions"]), False, tuple(holes)).readable()
            wanted = self._options.partitions(topic, int(plan["partitions"])) if plan["rows"] else []
            rows = int(plan["rows"]) // max(len(ranges), 1)
            found += [Stretch(topic, low, high, wanted, answer["data"], rows) for low, high in ranges]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one input partition; none for the empty one that Spark makes up."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return self._read(partition)

    def _read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        with held_while(partition.held, self._options.config):
            yield from read_range(partition.wanted, self._schema, self._options)
