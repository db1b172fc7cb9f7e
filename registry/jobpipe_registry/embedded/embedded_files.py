"""The files by which processes find the embedded ZooKeeper of a home, and agree that there is one.

<home>/zookeeper/
  start.lock       held for moments by a process that starts, joins or stops the server
  server.lock      held by the supervisor for its life: the kernel frees it, whatever happens
  state.json       pid, start time and port of what runs; stale if its process is gone
  joined           its time of change says when a process last joined
  tls.pem          key and certificate of the server and its clients alike; only this user reads it
  zookeeper.log    of the server and its supervisor, 5 MB and one older file
  data/            ZooKeeper's own, kept for ever
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from jobpipe_registry.credentials import Tls
from jobpipe_registry.host.local_files import write_whole
from jobpipe_registry.host.process_identity import PidScope
from jobpipe_registry.registry_errors import BadOption
from jobpipe_registry.zookeeper.zookeeper_tls import make_context

_LIFE = datetime.timedelta(days=365 * 30)  # of the certificate, which its file alone vouches for
_CLOCK_SLACK_SECONDS = 2.0  # start times are derived from the wall clock, which may be set


MAX_CONNECTIONS = 1000
"""That a server takes; each job, driver and command has one."""


@dataclass(frozen=True)
class EmbeddedState:
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
    tls: bool = True  # it demands the certificate of the home

    @property
    def is_here(self) -> bool:
        """Whether its process ids mean something to us."""
        return PidScope(self.host, self.boot, self.pid_namespace) == PidScope.here()


@dataclass(frozen=True)
class EmbeddedFiles:
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
    def tls(self) -> Tls:
        """One file: who holds the key is the home's user, and only the certificate itself is believed."""
        path = self.directory / "tls.pem"
        return Tls(path, path, path)

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

    def make_tls(self) -> None:
        """Make the home's key and certificate unless they are there. The caller holds ``start_lock``; nothing runs."""
        try:
            make_context(self.tls)
        except BadOption:
            write_whole(self.tls.ca, _key_and_certificate())

    def read_state(self) -> EmbeddedState | None:
        """Return the state; None if there is none or it cannot be read."""
        try:
            fields = json.loads(self._state.read_bytes())
            state = EmbeddedState(**{name: kind(fields[name]) for name, kind in _FIELDS.items()})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        return state

    def write_state(self, state: EmbeddedState) -> None:
        """Replace the state in one step."""
        fresh = self.directory / f"state.{os.getpid()}.tmp"
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(state), file)
        fresh.replace(self._state)

    def remove_state(self) -> None:
        self._state.unlink(missing_ok=True)

    def identity(self) -> tuple[int, int] | None:
        """Return what tells this folder from a later one at the same path; None if there is none."""
        try:
            found = self.directory.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

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

    def log_tail(self) -> str:
        """Return the end of the log, for an error message."""
        try:
            return self.log.read_bytes()[-600:].decode(errors="replace").strip()
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
    "tls": bool,
    "boot": str,
    "pid_namespace": int,
}


def _key_and_certificate() -> bytes:
    """Return a new key and a certificate that it signed itself, for 127.0.0.1, as PEM."""
    from cryptography import x509  # slow to import, and needed once in a home's life
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "jobpipe embedded ZooKeeper")])
    addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + _LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


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
