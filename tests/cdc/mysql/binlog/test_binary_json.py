"""MySQL's binary JSON becomes the text that ``SELECT`` gives."""

from __future__ import annotations

import contextlib
import json
import random
import struct
from typing import Any

import pytest

from jobpipe.cdc.mariadb.binlog.binary_json import json_text
from jobpipe.cdc.mariadb.binlog.stream_values import MALFORMED
from tests.cdc.mysql.binlog.logged_server import LoggedDatabase, images

EXPRESSIONS = [
    *("'null'", "'true'", "'[]'", "'{}'", "'1'", "'-1'", "'70000'", "'-70000'", "'5000000000'", "'-0.0'", "'1.0'"),
    *("'18446744073709551615'", "'-9223372036854775808'", "'1e20'", "'1e15'", "'1e-7'", "'0.1'", "'1e-20'"),
    "CAST(1.5 AS JSON)",
    "CAST(-123456789012345678901234567890.123 AS JSON)",
    "CAST(CAST('2020-01-02' AS DATE) AS JSON)",
    "CAST(CAST('2020-01-02 03:04:05.6' AS DATETIME(3)) AS JSON)",
    "CAST(TIMESTAMP('2020-01-02 03:04:05') AS JSON)",
    "CAST(CAST('-838:59:59' AS TIME) AS JSON)",
    "CAST(CAST('-00:00:01.5' AS TIME(2)) AS JSON)",
    "CAST(x'0001ff' AS JSON)",
    "CAST(b'101' AS JSON)",
    "CAST(POINT(1, 2) AS JSON)",
    "CAST(CAST(2020 AS YEAR) AS JSON)",
    "JSON_OBJECT('a', NOW(6), 'b', CURTIME(6), 'c', UTC_DATE())",
    "JSON_ARRAY(_binary'abc', REPEAT('é', 100))",
]


def documents() -> list[Any]:
    """Return values of all kinds and sizes."""
    chance = random.Random(3)
    every = "".join(map(chr, range(300)))
    nested: Any = 1
    for _ in range(98):
        nested = [nested] if chance.random() < 0.5 else {"k": nested}
    return [
        every + "😀",
        {every[1:128]: 1, "": None},
        list(range(-40000, 40000, 7)),
        {str(number): [number, {"k": number * 1000000007, "s": "x" * number}] for number in range(300)},
        {"big": "y" * 70000, "a": 1, "b": True, "c": None, "d": 70000, "e": -5, "f": 1.25},
        "z" * 20000,
        nested,
        *(value(chance, 0) for _ in range(300)),
    ]


def value(chance: random.Random, depth: int) -> Any:
    match chance.randrange(9 if depth < 4 else 7):
        case 0:
            return chance.choice([None, True, False])
        case 1 | 2:
            return chance.randrange(-(2 ** chance.randrange(1, 63)), 2 ** chance.randrange(1, 64))
        case 3:
            return chance.uniform(-1, 1) * 10 ** chance.randrange(-300, 300)
        case 4:
            return float(chance.randrange(10 ** chance.randrange(1, 22)))
        case 5:
            (number,) = struct.unpack("<d", chance.randbytes(7) + b"\x40")
            return number
        case 6:
            ranges = [(1, 128), (0x80, 0x2000), (0x10000, 0x11000)]
            return "".join(chr(chance.randrange(*chance.choice(ranges))) for _ in range(chance.randrange(10)))
        case 7:
            return [value(chance, depth + 1) for _ in range(chance.randrange(6))]
        case _:
            return {str(value(chance, 9)): value(chance, depth + 1) for _ in range(chance.randrange(6))}


def test_texts_are_as_selected(on_mysql: LoggedDatabase) -> None:
    on_mysql.run("CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, j json)")
    start = on_mysql.position()
    on_mysql.run(f"INSERT INTO t (j) VALUES {', '.join(f'({each})' for each in EXPRESSIONS)}")
    texts = [(json.dumps(document, ensure_ascii=False),) for document in documents()]
    with on_mysql.connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t (j) VALUES (%s)", texts)
    assert images(on_mysql.rows(start), 1) == on_mysql.texts("SELECT * FROM t ORDER BY id")


def test_a_value_that_had_to_be_made_up() -> None:
    assert json_text(b"") == b"null"


OBJECT = bytes.fromhex("00 0200 1b00 1200 0100 1300 0100 05 0100 02 1400") + b"ab" + bytes.fromhex("0100 0700 05 0200")


def test_malformed_values() -> None:
    """They give an error, and soon: also one that has itself in it."""
    assert json_text(OBJECT) == b'{"a": 1, "b": [2]}'
    for length in range(1, len(OBJECT)):
        with pytest.raises(MALFORMED):
            json_text(OBJECT[:length])
    chance = random.Random(4)
    for _ in range(3000):
        broken = bytearray(OBJECT)
        for _ in range(chance.randrange(1, 4)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        with contextlib.suppress(*MALFORMED):
            json_text(bytes(broken))
    entries = b"".join(b"\x02\0\0" for _ in range(40))  # each element is the array itself
    itself = b"\x02" + struct.pack("<HH", 40, 4 + len(entries)) + entries
    with pytest.raises(ValueError, match="itself"):
        json_text(itself)
