"""``python -m tests.harness.jobs.flow``: a flow job to be killed, whose tasks are processes to be killed too.

Told what to do by one JSON line on standard input (:class:`FlowOrder`). It passes numbered rows on, as they are. Its
tasks are run as Spark runs them: one that dies is started again, one that hangs does not hinder another attempt, and
those of a driver that was killed go on for a moment. SIGUSR1 starts another attempt of each task, as speculation does.
It ends when the source has ended, at SIGTERM, or when the process that started it is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import pyarrow as pa

from jobpipe.config import config_from_dict
from jobpipe.coordinator.server_process import set_up_logging
from jobpipe.errors import LinkError, WaitTimeout
from jobpipe.flows.flow_driver import Flow
from jobpipe.flows.flow_settings import FlowOptions
from jobpipe.flows.flow_task import TaskEnd, TaskOrder, run_task
from jobpipe.flows.user_function import FlowContext
from jobpipe.store.reading.boundary import Boundary
from jobpipe.testing.numbered_rows import SCHEMA

ATTEMPTS = 4  # of one task that die, as Spark's spark.task.maxFailures
LOOK_SECONDS = 0.05
ORPHAN_SECONDS = 1.5  # that a task lives without its driver
TASK = "tests.harness.jobs.flow_task"


@dataclass(frozen=True)
class FlowOrder:
    """What a flow job is told.

    Attributes:
        config: As :meth:`jobpipe.config.Config.to_dict` writes it.
        topic, publish: What it reads, and what it publishes.
        tasks: How many processes share the partitions.
        parent: Process id of the starter.
    """

    config: dict[str, str]
    topic: str
    publish: str
    name: str
    parent: int
    tasks: int = 2

    def line(self) -> bytes:
        """Return the order as the program reads it."""
        return json.dumps(asdict(self)).encode() + b"\n"


class AttemptRunner:
    """Runs each task in processes: another attempt after one that died, and beside one when told to."""

    def __init__(self, tasks: int) -> None:
        self.lanes = tasks
        self.in_threads = False
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        self._told = 0

    def attempt_again(self) -> None:
        """Start another attempt of each task, while the present ones go on."""
        self._told += 1

    def run(self, order: TaskOrder, number: int, stopped: Callable[[], bool]) -> TaskEnd:
        """Run a task until one of its attempts has ended by itself; the others are killed then."""
        told, died = self._told, 0
        attempts = [self._start(order)]
        try:
            while True:
                for process in [process for process in attempts if process.poll() is not None]:
                    attempts.remove(process)
                    said = process.stdout.read() if process.stdout is not None else b""
                    if process.returncode == 0 and said:
                        end: TaskEnd = pickle.loads(said)  # noqa: S301 - our own child's
                        return end
                    died += 1
                    if stopped() or died == ATTEMPTS:
                        return TaskEnd(
                            error=LinkError(f"task {number} died with code {process.returncode}"), is_lost=True
                        )
                    attempts.append(self._start(order))
                if told != self._told:
                    told = self._told
                    attempts.append(self._start(order))
                time.sleep(LOOK_SECONDS)
        finally:
            for process in attempts:
                process.kill()
                process.wait()

    def _start(self, order: TaskOrder) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-m", TASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with self._lock:
            self._running = [each for each in self._running if each.poll() is None] + [process]
        with contextlib.suppress(BrokenPipeError):  # killed already
            assert process.stdin is not None
            process.stdin.write(pickle.dumps(order))
            process.stdin.close()
        return process

    def cancel(self) -> None:
        """Kill all attempts."""
        with self._lock:
            for process in self._running:
                process.kill()


def passed_on(batch: pa.RecordBatch, context: FlowContext) -> pa.RecordBatch:
    """Return the rows as they are."""
    return batch


def attempt() -> None:
    """Run one attempt of one task: its order comes as a pickle, and so goes what became of it."""
    set_up_logging()
    parent = os.getppid()
    order: TaskOrder = pickle.load(sys.stdin.buffer)  # noqa: S301 - our own parent's

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        time.sleep(ORPHAN_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    end = run_task(order, passed_on, None, lambda: False)
    sys.stdout.buffer.write(pickle.dumps(end))
    sys.stdout.buffer.flush()


def flow(order: FlowOrder, stop: threading.Event, runner: AttemptRunner) -> None:
    """Pass rows on until the source's end, ``stop``, or the end of the starter."""
    options = FlowOptions(
        config_from_dict(order.config),
        order.topic,
        order.name,
        Boundary.of("earliest", "starting"),
        publish=order.publish,
        schema=SCHEMA,
    )
    with Flow(options, runner) as running:
        while not stop.is_set() and os.getppid() == order.parent:
            try:
                running.await_end(0.2)
            except WaitTimeout:
                continue
            return


def main() -> None:
    """Obey one order."""
    set_up_logging()
    stop = threading.Event()
    order = FlowOrder(**json.loads(sys.stdin.buffer.readline()))
    runner = AttemptRunner(order.tasks)
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    signal.signal(signal.SIGUSR1, lambda _number, _frame: runner.attempt_again())
    flow(order, stop, runner)


if __name__ == "__main__":
    main()
