"""A capture of a real PostgreSQL: what stands in the topics, and what it goes on from."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

import jobpipe
from jobpipe.cdc.capture_options import SchemaChange, Startup
from jobpipe.cdc.change_rows import RowFormat
from jobpipe.cdc.postgresql.postgres_capture import PostgresCapture
from jobpipe.config import Config, load
from jobpipe.errors import ConfigError, DataLoss, NotAuthorized, SchemaMismatch
from tests.bus.kit import until
from tests.cdc.capturing import (
    PATIENCE,
    Copy,
    Follower,
    failures,
    options,
    published,
    routes,
    rows_of,
    running,
    settled,
)
from tests.databases.postgres import PASSWORD, Postgres

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]
SMALL = {
    "jobpipe.spool.max_bytes": "1MB",
    "jobpipe.segment.max_bytes": "64KB",
    "jobpipe.retention.ack_grace": "0s",
}


def fails() -> None:
    """Wait until the capture has ended with an error."""
    until(lambda: failures, PATIENCE, "the error of the capture")


def keep(topic: str, config: Config) -> None:
    """Let a subscription keep all rows of a topic."""
    jobpipe.subscribe(topic, name="keeps", starting="earliest", config=config).close()


def test_an_envelope(decoded: Postgres, schema: str, config: Config) -> None:
    """Debezium's, with what the database does not send named; a changed key is a deletion and a creation."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, name text, long text)")
    query(f"ALTER TABLE {table} ALTER long SET STORAGE EXTERNAL")
    query(f"INSERT INTO {table} VALUES (1, 'a', repeat('x', 9000))")
    with running(options(decoded, schema, ["t"], required_subscribers={"t": ("copy",)}), config) as capture:
        until(lambda: not capture.status().tables, PATIENCE, "the end of reading")
        query(f"UPDATE {table} SET name = 'b' WHERE id = 1")
        query(f"UPDATE {table} SET id = 2 WHERE id = 1")
        query(f"INSERT INTO {table} VALUES (3, NULL, '')")
        query(f"DELETE FROM {table} WHERE id = 2")
        query(f"TRUNCATE {table}")
        rows = published("t", 7, config)
    long, key = "x" * 9000, {"name": None, "long": None}
    assert [(row["op"], row["before"], row["after"], row["unchanged"]) for row in rows] == [
        ("r", None, {"id": 1, "name": "a", "long": long}, None),
        ("u", None, {"id": 1, "name": "b", "long": None}, ["long"]),
        ("d", {"id": 1, **key}, None, None),
        ("c", {"id": 1, **key}, {"id": 2, "name": "b", "long": None}, ["long"]),
        ("c", None, {"id": 3, "name": None, "long": ""}, None),
        ("d", {"id": 2, **key}, None, None),
        ("t", None, None, None),
    ]
    sources = [row["source"] for row in rows]
    assert {(each["db"], each["schema"], each["table"]) for each in sources} == {("postgres", schema, "t")}
    assert [each["snapshot"] for each in sources] == [True] + [False] * 6
    assert sources[0]["lsn"] is sources[0]["txId"] is None
    assert [each["lsn"] for each in sources[1:]] == sorted(each["lsn"] for each in sources[1:])
    assert sources[2]["txId"] == sources[3]["txId"] < sources[4]["txId"]
    assert all(abs(row["ts_ms"] - row["source"]["ts_ms"]) < 60_000 for row in rows)


def test_flat_rows_of_a_table_with_full_identity(decoded: Postgres, schema: str, config: Config) -> None:
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, name text, long text)")
    query(f"ALTER TABLE {table} ALTER long SET STORAGE EXTERNAL, REPLICA IDENTITY FULL")
    query(f"INSERT INTO {table} VALUES (1, 'a', repeat('x', 9000))")
    with running(options(decoded, schema, ["t"], format=RowFormat.FLAT, startup=Startup.LATEST), config):
        keep("t", config)
        query(f"UPDATE {table} SET name = 'b'")
        query(f"UPDATE {table} SET id = 2")
        query(f"DELETE FROM {table}")
        rows = published("t", 4, config)
    assert [[row[name] for name in ("__op", "__table", "id", "name", "__unchanged")] for row in rows] == [
        ["u", f"{schema}.t", 1, "b", None],
        ["d", f"{schema}.t", 1, "b", None],
        ["c", f"{schema}.t", 2, "b", None],
        ["d", f"{schema}.t", 2, "b", None],
    ]
    assert {row["long"] for row in rows} == {"x" * 9000}


@pytest.mark.slow
def test_tables_of_their_own_topics_and_of_one(decoded: Postgres, schema: str, config: Config) -> None:
    """Transactions over several topics; what is added while it runs; tables that cannot share a topic."""
    query = decoded.query
    for name in ("a", "b", "sales_1", "sales_2"):
        query(f"CREATE TABLE {schema}.{name} (id int PRIMARY KEY, n int)")
        query(f"INSERT INTO {schema}.{name} VALUES (1, 1)")
    query(f"CREATE TABLE {schema}.other (id int PRIMARY KEY, name text)")
    query(f"INSERT INTO {schema}.other VALUES (1, 'x')")
    given: dict[str, Any] = {
        "route": routes({rf"{schema}\.sales_.*": "sales", rf"{schema}\.(.*)": "$1"}),
        "required_subscribers": dict.fromkeys(("a", "b", "sales"), ("copy",)),
    }
    with running(options(decoded, schema, ["a", "b", "sales_.*"], **given), config) as capture:
        with decoded.connect() as connection, connection.transaction():
            for name in ("a", "b", "sales_1", "sales_2"):
                connection.execute(f"INSERT INTO {schema}.{name} VALUES (2, 2)")
        found = {topic: published(topic, count, config) for topic, count in (("a", 2), ("b", 2), ("sales", 4))}
        assert [row["after"]["id"] for row in found["a"]] == [row["after"]["id"] for row in found["b"]] == [1, 2]
        assert sorted((row["source"]["table"], row["after"]["id"]) for row in found["sales"]) == [
            *(("sales_1", 1), ("sales_1", 2), ("sales_2", 1), ("sales_2", 2))
        ]
        query(f"CREATE TABLE {schema}.sales_3 (id int PRIMARY KEY, n int)")
        query(f"CREATE TABLE {schema}.sales_bad (id int, n int)")  # has no key: it is left out
        query(f"INSERT INTO {schema}.sales_3 VALUES (7, 7)")
        rows = published("sales", 5, config)
        assert (rows[4]["source"]["table"], rows[4]["op"], rows[4]["after"]["id"]) == ("sales_3", "r", 7)
        until(lambda: settled(capture), PATIENCE, "the rest")
        query(f"INSERT INTO {schema}.sales_bad VALUES (1, 1)")
        query(f"UPDATE {schema}.sales_bad SET n = 2")  # the application's updates do not fail
    query(f"DROP TABLE {schema}.sales_bad")
    both = {**given, "route": routes({f"{schema}.(a|other)": "both"})}
    with pytest.raises(ConfigError, match=r"go to topic both, and have different columns"):
        with running(options(decoded, schema, ["a", "other"], name=f"x{schema}", **both), config):
            pass


@pytest.mark.slow
def test_it_goes_on_where_it_was(decoded: Postgres, schema: str, config: Config) -> None:
    """What happened while it was stopped; with chunks of two rows, and a table without a key of its own."""
    query = decoded.query
    query(f"CREATE TABLE {schema}.t (a text, b int, n int, PRIMARY KEY (a, b))")
    query(f"CREATE TABLE {schema}.keyless (a text, n int)")
    query(f"ALTER TABLE {schema}.keyless REPLICA IDENTITY FULL")
    query(f"INSERT INTO {schema}.t SELECT chr(97 + i % 5), i, i FROM generate_series(1, 23) i")
    query(f"INSERT INTO {schema}.keyless VALUES ('x', 1), ('x', 1), (NULL, 2)")
    given = options(decoded, schema, ["t", "keyless"], chunk_size=2, required_subscribers={"keyless": ("later",)})
    copy, follower = Copy("a", "b"), None
    for _ in range(3):
        with running(given, config) as capture:
            follower = follower or Follower("t", copy, config)
            query(f"UPDATE {schema}.t SET n = n + 1 WHERE b % 3 = 0")
            until(lambda capture=capture: settled(capture), PATIENCE, "all that there is")
        query(f"DELETE FROM {schema}.t WHERE b = (SELECT min(b) FROM {schema}.t)")
        query(f"INSERT INTO {schema}.keyless VALUES ('y', 3)")
    with running(given, config) as capture:
        want = rows_of(decoded, f"{schema}.t", "a", "b")
        follower.until(lambda: copy.rows == want, "the table")
        rows = published("keyless", 6, config)
    follower.close()
    assert copy.seen["r"] == 23
    assert [(row["op"], row["after"]["a"], row["after"]["n"]) for row in rows] == [
        *(("r", "x", 1), ("r", "x", 1), ("r", None, 2)),
        *[("c", "y", 3)] * 3,
    ]


@pytest.mark.slow
def test_a_transaction_is_cut_and_killed_in_the_middle(decoded: Postgres, schema: str, config: Config) -> None:
    """5,000 changes in batches of 500, and an error after the third: the next capture goes on inside."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)")
    given = options(decoded, schema, ["t"], batch_rows=500)
    with running(given, config) as capture:
        keep("t", config)
        until(lambda: settled(capture), PATIENCE, "the beginning")
        writer = capture._writers["t"]
        write, writes = writer.write, iter(range(3, -1, -1))

        def failing(rows: pa.Table, note: bytes) -> None:
            if rows.num_rows and next(writes) == 0:
                capture._stop.set()
                raise jobpipe.errors.LinkClosed("killed here")
            write(rows, note)

        writer.write = failing  # type: ignore[method-assign]
        query(f"INSERT INTO {table} SELECT i, i FROM generate_series(1, 5000) i")
        assert capture._stop.wait(PATIENCE)
    with running(given, config):
        rows = published("t", 5000, config)
    assert [row["after"]["id"] for row in rows] == list(range(1, 5001))
    assert len({row["source"]["txId"] for row in rows}) == 1


@pytest.mark.slow
def test_a_note_before_the_stream_forgets_nothing(decoded: Postgres, schema: str, config: Config) -> None:
    """A table that is new is read first: its chunk's note must keep how much of a cut transaction is published.

    And that its topic is further than another one, of which nothing was published since.
    """
    query = decoded.query
    for name in ("a_1", "a_2", "b"):
        query(f"CREATE TABLE {schema}.{name} (id int PRIMARY KEY, n int)")
    query(f"INSERT INTO {schema}.a_2 VALUES (1, 1)")
    route = routes({rf"{schema}\.a_.": "a", rf"{schema}\.(.*)": "$1"})
    given = options(decoded, schema, ["a_1", "b"], batch_rows=100, route=route, heartbeat=60.0)
    with running(given, config) as capture:
        keep("a", config)
        until(lambda: settled(capture), PATIENCE, "the beginning")
        stream = capture._session._stream
        stream.confirm = lambda *_, **__: None  # as if the database had lost it in a crash
        query(f"INSERT INTO {schema}.a_1 SELECT i, i FROM generate_series(1, 50) i")
        until(lambda: capture.status().rows == 50, PATIENCE, "the first transaction")
        writer = capture._writers["a"]
        write, writes = writer.write, iter(range(3, -1, -1))

        def failing(rows: pa.Table, note: bytes) -> None:
            if rows.num_rows and next(writes) == 0:
                capture._stop.set()
                raise jobpipe.errors.LinkClosed("killed here")
            write(rows, note)

        writer.write = failing
        query(f"INSERT INTO {schema}.a_1 SELECT i, i FROM generate_series(51, 1000) i")
        assert capture._stop.wait(PATIENCE)
    more = options(decoded, schema, ["a_[12]", "b"], batch_rows=100, route=route)
    with running(more, config):
        rows = published("a", 1001, config)
    found = [(row["source"]["table"], row["after"]["id"]) for row in rows]
    assert sorted(found) == [*(("a_1", each) for each in range(1, 1001)), ("a_2", 1)]


@pytest.mark.slow
def test_columns_that_change(decoded: Postgres, schema: str, config: Config) -> None:
    """By default rows get the new ones; with ``exception`` the capture ends, also if it was stopped meanwhile."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, a int)")
    query(f"INSERT INTO {table} VALUES (1, 1)")
    given = options(decoded, schema, ["t"], required_subscribers={"t": ("copy",)})
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
        with decoded.connect() as connection, connection.transaction():
            connection.execute(f"INSERT INTO {table} VALUES (2, 2)")
            connection.execute(f"ALTER TABLE {table} ADD b text")
            connection.execute(f"INSERT INTO {table} VALUES (3, 3, 'x')")
        rows = published("t", 3, config)
        until(lambda: settled(capture), PATIENCE, "all")
    assert [row["after"] for row in rows] == [{"id": 1, "a": 1}, {"id": 2, "a": 2}, {"id": 3, "a": 3, "b": "x"}]
    strict = options(decoded, schema, ["t"], schema_change=SchemaChange.EXCEPTION)
    with running(strict, config) as capture:
        until(lambda: settled(capture), PATIENCE, "all")
    query(f"ALTER TABLE {table} ADD c int")
    with pytest.raises(SchemaMismatch, match="has other columns than when it was captured last"):
        with running(strict, config):
            pass
    query(f"ALTER TABLE {table} DROP c")
    with pytest.raises(SchemaMismatch, match=r"its columns have changed \(b\)"), running(strict, config):
        query(f"ALTER TABLE {table} ALTER b TYPE varchar(9)")
        query(f"INSERT INTO {table} VALUES (4, 4, 'y')")
        fails()


def test_values_that_no_column_can_hold(decoded: Postgres, schema: str, config: Config) -> None:
    """The error names table and column, and no value; as text the same rows come."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, until date)")
    query(f"INSERT INTO {table} VALUES (1, '2026-01-01')")
    given = {"required_subscribers": {"t": ("copy",)}}
    with (
        pytest.raises(SchemaMismatch, match=rf"table {table}, column until \(date\): a row has a time") as caught,
        running(options(decoded, schema, ["t"], **given), config) as capture,
    ):
        until(lambda: settled(capture), PATIENCE, "the first row")
        query(f"INSERT INTO {table} VALUES (2, 'infinity')")
        fails()
    assert f"add {table}.until to text-columns" in str(caught.value)
    assert "infinity" not in str(caught.value)
    with running(options(decoded, schema, ["t"], text_columns=(f"{table}.until",), **given), config):
        rows = published("t", 2, config)
    assert [row["after"] for row in rows[1:]] == [{"id": 2, "until": "infinity"}]


@pytest.mark.slow
def test_a_slot_that_is_gone_or_of_another(decoded: Postgres, schema: str, config: Config) -> None:
    query = decoded.query
    query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
    given = options(decoded, schema, ["t"])
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
    with running(given, config):
        pass  # it goes on
    until(
        lambda: not query("SELECT slot_name FROM pg_replication_slots WHERE active"), PATIENCE, "the end of the stream"
    )
    other = options(decoded, schema, ["t"], name=f"x{schema}", slot_name=given.slot)
    with pytest.raises(ConfigError, match=r"exists, but no topic knows it"), running(other, config):
        pass
    query("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", given.slot)
    query(f"INSERT INTO {schema}.t VALUES (1)")
    query("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", given.slot)
    with pytest.raises(DataLoss, match=r"The changes between are lost") as caught, running(given, config):
        pass
    assert caught.value.fields["reason"] == "confirmed"
    query("SELECT pg_drop_replication_slot(%s)", given.slot)
    with pytest.raises(DataLoss, match=r"is gone, and with it the changes from"), running(given, config):
        pass


@pytest.mark.slow
def test_an_idle_capture_lets_the_log_go(decoded: Postgres, schema: str, config: Config) -> None:
    """Others write, and nothing of that is captured: the slot moves on."""
    query = decoded.query
    query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
    query(f"CREATE TABLE {schema}.busy (id int PRIMARY KEY)")
    given = options(decoded, schema, ["t"], heartbeat=0.05)
    with running(given, config):
        query(f"INSERT INTO {schema}.busy SELECT generate_series(1, 1000)")
        ((lsn,),) = query("SELECT pg_current_wal_lsn()")
        confirmed = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
        until(lambda: query(confirmed, lsn, given.slot) == [(True,)], PATIENCE, "the slot")
    with running(given, config):
        pass


@pytest.mark.slow
def test_a_stop_ends_a_wait_for_room(
    decoded: Postgres, schema: str, settings_of_test: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The spool is full, and its reader does not read: the capture waits; a later one publishes the rest."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, long text)")
    query(f"INSERT INTO {table} SELECT i, repeat(md5(i::text), 400) FROM generate_series(1, 400) i")
    given = options(decoded, schema, ["t"], chunk_size=40, required_subscribers={"t": ("copy",)})
    own_config = load(
        overrides={**settings_of_test, **SMALL},
        environ={},
    )
    capture = PostgresCapture(given, own_config)
    ended = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            capture.run()
        except BaseException as error:
            errors.append(error)
        ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until(lambda: capture.status().rows >= 40, PATIENCE, "the first rows")
    until(lambda: "the spool is full" in caplog.text, PATIENCE, "the wait for room")
    assert not ended.is_set()
    capture.stop()
    assert ended.wait(PATIENCE)
    thread.join(PATIENCE)
    capture.close()
    assert errors == []
    with running(given, own_config):
        follower = Follower("t", Copy("id"), own_config)
        follower.until(lambda: len(follower.copy.rows) == 400, "all rows")
        follower.close()
    assert follower.copy.seen == {"r": 400}


def test_row_security_hides_nothing(decoded: Postgres, schema: str, config: Config) -> None:
    """A role that would see a part of the rows gets an error, not that part."""
    query, table, role = decoded.query, f"{schema}.t", f"r{schema}"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    query(f"INSERT INTO {table} VALUES (1), (2)")
    query(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{PASSWORD}'")
    given = options(decoded, schema, ["t"], username=role)
    try:
        query(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        query(f"GRANT SELECT ON {table} TO {role}")
        query(f"CREATE PUBLICATION {given.publication} FOR TABLE {table}")
        with running(given, config) as capture:
            until(lambda: settled(capture), PATIENCE, "the beginning")
        query(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        query(f"CREATE POLICY p ON {table} USING (id = 1)")
        query(f"TRUNCATE {table}")
        other = options(decoded, schema, ["t"], username=role, name=f"x{schema}", publication_name=given.publication)
        with pytest.raises(NotAuthorized, match="row-level security"), running(other, config):
            fails()
    finally:
        query(f"DROP OWNED BY {role} CASCADE")
        query(f"DROP ROLE {role}")


@pytest.mark.slow
def test_another_key_while_the_table_is_read(decoded: Postgres, schema: str, config: Config) -> None:
    """What was published is taken back by a ``t``, and the table is read by its new key."""
    query, table = decoded.query, f"{schema}.t"
    query(f'CREATE TABLE {table} (a int PRIMARY KEY, b text COLLATE "C" NOT NULL, n int)')
    query(f"INSERT INTO {table} SELECT i, md5(i::text), 0 FROM generate_series(1, 2000) i")
    given = options(decoded, schema, ["t"], chunk_size=10, required_subscribers={"t": ("copy",)})
    with running(given, config) as capture:
        until(lambda: capture.status().rows > 100, PATIENCE, "the first rows")
        query(f"ALTER TABLE {table} DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (b)")
        query(f"UPDATE {table} SET n = 1 WHERE a % 2 = 0")
        query(f"ALTER TABLE {table} RENAME b TO c")
        query(f"UPDATE {table} SET n = 2 WHERE a % 3 = 0")
        until(lambda: settled(capture), PATIENCE, "the end of reading")
        rows = published("t", capture.status().rows, config)
        want = rows_of(decoded, table, "c")
    last = max(place for place, row in enumerate(rows) if row["op"] == "t")
    found: dict[str, Any] = {}
    for row in rows[last + 1 :]:
        after = dict(row["after"])
        key = after.get("c") or after.pop("b")
        found[key] = {"a": after["a"], "c": key, "n": after["n"]}
    assert {(key,): row for key, row in found.items()} == want


@pytest.mark.slow
def test_a_key_that_is_stored_apart(decoded: Postgres, schema: str, config: Config) -> None:
    """PostgreSQL sends it as an old value, and not as a new one, though it is the same."""
    columns = ", ".join(f"c{number} text" for number in range(30))
    decoded.query(f"CREATE TABLE {schema}.t (id text PRIMARY KEY, n int, {columns})")
    with running(options(decoded, schema, ["t"], required_subscribers={"t": ("copy",)}), config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
        values = ", ".join(f"md5('{number}') || md5('x{number}')" for number in range(30))
        decoded.query(f"INSERT INTO {schema}.t SELECT md5('a') || md5('b') || md5('c'), 1, {values}")
        decoded.query(f"UPDATE {schema}.t SET n = 2")
        first, second = published("t", 2, config)
    assert (second["op"], second["after"]["id"], second["after"]["n"]) == ("u", first["after"]["id"], 2)
    assert "id" not in (second["unchanged"] or ())


@pytest.mark.slow
def test_a_partition_with_another_replica_identity(decoded: Postgres, schema: str, config: Config) -> None:
    """It sends keys alone, though its table has FULL: long values that are not known are named."""
    query, table = decoded.query, f"{schema}.p"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, v text) PARTITION BY RANGE (id)")
    query(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    query(f"CREATE TABLE {schema}.p1 PARTITION OF {table} DEFAULT")
    with running(options(decoded, schema, ["p"], required_subscribers={"p": ("copy",)}), config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
        query(f"INSERT INTO {table} SELECT 1, 1, string_agg(md5(g::text), '') FROM generate_series(1, 400) g")
        query(f"UPDATE {table} SET id = 2")
        query(f"ALTER TABLE {schema}.p1 REPLICA IDENTITY FULL")
        query(f"UPDATE {table} SET id = 3")
        rows = published("p", 5, config)
    assert [row["op"] for row in rows] == ["c", "d", "c", "d", "c"]
    assert (rows[2]["after"], rows[2]["unchanged"]) == ({"id": 2, "n": 1, "v": None}, ["v"])
    assert (rows[4]["after"], rows[4]["unchanged"]) == ({"id": 3, "n": 1, "v": rows[0]["after"]["v"]}, None)
