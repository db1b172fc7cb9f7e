"""Tables that come after a capture has begun, and topics that get new versions."""

from __future__ import annotations

import pytest

from jobpipe.cdc.capture_options import IncompatibleChange, Startup
from jobpipe.cdc.mariadb.mysql_state import TopicState
from jobpipe.cdc.mariadb.note_sealing import NoteSealer
from jobpipe.config import Config
from jobpipe.errors import ConfigError, LinkClosed
from tests.bus.kit import until
from tests.cdc.capturing import PATIENCE, Copy, Follower, published, settled
from tests.cdc.mysql.mysql_capturing import options, rows_of, running
from tests.databases.mysql_server import MySqlServer

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(120)]


def test_only_changes_of_tables_that_were_there(logged: MySqlServer, database: str, config: Config) -> None:
    """Of one that comes later all rows: some were there before it was found, or while the capture was stopped."""
    query = logged.query
    query("CREATE TABLE a (id int PRIMARY KEY)", database)
    query("INSERT INTO a VALUES (1)", database)
    needed = {"a": ("copy",), "b": ("copy",), "c": ("copy",)}
    given = options(logged, database, [".*"], startup=Startup.LATEST, required_subscribers=needed)
    with running(given, config) as capture:
        query("INSERT INTO a VALUES (2)", database)
        assert [row["after"]["id"] for row in published("a", 1, config)] == [2]
        query("CREATE TABLE b (id int PRIMARY KEY)", database)
        query("INSERT INTO b VALUES (3)", database)
        until(lambda: capture.status().rows == 2, PATIENCE, "the row of the new table")
        assert [row["after"]["id"] for row in published("b", 1, config)] == [3]
    query("CREATE TABLE c (id int PRIMARY KEY)", database)
    query("INSERT INTO c VALUES (4)", database)
    query("INSERT INTO a VALUES (5)", database)
    with running(given, config) as capture:
        assert [row["after"]["id"] for row in published("c", 1, config)] == [4]
        assert [row["after"]["id"] for row in published("a", 2, config)] == [2, 5]
        until(lambda: settled(capture), PATIENCE, "all")
        assert capture.status().rows == 2


def test_only_changes_though_the_start_was_cut(
    logged: MySqlServer, database: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first topic's note is published, the second's is not: its table was there, so its rows are not read."""
    query = logged.query
    for name in "ab":
        query(f"CREATE TABLE {name} (id int PRIMARY KEY)", database)
        query(f"INSERT INTO {name} VALUES (1)", database)
    needed = {"a": ("copy",), "b": ("copy",)}
    given = options(logged, database, ["a", "b"], startup=Startup.LATEST, required_subscribers=needed)
    seal, cut = NoteSealer.seal, []

    def cut_off(self: NoteSealer, topic: TopicState) -> None:
        if topic.writer.topic == "b" and not cut:
            cut.append(topic)
            raise LinkClosed("killed here")
        seal(self, topic)

    monkeypatch.setattr(NoteSealer, "seal", cut_off)
    with running(given, config) as capture:
        query("INSERT INTO b VALUES (2)", database)
        assert [row["after"]["id"] for row in published("b", 1, config)] == [2]
        until(lambda: settled(capture), PATIENCE, "all")
        assert capture.status().rows == 1
    assert cut


def test_a_table_without_a_key_ends_no_capture_that_has_begun(
    logged: MySqlServer, database: str, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out, by the process that runs and the next one, until it has a key; one that is named ends it."""
    query = logged.query
    query("CREATE TABLE a (id int PRIMARY KEY)", database)
    needed = {"a": ("copy",), "b": ("copy",)}
    given = options(logged, database, [".*"], required_subscribers=needed)
    with running(given, config) as capture:
        until(lambda: settled(capture), PATIENCE, "the beginning")
        query("CREATE TABLE b (id int)", database)
        until(lambda: f"{database}.b has no primary key" in caplog.text, PATIENCE, "a warning")
    caplog.clear()
    with running(given, config) as capture:
        assert f"{database}.b has no primary key" in caplog.text
        query("INSERT INTO a VALUES (1)", database)
        assert [row["after"]["id"] for row in published("a", 1, config)] == [1]
        until(lambda: settled(capture), PATIENCE, "all")
    named = options(logged, database, ["a", "b"], required_subscribers=needed)
    with pytest.raises(ConfigError, match=r"1 thing to mend\n.*b has no primary key"), running(named, config):
        pass
    query("INSERT INTO b VALUES (2)", database)
    query("ALTER TABLE b ADD PRIMARY KEY (id)", database)
    with running(named, config):
        assert [row["after"]["id"] for row in published("b", 1, config)] == [2]
    query("ALTER TABLE b DROP PRIMARY KEY", database)  # it was captured: its changes would be missed
    with pytest.raises(ConfigError, match=r"1 thing to mend\n.*b has no primary key"), running(given, config):
        pass


def test_new_versions_of_a_topic(logged: MySqlServer, database: str, config: Config) -> None:
    """Each has the whole table, and follows it, also after restarts; older ones stay, with what they have."""
    query = logged.query
    query("CREATE TABLE t (id int PRIMARY KEY, a varchar(9))", database)
    query("INSERT INTO t VALUES " + ", ".join(f"({each}, '{each}')" for each in range(1, 51)), database)
    query("CREATE TABLE other (id int PRIMARY KEY)", database)
    given = options(
        logged,
        database,
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
        query("ALTER TABLE t MODIFY a int", database)
        query("UPDATE t SET a = a + 1 WHERE id < 10", database)
        query("INSERT INTO other VALUES (1)", database)
        until(lambda: "t.v2" in capture._writers, PATIENCE, "the second version")
        followers.append(Follower("t.v2", copies[1], config))
        followers[1].until(lambda: len(copies[1].rows) == 50, "the second version")
        query("DELETE FROM t WHERE id = 50", database)
        followers[1].until(lambda: copies[1].rows == rows_of(logged, database, "t", "id"), "changes")
        assert [row["after"] for row in published("other", 1, config)] == [{"id": 1}]
    query("UPDATE t SET a = a + 1 WHERE id > 40", database)
    with running(given, config):
        want = rows_of(logged, database, "t", "id")
        followers[1].until(lambda: copies[1].rows == want, "changes while it was stopped")
        assert [row["after"]["a"] for row in published("t", 50, config)] == [str(each) for each in range(1, 51)]
    query("ALTER TABLE t MODIFY a varchar(20)", database)
    query("UPDATE t SET a = concat(a, 'x') WHERE id = 1", database)
    with running(given, config) as capture:
        until(lambda: "t.v3" in capture._writers, PATIENCE, "the third version")
        followers.append(Follower("t.v3", copies[2], config))
        query("INSERT INTO t VALUES (77, 'new')", database)
        followers[2].until(lambda: copies[2].rows == rows_of(logged, database, "t", "id"), "the third version")
    with running(given, config):
        query("DELETE FROM t WHERE id = 77", database)
        followers[2].until(lambda: copies[2].rows == rows_of(logged, database, "t", "id"), "changes after a restart")
    for follower in followers:
        follower.close()
    assert all(type(row["a"]) is int for row in copies[1].rows.values())
    assert all(copy.again == 0 for copy in copies)


@pytest.mark.parametrize(
    ("change", "last", "expected"),
    [
        ("DROP v", "(2, 'w2')", {"id": 2, "w": "w2"}),
        ("ADD x text", "(2, 'v2', 'w2', 'x2')", {"id": 2, "v": "v2", "w": "w2", "x": "x2"}),
        ("MODIFY w varchar(99) FIRST", "('w2', 2, 'v2')", {"w": "w2", "id": 2, "v": "v2"}),
    ],
)
def test_columns_that_change_while_the_capture_is_stopped(
    logged: MySqlServer, database: str, config: Config, change: str, last: str, expected: dict[str, object]
) -> None:
    """Rows of the log that are older than the change have the columns of their time."""
    query = logged.query
    query("CREATE TABLE a (id int PRIMARY KEY, v text, w text)", database)
    given = options(logged, database, ["a"], required_subscribers={"a": ("copy",)})
    with running(given, config) as capture:
        query("INSERT INTO a VALUES (0, 'v0', 'w0')", database)
        until(lambda: capture.status().rows == 1, PATIENCE, "a row")
    query("INSERT INTO a VALUES (1, 'v1', 'w1')", database)
    query(f"ALTER TABLE a {change}", database)
    query(f"INSERT INTO a VALUES {last}", database)
    with running(given, config):
        rows = [row["after"] for row in published("a", 3, config)]
    assert rows[:2] == [{"id": each, "v": f"v{each}", "w": f"w{each}"} for each in (0, 1)]
    assert rows[2] == expected
