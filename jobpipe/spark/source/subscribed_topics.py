"""Which topics a stream reads, and where it begins in each: those of ``subscribe``, or those that a pattern finds."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from functools import partial

from pyspark.sql.types import StructType

from jobpipe.discovery.topic_lookup import TopicLocator
from jobpipe.errors import ConfigError
from jobpipe.net.retry import Deadline
from jobpipe.operations.range_messages import PlannedRange
from jobpipe.spark.options.read_options import SourceOptions
from jobpipe.spark.session.launch_settings import application_name
from jobpipe.spark.source.schema_check import STREAM, SchemaCheck
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import COMMITTED, EARLIEST, Boundary
from jobpipe.subscribing.subscriber_session import SubscriberSession
from jobpipe.subscribing.topic_patterns import TopicFinder

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
Positions = dict[str, Position]


class SubscribedTopics:
    """The topics of one stream, and the session that follows them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Connect.

        Raises:
            TopicNotFound: a topic's publisher did not come in time; with a pattern: none at all.
            NameTaken: another live subscriber has the name.
        """
        began = time.monotonic()
        self._options = options
        self._finder: TopicFinder | None = None
        self._judge = SchemaCheck(schema, options, STREAM)
        name, skip = options.need_name(), not options.fail_on_data_loss
        application = application_name()
        if options.pattern is None:
            self.session = SubscriberSession.open(
                options.config, options.topics, name, skip_removed=skip, application=application
            )
            self.at_start = list(options.topics)
            self._require_partitions()
        else:
            self.session = SubscriberSession(
                options.config, TopicLocator(options.config), name, skip_removed=skip, application=application
            )
            self._finder = TopicFinder(
                self.session,
                options.pattern,
                partial(
                    self._judge.require_newest,
                    remedy=f"It was found by subscribePattern={options.pattern.text!r}. Read it by a load() of its own",
                ),
            )
            try:
                self.at_start = self._finder.connect()
            except BaseException:
                self.close()
                raise
        log.info("subscribed to %s in %.2f s", ", ".join(self.at_start), time.monotonic() - began)

    def left_out(self, topic: str) -> list[str]:
        """Return the columns that the newest range of ``topic`` has, and the query does not read."""
        return self._judge.left_out.get(topic, [])

    def close(self) -> None:
        if self._finder is not None:
            self._finder.close()
        self.session.close()

    def first_positions(self) -> Positions:
        """Return where a new checkpoint begins; the answer is stored, and repeated until something is committed.

        With a pattern, a topic that cannot say so is not here: it is found later.

        Raises:
            TopicNotFound: no topic of the pattern could.
            SchemaMismatch: a topic of the pattern has another schema.
            DataLoss, ConfigError: there is no such position, or it lies after the end; see ``session``.
        """
        if self._finder is None:
            return {topic: self.first_position(topic) for topic in self._options.topics}
        deadline = Deadline(self._options.config.discovery_timeout)
        while not (found := self._finder.first_positions(self.at_start, self._between)):
            if deadline.passed:
                assert self._options.pattern is not None  # noqa: S101 - there is a finder
                raise self._options.pattern.none_found(self._options.config, "no topic that has a schema was reached")
            time.sleep(RETRY_SECONDS)
        return found

    def first_position(self, topic: str) -> Position:
        """Return where ``topic`` begins in the first batch of a checkpoint, waiting for its publisher."""
        start, end = self._between(topic) if self._finder is None else (EARLIEST, None)
        return self.session.first_position(topic, start, end)

    def require_fit(self, topic: str, plan: PlannedRange, *, stop: Position | None = None, wait: bool = False) -> None:
        """See that the batches of a plan fit the query's schema, before Spark gets them.

        Args:
            topic: whose plan.
            plan: as the coordinator answered.
            stop: nothing after that is read.
            wait: for its publisher, should the link be away.

        Raises:
            SchemaMismatch: names topic, offset, and each column with both types.
            LinkError: the coordinator cannot be asked for the schema now.
        """
        self._judge.require(topic, plan, partial(self.session.schema, topic, wait=wait), stop=stop)

    def fits(self, topic: str, number: int) -> bool:
        """Tell whether a schema of ``topic`` fits the query's, without complaint if not.

        Raises:
            LinkError: the coordinator cannot be asked for the schema now.
        """
        return self._judge.fits(topic, number, partial(self.session.schema, topic))

    def follow(self, topics: Iterable[str]) -> None:
        """Take in the topics of a checkpoint.

        One that a pattern found is kept, although it may not be served now, and whatever the pattern is now.

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

    def new_topics(self, known: Collection[str], *, found_by_now: bool) -> Positions:
        """Return the topics that are not in the checkpoint, and where each begins.

        Args:
            known: the topics in the checkpoint.
            found_by_now: no topic that comes later counts (``availableNow``).
        """
        if self._finder is None:
            return {topic: self.first_position(topic) for topic in self._options.topics if topic not in known}
        if not found_by_now:
            return self._finder.new_topics(known)
        found = {t: self._finder.first_position(t, EARLIEST) for t in self.at_start if t not in known}
        return {topic: position for topic, position in found.items() if position is not None}

    def _between(self, topic: str) -> tuple[Boundary, Boundary | None]:
        return self._options.starts.of(topic) or COMMITTED, self._options.ends.of(topic)

    def _require_partitions(self) -> None:
        """Tell of a wrong ``assign`` now, not with the first batch."""
        try:
            for topic, parallelism in self.session.parallelism().items():
                self._options.partitions(topic, parallelism)
        except ConfigError:
            self.close()
            raise
