"""The coordinator that all Python processes of one driver share: those in which Spark runs a format's writers.

Spark starts and ends these processes as it likes, so none of them can own a coordinator. The one that needs it first
starts it for the driver's JVM: it serves until that ends. The others find it by a file in ``home/writers``, which has
the job's secret and is this user's own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from jobpipe.config import Config
from jobpipe.config.home import make_home
from jobpipe.config.ownership import folder_problem
from jobpipe.coordinator.presence import Parent
from jobpipe.errors import AddressError, ConfigError, JobpipeError, WaitTimeout
from jobpipe.net.address import Endpoint
from jobpipe.net.retry import Deadline
from jobpipe.operations.publishing import MAX_WRITERS, OpenRequest
from jobpipe.publisher.attach import START_SECONDS, CoordinatorProcess, identity, start_coordinator
from jobpipe.publisher.core import Publisher
from jobpipe.publisher.opened import place_of
from jobpipe_registry.machine import Place, lives, start_ticks

log = logging.getLogger(__name__)

FOLDER = "writers"
_SETTINGS = "settings.json"  # of a topic; the other files there have hexadecimal names
LOCK_SECONDS = 2 * START_SECONDS  # another process may be starting it
LOOK_SECONDS = 0.05  # between two looks at a lock, or at a process that is no child of ours
WATCH_SECONDS = 0.5  # the same as long as a topic is published
LARGEST = 64 * 1024
_WRITE_ID = re.compile(r"[0-9a-f]{1,64}")


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


class _ProcessOfOthers:
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


def attach_for(driver: Parent) -> Callable[[Config], CoordinatorProcess]:
    """Return what finds a driver's coordinator for a configuration, and starts it if there is none.

    Raises, when called:
        ConfigError: the folder is not this user's own.
        WaitTimeout: another process does not let go of the folder.
        JobpipeError: as :func:`jobpipe.publisher.attach.attach`.
    """
    return lambda config: _attach(driver, config)


def opener_of(driver: Parent) -> str:
    """Return the one name, in hexadecimal, under which all processes of a driver open topics."""
    return hashlib.sha256(_known_as(driver).encode()).hexdigest()[:32]


def open_shared(mark: TopicMark, **settings: Any) -> Publisher:
    """Open a topic as one of a driver's processes, or join the others.

    Args:
        mark: of the topic.
        settings: those of :class:`jobpipe.publisher.core.Publisher`.

    Raises:
        JobpipeError: as that class.
    """
    publisher = Publisher(
        mark.topic,
        **settings,
        opener=opener_of(mark.driver),
        others=mark.writing,
        attaching=attach_for(mark.driver),
        wanted=mark.exists,
    )
    try:
        mark.note(publisher.settings)
    except BaseException:
        publisher.let_go()
        raise
    return publisher


class SharedTopic:
    """A topic that processes of a driver publish, seen from another one of its processes.

    Args:
        mark: of the topic.
        settings: what it is opened with, if no process has it open.
    """

    def __init__(self, mark: TopicMark, settings: dict[str, Any]) -> None:
        self.topic = mark.topic
        self.place = place_of(mark.config)
        self._mark = mark
        self._settings = settings

    def close(self, final: bool = False) -> None:
        """Give the topic up; ``final`` seals an end mark first. The next batch opens it again. May be repeated.

        Raises:
            JobpipeError: it is not closed: another publisher has it, or its coordinator could not be told.
        """
        if final or _read(_file(self._mark.driver, self._mark.config)) is not None:
            publisher = open_shared(self._mark, **self._settings)
            try:
                publisher.close(final)
            finally:
                publisher.let_go()
        self._mark.forget()

    def give_way(self) -> None:
        """Make room for another publisher."""
        self.close()


@dataclass(frozen=True)
class TopicMark:
    """What processes of a driver note of a topic that they publish, in a folder of the topic's name.

    Attributes:
        driver: whose processes they are.
        config: where the topic is.
        topic: its name.
    """

    driver: Parent
    config: Config
    topic: str

    @property
    def folder(self) -> Path:
        """Where it is noted."""
        return _marks(self.driver, self.config) / self.topic

    def exists(self) -> bool:
        """Tell whether the topic is published."""
        return self.folder.is_dir()

    def note(self, settings: OpenRequest) -> None:
        """Note that the topic is published, and what it was opened with."""
        self._write(_SETTINGS, json.dumps(settings.to_json()))

    def settings(self) -> dict[str, Any] | None:
        """Return what the topic was opened with, for :func:`open_shared`; None if it is not published."""
        try:
            found = OpenRequest.from_json(json.loads((self.folder / _SETTINGS).read_text()))
        except (OSError, ValueError, JobpipeError):
            return None
        return {
            "config": found.config,
            "name": found.name,
            "parallelism": found.parallelism,
            "required_subscribers": found.required,
            "min_subscribers": found.min_subscribers,
            "application": found.application,
        }

    def note_writing(self, writer: str, write_id: str) -> None:
        """Note the batch that a writer has in progress, for the process that opens the topic again: it is not swept."""
        self._write(writer, write_id)

    def _write(self, name: str, text: str) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self.folder / f"new-{os.getpid()}-{name}"
        temporary.write_text(text)
        temporary.rename(self.folder / name)

    def forget_writing(self, writer: str) -> None:
        """Note that a writer has nothing in progress any more."""
        (self.folder / writer).unlink(missing_ok=True)

    def writing(self) -> tuple[str, ...]:
        """Return the write ids of batches in progress, the newest ``MAX_WRITERS``, oldest first."""
        found = []
        for path in self.folder.glob("[0-9a-f]*"):
            with contextlib.suppress(OSError, UnicodeDecodeError):  # forgotten meanwhile
                found.append((path.stat().st_mtime_ns, path.read_text()[:64], path))
        found.sort()
        for _, _, path in found[:-MAX_WRITERS]:
            path.unlink(missing_ok=True)
        return tuple(write_id for _, write_id, _ in found[-MAX_WRITERS:] if _WRITE_ID.fullmatch(write_id))

    def forget(self) -> None:
        """Note that the topic is no longer published."""
        shutil.rmtree(self.folder, ignore_errors=True)


def shared_topics(driver: Parent, config: Config) -> list[SharedTopic]:
    """Return the topics that processes of a driver publish, by what :class:`TopicMark` noted."""
    folder = _marks(driver, config)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    marks = [TopicMark(driver, config, name) for name in names]
    return [SharedTopic(mark, settings) for mark in marks if (settings := mark.settings()) is not None]


def _file(driver: Parent, config: Config) -> Path:
    return config.home / FOLDER / f"{_here()}-{_known_as(driver)}-{_digest(config)}.json"


def _marks(driver: Parent, config: Config) -> Path:
    return _file(driver, config).with_suffix("")


def _attach(driver: Parent, config: Config) -> CoordinatorProcess:
    folder, path = _folder(config), _file(driver, config)
    if (known := _read(path)) is not None:
        return known
    with _locked(folder / "lock"):
        if (known := _read(path)) is not None:
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

    For tests and tools, as :func:`jobpipe.publisher.attach.end_coordinators`.
    """
    paths = list(_folder(config).glob(f"{_here()}-*-{_digest(config)}.json"))
    processes = [found.process for path in paths if (found := _read(path)) is not None]
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


def _read(path: Path) -> CoordinatorProcess | None:
    """Return the coordinator of a file; None if there is none, or it has ended."""
    try:
        with path.open(encoding="utf-8") as file:
            found = _Found(**json.loads(file.read(LARGEST)))
        process = _ProcessOfOthers(found.pid, found.started, found.ticks)
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
    deadline = Deadline(LOCK_SECONDS)
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if deadline.passed:
                    raise WaitTimeout(
                        f"{path}: another process has held it for {LOCK_SECONDS:g} s, to start a coordinator",
                        file=str(path),
                    ) from None
                time.sleep(LOOK_SECONDS)
        yield


def _known_as(driver: Parent) -> str:
    """Return what all processes call a driver: by ticks, which stay the same when the clock is set."""
    return f"{driver.pid}-{driver.ticks or round(driver.started)}"


def _here() -> str:
    """Return where process ids mean anything: several hosts may have one home."""
    return hashlib.sha256(repr(Place.here()).encode()).hexdigest()[:8]


def _tidy(folder: Path) -> None:
    """Remove what drivers of this place have left that live no more."""
    for path in folder.glob(f"{_here()}-*.json"):
        _, pid, started, _ = path.name.split("-", 3)
        with contextlib.suppress(ValueError):
            if lives(int(pid), float(started), int(started)) is False:
                _remove(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    shutil.rmtree(path.with_suffix(""), ignore_errors=True)
