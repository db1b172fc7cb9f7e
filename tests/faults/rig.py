"""What the fault tests share: a running harness, chance with a printed seed, progress, and the verdict at the end."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil

from jobpipe.testing.delivery_checker import Checker, Report
from tests.harness.jobs.consume import Received
from tests.harness.processes import Harness
from tests.harness.program import Program

PAUSE = 0.02  # seconds between two batches
PATIENCE = 60.0  # seconds; the machine is shared, and nothing waits so long when all is well
SESSION = 4.0  # seconds a registry session of the harness lives without its owner


FILES: dict[str, Any] = {"rows": 50, "payload": 1000}  # batches too large for the catalog itself; few rows: cheap
OWN_ZOOKEEPER: dict[str, Any] = {"zookeeper": None}  # for tests that kill it


class SHARED:
    """Home of the ZooKeeper that the tests share, each behind a proxy and in a namespace of its own."""

    zookeeper: Path | None = None


def chance() -> random.Random:
    """Return where moments come from; ``JOBPIPE_SEED`` plays them again."""
    seed = int(os.environ.get("JOBPIPE_SEED", random.randrange(2**32)))
    print(f"JOBPIPE_SEED={seed}")
    return random.Random(seed)


@contextmanager
def running(
    folder: Path,
    *,
    pause: float = PAUSE,
    consumers: Iterable[str] = ("all",),
    start: dict[str, Any] | None = None,
    **how: Any,
) -> Iterator[Harness]:
    """Run a publisher and its subscribers; all ends with the block, and nothing is left of it."""
    with Harness(folder / "rig", **{"zookeeper": SHARED.zookeeper, **how}) as rig:
        rig.publisher.start(pause=pause, **(start or {}))
        for name in consumers:
            rig.consumer(name).start()
        for name in consumers:
            more(rig, name)
        yield rig
    assert rig._marked() == []
    assert not rig.zookeeper.left


def more(rig: Harness, name: str = "all", rows: int = 500, timeout: float = PATIENCE) -> float:
    """Wait until so many more rows have arrived; return how many seconds it took."""
    began, target = time.monotonic(), rig.received(name) + rows
    rig.wait_until(lambda: rig.received(name) >= target, f"{rows} more rows for {name}", timeout)
    return time.monotonic() - began


def later_rows(rig: Harness, name: str = "all", timeout: float = PATIENCE) -> float:
    """Wait until a row has arrived that was sealed after this call; return how many seconds it took."""
    began, target = time.monotonic(), rig.journal.rows
    rig.wait_until(lambda: rig.received(name) > target, "a row sealed from now on", timeout)
    return time.monotonic() - began


def conclude(rig: Harness, *names: str, max_pause: float | None = None) -> list[Report]:
    """Let all end; nothing may be lost, twice, out of order or damaged, for any subscriber."""
    rig.finish()
    reports = [rig.verdict(name, max_pause=max_pause) for name in names or ("all",)]
    for report in reports:
        assert report.rows >= rig.journal.rows > 0  # a batch that a killed publisher left open may have come too
    return reports


def sound_so_far(rig: Harness, *names: str) -> None:
    """Wait until all that is sealed by now has arrived, nothing being wrong with it. The pair runs on.

    A subscriber may be in the middle of a batch; a fault that is one does not go by waiting.
    """
    sealed = rig.journal
    must = {partition: max(end for _, end in ranges) for partition, ranges in sealed.sealed().items()}

    def faults(name: str) -> str:
        with closing(Received(rig._store(name))) as received:
            arrived = [table for _, table in received.batches()]
        checker = Checker(rig.rows, rig.journal)  # read after them: all that they hold is intended by now
        for table in arrived:
            checker.take(table)
        report = checker.report()
        report.lost = [(partition, number) for partition, number in report.lost if number < must[partition]]
        return str(report) if report.faults else ""

    for name in names or ("all",):
        rig.wait_until(lambda: rig.received(name) >= sealed.rows, f"what is sealed by now, for {name}")  # noqa: B023
        deadline = time.monotonic() + 5.0
        while found := faults(name):
            assert time.monotonic() < deadline, found


def suspend_between_transactions(rig: Harness, name: str = "all") -> None:
    """Stop a subscriber job while it holds no lock on the file of what it has received, which others go on using."""
    consumer = rig.consumer(name)
    process = psutil.Process(consumer.pid)

    def stopped() -> bool:
        consumer.suspend()
        rig.wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "the subscriber stands still")
        with closing(sqlite3.connect(rig._store(name), timeout=0.0, isolation_level=None)) as database:
            try:
                database.execute("begin immediate")
            except sqlite3.OperationalError:
                consumer.resume()
                return False
            database.execute("rollback")
            return True

    rig.wait_until(stopped, "the subscriber stands still between two transactions")


def another_publisher(rig: Harness, log: str = "publisher-2") -> Program:
    """Return a second publisher job of the same query: same checkpoint, same journal."""
    return rig._program("tests.harness.jobs.publish", log, rig._publish_order)


def processes_of(publisher: Program) -> list[psutil.Process]:
    """Return a publisher job with its coordinator and data process, children last."""
    driver = psutil.Process(publisher.pid)
    return [driver, *driver.children(recursive=True)]


def gone(processes: Iterable[psutil.Process], timeout: float = PATIENCE) -> None:
    """Wait for the end of processes."""
    left = psutil.wait_procs(list(processes), timeout)[1]
    assert not left, f"these go on running: {left}"
