"""One Spark job of the demo as a process group of its own, with a log file."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import psutil

from jobpipe.demo.places import spark_submit

__all__ = ["MARK", "Job", "end_processes", "marked_processes"]

MARK = "JOBPIPE_DEMO"  # environment variable that every process of one demo inherits, with its folder as the value
GRACE_SECONDS = 5.0  # from SIGTERM to SIGKILL
LOG_TAIL_BYTES = 64 * 1024
JAVA_FRAME = re.compile(r"\s+(at |\.\.\. \d+ )")

SPARK_OPTIONS = (
    *("--master", "local[2]"),
    *("--driver-memory", "700m"),
    # Four short-lived JVMs on two cores: the second compiler and a parallel collector cost more than they bring.
    *("--driver-java-options", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"),
    *("--conf", "spark.ui.enabled=false"),
    *("--conf", "spark.log.level=WARN"),
    *("--conf", "spark.sql.shuffle.partitions=2"),
)


class Job:
    """A spark-submit process; :meth:`stop` ends its whole process group."""

    def __init__(self, script: Path, work: Path, environ: Mapping[str, str]) -> None:
        self.name = script.stem
        self.log = work / "logs" / f"{self.name}.log"
        self.log.parent.mkdir(exist_ok=True)
        command = [str(spark_submit()), *SPARK_OPTIONS]
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, str(script), "--work", str(work)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=work,
                env={**environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
                start_new_session=True,
            )
        self.started = time.monotonic()
        self._ended: float | None = None

    @property
    def exit_code(self) -> int | None:
        """None while the job runs; negative for a signal."""
        code = self._process.poll()
        if code is not None and self._ended is None:
            self._ended = time.monotonic()
        return code

    @property
    def seconds(self) -> float:
        """How long it has run, or ran."""
        return (self._ended or time.monotonic()) - self.started

    @property
    def state(self) -> str:
        """``running``, ``done`` or ``failed``, with seconds."""
        code = self.exit_code
        if code is None:
            return f"running {self.seconds:.0f} s"
        return f"done in {self.seconds:.0f} s" if code == 0 else f"failed (exit code {code})"

    def tail(self, lines: int = 20) -> list[str]:
        """Return the last lines of the log, without the frames of Java's stack traces."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - LOG_TAIL_BYTES))
            text = file.read().decode(errors="replace")
        return list(deque((line for line in text.splitlines() if line.strip() and not JAVA_FRAME.match(line)), lines))

    def stop(self) -> None:
        """End the process group: SIGTERM, and SIGKILL after :data:`GRACE_SECONDS`. No-op when it has ended."""
        if self.exit_code is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
        self._signal(signal.SIGKILL)  # also what of the group outlived its leader
        self._process.wait(GRACE_SECONDS)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def marked_processes(work: Path) -> list[psutil.Process]:
    """Return the live processes of the demo in ``work``: the jobs and all that they started, detached or not."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == str(work) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def end_processes(processes: list[psutil.Process]) -> None:
    """End these processes and wait for them: SIGTERM, and SIGKILL after :data:`GRACE_SECONDS`."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=GRACE_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=GRACE_SECONDS)
