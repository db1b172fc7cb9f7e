"""``python -m tests.faults.spark.spark_flow``: a Spark application whose flow job passes numbered rows on.

Takes the order of :mod:`tests.harness.jobs.flow` on standard input. It ends when its source has ended, or at SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

import pyarrow as pa

import jobpipe
from jobpipe.config import config_from_dict
from jobpipe.errors import WaitTimeout
from jobpipe.testing import SCHEMA
from tests.harness.jobs.flow import FlowOrder
from tests.spark.jobs.session import session


def passed_on(batch: pa.RecordBatch, context: jobpipe.FlowContext) -> pa.RecordBatch:
    """Return the rows as they are."""
    return batch


def flow(order: FlowOrder, stop: threading.Event) -> None:
    """Pass rows on until the source's end, or ``stop``."""
    spark = session(f"local[{order.tasks + 1}]")
    running = jobpipe.flow(
        spark,
        subscribe=order.topic,
        name=order.name,
        function=passed_on,
        publish=order.publish,
        schema=SCHEMA,
        starting="earliest",
        config=config_from_dict(order.config),
    )
    with running:
        while not stop.is_set() and os.getppid() == order.parent:
            try:
                running.await_end(0.2)
            except WaitTimeout:
                continue
            break
    spark.stop()


def main() -> None:
    """Obey one order."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    flow(FlowOrder(**json.loads(sys.stdin.buffer.readline())), stop)


if __name__ == "__main__":
    main()
