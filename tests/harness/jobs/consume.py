"""``python -m tests.harness.jobs.consume``: a subscriber job to be killed.

Told what to do by one JSON line on standard input (:class:`ConsumeOrder`). It reads as Spark's stream reader does: it
plans from its own stored position, not from the acknowledged one, fetches, stores rows and position in one SQLite
transaction, and acknowledges afterwards. So its state holds every row exactly once, if jobpipe keeps its promise. It
ends at the topic's end mark, at SIGTERM, or when the process that started it is gone.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from jobpipe.config import Config, config_from_dict
from jobpipe.coordinator.server_process import set_up_logging
from jobpipe.errors import DataLoss
from jobpipe.net.retry import RETRYABLE
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import Boundary, ReadLimits
from jobpipe.subscribing.fetching.count_report import CountedRange, counted
from jobpipe.subscribing.fetching.part_fetch import FetchRange, fetch
from jobpipe.subscribing.subscriber_session import SubscriberSession

log = logging.getLogger(__name__)

NEWS_SECONDS = 0.5
RETRY_SECONDS = 0.05
MAX_BYTES = 16 * 1024 * 1024  # of one transaction

TABLES = """
create table if not exists position (id integer primary key check (id = 0), json text not null);
create table if not exists received (
  id integer primary key, at real not null, first integer not null, last integer not null, rows integer not null,
  batch blob not null
);
create table if not exists total (id integer primary key check (id = 0), rows integer not null);
create trigger if not exists counted after insert on received begin
  insert into total values (0, new.rows) on conflict (id) do update set rows = rows + excluded.rows;
end;
"""


@dataclass(frozen=True)
class ConsumeOrder:
    """What a subscriber job is told.

    Attributes:
        config: As :meth:`jobpipe.config.Config.to_dict` writes it.
        store: Its SQLite file; outlives it.
        max_rows: Of one transaction; a batch larger than that is read in several.
        parallel: How many partitions are read at once, as Spark's tasks do.
        pause: Seconds after each transaction.
        parent: Process id of the starter.
    """

    config: dict[str, str]
    store: str
    topic: str
    name: str
    parent: int
    starting: str = "earliest"
    max_rows: int | None = None
    parallel: int = 1
    pause: float = 0.0

    def line(self) -> bytes:
        """Return the order as the program reads it."""
        return json.dumps(asdict(self)).encode() + b"\n"


class Received:
    """What a subscriber has: its position, and the record batches up to it in the order of their arrival."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=30.0, isolation_level=None)
        self._database.execute("pragma journal_mode = wal")
        self._database.execute("pragma synchronous = full")
        self._database.executescript(TABLES)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @property
    def position(self) -> Position | None:
        """Up to where everything is here; None before the first rows."""
        row = self._database.execute("select json from position").fetchone()
        return None if row is None else Position.from_json(json.loads(row[0]))

    @property
    def rows(self) -> int:
        """How many rows are here."""
        row = self._database.execute("select rows from total").fetchone()
        return 0 if row is None else int(row[0])

    def store(self, start: Position, end: Position, batches: list[pa.RecordBatch]) -> None:
        """Add rows and move the position, both or neither.

        Raises:
            RuntimeError: another process has moved the position: two subscribers have one state.
        """
        self._database.execute("begin immediate")
        with self._database:  # commits, or rolls back
            if self.position not in (None, start):
                raise RuntimeError(f"the position is {self.position}, not {start}: who moved it?")
            at = time.monotonic()
            self._database.executemany(
                "insert into received (at, first, last, rows, batch) values (?, ?, ?, ?, ?)",
                [(at, start.n, end.n, batch.num_rows, _pack(batch)) for batch in batches],
            )
            self._database.execute("replace into position values (0, ?)", [json.dumps(end.to_json())])

    def batches(self) -> Iterator[tuple[float, pa.Table]]:
        """Yield what arrived, with its time (:func:`time.monotonic`, one clock for all processes of a host)."""
        for at, packed in self._database.execute("select at, batch from received order by id"):
            yield at, pa.ipc.open_stream(packed).read_all()


def _pack(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")  # payloads repeat themselves
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def consume(order: ConsumeOrder, stop: threading.Event) -> None:
    """Read until the end mark, ``stop``, or the end of the starter."""
    config = config_from_dict(order.config)
    with closing(Received(Path(order.store))) as received:
        session = SubscriberSession.open(config, [order.topic], order.name)
        try:
            at = received.position or session.first_position(order.topic, Boundary.of(order.starting, "starting"))
            while not stop.is_set() and os.getppid() == order.parent:
                end = _read_on(session, order, config, received, at)
                if end == at and _at_end(session, order.topic, at):
                    return
                if end == at:
                    session.wait({order.topic: at}, NEWS_SECONDS)
                at = end
                stop.wait(order.pause)
        finally:
            session.close()


def _read_on(
    session: SubscriberSession, order: ConsumeOrder, config: Config, received: Received, at: Position
) -> Position:
    """Acknowledge ``at``, store what follows it, and return the new position."""
    try:
        plan = session.plan(order.topic, at, ReadLimits(max_rows=order.max_rows, max_bytes=MAX_BYTES))
    except RETRYABLE as error:
        log.info("no plan now: %s", error)
        time.sleep(RETRY_SECONDS)
        return at
    start, end = plan.start, plan.end
    if end == at:
        return at
    data = plan.data or session.data_endpoint(order.topic)
    counts = CountedRange(order.name, start, end, uuid.uuid4().hex)
    ranges = [
        FetchRange(order.topic, start, end, partition, data, counts.part(partition))
        for partition in range(plan.partitions)
    ]

    def task(wanted: FetchRange) -> list[pa.RecordBatch]:
        return list(counted((fetched.batch for fetched in fetch(wanted, config)), wanted, config))

    try:
        with ThreadPoolExecutor(order.parallel) as pool:
            partitions = list(pool.map(task, ranges))
    except DataLoss as error:
        if error.fields.get("reason") != "sealed again":
            raise
        log.warning("reading this batch again, as a restarted query does: %s", error)
        time.sleep(RETRY_SECONDS)
        return at
    received.store(at, end, [batch for batches in partitions for batch in batches])
    return end


def _at_end(session: SubscriberSession, topic: str, at: Position) -> bool:
    news = (session.report() or {}).get(topic)
    return news is not None and bool(news["ended"]) and at.to_json().items() <= news.items()


def main() -> None:
    """Obey one order."""
    set_up_logging()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    consume(ConsumeOrder(**json.loads(sys.stdin.buffer.readline())), stop)


if __name__ == "__main__":
    main()
