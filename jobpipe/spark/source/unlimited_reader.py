"""The stream reader for Spark 4.0 and 4.1, which lack admission control.

Such a Spark asks for the newest offset, and tells neither where the micro-batch begins nor how much it may take. What
it does tell, by its order of calls (4.0.5 and 4.1.4):

- At the start of a run over an existing checkpoint it calls ``partitions(off, off)`` with the newest offset of its log.
  That comes first. With ``spark.sql.streaming.triggerAvailableNowWrapper.enabled`` and the trigger ``availableNow`` it
  comes after the first ``latestOffset()``, whose answer is the end of the whole run, and before anything is logged.
- Without that setting, which is its default, ``availableNow`` is a run of one micro-batch. So the first answer of each
  run is all that is there.
- A new checkpoint's ``initialOffset()`` comes after the first answer, perhaps after that was logged.
- ``latestOffset()`` may be called again for a report, before and after a micro-batch.

So an answer is repeated until it has come back as the end of a micro-batch, and only what came back is acknowledged
with the next call: Spark has committed it by then.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from jobpipe.errors import ConfigError, DataLoss, JobpipeError, SchemaMismatch, UnsupportedType
from jobpipe.spark.session.user_errors import hide_traceback
from jobpipe.spark.source.stream_reader import JobPipeStreamReader, Offset, offset_of
from jobpipe.spark.source.subscribed_topics import Positions, SubscribedTopics
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import COMMITTED, LATEST, Boundary


class UnlimitedStreamReader(JobPipeStreamReader):
    """Reads topics as a stream; the first micro-batch of each run takes all that is there."""

    _answer: Positions | None = None  # what latestOffset returned last
    _reached: Positions | None = None  # the end of the newest micro-batch, or where Spark's log ends

    @hide_traceback
    def initialOffset(self) -> Offset:
        """Return where a new checkpoint begins: no later than the end that Spark may have logged for it already."""
        if self._initial is None:
            topics, ends = self._open(), self._reached or self._answer or {}
            found = {topic: self._first_position(topics, topic, ends.get(topic)) for topic in self._options.topics}
            self._initial = offset_of(found)
        return self._initial

    def _first_position(self, topics: SubscribedTopics, topic: str, stop: Position | None) -> Position:
        start, end = self._options.starts.of(topic) or COMMITTED, self._options.ends.of(topic)
        if stop is not None and end in (None, LATEST) and start.kind in ("latest", "committed", "time"):
            begin = topics.session.begin(topic, start)
            if begin.log == stop.log and begin.place > stop.place:  # rows have come since `stop` was the end
                start = Boundary("position", stop)
        return topics.session.first_position(topic, start, end)

    @hide_traceback
    def latestOffset(self) -> Offset:  # type: ignore[override]
        """Return the end of the next micro-batch, the same one until Spark has made it.

        Raises:
            JobpipeError: see :class:`JobPipeStreamReader`.
        """
        topics = self._open()
        if self._answer is None:
            if self._reached is not None:
                self.commit(offset_of(self._reached))
            reached = self._reached or {}
            self._answer = {topic: self._first_end(topics, topic, reached.get(topic)) for topic in self._options.topics}
        elif self._answer == self._reached:
            planned = super().latestOffset(offset_of(self._reached), self.getDefaultReadLimit())
            self._answer = self._positions(topics, planned)
        return offset_of(self._answer)

    def _first_end(self, topics: SubscribedTopics, topic: str, here: Position | None) -> Position:
        """Return the end of a topic; or, where rows come that do not fit after such as do, where these begin.

        Args:
            here: where the run begins; None if that is not known yet.

        Raises:
            DataLoss, ConfigError: the run cannot begin where it is to begin.
            SchemaMismatch, UnsupportedType: its first rows do not fit.
        """
        start, end = self._options.starts.of(topic) or COMMITTED, self._options.ends.of(topic) or LATEST
        stop, may_be_past = topics.session.end(topic, end), here is None and topics.session.is_known(topic)
        try:
            begin = here or topics.session.begin(topic, COMMITTED if may_be_past else start)
            if begin.log != stop.log or begin.place >= stop.place:
                if here is not None and here.log != stop.log:
                    raise self._before(topic, here, stop)
                return here or stop
            plans = topics.session.describe(topic, begin, stop).plans
        except DataLoss:
            if self._options.fail_on_data_loss and not may_be_past:
                raise
            return stop  # told, or skipped, where the rows are read; or the checkpoint is further on
        any_fits = False
        for plan in plans:
            try:
                topics.require_fit(topic, plan, wait=True)
            except (SchemaMismatch, UnsupportedType):
                if any_fits:
                    return plan.start
                if not may_be_past:
                    raise
            else:
                any_fits = True
        return stop

    @hide_traceback
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the input partitions of each topic's range, which may have several schemas."""
        topics = self._open()
        topics.follow(end)
        reached = self._positions(topics, end)
        if start == end and self._reached is None and self._answer is not None:
            self._require_after(topics, reached, self._answer)
        found = super().partitions(start, end)
        self._reached = reached
        return found

    def _require_after(self, topics: SubscribedTopics, here: Positions, answer: Positions) -> None:
        """See that the run can go from where the checkpoint is to the end that was given for it; nothing is logged yet.

        Raises:
            ConfigError: the options end before.
            DataLoss: the topic does, or its log is another one.
            SchemaMismatch, UnsupportedType: the next rows do not fit.
        """
        for topic, begin in here.items():
            stop = answer[topic]
            if begin.log != stop.log or begin.place > stop.place:
                raise self._before(topic, begin, stop)
            for plan in topics.session.describe(topic, begin, stop).plans if begin != stop else ():
                topics.require_fit(topic, plan, wait=True)

    def _before(self, topic: str, begin: Position, stop: Position) -> JobpipeError:
        if self._options.ends.of(topic) not in (None, LATEST):
            return ConfigError(
                f"topic {topic!r}: the read ends at offset {stop.n}, and this checkpoint is at offset {begin.n} "
                f"already: let it end later, or leave {self._options.ends.option} out",
                topic=topic,
            )
        return DataLoss(
            f"topic {topic!r}: this checkpoint is at offset {begin.n} of log {begin.log}, and the topic ends at offset "
            f"{stop.n} of log {stop.log}. If its publisher has just restarted, start this query again when it has "
            "sealed its next batch. If the spool was replaced, bring the old one back, or begin with a new checkpoint. "
            "If the query's schema was changed, run it once without the trigger availableNow",
            topic=topic,
            position=begin.to_json(),
            reason="other log" if begin.log != stop.log else "not there yet",
        )

    def _start_of_new_topic(
        self, topics: SubscribedTopics, topic: str, start: Offset, stop: Position
    ) -> Position | None:
        """Return where a topic begins that was added to the options; the run's end may lie far after that."""
        return self._first_position(topics, topic, stop)
