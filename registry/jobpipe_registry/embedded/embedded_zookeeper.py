"""A real ZooKeeper for one computer, from the jars that PySpark ships: nothing to install but Java.

It belongs to a *home* directory, not to a process: the first process that needs it starts it, others join, and
it ends by itself after ``linger`` seconds without a session. Its data stay. See :mod:`.embedded_server` for the
process that keeps it.

Loopback is open to every user of the host, so the link is TLS, and both sides prove themselves by the key and
certificate of the home, in a file that only this user can read. :meth:`EmbeddedZooKeeper.options` says how to connect.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from jobpipe_registry.credentials import Tls
from jobpipe_registry.embedded.embedded_files import EmbeddedFiles, EmbeddedState, is_alive
from jobpipe_registry.embedded.four_letter_words import ask, count_connections
from jobpipe_registry.host.local_files import is_locked, locked_file
from jobpipe_registry.registry_errors import BadOption, Unavailable
from jobpipe_registry.zookeeper.zookeeper_tls import make_context

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class EmbeddedStatus:
    """A running server: ``pid`` of its supervisor, wall time ``since`` it serves."""

    pid: int
    port: int
    endpoint: str
    since: float
    java_pid: int


class EmbeddedZooKeeper:
    """The embedded ZooKeeper of one home. Any number of objects and processes may use the same home."""

    def __init__(self, home: Path, *, linger: float = 60.0, java: str | None = None, tls: bool = True) -> None:
        """Do nothing yet.

        Args:
            home: the server's files lie in ``<home>/zookeeper``.
            linger: seconds without a session after which a server that *we* start ends by itself.
            java: the program; by default ``$JAVA_HOME/bin/java``, else ``java`` of the PATH.
            tls: a server that *we* start demands the certificate of the home. False is for tests with plain clients.
        """
        self._tls = tls
        self._home = Path(home).expanduser().absolute()
        self._files = EmbeddedFiles(self._home / "zookeeper")
        self._linger = linger
        self._java = java

    def ensure(self, timeout: float = 30.0) -> str:
        """Return "127.0.0.1:port" of the running server; start it if there is none.

        A caller has at least ``linger`` seconds to open its session.

        Raises:
            Unavailable: Java or PySpark's jars are missing, or it does not serve within ``timeout`` seconds; the
                reason says what to do, or holds the end of the server's log.
        """
        return f"127.0.0.1:{self._ensure(timeout).port}"

    def options(self, timeout: float = 30.0) -> dict[str, str]:
        """Do as :meth:`ensure`, and return what :meth:`RegisterServerHandler.start` needs to know of the server.

        That is ``connect`` and the files for TLS.

        Raises:
            Unavailable: as :meth:`ensure`; or the file with key and certificate is gone, and stopping the server makes
                another one.
        """
        state = self._ensure(timeout)
        options = {"connect": f"127.0.0.1:{state.port}", "acl": "open"}  # only this user gets as far as a node
        if not state.tls:
            return options
        try:
            make_context(self.tls)
        except BadOption as error:
            raise self._unavailable(
                f"{error}; without it nothing can connect. Stop the server (jobpipe registry stop), and the next one "
                "makes that file again"
            ) from error
        files = {"ssl.ca": self.tls.ca, "ssl.cert": self.tls.cert, "ssl.key": self.tls.key}
        return {**options, "ssl.enabled": "true", **{name: str(path) for name, path in files.items()}}

    @property
    def tls(self) -> Tls:
        """The home's key and certificate, by which server and clients know each other."""
        return self._files.tls

    def _ensure(self, timeout: float) -> EmbeddedState:
        deadline = time.monotonic() + timeout
        try:
            self._files.make()
            with locked_file(self._files.start_lock, timeout):
                return self._join_or_start(deadline)
        except TimeoutError as error:
            raise self._unavailable(f"another process has been starting it for {timeout:g} s") from error
        except PermissionError as error:
            raise self._unavailable(f"{error}; give each user a home of its own (jobpipe.home)") from error

    def status(self) -> EmbeddedStatus | None:
        """Return what runs; None if nothing does, or what runs is not yet, or no longer, ready."""
        state = self._files.read_state()
        if state is None or state.phase != "ready" or not self._is_running(state):
            return None
        endpoint = f"127.0.0.1:{state.port}"
        return EmbeddedStatus(state.pid, state.port, endpoint, state.since, state.java_pid)

    def is_full(self) -> bool:
        """Say whether it lives, and takes no further connection."""
        return self._ask("srvr") == ""

    def count_connections(self) -> int | None:
        """Return how many it has; None if it does not answer."""
        return count_connections(self._ask("mntr"))

    def _ask(self, word: str) -> str | None:
        state = self._files.read_state()
        if state is None or self.status() is None:
            return None
        return ask(state.port, word, make_context(self.tls) if state.tls else None)

    def stop(self, timeout: float = 10.0) -> bool:
        """End the server even if it is in use. False if none was running.

        Raises:
            Unavailable: it did not end within ``timeout`` seconds, although killed, or it runs on another host.
        """
        if not self._files.directory.is_dir():
            return False
        deadline = time.monotonic() + timeout
        try:
            with locked_file(self._files.start_lock, timeout / 3):
                return self._stop(deadline, timeout)
        except TimeoutError as error:
            raise self._unavailable("another process is starting it") from error

    def _join_or_start(self, deadline: float) -> EmbeddedState:
        token = ""
        while True:
            state = self._files.read_state()
            if state is not None and token and state.token == token and state.phase == "failed":
                raise self._unavailable(state.message)
            if state is not None and self._is_running(state):
                self._refuse_other_host(state)
                if state.phase == "ready":
                    self._files.join()
                    # Not asked by its port: others can keep that busy, and the client tries more than once anyway.
                    if not state.is_here or is_alive(state.java_pid, state.java_created):
                        return state
            elif not token and not is_locked(self._files.server_lock):
                token = secrets.token_hex(8)
                self._files.join()
                self._spawn(token)
            if time.monotonic() >= deadline:
                raise self._unavailable(f"it is not ready in time. The end of its log: {self._files.log_tail()}")
            time.sleep(_POLL_SECONDS)

    def _spawn(self, token: str) -> None:
        """Start the supervisor, which detaches itself at once."""
        java, jars = find_java(self._java), find_jars()
        try:
            shlex.split(os.environ.get("SERVER_JVMFLAGS", ""))
        except ValueError as error:
            raise self._unavailable(f"the options in SERVER_JVMFLAGS are no words of a shell: {error}") from None
        if self._tls:
            self._files.make_tls()
        root = str(Path(__file__).parents[2])
        command = [sys.executable, "-P", "-m", "jobpipe_registry.embedded.embedded_server", str(self._files.directory)]
        command += ["--linger", str(self._linger), "--java", java, "--jars", str(jars), "--token", token]
        command += ["--tls"] if self._tls else []
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        with self._files.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self._files.directory,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            code = process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait(5.0)
        if code != 0:
            raise self._unavailable(f"its supervisor does not start. The end of its log: {self._files.log_tail()}")

    def _stop(self, deadline: float, timeout: float) -> bool:
        state = self._files.read_state()
        running = is_locked(self._files.server_lock)
        if state is not None and running:
            self._refuse_other_place(state)
        if not running:
            return state is not None and _kill_orphan(state)
        if state is not None:
            _signal(state.pid, state.created, signal.SIGTERM)
        soft = deadline - timeout * 0.3
        while is_locked(self._files.server_lock):
            now = time.monotonic()
            if now >= deadline:
                raise self._unavailable("it does not end")
            if now >= soft and state is not None:
                _signal(state.java_pid, state.java_created, signal.SIGKILL)
                _signal(state.pid, state.created, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        if state is not None:
            _kill_orphan(state)
        self._files.remove_state()
        return True

    def _is_running(self, state: EmbeddedState) -> bool:
        if not is_locked(self._files.server_lock):
            return False
        return not state.is_here or is_alive(state.pid, state.created)

    def _refuse_other_host(self, state: EmbeddedState) -> None:
        if state.host != socket.gethostname():
            raise self._unavailable(f"it runs on {state.host}, which shares this home; give each host its own home")

    def _refuse_other_place(self, state: EmbeddedState) -> None:
        """Refuse to end a server whose process ids are another container's: here they may be any process's."""
        self._refuse_other_host(state)
        if not state.is_here:
            raise self._unavailable(
                f"it runs in another container of {state.host} (process {state.pid} there); end it where it runs"
            )

    def _unavailable(self, reason: str) -> Unavailable:
        return Unavailable(f"embedded in {self._home}", reason)


def find_java(java: str | None = None) -> str:
    """Return the path of the Java program.

    Raises:
        Unavailable: there is none; says what to install.
    """
    java_home = os.environ.get("JAVA_HOME")
    candidates = [java] if java is not None else [f"{java_home}/bin/java"] if java_home else []
    if java is None:
        candidates.append("java")
    for candidate in candidates:
        found = shutil.which(candidate)
        if found is not None:
            return str(Path(found).absolute())
    raise Unavailable(
        "embedded",
        f"no Java program ({', '.join(candidates)}). Install a Java runtime, version 17 or later (on Debian: "
        "apt install openjdk-17-jre-headless), and put java on the PATH or set JAVA_HOME; "
        "or set registerserver.connect to a ZooKeeper that runs elsewhere",
    )


def find_jars() -> Path:
    """Return a directory with the jars of ZooKeeper: PySpark's, which is not imported, or that of ``ZOOKEEPER_HOME``.

    Raises:
        Unavailable: there is neither.
    """
    spec = importlib.util.find_spec("pyspark")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec is not None else []
    # Under spark-submit the module lies in <spark>/python/lib/pyspark.zip, and the jars in <spark>/jars.
    candidates = [parent for place in places for parent in (place, *place.parents)]
    if home := os.environ.get("SPARK_HOME"):
        candidates.append(Path(home))
    for candidate in candidates:
        if any((candidate / "jars").glob("zookeeper-[0-9]*.jar")):
            return candidate / "jars"
    if home := os.environ.get("ZOOKEEPER_HOME"):
        lib = Path(home).absolute() / "lib"
        if any(lib.glob("zookeeper-[0-9]*.jar")):
            return lib
    raise Unavailable(
        "embedded",
        "there are no jars of ZooKeeper. It takes those of PySpark (pip install pyspark, or set SPARK_HOME), or "
        "of an unpacked apache-zookeeper-3.9 that ZOOKEEPER_HOME names; or set registerserver.connect to a ZooKeeper "
        "that runs elsewhere",
    )


def _signal(pid: int, created: float, number: signal.Signals) -> bool:
    if not is_alive(pid, created):
        return False
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        os.kill(pid, number)
    return True


def _kill_orphan(state: EmbeddedState) -> bool:
    """Kill a server whose supervisor is gone: possible only where no parent death signal is known."""
    return state.is_here and _signal(state.java_pid, state.java_created, signal.SIGKILL)
