"""A hot standby of the tests' PostgreSQL, which follows its primary by a slot, and may be promoted."""

from __future__ import annotations

import re
import subprocess

from tests.databases.postgres import PASSWORD, SUPERUSER, Postgres, missing, programs

SLOT = "standby"
"""The slot of the primary, for ``synchronized_standby_slots``."""
SYNCHRONIZES = 17  # the version from which it synchronizes logical slots too
PROMOTE_SECONDS = 30


def version() -> int:
    """Return the first number of the version of the programs that are there."""
    folder = programs()
    assert folder is not None
    said = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, timeout=10, check=True)
    found = re.search(r"\d+", said.stdout)
    assert found is not None, said.stdout
    return int(found[0])


def cannot_synchronize() -> str | None:
    """Return what is needed for a standby that synchronizes slots, and is not there; None if all is."""
    if (what := missing()) is not None:
        return what
    if (found := version()) < SYNCHRONIZES:
        return f"PostgreSQL {SYNCHRONIZES}, and this is {found}; POSTGRES_BIN is the folder of its programs"
    return None


class Standby(Postgres):
    """A running standby, made from a primary that runs.

    Args:
        port: where it connects to the primary; its own one by default.
    """

    def __init__(self, primary: Postgres, *, port: int | None = None) -> None:
        settings = {"wal_level": "logical", "hot_standby_feedback": "on", "primary_slot_name": SLOT}
        settings["wal_retrieve_retry_interval"] = "100ms"
        if version() >= SYNCHRONIZES:
            settings["sync_replication_slots"] = "on"
        super().__init__(**settings)
        self._primary = primary
        self._primary_port = primary.port if port is None else port

    def make(self) -> None:
        """Copy the primary's files, and let it follow from there."""
        data = self.folder / "data"
        with self._primary.connect() as connection:
            connection.execute("SELECT pg_create_physical_replication_slot(%s, true)", (SLOT,))
            connection.execute("SELECT pg_backup_start('standby', true)")
            self.run("cp", "-a", str(self._primary.folder / "data"), str(data))
            row = connection.execute("SELECT labelfile FROM pg_backup_stop(false)").fetchone()
        assert row is not None
        for name in ("postmaster.pid", "pg_wal/*", "pg_replslot/*"):
            self.run("sh", "-c", f"rm -rf {data}/{name}")
        where = f"host=127.0.0.1 port={self._primary_port} user={SUPERUSER} password={PASSWORD} dbname=postgres"
        self._write("backup_label", row[0])
        self._write("standby.signal", "")
        self._write("postgresql.auto.conf", f"primary_conninfo = '{where}'\n")

    def promote(self) -> None:
        """Let it take over, once it has replayed all that it has."""
        assert self.query("SELECT pg_promote(true, %s)", PROMOTE_SECONDS) == [(True,)]

    def synchronize(self) -> None:
        """Let it look at the slots of the primary now, and not after half a minute; and the primary's slots go on."""
        self._primary.query("SELECT pg_log_standby_snapshot()")
        self.query("SELECT pg_reload_conf()")  # whose signal ends a wait

    def has_all(self) -> bool:
        """Whether it has received all that the primary has written."""
        ((end,),) = self._primary.query("SELECT pg_current_wal_flush_lsn()")
        return self.query("SELECT coalesce(pg_last_wal_receive_lsn() >= %s::pg_lsn, false)", end) == [(True,)]

    def follows(self) -> bool:
        """Whether it is connected to its primary."""
        return bool(self.query("SELECT 1 FROM pg_stat_wal_receiver WHERE status = 'streaming'"))

    def _write(self, name: str, text: str) -> None:
        path = self.folder / "data" / name
        self.run("sh", "-c", 'cat > "$0"', str(path), stdin=text)
