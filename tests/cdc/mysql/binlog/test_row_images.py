"""Tables as the log describes them, and what of them cannot be captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from jobpipe.cdc.mariadb.binlog.binlog_events import Rows
from jobpipe.cdc.mariadb.binlog.row_images import BinlogColumn, BinlogTable
from jobpipe.errors import ConfigError, JobpipeError, SchemaMismatch
from tests.cdc.mysql.binlog.logged_server import LoggedDatabase, images


@contextlib.contextmanager
def globally(logged: LoggedDatabase, variable: str, value: str) -> Iterator[None]:
    """Give a variable another value, for sessions that begin from now on."""
    ((before,),) = logged.run(f"SELECT @@GLOBAL.{variable}")
    assert before != value
    logged.run(f"SET GLOBAL {variable} = %s", value)
    try:
        yield
    finally:
        logged.run(f"SET GLOBAL {variable} = %s", before)


def described(logged: LoggedDatabase, columns: str, value: str) -> BinlogTable:
    """Return a table of one row, as the log has it."""
    logged.run(f"CREATE TABLE t ({columns})")
    start = logged.position()
    logged.run(f"INSERT INTO t VALUES ({value})")
    (rows,) = logged.rows(start)
    return rows.table


def test_names_kinds_keys(logged: LoggedDatabase) -> None:
    table = described(
        logged,
        "a int unsigned, `b ü` varchar(9) NOT NULL, c binary(3), d varbinary(3), e text, f blob, g decimal(7,2), "
        "h datetime(2), i enum('x'), j set('y'), k bit(11), l geometry, m year, n bigint NOT NULL, o char(2), "
        "p tinyint, q smallint unsigned, r mediumint, s float, t double, u date, v time, w timestamp NULL, "
        "PRIMARY KEY (n, `b ü`)",
        "1, 'b', 'c', 'd', 'e', 'f', 1, now(), 'x', 'y', 1, POINT(1, 2), 2000, 5, 'o', 1, 1, 1, 1, 1, now(), now(), "
        "now()",
    )
    assert (table.database, table.name, str(table)) == (logged.name, "t", f"{logged.name}.t")
    kinds = "int unsigned,string,binary(3),bytes,string,bytes,decimal(7/2),datetime,enum,set,bit(11),geometry,year"
    kinds += ",bigint,string,tinyint,smallint unsigned,mediumint,float,double,date,time,timestamp"
    wanted = tuple(
        BinlogColumn(
            "b ü" if letter == "b" else letter, kind.replace("/", ","), letter in "bn", nullable=letter not in "bn"
        )
        for letter, kind in zip("abcdefghijklmnopqrstuvw", kinds.split(","), strict=True)
    )
    assert table.columns == wanted


def test_a_key_of_a_column_s_beginning(logged: LoggedDatabase) -> None:
    table = described(logged, "a int, b varchar(20), c text, PRIMARY KEY (c(5), a)", "1, 'b', 'c'")
    assert [column.name for column in table.columns if column.key] == ["a", "c"]


def test_columns_that_are_not_plain(logged: LoggedDatabase) -> None:
    """Those that are generated and those that are not shown are in the log as others are."""
    logged.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int AS (id + 1) VIRTUAL, s int AS (id + 2) STORED, "
        "i int DEFAULT 7 INVISIBLE, w varchar(9) AS (CONCAT('w', id)) VIRTUAL, INDEX (v))"
    )
    start = logged.position()
    logged.run("INSERT INTO t (id) VALUES (1)")
    logged.run("UPDATE t SET id = 2")
    logged.run("DELETE FROM t")
    insert, update, delete = logged.rows(start)
    assert [column.name for column in insert.table.columns] == ["id", "v", "s", "i", "w"]
    one, two = (b"1", b"2", b"3", b"7", b"w1"), (b"2", b"3", b"4", b"7", b"w2")
    assert (insert.rows, update.rows, delete.rows) == ([(None, one)], [(one, two)], [(two, None)])


def test_indexes_on_expressions_have_no_columns(on_mysql: LoggedDatabase) -> None:
    table = described(on_mysql, "id int PRIMARY KEY, j json, INDEX ((id + 7))", """1, '{"a": [1]}'""")
    assert [column.name for column in table.columns] == ["id", "j"]
    on_mysql.run("ALTER TABLE t ADD INDEX ((CAST(j->'$.a' AS UNSIGNED ARRAY)))")
    start = on_mysql.position()
    on_mysql.run("""INSERT INTO t VALUES (2, '{"a": [2, 3]}')""")
    (rows,) = on_mysql.rows(start)
    assert (rows.table.columns, rows.rows) == (table.columns, [(None, (b"2", b'{"a": [2, 3]}'))])


def test_three_hundred_columns(logged: LoggedDatabase) -> None:
    columns = [f"c{number} {'int' if number % 2 else 'varchar(5)'}" for number in range(300)]
    logged.run(f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(columns)})")
    start = logged.position()
    values = ", ".join("NULL" if number % 7 == 3 else str(number) for number in range(300))
    logged.run(f"INSERT INTO t VALUES (1, {values}), (2, {values})")
    logged.run("UPDATE t SET c299 = NULL, c3 = 3 WHERE id = 2")
    rows = logged.rows(start)
    assert images(rows[1:], 1) == logged.texts("SELECT * FROM t WHERE id = 2")
    assert images(rows[:1], 1)[0] == logged.texts("SELECT * FROM t")[0]


def test_a_table_that_is_altered(logged: LoggedDatabase) -> None:
    """Each of its rows is read as the table was then."""
    logged.run("CREATE TABLE t (id int PRIMARY KEY, v varchar(9))")
    start = logged.position()
    logged.run("INSERT INTO t VALUES (1, 'one')")
    logged.run("ALTER TABLE t ADD COLUMN w int FIRST, MODIFY v bigint")
    logged.run("DELETE FROM t")
    logged.run("ALTER TABLE t RENAME COLUMN v TO x")
    logged.run("INSERT INTO t VALUES (2, 3, 4)")
    found = [([column.name for column in rows.table.columns], rows.rows) for rows in logged.rows(start)]
    assert found == [
        (["id", "v"], [(None, (b"1", b"one"))]),
        (["w", "id", "v"], [((None, b"1", b"0"), None)]),
        (["w", "id", "x"], [(None, (b"2", b"3", b"4"))]),
    ]


def refused(logged: LoggedDatabase, statement: str, kind: type[JobpipeError], words: str) -> None:
    """A statement's rows are refused if the table is wanted, and skipped if not."""
    start = logged.position()
    with contextlib.closing(logged.server.connect(logged.name)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
    with pytest.raises(kind, match=words) as caught:
        logged.rows(start)
    assert caught.value.fields["table"] == f"{logged.name}.t"
    assert logged.rows(start, wanted=lambda _database, _table: False) == []


@pytest.mark.parametrize("setting", ["MINIMAL", "NO_LOG"])
def test_without_metadata(logged: LoggedDatabase, setting: str) -> None:
    if setting == "NO_LOG" and not logged.mariadb:
        pytest.skip("MySQL always logs some metadata")
    logged.run("CREATE TABLE t (id int PRIMARY KEY, v varchar(9))")
    with globally(logged, "binlog_row_metadata", setting):
        refused(logged, "INSERT INTO t VALUES (1, 'x')", ConfigError, "SET GLOBAL binlog_row_metadata = FULL")
    start = logged.position()
    logged.run("DELETE FROM t")
    assert images(logged.rows(start), 0) == [(b"1", b"x")]


@pytest.mark.parametrize("setting", ["MINIMAL", "NOBLOB"])
def test_images_without_all_columns(logged: LoggedDatabase, setting: str) -> None:
    logged.run("CREATE TABLE t (id int PRIMARY KEY, v varchar(9), b text)")
    logged.run("INSERT INTO t VALUES (1, 'x', 'y')")
    with globally(logged, "binlog_row_image", setting):
        refused(
            logged, "UPDATE t SET v = 'z'", ConfigError, r"without the columns .*b: SET GLOBAL binlog_row_image = FULL"
        )
    start = logged.position()
    logged.run("UPDATE t SET v = 'w'")
    assert logged.rows(start)[0].rows == [((b"1", b"z", b"y"), (b"1", b"w", b"y"))]


def test_parts_of_json(on_mysql: LoggedDatabase) -> None:
    on_mysql.run("CREATE TABLE t (id int PRIMARY KEY, j json)")
    on_mysql.run("INSERT INTO t VALUES (1, JSON_OBJECT('a', 1, 'b', REPEAT('x', 1000)))")
    with globally(on_mysql, "binlog_row_value_options", "PARTIAL_JSON"):
        change = "UPDATE t SET j = JSON_SET(j, '$.a', 2)"
        refused(on_mysql, change, ConfigError, "SET GLOBAL binlog_row_value_options = ''")
    start = on_mysql.position()
    on_mysql.run("UPDATE t SET j = JSON_SET(j, '$.a', 3)")
    assert images(on_mysql.rows(start), 1)[0][1] == b'{"a": 3, "b": "' + b"x" * 1000 + b'"}'


@pytest.mark.parametrize(
    ("column", "number"),
    [("text COMPRESSED", 140), ("varchar(90) COMPRESSED", 141), ("varbinary(90) COMPRESSED", 141)],
)
def test_compressed_columns(on_mariadb: LoggedDatabase, column: str, number: int) -> None:
    on_mariadb.run(f"CREATE TABLE t (id int PRIMARY KEY, c {column}, z varchar(5))")
    refused(on_mariadb, "INSERT INTO t VALUES (1, 'x', 'y')", SchemaMismatch, rf"column c: .* type {number} \(a comp")


def test_vectors_of_mysql(on_mysql: LoggedDatabase) -> None:
    on_mysql.run("CREATE TABLE t (id int PRIMARY KEY, c vector(3))")
    statement = "INSERT INTO t VALUES (1, STRING_TO_VECTOR('[1,2,3]'))"
    refused(on_mysql, statement, SchemaMismatch, r"column c: .* type 242 \(a vector\)")


@pytest.mark.parametrize(("column", "number"), [("datetime(3)", 12), ("timestamp NULL", 7), ("time", 11)])
def test_times_as_before_mysql_5_6(on_mariadb: LoggedDatabase, column: str, number: int) -> None:
    """The log does not tell how many digits they have."""
    with globally(on_mariadb, "mysql56_temporal_format", "OFF"):
        with contextlib.closing(on_mariadb.server.connect(on_mariadb.name)) as connection:
            connection.query(f"CREATE TABLE t (id int PRIMARY KEY, c {column})")
    refused(on_mariadb, "INSERT INTO t VALUES (1, NOW())", SchemaMismatch, f"column c: .* type {number} .*FORCE")
    on_mariadb.run("ALTER TABLE t FORCE")
    start = on_mariadb.position()
    on_mariadb.run("DELETE FROM t")
    assert images(on_mariadb.rows(start), 0)[0][1] is not None


def test_the_types_of_fixed_length_are_asked_once(on_mariadb: LoggedDatabase) -> None:
    on_mariadb.run("CREATE TABLE t (id int PRIMARY KEY, u uuid, b binary(16), i inet4)")
    on_mariadb.run("CREATE TABLE s (id int PRIMARY KEY)")
    on_mariadb.kinds = {"u": "uuid", "i": "inet4", "id": "uuid"}
    start = on_mariadb.position()
    uuid = "0189a3c4-5678-7abc-8def-0123456789ab"
    for number in range(3):
        on_mariadb.run(f"INSERT INTO t VALUES ({number}, '{uuid}', 'b', '1.2.3.4')")
        on_mariadb.run(f"INSERT INTO s VALUES ({number})")
    rows = on_mariadb.rows(start)
    of_t = [each for each in rows if each.table.name == "t"]
    assert [column.kind for column in of_t[0].table.columns] == ["int", "uuid", "binary(16)", "inet4"]
    assert images(of_t, 1)[2] == (b"2", uuid.encode(), b"b".ljust(16, b"\0"), b"1.2.3.4")
    assert of_t[0].table is of_t[2].table
    assert isinstance(rows[0], Rows)
