"""Groups of changes as they are committed: transactions, statements of DDL, savepoints, XA."""

from __future__ import annotations

import pytest

from jobpipe.cdc.mariadb.binlog.binlog_events import (
    Begin,
    Change,
    End,
    Idle,
    Rows,
    Savepoint,
    Statement,
    rolled_back_to,
)
from jobpipe.cdc.mariadb.binlog.binlog_position import GtidState
from tests.cdc.mysql.binlog.logged_server import LoggedDatabase


def groups(changes: list[Change]) -> list[list[object]]:
    """Return what each group has, in short."""
    found: list[list[object]] = []
    group: list[object] | None = None
    for change in changes:
        match change:
            case Begin():
                assert group is None
                group = ["xa"] if change.xa else []
            case Idle():
                assert group is None
            case End():
                assert group is not None
                group += ["rolled back"] * change.rolled_back + ["one phase"] * change.one_phase
                assert not change.cut
                found.append(group)
                group = None
            case Rows():
                assert group is not None
                group += [f"{change.table.name} {change.kind} {len(change.rows)}"]
            case Savepoint():
                assert group is not None
                group += [change]
            case Statement():
                assert group is not None
                group += [change.text]
    assert group is None
    return found


def clock(logged: LoggedDatabase) -> int:
    """Return what the server's clock shows, in milliseconds; MariaDB's log has whole seconds."""
    ((seconds,),) = logged.run(f"SELECT UNIX_TIMESTAMP({'' if logged.mariadb else 'NOW(6)'})")
    return int(float(seconds) * 1000)


@pytest.fixture
def table(logged: LoggedDatabase) -> LoggedDatabase:
    """A database with a table."""
    logged.run("CREATE TABLE a (id int PRIMARY KEY, v int)")
    return logged


def test_a_transaction_is_a_group(table: LoggedDatabase) -> None:
    start, before = table.position(), table.state()
    began = clock(table)
    table.run("BEGIN")
    table.run("INSERT INTO a VALUES (1, 1), (2, 2)")
    table.run("UPDATE a SET v = 3")
    table.run("DELETE FROM a WHERE id = 1")
    table.run("COMMIT")
    table.run("INSERT INTO a VALUES (5, 5)")
    changes = table.changes(start)
    assert groups(changes) == [["a insert 2", "a update 2", "a delete 1"], ["a insert 1"]]
    first, last = (change for change in changes if isinstance(change, Begin))
    assert first.start == start
    assert began <= first.committed_ms <= clock(table)
    ends = [change.at for change in changes if isinstance(change, End)]
    assert ends == [last.start, table.position()]
    state: GtidState = before
    for begin in (first, last):
        assert not state.contains(begin.gtid)
        state = state.adding(begin.gtid)
    assert state == table.state()


def test_what_is_rolled_back_is_not_there(table: LoggedDatabase) -> None:
    start = table.position()
    for statement in ("BEGIN", "INSERT INTO a VALUES (1, 1)", "ROLLBACK", "INSERT INTO a VALUES (2, 2)"):
        table.run(statement)
    assert groups(table.changes(start)) == [["a insert 1"]]


def test_a_savepoint(table: LoggedDatabase) -> None:
    start = table.position()
    for statement in ("BEGIN", "INSERT INTO a VALUES (1, 1)", "SAVEPOINT s", "INSERT INTO a VALUES (2, 1)"):
        table.run(statement)
    for statement in ("ROLLBACK TO s", "INSERT INTO a VALUES (3, 1)", "RELEASE SAVEPOINT s", "COMMIT"):
        table.run(statement)
    (group,) = groups(table.changes(start))
    assert [each for each in group if each != Savepoint("s")] == ["a insert 1", "a insert 1"]


def test_a_savepoint_in_the_log_of_mariadb(on_mariadb: LoggedDatabase) -> None:
    """It is, if something was done meanwhile that cannot be rolled back."""
    on_mariadb.run("CREATE TABLE a (id int PRIMARY KEY)")
    start = on_mariadb.position()
    for statement in ("BEGIN", "INSERT INTO a VALUES (1)", "SAVEPOINT `a``b`", "CREATE TEMPORARY TABLE t (id int)"):
        on_mariadb.run(statement)
    for statement in ("INSERT INTO a VALUES (2)", "ROLLBACK TO `a``b`", "INSERT INTO a VALUES (3)", "COMMIT"):
        on_mariadb.run(statement)
    (group,) = groups(on_mariadb.changes(start))
    assert group == ["a insert 1", Savepoint("a`b"), "a insert 1", "ROLLBACK TO `a``b`", "a insert 1"]
    assert rolled_back_to(Statement("x", str(group[3]))) == "a`b"
    assert rolled_back_to(Statement("x", "DROP TABLE a")) is None


def test_statements_that_change_tables(table: LoggedDatabase) -> None:
    start = table.position()
    statements = [
        "ALTER TABLE a ADD COLUMN w int",
        "TRUNCATE TABLE a",
        "RENAME TABLE a TO b",
        "CREATE PROCEDURE p() START TRANSACTION",
        "INSERT INTO b VALUES (1, 1, 1)",
        "DROP TABLE b",
    ]
    for statement in statements:
        table.run(statement)
    changes = table.changes(start)
    found = groups(changes)
    assert found[:3] == [[statement] for statement in statements[:3]]
    assert "PROCEDURE" in str(found[3])
    assert found[4] == ["b insert 1"]
    assert str(found[5][0]).startswith("DROP TABLE `b`")
    assert {change.database for change in changes if isinstance(change, Statement)} == {table.name}


def test_a_table_made_of_a_query(table: LoggedDatabase) -> None:
    """Its rows are of one group with it."""
    table.run("INSERT INTO a VALUES (1, 1), (2, 2)")
    start = table.position()
    table.run("CREATE TABLE b AS SELECT * FROM a")
    ((statement, rows),) = groups(table.changes(start))
    assert str(statement).startswith("CREATE TABLE `b` (")
    assert rows == "b insert 2"


def test_changes_that_are_logged_as_statements(table: LoggedDatabase) -> None:
    start = table.position()
    table.run("SET SESSION binlog_format = STATEMENT")
    table.run("SET @v = 3")
    statements = ["INSERT INTO a VALUES (1, @v)", "UPDATE a SET v = RAND() WHERE id = 1", "DELETE FROM a"]
    for statement in statements:
        table.run(statement)
    assert groups(table.changes(start)) == [[statement] for statement in statements]


def test_tables_without_transactions(logged: LoggedDatabase) -> None:
    logged.run("CREATE TABLE m (id int PRIMARY KEY) ENGINE = MyISAM")
    start = logged.position()
    logged.run("INSERT INTO m VALUES (1), (2)")
    logged.run("DELETE FROM m")
    assert groups(logged.changes(start)) == [["m insert 2"], ["m delete 2"]]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_xa(table: LoggedDatabase, end: str) -> None:
    start = table.position()
    for statement in ("XA START 'x'", "INSERT INTO a VALUES (1, 1)", "XA END 'x'", "XA PREPARE 'x'", f"XA {end} 'x'"):
        table.run(statement)
    assert groups(table.changes(start)) == [["xa", "a insert 1"], [f"XA {end} X'78',X'',1"]]


def test_xa_in_one_phase(table: LoggedDatabase) -> None:
    start = table.position()
    for statement in ("XA START 'x'", "INSERT INTO a VALUES (1, 1)", "XA END 'x'", "XA COMMIT 'x' ONE PHASE"):
        table.run(statement)
    wanted = ["a insert 1"] if table.mariadb else ["xa", "a insert 1", "one phase"]
    assert groups(table.changes(start)) == [wanted]


def test_other_tables_are_skipped(table: LoggedDatabase) -> None:
    """Of what they have nothing is read: neither columns nor rows."""
    table.run("CREATE TABLE b (id int PRIMARY KEY, v int)")
    start = table.position()
    for statement in ("BEGIN", "INSERT INTO a VALUES (1, 1)", "INSERT INTO b VALUES (1, 1)", "COMMIT"):
        table.run(statement)
    asked = []

    def wanted(database: str, name: str) -> bool:
        asked.append((database, name))
        return name == "b"

    assert groups(table.changes(start, wanted=wanted)) == [["b insert 1"]]
    assert asked == [(table.name, "a"), (table.name, "b")]


def test_rows_that_the_server_compressed(logged: LoggedDatabase) -> None:
    """MariaDB compresses events, MySQL transactions."""
    logged.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    start = logged.position()
    if logged.mariadb:
        logged.server.query("SET GLOBAL log_bin_compress = ON")
    else:
        logged.run("SET SESSION binlog_transaction_compression = ON")
    try:
        logged.run("INSERT INTO t VALUES (1, %s)", "x" * 1024)
        logged.run("UPDATE t SET v = %s", "y" * 1024)
        logged.run("DELETE FROM t")
        logged.run(f"CREATE TABLE u (id int COMMENT '{'z' * 1000}')")
    finally:
        if logged.mariadb:
            logged.server.query("SET GLOBAL log_bin_compress = OFF")
    changes = logged.changes(start)
    assert groups(changes)[:3] == [["t insert 1"], ["t update 1"], ["t delete 1"]]
    assert "zzz" in str(groups(changes)[3])
    old, new = (b"1", b"x" * 1024), (b"1", b"y" * 1024)
    assert [change.rows for change in changes if isinstance(change, Rows)] == [
        [(None, old)],
        [(old, new)],
        [(new, None)],
    ]
    events = logged.run(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset}")
    kinds = {str(event[2]).lower() for event in events}
    compressed = {f"{kind}_rows_compressed_v1" for kind in ("write", "update", "delete")} | {"query_compressed"}
    assert kinds >= (compressed if logged.mariadb else {"transaction_payload"})


def test_gtids_with_tags(on_mysql: LoggedDatabase) -> None:
    on_mysql.run("CREATE TABLE a (id int PRIMARY KEY)")
    start, state = on_mysql.position(), on_mysql.state()
    began = clock(on_mysql)
    on_mysql.run("SET gtid_next = 'AUTOMATIC:some_tag'")
    on_mysql.run("INSERT INTO a VALUES (1)")
    ((uuid,),) = on_mysql.run("SELECT @@server_uuid")
    on_mysql.run(f"SET gtid_next = '{uuid}:other:123456789012345'")
    on_mysql.run("INSERT INTO a VALUES (2)")
    on_mysql.run("SET gtid_next = 'AUTOMATIC'")
    changes = on_mysql.changes(start)
    assert groups(changes) == [["a insert 1"]] * 2
    begins = [change for change in changes if isinstance(change, Begin)]
    assert begins[0].gtid.startswith(f"{uuid}:some_tag:")
    assert begins[1].gtid == f"{uuid}:other:123456789012345"
    assert began <= begins[0].committed_ms <= begins[1].committed_ms <= clock(on_mysql)
    between = state.adding(begins[0].gtid)
    assert between.adding(begins[1].gtid) == on_mysql.state()
    assert [change for change in on_mysql.changes(between) if isinstance(change, Begin)] == begins[1:]
