"""A PostgreSQL of the tests' own: a cluster in a new folder, on a free port of loopback, with a password.

It refuses to run as root, and is then run as user postgres or nobody. It ends with the process that started it, however
that ends.
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
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg

from tests.registry.secured import free_port

START_SECONDS = 60.0
END_SECONDS = 20.0
TRIES = 3  # the port may be taken by somebody else before the server has it
SUPERUSER = "postgres"
PASSWORD = f"canary-{uuid.uuid4().hex}"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "shared_buffers": "32MB",
    "max_connections": "50",
    "autovacuum": "off",
}


def programs() -> Path | None:
    """Return the folder of the newest server's programs, None if there is none."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if found:
        return max(found, key=lambda path: float(path.parent.name))
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else None


def missing() -> str | None:
    """Return what is not installed here, None if all is."""
    if programs() is None:
        return "PostgreSQL's initdb (apt install postgresql)"
    if shutil.which("setpriv") is None:
        return "setpriv (apt install util-linux)"
    return None


class Postgres:
    """A running server. A context manager ends it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="jobpipe-postgres-"))
        self.port = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._become: list[str] = []
        if os.getuid() == 0:
            user = next(each for each in pwd.getpwall() if each.pw_name in ("postgres", "nobody"))
            self._become = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            os.chown(self.folder, user.pw_uid, user.pw_gid)

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.folder / "log"

    def __enter__(self) -> Postgres:
        try:
            self._run(
                "initdb", "--auth=scram-sha-256", f"--username={SUPERUSER}", "--encoding=UTF8", "--locale=C.UTF-8"
            )
            for left in range(TRIES - 1, -1, -1):
                if self._started():
                    break
                assert left, f"PostgreSQL does not start: {self.log.read_text()[-2000:]}"
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
            server.send_signal(signal.SIGINT)  # ends its sessions too
            try:
                server.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                server.send_signal(signal.SIGQUIT)  # at once, its children too
                server.wait(END_SECONDS)
        shutil.rmtree(self.folder)

    @property
    def url(self) -> str:
        """As JDBC has it."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    def connect(self, user: str = SUPERUSER, password: str = PASSWORD) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a connection, each of whose statements is a transaction."""
        where: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "dbname": "postgres"}
        return psycopg.connect(**where, user=user, password=password, connect_timeout=10, autocommit=True)

    def query(self, statement: str, *given: Any) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows, if it has any."""
        with self.connect() as connection:
            cursor = connection.execute(statement, given or None)
            return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def schema(self) -> Iterator[str]:
        """Give the name of a schema of its own."""
        name = f"s{uuid.uuid4().hex[:12]}"
        self.query(f"CREATE SCHEMA {name}")
        yield name
        self.query(f"DROP SCHEMA {name} CASCADE")

    def sessions(self) -> list[str]:
        """Return what jobpipe's sessions that are there now call themselves."""
        return [name for (name,) in self.query("SELECT application_name FROM pg_stat_activity") if "jobpipe" in name]

    # -- the server ----------------------------------------------------------------------------------------------------

    def _started(self) -> bool:
        self.port = free_port()
        settings = [
            word for key, value in {**_SETTINGS, "port": self.port}.items() for word in ("-c", f"{key}={value}")
        ]
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(
                self._command("postgres", *settings, dies=True), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while self._server.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(psycopg.OperationalError), self.connect():
                return True
            time.sleep(0.05)
        assert self._server.poll() is not None, f"not within {START_SECONDS:g} s: a connection to PostgreSQL"
        return False

    def _run(self, program: str, *arguments: str) -> None:
        word = self.folder / "password"
        word.write_text(PASSWORD)
        word.chmod(0o644)  # of a server that is there for the tests alone
        command = [*self._command(program, *arguments), f"--pwfile={word}", "--no-sync"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        word.unlink()

    def _command(self, program: str, *arguments: str, dies: bool = False) -> list[str]:
        folder = programs()
        assert folder is not None
        end = ["--pdeathsig=INT"] if dies else []  # when the thread that starts it ends
        return ["setpriv", *self._become, *end, str(folder / program), "-D", str(self.folder / "data"), *arguments]
