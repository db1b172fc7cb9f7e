"""The copy of each table equals the table, row by row, whatever happens while it is read and followed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jobpipe.config import Config
from tests.cdc.capturing import Copy, Follower
from tests.cdc.mysql.mysql_capturing import options, rows_of, running
from tests.cdc.mysql.mysql_workload import KINDS, Workload, captured_form, create
from tests.databases.mysql_server import MySqlServer

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(300)]

Rows = dict[tuple[Any, ...], dict[str, Any]]


def table_rows(server: MySqlServer, database: str, table: str) -> Rows:
    """Return a table's rows by key, as they stand in a topic."""
    rows = rows_of(server, database, table, *KINDS[table].names)
    return {key: captured_form(row) for key, row in rows.items()}


def test_read_and_followed_while_writers_write(logged: MySqlServer, database: str, config: Config) -> None:
    """Chunks of 50 rows among three writers, and captures one after the other."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    tables = list(KINDS)
    create(logged, database, tables, seed)
    needed = dict.fromkeys(tables, ("copy",))
    given = options(logged, database, tables, chunk_size=50, batch_rows=200, required_subscribers=needed)
    copies = {table: Copy(*KINDS[table].names) for table in tables}
    followers: dict[str, Follower] = {}
    workload = Workload(logged, database, tables, seed)

    def follow(until: Any, what: str) -> None:
        for follower in followers.values():
            follower.until(until, what)

    try:
        for life in range(5):
            with running(given, config) as capture:
                for table in tables:
                    followers[table] = followers.get(table) or Follower(table, copies[table], config)
                reads = sum(copy.seen.get("r", 0) for copy in copies.values())
                changes = sum(sum(copy.seen.values()) for copy in copies.values())

                def more(life: int = life, reads: int = reads, changes: int = changes, capture: Any = capture) -> bool:
                    seen = [dict(copy.seen) for copy in copies.values()]
                    read = sum(each.get("r", 0) for each in seen) > reads + 300 or not capture.status().tables
                    return read and sum(sum(each.values()) for each in seen) > changes + 500

                follow(more, f"changes and rows of life {life}")
                if life == 4:
                    follow(lambda: not capture.status().tables, "the end of reading")
                    for part in range(3):
                        workload.stop()
                        for table in tables:
                            want = table_rows(logged, database, table)
                            followers[table].until(
                                lambda want=want, table=table: copies[table].rows == want, f"table {table}"
                            )
                        if part < 2:
                            workload = Workload(logged, database, tables, seed + 10 + part)
                            seen = sum(sum(copy.seen.values()) for copy in copies.values())
                            follow(
                                lambda seen=seen: sum(sum(c.seen.values()) for c in copies.values()) > seen + 500,
                                "changes",
                            )
    finally:
        workload.stop()
        for follower in followers.values():
            follower.close()
    print(workload.transactions, {table: copy.seen for table, copy in copies.items()})
    for copy in copies.values():
        assert min(copy.seen.get(each, 0) for each in "rcud") > 0


def test_a_snapshot_that_is_late(
    logged: MySqlServer, database: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may send a transaction before snapshots see it: then the rows are not taken."""
    from jobpipe.cdc.mariadb import chunk_reading
    from jobpipe.cdc.mariadb.server.server_log import ServerLog

    logged.query("CREATE TABLE t (id int PRIMARY KEY, n int)", database)
    logged.query("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)", database)
    run, executed = chunk_reading.execute, ServerLog.executed
    late: list[str] = []  # what has been done
    kept: list[Any] = []

    def early(connection: Any, statement: str, *values: Any) -> Any:
        """Let a snapshot be one of before a change that has been streamed since."""
        if statement.startswith("START TRANSACTION") and late == ["begun"]:
            return None
        return run(connection, statement, *values)

    def read(self: chunk_reading.ChunkReading, table: Any) -> bool:
        if not late and not self._state.is_replaying and self._state.placed:
            late.append("begun")
            kept.append(None if self._state.mariadb else executed(self._log))
            run(self._reading, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            kept.append(self._state.at.position)
            logged.query("UPDATE t SET n = 9 WHERE id = 2", database)
            return False
        if late == ["begun"]:
            if self._state.at.position == kept[1]:
                return False  # the change has not come
            done = self._read_in_snapshot(table)
            late.append("ended")
            assert not done
            return done
        return real(self, table)

    real = chunk_reading.ChunkReading.read
    monkeypatch.setattr(chunk_reading, "execute", early)
    monkeypatch.setattr(chunk_reading.ChunkReading, "read", read)
    monkeypatch.setattr(ServerLog, "executed", lambda self: kept[0] if late == ["begun"] else executed(self))
    copy = Copy("id")
    with running(options(logged, database, ["t"], required_subscribers={"t": ("copy",)}), config):
        follower = Follower("t", copy, config)
        follower.until(lambda: copy.rows == rows_of(logged, database, "t", "id"), "the table")
        follower.close()
    assert late == ["begun", "ended"]
