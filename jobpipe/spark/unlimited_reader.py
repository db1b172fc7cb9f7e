"""The stream reader for Spark 4.0 and 4.1, which lack admission control.

They ask for the newest offset before anything else, and tell neither where the micro-batch begins nor how much it may
take. So the first offset of a run, which may be all that a trigger such as ``availableNow`` asks for, is where the
topics end now: wherever the checkpoint is, it is not beyond that. From then on the reader knows where it is, as Spark
goes on from the offset that it was given last.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from jobpipe.errors import DataLoss
from jobpipe.spark.stream_reader import JobPipeStreamReader, Offset
from jobpipe.spark.topics import StreamTopics
from jobpipe.spark.user_errors import hide_traceback
from jobpipe.store.boundary import COMMITTED, LATEST, Boundary
from jobpipe.store.position import Position


class UnlimitedStreamReader(JobPipeStreamReader):
    """Reads topics as a stream; the first micro-batch of a run takes all that is there."""

    @hide_traceback
    def initialOffset(self) -> Offset:
        """Return where a new checkpoint begins: no later than the offset that Spark has as its end already."""
        if self._initial is None:
            topics = self._open()
            self._initial = {
                topic: self._first_position(topics, topic).to_json() for topic in sorted(self._options.topics)
            }
        return self._initial

    def _first_position(self, topics: StreamTopics, topic: str) -> Position:
        start, end = self._options.starts.of(topic) or COMMITTED, self._options.ends.of(topic)
        known = self._newest_end.get(topic)
        if known is not None and end in (None, LATEST) and _is_head(topics, topic, start):
            start = Boundary("position", known)  # the head moves on meanwhile
        return topics.session.first_position(topic, start, end)

    @hide_traceback
    def latestOffset(self) -> Offset:  # type: ignore[override]
        """Acknowledge the offset before, which Spark has committed by now, and plan what follows.

        The first one of a run is where each topic ends. If rows come before that end that do not fit the schema that is
        read, it is where these begin: what lies before them is delivered.

        Raises:
            JobpipeError: see :class:`JobPipeStreamReader`.
        """
        if self._newest_end:
            here = {topic: self._newest_end[topic].to_json() for topic in sorted(self._newest_end)}
            return super().latestOffset(here, self.getDefaultReadLimit())
        topics = self._open()
        self._newest_end = {topic: self._first_end(topics, topic) for topic in sorted(self._options.topics)}
        return {topic: end.to_json() for topic, end in self._newest_end.items()}

    def _first_end(self, topics: StreamTopics, topic: str) -> Position:
        """Return the end of a topic, or where rows begin that do not fit after such as do."""
        start, end = self._options.starts.of(topic) or COMMITTED, self._options.ends.of(topic) or LATEST
        begin, stop = topics.session.committed_to(topic, start, end)
        if begin is None or begin.log != stop.log or begin.place >= stop.place:
            return stop
        try:
            plans = topics.session.describe(topic, begin, stop).plans
        except DataLoss:  # told where the rows are read
            return stop
        any_fits = False
        for plan in plans:
            fits = plan.schema_id is None or topics.fits(topic, plan.schema_id)
            if any_fits and not fits:
                return plan.start
            any_fits = any_fits or fits
        return stop

    @hide_traceback
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the input partitions of each topic's range, which may have several schemas."""
        topics = self._open()
        first, last = self._positions(topics, start), self._positions(topics, end)
        if not self._newest_end:  # Spark repeats the last micro-batch of the run before
            self._newest_end = dict(last)
        for topic, position in last.items():
            begin = first.get(topic)
            if begin is not None and begin.log == position.log and begin.place > position.place:
                _require_repeated(topic, begin, position, is_first=start == self._initial)
                start = {**start, topic: end[topic]}  # nothing of it is read now; the next micro-batch begins there
        return super().partitions(start, end)

    def _begin_of_newcomer(self, topics: StreamTopics, topic: str, start: Offset, stop: Position) -> Position | None:
        """Return where a topic begins that was added to the options: the first end of a run may lie beyond that."""
        return self._first_position(topics, topic)


def _is_head(topics: StreamTopics, topic: str, start: Boundary) -> bool:
    """Tell whether a checkpoint that begins at ``start`` begins where the topic ends."""
    return start == LATEST or (start == COMMITTED and topics.session.standing(topic) is None)


def _require_repeated(topic: str, begin: Position, stop: Position, *, is_first: bool) -> None:
    """See why a micro-batch begins after its end.

    The first one of a checkpoint may: if the run before ended between Spark's log of its end and our first position.

    Raises:
        DataLoss: it is not the first one.
    """
    if not is_first:
        raise DataLoss(
            f"topic {topic!r}: this checkpoint is at offset {begin.n}, and its next micro-batch was to end at offset "
            f"{stop.n}, before it. Under Spark 4.0 and 4.1 this happens if a query whose schema was changed is "
            "started where rows of several schemas follow. Start it with a new checkpoint, under the same name",
            topic=topic,
            position=stop.to_json(),
        )
