"""What the bus tests share: a bus with its topic, publisher jobs in processes of their own, readers, waiting."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

import jobpipe
from jobpipe.config import Config
from jobpipe.discovery.configured_tls import client_tls
from jobpipe.discovery.topic_lookup import locate
from jobpipe.errors import JobpipeError, from_fault
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.publishing.topic_publisher import Publisher, SealedBatch
from jobpipe.subscribing.python_client import Subscription
from jobpipe.testing import Checker, Journal, NumberedRows
from jobpipe.wire.wire_messages import Hello

MARK = "JOBPIPE_BUS_TEST"
ROOT = Path(__file__).parents[2]
PATIENCE = 60.0  # seconds; the machine is shared, and nothing waits so long when all is well


def until(condition: Callable[[], object], timeout: float, what: str | Callable[[], str]) -> Any:
    """Wait until the condition holds, and return its value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)
    return value


def marked(mark: str) -> list[psutil.Process]:
    """Return the living processes, beside this one, that inherited the mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark and alive(process.pid):
                found.append(process)
    return found


def alive(pid: int) -> bool:
    """Tell whether a process lives; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to one process; none if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def coordinator_of(publisher: Publisher) -> int:
    """Return the pid of the process that serves the publisher's topic."""
    return publisher.coordinator.process.pid


def data_process_of(coordinator: int) -> int:
    """Return the pid of a coordinator's data process."""
    (child,) = psutil.Process(coordinator).children()
    return child.pid


def publish(
    publisher: Publisher, rows: NumberedRows, journal: Journal, batch_ids: Iterable[int], *, run: str = "r1"
) -> list[SealedBatch]:
    """Seal batches and note them in the journal."""
    done = []
    for batch_id in batch_ids:
        with journal.sealing(batch_id, rows.ranges(batch_id)):
            done.append(publisher.seal("q", batch_id, rows.tables(batch_id), run_id=run))
    return done


def read(subscription: Subscription, checker: Checker, rows: int, timeout: float = PATIENCE) -> None:
    """Read until so many rows are there, acknowledge them, and take in what comes too much."""
    deadline = time.monotonic() + timeout
    while True:
        before = checker.rows
        checker.take_all(subscription.batches(timeout=0.2))
        if checker.rows >= rows and checker.rows == before:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"{checker.rows} of {rows} rows within {timeout:g} s; {checker.report()}")


def named_link(config: Config, topic: str, name: str, instance: str) -> BlockingLink:
    """Return a subscriber's control link that does only what it is told."""
    return BlockingLink.connect(
        locate(config, topic, PATIENCE).control,
        Hello(topic=topic, role="subscriber", name=name, instance=instance),
        tls=client_tls(config),
        server_hostname=topic_server_name(topic),
    )


class Reader:
    """Reads a subscription in a thread, into a checker, until its end mark, an error, or :meth:`close`."""

    def __init__(self, subscription: Subscription, checker: Checker, *, pause: float = 0.0) -> None:
        self.subscription = subscription
        self.checker = checker
        self.error: BaseException | None = None
        self._pause = pause
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for batch in self.subscription:
                with self._changed:
                    self.checker.take(batch)
                    self._changed.notify_all()
                if self._closing.wait(self._pause):
                    return
        except BaseException as error:
            self.error = None if self._closing.is_set() else error
        finally:
            with self._changed:
                self._changed.notify_all()

    def wait_rows(self, rows: int, timeout: float = PATIENCE) -> None:
        """Wait until so many rows arrived."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: self.checker.rows >= rows or not self._thread.is_alive() or self.error, timeout
            )
        if self.error is not None:
            raise self.error
        assert done, f"not within {timeout:g} s: {rows} rows; {self.checker.rows} came"
        assert self.checker.rows >= rows, f"ended after {self.checker.rows} of {rows} rows"

    def join(self, timeout: float = PATIENCE) -> None:
        """Wait for the end of the topic; raise the error that ended it instead."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"still reading after {timeout:g} s, {self.checker.rows} rows came"
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Stop reading."""
        self._closing.set()
        self.subscription.close()
        self._thread.join(PATIENCE)


class Bus:
    """One topic, and all that a test opened on it; ``close`` ends what is left."""

    def __init__(self, topic: str, configure: Callable[[dict[str, str]], Config]) -> None:
        self.topic = topic
        self.journal = Journal()
        self._configure = configure
        self._open: list[Any] = []

    def config(self, changes: dict[str, str] | None = None) -> Config:
        """Return this bus's configuration with some keys changed."""
        return self._configure(changes or {})

    def publisher(self, changes: dict[str, str] | None = None, topic: str | None = None, **options: Any) -> Publisher:
        """Open the topic as its publisher."""
        made = Publisher(topic or self.topic, config=self.config(changes), **options)
        self._open.append(made)
        return made

    def subscribe(
        self, name: str, starting: str = "earliest", changes: dict[str, str] | None = None, topic: str | None = None
    ) -> Subscription:
        """Make a plain client; it connects when it is first read."""
        made = jobpipe.subscribe(topic or self.topic, name=name, starting=starting, config=self.config(changes))
        self._open.append(made)
        return made

    def reader(self, name: str, rows: NumberedRows, *, pause: float = 0.0, **options: Any) -> Reader:
        """Read the topic from its beginning in a thread."""
        made = Reader(self.subscribe(name, **options), Checker(rows, self.journal), pause=pause)
        self._open.append(made)
        return made

    def close(self) -> None:
        """Close everything, whatever state it is in."""
        for item in reversed(self._open):
            with contextlib.suppress(JobpipeError):
                item.close()


class Driver:
    """A publisher job in a process of its own: :mod:`tests.bus.driver`."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bus.driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.coordinators: list[int] = []
        self.pid = self._process.pid
        self.tell("settings", settings=settings)
        self.hear()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def tell(self, do: str, **args: Any) -> None:
        """Give an order without waiting for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **args}).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, timeout: float = PATIENCE) -> dict[str, Any]:
        """Wait for the answer to the oldest open order; raise the error that it is."""
        try:
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"the driver gave no answer within {timeout:g} s") from None
        assert answer is not None, "the driver ended"
        if "fault" in answer:
            raise from_fault(*answer["fault"])
        if "coordinator" in answer:
            self.coordinators.append(answer["coordinator"])
        return answer

    def ask(self, do: str, timeout: float = PATIENCE, **args: Any) -> dict[str, Any]:
        """Give an order and wait for its answer."""
        self.tell(do, **args)
        return self.hear(timeout)

    def kill(self) -> None:
        """``kill -9`` of the job's driver; its coordinator goes on."""
        self._process.kill()
        self._close()

    def end(self) -> None:
        """Kill the job and its coordinators."""
        self.kill()
        for pid in self.coordinators:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if "jobpipe.coordinator" in process.cmdline():
                    process.terminate()
                    with contextlib.suppress(psutil.TimeoutExpired):
                        process.wait(10.0)

    def _close(self) -> None:
        self._process.wait(PATIENCE)
        self._listener.join(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP a process for the length of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        kill(pid, signal.SIGCONT)
