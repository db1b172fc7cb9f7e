"""A MariaDB of the tests' own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tests.databases.database_server import lacks_setpriv
from tests.databases.mysql_server import MySqlServer, find_program


def missing() -> str | None:
    """Return what is not installed here, None if all is."""
    if find_program("mariadbd") is None or find_program("mariadb-install-db") is None:
        return "MariaDB (apt install mariadb-server-core mariadb-client-core)"
    return lacks_setpriv()


class MariaDb(MySqlServer):
    """A running server, which keeps no binary log unless ``log_bin`` is given."""

    name = "MariaDB"
    scheme = "mariadb"
    own_settings: ClassVar[Mapping[str, str]] = {"innodb-log-file-size": "16M"}

    def program(self) -> str:
        """Return the path of the server's program."""
        return str(find_program("mariadbd"))

    def make(self) -> None:
        """Make its files."""
        self.run(
            *(str(find_program("mariadb-install-db")), "--no-defaults", f"--datadir={self.folder / 'data'}"),
            *("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"),
        )
