"""Replication slots of a database, for people: listed, and dropped when their capture no longer runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobpipe.cdc.postgresql.database.database_catalog import Slot, slots
from jobpipe.errors import ConfigError

if TYPE_CHECKING:
    from jobpipe.cdc.postgresql.database.database_catalog import Connection


def slots_of(connection: Connection) -> list[Slot]:
    """Return the slots of a connection's database."""
    return slots(connection, "database = current_database()")


def has_publication(connection: Connection, publication: str) -> bool:
    """Tell whether a database has a publication."""
    found = connection.execute("SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s", (publication,))
    return found.fetchone() is not None


def require_idle(slot: Slot) -> None:
    """Check that a slot is not in use.

    Raises:
        ConfigError: it is.
    """
    if slot.active_pid is not None:
        raise ConfigError(
            f"replication slot {slot.name} is in use, by process {slot.active_pid} of the database; stop its capture "
            "first",
            key="slot",
            slot=slot.name,
        )


def drop_slot(connection: Connection, slot: str) -> None:
    """Drop a slot that is not in use; one that is gone is dropped already."""
    connection.execute(
        "SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_catalog.pg_replication_slots "
        "WHERE slot_name = %s AND database = current_database()",
        (slot,),
    )


def drop_publication(connection: Connection, publication: str) -> None:
    """Drop a publication, if it is there."""
    from psycopg import sql

    connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(publication)))
