"""Starts, or joins, this process's coordinator: one for all topics of one publisher job."""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import threading
import uuid
from dataclasses import asdict
from typing import Protocol

import psutil

from jobpipe.config import Config
from jobpipe.config.home_folder import make_home
from jobpipe.coordinator.server_process import start_program
from jobpipe.coordinator.topic_liveness import WatchedParent
from jobpipe.net.address import Endpoint
from jobpipe.net.retry import Deadline
from jobpipe_registry.host.process_identity import start_ticks

log = logging.getLogger(__name__)

START_SECONDS = 60.0  # a cold machine starts Java for the embedded ZooKeeper in it


class RunningProcess(Protocol):
    """A process as ``subprocess.Popen`` shows it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class CoordinatorProcess:
    """A running coordinator process, seen from the job that started it."""

    def __init__(self, process: RunningProcess, endpoint: Endpoint, data: Endpoint, instance: str, secret: str) -> None:
        self.process = process
        self.secret = secret  # shows the coordinator that a publisher is of the job that started it
        self.endpoint = endpoint
        self.data = data
        self.instance = instance
        self.dismissed = False  # ended on purpose: publishers do not start it again

    @property
    def alive(self) -> bool:
        """True until the process has ended."""
        return self.process.poll() is None

    def ended(self, timeout: float) -> bool:
        """Wait for the end of the process; tell whether it came."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


_lock = threading.Lock()
_coordinators: dict[
    tuple[int, str], CoordinatorProcess
] = {}  # by process id: a fork must not share; registry; identity


def attach(config: Config) -> CoordinatorProcess:
    """Return this process's coordinator for the registry that ``config`` names, starting it if need be.

    Raises:
        JobpipeError: what the coordinator says: no port, no interface, no registry, bad certificates.
    """
    key = (os.getpid(), identity(config))
    with _lock:
        known = _coordinators.get(key)
        if known is None or not known.alive:
            known = _coordinators[key] = start_coordinator(config, this_process())
        return known


def identity(config: Config) -> str:
    """Return what must be the same for a coordinator to be shared: it has one certificate and one access list."""
    place = (config.home, config.registry_connect, config.namespace)
    return repr((place, config.tls, config.ssl_ca, config.ssl_cert, config.ssl_key, config.ssl_crl, config.access))


def this_process() -> WatchedParent:
    return parent_of(psutil.Process())


def parent_of(process: psutil.Process) -> WatchedParent:
    """Return a process whose end is to end a coordinator.

    Raises:
        psutil.Error: it is gone.
    """
    return WatchedParent(process.pid, process.create_time(), start_ticks(process.pid))


def start_coordinator(config: Config, parent: WatchedParent) -> CoordinatorProcess:
    """Start a coordinator whose topics are published as long as ``parent`` lives.

    Raises:
        JobpipeError: as :func:`attach`.
    """
    make_home(config.home)
    instance, secret = uuid.uuid4().hex, secrets.token_hex(32)
    process, ready = start_program(
        "jobpipe.coordinator",
        {"config": config.to_dict(), "parent": asdict(parent), "instance": instance, "secret": secret},
        timeout=START_SECONDS,
        keep_stdin=False,
        log_file=config.home / "logs" / "coordinator.log",
    )
    threading.Thread(target=process.wait, name="coordinator-reaper", daemon=True).start()
    log.info("coordinator %d serves at %s", process.pid, ready["endpoint"])
    endpoint, data = Endpoint.parse(ready["endpoint"]), Endpoint.parse(ready["data"])
    return CoordinatorProcess(process, endpoint, data, instance, secret)


def end_coordinators(timeout: float = 15.0) -> None:
    """End all coordinators of this process now, whatever they still serve: SIGTERM, then SIGKILL after ``timeout``.

    For tests and tools. Jobs do not need this: a closed sink's coordinator ends when all have read, or after
    ``coordinator.linger``.
    """
    with _lock:
        mine = [_coordinators.pop(key) for key in list(_coordinators) if key[0] == os.getpid()]
    for coordinator in mine:
        coordinator.dismissed = True
        if coordinator.alive:
            coordinator.process.terminate()
    deadline = Deadline(timeout)
    for coordinator in mine:
        try:
            coordinator.process.wait(deadline.left(least=0.1))
        except subprocess.TimeoutExpired:
            coordinator.process.kill()
            coordinator.process.wait()


def _in_child() -> None:
    """A thread that a fork does not have may hold the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)
