"""A capture of MariaDB or MySQL: tables are read once, and all changes follow, each once, into topics.

Where it is, its topics keep (:mod:`.mysql_note`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobpipe.cdc.capture_runner import CaptureRunner
from jobpipe.cdc.change_rows import ChangeRows, Origin
from jobpipe.cdc.changes import Change
from jobpipe.cdc.mariadb.mysql_options import MysqlOptions
from jobpipe.cdc.mariadb.mysql_session import MysqlSession
from jobpipe.cdc.session_tables import KnownTables, SessionParts
from jobpipe.config import Config
from jobpipe.errors import JobpipeError

_REFUSALS = {1044, 1045, 1130, 1142, 1143, 1227, 1698, 3118}  # codes: no such user, or no right


def _origins(changes: Sequence[Change]) -> list[pa.Array[Any]]:
    return [
        pa.array([change.gtid or None for change in changes], pa.string()),
        pa.array([change.file or None for change in changes], pa.string()),
        pa.array([change.at or None for change in changes], pa.int64()),
    ]


ORIGIN = Origin((pa.field("gtid", pa.string()), pa.field("file", pa.string()), pa.field("pos", pa.int64())), _origins)
"""Where a change stands in the log: the GTID of its transaction, and where that begins."""


class MysqlCapture(CaptureRunner):
    """Publishes the changes of some tables of MariaDB or MySQL; see :class:`.CaptureRunner`."""

    def __init__(self, options: MysqlOptions, config: str | Path | Config | None = None) -> None:
        super().__init__(options, ChangeRows(options.format, None, ORIGIN), config)
        self.options = options
        self._database = options.database_api()
        self._tables = KnownTables[str](options.name)

    def _open_session(self, stack: contextlib.ExitStack) -> MysqlSession:
        parts = SessionParts(self.options, self._database, self._writer, self._stop.is_set, self._tables)
        return MysqlSession(parts, stack)

    @property
    def _has_begun(self) -> bool:
        return bool(self._tables.known)

    def _refuses(self, error: JobpipeError) -> bool:
        """Tell whether a server that runs has refused a connection."""
        return error.fields.get("code") in _REFUSALS or "certificate" in str(error)
