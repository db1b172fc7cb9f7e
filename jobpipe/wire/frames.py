"""Frame headers of protocol version 1: layout, kinds and limits.

A frame is a header of 16 bytes, big endian, and a payload::

    0       4         5      6       8        12       16
    | magic | version | kind | flags | length | crc-32 | payload ...
    | JPIP  | 1       | u8   | u16   | u32    | u32    |

The flags of DATA are the number of the frame in its stream, from 0, modulo 2^16: a frame that comes twice, late or not
at all shows, also without TLS. All other kinds have flags 0.
The CRC of DATA covers the payload alone, since the spool keeps it ready; that of the other kinds covers the kind's
byte, then the payload: a damaged kind must not turn an answer into data. The number is known to the receiver before
the frame comes. So every damaged byte shows.
A length is judged as soon as the header is there, so that a peer cannot make us reserve memory.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from jobpipe.errors import FrameTooLarge, RemoteProtocolError

MAGIC = b"JPIP"
VERSION = 1
HEADER = struct.Struct("!4sBBHII")

GREETING_LIMIT = 4 * 1024
"""Largest payload before WELCOME, in bytes: HELLO needs about 300 (NATS allows 4096 for its control line)."""

CONTROL_LIMIT = 16 * 1024 * 1024
"""Largest control payload after WELCOME: a plan of a thousand batches, or a SEAL with its inline segments, fits."""

ASKING_LIMIT = 1024 * 1024
"""Largest REQUEST of a peer that has not shown to be of the job: the largest one lists the chunks of a segment."""

SIGNAL_LIMIT = 16 * 1024
"""Largest PING, PONG and GOODBYE, and largest payload of a client that is neither REQUEST nor DATA: all say little."""

DATA_LIMIT = 1024 * 1024
"""Largest DATA payload: bounds what one frame holds up on the link, and a receiver's memory."""

NUMBERS = 2**16
"""DATA frames are numbered modulo this: a network does not repeat what lies 16 GiB of chunks back on the same link."""

CHUNK = 256 * 1024
"""The DATA payload to send: smaller costs throughput, larger costs the other requests of the loop latency."""


class Kind(IntEnum):
    """What a frame holds."""

    HELLO = 1
    WELCOME = 2
    REQUEST = 3
    REPLY = 4
    PART = 5
    DATA = 6
    FAULT = 7
    PING = 8
    PONG = 9
    GOODBYE = 10


_KINDS = {int(kind): kind for kind in Kind}
_SIGNALS = frozenset({Kind.PING, Kind.PONG, Kind.GOODBYE})


@dataclass(frozen=True, slots=True)
class Header:
    """A decoded header: the payload of ``length`` bytes follows, and must have this CRC-32."""

    kind: Kind
    length: int
    crc: int
    number: int = 0  # of a DATA frame in its stream, modulo NUMBERS


def limit_of(kind: Kind, *, greeted: bool, request: int | None = None) -> int:
    """Return the largest payload of that kind, in bytes; ``greeted`` says that WELCOME has passed.

    Args:
        request: the largest payload of a REQUEST that this peer may send, if that is another one.
    """
    if not greeted:
        return GREETING_LIMIT
    if kind in _SIGNALS:
        return SIGNAL_LIMIT
    if kind is Kind.REQUEST and request is not None:
        return request
    return DATA_LIMIT if kind is Kind.DATA else CONTROL_LIMIT


_SEEDS = {kind: 0 if kind is Kind.DATA else zlib.crc32(bytes([kind])) for kind in Kind}


def crc_of(kind: Kind, payload: bytes | memoryview, more: bytes = b"") -> int:
    """Return the CRC-32 that goes into the header of a frame with ``payload`` and ``more``."""
    crc = zlib.crc32(payload, _SEEDS[kind])
    return zlib.crc32(more, crc) if more else crc


def encode_header(kind: Kind, length: int, crc: int, number: int = 0) -> bytes:
    """Return the 16 bytes that go before a payload; ``number`` is that of a DATA frame in its stream."""
    return HEADER.pack(MAGIC, VERSION, kind, number, length, crc)


def decode_header(data: bytes | bytearray | memoryview, *, greeted: bool, request: int | None = None) -> Header:
    """Decode the first 16 bytes of ``data``.

    Raises:
        FrameTooLarge: the announced payload exceeds the limit of its kind.
        RemoteProtocolError: wrong magic, version, kind or flags.
    """
    magic, version, code, number, length, crc = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise RemoteProtocolError(f"not a jobpipe frame: it begins with {magic.hex()}", magic=magic.hex())
    if version != VERSION:
        raise RemoteProtocolError(f"frame of protocol version {version}, we speak {VERSION}", version=version)
    kind = _KINDS.get(code)
    if kind is None:
        raise RemoteProtocolError(f"unknown frame kind {code}", kind=code)
    if number and kind is not Kind.DATA:
        raise RemoteProtocolError(f"{kind.name} frame with unknown flags {number:#06x}", kind=kind.name, flags=number)
    limit = limit_of(kind, greeted=greeted, request=request)
    if length > limit:
        raise FrameTooLarge(
            f"{kind.name} frame of {length} bytes exceeds the limit of {limit}",
            kind=kind.name,
            size=length,
            limit=limit,
        )
    return Header(kind, length, crc, number)
