"""Values of rows in the binary log, as texts that ``SELECT`` would give.

A reader takes the bytes of an event and the place of a value; it returns the value's text and the place after it. A
value that is cut off, or that no column can have, raises what :data:`MALFORMED` lists, or gives a place after the end.

Source: MariaDB's and MySQL's documentation of data types' storage and of the replication protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from decimal import Decimal
from ipaddress import IPv4Address
from typing import TypeAlias

Reader: TypeAlias = Callable[[bytes, int], tuple[bytes, int]]
Convert: TypeAlias = Callable[[bytes], bytes]

MALFORMED = (struct.error, IndexError, KeyError, ValueError, OverflowError)

_REMEMBERED = 20_000  # dates, each some 100 bytes
_MAX_PRECISION = 65
_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # bytes that so many decimal digits take
_FORMATS = {1: "<b", 2: "<h", 4: "<i", 8: "<q"}
_LENGTHS = {2: struct.Struct("<H"), 4: struct.Struct("<I")}
_EPOCH_DAY = date(1970, 1, 1)
_DAY_SECONDS = 86_400
_NULL_TIME = b"0000-00-00 00:00:00"
_F_FORMAT_DIGITS = 15  # the longest whole number that the server writes without an exponent
_F_FORMAT_ZEROS = -14
_MAPPED = 0xFFFF  # what an address of IPv4 has before it in one of IPv6


def integer_reader(size: int, *, signed: bool) -> Reader:
    """Return the reader of whole numbers of so many bytes."""
    if size == 3:
        return _medium_reader(signed=signed)
    if size == 1:
        texts = [b"%d" % (number - 256 if signed and number > 127 else number) for number in range(256)]
        return lambda data, at: (texts[data[at]], at + 1)
    form = _FORMATS[size]
    unpack = struct.Struct(form if signed else form.upper()).unpack_from
    return lambda data, at: (b"%d" % unpack(data, at), at + size)  # type: ignore[str-format] # a tuple of one


def _medium_reader(*, signed: bool) -> Reader:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + 3
        return b"%d" % int.from_bytes(data[at:end], "little", signed=signed), end

    return read


def float_reader() -> Reader:
    """Return the reader of single precision: the text is that of the double which is equal."""
    unpack = struct.Struct("<f").unpack_from
    return lambda data, at: (double_text(unpack(data, at)[0]), at + 4)


def double_reader() -> Reader:
    """Return the reader of double precision."""
    unpack = struct.Struct("<d").unpack_from
    return lambda data, at: (double_text(unpack(data, at)[0]), at + 8)


def double_text(number: float) -> bytes:
    """Return a number in the fewest digits, as the server writes it.

    >>> double_text(1e15), double_text(-0.5), double_text(1e-15)
    (b'1e15', b'-0.5', b'1e-15')
    """
    text = repr(number)
    if text.endswith(".0") and len(text) <= _F_FORMAT_DIGITS:
        return text[:-2].encode()
    if "e" not in text and len(text) < _F_FORMAT_DIGITS:
        return text.encode()
    if number - number != 0:
        raise ValueError("a number that is not finite")
    sign, digits, exponent = Decimal(text).as_tuple()
    shown = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(exponent)  # digits before the decimal point
    minus = "-" if sign else ""
    if not (point >= _F_FORMAT_ZEROS and (point <= _F_FORMAT_DIGITS or len(shown) > point)):
        fraction = f".{shown[1:]}" if len(shown) > 1 else ""
        return f"{minus}{shown[0]}{fraction}e{point - 1}".encode()
    if point <= 0:
        return f"{minus}0.{'0' * -point}{shown}".encode()
    if len(shown) <= point:
        return f"{minus}{shown}{'0' * (point - len(shown))}".encode()
    return f"{minus}{shown[:point]}.{shown[point:]}".encode()


def decimal_reader(precision: int, scale: int) -> Reader:
    """Return the reader of decimals: groups of nine digits, four bytes each, big-endian, inverted if negative."""
    if not 0 < precision <= _MAX_PRECISION or not 0 <= scale <= precision:
        raise ValueError(f"a decimal of {precision} digits, {scale} of them after the point")
    whole, fraction = precision - scale, scale
    groups = [n for n in (whole % 9,) if n] + [9] * (whole // 9)
    wholes = len(groups)
    groups += [9] * (fraction // 9) + [n for n in (fraction % 9,) if n]
    size = sum(_DIGITS[digits] for digits in groups)
    sign = 1 << (size * 8 - 1)
    inverted = (1 << (size * 8)) - 1
    shift = size * 8
    parts = []
    for digits in groups:
        shift -= _DIGITS[digits] * 8
        parts.append((shift, (1 << (_DIGITS[digits] * 8)) - 1, 10**digits))
    whole_parts, fraction_parts = parts[:wholes], parts[wholes:]
    form = b"%%d.%%0%dd" % scale

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        packed = int.from_bytes(data[at:end], "big") ^ sign
        minus = packed >= sign
        if minus:
            packed ^= inverted
        before = after = 0
        for shift, mask, limit in whole_parts:
            group = packed >> shift & mask
            if group >= limit:
                raise ValueError("a decimal with a wrong digit")
            before = before * limit + group
        if not scale:
            return (b"-%d" if minus and before else b"%d") % before, end
        for shift, mask, limit in fraction_parts:
            group = packed >> shift & mask
            if group >= limit:
                raise ValueError("a decimal with a wrong digit")
            after = after * limit + group
        text = form % (before, after)
        return (b"-" + text if minus and (before or after) else text), end

    return read


class _Texts(dict[int, bytes]):
    """Texts of values, by what the log has for them; bounded."""

    def __init__(self, text: Callable[[int], bytes]) -> None:
        super().__init__()
        self._text = text

    def __missing__(self, key: int) -> bytes:
        if len(self) >= _REMEMBERED:
            self.clear()
        text = self[key] = self._text(key)
        return text


def _date_text(packed: int) -> bytes:
    year, month, day = packed >> 9, packed >> 5 & 15, packed & 31
    if month > 12:
        raise ValueError(f"a date in month {month}")
    return b"%04d-%02d-%02d" % (year, month, day)


def _datetime_date(packed: int) -> bytes:
    """Return the date, and a space, of a datetime without its last 17 bits."""
    if not packed >> 22:
        raise ValueError("a datetime that is negative")
    months, day = divmod(packed & 0x3FFFFF, 32)
    year, month = divmod(months, 13)
    return b"%04d-%02d-%02d " % (year, month, day)


def _epoch_date(days: int) -> bytes:
    return (_EPOCH_DAY + timedelta(days)).isoformat().encode() + b" "


_DATES = _Texts(_date_text)
_DATETIME_DATES = _Texts(_datetime_date)
_EPOCH_DATES = _Texts(_epoch_date)
_MINUTES = {hour << 6 | minute: b"%02d:%02d:" % (hour, minute) for hour in range(24) for minute in range(60)}
_MINUTES_OF_DAY = [b"%02d:%02d:" % divmod(minute, 60) for minute in range(1440)]
_SECONDS = {second: b"%02d" % second for second in range(60)}


def date_reader() -> Reader:
    """Return the reader of dates."""
    dates = _DATES

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + 3
        return dates[int.from_bytes(data[at:end], "little")], end

    return read


def year_reader() -> Reader:
    """Return the reader of years."""
    texts = [b"0000", *(b"%d" % (1900 + year) for year in range(1, 256))]
    return lambda data, at: (texts[data[at]], at + 1)


def datetime_reader(digits: int) -> Reader:
    """Return the reader of datetimes with so many digits of a second's fraction."""
    dates, minutes, seconds = _DATETIME_DATES, _MINUTES, _SECONDS

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + 5
        packed = int.from_bytes(data[at:end], "big")
        return dates[packed >> 17] + minutes[packed >> 6 & 0x7FF] + seconds[packed & 63], end

    return _with_fraction(read, digits)


def timestamp_reader(digits: int) -> Reader:
    """Return the reader of timestamps, in UTC."""
    dates, minutes, second_texts = _EPOCH_DATES, _MINUTES_OF_DAY, _SECONDS

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + 4
        seconds = int.from_bytes(data[at:end], "big")
        if seconds:
            days, seconds = divmod(seconds, _DAY_SECONDS)
            return dates[days] + minutes[seconds // 60] + second_texts[seconds % 60], end
        if any(data[end : end + (digits + 1) // 2]):
            return b"1970-01-01 00:00:00", end
        return _NULL_TIME, end

    return _with_fraction(read, digits)


def _with_fraction(read_seconds: Reader, digits: int) -> Reader:
    if not digits:
        return read_seconds
    size = (digits + 1) // 2
    divisor = 10 if digits % 2 else 1
    limit = 100**size
    form = b".%%0%dd" % digits

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        text, at = read_seconds(data, at)
        end = at + size
        fraction = int.from_bytes(data[at:end], "big")
        if fraction >= limit:
            raise ValueError("a fraction of a second with a wrong digit")
        return text + form % (fraction // divisor), end

    return read


def time_reader(digits: int) -> Reader:
    """Return the reader of times, which may be negative, and longer than a day."""
    size = (digits + 1) // 2
    shift = size * 8
    zero = 0x800000 << shift
    mask = (1 << shift) - 1
    divisor = 10 if digits % 2 else 1
    limit = 100**size
    form = b".%%0%dd" % digits

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + 3 + size
        packed = int.from_bytes(data[at:end], "big") - zero
        sign = b""
        if packed < 0:
            packed, sign = -packed, b"-"
        time, fraction = packed >> shift, packed & mask
        hours, minutes, seconds = time >> 12, time >> 6 & 63, time & 63
        if hours > 838 or minutes > 59 or seconds > 59 or fraction >= limit:
            raise ValueError("a time of a wrong number of hours, minutes or seconds")
        text = b"%b%02d:%02d:%02d" % (sign, hours, minutes, seconds)
        return (text + form % (fraction // divisor) if digits else text), end

    return read


def bytes_reader(prefix: int) -> Reader:
    """Return the reader of bytes after their length, which itself takes so many bytes."""
    if prefix in (1, 3):

        def read(data: bytes, at: int) -> tuple[bytes, int]:
            start = at + prefix
            end = start + int.from_bytes(data[at:start], "little")
            return data[start:end], end

        return read
    unpack = _LENGTHS[prefix].unpack_from

    def read_aligned(data: bytes, at: int) -> tuple[bytes, int]:
        start = at + prefix
        end = start + unpack(data, at)[0]
        return data[start:end], end

    return read_aligned


def padded_reader(read_bytes: Reader, length: int) -> Reader:
    """Return the reader of bytes of a fixed length, of which zeros at the end are not in the log."""

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        value, at = read_bytes(data, at)
        return value.ljust(length, b"\0"), at

    return read


def converted_reader(read_bytes: Reader, convert: Convert, *, keeps_ascii: bool = False) -> Reader:
    """Return the reader of what another one reads, converted; if it keeps ASCII, other values alone are."""

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        value, at = read_bytes(data, at)
        return convert(value), at

    def read_ascii(data: bytes, at: int) -> tuple[bytes, int]:
        value, at = read_bytes(data, at)
        return (value if value.isascii() else convert(value)), at

    return read_ascii if keeps_ascii else read


def bit_reader(bits: int) -> Reader:
    """Return the reader of bits, as bytes that are big-endian."""
    size = (bits + 7) // 8

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        return data[at:end], end

    return read


def enum_reader(size: int, texts: Sequence[bytes]) -> Reader:
    """Return the reader of an enum's number, which takes so many bytes; number 0 is a value that was refused."""
    names = (b"", *texts)

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        return names[int.from_bytes(data[at:end], "little")], end

    return read


def set_reader(size: int, texts: Sequence[bytes]) -> Reader:
    """Return the reader of a set's members, a bit each."""

    def members(bits: int) -> bytes:
        if bits >> len(texts):
            raise ValueError("a set with a member that it does not have")
        return b",".join(text for place, text in enumerate(texts) if bits >> place & 1)

    names = _Texts(members)

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        return names[int.from_bytes(data[at:end], "little")], end

    return read


def uuid_text(value: bytes) -> bytes:
    """Return a UUID's text."""
    digits = value.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}".encode()


def inet4_text(value: bytes) -> bytes:
    """Return the text of an address of IPv4."""
    return str(IPv4Address(value)).encode()


def inet6_text(value: bytes) -> bytes:
    """Return the text of an address of IPv6, as MariaDB writes it.

    The first of the longest runs of zeros is left out, even if it is one zero.

    >>> inet6_text(bytes.fromhex("20010000000100020003000400050006"))
    b'2001::1:2:3:4:5:6'
    """
    words = struct.unpack(">8H", value)
    runs = [(stop - start, -start) for start in range(8) for stop in range(start + 1, 9) if not any(words[start:stop])]
    length, start = max(runs, default=(0, 0))
    start = -start
    if start == 0 and (length == 6 or (length == 5 and words[5] == _MAPPED)):
        return (b"::ffff:" if length == 5 else b"::") + inet4_text(value[12:])
    texts = [f"{word:x}" for word in words]
    if not length:
        return ":".join(texts).encode()
    return f"{':'.join(texts[:start])}::{':'.join(texts[start + length :])}".encode()
