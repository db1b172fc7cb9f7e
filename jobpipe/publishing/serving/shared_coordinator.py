"""The coordinator that all Python processes of one driver share: those in which Spark runs a format's writers.

Spark starts and ends these processes as it likes, so none of them can own a coordinator. The one that needs it first
starts it for the driver's JVM: it serves until that ends. The others find it by a file in ``home/writers``, which has
the job's secret and is this user's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from jobpipe.config import Config
from jobpipe.config.home_folder import make_home
from jobpipe.config.reading.file_permissions import folder_problem
from jobpipe.coordinator.topic_liveness import WatchedParent
from jobpipe.errors import AddressError, ConfigError, WaitTimeout
from jobpipe.net.address import Endpoint
from jobpipe.net.retry import Deadline
from jobpipe.publishing.coordinator_launcher import START_SECONDS, CoordinatorProcess, identity, start_coordinator
from jobpipe_registry.host.local_files import locked_file
from jobpipe_registry.host.process_identity import PidScope, lives, start_ticks

log = logging.getLogger(__name__)

FOLDER = "writers"
LOCK_SECONDS = 2 * START_SECONDS  # another process may be starting it
LOOK_SECONDS = 0.05  # between two looks at a lock, or at a process that is no child of ours
WATCH_SECONDS = 0.5  # the same as long as a topic is published
LARGEST = 64 * 1024


@dataclass(frozen=True)
class _Found:
    """What the file says of a running coordinator."""

    pid: int
    started: float
    ticks: int
    endpoint: str
    data: str
    instance: str
    secret: str


class _ForeignProcess:
    """A process that another one started, shown as ``subprocess.Popen`` shows a child."""

    def __init__(self, pid: int, started: float, ticks: int) -> None:
        self.pid = pid
        self._started = started
        self._ticks = ticks

    def poll(self) -> int | None:
        """Return None while it lives, else 0."""
        return 0 if lives(self.pid, self._started, self._ticks) is False else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it did not come.
        """
        deadline = Deadline(timeout)
        while self.poll() is None:
            if timeout is not None and deadline.passed:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(WATCH_SECONDS if timeout is None else LOOK_SECONDS)
        return 0

    def terminate(self) -> None:
        """Send SIGTERM, if it lives."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, if it lives."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def attach_for(driver: WatchedParent) -> Callable[[Config], CoordinatorProcess]:
    """Return what finds a driver's coordinator for a configuration, and starts it if there is none.

    Raises, when called:
        ConfigError: the folder is not this user's own.
        WaitTimeout: another process does not let go of the folder.
        JobpipeError: as :func:`jobpipe.publishing.coordinator_launcher.attach`.
    """
    return lambda config: _attach(driver, config)


def file_of(driver: WatchedParent, config: Config) -> Path:
    """Return where a driver's coordinator is noted; a folder of the same name, without suffix, is for its topics."""
    return config.home / FOLDER / f"{_here()}-{known_as(driver)}-{_digest(config)}.json"


def _attach(driver: WatchedParent, config: Config) -> CoordinatorProcess:
    folder, path = _folder(config), file_of(driver, config)
    if (known := read(path)) is not None:
        return known
    with _locked(folder / "lock"):
        if (known := read(path)) is not None:
            return known
        _tidy(folder)
        made = start_coordinator(config, driver)
        process = psutil.Process(made.process.pid)
        found = _Found(
            *(process.pid, process.create_time(), start_ticks(process.pid)),
            *(str(made.endpoint), str(made.data), made.instance, made.secret),
        )
        temporary = path.with_suffix(".new")
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(found), file)
        temporary.rename(path)
        return made


def end_shared(config: Config, timeout: float = 15.0) -> None:
    """End the coordinators of all drivers that were started for this home and namespace, whatever they still serve.

    For tests and tools, as :func:`jobpipe.publishing.coordinator_launcher.end_coordinators`.
    """
    paths = list(_folder(config).glob(f"{_here()}-*-{_digest(config)}.json"))
    processes = [found.process for path in paths if (found := read(path)) is not None]
    deadline = Deadline(timeout)
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(deadline.left(least=0.1))
        except subprocess.TimeoutExpired:
            process.kill()
    for path in paths:
        _remove(path)


def _digest(config: Config) -> str:
    return hashlib.sha256(identity(config).encode()).hexdigest()[:16]


def _folder(config: Config) -> Path:
    make_home(config.home)
    folder = config.home / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    for each in (config.home, folder):
        if (why := folder_problem(each)) is not None:
            raise ConfigError(why, file=str(each))
    return folder


def read(path: Path) -> CoordinatorProcess | None:
    """Return the coordinator of a file; None if there is none, or it has ended."""
    try:
        with path.open(encoding="utf-8") as file:
            found = _Found(**json.loads(file.read(LARGEST)))
        process = _ForeignProcess(found.pid, found.started, found.ticks)
        if process.poll() is not None:
            return None
        endpoints = Endpoint.parse(found.endpoint), Endpoint.parse(found.data)
    except FileNotFoundError:
        return None
    except (OSError, TypeError, ValueError, RecursionError, AddressError) as error:
        raise ConfigError(
            f"{path} is not as jobpipe wrote it ({error}); end the driver that it is of, and delete it", file=str(path)
        ) from error
    return CoordinatorProcess(process, *endpoints, found.instance, found.secret)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked_file(path, LOCK_SECONDS))
        except TimeoutError:
            what = f"{path}: another process has held it for {LOCK_SECONDS:g} s, to start a coordinator"
            raise WaitTimeout(what, file=str(path)) from None
        yield


def known_as(driver: WatchedParent) -> str:
    """Return what all processes call a driver: by ticks, which stay the same when the clock is set."""
    return f"{driver.pid}-{driver.ticks or round(driver.started)}"


def _here() -> str:
    """Return where process ids mean anything: several hosts may have one home."""
    return hashlib.sha256(repr(PidScope.here()).encode()).hexdigest()[:8]


def _tidy(folder: Path) -> None:
    """Remove what dead drivers of this place have left."""
    for path in folder.glob(f"{_here()}-*.json"):
        _, pid, started, _ = path.name.split("-", 3)
        with contextlib.suppress(ValueError):
            if lives(int(pid), float(started), int(started)) is False:
                _remove(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    shutil.rmtree(path.with_suffix(""), ignore_errors=True)
