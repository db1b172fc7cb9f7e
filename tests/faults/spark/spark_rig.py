"""A harness whose publisher and subscribers are Spark applications, each a driver of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from jobpipe.testing.delivery_checker import Checker, Report
from jobpipe.testing.journal import Journal
from tests.faults.rig import SHARED, gone, more
from tests.harness.jobs.consume import Received
from tests.harness.processes import Harness
from tests.harness.program import END_SECONDS, Program, module_of

ROOT = Path(__file__).parents[3]
SPARK_PATIENCE = 180.0  # seconds; JVMs and their workers start, on a machine that may be very busy
PAUSE = 0.2  # seconds between two batches: enough to flow, and time for the machine to start other things
LINGER = "120s"  # longer than an application takes to start on such a machine
OPTIONS = "options.json"  # in the rig's folder, if there are any: more options of the subscriber's load()
REQUIRED: Mapping[str, Any] = {"required_subscribers": ["all"]}  # it begins later, with the first row
PROGRAMS = {
    "tests.harness.jobs.publish": "tests.faults.spark.spark_publish",
    "tests.harness.jobs.consume": "tests.faults.spark.spark_subscribe",
    "tests.harness.jobs.flow": "tests.faults.spark.spark_flow",
}


class Events:
    """What an application did and when (:func:`time.monotonic`, one clock for all processes), a JSON line each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: dict[str, Any] = {}

    def note(self, what: str, **more: Any) -> None:
        """Note something."""
        line = json.dumps({"what": what, "at": time.monotonic(), "pid": os.getpid(), **more})
        with self._path.open("a") as file:
            file.write(line + "\n")

    def note_change(self, what: str, **more: Any) -> None:
        """Note something unless it is as it was."""
        if self._last.get(what) != more:
            self._last[what] = more
            self.note(what, **more)

    def read(self, what: str, since: float = 0.0) -> list[dict[str, Any]]:
        """Return what was noted, in order."""
        if not self._path.exists():
            return []
        lines = [line for line in self._path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        found = [json.loads(line) for line in lines]
        return [event for event in found if event["what"] == what and event["at"] >= since]


def events_of(folder: Path, name: str = "publisher") -> Events:
    """Return the events of the publisher, or of a subscriber."""
    return Events(folder / f"events-{name}")


class SparkProgram(Program):
    """A driver: Python, its Java, and the Python workers of that. A coordinator that it started is not of them."""

    def family(self) -> list[psutil.Process]:
        """Return its processes that live, Python first."""
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            waiting = [psutil.Process(self.pid)]
            while waiting:
                process = waiting.pop(0)
                with contextlib.suppress(psutil.NoSuchProcess):
                    if module_of(process).startswith("jobpipe.coordinator"):
                        continue
                    found.append(process)
                    waiting.extend(process.children())
        return found

    def java(self) -> psutil.Process:
        """Return its JVM."""
        return next(process for process in self.family() if process.name() == "java")

    def kill_some(self, victim: str) -> list[psutil.Process]:
        """End its processes whose name begins so, or "all" of them, where they are; return those that lived before."""
        family = self.family()
        self.end_is_expected()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):  # some end with others
                if victim == "all" or process.name().startswith(victim):
                    process.send_signal(signal.SIGKILL)
        return family

    def end_is_expected(self) -> None:
        """Its end, that comes of itself, is no failure."""
        self._hurt = True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal: SIGTERM to Python, as a supervisor does; others to all."""
        if number is signal.SIGTERM:
            super().signal(number)
            return
        self._hurt = self._hurt or number is signal.SIGKILL
        for process in self.family() if self.alive else []:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        """``kill -9`` of all; they are gone on return."""
        family = self.family() if self.alive else []
        self.signal(signal.SIGKILL)
        self.process.wait(END_SECONDS)
        gone(family, END_SECONDS)


class SparkHarness(Harness):
    """One topic, its publisher and its subscribers; each a Spark application."""

    publisher: SparkProgram

    def spark_consumer(self, name: str = "all") -> SparkProgram:
        """Return the application of a subscription."""
        program = self.consumer(name)
        assert isinstance(program, SparkProgram)
        return program

    def _program(self, module: str, name: str, make_order: Callable[..., Any]) -> Program:
        plain = super()._program(module, name, make_order)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return SparkProgram(PROGRAMS[module], make_order, plain.log, {**(plain._environ or {}), "PYTHONPATH": path})

    @property
    def events(self) -> Events:
        """What the publisher did."""
        return events_of(self.folder)

    def link(self, name: str = "all") -> dict[str, Any]:
        """Return what a subscriber's query said of its link in its last progress: state, reconnects, epoch."""
        return events_of(self.folder, name).read("link")[-1]


@contextlib.contextmanager
def spark_pair(
    folder: Path,
    *,
    pause: float = PAUSE,
    settings: Mapping[str, str] | None = None,
    options: Mapping[str, Any] = REQUIRED,
    **how: Any,
) -> Iterator[SparkHarness]:
    """Run a publisher, with these options, and a subscriber, started one after the other; all ends with the block."""
    settings = {"coordinator.linger": LINGER, **(settings or {})}
    with SparkHarness(folder / "rig", settings=settings, **{"zookeeper": SHARED.zookeeper, **how}) as rig:
        rig.publisher.start(pause=pause, options=dict(options))
        rig.wait_until(lambda: rig.journal.batches, "the first batch", SPARK_PATIENCE)
        rig.consumer().start()
        more(rig, timeout=SPARK_PATIENCE)
        rig.wait_until(lambda: events_of(rig.folder, "all").read("link"), "progress of the query", SPARK_PATIENCE)
        yield rig
    assert rig._marked() == []
    assert not rig.zookeeper.left


def verdict_now(rig: SparkHarness, name: str = "all", timeout: float = SPARK_PATIENCE) -> Report:
    """Wait until all that is sealed by now has arrived; nothing may be wrong with it. The pair runs on."""
    sealed = rig.journal
    rig.wait_until(lambda: rig.received(name) >= sealed.rows, "what is sealed by now", timeout)
    with contextlib.closing(Received(rig._store(name))) as received:
        batches = list(received.batches())
    checker = Checker(rig.rows, rig.journal)  # read after them: all that they hold is intended by now
    for _, table in batches:
        checker.take(table)
    report = checker.report()
    must = {partition: max(end for _, end in ranges) for partition, ranges in sealed.sealed().items()}
    report.lost = [(partition, number) for partition, number in report.lost if number < must[partition]]
    assert not report.faults, str(report)
    return report


def arrival(rig: SparkHarness, number: int, name: str = "all") -> float | None:
    """Return when the first row came whose number is at least this one; None if none did yet."""
    with contextlib.closing(Received(rig._store(name))) as received:
        for at, table in received.batches():
            if table.num_rows and max(table["number"].to_pylist()) >= number:
                return at
    return None


def unused(journal: Journal) -> int:
    """Return the number that no row has yet, in any partition."""
    return max((end for ranges in journal.possible().values() for _, end in ranges), default=0)


def slowness() -> float:
    """Return how many times longer than alone a thread takes now, since others want the processors too; 1 is quiet.

    The issue's figures are those of a machine that is there for jobpipe.
    """
    began, own = time.perf_counter(), time.thread_time()
    while time.thread_time() - own < 0.2:
        sum(range(10_000))
    return max(1.0, (time.perf_counter() - began) / (time.thread_time() - own))
