"""Character sets of a server, and texts in them as UTF-8.

What a byte means is asked of the server itself: by byte for character sets of one byte, by character for others. So
texts are those that ``SELECT`` gives.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from jobpipe.cdc.mariadb.binlog.stream_values import Convert

if TYPE_CHECKING:
    import pymysql

    Connection: TypeAlias = pymysql.connections.Connection[Any]

BINARY = "binary"
_UTF8 = frozenset({"utf8", "utf8mb3", "utf8mb4", "ascii"})
_CODECS = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}
_TWO_BYTES = rb"[\x00-\x80\xff]|[\x81-\xfe]."
_SHIFT_JIS = rb"[\x00-\x80\xa0-\xdf\xfd-\xff]|[\x81-\x9f\xe0-\xfc]."
_EUC_JP = rb"[\x00-\x8d\x90-\xa0\xff]|\x8f..|[\x8e\xa1-\xfe]."
_CHARACTERS = {
    "big5": _TWO_BYTES,
    "euckr": _TWO_BYTES,
    "gb2312": _TWO_BYTES,
    "gbk": _TWO_BYTES,
    "gb18030": rb"[\x00-\x80\xff]|[\x81-\xfe][0-9]..|[\x81-\xfe].",
    "sjis": _SHIFT_JIS,
    "cp932": _SHIFT_JIS,
    "ujis": _EUC_JP,
    "eucjpms": _EUC_JP,
}
_ASKED_AT_ONCE = 200
_REMEMBERED = 100_000  # characters; more than any set has that is not of Unicode
_REPLACED = b"?"
_APPLICABLE = "information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
_CHARACTER_SETS = "information_schema.CHARACTER_SETS"
_INVALID_CHARACTER = 1300  # ER_INVALID_CHARACTER_STRING


@dataclass(frozen=True)
class CharacterSet:
    """A character set.

    Attributes:
        convert: from its bytes to UTF-8; raises ValueError for what is no text in it.
        keeps_ascii: bytes below 128 are what they are in ASCII, wherever they are.
    """

    name: str
    convert: Convert
    keeps_ascii: bool


class CharacterSets:
    """The character sets of a server.

    Args:
        control: a connection for questions, whose own character set is utf8mb4.
    """

    def __init__(self, control: Connection) -> None:
        self._control = control
        self._names: dict[int, str] = {}
        self._sets: dict[str, CharacterSet] = {}
        for number, name in self._ask("SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS"):
            if number is not None and name is not None:
                self._names[int(number)] = str(name)
        # MariaDB has collations of several character sets, whose numbers are in this table alone.
        if any(column[0] == "ID" for column in self._ask(f"SHOW COLUMNS FROM {_APPLICABLE}")):
            for number, name in self._ask(f"SELECT ID, CHARACTER_SET_NAME FROM {_APPLICABLE}"):  # noqa: S608
                self._names[int(number)] = str(name)

    def name(self, collation: int) -> str:
        """Return the character set of a collation's number.

        Raises:
            ValueError: the server has none of that number.
        """
        if (name := self._names.get(collation)) is None:
            raise ValueError(f"the server has no collation of number {collation}")
        return name

    def of(self, collation: int) -> CharacterSet:
        """Return the character set of a collation's number.

        Raises:
            ValueError: the server has none of that number, or one that is not known here.
        """
        name = self.name(collation)
        if (known := self._sets.get(name)) is None:
            known = self._sets[name] = self._make(name)
        return known

    def _make(self, name: str) -> CharacterSet:
        if name in _UTF8:
            return CharacterSet(name, _checked, keeps_ascii=True)
        if (codec := _CODECS.get(name)) is not None:
            return CharacterSet(name, lambda value: value.decode(codec).encode(), keeps_ascii=False)
        if (pattern := _CHARACTERS.get(name)) is not None:
            ascii_bytes = bytes(range(128))
            kept = self._convert(name, [ascii_bytes])[0] == ascii_bytes
            return CharacterSet(name, _ByCharacter(name, pattern, self._convert), keeps_ascii=kept)
        ((size,),) = self._ask(f"SELECT MAXLEN FROM {_CHARACTER_SETS} WHERE CHARACTER_SET_NAME = '{name}'") or ((0,),)  # noqa: S608
        if int(size) != 1:
            raise ValueError(f"the character set {name} is not known to jobpipe: ALTER TABLE to utf8mb4")
        table = self._convert(name, [bytes(range(256))])[0].decode()
        if len(table) != 256:
            raise ValueError(f"the server gives {len(table)} characters for the 256 bytes of {name}")

        def convert(value: bytes) -> bytes:
            return codecs.charmap_decode(value, "strict", table)[0].encode()

        return CharacterSet(name, convert, keeps_ascii=table[:128].isascii() and _is_identity(table[:128]))

    def _convert(self, name: str, values: Sequence[bytes]) -> list[bytes]:
        """Return values in UTF-8, as the server converts them."""
        converted: list[bytes] = []
        for first in range(0, len(values), _ASKED_AT_ONCE):
            asked = ", ".join(
                f"HEX(CONVERT(_{name} x'{value.hex()}' USING utf8mb4))"
                for value in values[first : first + _ASKED_AT_ONCE]
            )
            (row,) = self._ask(f"SELECT {asked}")
            if any(each is None for each in row):
                raise ValueError(f"the server cannot convert a value from {name}")
            converted += (bytes.fromhex(str(each)) for each in row)
        return converted

    def _ask(self, question: str) -> Sequence[tuple[Any, ...]]:
        with self._control.cursor() as cursor:
            cursor.execute(question)
            return list(cursor.fetchall())


def _checked(value: bytes) -> bytes:
    value.decode()
    return value


def _is_identity(text: str) -> bool:
    return all(ord(character) == place for place, character in enumerate(text))


class _ByCharacter:
    """Converts texts whose characters have several bytes; each character is asked for once."""

    def __init__(self, name: str, pattern: bytes, ask: Callable[[str, Sequence[bytes]], list[bytes]]) -> None:
        self._name = name
        self._split = re.compile(pattern, re.DOTALL).findall
        self._ask = ask
        self._known: dict[bytes, bytes] = {}

    def __call__(self, value: bytes) -> bytes:
        parts = self._split(value)
        if sum(map(len, parts)) != len(value):
            return self._asked([value])[0]
        known = self._known
        try:
            return b"".join(map(known.__getitem__, parts))
        except KeyError:
            pass
        if len(known) > _REMEMBERED:
            known.clear()
        unknown = sorted({part for part in parts if part not in known})
        # What the server cannot convert may depend on what follows, so only true characters are kept.
        known.update(
            (part, text)
            for part, text in zip(unknown, self._asked(unknown), strict=True)
            if part == text or _REPLACED not in text
        )
        if all(part in known for part in unknown):
            return b"".join(map(known.__getitem__, parts))
        return self._asked([value])[0]

    def _asked(self, values: Sequence[bytes]) -> list[bytes]:
        from pymysql import MySQLError

        try:
            return self._ask(self._name, values)
        except MySQLError as error:
            if error.args and error.args[0] == _INVALID_CHARACTER:
                raise ValueError(f"not a text in {self._name}") from None
            raise
