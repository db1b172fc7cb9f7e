"""What a MySQL and a MariaDB of the tests' own have in common."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import uuid
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pymysql

from tests.databases.database_server import DatabaseServer
from tests.registry.zookeeper.secured import Pem

SUPERUSER = "root"
PASSWORD = f"canary-ü-{uuid.uuid4().hex}"
_SETTINGS = {
    "bind-address": "127.0.0.1",
    "innodb-buffer-pool-size": "32M",
    "innodb-flush-log-at-trx-commit": "2",  # what is committed outlives a kill -9
    "innodb-flush-method": "nosync",
    "performance-schema": "0",
    "sync-binlog": "0",
}


def find_program(name: str, folder: str | None = None) -> str | None:
    """Return the path of a program, in a folder if one is given; None if it is not there."""
    return shutil.which(name, path=folder or os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))


class MySqlServer(DatabaseServer):
    """A running server.

    Args:
        tls: its certificate; None is what the server does by itself.
        settings: variables of the server, in place of those of all tests or besides them; None leaves one of those out.
    """

    users = ("mysql", "nobody")
    end_signal = signal.SIGTERM
    kill_signal = signal.SIGKILL
    scheme: ClassVar[str]
    """Of its URLs."""
    own_settings: ClassVar[Mapping[str, str]]
    """Of all tests, besides those that both servers know."""

    def __init__(self, tls: Pem | None = None, **settings: str | None) -> None:
        super().__init__()
        self._password = b""
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        every = {**_SETTINGS, **self.own_settings, **given}
        self.settings = {name: value for name, value in every.items() if value is not None}
        if tls is not None:
            for key, file in (("ssl-cert", tls.cert), ("ssl-key", tls.key)):
                copy = self.folder / file.name
                shutil.copy(file, copy)  # where its user may read it
                os.chown(copy, self.folder.stat().st_uid, self.folder.stat().st_gid)
                self.settings[key] = str(copy)

    def url(self, database: str) -> str:
        """As JDBC has it."""
        return f"jdbc:{self.scheme}://127.0.0.1:{self.port}/{database}"

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

    @abstractmethod
    def program(self) -> str:
        """Return the path of the server's program."""

    def command(self) -> Sequence[str]:
        """Return the command of the server."""
        settings: dict[str, object] = {
            **self.settings,
            "port": self.port,
            "datadir": self.folder / "data",
            "socket": self._socket,
            "pid-file": self.folder / "pid",
        }
        return [self.program(), "--no-defaults", *(f"--{key}={value}" for key, value in settings.items())]

    def answers(self) -> bool:
        """Whether it takes connections, and the password is set."""
        if not _listens(self._socket):
            return False
        with contextlib.suppress(pymysql.OperationalError):
            first = pymysql.connect(unix_socket=str(self._socket), user=SUPERUSER, password=self._password)
            with contextlib.closing(first), first.cursor() as cursor:
                cursor.execute(f"ALTER USER {SUPERUSER}@localhost IDENTIFIED BY '{PASSWORD}'")
            self._password = PASSWORD.encode()
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
