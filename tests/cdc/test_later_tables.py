"""Tables that come after a capture of PostgreSQL has begun, while it runs and while it is stopped."""

from __future__ import annotations

from typing import Any

import pytest

from jobpipe.cdc.capture_options import IncompatibleChange, Startup
from jobpipe.cdc.postgresql.capture_state import TopicState
from jobpipe.cdc.postgresql.topic_sealing import TopicSealer
from jobpipe.config import Config
from jobpipe.errors import ConfigError, LinkClosed
from tests.bus.kit import until
from tests.cdc.capturing import PATIENCE, options, published, routes, running, settled
from tests.databases.postgres import PASSWORD, Postgres

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(120)]


def test_only_changes_of_tables_that_were_there(decoded: Postgres, schema: str, config: Config) -> None:
    """Of one that comes later all rows: some were there before it was found, or while the capture was stopped."""
    query = decoded.query
    query(f"CREATE TABLE {schema}.a (id int PRIMARY KEY)")
    query(f"INSERT INTO {schema}.a VALUES (1)")
    needed = {"a": ("copy",), "b": ("copy",), "c": ("copy",)}
    given = options(decoded, schema, [".*"], startup=Startup.LATEST, required_subscribers=needed)
    with running(given, config) as capture:
        query(f"INSERT INTO {schema}.a VALUES (2)")
        assert [row["after"]["id"] for row in published("a", 1, config)] == [2]
        query(f"CREATE TABLE {schema}.b (id int PRIMARY KEY)")
        query(f"INSERT INTO {schema}.b VALUES (3)")
        until(lambda: capture.status().rows == 2, PATIENCE, "the row of the new table")
        assert [row["after"]["id"] for row in published("b", 1, config)] == [3]
    query(f"CREATE TABLE {schema}.c (id int PRIMARY KEY)")
    query(f"INSERT INTO {schema}.c VALUES (4)")
    query(f"INSERT INTO {schema}.a VALUES (5)")
    with running(given, config) as capture:
        assert [row["after"]["id"] for row in published("c", 1, config)] == [4]
        assert [row["after"]["id"] for row in published("a", 2, config)] == [2, 5]
        until(lambda: settled(capture), PATIENCE, "all")
        assert capture.status().rows == 2


def test_only_changes_though_the_start_was_cut(
    decoded: Postgres, schema: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first topic's note is published, the second's is not: its table was there, so its rows are not read."""
    query = decoded.query
    for name in "ab":
        query(f"CREATE TABLE {schema}.{name} (id int PRIMARY KEY)")
        query(f"INSERT INTO {schema}.{name} VALUES (1)")
    needed = {"a": ("copy",), "b": ("copy",)}
    given = options(decoded, schema, ["a", "b"], startup=Startup.LATEST, required_subscribers=needed)
    seal, cut = TopicSealer.seal, []

    def cut_off(self: TopicSealer, topic: TopicState) -> None:
        if topic.writer.topic == "b" and not cut:
            cut.append(topic)
            raise LinkClosed("killed here")
        seal(self, topic)

    monkeypatch.setattr(TopicSealer, "seal", cut_off)
    with running(given, config) as capture:
        query(f"INSERT INTO {schema}.b VALUES (2)")
        assert [row["after"]["id"] for row in published("b", 1, config)] == [2]
        until(lambda: settled(capture), PATIENCE, "all")
        assert capture.status().rows == 1
    assert cut


def test_a_table_without_a_key_ends_no_capture_that_has_begun(
    decoded: Postgres, schema: str, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out, by the process that runs and the next one, until it has a key; one that is named ends it."""
    query = decoded.query
    query(f"CREATE TABLE {schema}.a (id int PRIMARY KEY)")
    needed = {"a": ("copy",), "b": ("copy",)}
    given = options(decoded, schema, [".*"], required_subscribers=needed)
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
        query(f"CREATE TABLE {schema}.b (id int)")
        until(lambda: f"{schema}.b has no replica identity" in caplog.text, PATIENCE, "a warning")
    caplog.clear()
    with running(given, config) as capture:
        assert f"{schema}.b has no replica identity" in caplog.text
        query(f"INSERT INTO {schema}.a VALUES (1)")
        assert [row["after"]["id"] for row in published("a", 1, config)] == [1]
        until(lambda: settled(capture), PATIENCE, "all")
    named = options(decoded, schema, ["a", "b"], required_subscribers=needed)
    with pytest.raises(ConfigError, match=r"1 thing to mend\n.*b has no replica identity"), running(named, config):
        pass
    query(f"INSERT INTO {schema}.b VALUES (2)")
    query(f"ALTER TABLE {schema}.b ADD PRIMARY KEY (id)")
    with running(named, config):
        assert [row["after"]["id"] for row in published("b", 1, config)] == [2]
    query(f"ALTER TABLE {schema}.b DROP CONSTRAINT b_pkey")  # it was captured: its changes would be missed
    with pytest.raises(ConfigError, match=r"1 thing to mend\n.*b has no replica identity"), running(given, config):
        pass


@pytest.mark.parametrize("lacks", ["nothing", "publication", "rows"])
def test_a_table_that_the_role_may_not_capture(
    decoded: Postgres, schema: str, config: Config, caplog: pytest.LogCaptureFixture, lacks: str
) -> None:
    """One that another role owns, and has not published, or that hides rows: it is left out, and the others go on."""
    query, role = decoded.query, f"r{schema}"
    query(f"CREATE TABLE {schema}.a (id int PRIMARY KEY)")
    query(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{PASSWORD}'")
    needed = {"a": ("copy",), "b": ("copy",)}
    given = options(decoded, schema, [".*"], username=role, required_subscribers=needed)
    try:
        query(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        query(f"GRANT SELECT ON {schema}.a TO {role}")
        query(f"CREATE PUBLICATION {given.publication} FOR TABLE {schema}.a")
        with running(given, config) as capture:
            until(lambda: settled(capture), PATIENCE, "the beginning")
            made = [f"CREATE TABLE {schema}.b (id int PRIMARY KEY)", f"INSERT INTO {schema}.b VALUES (1)"]
            if lacks == "rows":
                made += [
                    f"ALTER TABLE {schema}.b ENABLE ROW LEVEL SECURITY",
                    f"CREATE POLICY p ON {schema}.b USING (id = 2)",
                ]
            if lacks != "publication":
                made.append(f"ALTER PUBLICATION {given.publication} ADD TABLE {schema}.b")
            query("; ".join([*made, f"GRANT SELECT ON {schema}.b TO {role}"]))
            if lacks == "nothing":
                assert [row["after"]["id"] for row in published("b", 1, config)] == [1]
            else:
                what = "hides rows" if lacks == "rows" else f"is not in publication {given.publication}"
                until(lambda: f"table {schema}.b {what}" in caplog.text, PATIENCE, "a warning")
            query(f"INSERT INTO {schema}.a VALUES (1)")
            assert [row["after"]["id"] for row in published("a", 1, config)] == [1]
    finally:
        query(f"DROP OWNED BY {role} CASCADE")
        query(f"DROP ROLE {role}")


@pytest.mark.parametrize("how", ["DROP TABLE {}", "ALTER TABLE {} RENAME TO c", "all"])
def test_a_table_that_is_made_again(decoded: Postgres, schema: str, config: Config, how: str) -> None:
    """The capture was started without it meanwhile, and the slot has gone on: it is another table, and is read."""
    query, drop = decoded.query, how if how != "all" else "DROP TABLE {}"
    for name in "ab":
        query(f"CREATE TABLE {schema}.{name} (id int PRIMARY KEY)")
    needed = {"a": ("copy",), "b": ("copy",)}
    given = options(decoded, schema, [".*"], required_subscribers=needed, heartbeat=0.05)
    with running(given, config) as capture:
        query(f"INSERT INTO {schema}.b VALUES (1)")
        until(lambda: capture.status().rows == 1, PATIENCE, "a row")
        query(drop.format(f"{schema}.b"))
    confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
    again = [f"CREATE TABLE {schema}.b (id int PRIMARY KEY)", f"INSERT INTO {schema}.b VALUES (2)"]
    with running(given, config) as capture:
        before = query(confirmed, given.slot)
        query(f"INSERT INTO {schema}.a VALUES (1)")
        until(lambda: query(confirmed, given.slot) > before, PATIENCE, "a slot that has gone on")
        if how != "all":
            query("; ".join(again))
            assert [row["after"]["id"] for row in published("b", 2, config)] == [1, 2]
    if how == "all":
        query("; ".join([f"DROP TABLE {schema}.a", *again]))
    with running(given, config) as capture:
        assert [row["after"]["id"] for row in published("b", 2, config)] == [1, 2]
        query(f"INSERT INTO {schema}.b VALUES (3)")
        assert [(row["op"], row["after"]["id"]) for row in published("b", 3, config)][2] == ("c", 3)


def test_a_table_made_again_whose_version_has_another_table(decoded: Postgres, schema: str, config: Config) -> None:
    """A route leads to the version; its note is read once, and nothing goes on from it."""
    query = decoded.query
    query(f"CREATE TABLE {schema}.a (id int PRIMARY KEY)")
    query(f"CREATE TABLE {schema}.b (id int PRIMARY KEY, v text)")
    given: dict[str, Any] = {
        "required_subscribers": dict.fromkeys(("a", "b", "b.v2"), ("copy",)),
        "incompatible_change": IncompatibleChange.NEW_TOPIC,
        "heartbeat": 0.05,
    }
    first = options(decoded, schema, [".*"], **given)
    with running(first, config):
        query(f"INSERT INTO {schema}.b VALUES (1, '1')")
        assert [row["after"]["v"] for row in published("b", 1, config)] == ["1"]
        query(f"ALTER TABLE {schema}.b ALTER v TYPE int USING v::int")
        query(f"INSERT INTO {schema}.b VALUES (2, 2)")
        assert [row["after"]["v"] for row in published("b.v2", 2, config)] == [1, 2]
    query(f"DROP TABLE {schema}.b")
    end = query("SELECT pg_current_wal_lsn()")[0][0]  # after all that is published
    going_on = "SELECT confirmed_flush_lsn > %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    with running(first, config):
        query(f"INSERT INTO {schema}.a VALUES (1)")
        until(lambda: query(going_on, end, first.slot) == [(True,)], PATIENCE, "a slot that has gone on")
    for name in "bc":
        query(f"CREATE TABLE {schema}.{name} (id int PRIMARY KEY, v int)")
        query(f"INSERT INTO {schema}.{name} VALUES (3, 3)")
    route = routes({rf"{schema}\.c": "b.v2", rf"{schema}\.(.*)": "$1"})
    with running(options(decoded, schema, [".*"], route=route, **given), config):
        rows = published("b.v2", 4, config)
        assert sorted(row["source"]["table"] for row in rows[2:]) == ["b", "c"]
