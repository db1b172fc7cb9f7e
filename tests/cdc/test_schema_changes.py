"""Columns of captured tables that change: as Flink CDC calls the modes, and where it is known to have holes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobpipe.cdc.capture_options import IncompatibleChange, SchemaChange
from jobpipe.cdc.postgresql.postgres_note import CaptureNote
from jobpipe.cdc.postgresql.stream.replication_stream import ReplicationStream
from jobpipe.config import Config
from jobpipe.errors import ConfigError, SchemaMismatch
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
from tests.databases.postgres import Postgres

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]


@pytest.mark.slow
def test_a_change_while_the_capture_is_stopped(decoded: Postgres, schema: str, config: Config) -> None:
    """Rows from before and after it come with the columns that they had, at each change of columns and rename."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, a int, b text)")
    given = options(decoded, schema, ["t"], required_subscribers={"t": ("copy",)})
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
    query(f"INSERT INTO {table} VALUES (1, 1, 'x')")
    query(f"ALTER TABLE {table} ADD c numeric(9, 2)")
    query(f"INSERT INTO {table} VALUES (2, 2, 'y', 2.5)")
    query(f"ALTER TABLE {table} DROP b")
    query(f"ALTER TABLE {table} RENAME a TO d")
    query(f"ALTER TABLE {table} ALTER d TYPE bigint")
    query(f"INSERT INTO {table} VALUES (3, {2**40}, 3.5)")
    with running(given, config):
        rows = [row["after"] for row in published("t", 3, config)]
    assert rows[0] == {"id": 1, "a": 1, "b": "x"}
    assert {name: str(value) for name, value in rows[1].items()} == {"id": "2", "a": "2", "b": "y", "c": "2.50"}
    assert {name: str(value) for name, value in rows[2].items()} == {"id": "3", "d": str(2**40), "c": "3.50"}


@pytest.mark.slow
def test_a_table_that_comes_after_a_restart(decoded: Postgres, schema: str, config: Config) -> None:
    """It is read, and its changes follow, also those of its columns."""
    query = decoded.query
    query(f"CREATE TABLE {schema}.a (id int PRIMARY KEY)")
    given = options(decoded, schema, [".*"], required_subscribers={"a": ("copy",), "b": ("copy",)})
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
    with running(given, config) as capture:
        query(f"CREATE TABLE {schema}.b (id int PRIMARY KEY)")
        query(f"INSERT INTO {schema}.b VALUES (1)")
        until(lambda: capture.status().rows == 1, PATIENCE, "the row of the new table")
        query(f"ALTER TABLE {schema}.b ADD a text")
        query(f"INSERT INTO {schema}.b VALUES (2, 'x')")
        rows = published("b", 2, config)
    assert [row["after"] for row in rows] == [{"id": 1}, {"id": 2, "a": "x"}]


@pytest.mark.slow
def test_a_table_that_no_route_names(decoded: Postgres, schema: str, config: Config) -> None:
    """It goes to the topic of its own name, and its columns may change; so may those of one that is not captured."""
    query = decoded.query
    for name in ("a", "b", "other"):
        query(f"CREATE TABLE {schema}.{name} (id int PRIMARY KEY)")
    own = f"{schema}.b"
    route = routes({rf"{schema}\.a": "a"})
    given = options(decoded, schema, ["a", "b"], route=route, required_subscribers={own: ("copy",), "a": ("copy",)})
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
        for name in ("a", "b", "other"):
            query(f"ALTER TABLE {schema}.{name} ADD more text")
            query(f"INSERT INTO {schema}.{name} VALUES (1, 'x')")
        assert [row["after"] for row in published(own, 1, config)] == [{"id": 1, "more": "x"}]
        assert [row["after"] for row in published("a", 1, config)] == [{"id": 1, "more": "x"}]
        until(lambda: settled(capture), PATIENCE, "all")
        assert capture.status().rows == 2


@pytest.mark.slow
def test_ignored_changes(decoded: Postgres, schema: str, config: Config) -> None:
    """Also after a restart the topic has the columns that it had first."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, a text)")
    query(f"INSERT INTO {table} VALUES (1, 'x')")
    given = options(decoded, schema, ["t"], schema_change=SchemaChange.IGNORE, required_subscribers={"t": ("copy",)})
    with running(given, config) as capture:
        until(lambda: settled(capture) and capture.status().rows == 1, PATIENCE, "the beginning")
        query(f"ALTER TABLE {table} ADD b int")
        query(f"INSERT INTO {table} VALUES (2, 'y', 2)")
        until(lambda: capture.status().rows == 2, PATIENCE, "the second row")
    query(f"ALTER TABLE {table} DROP a")
    with running(given, config) as capture:
        query(f"INSERT INTO {table} VALUES (3, 3)")
        rows = published("t", 3, config)
    assert [row["after"] for row in rows] == [{"id": 1, "a": "x"}, {"id": 2, "a": "y"}, {"id": 3, "a": None}]


@pytest.mark.slow
def test_a_column_that_becomes_another_one(decoded: Postgres, schema: str, config: Config) -> None:
    """The capture ends before its rows are published, and again if it is started; as text it goes on."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, a text)")
    query(f"INSERT INTO {table} VALUES (1, '1')")
    given = options(decoded, schema, ["t"], required_subscribers={"t": ("copy",)})
    with pytest.raises(SchemaMismatch, match=r"column a has another type than before \(string, now int32\)"):
        with running(given, config) as capture:
            until(lambda: settled(capture) and capture.status().rows == 1, PATIENCE, "the beginning")
            query(f"ALTER TABLE {table} ALTER a TYPE int USING a::int")
            query(f"INSERT INTO {table} VALUES (2, 2)")
            until(lambda: failures, PATIENCE, "the error of the capture")
    with pytest.raises(SchemaMismatch, match="column a has another type"), running(given, config):
        until(lambda: failures, PATIENCE, "the error of the capture")
    as_text = options(decoded, schema, ["t"], required_subscribers={"t": ("copy",)}, text_columns=(f"{table}.a",))
    with running(as_text, config):
        rows = published("t", 2, config)
    assert [row["after"] for row in rows] == [{"id": 1, "a": "1"}, {"id": 2, "a": "2"}]


@pytest.mark.slow
def test_new_versions_of_a_topic(decoded: Postgres, schema: str, config: Config) -> None:
    """Each has the whole table, and follows it, also after restarts; older ones stay, with what they have."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, a text)")
    query(f"INSERT INTO {table} SELECT g, g FROM generate_series(1, 50) g")
    query(f"CREATE TABLE {schema}.other (id int PRIMARY KEY)")
    given = options(
        decoded,
        schema,
        ["t", "other"],
        incompatible_change=IncompatibleChange.NEW_TOPIC,
        required_subscribers={"t": ("copy", "again")},
        chunk_size=20,
    )
    copies = [Copy("id") for _ in range(3)]
    followers = []
    with running(given, config) as capture:
        followers.append(Follower("t", copies[0], config))
        followers[0].until(lambda: len(copies[0].rows) == 50, "the first version")
        query(f"ALTER TABLE {table} ALTER a TYPE int USING a::int")
        query(f"UPDATE {table} SET a = a + 1 WHERE id < 10")
        query(f"INSERT INTO {schema}.other VALUES (1)")
        until(lambda: "t.v2" in capture._writers, PATIENCE, "the second version")
        followers.append(Follower("t.v2", copies[1], config))
        followers[1].until(lambda: len(copies[1].rows) == 50, "the second version")
        query(f"DELETE FROM {table} WHERE id = 50")
        followers[1].until(lambda: copies[1].rows == rows_of(decoded, table, "id"), "changes")
        assert [row["after"] for row in published("other", 1, config)] == [{"id": 1}]
    query(f"UPDATE {table} SET a = a + 1 WHERE id > 40")
    with running(given, config):
        followers[1].until(lambda: copies[1].rows == rows_of(decoded, table, "id"), "changes while it was stopped")
        assert [row["after"]["a"] for row in published("t", 50, config)] == [str(each) for each in range(1, 51)]
    query(f"ALTER TABLE {table} ALTER a TYPE text")
    query(f"UPDATE {table} SET a = a || 'x' WHERE id = 1")
    with running(given, config) as capture:
        until(lambda: "t.v3" in capture._writers, PATIENCE, "the third version")
        followers.append(Follower("t.v3", copies[2], config))
        query(f"INSERT INTO {table} VALUES (77, 'new')")
        followers[2].until(lambda: copies[2].rows == rows_of(decoded, table, "id"), "the third version")
    with running(given, config):
        query(f"DELETE FROM {table} WHERE id = 77")
        followers[2].until(lambda: copies[2].rows == rows_of(decoded, table, "id"), "changes after a restart")
    for follower in followers:
        follower.close()
    assert all(type(row["a"]) is int for row in copies[1].rows.values())
    assert all(copy.again == 0 for copy in copies)


@pytest.mark.slow
def test_a_column_that_becomes_another_one_and_back_before_a_row_has_it(
    decoded: Postgres, schema: str, config: Config
) -> None:
    """Notes alone, which the capture publishes meanwhile, have no need of a new version of the topic."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, a text)")
    query(f"CREATE TABLE {schema}.other (id int PRIMARY KEY)")
    given = options(
        decoded,
        schema,
        ["t", "other"],
        incompatible_change=IncompatibleChange.NEW_TOPIC,
        heartbeat=0.05,
        required_subscribers={"t": ("copy",)},
    )
    with running(given, config) as capture:
        query(f"INSERT INTO {table} VALUES (1, '1')")
        until(lambda: capture.status().rows == 1, PATIENCE, "a row")
    query(f"ALTER TABLE {table} ALTER a TYPE int USING a::int")
    with running(given, config) as capture:
        query(f"INSERT INTO {schema}.other VALUES (1)")
        before = capture._writers["t"].last_note
        until(lambda: capture._writers["t"].last_note != before, PATIENCE, "a note")
        query(f"ALTER TABLE {table} ALTER a TYPE text")
        query(f"INSERT INTO {table} VALUES (2, '2')")
        assert [row["after"]["a"] for row in published("t", 2, config)] == ["1", "2"]
        assert "t.v2" not in capture._writers


@pytest.mark.slow
@pytest.mark.parametrize("tables", [["t"], ["t", "idle"]])
def test_columns_that_the_stream_tells_of_once_more(
    decoded: Postgres, schema: str, config: Config, monkeypatch: pytest.MonkeyPatch, tables: list[str]
) -> None:
    """The slot or another topic has not gone on, as after a crash: what the topic has is no change of columns."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, a text)")
    query(f"CREATE TABLE {schema}.idle (id int PRIMARY KEY)")
    given = options(decoded, schema, tables, required_subscribers={"t": ("copy",)}, heartbeat=60.0)
    strict = replace(given, schema_change=SchemaChange.EXCEPTION)
    with monkeypatch.context() as patch:
        patch.setattr(ReplicationStream, "confirm", lambda *_: None)
        with running(given, config) as capture:
            until(lambda: settled(capture), PATIENCE, "the beginning")
            query(f"INSERT INTO {table} VALUES (1, 'x')")
            query(f"ALTER TABLE {table} DROP a")
            query(f"INSERT INTO {table} VALUES (2)")
            until(lambda: capture.status().rows == 2, PATIENCE, "two rows")
        with running(strict, config) as capture:
            query(f"INSERT INTO {table} VALUES (3)")
            until(lambda: capture.status().rows == 1, PATIENCE, "a row")
    query(f"INSERT INTO {table} VALUES (4)")
    query(f"ALTER TABLE {table} ADD b int")
    query(f"INSERT INTO {table} VALUES (5, 50)")
    with running(given, config):
        rows = [row["after"] for row in published("t", 5, config)]
    assert rows == [{"id": 1, "a": "x"}, {"id": 2}, {"id": 3}, {"id": 4}, {"id": 5, "b": 50}]


@pytest.mark.slow
def test_a_new_version_is_noted_before_the_slot_goes_on(decoded: Postgres, schema: str, config: Config) -> None:
    """Its tables wait for an open transaction; what is stopped meanwhile goes on."""
    query = decoded.query
    for name in "ab":
        query(f"CREATE TABLE {schema}.{name} (id int PRIMARY KEY, v text)")
    needed = {"a": ("copy",), "b": ("copy",)}
    given = options(
        decoded,
        schema,
        ["a", "b"],
        incompatible_change=IncompatibleChange.NEW_TOPIC,
        heartbeat=30,
        required_subscribers=needed,
    )
    confirmed = f"SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = '{given.slot}'"
    with decoded.connect() as other:
        with running(given, config) as capture:
            for count, name in enumerate("ab", 1):
                query(f"INSERT INTO {schema}.{name} VALUES (1, '1')")
                until(lambda count=count: capture.status().rows == count, PATIENCE, "a row")
            query(f"ALTER TABLE {schema}.a ALTER v TYPE int USING v::int")
            other.execute("BEGIN")
            other.execute("SELECT pg_current_xact_id()")
            query(f"INSERT INTO {schema}.a VALUES (2, 2)")
            until(lambda: "a.v2" in capture._writers, PATIENCE, "the new version")
            note = capture._writers["a"].last_note
            assert note is not None
            place = CaptureNote.from_bytes(note, "a").at
            until(lambda: query(confirmed)[0][0] > place, PATIENCE, "a slot that has gone on")
    with running(given, config):
        assert [row["after"]["v"] for row in published("a.v2", 2, config)] == [1, 2]


@pytest.mark.slow
def test_tables_of_one_topic_are_truncated_while_their_columns_differ(
    decoded: Postgres, schema: str, config: Config
) -> None:
    query = decoded.query
    for name in "ab":
        query(f"CREATE TABLE {schema}.{name} (id int PRIMARY KEY, v text)")
    route = routes({rf"{schema}\..*": "t"})
    given = options(decoded, schema, ["a", "b"], route=route, required_subscribers={"t": ("copy",)})
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
        query(f"ALTER TABLE {schema}.a ADD more int")
        query(f"INSERT INTO {schema}.a VALUES (1, 'x', 1)")
        query(f"INSERT INTO {schema}.b VALUES (1, 'x')")
        query(f"TRUNCATE {schema}.a, {schema}.b")
        rows = published("t", 4, config)
    assert [(row["op"], row["source"]["table"]) for row in rows[:2]] == [("c", "a"), ("c", "b")]
    assert {(row["op"], row["source"]["table"]) for row in rows[2:]} == {("t", "a"), ("t", "b")}


@pytest.mark.slow
def test_a_column_that_is_published_as_text_is_dropped(
    decoded: Postgres, schema: str, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has it still; a capture that has not begun is refused."""
    query, table = decoded.query, f"{schema}.a"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, v date)")
    given = options(decoded, schema, ["a"], text_columns=(f"{table}.v",), required_subscribers={"a": ("copy",)})
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
    query(f"INSERT INTO {table} VALUES (1, 'infinity')")
    query(f"ALTER TABLE {table} DROP v")
    with running(given, config):
        assert [row["after"] for row in published("a", 1, config)] == [{"id": 1, "v": "infinity"}]
    assert f"there is no column {table}.v" in caplog.text
    other = options(decoded, schema, ["a"], name=f"other{schema}", text_columns=(f"{table}.v",))
    with pytest.raises(ConfigError, match=rf"there is no column {table}\.v: mend text-columns; .* has id"):
        with running(other, config):
            pass
