"""Parts of tables of a real PostgreSQL that are read again: requests that are done, and that cannot be."""

from __future__ import annotations

import json
import threading

import pytest

from jobpipe.cdc.postgresql.database.database_catalog import DatabaseCatalog
from jobpipe.cdc.postgresql.postgres_capture import PostgresCapture
from jobpipe.cdc.postgresql.postgres_options import PostgresOptions
from jobpipe.cdc.postgresql.reading_again import MAX_RANGES, RangeReading
from jobpipe.config import Config
from jobpipe.errors import ConfigError
from tests.bus.kit import until
from tests.cdc.capturing import PATIENCE, Copy, Follower, options, published, routes, running, settled
from tests.databases.postgres import Postgres

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]


def test_a_part_is_read_again(decoded: Postgres, schema: str, config: Config, caplog: pytest.LogCaptureFixture) -> None:
    """Asked for while it is stopped, and from another process; in pieces of two rows; wrong requests are logged."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (a text, b int, PRIMARY KEY (a, b))")
    query(f"INSERT INTO {table} SELECT chr(97 + i / 4), i FROM generate_series(0, 11) i")
    given = options(decoded, schema, ["t"], chunk_size=2, required_subscribers={"t": ("copy",)})
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
    with PostgresCapture(given, config) as other:
        other.read_again(table, ["a", "1"], ["c", "8"])
        with pytest.raises(ConfigError, match="a key has a value for each of a, b"):
            other.read_again(table, ["a"], None)
        with pytest.raises(ConfigError, match=r"captures no table .*\.other"):
            other.read_again(f"{schema}.other")
        number, print_ = query("SELECT %s::regclass::oid::int", table)[0][0], _key_print(decoded, given)
        for wrong in (
            json.dumps({"table": number, "key": print_, "after": ["a"], "through": None}),
            json.dumps({"table": number, "key": "other", "after": None, "through": None}),
            json.dumps({"table": 1, "key": print_, "after": None, "through": None}),
            "junk",
        ):
            query("SELECT pg_logical_emit_message(true, %s, %s::text)", f"jobpipe:{given.slot}", wrong)
        other.read_again(table, ["c", "9"])
    with running(given, config):
        rows = published("t", 12 + 7 + 2, config)
    assert [row["op"] for row in rows] == ["r"] * 21
    assert [row["after"]["b"] for row in rows[12:]] == [2, 3, 4, 5, 6, 7, 8, 10, 11]
    said = [line.partition("read again: ")[2] for line in caplog.messages if "is not read again" in line]
    assert sorted(said) == [
        "it is no request of `jobpipe cdc read-again`",
        f"table {table} has another key now",
        f"table {table}: a key has a value for each of a, b",
        "the capture has no table of number 1",
    ]


def _key_print(server: Postgres, given: PostgresOptions) -> str:
    with server.connect() as connection:
        catalog = DatabaseCatalog(connection)
        return catalog.readable(catalog.tables(given.tables)[0]).key_print


@pytest.mark.slow
def test_a_part_is_read_again_under_new_names(decoded: Postgres, schema: str, config: Config) -> None:
    """The table and its key have other names, and no row was changed since: the stream has not told of them yet."""
    query = decoded.query
    query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
    query(f"INSERT INTO {schema}.t VALUES (1), (2), (3)")
    route = routes({rf"{schema}\..*": "t"})
    given = options(decoded, schema, [".*"], route=route, required_subscribers={"t": ("copy",)}, heartbeat=60.0)
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
        query(f"ALTER TABLE {schema}.t RENAME COLUMN id TO number")
        query(f"ALTER TABLE {schema}.t RENAME TO u")
        capture.read_again(f"{schema}.u", ["1"], ["2"])
        rows = published("t", 4, config)
        query(f"DELETE FROM {schema}.u WHERE number = 3")
        gone = published("t", 5, config)[4]
    assert [row["after"] for row in rows[3:]] == [{"number": 2}]
    assert (gone["op"], gone["before"]) == ("d", {"number": 3})


@pytest.mark.slow
def test_a_part_is_read_again_by_a_key_of_the_users_type(decoded: Postgres, schema: str, config: Config) -> None:
    """Its name has no schema where the search path finds it."""
    query, kind = decoded.query, f"mood_{schema}"
    query(f"CREATE TYPE public.{kind} AS ENUM ('a', 'b')")
    try:
        query(f"CREATE TABLE {schema}.t (id {kind} PRIMARY KEY)")
        query(f"INSERT INTO {schema}.t VALUES ('a'), ('b')")
        given = options(decoded, schema, ["t"], required_subscribers={"t": ("copy",)})
        with running(given, config) as capture:
            until(lambda: settled(capture), PATIENCE, "the beginning")
            capture.read_again(f"{schema}.t", ["a"])
            assert [row["after"]["id"] for row in published("t", 3, config)] == ["a", "b", "b"]
    finally:
        query(f"DROP TYPE public.{kind} CASCADE")


@pytest.mark.slow
def test_requests_that_cannot_be_done(decoded: Postgres, schema: str, config: Config) -> None:
    """Of a key that is none, and of another key than now; the capture goes on, also after a restart."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, name text NOT NULL)")
    query(f"INSERT INTO {table} VALUES (1, 'a')")
    given, copy = options(decoded, schema, ["t"]), Copy("id")
    with running(given, config) as capture:
        follower = Follower("t", copy, config)
        until(lambda: settled(capture), PATIENCE, "the beginning")
    with PostgresCapture(given, config) as asking:
        asking.read_again(table, ["x"])
        asking.read_again(table, ["0"])
        query(f"ALTER TABLE {table} DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (name)")
    for key in (2, 3):
        with running(given, config):
            query(f"INSERT INTO {table} VALUES ({key}, 'n{key}')")
            follower.until(lambda key=key: (key,) in copy.rows, "a change")
    follower.close()


@pytest.mark.slow
def test_two_topics_with_requests(decoded: Postgres, schema: str, config: Config) -> None:
    """The first topic is asked while rows of the second wait for their mark: each row goes to its own topic."""
    query = decoded.query
    for name, first in (("a", 0), ("b", 100)):
        query(f"CREATE TABLE {schema}.{name} (id int PRIMARY KEY)")
        query(f"INSERT INTO {schema}.{name} SELECT generate_series({first + 1}, {first + 3})")
    given = options(decoded, schema, ["a", "b"], required_subscribers={"a": ("copy",), "b": ("copy",)})
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
        session = capture._session
        assert session is not None
        step, asked = session._ranges.step, threading.Event()

        def asking() -> bool:
            done = step()
            if session._ranges._window is not None and not asked.is_set():  # of b
                asked.set()
                capture.read_again(f"{schema}.a")
            return done

        session._ranges.step = asking  # type: ignore[method-assign]
        capture.read_again(f"{schema}.b")
        rows = {topic: published(topic, 6, config) for topic in ("a", "b")}
    assert [row["after"]["id"] for row in rows["a"]] == [1, 2, 3] * 2
    assert [row["after"]["id"] for row in rows["b"]] == [101, 102, 103] * 2


@pytest.mark.slow
def test_a_key_for_which_a_note_has_no_room(
    decoded: Postgres, schema: str, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """The part ends before it, which is said; the capture goes on."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id text PRIMARY KEY)")
    given = options(decoded, schema, ["t"], chunk_size=1, required_subscribers={"t": ("copy",)}, heartbeat=60.0)
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
        query(f"INSERT INTO {table} VALUES ('a'), (repeat('b', 4000)), ('c')")
        published("t", 3, config)
        capture.read_again(table)
        until(lambda: "is read again only in part" in caplog.text, PATIENCE, "the error")
        query(f"INSERT INTO {table} VALUES ('d')")
        published("t", 6, config)
        capture.read_again(table, ["bz"])
        rows = [(row["op"], row["after"]["id"][:1]) for row in published("t", 8, config)]
    assert rows[3:] == [("r", "a"), ("r", "b"), ("c", "d"), ("r", "c"), ("r", "d")]


@pytest.mark.slow
def test_requests_are_taken_once(
    decoded: Postgres, schema: str, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of a topic that is ahead of another one are streamed again after a restart: also one that was refused."""
    query = decoded.query
    for name in "ab":
        query(f"CREATE TABLE {schema}.{name} (id int PRIMARY KEY)")
    query(f"INSERT INTO {schema}.a VALUES (1)")
    needed = {"a": ("copy",), "b": ("copy",)}
    given = options(decoded, schema, ["a", "b"], required_subscribers=needed, heartbeat=60.0)
    with running(given, config) as capture:
        until(lambda: settled(capture) and capture.status().rows == 1, PATIENCE, "the beginning")
        with decoded.connect() as connection, connection.transaction():
            catalog = DatabaseCatalog(connection)
            found = catalog.readable(next(each for each in catalog.tables(given.tables) if each.name == "a"))
            asked = json.dumps({"table": found.table.number, "key": found.key_print, "after": None, "through": None})
            for _ in range(MAX_RANGES + 1):
                connection.execute(
                    "SELECT pg_logical_emit_message(true, %s, %s::text)", (f"jobpipe:{given.slot}", asked)
                )
        published("a", 1 + MAX_RANGES, config)
        assert caplog.text.count("parts of tables wait already") == 1
    streamed = []
    with pytest.MonkeyPatch.context() as patch:
        take = RangeReading.take
        patch.setattr(RangeReading, "take", lambda self, message: (streamed.append(message), take(self, message)))
        with running(given, config):
            query(f"INSERT INTO {schema}.a VALUES (2)")
            rows = published("a", 2 + MAX_RANGES, config)
    assert [message.content for message in streamed].count(asked.encode()) == MAX_RANGES + 1
    assert [row["op"] for row in rows] == ["r"] * (1 + MAX_RANGES) + ["c"]
    assert caplog.text.count("parts of tables wait already") == 1
