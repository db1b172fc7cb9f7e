"""A capture of PostgreSQL: tables are read once, and all changes follow, each once, into topics.

Where it is, its topics keep (:mod:`.postgres_note`). Only once that is stored the slot may let a part of the log go.
:mod:`.capture_session` has the rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from jobpipe.cdc.capture_runner import CaptureRunner
from jobpipe.cdc.change_rows import ChangeRows, Origin
from jobpipe.cdc.postgresql.capture_session import CaptureSession
from jobpipe.cdc.postgresql.database.slot_meter import SlotMeter
from jobpipe.cdc.postgresql.postgres_options import PostgresOptions
from jobpipe.cdc.postgresql.reading_again import request
from jobpipe.cdc.session_tables import KnownTables, SessionParts
from jobpipe.config import Config
from jobpipe.errors import JobpipeError

ORIGIN = Origin((pa.field("txId", pa.int64()), pa.field("lsn", pa.int64())))
"""Where a change stands in the log: the number of its transaction, and the place of its commit."""


class PostgresCapture(CaptureRunner):
    """Publishes the changes of some tables of PostgreSQL; see :class:`.CaptureRunner`."""

    def __init__(self, options: PostgresOptions, config: str | Path | Config | None = None) -> None:
        super().__init__(options, ChangeRows(options.format, options.database, ORIGIN), config)
        self.options = options
        self._database = options.database_api()
        self._tables = KnownTables[int](options.name)
        self._meter = SlotMeter(self._database, options.slot, options.name)

    def read_again(self, table: str, after: Sequence[str] | None = None, through: Sequence[str] | None = None) -> None:
        """Ask for a part of a table to be read again, by this capture in whatever process it runs.

        Its rows are published as those of a table that is read. Those that a transaction changes meanwhile come as its
        changes only. It is done once no table is being read for the first time.

        Args:
            table: as schema.table.
            after, through: the values of the key after which it begins, and with which it ends, as PostgreSQL's texts;
                None is the end of the table.

        Raises:
            ConfigError, LinkError, NotAuthorized: the request cannot be made.
        """
        bounds = (None if bound is None else tuple(map(str, bound)) for bound in (after, through))
        request(self.options, table, *bounds)

    def _open_session(self, stack: contextlib.ExitStack) -> CaptureSession:
        parts = SessionParts(self.options, self._database, self._writer, self._stop.is_set, self._tables)
        return CaptureSession(parts, stack)

    def _measure(self) -> None:
        session = self._session
        if isinstance(session, CaptureSession):
            session.note_measure(self._meter.measure())

    def _end_measuring(self) -> None:
        self._meter.close()

    @property
    def _has_begun(self) -> bool:
        return bool(self._tables.known)

    def _refuses(self, error: JobpipeError) -> bool:
        """Tell whether a server that runs has refused a connection; libpq has no code for it."""
        text = str(error)
        return "certificate" in text or ("FATAL" in text and "the database system is" not in text)
