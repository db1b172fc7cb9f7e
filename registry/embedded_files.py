"""The files by which processes find the embedded ZooKeeper of a home, and agree that there is one.

<home>/zookeeper/
  start.lock       held by who starts, joins or stops the server, for moments
  server.lock      held by the supervisor for its life: the kernel frees it, whatever happens
  state.json       pid, start time and port of what runs; stale if its process is gone
  joined           its time of change says when a process last joined
  secret           what its clients authenticate with; only this user reads it
  jaas.conf        the same for Java, which reads it at its start; 0600, too
  zookeeper.log    of the server and its supervisor, 5 MB and one older file
  data/            ZooKeeper's own, kept for ever
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from registry.machine import Place

__all__ = ["USER", "ServerFiles", "ServerState", "hold", "is_alive", "is_held", "start_time"]

USER = "jobpipe"  # the only one that the embedded server knows
_CLOCK_SLACK_SECONDS = 2.0  # start times are derived from the wall clock, which may be set


@dataclass(frozen=True)
class ServerState:
    """What the supervisor last said. ``created`` and ``java_created`` are process start times, ``since`` wall time."""

    phase: str  # "starting", "ready" or "failed"
    token: str
    host: str
    pid: int
    created: float
    java_pid: int
    java_created: float
    port: int
    since: float
    message: str = ""
    boot: str = ""  # with pid_namespace: where the pids mean something, see machine.Place
    pid_namespace: int = 0
    guarded: bool = False  # it demands the home's secret; one that an older version started does not

    @property
    def is_here(self) -> bool:
        """Whether its process ids mean something to us."""
        return Place(self.host, self.boot, self.pid_namespace) == Place.here()


@dataclass(frozen=True)
class ServerFiles:
    """Paths and state of one home."""

    directory: Path

    @property
    def start_lock(self) -> Path:
        return self.directory / "start.lock"

    @property
    def server_lock(self) -> Path:
        return self.directory / "server.lock"

    @property
    def log(self) -> Path:
        return self.directory / "zookeeper.log"

    @property
    def secret_file(self) -> Path:
        return self.directory / "secret"

    @property
    def jaas(self) -> Path:
        return self.directory / "jaas.conf"

    @property
    def _state(self) -> Path:
        return self.directory / "state.json"

    @property
    def _joined(self) -> Path:
        return self.directory / "joined"

    def make(self) -> None:
        """Make the directories, for this user only.

        Raises:
            PermissionError: they belong to another user.
        """
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        for path in (self.directory, self.directory / "data"):
            path.mkdir(mode=0o700, exist_ok=True)
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise PermissionError(f"{path} is not a directory of this user")
            if stat.S_IMODE(found.st_mode) & 0o077:
                path.chmod(0o700)

    def make_secret(self) -> str:
        """Return the home's secret, made with the first call. The caller holds ``start_lock``."""
        known = self.read_secret()
        if known is None:
            known = secrets.token_hex(32)
            self.write_private(self.secret_file, known)
        return known

    def read_secret(self) -> str | None:
        """Return the home's secret; None if there is none that this user may read."""
        try:
            found = self.secret_file.read_text()
        except OSError:
            return None
        return found if _SECRET.fullmatch(found) else None

    def write_private(self, path: Path, text: str) -> None:
        """Replace a file in one step; only this user can read it, from the first byte on."""
        fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    def read_state(self) -> ServerState | None:
        """Return the state; None if there is none or it cannot be read."""
        try:
            fields = json.loads(self._state.read_bytes())
            # A server that an earlier version started says neither where its pids are valid nor of a secret.
            fields = {"boot": "", "pid_namespace": 0, "guarded": False, **fields}
            state = ServerState(**{name: kind(fields[name]) for name, kind in _FIELDS.items()})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        return state

    def write_state(self, state: ServerState) -> None:
        """Replace the state in one step."""
        fresh = self.directory / f"state.{os.getpid()}.tmp"
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(state), file)
        fresh.replace(self._state)

    def remove_state(self) -> None:
        self._state.unlink(missing_ok=True)

    def join(self) -> None:
        """Note that a process is about to connect: the server waits for it."""
        self._joined.touch(mode=0o600)
        os.utime(self._joined)

    def joined(self) -> int:
        """Return a number that changes with each ``join``."""
        try:
            return self._joined.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def log_tail(self, most: int = 600) -> str:
        """Return the end of the log, for an error message."""
        try:
            return self.log.read_bytes()[-most:].decode(errors="replace").strip()
        except OSError:
            return ""


_FIELDS = {
    "phase": str,
    "token": str,
    "host": str,
    "pid": int,
    "created": float,
    "java_pid": int,
    "java_created": float,
    "port": int,
    "since": float,
    "message": str,
    "guarded": bool,
    "boot": str,
    "pid_namespace": int,
}
_SECRET = re.compile(r"[0-9a-f]{64}")


@contextlib.contextmanager
def hold(path: Path, timeout: float) -> Iterator[None]:
    """Hold the lock file exclusively.

    Raises:
        TimeoutError: another one has it for longer than ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"{path} is held by another process") from None
            time.sleep(0.02)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if a fork has the descriptor
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Say whether some process holds the lock file."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def start_time(pid: int) -> float:
    """Return when a process started, seconds since 1970; 0.0 if there is no such process."""
    try:
        return psutil.Process(pid).create_time()
    except (psutil.NoSuchProcess, psutil.AccessDenied, ValueError):
        return 0.0


def is_alive(pid: int, created: float) -> bool:
    """Say whether the process that had this pid and start time still runs; a zombie does not."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(process.create_time() - created) <= _CLOCK_SLACK_SECONDS
    except (psutil.NoSuchProcess, psutil.AccessDenied, ValueError):
        return False
