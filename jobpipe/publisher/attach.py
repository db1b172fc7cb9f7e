"""Starts, or joins, this process's coordinator: one for all topics of one publisher job."""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import threading
import uuid

import psutil

from jobpipe.config import Config
from jobpipe.config.home import make_home
from jobpipe.coordinator.process import start_program
from jobpipe.net.address import Endpoint
from jobpipe.net.retry import Deadline
from jobpipe_registry.machine import start_ticks

log = logging.getLogger(__name__)

START_SECONDS = 60.0  # a cold machine starts Java for the embedded ZooKeeper in it


class CoordinatorProcess:
    """A running coordinator process, seen from the job that started it."""

    def __init__(
        self, process: subprocess.Popen[bytes], endpoint: Endpoint, data: Endpoint, instance: str, secret: str
    ) -> None:
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
    # A coordinator has one certificate and one access list.
    place = (config.home, config.registry_connect, config.namespace)
    identity = (config.tls, config.ssl_ca, config.ssl_cert, config.ssl_key, config.ssl_crl, config.access)
    key = (os.getpid(), repr((place, identity)))
    with _lock:
        known = _coordinators.get(key)
        if known is not None and known.alive:
            return known
        make_home(config.home)
        parent = psutil.Process()
        instance, secret = uuid.uuid4().hex, secrets.token_hex(32)
        process, ready = start_program(
            "jobpipe.coordinator",
            {
                "config": config.to_dict(),
                "parent": {"pid": parent.pid, "started": parent.create_time(), "ticks": start_ticks(parent.pid)},
                "instance": instance,
                "secret": secret,
            },
            timeout=START_SECONDS,
            keep_stdin=False,
            log_file=config.home / "logs" / "coordinator.log",
        )
        _coordinators[key] = CoordinatorProcess(
            process, Endpoint.parse(ready["endpoint"]), Endpoint.parse(ready["data"]), instance, secret
        )
        threading.Thread(target=process.wait, name="coordinator-reaper", daemon=True).start()
        log.info("coordinator %d serves at %s", process.pid, ready["endpoint"])
        return _coordinators[key]


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
