"""Which topics a stream reads, and where it begins in each: those of ``subscribe``, or those that a pattern finds."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from jobpipe.discovery.locate import TopicLocator
from jobpipe.errors import ConfigError, SchemaMismatch
from jobpipe.spark.metadata import METADATA
from jobpipe.spark.options import SourceOptions
from jobpipe.spark.schema import arrow_schema, parse_spark_schema, schema_difference
from jobpipe.store import Position
from jobpipe.subscriber.matching import TopicFinder
from jobpipe.subscriber.session import SubscriberSession

__all__ = ["StreamTopics", "demand_schema", "published_schema"]

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
Positions = dict[str, Position]


class StreamTopics:
    """The topics of one stream, and the session that follows them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Connect.

        Raises:
            TopicNotFound: a topic's publisher did not come in time; with a pattern: none at all.
            NameTaken: another live subscriber has the name.
        """
        began = time.monotonic()
        self._options = options
        self._starting = options.starting or "committed"
        self._finder: TopicFinder | None = None
        name = options.need_name()
        if options.pattern is None:
            self.session = SubscriberSession.open(options.config, options.topics, name)
            self.at_start = list(options.topics)
            self._demand_partitions()
        else:
            self.session = SubscriberSession(options.config, TopicLocator(options.config), name)
            self._finder = TopicFinder(
                self.session, options.pattern, lambda topic, arrow, spark: self._demand(topic, arrow, spark, schema)
            )
            try:
                self.at_start = self._finder.connect()
            except BaseException:
                self.close()
                raise
        log.info("subscribed to %s in %.2f s", ", ".join(self.at_start), time.monotonic() - began)

    def close(self) -> None:
        """Let the name go."""
        if self._finder is not None:
            self._finder.close()
        self.session.close()

    def first_positions(self) -> Positions:
        """Return where a new checkpoint begins; the answer is stored, and repeated until something is committed.

        With a pattern, a topic that cannot say so is not here: it is found later.

        Raises:
            TopicNotFound: no topic of the pattern could.
            SchemaMismatch: a topic of the pattern has another schema.
        """
        if self._finder is None:
            return {topic: self.session.first_position(topic, self._starting) for topic in self._options.topics}
        deadline = time.monotonic() + self._options.config.discovery_timeout
        while not (found := self._finder.first_positions(self.at_start, self._starting)):
            if time.monotonic() >= deadline:
                assert self._options.pattern is not None  # noqa: S101 - there is a finder
                raise self._options.pattern.none_found(self._options.config, "no topic that has a schema was reached")
            time.sleep(RETRY_SECONDS)
        return found

    def first_position(self, topic: str) -> Position:
        """Return where ``topic`` begins in the first batch of a checkpoint, waiting for its publisher."""
        return self.session.first_position(topic, self._starting if self._finder is None else "earliest")

    def follow(self, topics: Iterable[str]) -> None:
        """Take in the topics of a checkpoint.

        One that a pattern found is kept, although nobody may serve it now, and whatever the pattern is now.

        Raises:
            ConfigError: ``subscribe``, or ``assign``, does not name one of them any more.
        """
        if self._finder is not None:
            for topic in topics:
                self.session.follow(topic)
            return
        strange = sorted(set(topics) - set(self._options.topics))
        if strange:
            raise ConfigError(
                f"this checkpoint reads topic {strange[0]!r}, which the options do not name any more. Name it again, "
                "or begin with a new checkpoint, under another name",
                topic=strange[0],
            )

    def newcomers(self, known: Collection[str], *, found_by_now: bool) -> Positions:
        """Return the topics beside those of the checkpoint, and where each begins.

        Args:
            known: the topics in the checkpoint.
            found_by_now: no topic that comes later counts (``availableNow``).
        """
        if self._finder is None:
            return {topic: self.first_position(topic) for topic in self._options.topics if topic not in known}
        if not found_by_now:
            return self._finder.newcomers(known)
        found = {t: self._finder.first_position(t, "earliest") for t in self.at_start if t not in known}
        return {topic: position for topic, position in found.items() if position is not None}

    def _demand_partitions(self) -> None:
        """Tell of a wrong ``assign`` now, not with the first batch."""
        try:
            for topic, parallelism in self.session.parallelism().items():
                self._options.partitions(topic, parallelism)
        except ConfigError:
            self.close()
            raise

    def _demand(self, topic: str, arrow: bytes, spark: str | None, schema: StructType) -> None:
        pattern = self._options.pattern
        found = f"It was found by subscribePattern={pattern.text!r}. " if pattern else ""
        demand_schema(topic, published_schema(arrow, spark), schema, f"{found}Read it by a load() of its own")


def demand_schema(topic: str, published: StructType, asked: StructType, remedy: str) -> None:
    """Compare what a topic has with what is read: in a task a difference would crash the JVM.

    Raises:
        SchemaMismatch: names topic and columns.
    """
    rows = StructType([field for field in asked.fields if field.name != METADATA])
    lines = schema_difference(arrow_schema(published), arrow_schema(rows))
    if lines:
        raise SchemaMismatch(
            f"topic {topic!r}: the schema asked for is not the published one: {'; '.join(lines)}. {remedy}",
            topic=topic,
            columns=lines,
        )


def published_schema(arrow: bytes, spark: str | None) -> StructType:
    """Return a topic's schema as Spark has it."""
    if spark is not None:
        return parse_spark_schema(spark)
    from pyspark.sql.pandas.types import from_arrow_schema

    schema: Any = pa.ipc.read_schema(pa.py_buffer(arrow))
    return from_arrow_schema(schema)
