"""Texts in character sets of all kinds become the UTF-8 that ``SELECT`` gives."""

from __future__ import annotations

import contextlib
import random

import pymysql
import pytest

from jobpipe.cdc.mariadb.binlog.character_sets import CharacterSets
from jobpipe.errors import SchemaMismatch
from tests.cdc.mysql.binlog.logged_server import LoggedDatabase, images

MULTIBYTE = ["big5", "euckr", "gb2312", "gbk", "sjis", "cp932", "ujis", "eucjpms", "gb18030"]
ALPHABET = "aZ~\\|é€ßЖяשĄż日本語中文한국アｱ\u3000、①№Ω✓"


def test_characters_of_all_sets(logged: LoggedDatabase) -> None:
    """A column of each character set that the server has, enums and sets too."""
    with contextlib.closing(logged.server.connect()) as control:
        known = CharacterSets(control)
    names = [name for (name,) in logged.run("SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS")]
    names = sorted(set(names) - {"binary"})
    assert {"latin1", "cp1251", "utf16", "utf16le", "utf32", "ucs2", "gbk", "sjis", "utf8mb3", "utf8mb4"} <= set(names)
    columns = ", ".join(
        f"c_{name} varchar(60) CHARACTER SET {name}, t_{name} text CHARACTER SET {name},"
        f"e_{name} enum('a', 'é', 'Ж', '日') CHARACTER SET {name}"
        for name in names
    )
    logged.run(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    start = logged.position()
    chance = random.Random(7)
    for nth in range(20):
        texts = {name: "".join(chance.choices(ALPHABET, k=chance.randrange(20))) for name in names}
        values = ", ".join(f"%(c_{name})s, %(c_{name})s, {nth % 4 + 1}" for name in names)
        with logged.connection.cursor() as cursor:
            given = {f"c_{name}": text for name, text in texts.items()}
            cursor.execute(f"INSERT INTO t VALUES ({nth}, {values})", given)
    assert images(logged.rows(start), 1) == logged.texts("SELECT * FROM t ORDER BY id")
    assert known.name(33).startswith("utf8")


def test_each_byte_of_character_sets_of_one_byte(logged: LoggedDatabase) -> None:
    """Also those that stand for no character, as 0x81 in latin1."""
    single = logged.run("SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS WHERE MAXLEN = 1")
    names = sorted({name for (name,) in single} - {"binary", "ascii"})
    columns = ", ".join(f"c_{name} varchar(256) CHARACTER SET {name}" for name in names)
    logged.run(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    start = logged.position()
    every = bytes(range(256)).hex()
    values = ", ".join(f"_{name} x'{every}'" for name in names)
    logged.run(f"INSERT INTO t VALUES (1, {values})")
    rows = images(logged.rows(start), 1)
    assert rows == logged.texts("SELECT * FROM t")
    place = names.index("latin1")
    assert (rows[0][place + 1] or b"").decode()[0x80:0x82] == "€\x81"


@pytest.mark.parametrize("name", MULTIBYTE)
def test_all_characters_of_a_set_of_several_bytes(logged: LoggedDatabase, name: str) -> None:
    if not logged.run("SELECT 1 FROM information_schema.CHARACTER_SETS WHERE CHARACTER_SET_NAME = %s", name):
        pytest.skip(f"{logged.server.name} has no {name}")
    logged.run(f"CREATE TABLE t (id int PRIMARY KEY, v text CHARACTER SET {name})")
    start = logged.position()
    every = [chr(number) for number in range(0x10000) if not 0xD800 <= number < 0xE000]
    texts = ["".join(every[first : first + 300]) for first in range(0, len(every), 300)]
    with logged.connection.cursor() as cursor:  # what the character set does not have becomes ?
        cursor.executemany("INSERT INTO t VALUES (%s, %s)", list(enumerate(texts)))
    rows = images(logged.rows(start), 1)
    assert rows == logged.texts("SELECT * FROM t ORDER BY id")
    found = set(b"".join(text or b"" for _, text in rows).decode())
    assert len(found) > 2500
    assert found <= set(every)


def test_each_character_is_asked_for_once(logged: LoggedDatabase) -> None:
    with contextlib.closing(logged.server.connect()) as control:
        known = CharacterSets(control)
        ((collation,),) = logged.run("SELECT ID FROM information_schema.COLLATIONS WHERE COLLATION_NAME = 'gbk_bin'")
        gbk = known.of(collation)
        texts = ["中文", "文中中", "中a文", "国"]
        assert [gbk.convert(text.encode("gbk")).decode() for text in texts] == texts
        logged.run(f"KILL {control.thread_id()}")
        assert gbk.convert("国中文".encode("gbk")).decode() == "国中文"
        with pytest.raises(pymysql.MySQLError):
            gbk.convert("人".encode("gbk"))


def test_collations_of_several_character_sets(on_mariadb: LoggedDatabase) -> None:
    """Their numbers are of a collation and a character set together."""
    columns = [f"c_{name} varchar(9) COLLATE {name}_uca1400_ai_ci" for name in ("utf8mb3", "utf8mb4", "utf16", "ucs2")]
    on_mariadb.run(f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(columns)})")
    start = on_mariadb.position()
    on_mariadb.run("INSERT INTO t VALUES (1, 'é', 'é😀', 'é😀', 'é')")
    short, long = "é".encode(), "é😀".encode()
    assert images(on_mariadb.rows(start), 1) == [(b"1", short, long, long, short)]


def test_a_value_that_is_no_text(on_mariadb: LoggedDatabase) -> None:
    """UTF-8 of MariaDB has halves of surrogates, which are no characters."""
    on_mariadb.run("CREATE TABLE t (id int PRIMARY KEY, v varchar(9) CHARACTER SET utf8mb3)")
    start = on_mariadb.position()
    on_mariadb.run("INSERT INTO t VALUES (1, 'x')")
    assert images(on_mariadb.rows(start), 1) == [(b"1", b"x")]
    start = on_mariadb.position()
    on_mariadb.run("INSERT INTO t VALUES (2, _utf8mb3 x'EDA080')")
    with pytest.raises(SchemaMismatch, match=r"t, column v: .* no text in utf8mb3"):
        on_mariadb.rows(start)


def test_a_collation_that_the_server_does_not_have(logged: LoggedDatabase) -> None:
    with contextlib.closing(logged.server.connect()) as control:
        known = CharacterSets(control)
        assert known.of(8).name == "latin1"
        with pytest.raises(ValueError, match="collation of number 9999"):
            known.of(9999)
