"""The batch reader: everything that lies in the topics when it is planned."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from jobpipe.config import Config
from jobpipe.discovery.locate import TopicLocator
from jobpipe.spark.options import SourceOptions
from jobpipe.spark.ranges import ReadRange, pass_over
from jobpipe.spark.reading import RangePartition, read_range
from jobpipe.spark.topics import demand_schema, published_schema
from jobpipe.store import Position
from jobpipe.subscriber.fetch import FetchRange
from jobpipe.subscriber.questions import control_link

__all__ = ["JobPipeBatchReader"]


class JobPipeBatchReader(DataSourceReader):
    """Reads topics once, from ``startingOffsets`` (by default ``earliest``) to their heads at planning time."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read; a lease keeps the range from retention for ``read.timeout``.

        Raises:
            ConfigError: ``assign`` names a partition that there is not, or too many topics match the pattern.
            SchemaMismatch: a topic of the pattern that came since ``load()`` has another schema.
            DataLoss: a host server is lost that kept some of it, and ``failOnDataLoss`` is on.
        """
        config = self._options.config
        deadline = time.monotonic() + config.discovery_timeout
        locator = TopicLocator(config)
        try:
            found: list[InputPartition] = []
            pattern = self._options.pattern
            for topic in self._options.topics if pattern is None else pattern.served(locator):
                found.extend(self._plan(config, locator, topic, deadline))
        finally:
            locator.close()
        return found

    def _plan(self, config: Config, locator: TopicLocator, topic: str, deadline: float) -> list[RangePartition]:
        with control_link(config, locator, topic, deadline) as link:
            if self._options.pattern is not None:
                schema = link.call("schema", {"wait": 0}, timeout=10.0)
                if schema.result["id"] is None:
                    return []
                published = published_schema(schema.blob, schema.result["spark"])
                demand_schema(topic, published, self._schema, "Read it by a load() of its own")
            bounds = link.call("bounds", {"name": self._options.name or ""}, timeout=10.0).result
            chosen = {"earliest": bounds["tail"], "latest": bounds["head"], "committed": bounds["committed"]}
            begin = chosen[self._options.starting or "earliest"] or bounds["tail"]
            span = {"first": Position.from_json(begin).n, "last": Position.from_json(bounds["head"]).n}
            link.call("lease", {"id": uuid.uuid4().hex, "seconds": config.read_timeout, **span}, timeout=10.0)
            answer = link.call("range", {"start": begin, "end": bounds["head"]}, timeout=30.0).result
        pass_over(topic, answer["lost"], fail=self._options.fail_on_data_loss)
        found: list[RangePartition] = []
        for plan in answer["plans"]:
            start, end = Position.from_json(plan["start"]), Position.from_json(plan["end"])
            holes = [hole for hole in answer["lost"] if start.n <= hole["start"]["n"] < end.n]
            ranges = ReadRange(start, end, int(plan["partitions"]), False, tuple(holes)).readable()
            wanted = self._options.partitions(topic, int(plan["partitions"])) if plan["rows"] else []
            found += [
                RangePartition(FetchRange(topic, low, high, k, answer["data"])) for low, high in ranges for k in wanted
            ]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one input partition; none for the empty one that Spark makes up."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(partition.wanted, self._schema, self._options.config)
