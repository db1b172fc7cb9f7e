"""Launcher ``local``: an attempt is a process of this host, in a session of its own, with a bounded log file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psutil
from pydantic import Field

from jobpipe.errors import ConfigError
from jobpipe.jobs.session_processes import members
from jobpipe.pipelines.file.field_types import Text
from jobpipe.pipelines.plugins.api import Attempt, Launcher, LaunchState, LaunchStatus, PluginOptions
from jobpipe_registry.host.process_identity import PidScope, lives, start_ticks

log = logging.getLogger(__name__)

RUNNER = "jobpipe.jobs.runner"
BOUNDED_LOG = "jobpipe.jobs.runner.bounded_log"
CANCEL_SECONDS = 10.0
LEFT_SECONDS = 10.0  # for the JVM and Spark's workers to end after their Python
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class _Launched:
    """A process, identified so that it is recognised after a restart of this program."""

    host: str
    boot: str
    pid_namespace: int
    pid: int
    started: float
    ticks: int

    @property
    def place(self) -> PidScope:
        return PidScope(self.host, self.boot, self.pid_namespace)

    @classmethod
    def of(cls, pid: int) -> _Launched:
        """Return what is to be known of a process of ours that lives, or is not waited for yet."""
        place = PidScope.here()
        started = psutil.Process(pid).create_time()
        return cls(place.host, place.boot, place.pid_namespace, pid, started, start_ticks(pid))

    @classmethod
    def parse(cls, text: str) -> _Launched:
        """Read what :meth:`text` wrote.

        Raises:
            ConfigError: it is none.
        """
        try:
            found = json.loads(text)
            kinds = {field.name: field.type for field in dataclasses.fields(cls)}
            right = set(found) == set(kinds) and all(type(found[name]).__name__ == kind for name, kind in kinds.items())
            if right and 0 < found["pid"] < 2**31:
                return cls(**found)
        except (ValueError, TypeError):
            pass
        raise ConfigError(f"{text[:200]!r} is not an id of launcher local", key="launched")

    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def is_alive(self) -> bool | None:
        return lives(self.pid, self.started, self.ticks, self.place)


@dataclass
class _Child:
    """A process of ours, and the one that writes its log, which ends with it."""

    process: subprocess.Popen[bytes]
    logger: subprocess.Popen[bytes]
    until: float = 0.0  # when what it has left is killed; 0 while it runs

    def exit_code(self) -> int | None:
        """Return its exit code, None while it runs; the log is whole by then."""
        code = self.process.poll()
        if code is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.logger.wait(1.0)
        return code


class LocalLauncher(Launcher):
    """A process on this host."""

    type = "local"

    class Options(PluginOptions):
        """How Spark runs in it."""

        master: Text = Field(
            default="local[*]", description="Spark's master: local[2], or a cluster for the executors."
        )

    options: Options

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self._children: dict[str, _Child] = {}  # ours: an exit code is known of no others

    def spark_keys(self) -> Mapping[str, str]:
        return {"spark.master": self.options.master}

    def submit(self, attempt: Attempt) -> str:
        """Start the runner as the leader of a session; what it prints goes through a process that bounds the log."""
        attempt.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        python = [sys.executable, "-P", "-m"]  # -P: no module of the working folder is ours
        read, write = os.pipe()
        try:
            logger = subprocess.Popen([*python, BOUNDED_LOG, str(attempt.log)], stdin=read, start_new_session=True)
            try:
                process = subprocess.Popen(
                    [*python, RUNNER, str(attempt.snapshot)],
                    stdin=subprocess.DEVNULL,
                    stdout=write,
                    stderr=subprocess.STDOUT,
                    cwd=attempt.folder,
                    env={**os.environ, **attempt.environment},
                    start_new_session=True,
                )
            except BaseException:
                os.close(write)
                write = -1
                logger.wait()  # it reads the end of its input
                raise
        finally:
            os.close(read)
            if write >= 0:
                os.close(write)
        launched = _Launched.of(process.pid).text()
        self._children[launched] = _Child(process, logger)
        return launched

    def status(self, launched: str) -> LaunchStatus:
        """Return how the process stands; of one that this program did not start the exit code is not known."""
        child = self._children.get(launched)
        if child is not None:
            if (code := child.process.poll()) is None or self._has_exited(launched, child):
                return LaunchStatus(LaunchState.RUNNING)
            child.exit_code()
            return LaunchStatus(LaunchState.ENDED, code)
        found = _Launched.parse(launched).is_alive()
        if found is None:
            return LaunchStatus(LaunchState.UNKNOWN)
        return LaunchStatus(LaunchState.RUNNING if found else LaunchState.ENDED)

    def _has_exited(self, launched: str, child: _Child) -> bool:
        """Whether processes of its session live on, as its JVM that ends; those that take too long are killed."""
        child.until = child.until or time.monotonic() + LEFT_SECONDS
        if time.monotonic() > child.until:
            self.cancel(launched)
            return False
        return next(_members(_Launched.parse(launched), leads=False), None) is not None

    def ask_to_stop(self, launched: str) -> None:
        """Send SIGTERM to the runner alone: Spark is to live until the micro-batch has ended."""
        child = self._children.get(launched)
        if child is not None:
            child.process.terminate()
        elif (known := _Launched.parse(launched)).is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(known.pid, signal.SIGTERM)

    def cancel(self, launched: str) -> None:
        """Kill all processes of the session: Python, its JVM, and Spark's workers."""
        known, child = _Launched.parse(launched), self._children.get(launched)
        if child is None and known.place != PidScope.here():
            log.warning(
                "process %d of host %s was started before a restart of that host, in another container, or under "
                "another host name: it is left alone. If it runs here, end it by `kill -9 -- -%d`",
                known.pid,
                known.host,
                known.pid,
            )
            return
        until = time.monotonic() + CANCEL_SECONDS
        while time.monotonic() < until:
            leads = bool(known.is_alive()) if child is None else child.exit_code() is None  # asked, it is no zombie
            members = list(_members(known, leads=leads))
            if not members:
                return
            for pid in members:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)


def _members(launched: _Launched, *, leads: bool) -> Iterator[int]:
    """Yield the processes of the session that an attempt led, or still leads."""
    if start_ticks(launched.pid) not in (0, launched.ticks):
        return  # its number is used again, so that nothing of its session lived then: this one is not ours
    for process in members(launched.pid):
        # In ticks since the host's start: psutil's times move with the clock.
        if leads or (process.pid != launched.pid and start_ticks(process.pid) >= launched.ticks):
            yield process.pid
