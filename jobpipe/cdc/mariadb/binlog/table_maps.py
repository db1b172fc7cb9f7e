"""Tables as the binary log describes them before their rows.

Source: MySQL's documentation of ``Table_map_event``; MariaDB's "Replication Protocol".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from jobpipe.cdc.mariadb.binlog import stream_values
from jobpipe.cdc.mariadb.binlog.binary_json import json_text
from jobpipe.cdc.mariadb.binlog.character_sets import BINARY, CharacterSet, CharacterSets
from jobpipe.cdc.mariadb.binlog.row_images import BinlogColumn, BinlogTable, TableReader, packed_number, taken
from jobpipe.cdc.mariadb.binlog.stream_values import Convert, Reader
from jobpipe.errors import ConfigError, SchemaMismatch

KindsOf: TypeAlias = Callable[[str, str], Mapping[str, str]]

_TINY, _SHORT, _LONG, _FLOAT, _DOUBLE = 1, 2, 3, 4, 5
_LONGLONG, _INT24, _DATE, _YEAR = 8, 9, 10, 13
_VARCHAR, _BIT, _TIMESTAMP2, _DATETIME2, _TIME2 = 15, 16, 17, 18, 19
_JSON, _NEWDECIMAL, _ENUM, _SET = 245, 246, 247, 248
_TINY_BLOB, _MEDIUM_BLOB, _LONG_BLOB, _BLOB, _VAR_STRING, _STRING, _GEOMETRY = 249, 250, 251, 252, 253, 254, 255

_INTEGERS = {
    _TINY: ("tinyint", 1),
    _SHORT: ("smallint", 2),
    _INT24: ("mediumint", 3),
    _LONG: ("int", 4),
    _LONGLONG: ("bigint", 8),
}
_PLAIN = {
    _FLOAT: "float",
    _DOUBLE: "double",
    _DATE: "date",
    _YEAR: "year",
    _DATETIME2: "datetime",
    _TIMESTAMP2: "timestamp",
    _TIME2: "time",
    _ENUM: "enum",
    _SET: "set",
    _JSON: "json",
    _GEOMETRY: "geometry",
}
_BLOBS = (_TINY_BLOB, _MEDIUM_BLOB, _LONG_BLOB, _BLOB)
_DETAILS = {  # the bytes that a type has besides its number
    **dict.fromkeys((*_INTEGERS, _DATE, _YEAR), 0),
    **dict.fromkeys((_FLOAT, _DOUBLE, _TIMESTAMP2, _DATETIME2, _TIME2, _JSON, _GEOMETRY, *_BLOBS), 1),
    **dict.fromkeys((_VARCHAR, _BIT, _NEWDECIMAL, _VAR_STRING, _STRING), 2),
}
_BIG_ENDIAN = (_NEWDECIMAL, _STRING)
_NUMBERS = (*_INTEGERS, _FLOAT, _DOUBLE, _YEAR, _NEWDECIMAL)
_CHARACTERS = frozenset({_STRING, _VAR_STRING, _VARCHAR, *_BLOBS})
_UNSUPPORTED = {
    7: "timestamp as before MySQL 5.6; ALTER TABLE ... FORCE makes it one of today",
    11: "time as before MySQL 5.6; ALTER TABLE ... FORCE makes it one of today",
    12: "datetime as before MySQL 5.6; ALTER TABLE ... FORCE makes it one of today",
    20: "an array, of an index on JSON",
    140: "a compressed blob or text",
    141: "a compressed varchar or varbinary",
    242: "a vector",
}
_FIXED = {
    "uuid": (16, stream_values.uuid_text),
    "inet6": (16, stream_values.inet6_text),
    "inet4": (4, stream_values.inet4_text),
}

_HASH = re.compile(r"DB_ROW_HASH_\d+")

# Kinds of optional metadata.
_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET, _NAMES, _SET_TEXTS, _ENUM_TEXTS = range(1, 7)
_PRIMARY_KEY, _PREFIXED_KEY, _ENUM_DEFAULT_CHARSET, _ENUM_CHARSET = range(8, 12)


@dataclass(frozen=True)
class TableMap:
    """What the log says of a table before its rows; the rest is read for tables that are wanted."""

    number: int
    database: str
    name: str
    rest: int

    @classmethod
    def parse(cls, data: bytes, at: int) -> TableMap:
        """Return the table of an event whose own part begins at a place."""
        number = int.from_bytes(data[at : at + 6], "little")
        database, at = _name(data, at + 8)
        name, at = _name(data, at)
        return cls(number, database, name, at)

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


def table_reader(
    data: bytes, found: TableMap, character_sets: CharacterSets, kinds_of: KindsOf, *, mariadb: bool
) -> TableReader:
    """Return what reads rows of a table that an event describes.

    Raises:
        ConfigError: the event lacks metadata.
        SchemaMismatch: it has a column whose values are not known here.
    """
    columns = _Columns(data, found, character_sets, mariadb=mariadb)
    table = columns.table()
    fixed: Mapping[str, str] = {}
    if any(column.kind in ("binary(16)", "binary(4)") for column in table.columns):
        fixed = kinds_of(table.database, table.name)
        kinds = [_fixed_kind(column, fixed) for column in table.columns]
        table = replace(table, columns=tuple(map(_with_kind, table.columns, kinds)))
    readers = tuple(columns.reader(place, column) for place, column in enumerate(table.columns))
    return TableReader(table, readers, _hidden(table) if mariadb else 0)


def _hidden(table: BinlogTable) -> int:
    """Return how many columns are MariaDB's own, of unique keys of long texts; they are the last ones."""
    count = 0
    for column in reversed(table.columns):
        if _HASH.fullmatch(column.name) is None or column.kind != "bigint unsigned":
            break
        count += 1
    return count


def _fixed_kind(column: BinlogColumn, kinds: Mapping[str, str]) -> str:
    """Return the type that the log has as bytes of a fixed length."""
    kind = kinds.get(column.name, "")
    return kind if kind in _FIXED and column.kind == f"binary({_FIXED[kind][0]})" else column.kind


def _with_kind(column: BinlogColumn, kind: str) -> BinlogColumn:
    return replace(column, kind=kind)


class _Columns:
    """Columns of a table, from its event."""

    def __init__(self, data: bytes, found: TableMap, character_sets: CharacterSets, *, mariadb: bool) -> None:
        self._found = found
        self._character_sets = character_sets
        count, at = packed_number(data, found.rest)
        self._types = list(taken(data, at, count))
        length, at = packed_number(data, at + count)
        details = taken(data, at, length)
        at += length
        bitmap = (count + 7) // 8
        self._nullable = int.from_bytes(taken(data, at, bitmap), "little")
        self._metadata = dict(_fields(data, at + bitmap))
        self._names = [name.decode() for name in _strings(self._metadata.get(_NAMES, b""))]
        if not count or len(self._names) != count:
            raise self._no_metadata("does not name the columns")
        self._details = self._read_details(details)
        self._unsigned = self._read_signedness()
        characters = _CHARACTERS | {_GEOMETRY} if mariadb else _CHARACTERS
        self._collations = {
            **self._read_collations(characters, _DEFAULT_CHARSET, _COLUMN_CHARSET),
            **self._read_collations({_ENUM, _SET}, _ENUM_DEFAULT_CHARSET, _ENUM_CHARSET),
        }
        self._members = {**self._read_members(_ENUM, _ENUM_TEXTS), **self._read_members(_SET, _SET_TEXTS)}

    def table(self) -> BinlogTable:
        """Return the table."""
        keys = set(_numbers(self._metadata.get(_PRIMARY_KEY, b"")))
        keys.update(_numbers(self._metadata.get(_PREFIXED_KEY, b""))[::2])
        columns = (
            BinlogColumn(name, self._kind(place), place in keys, bool(self._nullable >> place & 1))
            for place, name in enumerate(self._names)
        )
        return BinlogTable(self._found.number, self._found.database, self._found.name, tuple(columns))

    def _read_details(self, packed: bytes) -> list[int]:
        """Return what each column's type has besides its number: lengths, digits."""
        details = []
        at = 0
        for place, kind in enumerate(self._types):
            if kind not in _DETAILS:
                raise self._unknown(place)
            size = _DETAILS[kind]
            detail = int.from_bytes(taken(packed, at, size), "big" if kind in _BIG_ENDIAN else "little")
            at += size
            if kind == _STRING and detail >> 8 in (_ENUM, _SET):
                self._types[place] = detail >> 8
                detail &= 0xFF
            details.append(detail)
        return details

    def _read_signedness(self) -> frozenset[int]:
        numbers = [place for place, kind in enumerate(self._types) if kind in _NUMBERS]
        bits = self._metadata.get(_SIGNEDNESS, b"")
        if len(bits) < (len(numbers) + 7) // 8:
            raise self._no_metadata("does not tell which numbers are unsigned")
        return frozenset(place for nth, place in enumerate(numbers) if bits[nth // 8] >> (7 - nth % 8) & 1)

    def _read_collations(self, kinds: Container[int], default: int, each: int) -> dict[int, int]:
        """Return numbers of collations by the places of columns of some types."""
        places = [place for place, kind in enumerate(self._types) if kind in kinds]
        if not places:
            return {}
        if each in self._metadata:
            collations = _numbers(self._metadata[each])
        elif default in self._metadata:
            first, *pairs = _numbers(self._metadata[default])
            others = dict(zip(pairs[::2], pairs[1::2], strict=True))
            collations = [others.get(nth, first) for nth in range(len(places))]
        else:
            collations = []
        if len(collations) != len(places):
            raise self._no_metadata("does not tell the character sets of columns")
        return dict(zip(places, collations, strict=True))

    def _read_members(self, kind: int, field: int) -> dict[int, list[bytes]]:
        """Return the members of enums, or of sets, by their places, in UTF-8."""
        places = [place for place, each in enumerate(self._types) if each == kind]
        lists = list(_lists(self._metadata.get(field, b"")))
        if len(lists) != len(places):
            raise self._no_metadata("does not tell the members of enums and sets")
        return {place: self._texts(place, members) for place, members in zip(places, lists, strict=True)}

    def _texts(self, place: int, members: list[bytes]) -> list[bytes]:
        convert = self._converting(place).convert
        return [convert(member) for member in members]

    def _converting(self, place: int) -> CharacterSet:
        """Return the character set of a column, whose errors name the column."""
        try:
            known = self._character_sets.of(self._collations[place])
        except ValueError as error:
            raise self._refused(place, str(error)) from None

        def convert(value: bytes) -> bytes:
            try:
                return known.convert(value)
            except ValueError:
                raise self._refused(place, f"a value in the binary log is no text in {known.name}") from None

        return replace(known, convert=convert)

    def _kind(self, place: int) -> str:
        kind, detail = self._types[place], self._details[place]
        if kind in _INTEGERS:
            return _INTEGERS[kind][0] + (" unsigned" if place in self._unsigned else "")
        if kind in _PLAIN:
            return _PLAIN[kind]
        if kind == _NEWDECIMAL:
            return f"decimal({detail >> 8},{detail & 0xFF})"
        if kind == _BIT:
            return f"bit({_bits(detail)})"
        if kind in _CHARACTERS:
            if self._character_sets.name(self._collations[place]) != BINARY:
                return "string"
            return f"binary({_string_length(detail)})" if kind == _STRING else "bytes"
        raise self._unknown(place)

    def reader(self, place: int, column: BinlogColumn) -> Reader:
        """Return the reader of a column."""
        kind, detail = self._types[place], self._details[place]
        if kind in _INTEGERS:
            return stream_values.integer_reader(_INTEGERS[kind][1], signed=place not in self._unsigned)
        if kind in _READERS:
            return _READERS[kind](detail)
        if kind in (_ENUM, _SET):
            make = stream_values.enum_reader if kind == _ENUM else stream_values.set_reader
            return make(detail, self._members[place])
        if kind == _JSON:
            return stream_values.converted_reader(stream_values.bytes_reader(detail), self._json(place))
        if kind == _STRING:
            read = stream_values.bytes_reader(1 if _string_length(detail) < 256 else 2)
        elif kind in (_VARCHAR, _VAR_STRING):
            read = stream_values.bytes_reader(1 if detail < 256 else 2)
        else:
            read = stream_values.bytes_reader(detail)
        if column.kind == "string":
            known = self._converting(place)
            return stream_values.converted_reader(read, known.convert, keeps_ascii=known.keeps_ascii)
        if kind != _STRING:
            return read
        read = stream_values.padded_reader(read, _string_length(detail))
        return stream_values.converted_reader(read, _FIXED[column.kind][1]) if column.kind in _FIXED else read

    def _json(self, place: int) -> Convert:
        def convert(value: bytes) -> bytes:
            try:
                return json_text(value)
            except stream_values.MALFORMED as error:
                raise self._refused(place, f"a value in the binary log is no JSON: {error}") from None

        return convert

    def _no_metadata(self, what: str) -> ConfigError:
        return ConfigError(
            f"the binary log {what} of {self._found}: SET GLOBAL binlog_row_metadata = FULL; what was written before "
            "stays so, and cannot be captured",
            table=str(self._found),
        )

    def _refused(self, place: int, why: str) -> SchemaMismatch:
        column = self._names[place]
        return SchemaMismatch(f"{self._found}, column {column}: {why}", table=str(self._found), column=column)

    def _unknown(self, place: int) -> SchemaMismatch:
        kind = self._types[place]
        named = f" ({_UNSUPPORTED[kind]})" if kind in _UNSUPPORTED else ""
        return self._refused(place, f"it is of the type {kind}{named}, which jobpipe cannot read in the binary log")


def _bits(detail: int) -> int:
    return (detail >> 8) * 8 + (detail & 0xFF)


def _string_length(detail: int) -> int:
    """Return the longest length in bytes, two bits of which are in the byte of the type."""
    return (((detail >> 8) & 0x30) ^ 0x30) << 4 | (detail & 0xFF)


def _with_digits(make: Callable[[int], Reader]) -> Callable[[int], Reader]:
    def reader(digits: int) -> Reader:
        if digits > 6:
            raise ValueError(f"seconds with {digits} digits after the point")
        return make(digits)

    return reader


_READERS: dict[int, Callable[[int], Reader]] = {
    _FLOAT: lambda _: stream_values.float_reader(),
    _DOUBLE: lambda _: stream_values.double_reader(),
    _DATE: lambda _: stream_values.date_reader(),
    _YEAR: lambda _: stream_values.year_reader(),
    _DATETIME2: _with_digits(stream_values.datetime_reader),
    _TIMESTAMP2: _with_digits(stream_values.timestamp_reader),
    _TIME2: _with_digits(stream_values.time_reader),
    _NEWDECIMAL: lambda detail: stream_values.decimal_reader(detail >> 8, detail & 0xFF),
    _BIT: lambda detail: stream_values.bit_reader(_bits(detail)),
    _GEOMETRY: stream_values.bytes_reader,
}


def _name(data: bytes, at: int) -> tuple[str, int]:
    length, at = packed_number(data, at)
    end = at + length
    if data[end]:
        raise ValueError("a name without an end")
    return data[at:end].decode(), end + 1


def _fields(data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at < len(data):
        kind = data[at]
        length, at = packed_number(data, at + 1)
        yield kind, taken(data, at, length)
        at += length


def _strings(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length, at = packed_number(data, at)
        yield taken(data, at, length)
        at += length


def _numbers(data: bytes) -> list[int]:
    found = []
    at = 0
    while at < len(data):
        number, at = packed_number(data, at)
        found.append(number)
    return found


def _lists(data: bytes) -> Iterator[list[bytes]]:
    at = 0
    while at < len(data):
        count, at = packed_number(data, at)
        members = []
        for _ in range(count):
            length, at = packed_number(data, at)
            members.append(taken(data, at, length))
            at += length
        yield members
