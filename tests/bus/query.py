"""A query without Spark: asks a stream reader what Spark's engine asks, with Spark's logs of offsets and commits."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.spark.source.data_source import JobPipeDataSource
from jobpipe.spark.source.stream_reader import JobPipeStreamReader
from jobpipe.spark.source.unlimited_reader import UnlimitedStreamReader
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.bus.kit import PATIENCE, Bus


def _sent(thing: Any) -> Any:
    """Return what another process of Spark gets."""
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - ours


class Query:
    """Micro-batches over a reader. :meth:`restart` makes a new reader, whatever the old one was about to do."""

    def __init__(self, **options: str) -> None:
        self.options = options
        self.schema = self._learn()
        self.offsets: list[str] = []  # Spark's log: JSON, as it compares it
        self.committed = 0
        self.sink: dict[int, dict[str, list[pa.RecordBatch]]] = {}  # by batch id and topic
        self.slowest = 0.0  # seconds of one latestOffset
        self.reader: JobPipeStreamReader
        self._start()

    def _source(self) -> JobPipeDataSource:
        return JobPipeDataSource(self.options)

    def _learn(self) -> StructType:
        """What ``load()`` gives."""
        return self._source().schema()

    def _start(self) -> None:
        source = _sent(self._source())
        self.reader = source.streamReader(StructType.fromJson(json.loads(self.schema.json())))

    def restart(self, **options: str) -> None:
        """Start again from the logs."""
        self.reader.stop()
        self.options |= options
        self._start()
        if len(self.offsets) > self.committed:
            self.run()
            self.commit()

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Ask for the next end offset and log it; tell whether there is anything new.

        Args:
            limit: ReadAllAvailable is what Spark gives with ``Trigger.Once``; otherwise it is the reader's own.
        """
        if len(self.offsets) > self.committed:
            return True
        start = self.offsets[-1] if self.offsets else json.dumps(self.reader.initialOffset())
        began = time.monotonic()
        end = json.dumps(self.reader.latestOffset(json.loads(start), limit or self.reader.getDefaultReadLimit()))
        self.slowest = max(self.slowest, time.monotonic() - began)
        if self.offsets and end == start:
            return False
        self.offsets.append(end)
        return True

    def run(self) -> None:
        """Read the batch that was logged last; it must be what it was if it was read before."""
        batch_id = len(self.offsets) - 1
        start = json.loads(self.offsets[-2]) if batch_id else self.reader.initialOffset()
        found: dict[str, list[pa.RecordBatch]] = {}
        for partition in self.reader.partitions(start, json.loads(self.offsets[-1])):
            wanted = _sent(partition)
            found.setdefault(wanted.wanted.topic, []).extend(_sent(self.reader).read(wanted))
        if batch_id in self.sink:
            assert found == self.sink[batch_id], f"batch {batch_id} came again, and not as it was"
        self.sink[batch_id] = found

    def commit(self) -> None:
        """Note that the batch is done; Spark tells the reader of the one before."""
        if self.committed:
            self.reader.commit(json.loads(self.offsets[self.committed - 1]))
        self.committed += 1

    def step(self) -> bool:
        """Run one micro-batch, if there is anything new."""
        if not self.plan():
            return False
        self.run()
        self.commit()
        return True

    def until(self, condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
        """Run until the condition holds."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}; at {self.end}"
            self.step()

    @property
    def end(self) -> dict[str, Any]:
        """The newest end offset."""
        return json.loads(self.offsets[-1]) if self.offsets else {}

    def rows(self, topic: str) -> int:
        """How many rows of a topic came."""
        return sum(batch.num_rows for found in self.sink.values() for batch in found.get(topic, ()))

    def check(self, rows: NumberedRows, journal: Journal) -> None:
        """Check that every row that was sealed into the topic of ``rows`` came, once and in order."""
        checker = Checker(rows, journal)
        for _, found in sorted(self.sink.items()):
            for batch in found.get(rows.topic, ()):
                checker.take(batch)
        checker.check()


class UnlimitedQuery(Query):
    """A query of Spark 4.0 or 4.1: it asks for an end before it knows where it begins, and says neither.

    Runs are as in MicroBatchExecution and AvailableNowMicroBatchStreamWrapper of 4.0.5 and 4.1.4. ``between`` is called
    between the calls of the reader; whatever it raises ends the run there.
    """

    def __init__(self, between: Callable[[], None] = lambda: None, **options: str) -> None:
        self.between = between
        super().__init__(**options)

    def _start(self) -> None:
        self._make_reader()
        self._tell_latest_seen()

    def _make_reader(self) -> None:
        source = _sent(self._source())
        self.reader = UnlimitedStreamReader(source._settings, StructType.fromJson(json.loads(self.schema.json())))

    def _tell_latest_seen(self) -> None:
        """Do as ``setLatestSeenOffset``: with an ordinary trigger, before anything else."""
        if self.offsets:
            assert not self.reader.partitions(json.loads(self.offsets[-1]), json.loads(self.offsets[-1]))

    def _latest(self) -> str:
        assert isinstance(self.reader, UnlimitedStreamReader)
        found = json.dumps(self.reader.latestOffset())
        self.between()
        return found

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Ask for the next end offset and log it; tell whether there is anything new."""
        if len(self.offsets) > self.committed:
            return True
        end = self._latest()
        if self.offsets and end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        self.between()
        return True

    def run(self) -> None:
        """Read the batch that was logged last."""
        super().run()
        self.between()

    def run_once(self) -> None:
        """Make a run of one micro-batch, which ``availableNow`` is too by default; it may be one that is repeated."""
        self.reader.stop()
        self._start()
        if self.plan():
            self.run()
            self.commit()
        self.reader.stop()

    def run_now(self, *, reports: bool = False) -> None:
        """Make a run by ``availableNow`` with Spark's wrapper; there are calls for reports too."""
        self.reader.stop()
        self._make_reader()
        fetched = self._latest()
        self._tell_latest_seen()
        while True:
            if len(self.offsets) > self.committed:
                self.run()
                self.commit()
            if not self.offsets:
                self.reader.initialOffset()
                self.between()
            if reports:
                self._latest()
            if self.offsets and fetched == self.offsets[-1]:
                break
            self.offsets.append(fetched)
            self.between()
        self.reader.stop()


class Topics:
    """Topics ``a``, ``b`` ... whose names begin alike, what was sealed into each, and queries over them."""

    def __init__(self, bus: Bus, settings: dict[str, str]) -> None:
        self.bus = bus
        self._settings = settings
        self._queries: list[Query] = []
        self.rows: dict[str, NumberedRows] = {}
        self.journals: dict[str, Journal] = {}
        self.publishers: dict[str, Publisher] = {}

    def name(self, letter: str) -> str:
        """The topic's name."""
        return f"{self.bus.topic}-{letter}"

    def options(self, letters: str = "a", **options: str) -> dict[str, str]:
        """Options of a ``load()``, over these topics if nothing else is said; it begins at earliest."""
        which = {"subscribe": ",".join(self.name(letter) for letter in letters)}
        which = {} if options.keys() & {"subscribePattern", "assign"} else which
        return {**self._settings, **which, "name": "billing", "startingOffsets": "earliest", **options}

    def query(self, letters: str = "a", **options: str) -> Query:
        """Start a query; it is stopped with the test."""
        made = Query(**self.options(letters, **options))
        self._queries.append(made)
        return made

    def check(self, query: Query, letters: str = "a") -> None:
        """Check that every row is there once and in order."""
        for letter in letters:
            query.check(self.rows[letter], self.journals[letter])

    def drain(self, query: Query, letters: str = "a") -> None:
        """Run until every row is there, and check them."""
        for letter in letters:
            name, wanted = self.name(letter), self.journals[letter].rows
            query.until(lambda name=name, wanted=wanted: query.rows(name) >= wanted, f"rows of {letter}")
        self.check(query, letters)

    def close(self) -> None:
        """Stop the queries."""
        for query in self._queries:
            query.reader.stop()


def read_once(**options: str) -> dict[str, list[pa.RecordBatch]]:
    """Return what ``spark.read`` reads, by topic."""
    source = _sent(JobPipeDataSource(options))
    reader = _sent(source.reader(source.schema()))
    found: dict[str, list[pa.RecordBatch]] = {}
    for partition in reader.partitions():
        wanted = _sent(partition)
        found.setdefault(wanted.wanted.topic, []).extend(_sent(reader).read(wanted))
    return found
