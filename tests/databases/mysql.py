"""A MySQL of the tests' own."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping
from typing import ClassVar

from tests.databases.database_server import lacks_setpriv
from tests.databases.mysql_server import MySqlServer, find_program


def missing() -> str | None:
    """Return what is not installed here, None if all is."""
    if _program() is None:
        return f"MySQL's mysqld (in {_chosen() or 'a folder of the PATH, or one that MYSQL_BIN names'})"
    return lacks_setpriv()


def _chosen() -> str | None:
    return os.environ.get("MYSQL_BIN") or None


def _program() -> str | None:
    """Return the path of MySQL's mysqld; MariaDB has one of that name too."""
    found = find_program("mysqld", _chosen())
    return found if found is not None and "MariaDB" not in _version(found) else None


@functools.cache
def _version(program: str) -> str:
    command = [program, "--no-defaults", "--version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


class MySql(MySqlServer):
    """A running server, which keeps a binary log and makes a certificate for itself, as MySQL does by default."""

    name = "MySQL"
    scheme = "mysql"
    own_settings: ClassVar[Mapping[str, str]] = {
        "innodb-redo-log-capacity": "32M",
        "mysqlx": "OFF",
        "secure-file-priv": "NULL",  # the default folder may not be there
    }

    def program(self) -> str:
        """Return the path of the server's program."""
        return str(_program())

    def make(self) -> None:
        """Make its files; some settings, such as ``lower_case_table_names``, are for ever."""
        settings = (f"--{key}={value}" for key, value in self.settings.items() if key != "log-bin")
        first = (self.program(), "--no-defaults", "--initialize-insecure", f"--datadir={self.folder / 'data'}")
        self.run(*first, *settings, "--skip-log-bin")
