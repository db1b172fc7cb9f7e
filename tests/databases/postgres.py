"""A PostgreSQL of the tests' own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.databases.database_server import DatabaseServer, lacks_setpriv

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
    """Return the folder of the newest server's programs, or of ``POSTGRES_BIN``; None if there is none."""
    if chosen := os.environ.get("POSTGRES_BIN"):
        return Path(chosen)
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if found:
        return max(found, key=lambda path: float(path.parent.name))
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else None


def missing() -> str | None:
    """Return what is not installed here, None if all is."""
    if programs() is None:
        return "PostgreSQL's initdb (apt install postgresql)"
    return lacks_setpriv()


class Postgres(DatabaseServer):
    """A running server, which refuses to run as root.

    Args:
        settings: of the server, besides those of all tests.
    """

    name = "PostgreSQL"
    users = ("postgres", "nobody")
    end_signal = signal.SIGINT
    kill_signal = signal.SIGQUIT

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self._settings = settings

    @property
    def url(self) -> str:
        """As JDBC has it."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    def connect(
        self, user: str = SUPERUSER, password: str = PASSWORD, database: str = "postgres"
    ) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a connection, each of whose statements is a transaction."""
        where: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "dbname": database}
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

    def crash(self) -> None:
        """``kill -9`` of all its processes at once: none writes or sends anything more."""
        assert self._server is not None
        parent = psutil.Process(self._server.pid)
        parent.suspend()
        children = parent.children(recursive=True)
        for signal_ in (signal.SIGSTOP, signal.SIGKILL):
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.send_signal(signal_)
        self.kill()

    def make(self) -> None:
        """Make its files."""
        word = self.folder / "password"
        word.write_text(PASSWORD)
        word.chmod(0o644)  # of a server that is there for the tests alone
        self.run(
            *(*self._program("initdb"), "--auth=scram-sha-256", f"--username={SUPERUSER}", f"--pwfile={word}"),
            *("--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"),
        )
        word.unlink()

    def command(self) -> Sequence[str]:
        """Return the command of the server."""
        settings = {**_SETTINGS, **self._settings, "port": self.port}
        return [*self._program("postgres"), *(word for key in settings for word in ("-c", f"{key}={settings[key]}"))]

    def answers(self) -> bool:
        """Whether it takes connections."""
        with contextlib.suppress(psycopg.OperationalError), self.connect():
            return True
        return False

    def _program(self, name: str) -> list[str]:
        folder = programs()
        assert folder is not None
        return [str(folder / name), "-D", str(self.folder / "data")]
