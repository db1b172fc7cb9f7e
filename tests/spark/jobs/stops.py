"""Stops a publisher's query in each wait of its sink, then lets it go on to a subscriber's query: ``stops.py FOLDER``.

Prints for each wait how the stop went, and how many rows arrived. It, its tasks and its coordinators can be told to
hang at a point: see ``tests/faults/inject``.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from session import session, started

import jobpipe
from jobpipe import JobPipeSink
from jobpipe.operations.coordinator_operations import CONTROL
from jobpipe.publishing import batch_admission
from jobpipe.testing import Journal, NumberedRows
from tests.faults.points import FaultPoints
from tests.spark.kit import Received, file_stream, write_files

BATCHES = 6
PATIENCE = 60.0
NOBODY_YET = "later"  # the subscription that reads in the end

folder = Path(sys.argv[1])
points = FaultPoints.inherited()
spark = session("local[2]")
outcome: dict[str, Any] = {}


class Waiting:
    """Watches what a sink asks its coordinator, to know when it waits."""

    def __init__(self, sink: JobPipeSink) -> None:
        self.there = threading.Event()
        self.when: Callable[[str, Any], bool] = lambda _op, _result: False
        self.before: Callable[[str], None] = lambda _op: None
        channel: Any = sink._publisher._channel
        real = channel.call

        def call(request: Any) -> Any:
            (op,) = (name for name, operation in CONTROL.items() if operation.request is type(request))
            self.before(op)
            reply = real(request)
            if self.when(op, reply.to_json()):
                self.there.set()
            return reply

        channel.call = call


def stop_it(topic: str, sink: JobPipeSink, there: Callable[[float], bool]) -> None:
    """Start the query, stop it when it is ``there``, and note how that went."""
    query = writer(topic, sink).start()
    assert there(PATIENCE), f"{topic}: it never came there: {query.exception()}"
    began = time.monotonic()
    query.stop()
    outcome[topic] = {
        "seconds": time.monotonic() - began,
        "error": str(query.exception() or ""),
        "active": query.isActive,
        "sealed": sink._counts["batches"],
    }


def writer(topic: str, sink: JobPipeSink) -> Any:
    """Return the publisher's query, not started."""
    stream = file_stream(spark, folder / topic).writeStream.foreachBatch(sink)
    return stream.option("checkpointLocation", str(folder / "checkpoints" / topic))


@contextmanager
def published(topic: str, size: int = 100, **settings: Any) -> Iterator[JobPipeSink]:
    """Give a sink; at the end of the block the query goes on, a subscriber's reads all, and the oracle judges."""
    rows, journal = NumberedRows(topic, partitions=2, rows=size, payload=400), Journal()
    write_files(folder / topic, rows, range(BATCHES))
    for batch_id in range(BATCHES):
        with journal.sealing(batch_id, rows.ranges(batch_id)):
            pass
    sink = JobPipeSink(
        topic,
        parallelism=2,
        partition_by="partition",
        required_subscribers=[NOBODY_YET],
        acks_timeout="5min",
        **settings,
    )
    yield sink
    received = Received()
    going_on = writer(topic, sink).trigger(availableNow=True).start()  # first: it may be the first to seal anything
    stream = spark.readStream.format("jobpipe").options(subscribe=topic, name=NOBODY_YET).load()
    checkpoint = str(folder / "checkpoints" / f"{topic}-{NOBODY_YET}")
    reading = started(stream.writeStream.foreachBatch(received).option("checkpointLocation", checkpoint))
    assert going_on.awaitTermination(int(PATIENCE)), f"{topic}: it does not go on"
    sink.close(final=True)
    jobpipe.await_end(reading, timeout=PATIENCE)
    received.check(rows, journal)
    outcome[topic] |= {"rows": received.rows, "size": size}


def full_spool() -> None:
    """It waits for room."""
    small = {"spool_max_bytes": "1MiB", "segment_max_bytes": "1MiB", "retention_ack_grace": "0s"}
    with published("full", 1000, write_path="collect", **small) as sink:
        waiting = Waiting(sink)
        waiting.when = lambda op, result: op == "begin" and result.get("full") is not None
        stop_it("full", sink, waiting.there.wait)


def acks() -> None:
    """It waits for a subscriber that is not there."""
    with published("acks", acks="all") as sink:
        waiting = Waiting(sink)
        waiting.when = lambda op, result: op == "acked" and bool(result["missing"])
        stop_it("acks", sink, waiting.there.wait)


def coordinator_stands_still(op: str) -> None:
    """Its coordinator gets SIGSTOP right before it is asked."""
    with (
        published(f"still-{op}") as sink,
        mock.patch.object(batch_admission, "ADMISSION_SECONDS", 0.0),
    ):  # else a seal admits
        waiting = Waiting(sink)
        coordinator = psutil.Process(sink._publisher.coordinator.process.pid)

        def before(asked: str) -> None:
            if asked == op and sink._counts["batches"] == 1 and not waiting.there.is_set():
                os.kill(coordinator.pid, signal.SIGSTOP)
                waiting.there.set()

        waiting.before = before
        try:
            stop_it(f"still-{op}", sink, lambda timeout: waiting.there.wait(timeout) and not time.sleep(1.0))
        finally:
            coordinator.resume()


def disk_hangs(point: str, path: str) -> None:
    """An fsync does not return: the coordinator's of the catalog, the driver's or a task's of a file."""
    topic = f"hangs-{path}-{point.replace(' ', '-')}"
    with published(topic, 1000, write_path=path) as sink:
        points.arm(point, "hang", seconds=PATIENCE)

        def there(timeout: float) -> bool:
            points.wait_used(timeout)
            return True

        try:
            stop_it(topic, sink, there)
        finally:
            points.release()


trials: list[Callable[[], None]] = [
    full_spool,
    acks,
    lambda: coordinator_stands_still("begin"),
    lambda: coordinator_stands_still("seal"),
    lambda: disk_hangs("before commit", "collect"),
    lambda: disk_hangs("before fsync", "collect"),
    lambda: disk_hangs("before fsync", "tasks"),
]
for trial in trials:
    began = time.monotonic()
    trial()
    print(f"{list(outcome)[-1]}: {time.monotonic() - began:.1f} s", flush=True)
print(json.dumps(outcome), flush=True)
spark.stop()
