"""MySQL's binary JSON, as the text that ``SELECT`` gives.

Source: MySQL's source documentation of the namespace ``json_binary``.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable
from typing import Final

from jobpipe.cdc.mariadb.binlog.stream_values import decimal_reader, double_text

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32 = 5, 6, 7, 8
_STRING, _OPAQUE = 12, 15
_NUMBERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
_LITERALS = (b"null", b"true", b"false")
_TIMESTAMP, _DATE, _TIME, _DATETIME, _DECIMAL = 7, 10, 11, 12, 246
_MAX_DEPTH: Final = 100
_ESCAPED = re.compile(rb'[\x00-\x1f"\\]')
_ESCAPES = {b'"': b'\\"', b"\\": b"\\\\", b"\b": b"\\b", b"\f": b"\\f", b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t"}


def json_text(value: bytes) -> bytes:
    """Return the text of a JSON value.

    Raises:
        ValueError, IndexError, KeyError, struct.error: it is malformed.
    """
    if not value:
        return b"null"  # where a value had to be made up
    return _Document(value).text()


class _Document:
    """A JSON value of which a text is made."""

    def __init__(self, value: bytes) -> None:
        self._value = value
        self._left = len(value)  # values that it can have; a malformed one may refer to one of them again and again
        self._parts: list[bytes] = []

    def text(self) -> bytes:
        self._write(self._value[0], 1, len(self._value), 0)
        return b"".join(self._parts)

    def _write(self, kind: int, at: int, end: int, depth: int) -> None:
        """Write the value at a place; ``end`` is that of the value around it."""
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise ValueError("a JSON value that has itself in it")
        if kind <= _LARGE_ARRAY:
            self._write_container(kind, at, end, depth)
            return
        if kind == _LITERAL:
            text = _LITERALS[self._value[at]]
        elif kind in _NUMBERS:
            text = b"%d" % struct.unpack_from(_NUMBERS[kind], self._value, at)[0]
        elif kind == 11:
            text = _double(struct.unpack_from("<d", self._value, at)[0])
        elif kind == _STRING:
            text = _quoted(self._sized(at, end))
        elif kind == _OPAQUE:
            text = _opaque(self._value[at], self._sized(at + 1, end))
        else:
            raise ValueError(f"a JSON value of the unknown kind {kind}")
        self._parts.append(text)

    def _write_container(self, kind: int, at: int, end: int, depth: int) -> None:
        large = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
        width, form = (4, "<I") if large else (2, "<H")
        number = struct.Struct(form).unpack_from
        data = self._value
        (count,), (size,) = number(data, at), number(data, at + width)
        if at + size > end:
            raise ValueError("a JSON value that is cut off")
        end = at + size
        keys = at + 2 * width
        is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
        values = keys + count * (width + 2) if is_object else keys
        inlined = (_LITERAL, _INT16, _UINT16, *((_INT32, _UINT32) if large else ()))
        if values + count * (width + 1) > end:
            raise ValueError("a JSON value that is cut off")
        self._parts.append(b"{" if is_object else b"[")
        for nth in range(count):
            if nth:
                self._parts.append(b", ")
            if is_object:
                entry = keys + nth * (width + 2)
                start = at + number(data, entry)[0]
                stop = start + struct.unpack_from("<H", data, entry + width)[0]
                if stop > end:
                    raise ValueError("a key that is cut off")
                self._parts += (_quoted(data[start:stop]), b": ")
            entry = values + nth * (width + 1)
            inner = data[entry]
            place = entry + 1 if inner in inlined else at + number(data, entry + 1)[0]
            if place >= end:
                raise ValueError("a JSON value that is cut off")
            self._write(inner, place, end, depth + 1)
        self._parts.append(b"}" if is_object else b"]")

    def _sized(self, at: int, end: int) -> bytes:
        """Return the bytes after their length, of which each byte has seven bits."""
        length = shift = 0
        while True:
            byte = self._value[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 28:
                raise ValueError("a length of over 32 bits")
        if at + length > end:
            raise ValueError("a JSON value that is cut off")
        return self._value[at : at + length]


def _double(number: float) -> bytes:
    text = double_text(number)
    return text + b".0" if text.lstrip(b"-").isdigit() else text


def _quoted(text: bytes) -> bytes:
    if not text.isascii():
        text.decode()
    return b'"%b"' % _ESCAPED.sub(_escape, text)


def _escape(found: re.Match[bytes]) -> bytes:
    character = found[0]
    return _ESCAPES.get(character) or b"\\u%04x" % character[0]


def _opaque(kind: int, value: bytes) -> bytes:
    """Return the text of a value that JSON itself does not have."""
    if kind == _DECIMAL:
        precision, scale = value[0], value[1]
        text, end = decimal_reader(precision, scale)(value, 2)
        if end != len(value):
            raise ValueError("a decimal of a wrong length")
        return text
    if (write := _TEMPORAL.get(kind)) is not None:
        (packed,) = struct.unpack("<q", value)
        return b'"%b"' % write(packed)
    return b'"base64:type%d:%b"' % (kind, base64.b64encode(value))


def _time(packed: int) -> bytes:
    sign = b"-" if packed < 0 else b""
    packed = abs(packed)
    time, fraction = packed >> 24, packed & 0xFFFFFF
    return b"%b%02d:%02d:%02d.%06d" % (sign, time >> 12 & 0x3FF, time >> 6 & 63, time & 63, fraction)


def _date(packed: int) -> bytes:
    months, day = divmod(packed >> 41, 32)
    return b"%04d-%02d-%02d" % (*divmod(months, 13), day)


def _datetime(packed: int) -> bytes:
    time = packed >> 24 & 0x1FFFF
    clock = b"%02d:%02d:%02d.%06d" % (time >> 12, time >> 6 & 63, time & 63, packed & 0xFFFFFF)
    return b"%b %b" % (_date(packed), clock)


_TEMPORAL: dict[int, Callable[[int], bytes]] = {
    _TIMESTAMP: _datetime,
    _DATE: _date,
    _TIME: _time,
    _DATETIME: _datetime,
}
