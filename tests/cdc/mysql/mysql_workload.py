"""Random transactions on tables of MariaDB and MySQL with keys of many kinds.

Inserts, REPLACE, ON DUPLICATE KEY UPDATE, updates of many rows, deletes, changed keys, savepoints, rollbacks, TRUNCATE,
long texts, nulls.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pymysql

from tests.cdc.workload import Writers
from tests.databases.mysql_server import MySqlServer

VALUES = (
    "n bigint, name varchar(200), amount decimal(12,2), at datetime(6), moment timestamp(3) NULL, raw varbinary(40), "
    "ok bit(1), kind enum('a', 'é', 'c'), real_ double, small smallint unsigned, long_ longtext, doc json"
)
_RETRIED = {1062, 1205, 1213}  # a duplicate, a lock timeout, a deadlock
_GONE = {0, 1053, 1927, 2003, 2006, 2013, 2014}  # the server was killed, or ends
_SHORT = "SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 2"


@dataclass(frozen=True)
class Kind:
    """A kind of key.

    Attributes:
        columns: their declarations.
        names: of them.
        make: makes a key of a number.
    """

    columns: str
    names: tuple[str, ...]
    make: Callable[[int], tuple[Any, ...]]

    def declaration(self) -> str:
        """Return the columns of a table with it."""
        return f"{self.columns}, {VALUES}, PRIMARY KEY ({', '.join(self.names)})"


_CODES = ["a", "A", "ä", "Ä", "b", "B", "z", "É", "e", "ß", "S", "", "_", "a ", "ab", "0", "日本", "'\"\\%s`"]
_LATIN = ["a", "A", "ä", "é", "E", "ÿ", "ß", "ss", "Z", "", "ñ", "n", "%", "\\'"]
_BYTES = [b"", b"\0", b"\0\0", b"a", b"A", b"\xff", b"\xff\0", b"a ", b"%s", b"'"]
KINDS = {
    "whole": Kind("id int", ("id",), lambda number: (number - 100,)),
    "pair": Kind(
        "code varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, num int",
        ("code", "num"),
        lambda number: (_CODES[number % len(_CODES)], number // len(_CODES) % 20),
    ),
    "raw_": Kind(
        "k varbinary(16)", ("k",), lambda number: (_BYTES[number % 10] + bytes([number // 10 % 7, number // 70]),)
    ),
    "instant": Kind(
        "k datetime(3)",
        ("k",),
        lambda number: (dt.datetime(2024, 1, 1) + dt.timedelta(milliseconds=number * number * 7),),
    ),
    "latin": Kind(
        "k varchar(30) CHARACTER SET latin1", ("k",), lambda number: (f"{_LATIN[number % 14]}{number // 14}",)
    ),
    "large": Kind("k bigint unsigned", ("k",), lambda number: ((number * 2654435761 << 32) % 2**64 + number,)),
    "exact": Kind("k decimal(20,5)", ("k",), lambda number: (Decimal((number - 200) * 12345).scaleb(-5),)),
}


class Workload(Writers):
    """Writers of some tables.

    Args:
        tables: names of :data:`KINDS`; each is a table of the database.
        keys: so many numbers of keys.
        truncates: whether tables are emptied now and then.
    """

    def __init__(
        self,
        server: MySqlServer,
        database: str,
        tables: Sequence[str],
        seed: int,
        *,
        writers: int = 3,
        keys: int = 600,
        truncates: bool = True,
    ) -> None:
        self._server = server
        self._database = database
        self._tables = tables
        self._keys = keys
        self._truncates = truncates
        super().__init__(seed, writers)

    def _write_on(self, chance: random.Random) -> None:
        try:
            with contextlib.closing(self._server.connect(self._database)) as connection:
                self._follow(connection, chance)
        except (pymysql.OperationalError, pymysql.InternalError, pymysql.InterfaceError) as error:
            if error.args[0] not in _GONE:
                raise
            self._stop.wait(0.2)

    def _follow(self, connection: pymysql.connections.Connection[Any], chance: random.Random) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_SHORT)
            while not self._stop.is_set():
                try:
                    self._transaction(cursor, chance)
                except (pymysql.OperationalError, pymysql.IntegrityError) as error:
                    if error.args[0] not in _RETRIED:
                        raise
                    cursor.execute("ROLLBACK")

    def _transaction(self, cursor: pymysql.cursors.Cursor, chance: random.Random) -> None:
        if self._truncates and chance.random() < 0.0005:
            cursor.execute(f"TRUNCATE TABLE {chance.choice(self._tables)}")
            return
        cursor.execute("BEGIN")
        for _ in range(chance.choice([1, 1, 2, 5, 30])):
            if chance.random() < 0.15:
                cursor.execute("SAVEPOINT part")
                self._change(cursor, chance)
                self._change(cursor, chance)
                cursor.execute("ROLLBACK TO SAVEPOINT part" if chance.random() < 0.5 else "RELEASE SAVEPOINT part")
            else:
                self._change(cursor, chance)
        cursor.execute("ROLLBACK" if chance.random() < 0.1 else "COMMIT")
        self._stop.wait(0.02)  # else captures fall back on a busy machine
        self.transactions += 1

    def _change(self, cursor: pymysql.cursors.Cursor, chance: random.Random) -> None:
        table = chance.choice(self._tables)
        kind = KINDS[table]
        key, other = kind.make(chance.randrange(self._keys)), kind.make(chance.randrange(self._keys))
        first, where = chance.random(), " AND ".join(f"{name} = %s" for name in kind.names)
        if first < 0.4:
            row = row_of(kind, key, chance)
            marks = ", ".join(["%s"] * len(row))
            words = chance.choice(["INSERT", "INSERT IGNORE", "REPLACE", "INSERT"])
            more = " ON DUPLICATE KEY UPDATE n = VALUES(n), name = VALUES(name)" if words == "INSERT" else ""
            cursor.execute(f"{words} INTO {table} VALUES ({marks}){more}", row)
        elif first < 0.65:
            cursor.execute(f"UPDATE {table} SET n = n + 1, name = %s WHERE {where}", (f"u{other[0]}"[:90], *key))
        elif first < 0.72:
            low, high = sorted([key, other])
            name = kind.names[0]
            cursor.execute(
                f"UPDATE {table} SET amount = 1, n = %s WHERE {name} >= %s AND {name} <= %s ORDER BY {name} LIMIT 30",
                (chance.randrange(1 << 40), low[0], high[0]),
            )
        elif first < 0.8:
            sets = ", ".join(f"{name} = %s" for name in kind.names)
            cursor.execute(f"UPDATE {table} SET {sets} WHERE {where}", (*other, *key))
        elif first < 0.83:
            cursor.execute(f"DELETE FROM {table} WHERE {kind.names[0]} > %s LIMIT 10", (key[0],))
        else:
            cursor.execute(f"DELETE FROM {table} WHERE {where}", key)


def row_of(kind: Kind, key: tuple[Any, ...], chance: random.Random) -> tuple[Any, ...]:
    """Return a row with values by chance, each of which may be null."""
    moment = dt.datetime(2001, 2, 3) + dt.timedelta(microseconds=chance.randrange(10**15))
    values: tuple[Any, ...] = (
        chance.randrange(1 << 60) - (1 << 59),
        chance.choice(["", "a,b", 'q"\n', "é€\\", "𝄞", "NULL", "name " * 30]),
        Decimal(chance.randrange(-(10**8), 10**8)).scaleb(-2),
        moment,
        moment.replace(microsecond=moment.microsecond // 1000 * 1000),
        chance.randbytes(chance.randrange(40)),
        chance.choice([b"\0", b"\x01"]),
        chance.choice(["a", "é", "c"]),
        chance.choice([0.1, -1e300, 1 / 3, 5e-324, 123456789.0]),
        chance.randrange(1 << 16),
        "".join(chance.choices("abcdefghijü", k=chance.choice([10, 300, 3000]))) if chance.random() < 0.1 else None,
        chance.choice(['{"a": [1, 2.5, null, "é"], "b": true}', "[]", '"text"', "17"]),
    )
    return *key, *(None if chance.random() < 0.15 else value for value in values)


def create(server: MySqlServer, database: str, tables: Sequence[str], seed: int, rows: int = 300) -> None:
    """Make tables with rows."""
    chance = random.Random(seed)
    connection = server.connect(database)
    try:
        with connection.cursor() as cursor:
            for table in tables:
                kind = KINDS[table]
                cursor.execute(f"CREATE TABLE {table} ({kind.declaration()})")
                given = [row_of(kind, kind.make(number), chance) for number in range(rows)]
                marks = ", ".join(["%s"] * len(given[0]))
                cursor.execute("BEGIN")
                cursor.executemany(f"REPLACE INTO {table} VALUES ({marks})", given)
                cursor.execute("COMMIT")
    finally:
        connection.close()


def captured_form(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a table, as the driver has it, as it stands in a topic."""
    changed = dict(row)
    if changed.get("ok") is not None:
        changed["ok"] = changed["ok"] == b"\x01"
    if changed.get("moment") is not None:
        changed["moment"] = changed["moment"].replace(tzinfo=dt.UTC)
    return changed
