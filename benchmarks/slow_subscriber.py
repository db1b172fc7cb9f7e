"""One subscriber of three at 1 MB/s while 1 GB is published: do the other two notice, and does memory stay flat?

Publishes the same amount twice to three plain clients in processes of their own: once all are quick, once the third one
is throttled by a proxy. Prints for both runs the time of the two quick ones, from the first batch to their last row,
and the memory of coordinator and data process; fails if the quick ones take more than 1.2 times as long, or if memory
grows by more than 100 MB.

    python -m benchmarks.slow_subscriber [--gigabytes 1]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

import jobpipe
from jobpipe.config import Config, config_from_dict
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from tests.harness.processes import Harness

BATCH_ROWS = 8_000
ROW_BYTES = 1_008
RATE = 1_000_000  # bytes a second
TIMES, GROWTH_MB = 1.2, 100
QUICK = ("one", "two")


def read() -> None:
    """Be a subscriber: say when the name is held and when all rows are here."""
    order = json.loads(sys.stdin.readline())
    rows = 0
    config = config_from_dict(order["config"])
    with jobpipe.subscribe(order["topic"], name=order["name"], starting="earliest", config=config) as stream:
        stream.position()
        print("ready", flush=True)
        for batch in stream:
            rows += batch.num_rows
            if rows >= order["rows"]:
                print(json.dumps({"at": time.monotonic()}), flush=True)
                return


def start(topic: str, name: str, config: Config, rows: int) -> subprocess.Popen[str]:
    """Start a subscriber; it has its name on return."""
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.slow_subscriber", "--read"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps({"topic": topic, "name": name, "config": config.to_dict(), "rows": rows}) + "\n")
    child.stdin.flush()
    assert child.stdout.readline() == "ready\n"
    return child


def run(rig: Harness, topic: str, third: Config, batches: int) -> dict[str, Any]:
    """Publish to three subscribers; return seconds and memory."""
    publisher = Publisher(topic, config=rig.config)
    table = pa.table({"id": pa.array(range(BATCH_ROWS), pa.int64()), "text": ["x" * (ROW_BYTES - 8)] * BATCH_ROWS})
    publisher.declare(table.schema)
    readers = {name: start(topic, name, rig.config, batches * BATCH_ROWS) for name in QUICK}
    readers["third"] = start(topic, "third", third, batches * BATCH_ROWS)
    coordinator = psutil.Process(publisher.coordinator.process.pid)
    servers = [coordinator, *coordinator.children()]
    memory: list[list[int]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            memory.append([process.memory_info().rss for process in servers])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        began = time.monotonic()
        for batch_id in range(batches):
            publisher.seal("q", batch_id, [table], run_id="r")
        published = time.monotonic() - began
        seconds = {}
        for name in QUICK:
            answer = readers[name].stdout
            assert answer is not None
            seconds[name] = json.loads(answer.readline())["at"] - began
        lag = next(line["lag"]["bytes"] for line in publisher.status()["subscriptions"] if line["name"] == "third")
    finally:
        over.set()
        watcher.join()
        for reader in readers.values():
            reader.kill()
            reader.communicate()
    publisher.close()
    warm = memory[len(memory) // 5]
    peak = [max(column) for column in zip(*memory, strict=True)]
    return {
        "seconds": seconds,
        "published": published,
        "third_lags_mb": lag / 1e6,
        "coordinator_mb": [warm[0] / 1e6, peak[0] / 1e6],
        "data_mb": [warm[1] / 1e6, peak[1] / 1e6],
    }


def main() -> int:
    """Run both and compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--read", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read()
        return 0
    batches = max(round(options.gigabytes * 1e9 / (BATCH_ROWS * ROW_BYTES)), 5)
    with (
        tempfile.TemporaryDirectory(prefix="slow-") as folder,
        Harness(Path(folder), proxied=True, settings={"spool.max_bytes": "8GiB"}) as rig,
    ):
        for proxy in rig.proxies:
            proxy.limit_rate(RATE, "down")
        run(rig, "warm", rig.config, 5)
        quick = run(rig, "all-quick", rig.config, batches)
        slow = run(rig, "one-slow", rig.subscribers_config, batches)
        end_coordinators()
    print(f"{batches} batches, {batches * BATCH_ROWS * ROW_BYTES / 1e9:.2f} GB")
    for name, found in (("all quick", quick), ("third at 1 MB/s", slow)):
        print(f"{name}: {json.dumps(found, default=float)}")
    ratio = max(slow["seconds"].values()) / max(quick["seconds"].values())
    growth = max(slow[key][1] - slow[key][0] for key in ("coordinator_mb", "data_mb"))
    print(f"the quick ones take {ratio:.2f} times as long; memory grows by {growth:.0f} MB")
    return 0 if ratio <= TIMES and growth <= GROWTH_MB else 1


if __name__ == "__main__":
    sys.exit(main())
