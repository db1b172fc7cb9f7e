"""What people and faults do to a capture that runs: it goes on, or ends with what is lost; never in silence."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from jobpipe.cdc.postgresql import capture_session
from jobpipe.cdc.postgresql.capture_state import TopicState
from jobpipe.cdc.postgresql.postgres_capture import PostgresCapture
from jobpipe.cdc.postgresql.session_start import SessionStart
from jobpipe.cdc.postgresql.stream.replication_stream import ReplicationStream
from jobpipe.cdc.postgresql.table_reading import TableReading
from jobpipe.cdc.postgresql.topic_sealing import TopicSealer
from jobpipe.config import Config
from jobpipe.errors import ConfigError, DataLoss
from tests.bus.kit import until
from tests.cdc.capturing import (
    PATIENCE,
    Copy,
    Follower,
    failures,
    in_thread,
    options,
    published,
    routes,
    rows_of,
    running,
    settled,
)
from tests.databases.postgres import Postgres, missing

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(120)]


def test_a_table_taken_out_of_the_publication_and_put_back(decoded: Postgres, schema: str, config: Config) -> None:
    """Its changes since are unknown: it is taken back, and read again."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)")
    query(f"INSERT INTO {table} SELECT i, 0 FROM generate_series(1, 20) i")
    given, copy = options(decoded, schema, ["t"], heartbeat=0.1), Copy("id")
    with running(given, config) as capture:
        follower = Follower("t", copy, config)
        follower.until(lambda: len(copy.rows) == 20, "the beginning")
        query(f"ALTER PUBLICATION {given.publication} DROP TABLE {table}")
        query(f"UPDATE {table} SET n = 1 WHERE id < 5")
        query(f"DELETE FROM {table} WHERE id > 15")
        follower.until(lambda: copy.seen.get("t", 0) == 1 and len(copy.rows) == 15, "the table once more")
        until(lambda: settled(capture), PATIENCE, "the end of reading")
        query(f"UPDATE {table} SET n = 2 WHERE id = 7")
        want = rows_of(decoded, table, "id")
        follower.until(lambda: copy.rows == want, "the table")
        follower.close()


def test_a_publication_that_is_gone(decoded: Postgres, schema: str, config: Config) -> None:
    """What was committed without it cannot be decoded; the server's own words say so."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    given = options(decoded, schema, ["t"], heartbeat=60.0)
    with pytest.raises(DataLoss, match=r"publication .* does not exist .*\(42704\)"):
        with running(given, config) as capture:
            until(lambda: settled(capture), PATIENCE, "the beginning")
            query(f"DROP PUBLICATION {given.publication}")
            query(f"INSERT INTO {table} VALUES (1)")
            until(lambda: failures, PATIENCE, "the error")


def test_tables_that_come_and_fit_nowhere(decoded: Postgres, schema: str, config: Config) -> None:
    """A name that no topic can have, no columns, other columns than its topic's: left out, and said."""
    query = decoded.query
    query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
    route = routes({rf"{schema}\.(t|u)": "t", rf"{schema}\.(.*)": "$1"})
    given = options(decoded, schema, [".*"], heartbeat=0.1, route=route, required_subscribers={"t": ("copy",)})
    with running(given, config):
        query(f'CREATE TABLE {schema}."A b" (id int PRIMARY KEY)')
        query(f"CREATE TABLE {schema}.u (id text PRIMARY KEY)")
        query(f"CREATE TABLE {schema}.none ()")
        query(f"CREATE TABLE {schema}.good (id int PRIMARY KEY)")
        query(f"INSERT INTO {schema}.good VALUES (1)")
        slot = "SELECT count(*) FROM pg_publication_tables WHERE pubname = %s"
        until(lambda: query(slot, given.publication) == [(2,)], PATIENCE, "the one that fits")
        query(f"INSERT INTO {schema}.t VALUES (7)")
        assert published("t", 1, config)[0]["after"] == {"id": 7}


def test_a_table_that_is_dropped(decoded: Postgres, schema: str, config: Config) -> None:
    """The others go on, now and after a restart; the log that is kept goes on, too."""
    query = decoded.query
    for name in ("t", "u"):
        query(f"CREATE TABLE {schema}.{name} (id int PRIMARY KEY)")
    given = options(decoded, schema, ["[tu]"], heartbeat=0.1, required_subscribers={"t": ("copy",)})
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
        query(f"INSERT INTO {schema}.u VALUES (1)")
        query(f"DROP TABLE {schema}.u")
        query(f"INSERT INTO {schema}.t VALUES (1)")
        published("t", 1, config)
    with running(given, config):
        query(f"INSERT INTO {schema}.t VALUES (2)")
        assert [row["after"]["id"] for row in published("t", 2, config)] == [1, 2]


def hold_back(table: str, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let a table not be read before the event."""
    read, free = TableReading.read_chunk, threading.Event()

    def read_chunk(self: TableReading, of: Any) -> bool:
        return False if of.found.name == table and not free.is_set() else read(self, of)

    monkeypatch.setattr(TableReading, "read_chunk", read_chunk)
    return free


def test_a_lock_keeps_nothing_else_up(
    decoded: Postgres, schema: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration holds a table that is to be read: the changes of others come, and a stop is heard."""
    query, free = decoded.query, hold_back("u", monkeypatch)
    for name in ("t", "u"):
        query(f"CREATE TABLE {schema}.{name} (id int PRIMARY KEY)")
    given = options(decoded, schema, ["t", "u"], required_subscribers={"t": ("copy",)}, heartbeat=0.05)
    with running(given, config) as capture, decoded.connect() as connection, connection.transaction():
        until(lambda: list(capture.status().tables) == [f"{schema}.u"], PATIENCE, "the end of the first table")
        connection.execute(f"LOCK TABLE {schema}.u")
        free.set()
        query(f"INSERT INTO {schema}.t VALUES (1)")
        assert published("t", 1, config)[0]["after"] == {"id": 1}
        assert list(capture.status().tables) == [f"{schema}.u"]
        capture.stop()
        until(lambda: capture._session is None, PATIENCE, "its end")


def test_a_slot_that_waits_hears_a_stop(decoded: Postgres, schema: str, config: Config) -> None:
    query = decoded.query
    query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
    with decoded.connect() as connection, connection.transaction():
        connection.execute(f"INSERT INTO {schema}.t VALUES (1)")
        with PostgresCapture(options(decoded, schema, ["t"]), config) as capture:
            ended = in_thread(capture.run)
            making = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
            until(lambda: query(making, capture.options.slot) == [(1,)], PATIENCE, "the wait for the slot")
            capture.stop()
            assert ended.wait(PATIENCE)


def test_a_crash_with_asynchronous_commits(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a chunk has read is on the disk before it is published; the numbers of its transactions come once."""
    if (what := missing()) is not None:
        pytest.skip(f"a test with a real PostgreSQL needs {what}")
    lazy = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
    free = hold_back("u", monkeypatch)
    with Postgres(wal_level="logical", **lazy) as server:
        server.query("CREATE TABLE t (id int PRIMARY KEY)")
        server.query("CREATE TABLE u (id int PRIMARY KEY)")
        given = options(server, "public", ["t", "u"], required_subscribers={"u": ("copy",)})
        with running(given, config) as capture:
            until(lambda: len(capture.status().tables) == 1, PATIENCE, "the end of the first table")
            server.query("INSERT INTO u VALUES (5)")
            free.set()
            until(lambda: capture.status().rows == 1, PATIENCE, "the row")
            _crash(server)
            for key in range(6, 12):
                server.query(f"SET synchronous_commit = on; INSERT INTO u VALUES ({key})")
            want = [key for (key,) in server.query("SELECT id FROM u ORDER BY id")]
            rows = published("u", len(want), config)
    assert [row["after"]["id"] for row in rows] == want


def _crash(server: Postgres) -> None:
    server.crash()
    server.start_again()
    with server.connect() as connection:
        assert connection.info.status == psycopg.pq.ConnStatus.OK


def test_topics_are_served_while_the_database_is_away(config: Config) -> None:
    """What is published can be read, and how the database stood last is known; once it is back, the capture goes on."""
    if (what := missing()) is not None:
        pytest.skip(f"a test with a real PostgreSQL needs {what}")
    with Postgres(wal_level="logical") as server:
        server.query("CREATE TABLE t (id int PRIMARY KEY)")
        server.query("INSERT INTO t VALUES (1), (2)")
        given = options(server, "public", ["t"], required_subscribers={"t": ("copy",)})
        with running(given, config) as capture:
            until(lambda: settled(capture) and capture.status().rows == 2, PATIENCE, "the rows")
            writer = capture._writers["t"]
            server.kill()
            until(lambda: not capture.status().position, PATIENCE, "the end of the session")
            assert [row["after"]["id"] for row in published("t", 2, config)] == [1, 2]
            assert capture._writers["t"] is writer
            server.start_again()
            server.query("INSERT INTO t VALUES (3)")
            assert [row["after"]["id"] for row in published("t", 3, config)] == [1, 2, 3]


@pytest.mark.parametrize("wrote", ["nothing", "one", "as much", "more", "elsewhere"])
def test_an_older_copy_is_restored(config: Config, wrote: str) -> None:
    """Its files, as of a snapshot of the disk: of the same cluster, timeline and slot. It has written something since.

    "nothing" was not captured after the copy was made, so it is the same; "elsewhere" it has written what is not
    captured, so that its log is as long.
    """
    if (what := missing()) is not None:
        pytest.skip(f"a test with a real PostgreSQL needs {what}")
    with Postgres(wal_level="logical") as server:
        query = server.query
        query("CREATE TABLE t (id int PRIMARY KEY)")
        query("CREATE TABLE elsewhere (id int)")
        given = options(server, "public", ["t"], required_subscribers={"t": ("copy",)}, heartbeat=0.05)
        data, kept = server.folder / "data", server.folder / "kept"
        with running(given, config) as capture:
            query("INSERT INTO t VALUES (1)")
            until(lambda: capture.status().rows == 1 and settled(capture), PATIENCE, "a row")
        _exchange(server, data, kept)
        if wrote != "nothing":
            with running(given, config) as capture:
                query("INSERT INTO t VALUES (2)")
                until(lambda: capture.status().rows == 1 and settled(capture), PATIENCE, "a row")
        _exchange(server, kept, data)
        if wrote == "nothing":
            with running(given, config):
                query("INSERT INTO t VALUES (3)")
                assert [row["after"]["id"] for row in published("t", 2, config)] == [1, 3]
            return
        for key in range(10, {"one": 11, "as much": 12, "more": 60}.get(wrote, 10)):
            query(f"INSERT INTO t VALUES ({key})")
        if wrote == "elsewhere":
            query("INSERT INTO elsewhere SELECT generate_series(1, 10000)")
        for _ in range(2):  # it is found again
            with pytest.raises(DataLoss, match="an older copy of it was restored") as lost:
                with running(given, config):
                    until(lambda: failures, PATIENCE, "the error")
            assert lost.value.fields["reason"] == "restored"
    assert [row["after"]["id"] for row in published("t", 2, config)] == [1, 2]


def test_a_copy_that_has_written_to_another_topic(config: Config) -> None:
    """What it has written to a topic that is less far comes before what shows that it is another history."""
    if (what := missing()) is not None:
        pytest.skip(f"a test with a real PostgreSQL needs {what}")
    with Postgres(wal_level="logical") as server:
        query = server.query
        for name in "ab":
            query(f"CREATE TABLE {name} (id int PRIMARY KEY)")
        needed = {"a": ("copy",), "b": ("copy",)}
        given = options(server, "public", ["a", "b"], required_subscribers=needed, heartbeat=60.0)
        data, kept = server.folder / "data", server.folder / "kept"
        with running(given, config) as capture:
            query("INSERT INTO b VALUES (1)")
            until(lambda: capture.status().rows == 1, PATIENCE, "a row")
        _exchange(server, data, kept)
        with running(given, config) as capture:
            for key in range(100):
                query(f"INSERT INTO a VALUES ({key})")
            until(lambda: capture.status().rows == 100, PATIENCE, "rows")
        _exchange(server, kept, data)
        for key in range(500, 700):
            query(f"INSERT INTO b VALUES ({key})")
        with pytest.raises(DataLoss, match="an older copy of it was restored"):
            with running(given, config) as capture:
                until(lambda: failures, PATIENCE, "the error")
        assert capture.status().rows == 0


def test_what_was_confirmed_while_the_next_process_starts(
    decoded: Postgres, schema: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes it late: it need not tell what was confirmed so."""
    query, stopped = decoded.query, list[int]()
    query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
    given = options(decoded, schema, ["t"], required_subscribers={"t": ("copy",)}, heartbeat=60.0)

    def sender() -> int | None:
        return query("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", given.slot)[0][0]

    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
        confirm = ReplicationStream.confirm

        def stop_and_confirm(self: ReplicationStream, lsn: int) -> None:
            if lsn > self._confirmed and capture.status().rows and not stopped:
                pid = sender()
                assert pid is not None
                stopped.append(pid)
                os.kill(pid, signal.SIGSTOP)
            confirm(self, lsn)

        monkeypatch.setattr(ReplicationStream, "confirm", stop_and_confirm)
        query(f"INSERT INTO {schema}.t VALUES (1)")
        until(lambda: stopped, PATIENCE, "the row")
    open_topics = SessionStart._open_topics

    def late(self: SessionStart) -> Any:
        os.kill(stopped[0], signal.SIGCONT)
        until(lambda: sender() is None, PATIENCE, "the end of the stream before")
        return open_topics(self)

    monkeypatch.setattr(SessionStart, "_open_topics", late)
    with running(given, config):
        query(f"INSERT INTO {schema}.t VALUES (2)")
        assert [row["after"]["id"] for row in published("t", 2, config)] == [1, 2]


def _exchange(server: Postgres, there: Path, here: Path) -> None:
    """Put the files of a server that is killed from one folder into another, as a disk's snapshot has them."""
    server.crash()
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(there, here)
    stat = server.folder.stat()
    for path in (here, *here.rglob("*")):
        os.chown(path, stat.st_uid, stat.st_gid)
    server.start_again()


@pytest.mark.parametrize("waits", ["rows", "bytes", None])
def test_what_is_held_is_bounded(
    decoded: Postgres, schema: str, config: Config, monkeypatch: pytest.MonkeyPatch, waits: str | None
) -> None:
    """A topic lacks a batch of a process whose batches were larger; it is published before all of it has come again."""
    query = decoded.query
    for name in "ab":
        query(f"CREATE TABLE {schema}.{name} (id int PRIMARY KEY)")
    needed = {"a": ("copy",), "b": ("copy",)}
    given = options(decoded, schema, ["a", "b"], required_subscribers=needed, heartbeat=60.0)
    seal, held = TopicSealer.write, list[int]()

    def cut_off(self: TopicSealer, topic: TopicState, *more: Any) -> None:
        if topic.writer.topic == "b":
            raise ConfigError("killed here")
        seal(self, topic, *more)

    with pytest.raises(ConfigError), running(given, config) as capture, monkeypatch.context() as patch:
        until(lambda: settled(capture), PATIENCE, "the beginning")
        patch.setattr(TopicSealer, "write", cut_off)
        patch.setattr(capture_session, "OPEN_SECONDS", PATIENCE)  # the transaction is published as a whole
        query(
            f"WITH rows AS (INSERT INTO {schema}.a SELECT generate_series(1, 1000) RETURNING id) "
            f"INSERT INTO {schema}.b SELECT id FROM rows"
        )
        until(lambda: failures, PATIENCE, "the cut")
    flush = TopicSealer.flush

    def note_held(self: TopicSealer) -> None:
        if self.stream is None:
            held.extend(topic.waiting.count for topic in self._state.topics.values() if topic.waiting)
        flush(self)

    monkeypatch.setattr(TopicSealer, "flush", note_held)
    if waits == "bytes":
        monkeypatch.setattr(capture_session, "BATCH_BYTES", 1000)
    with running(dataclasses.replace(given, batch_rows=50 if waits == "rows" else 20_000), config):
        for name in "ab":
            query(f"INSERT INTO {schema}.{name} VALUES (1001)")
            assert [row["after"]["id"] for row in published(name, 1001, config)] == list(range(1, 1002))
    assert bool(held) == (waits is not None)
    if waits == "rows":
        assert max(held) < 200
