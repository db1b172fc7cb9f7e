"""A chain without Spark, in one process: a publisher of orders, a flow job that finds the large ones, a client.

Run it as ``python examples/flow_alerts.py``. It prints how many milliseconds after their orders were published the
first alerts arrived. The very first takes longer: connections are made, and modules loaded.
"""

from __future__ import annotations

import sys
import threading
import time

import pyarrow as pa
import pyarrow.compute as pc

import jobpipe

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.float64()), ("at", pa.float64())])


def large(batch: pa.RecordBatch, context: jobpipe.FlowContext) -> pa.RecordBatch:
    """Return the orders above 100."""
    return batch.filter(pc.greater(batch["amount"], 100.0))


def publish(orders: jobpipe.PlainPublisher, stopping: threading.Event) -> None:
    """Publish twenty batches of seven orders, of which one is large; then the topic ends."""
    for batch in range(20):
        orders.write([{"id": 10 * batch + n, "amount": 50.0 + 10 * n, "at": time.time()} for n in range(7)])
        if stopping.wait(0.05):
            break
    orders.close(final=True)


def show(alerts: jobpipe.Subscription) -> None:
    """Print each alert; end with the topic, or when none has come for three seconds."""
    for batch in alerts.batches(timeout=3.0):
        for order, at in zip(batch["id"].to_pylist(), batch["at"].to_pylist(), strict=True):
            print(f"alert for order {order} after {(time.time() - at) * 1000:.1f} ms")


def main() -> int:
    """Run the chain until its end mark has come through, or a signal comes; return the exit code."""
    stopping = threading.Event()
    with jobpipe.publisher("example-orders", schema=SCHEMA) as orders:
        flow = jobpipe.flow(
            subscribe="example-orders", name="large", function=large, publish="example-alerts", schema=SCHEMA
        )
        with jobpipe.subscribe("example-alerts", name="example", starting="latest") as alerts:
            alerts.position()  # from here on it gets what comes
            others = [threading.Thread(target=publish, args=(orders, stopping))]
            others.append(threading.Thread(target=show, args=(alerts,)))
            for thread in others:
                thread.start()
            code = jobpipe.run(flow, sinks=[])  # publish() closes its topic itself
            stopping.set()
            for thread in others:
                thread.join()
    return code


if __name__ == "__main__":
    sys.exit(main())
