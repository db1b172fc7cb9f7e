"""How far the database's log goes, and how much of it a slot keeps; asked on a connection of its own.

The connections of a session may be busy for long: they read a chunk, or their topic has no room.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobpipe.cdc.postgresql.database.database_catalog import DatabaseCatalog
from jobpipe.errors import JobpipeError
from jobpipe.pipelines.databases.postgres import PostgresDatabase

if TYPE_CHECKING:
    from jobpipe.cdc.postgresql.database.database_catalog import Connection


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LogMeasure:
    """How a database's log stands.

    Attributes:
        asked_at: when it was asked, in seconds since 1970.
        end: how far the log goes.
        retained: bytes that the slot keeps; None: it is gone, or lost.
        safe: bytes that may still be written before it may be lost; None: without end.
    """

    asked_at: float
    end: int
    retained: int | None
    safe: int | None


class SlotMeter:
    """Asks the database; for one thread.

    Args:
        database: where the slot is.
        slot: its name.
        capture: the name of the capture, for the database's listings.
    """

    def __init__(self, database: PostgresDatabase, slot: str, capture: str) -> None:
        self._database = database
        self._slot = slot
        self._capture = capture
        self._stack = contextlib.ExitStack()
        self._connection: Connection | None = None

    def measure(self) -> LogMeasure | None:
        """Return how the log stands; None if the database does not say, then another connection is made next time."""
        import psycopg

        try:
            if self._connection is None:
                opened = self._database.connection(f"jobpipe cdc {self._capture}")
                self._connection = self._stack.enter_context(opened)
            catalog = DatabaseCatalog(self._connection)
            asked_at, end = time.time(), catalog.wal_lsn()
            slot = catalog.slot(self._slot)
        except (psycopg.Error, JobpipeError) as error:
            log.debug("capture %s: the database does not tell how its log stands: %s", self._capture, error)
            self.close()
            return None
        if slot is None or slot.wal_status == "lost":
            return LogMeasure(asked_at, end, None, None)
        return LogMeasure(asked_at, end, slot.retained, slot.safe)

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._connection = None
        with contextlib.suppress(Exception):  # it may be cut
            self._stack.close()
