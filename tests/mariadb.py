"""A MariaDB of the tests' own: a server in a new folder, on a free port of loopback, with a password.

As root it is run as user mysql or nobody. It ends with the process that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pymysql

from tests.registry.secured import Pem, free_port

START_SECONDS = 60.0
END_SECONDS = 30.0
TRIES = 3  # the port may be taken by another before the server has it
SUPERUSER = "root"
PASSWORD = f"canary-ü-{uuid.uuid4().hex}"
_SETTINGS = {
    "bind-address": "127.0.0.1",
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "16M",
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-flush-method": "nosync",
    "skip-log-bin": "1",
    "performance-schema": "0",
}


def missing() -> str | None:
    """Return what is not installed here, None if all is."""
    if _program("mariadbd") is None or _program("mariadb-install-db") is None:
        return "MariaDB (apt install mariadb-server-core mariadb-client-core)"
    if shutil.which("setpriv") is None:
        return "setpriv (apt install util-linux)"
    return None


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))


class MariaDb:
    """A running server. A context manager ends it.

    Args:
        tls: its certificate; None is a server without TLS.
    """

    def __init__(self, tls: Pem | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="jobpipe-mariadb-"))
        self.port = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._become: list[str] = []
        if os.getuid() == 0:
            users = {each.pw_name: each for each in pwd.getpwall()}
            user = users.get("mysql") or users["nobody"]
            self._become = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self._tls: dict[str, object] = {}
        if tls is not None:
            for key, file in (("ssl-cert", tls.cert), ("ssl-key", tls.key)):
                copy = self.folder / file.name
                shutil.copy(file, copy)  # where its user may read it
                os.chown(copy, self.folder.stat().st_uid, self.folder.stat().st_gid)
                self._tls[key] = copy

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.folder / "log"

    def __enter__(self) -> MariaDb:
        try:
            self._run(
                *("mariadb-install-db", "--no-defaults", f"--datadir={self.folder / 'data'}"),
                *("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"),
            )
            for left in range(TRIES - 1, -1, -1):
                if self._started():
                    break
                assert left, f"MariaDB does not start: {self.log.read_text()[-2000:]}"
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
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(END_SECONDS)
        shutil.rmtree(self.folder)

    def url(self, database: str) -> str:
        """As JDBC has it."""
        return f"jdbc:mariadb://127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None) -> pymysql.connections.Connection[Any]:
        """Return a connection, each of whose statements is a transaction; names are quoted as in standard SQL."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=SUPERUSER,
            password=PASSWORD.encode(),
            database=database,
            charset="utf8mb4",
            connect_timeout=10,
            autocommit=True,
            init_command="SET SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES'), time_zone = '+00:00'",
        )

    def query(self, statement: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows, if it has any."""
        with contextlib.closing(self.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Give the name of a database of its own."""
        name = f"s{uuid.uuid4().hex[:12]}"
        self.query(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        yield name
        self.query(f"DROP DATABASE {name}")

    def sessions(self) -> list[str]:
        """Return what the sessions in the tests' databases do now."""
        return [str(row) for row in self.query("SHOW PROCESSLIST") if row[3] is not None]

    # -- the server ----------------------------------------------------------------------------------------------------

    def _started(self) -> bool:
        self.port = free_port()
        settings = {
            **_SETTINGS,
            "port": self.port,
            "datadir": self.folder / "data",
            "socket": self.folder / "socket",
            "pid-file": self.folder / "pid",
            **self._tls,
        }
        words = [f"--{key}={value}" for key, value in settings.items()]
        server = str(_program("mariadbd"))
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(
                [str(shutil.which("setpriv")), *self._become, "--pdeathsig=TERM", server, "--no-defaults", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        path = self.folder / "socket"
        deadline = time.monotonic() + START_SECONDS
        while self._server.poll() is None and time.monotonic() < deadline:
            if not _answers(path):
                time.sleep(0.05)
                continue
            with contextlib.suppress(pymysql.OperationalError):
                with (
                    contextlib.closing(pymysql.connect(unix_socket=str(path), user=SUPERUSER)) as first,
                    first.cursor() as cursor,
                ):
                    cursor.execute(f"ALTER USER {SUPERUSER}@localhost IDENTIFIED BY '{PASSWORD}'")
                return True
        assert self._server.poll() is not None, f"not within {START_SECONDS:g} s: a connection to MariaDB"
        return False

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(shutil.which("setpriv")), *self._become, str(_program(program)), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def _answers(path: Path) -> bool:
    """Whether it listens; the driver would leave a socket open where it does not."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
