"""A database server of the tests' own: in a new folder, on a free port of loopback, with a password.

As root it is run as a user without rights. It ends with the process that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tests.registry.zookeeper.secured import free_port

START_SECONDS = 60.0
END_SECONDS = 30.0
TRIES = 3  # the port may be taken by another before the server has it


def lacks_setpriv() -> str | None:
    """Return what is to be installed to run a server as another user, None if nothing is."""
    return None if shutil.which("setpriv") else "setpriv (apt install util-linux)"


class DatabaseServer(ABC):
    """A running server. A context manager ends it."""

    name: ClassVar[str]
    users: ClassVar[tuple[str, ...]]
    """Those that it is run as, if we are root: the first that there is."""
    end_signal: ClassVar[signal.Signals]
    """Ends it, and its sessions."""
    kill_signal: ClassVar[signal.Signals]
    """Ends it at once, its children too."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"jobpipe-{self.name.lower()}-"))
        self.port = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._become: list[str] = []
        if os.getuid() == 0:
            there = {each.pw_name: each for each in pwd.getpwall()}
            user = next(there[name] for name in self.users if name in there)
            self._become = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            os.chown(self.folder, user.pw_uid, user.pw_gid)

    @property
    def environment(self) -> dict[str, str]:
        """Of its programs. Where MariaDB starts, it removes temporary tables from /tmp, also those of others."""
        return {**os.environ, "TMPDIR": str(self.folder)}

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.folder / "log"

    def __enter__(self) -> Self:
        try:
            self.make()
            for left in range(TRIES - 1, -1, -1):
                self.port = free_port()
                if self._start():
                    break
                assert left, f"{self.name} does not start: {self.log.read_text()[-2000:]}"
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, and remove its files."""
        server, self._server = self._server, None
        if server is not None and server.poll() is None:
            server.send_signal(self.end_signal)
            try:
                server.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                server.send_signal(self.kill_signal)
                server.wait(END_SECONDS)
        shutil.rmtree(self.folder)

    def kill(self) -> None:
        """``kill -9`` of it; :meth:`start_again` starts it on its files."""
        assert self._server is not None
        self._server.kill()
        self._server.wait(END_SECONDS)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Let it answer nothing, as a server whose disk hangs."""
        assert self._server is not None
        self._server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._server.send_signal(signal.SIGCONT)

    def start_again(self) -> None:
        """Start it on the same port, once what was left of the last one is gone."""
        deadline = time.monotonic() + START_SECONDS
        while not self._start():
            assert time.monotonic() < deadline, f"{self.name} does not start: {self.log.read_text()[-2000:]}"
            time.sleep(0.1)

    @abstractmethod
    def make(self) -> None:
        """Make its files."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command of the server on port :attr:`port`."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it takes connections; what is to be done by the first one is done."""

    def run(self, *command: str, stdin: str = "") -> None:
        """Run a program to its end, as the server's user."""
        words = ["setpriv", *self._become, *command]
        done = subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
            env=self.environment,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _start(self) -> bool:
        """Start it; False if it has ended again."""
        with self.log.open("ab") as log:
            # The signal comes when the thread that starts it ends.
            words = ["setpriv", *self._become, f"--pdeathsig={self.end_signal.name.removeprefix('SIG')}"]
            self._server = subprocess.Popen(
                [*words, *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
            )
        deadline = time.monotonic() + START_SECONDS
        while self._server.poll() is None and time.monotonic() < deadline:
            if self.answers():
                return True
            time.sleep(0.05)
        assert self._server.poll() is not None, f"not within {START_SECONDS:g} s: a connection to {self.name}"
        return False
