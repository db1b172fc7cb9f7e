"""Headers: layout, and what is refused from them alone."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpipe.errors import FrameTooLarge, RemoteProtocolError
from jobpipe.wire.frames import (
    CONTROL_LIMIT,
    DATA_LIMIT,
    GREETING_LIMIT,
    HEADER,
    NUMBERS,
    SIGNAL_LIMIT,
    Header,
    Kind,
    decode_header,
    encode_header,
    limit_of,
)


@given(kind=st.sampled_from(Kind), length=st.integers(0, GREETING_LIMIT), crc=st.integers(0, 2**32 - 1))
def test_a_header_decodes_to_what_was_encoded(kind: Kind, length: int, crc: int) -> None:
    """Encode and decode are inverse."""
    data = encode_header(kind, length, crc)
    assert len(data) == HEADER.size == 16
    assert decode_header(data, greeted=False) == Header(kind, length, crc)


@given(number=st.integers(0, NUMBERS - 1))
def test_data_alone_bears_a_number(number: int) -> None:
    """Case 17: it is there when the header is; in all other frames it is an unknown flag."""
    assert decode_header(encode_header(Kind.DATA, 1, 0, number), greeted=True).number == number
    for kind in set(Kind) - {Kind.DATA}:
        data = encode_header(kind, 1, 0, number)
        if number:
            with pytest.raises(RemoteProtocolError):
                decode_header(data, greeted=True)
        else:
            assert decode_header(data, greeted=True) == Header(kind, 1, 0)


def test_the_layout_is_the_documented_one() -> None:
    """Written out by hand, not by the code under test."""
    assert encode_header(Kind.DATA, 1, 2, 0x1234) == b"JPIP\x01\x06\x12\x34\x00\x00\x00\x01\x00\x00\x00\x02"
    assert encode_header(Kind.DATA, 258, 0xDEADBEEF) == b"JPIP\x01\x06\x00\x00\x00\x00\x01\x02\xde\xad\xbe\xef"


@pytest.mark.parametrize(
    ("kind", "greeted", "limit"),
    [
        (Kind.HELLO, False, GREETING_LIMIT),
        (Kind.REQUEST, False, GREETING_LIMIT),
        (Kind.DATA, False, GREETING_LIMIT),
        (Kind.REQUEST, True, CONTROL_LIMIT),
        (Kind.REPLY, True, CONTROL_LIMIT),
        (Kind.FAULT, True, CONTROL_LIMIT),
        (Kind.PING, True, SIGNAL_LIMIT),
        (Kind.PONG, True, SIGNAL_LIMIT),
        (Kind.GOODBYE, True, SIGNAL_LIMIT),
        (Kind.DATA, True, DATA_LIMIT),
    ],
)
def test_a_frame_above_its_limit_is_refused_from_the_header(kind: Kind, greeted: bool, limit: int) -> None:
    """Case 63: not a byte of the payload is needed."""
    assert limit_of(kind, greeted=greeted) == limit
    assert decode_header(encode_header(kind, limit, 0), greeted=greeted).length == limit
    with pytest.raises(FrameTooLarge) as caught:
        decode_header(encode_header(kind, limit + 1, 0), greeted=greeted)
    assert caught.value.fields == {"kind": kind.name, "size": limit + 1, "limit": limit}
    with pytest.raises(FrameTooLarge):
        decode_header(encode_header(kind, 2**32 - 1, 0), greeted=greeted)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!4sBBHII", b"HTTP", 1, 1, 0, 0, 0),
        struct.pack("!4sBBHII", b"JPIP", 2, 1, 0, 0, 0),
        struct.pack("!4sBBHII", b"JPIP", 1, 0, 0, 0, 0),
        struct.pack("!4sBBHII", b"JPIP", 1, 11, 0, 0, 0),
        struct.pack("!4sBBHII", b"JPIP", 1, 1, 1, 0, 0),
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 16,
    ],
    ids=["magic", "version", "kind 0", "kind 11", "flags", "http", "tls hello"],
)
def test_a_foreign_header_is_refused(data: bytes) -> None:
    """Case 63: garbage, HTTP and TLS on a plain port."""
    with pytest.raises(RemoteProtocolError):
        decode_header(data, greeted=True)


@given(st.binary(min_size=16, max_size=32))
def test_garbage_raises_only_remote_protocol_errors(data: bytes) -> None:
    """Whatever the 16 bytes are."""
    try:
        header = decode_header(data, greeted=True)
    except RemoteProtocolError:
        return
    assert header.length <= CONTROL_LIMIT
