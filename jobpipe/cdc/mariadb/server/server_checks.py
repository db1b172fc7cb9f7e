"""What MariaDB or MySQL must be set to before a capture begins: all of it is looked at, and told at once."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobpipe.cdc.database_problems import Problem, pattern_problems, require_none, text_column_problems, warned
from jobpipe.cdc.mariadb.server.mysql_types import is_ordered
from jobpipe.cdc.mariadb.server.server_catalog import FoundTable, ReadableTable
from jobpipe.cdc.mariadb.server.server_log import ServerLog
from jobpipe.pipelines.databases.mysql import NO_RIGHT, execute

if TYPE_CHECKING:
    from jobpipe.cdc.mariadb.mysql_options import MysqlOptions
    from jobpipe.pipelines.databases.mysql import Connection

log = logging.getLogger(__name__)

OLDEST_MARIADB, OLDEST_MYSQL = (10, 5), (8, 0)
_NO_LOG = 1381
_ROLE = {True: "CURRENT_ROLE", False: "CURRENT_ROLE()"}  # MariaDB's is null without one, MySQL's NONE
_SHORT_SECONDS = 86_400  # of a log that is kept
_SETTINGS = (
    ("binlog_format", "ROW", "SET GLOBAL binlog_format = 'ROW'; and end the sessions that there are"),
    ("binlog_row_image", "FULL", "SET GLOBAL binlog_row_image = 'FULL'; and end the sessions that there are"),
    ("binlog_row_metadata", "FULL", "SET GLOBAL binlog_row_metadata = 'FULL';"),
)
_GTID_MODE = (
    "SET GLOBAL enforce_gtid_consistency = ON; SET GLOBAL gtid_mode = OFF_PERMISSIVE; SET GLOBAL gtid_mode = "
    "ON_PERMISSIVE; SET GLOBAL gtid_mode = ON;"
)


@dataclass(frozen=True)
class CheckedTable:
    """A table, and what it is made of; None if it is no table."""

    found: FoundTable
    readable: ReadableTable | None


def require(
    connection: Connection,
    server: ServerLog,
    options: MysqlOptions,
    found: list[CheckedTable],
    *,
    first: bool,
    begun: Callable[[], bool],
) -> None:
    """Check everything.

    Args:
        first: what the options name must be there; later it may be gone.
        begun: tells whether another process has begun the capture.

    Raises:
        ConfigError: names all that is missing, each with the statement that mends it.
    """
    problems = [
        *_server(connection, server, [table.found.schema for table in found]),
        *(problem for table in found for problem in table_problems(table, options.allow_cascades)),
    ]
    if first:
        problems += pattern_problems(options.tables, [str(table.found) for table in found], "database")
        texts = text_column_problems(options, [table.readable.table for table in found if table.readable is not None])
        problems += warned(options.name, texts) if texts and begun() else texts
    product = "MariaDB" if server.mariadb else "MySQL"
    require_none(problems, product, f"{options.hostname}:{options.port}")


def _server(connection: Connection, server: ServerLog, schemas: Sequence[str]) -> list[Problem]:
    oldest = OLDEST_MARIADB if server.mariadb else OLDEST_MYSQL
    if server.version < oldest:
        version = ".".join(map(str, server.version))
        return [Problem(f"the server has version {version}", f"{'.'.join(map(str, oldest))} is the oldest that works")]
    problems = []
    if str(server.variable("log_bin")).upper() not in ("ON", "1"):
        problems.append(
            Problem("log_bin is OFF", "set log-bin = binlog and server-id = 1 under [mysqld], and start it again")
        )
    for name, wanted, remedy in _SETTINGS:
        if (value := server.variable(name)) is not None and str(value).upper() != wanted:
            problems.append(Problem(f"{name} is {value}", remedy))
    if str(server.variable("server_id")) == "0":
        problems.append(Problem("server_id is 0", "SET GLOBAL server_id = 1;"))
    if not server.mariadb:
        problems += _mysql(server)
    problems += _rights(connection, server)
    problems += _filters(server, schemas)
    problems += _replica(connection, server)
    _warn(server)
    return problems


def _mysql(server: ServerLog) -> list[Problem]:
    problems = []
    if (mode := server.variable("gtid_mode")) != "ON":
        problems.append(Problem(f"gtid_mode is {mode}", _GTID_MODE))
    if value := server.variable("binlog_row_value_options"):
        problems.append(
            Problem(
                f"binlog_row_value_options is {value}",
                "SET GLOBAL binlog_row_value_options = ''; and end the sessions that there are",
            )
        )
    return problems


def _rights(connection: Connection, server: ServerLog) -> list[Problem]:
    """Look for the rights to read the log; those of a role show only once they are used."""
    import pymysql

    missing = []
    try:
        execute(connection, "SHOW BINARY LOGS")
    except pymysql.MySQLError as error:
        if error.args[0] not in (NO_RIGHT, _NO_LOG):
            raise
        if error.args[0] == NO_RIGHT:
            missing.append("BINLOG MONITOR" if server.mariadb else "REPLICATION CLIENT")
    ((user, role),) = execute(connection, f"SELECT CURRENT_USER(), {_ROLE[server.mariadb]}").fetchall()
    name, _, host = str(user).rpartition("@")
    given = f"'{name}'@'{host}'"
    replicates = execute(
        connection,
        "SELECT 1 FROM information_schema.USER_PRIVILEGES WHERE GRANTEE = %s AND PRIVILEGE_TYPE = 'REPLICATION SLAVE'",
        given,
    ).fetchall()
    if not replicates and role in (None, "NONE"):
        missing.append("REPLICATION SLAVE")
    if not missing:
        return []
    return [Problem(f"{user} lacks {', '.join(missing)}", f"GRANT {', '.join(missing)} ON *.* TO {given};")]


def _filters(server: ServerLog, schemas: Sequence[str]) -> list[Problem]:
    """Databases that the server leaves out of its log."""
    import pymysql

    try:
        head = server.head()
    except pymysql.MySQLError as error:
        if error.args[0] != NO_RIGHT:
            raise
        return []  # told of already
    if head is None:
        return []
    kept, dropped = (set(filter(None, each.split(","))) for each in (head.do_db, head.ignore_db))
    left_out = sorted({schema for schema in schemas if schema in dropped or (kept and schema not in kept)})
    remedy = "take binlog-do-db and binlog-ignore-db out of the server's file, and start it again"
    return [Problem(f"database {schema} is left out of the log", remedy) for schema in left_out]


def _replica(connection: Connection, server: ServerLog) -> list[Problem]:
    """A replica that does not log what it replicates."""
    import pymysql

    logs = server.variable("log_slave_updates")
    logs = server.variable("log_replica_updates") if logs is None else logs
    if str(logs).upper() in ("ON", "1"):
        return []
    try:
        rows = execute(connection, "SHOW ALL SLAVES STATUS" if server.mariadb else "SHOW REPLICA STATUS").fetchall()
    except pymysql.MySQLError as error:
        if error.args[0] != NO_RIGHT:
            raise
        log.warning(
            "log_slave_updates is OFF: if this server is a replica, what it replicates is not captured; whether it is "
            "one cannot be seen without the right REPLICA MONITOR"
        )
        return []
    if not rows:
        return []
    remedy = "set log-slave-updates under [mysqld], and start it again; or capture the primary"
    return [Problem("the server is a replica, and log_slave_updates is OFF", remedy)]


def _warn(server: ServerLog) -> None:
    seconds = server.variable("binlog_expire_logs_seconds")
    if seconds is not None and 0 < int(str(seconds)) < _SHORT_SECONDS:
        log.warning(
            "binlog_expire_logs_seconds is %s: a capture that is stopped for longer ends with an error, as what it "
            "lacks is removed",
            seconds,
        )
    if str(server.variable("sync_binlog")) != "1":
        log.warning(
            "sync_binlog is not 1: after a crash of the server's host its log may lack changes that are published, "
            "which the capture would end for with an error. SET GLOBAL sync_binlog = 1;"
        )


def table_problems(table: CheckedTable, allow_cascades: bool) -> list[Problem]:
    """Return why a table cannot be captured."""
    found, readable = table.found, table.readable
    name = f"`{found.schema}`.`{found.name}`"
    if found.kind != "BASE TABLE":
        kind = "a table with system versioning" if "VERSIONED" in found.kind else f"a {found.kind.lower()}"
        return [Problem(f"{found} is {kind}", "name another table")]
    if readable is None:
        return [Problem(f"table {found} is gone", "mend the name")]
    if readable.denied:
        what = f"the user may not read the whole table {found}"
        return [Problem(what, f"GRANT SELECT ON {name} TO it, instead of SELECT on columns;")]
    problems = []
    if (found.engine or "").lower() != "innodb":
        problems.append(Problem(f"table {found} has engine {found.engine}", f"ALTER TABLE {name} ENGINE = InnoDB;"))
    if not readable.key:
        problems.append(Problem(f"table {found} has no primary key", f"ALTER TABLE {name} ADD PRIMARY KEY (...);"))
    for column in readable.key:
        if not is_ordered(column.kind) or column.prefix is not None:
            what = "a part of " if column.prefix is not None else ""
            problems.append(
                Problem(
                    f"table {found}: the primary key has {what}column {column.name} of type {column.kind}, in whose "
                    "order it cannot be read",
                    f"ALTER TABLE {name} DROP PRIMARY KEY, ADD PRIMARY KEY (...);",
                )
            )
    problems += [
        Problem(
            f"table {found}: column {column} has type {kind}, which cannot be captured",
            f"ALTER TABLE {name} MODIFY {column} ...; to another type",
        )
        for column, kind in readable.unknown.items()
    ]
    if readable.cascades and not allow_cascades:
        problems += [
            Problem(
                f"table {found}: foreign key {each} changes its rows, and the log does not have those changes",
                f"ALTER TABLE {name} DROP FOREIGN KEY {_quoted(each)}; and add it again without CASCADE and SET NULL; "
                "or give allow-cascades: true, and miss them",
            )
            for each in readable.cascades
        ]
    return problems


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"\w+", name, re.ASCII) else f"`{name}`"
