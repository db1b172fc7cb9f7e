"""Values from the binary log are the texts that ``SELECT`` gives, whatever their types."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest

from tests.cdc.mysql.binlog.logged_server import LoggedDatabase, images

Make: TypeAlias = Callable[[random.Random], object]
Column: TypeAlias = "tuple[str, Sequence[object], Make]"
ROWS = 120


def whole(bits: int, *, signed: bool) -> tuple[Sequence[object], Make]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)

    def make(chance: random.Random) -> object:
        return min(max(chance.randrange(-(2**bits), 2**bits) >> chance.randrange(bits), low), high)

    return [low, high, 0, 1, max(low, -1)], make


def integers() -> list[Column]:
    sizes = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
    return [
        *((name, *whole(bits, signed=True)) for name, bits in sizes.items()),
        *((f"{name} unsigned", *whole(bits, signed=False)) for name, bits in sizes.items()),
    ]


def decimals(precision: int, scale: int) -> Column:
    limit = 10**precision - 1

    def make(chance: random.Random) -> object:
        return digits(chance.randrange(-limit, limit + 1) // 10 ** chance.randrange(precision))

    def digits(number: int) -> str:
        text = str(abs(number)).rjust(scale + 1, "0")
        sign = "-" if number < 0 else ""
        return f"{sign}{text[: len(text) - scale]}.{text[len(text) - scale :]}" if scale else f"{sign}{text}"

    return f"decimal({precision},{scale})", [digits(limit), digits(-limit), "0", "-0.0", digits(1), digits(-1)], make


def any_double(chance: random.Random) -> object:
    (number,) = struct.unpack("<d", chance.randbytes(8))
    return number if number - number == 0 and abs(number) > 1e-300 else float(chance.randrange(10**17))


def any_float(chance: random.Random) -> object:
    (number,) = struct.unpack("<f", chance.randbytes(4))
    return number if number - number == 0 and abs(number) > 1e-37 else chance.random()


FLOATS: list[Column] = [
    ("float", [0.0, -1.5, 3.4028234663852886e38, 1.1, 1e15, 16777217.0, 1e-20], any_float),
    ("double", [0.0, -0.0, 1e14, 1e15, 1e16, 123456789012345680.0, 1e-5, 1e-14, 1e-15, 1e-16, 0.1, 1e22], any_double),
    ("double", [1.7976931348623157e308, -2.2250738585072014e-308, 999999999999999.9], any_double),
    ("double unsigned", [1234567890123456.7], lambda chance: round(chance.random() * 1e6, chance.randrange(6))),
]
DECIMALS = [
    *(decimals(*digits) for digits in [(10, 2), (65, 30), (38, 0), (65, 0), (5, 5), (1, 1), (1, 0), (9, 9)]),
    *(decimals(*digits) for digits in [(18, 9), (20, 19), (9, 0), (30, 30), (19, 10)]),
]


def clock(chance: random.Random, hours: int) -> str:
    return f"{chance.randrange(hours):02}:{chance.randrange(60):02}:{chance.randrange(60):02}.{fraction(chance)}"


def fraction(chance: random.Random) -> str:
    return f"{chance.choice([0, 1, 500000, 999999, chance.randrange(10**6)]):06}"


def any_date(chance: random.Random) -> str:
    return f"{chance.randrange(10000):04}-{chance.randrange(13):02}-{chance.randrange(32):02}"


def any_datetime(chance: random.Random) -> object:
    return f"{any_date(chance)} {clock(chance, 24)}"


def any_timestamp(chance: random.Random) -> object:
    day = f"{chance.randrange(1971, 2038)}-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}"
    return f"{day} {clock(chance, 24)}"


def any_time(chance: random.Random) -> object:
    return chance.choice(["", "-"]) + clock(chance, chance.choice([1, 24, 838]))


TIMES: list[Column] = [
    ("date", ["0000-00-00", "1000-01-01", "9999-12-31", "2020-02-30", "2020-00-00", "0001-01-01"], any_date),
    ("year", ["0", "1901", "2155", "2000"], lambda chance: str(chance.randrange(1901, 2156))),
    *(
        (f"datetime({digits})", ["0000-00-00", "9999-12-31 23:59:59", "2020-02-30 01:02:03.000001"], any_datetime)
        for digits in range(7)
    ),
    *(
        (f"timestamp({digits}) null", ["0000-00-00", "1970-01-01 00:00:01", "2038-01-19 03:14:07"], any_timestamp)
        for digits in range(7)
    ),
    *(
        (f"time({digits})", ["-838:59:59", "838:59:59", "0", "-00:00:00.000001", "-00:00:01", "-0:0:0.9"], any_time)
        for digits in range(7)
    ),
]


def text(longest: int, alphabet: str = "aé€😀\\'\" \n\0\t%z") -> Make:
    return lambda chance: "".join(chance.choices(alphabet, k=chance.choice([0, 1, chance.randrange(longest + 1)])))


def octets(longest: int) -> Make:
    return lambda chance: (
        chance.randbytes(chance.choice([0, 1, chance.randrange(longest + 1)])) + bytes(chance.randrange(2))
    )


TEXTS: list[Column] = [
    ("char(10)", ["", "  x  ", "ü" * 10], text(10)),
    ("char(255)", ["", "😀" * 255], text(255)),
    ("varchar(20)", ["", "x  ", " "], text(20)),
    ("varchar(63)", ["😀" * 63], text(63)),
    ("varchar(64)", ["😀" * 64], text(64)),
    ("varchar(2000)", ["😀" * 2000], text(300)),
    ("tinytext", ["", "x" * 255], text(60)),
    ("text", ["", "x" * 65535], text(400)),
    ("mediumtext", ["", "x" * 70000], text(400)),
    ("longtext", ["", "é"], text(400)),
    ("varchar(9) character set ascii", ["", "\x7f"], text(9, "abc \0")),
]
OCTETS: list[Column] = [
    ("binary(1)", [b"\0", b" ", b"\xff"], lambda chance: chance.randbytes(1)),
    ("binary(16)", [b"", b"\0" * 16, b"x\0\0y"], octets(15)),
    ("binary(255)", [b"", b"\xff" * 255, b"\0x"], octets(254)),
    ("varbinary(30)", [b"", b"\0", b"x\0 "], octets(29)),
    ("varbinary(300)", [b"", b"\xff" * 300], octets(299)),
    ("tinyblob", [b"", b"\xff" * 255], octets(250)),
    ("blob", [b"", b"\0" * 65535], octets(300)),
    ("mediumblob", [b"", b"\xff" * 70000], octets(300)),
    ("longblob", [b"", b"\xff\xfe"], octets(300)),
    *(
        (f"bit({bits})", [bytes((bits + 7) // 8)], lambda chance, bits=bits: chance.randrange(2**bits))
        for bits in (1, 7, 8, 9, 33, 64)
    ),
]
NAMES = [f"e{number}" for number in range(300)]
MEMBERS = [f"m{number}" for number in range(62)] + ["é", "ö ü"]


def any_set(chance: random.Random) -> object:
    return ",".join(chance.sample(MEMBERS, chance.randrange(len(MEMBERS))))


ENUMS: list[Column] = [
    ("enum('a','é','')", ["a", "é", "", "not a member"], lambda chance: chance.choice(["a", "é", ""])),
    (f"enum({','.join(map(repr, NAMES))})", ["e0", "e255", "e299"], lambda _: "e256"),
    (f"set({','.join(map(repr, MEMBERS))})", ["", ",".join(MEMBERS)], any_set),
    ("set('x','y')", ["", "x", "y", "y,x", "z"], lambda chance: chance.choice(["x", "x,y"])),
]


def any_inet6(chance: random.Random) -> object:
    groups = [f"{chance.choice([0, 0, 1, 0xFFFF, chance.randrange(65536)]):x}" for _ in range(8)]
    return ":".join(groups)


UUIDS = [
    *("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    *("6ba7b810-9dad-11d1-80b4-00c04fd430c8", "f47ac10b-58cc-4372-a567-0e02b2c3d479"),
    *("1ec9414c-232a-6b00-b3c8-9e6bdeced846", "0189a3c4-5678-7abc-8def-000000000000"),
    *("320c3d4d-cc00-875b-8ec9-32d5f69181c0", "6ba7b810-9dad-51d1-00b4-00c04fd430c8"),
]


def any_uuid(chance: random.Random) -> object:
    digits = chance.randbytes(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def any_inet4(chance: random.Random) -> object:
    return ".".join(map(str, chance.choices([0, 1, 10, 255], k=4)))


ADDRESSES: list[Column] = [
    ("uuid", UUIDS, any_uuid),
    ("inet6", ["::", "::1", "::ffff:1.2.3.4", "::1.2.3.4", "1::", "0:1:0:0:1:0:0:0", "::1:0", "1:2::"], any_inet6),
    ("inet4", ["0.0.0.1", "255.255.255.255", "1.2.3.0"], any_inet4),
    ("binary(16)", [b"x"], octets(15)),
    ("binary(4)", [b"", b"\0a"], octets(3)),
]


@pytest.mark.parametrize(
    "columns",
    [integers(), FLOATS, DECIMALS, TIMES, TEXTS, OCTETS, ENUMS],
    ids=["integers", "floats", "decimals", "times", "texts", "octets", "enums"],
)
def test_values_are_as_selected(logged: LoggedDatabase, columns: list[Column]) -> None:
    check(logged, columns)


def test_values_of_types_of_mariadb(on_mariadb: LoggedDatabase) -> None:
    on_mariadb.kinds = {"c0": "uuid", "c1": "inet6", "c2": "inet4"}
    check(on_mariadb, ADDRESSES)


def check(logged: LoggedDatabase, columns: list[Column]) -> None:
    """Insert rows, change and delete them; the log has what was selected meanwhile."""
    chance = random.Random(20)
    count = len(columns)
    declared = ", ".join(f"c{place} {kind}" for place, (kind, _, _) in enumerate(columns))
    logged.run(f"CREATE TABLE t (id int PRIMARY KEY, {declared})")
    made = [
        [
            extremes[nth] if nth < len(extremes) else None if chance.random() < 0.1 else make(chance)
            for _, extremes, make in columns
        ]
        for nth in range(ROWS)
    ]
    selected = ", ".join(
        f"c{place} + 0e0" if kind.startswith("float") else f"c{place}" for place, (kind, _, _) in enumerate(columns)
    )
    start = logged.position()
    places = ", ".join(["%s"] * (count + 1))
    with logged.connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO t VALUES ({places})", [(nth, *row) for nth, row in enumerate(made)])
    inserted = logged.texts(f"SELECT id, {selected} FROM t ORDER BY id")
    assert len(inserted) == ROWS
    swapped = ", ".join(f"t.c{place} = o.c{place}" for place in range(count))
    logged.run(f"UPDATE t JOIN (SELECT * FROM t) o ON o.id = {ROWS - 1} - t.id SET {swapped}")
    updated = logged.texts(f"SELECT id, {selected} FROM t ORDER BY id")
    assert inserted != updated
    logged.run("DELETE FROM t")

    rows = logged.rows(start)
    inserts, updates, deletes = (
        [each for each in rows if each.kind == kind] for kind in ("insert", "update", "delete")
    )
    assert same(images(inserts, 1), inserted)
    before, after = images(updates, 0), images(updates, 1)
    assert set(before) <= set(inserted)
    assert set(after) <= set(updated)
    assert {row[0] for row in after} >= {row[0] for row in set(updated) - set(inserted)}
    assert same(images(deletes, 0), updated)


def same(found: list[tuple[bytes | None, ...]], wanted: list[tuple[bytes | None, ...]]) -> bool:
    """Tell whether rows are equal; show the first values that are not."""
    found = sorted(found, key=lambda row: int(row[0] or 0))
    for ours, theirs in zip(found, wanted, strict=True):
        for place, (mine, right) in enumerate(zip(ours, theirs, strict=True)):
            assert mine == right, f"row {ours[0]!r}, column {place}: {mine!r} instead of {right!r}"
    return True
