"""The two clocks of a log."""

from __future__ import annotations

from collections.abc import Callable

from jobpipe.store.catalog.catalog_file import Database


class LogClock:
    """The wall clock, and the uptime: seconds during which a coordinator had the log open.

    What expires does so by the uptime, which the catalog keeps: nothing expires while there is no coordinator to reach.
    """

    def __init__(self, database: Database, wall: Callable[[], float]) -> None:
        self.wall = wall  # seconds since 1970
        self.uptime = float(database.value("SELECT uptime FROM meta"))
        self._written = self.uptime
        self._db = database

    def tick(self, seconds: float) -> None:
        """Count uptime."""
        self.uptime += seconds

    @property
    def unwritten(self) -> float:
        """Seconds of uptime that a crash would forget."""
        return self.uptime - self._written

    def write(self) -> None:
        """Write the uptime. Inside a transaction; :meth:`written` when that committed."""
        self._db.execute("UPDATE meta SET uptime = max(uptime, ?)", self.uptime)

    def written(self) -> None:
        """Let a committed :meth:`write` count."""
        self._written = self.uptime
