"""Where keys are among others, against the server's own order."""

from __future__ import annotations

import contextlib
import itertools
import random

import pytest

from jobpipe.cdc.mariadb.key_order import after, places_of
from jobpipe.cdc.mariadb.server.mysql_types import is_ordered
from jobpipe.cdc.mariadb.server.server_catalog import KeyColumn, ServerCatalog
from jobpipe.errors import ConfigError
from jobpipe.pipelines.databases.mysql import execute
from tests.cdc.mysql.mysql_workload import KINDS
from tests.databases.mysql_server import MySqlServer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

TEXTS = ["", " ", "a", "A", "ä", "b", "B", "z", "Z", "0", "10", "9", "_", "-", "é", "É", "ß", "ss", "'", '"', "\\", "%"]
DATES = ["0000-00-00", "2024-00-00", "2024-02-00", "1000-01-01", "1970-01-01", "2024-02-29", "9999-12-31"]
TIMES = ["-838:59:59", "-00:00:01", "-00:00:00.50", "00:00:00", "00:00:00.01", "09:59:59", "10:00:00", "838:59:59"]
KEYS: dict[str, list[object]] = {
    "tinyint": [-128, -1, 0, 1, 9, 10, 127],
    "smallint unsigned zerofill": [0, 9, 10, 65535],
    "mediumint": [-(2**23), 0, 2**23 - 1],
    "int": [-(2**31), -10, -9, 0, 9, 10, 2**31 - 1],
    "bigint": [-(2**63), 0, 2**63 - 1],
    "bigint unsigned": [0, 9, 10, 2**63 - 1, 2**63, 2**64 - 1],
    "year": ["0000", "1901", "2024", "2155"],
    "decimal(10,3)": ["-10.5", "-9", "0", "0.001", "9", "10", "9999999.999"],
    "decimal(65,30)": ["-1e34", "1e-30", "2e-30", "9e34"],
    "varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci": [*TEXTS, "日本", "𝄞"],
    "varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin": [*TEXTS, "a ", "日本", "𝄞"],
    "varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci": TEXTS,
    "char(20) CHARACTER SET latin1": [*TEXTS, "ÿ"],
    "varchar(20) CHARACTER SET latin1 COLLATE latin1_bin": TEXTS,
    "varchar(20) CHARACTER SET ascii": ["", "a", "A", "b", "~"],
    "varchar(20) CHARACTER SET cp1251": ["", "а", "Б", "б", "я", "z"],
    "varchar(20) CHARACTER SET utf16": ["", "a", "A", "b", "日", "𝄞"],
    "varbinary(20)": [b"", b"\0", b"\0\0", b"a", b"A", b"a ", b"\xff", b"%s"],
    "binary(3)": [b"", b"\0\0\1", b"a", b"A", b"\xff\xff\xff"],
    "date": [*DATES],
    "datetime(3)": [f"{date} 00:00:00" for date in DATES] + ["2024-02-29 00:00:00.001", "2024-02-29 23:59:59.999"],
    "datetime": ["1000-01-01", "2024-02-29 10:00:00", "2024-02-29 09:00:00"],
    "timestamp(6)": ["0000-00-00", "1970-01-01 00:00:01", "2024-02-29 00:00:00.000001", "2024-02-29 00:00:00.1"],
    "time(2)": [*TIMES],
    "time": ["-01:00:00", "00:00:00", "100:00:00", "99:00:00"],
}
OF_MARIADB: dict[str, list[object]] = {
    "uuid": ["00000000-0000-0000-0000-000000000001", "123e4567-e89b-12d3-a456-426655440000", "f" * 32],
    "inet4": ["0.0.0.0", "9.0.0.0", "10.0.0.1", "255.255.255.255"],  # noqa: S104 - a value
    "inet6": ["::", "::1", "9::", "10::", "ffff::"],
    "varchar(20) COLLATE utf8mb4_uca1400_ai_ci": [*TEXTS],
    "varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_nopad_ci": ["a", "a ", "a  ", "b"],
}
OF_MYSQL: dict[str, list[object]] = {
    "varchar(20) COLLATE utf8mb4_0900_ai_ci": [*TEXTS, "a "],
    "varchar(20) COLLATE utf8mb4_0900_as_cs": [*TEXTS, "a "],
}


def check(server: MySqlServer, database: str, columns: dict[str, str], keys: list[tuple[object, ...]]) -> None:
    """Compare places of all keys among some bounds, and ranges after a bound, with the table in its order."""
    names = list(columns)
    marks = ", ".join(["%s"] * len(names))
    with contextlib.closing(server.connect(database)) as connection:
        execute(connection, "SET SESSION sql_mode = 'ANSI_QUOTES,ALLOW_INVALID_DATES'")
        declared = ", ".join(f"{name} {kind} NOT NULL" for name, kind in columns.items())
        execute(connection, "DROP TABLE IF EXISTS t")
        execute(connection, f"CREATE TABLE t ({declared}, PRIMARY KEY ({', '.join(names)}))")
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT IGNORE INTO t VALUES ({marks})", keys)
        readable = ServerCatalog(connection).readable(database, "t")
        assert readable is not None
        assert all(is_ordered(column.kind) for column in readable.key)
        shown = ", ".join(f"{name} {readable.sums.get(name, '')}" for name in names)
        connection.decoders, connection.use_unicode = {}, False
        rows = execute(connection, f"SELECT {shown} FROM t ORDER BY {', '.join(names)}").fetchall()
        connection.use_unicode = True
        assert len(rows) >= 3
        chance = random.Random(len(rows))
        for _ in range(4):
            low, high = sorted(chance.sample(range(len(rows)), 2))
            wanted = [int(place > low) + int(place > high) for place in range(len(rows))]
            assert places_of(connection, readable.key, rows, [rows[low], rows[high]]) == wanted
            condition = after(readable.key, rows[low])
            ((count,),) = execute(connection, f"SELECT COUNT(*) FROM t WHERE {condition}").fetchall()
            assert int(count) == len(rows) - low - 1


@pytest.mark.slow
def test_places(logged: MySqlServer, database: str) -> None:
    more = OF_MARIADB if logged.name == "MariaDB" else OF_MYSQL
    for kind, values in {**KEYS, **more}.items():
        try:
            check(logged, database, {"k": kind}, [(value,) for value in values])
        except Exception as error:
            raise AssertionError(kind) from error


def test_places_of_keys_with_more_columns(logged: MySqlServer, database: str) -> None:
    columns = {
        '"a%s"': "varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "b": "int",
        "c": "varbinary(4)",
    }
    keys = list(itertools.product(["", "a", "ä", "B", "b "], [-1, 0, 5], [b"", b"\0", b"z"]))
    plain = {name.replace('"a%s"', "a"): kind for name, kind in columns.items()}
    check(logged, database, plain, keys)


@pytest.mark.slow
def test_places_of_the_keys_of_the_workload(logged: MySqlServer, database: str) -> None:
    for kind in KINDS.values():
        declared = [each.strip().split(" ", 1) for each in kind.columns.replace("(20,5)", "(20;5)").split(",")]
        columns = {name: text.replace(";", ",") for name, text in declared}
        check(logged, database, columns, [kind.make(number) for number in range(60)])


def test_no_bounds_and_names_that_are_none(logged: MySqlServer, database: str) -> None:
    with contextlib.closing(logged.connect(database)) as connection:
        texts = KeyColumn("k", "string", "utf8mb4", "utf8mb4_bin")
        assert places_of(connection, [texts], [(b"a",), (b"b",)], []) == [0, 0]
        assert places_of(connection, [texts], [(b"a",), (b"b",)], [(b"a",)]) == [0, 1]
        assert places_of(connection, [texts], [(b"x",)] * 1001, [(b"a",)]) == [1] * 1001
        wrong = KeyColumn("k", "string", "utf8mb4", "utf8mb4_bin; DROP")
        with pytest.raises(ConfigError, match="is no name"):
            places_of(connection, [wrong], [(b"a",)], [(b"a",)])
        when = KeyColumn("k", "date", None, None)
        assert places_of(connection, [when], [(b"2024-01-01",)], [(b"2023-01-01",)]) == [1]
        with pytest.raises(ConfigError, match="another form"):
            places_of(connection, [when], [(b"2024'",)], [(b"2023-01-01",)])
