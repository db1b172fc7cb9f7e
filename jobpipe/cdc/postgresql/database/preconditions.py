"""What PostgreSQL must be set to before a capture begins: all of it is looked at, and told at once with its remedy."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobpipe.cdc.database_problems import Problem, pattern_problems, require_none, text_column_problems, warned
from jobpipe.cdc.postgresql.database.database_catalog import FAILOVER_SINCE, DatabaseCatalog, FoundTable
from jobpipe.errors import LinkError

if TYPE_CHECKING:
    from jobpipe.cdc.postgresql.database.database_catalog import Connection
    from jobpipe.cdc.postgresql.postgres_options import PostgresOptions

log = logging.getLogger(__name__)

OLDEST = 130_000
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


@dataclass(frozen=True)
class Needs:
    """What a capture needs.

    Attributes:
        options: of it.
        found: the tables.
        makes_slot: there is no slot yet.
        first: what the options name must be there; later it may be gone.
    """

    options: PostgresOptions
    found: Sequence[FoundTable]
    makes_slot: bool
    first: bool


def require(connection: Connection, catalog: DatabaseCatalog, needs: Needs) -> None:
    """Check everything.

    Raises:
        ConfigError: names all that is missing, each with the statement that mends it.
    """
    problems = [
        *_server(connection, catalog, makes_slot=needs.makes_slot),
        *(problem for table in needs.found for problem in table_problems(connection, table)),
    ]
    if needs.first:
        problems += pattern_problems(needs.options.tables, [str(table) for table in needs.found])
        texts = text_column_problems(needs.options, [catalog.readable(table).table for table in needs.found])
        problems += texts if needs.makes_slot else warned(needs.options.name, texts)
    problems += _publication(connection, catalog, needs)
    require_none(problems, "PostgreSQL", _place(connection))
    for table in needs.found:
        if table.generated:
            log.warning(
                "table %s: %d generated columns are not captured, since PostgreSQL's log does not have them",
                *(table, table.generated),
            )


def require_primary(connection: Connection, capture: str, *, begun: bool) -> None:
    """Check that the server is no standby, which does not even tell how far its log goes.

    Args:
        begun: the capture has begun: the address may have moved to a standby that is promoted soon.

    Raises:
        ConfigError, LinkError: it is one, before the capture has begun, and after.
    """
    if not _one(connection, "SELECT pg_catalog.pg_is_in_recovery()"):
        return
    if begun:
        raise LinkError(
            f"PostgreSQL at {_place(connection)} is a standby: capture {capture!r} goes on once it is promoted. If it "
            "is to stay one, give the address of the primary",
            database=_place(connection),
        )
    problem = Problem("the server is a standby", "give the address of the primary")
    require_none([problem], "PostgreSQL", _place(connection))


def _server(connection: Connection, catalog: DatabaseCatalog, *, makes_slot: bool) -> list[Problem]:
    if catalog.version < OLDEST:
        return [
            Problem(f"the server has version {catalog.version // 10_000}", "PostgreSQL 13 is the oldest that works")
        ]
    problems = []
    setting = _settings(connection, "wal_level", "max_replication_slots", "max_wal_senders", "max_slot_wal_keep_size")
    if setting["wal_level"] != "logical":
        problems.append(
            Problem(
                f"wal_level is {setting['wal_level']}",
                "ALTER SYSTEM SET wal_level = logical; and start the server again",
            )
        )
    user = _one(connection, "SELECT current_user")
    if not _one(connection, "SELECT rolreplication OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user"):
        problems.append(Problem(f"role {user} may not replicate", f"ALTER ROLE {_quoted(user)} REPLICATION;"))
    slots = int(_one(connection, "SELECT count(*) FROM pg_catalog.pg_replication_slots"))
    if makes_slot and slots >= int(setting["max_replication_slots"]):
        problems.append(
            Problem(
                f"all {slots} replication slots are taken",
                f"ALTER SYSTEM SET max_replication_slots = {slots + 4}; and start the server again; or "
                "SELECT pg_drop_replication_slot('NAME'); for one that is no longer used",
            )
        )
    if int(setting["max_wal_senders"]) == 0:
        problems.append(
            Problem("max_wal_senders is 0", "ALTER SYSTEM SET max_wal_senders = 10; and start the server again")
        )
    if setting["max_slot_wal_keep_size"] == "-1":
        log.warning(
            "max_slot_wal_keep_size is -1: while this capture is stopped, PostgreSQL keeps its log without an end, and "
            "its disk may fill up. Set a limit: ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT "
            "pg_reload_conf();"
        )
    _warn_of_standbys(connection, catalog)
    return problems


def _warn_of_standbys(connection: Connection, catalog: DatabaseCatalog) -> None:
    """Warn if there is a standby that could take over without the slot, or without changes that are published."""
    if catalog.version < FAILOVER_SINCE or _settings(connection, "synchronized_standby_slots").popitem()[1]:
        return
    standbys = int(
        _one(connection, "SELECT count(*) FROM pg_catalog.pg_replication_slots WHERE slot_type = 'physical'")
    )
    if standbys:
        log.warning(
            "there are %d slots of standbys, and synchronized_standby_slots is empty: a standby that takes over may "
            "lack changes that this capture has published, which it would end for with an error. On the primary: ALTER "
            "SYSTEM SET synchronized_standby_slots = 'SLOT_OF_THE_STANDBY'; on the standby: sync_replication_slots = "
            "on, hot_standby_feedback = on, primary_slot_name, and a dbname in primary_conninfo",
            standbys,
        )


def table_problems(connection: Connection, table: FoundTable) -> list[Problem]:
    """Return why a table cannot be captured."""
    name = _named(table)
    if table.kind in _KINDS:
        return [Problem(f"{table} is {_KINDS[table.kind]}", "name a table")]
    problems = []
    if table.persistence != "p":
        problems.append(Problem(f"table {table} is not logged", f"ALTER TABLE {name} SET LOGGED;"))
    if table.has_children:
        problems.append(
            Problem(f"table {table} has tables that inherit from it", "capture a partitioned table, or those tables")
        )
    if not table.readable:
        user = _quoted(_one(connection, "SELECT current_user"))
        problems.append(
            Problem(
                f"table {table} cannot be read",
                f"GRANT USAGE ON SCHEMA {_quoted(table.schema)} TO {user}; GRANT SELECT ON {name} TO {user};",
            )
        )
    if not table.has_identity:
        problems.append(
            Problem(
                f"table {table} has no replica identity, and updates of it would fail once it is published",
                f"ALTER TABLE {name} ADD PRIMARY KEY (...); or ALTER TABLE {name} REPLICA IDENTITY FULL;",
            )
        )
    elif table.kind == "p":
        problems += _partition_problems(connection, table)
    return problems


def _partition_problems(connection: Connection, table: FoundTable) -> list[Problem]:
    """Return the partitions whose changed rows the database could not name: it passes no replica identity on."""
    rows = connection.execute(
        "SELECT c.oid::regclass::text FROM pg_catalog.pg_partition_tree(%s) t JOIN pg_catalog.pg_class c "
        "ON c.oid = t.relid WHERE t.isleaf AND c.relkind = 'r' AND c.relreplident <> 'f' AND NOT EXISTS (SELECT FROM "
        "pg_catalog.pg_index i WHERE i.indrelid = c.oid AND (CASE c.relreplident WHEN 'd' THEN i.indisprimary "
        "WHEN 'i' THEN i.indisreplident END)) ORDER BY 1",
        (table.number,),
    ).fetchall()
    return [
        Problem(
            f"partition {name} of table {table} has no replica identity, and updates of it would fail once it is "
            "published",
            f"ALTER TABLE {name} REPLICA IDENTITY FULL;",
        )
        for (name,) in rows
    ]


def later_problems(
    connection: Connection, catalog: DatabaseCatalog, publication: str, table: FoundTable
) -> list[Problem]:
    """Return why a table that has come since a capture began cannot be captured, besides those of every table."""
    if not table.owned and table.number not in (catalog.published(publication) or ()):
        return [
            Problem(
                f"table {table} is not in publication {publication}, and this role does not own it",
                f"as the owner: ALTER PUBLICATION {_quoted(publication)} ADD TABLE {_named(table)};",
            )
        ]
    if _row(connection, "SELECT pg_catalog.row_security_active(%s::oid)", table.number)[0]:
        user = _quoted(_one(connection, "SELECT current_user"))
        return [Problem(f"table {table} hides rows from this role", f"ALTER ROLE {user} BYPASSRLS;")]
    return []


def _publication(connection: Connection, catalog: DatabaseCatalog, needs: Needs) -> list[Problem]:
    publication = needs.options.publication
    name = _quoted(publication)
    published = catalog.published(publication)
    lacking = [table for table in needs.found if published is None or table.number not in published]
    foreign = [table for table in lacking if not table.owned]
    listed = ", ".join(map(_named, lacking))
    if published is None:
        database = _one(connection, "SELECT current_database()")
        allowed = _one(connection, "SELECT pg_catalog.has_database_privilege(current_database(), 'CREATE')")
        if lacking and (foreign or not allowed):
            why = f"it does not own {', '.join(map(str, foreign))}" if foreign else f"it may not create in {database}"
            return [
                Problem(
                    f"there is no publication {publication}, and this role cannot make it, as {why}",
                    f"as the owner: CREATE PUBLICATION {name} FOR TABLE {listed} WITH (publish_via_partition_root);",
                )
            ]
        return []
    problems = []
    inserts, updates, deletes, truncates, via_root = _row(
        connection,
        "SELECT pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot FROM pg_catalog.pg_publication "
        "WHERE pubname = %s",
        publication,
    )
    if not (inserts and updates and deletes and truncates):
        problems.append(
            Problem(
                f"publication {publication} leaves out some operations",
                f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate');",
            )
        )
    if not via_root and any(table.kind == "p" for table in needs.found):
        problems.append(
            Problem(
                f"publication {publication} publishes partitions by their own names",
                f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true);",
            )
        )
    if catalog.version >= 150_000:
        filtered = connection.execute(
            "SELECT prrelid::regclass::text FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p "
            "ON p.oid = r.prpubid WHERE pubname = %s AND (prqual IS NOT NULL OR prattrs IS NOT NULL)",
            (publication,),
        ).fetchall()
        problems += [
            Problem(
                f"publication {publication} leaves out rows or columns of {table}",
                f"ALTER PUBLICATION {name} DROP TABLE {table}; ALTER PUBLICATION {name} ADD TABLE {table};",
            )
            for (table,) in filtered
        ]
    if foreign:
        problems.append(
            Problem(
                f"publication {publication} lacks {', '.join(map(str, foreign))}, which this role does not own",
                f"as the owner: ALTER PUBLICATION {name} ADD TABLE {', '.join(map(_named, foreign))};",
            )
        )
    return problems


def _named(table: FoundTable) -> str:
    return f"{_quoted(table.schema)}.{_quoted(table.name)}"


def _quoted(name: str) -> str:
    plain = name.isidentifier() and name.isascii() and name.islower()
    return name if plain else '"' + name.replace('"', '""') + '"'


def _place(connection: Connection) -> str:
    return f"{connection.info.host}:{connection.info.port}/{connection.info.dbname}"


def _settings(connection: Connection, *names: str) -> dict[str, str]:
    rows = connection.execute(
        "SELECT name, setting FROM pg_catalog.pg_settings WHERE name = ANY (%s)", (list(names),)
    ).fetchall()
    return dict(rows)


def _row(connection: Connection, statement: str, *values: Any) -> tuple[Any, ...]:
    row = connection.execute(statement.encode(), values or None).fetchone()
    assert row is not None  # noqa: S101 - these return one
    return row


def _one(connection: Connection, statement: str) -> Any:
    return _row(connection, statement)[0]
