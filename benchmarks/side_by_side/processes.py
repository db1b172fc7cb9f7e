"""Child processes of a run: each is owned, has a deadline, and is ended by its id; CPU and memory are of all of them.

A child inherits a mark and a role in its environment, and so does everything that it starts, whoever its parent is
later: a JVM, Python workers, a coordinator. So the cost of one side is that of all its processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil

MARK = "JOBPIPE_BENCH_MARK"
ROLE = "JOBPIPE_BENCH_ROLE"
SAMPLE_SECONDS = 0.25  # looking costs processor time too; what a process spends after the last look is not counted
MEMORY_SECONDS = 1.0  # reading a JVM's maps takes milliseconds
SETTLED_SECONDS = 2.0  # a child has our environment until it becomes its program
END_SECONDS = 15.0


class RunFailed(Exception):
    """A run did not come to its end: what happened, in which process, and where its log is."""


@dataclass
class _Seen:
    role: str
    process: psutil.Process
    cpu: float = 0.0


@dataclass
class Cost:
    """CPU seconds, and peak of the proportional memory, by role."""

    cpu: dict[str, float] = field(default_factory=dict)
    peak_mb: dict[str, float] = field(default_factory=dict)


class Processes:
    """Everything one run starts. Use it as a context manager: nothing that bears its mark is left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        self._children: list[subprocess.Popen[bytes]] = []
        self._known: dict[int, _Seen | None] = {}  # None: not of this run
        self._ended: list[_Seen] = []
        self._peaks: dict[str, float] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="bench-sampler", daemon=True)

    def __enter__(self) -> Processes:
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._sampler.join(END_SECONDS)
        self.end()

    def environ(self, role: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a child of this role."""
        return {**os.environ, **(more or {}), MARK: self._mark, ROLE: role}

    def start(
        self, command: Sequence[str], role: str, *, log: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a child with pipes for its standard input and output; its errors go to a file of the folder."""
        with (self.folder / f"{log}.log").open("ab") as file:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                bufsize=0,
                env=self.environ(role, environ),
                start_new_session=True,
            )
        self._children.append(child)
        return child

    # -- cost ----------------------------------------------------------------------------------------------------------

    def cost(self) -> Cost:
        """Return the CPU seconds since the start of each, and the peaks since :meth:`forget_peaks`."""
        self._look(memory=True)
        with self._lock:
            cpu: dict[str, float] = {}
            for seen in (*self._known.values(), *self._ended):
                if seen is not None:
                    cpu[seen.role] = cpu.get(seen.role, 0.0) + seen.cpu
            return Cost(cpu, dict(self._peaks))

    def forget_peaks(self) -> None:
        """Begin to look for the peak of memory anew."""
        with self._lock:
            self._peaks = {}

    def _sample(self) -> None:
        memory = time.monotonic()
        while not self._over.wait(SAMPLE_SECONDS):
            due = time.monotonic() >= memory
            if due:
                memory = time.monotonic() + MEMORY_SECONDS
            self._look(memory=due)

    def _look(self, *, memory: bool) -> None:
        with self._lock:
            by_role: dict[str, float] = {}
            pids = psutil.pids()
            for pid in self._known.keys() - set(pids):
                gone = self._known.pop(pid)
                if gone is not None:
                    self._ended.append(gone)
            for pid in pids:
                with contextlib.suppress(psutil.Error):
                    seen = self._known[pid] if pid in self._known else self._look_at(psutil.Process(pid))
                    if seen is None:
                        continue
                    times = seen.process.cpu_times()
                    seen.cpu = times.user + times.system
                    if memory:
                        size = seen.process.memory_full_info().pss / 1e6
                        by_role[seen.role] = by_role.get(seen.role, 0.0) + size
            for role, size in by_role.items():
                self._peaks[role] = max(self._peaks.get(role, 0.0), size)

    def _look_at(self, process: psutil.Process) -> _Seen | None:
        mine = self._mine(process)
        if mine is not None or time.time() - process.create_time() > SETTLED_SECONDS:
            self._known[process.pid] = mine
        return mine

    def _mine(self, process: psutil.Process) -> _Seen | None:
        environ = process.environ()
        if environ.get(MARK) != self._mark or process.pid == os.getpid():
            return None
        return _Seen(environ[ROLE], process)

    # -- end -----------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End all that live: asked first, killed then; by their ids."""
        for child in self._children:
            for pipe in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            living = self._living()
            if not living:
                break
            for process in living:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            psutil.wait_procs(living, END_SECONDS)
        for child in self._children:
            child.wait(END_SECONDS)
        left = self._living()
        if left:
            raise RunFailed(f"processes are left: {left}")

    def _living(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and self._mine(process) is not None:
                    found.append(process)
        return found
