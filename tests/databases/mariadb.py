"""A MariaDB of the tests' own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pymysql

from tests.databases.database_server import DatabaseServer, lacks_setpriv
from tests.registry.zookeeper.secured import Pem

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
    return lacks_setpriv()


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))


class MariaDb(DatabaseServer):
    """A running server.

    Args:
        tls: its certificate; None is a server without TLS.
    """

    name = "MariaDB"
    users = ("mysql", "nobody")
    end_signal = signal.SIGTERM
    kill_signal = signal.SIGKILL

    def __init__(self, tls: Pem | None = None) -> None:
        super().__init__()
        self._tls: dict[str, object] = {}
        if tls is not None:
            for key, file in (("ssl-cert", tls.cert), ("ssl-key", tls.key)):
                copy = self.folder / file.name
                shutil.copy(file, copy)  # where its user may read it
                os.chown(copy, self.folder.stat().st_uid, self.folder.stat().st_gid)
                self._tls[key] = copy

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

    def make(self) -> None:
        """Make its files."""
        self.run(
            *(str(_program("mariadb-install-db")), "--no-defaults", f"--datadir={self.folder / 'data'}"),
            *("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"),
        )

    def command(self) -> Sequence[str]:
        """Return the command of the server."""
        settings = {
            **_SETTINGS,
            "port": self.port,
            "datadir": self.folder / "data",
            "socket": self._socket,
            "pid-file": self.folder / "pid",
            **self._tls,
        }
        return [str(_program("mariadbd")), "--no-defaults", *(f"--{key}={value}" for key, value in settings.items())]

    def answers(self) -> bool:
        """Whether it takes connections, and the password is set."""
        if not _listens(self._socket):
            return False
        with contextlib.suppress(pymysql.OperationalError):
            first = pymysql.connect(unix_socket=str(self._socket), user=SUPERUSER)
            with contextlib.closing(first), first.cursor() as cursor:
                cursor.execute(f"ALTER USER {SUPERUSER}@localhost IDENTIFIED BY '{PASSWORD}'")
            return True
        return False

    @property
    def _socket(self) -> Path:
        return self.folder / "socket"


def _listens(path: Path) -> bool:
    """Whether it listens; the driver would leave a socket open where it does not."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
