"""Protocol version 1, byte for byte: a change here breaks peers that are not upgraded at the same moment.

The files of ``golden`` are whole frames. To add one, write it by hand or from a version that is already in use.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from jobpipe.errors import LocalProtocolError
from jobpipe.wire import (
    Data,
    Fault,
    Goodbye,
    Hello,
    Message,
    Part,
    Ping,
    Pong,
    Reply,
    Request,
    Welcome,
)
from jobpipe.wire.codec import decode, encode, share
from jobpipe.wire.frames import HEADER, crc_of, decode_header, encode_header

GOLDEN = Path(__file__).parent / "golden"

MESSAGES: dict[str, Message] = {
    "hello": Hello("orders", "subscriber", "billing", "i-7f", 4, "log-1", (1, 1), True),
    "hello_proof": Hello("orders", "publisher", "p", "i-7f", proof="ab" * 32),
    "welcome": Welcome("orders", "log-1", 4, "i-2a"),
    "request": Request(1, "plan", {"start": {"n": 3, "r": 0}, "max_rows": None}, b"\x00\x01blob"),
    "upload": Request(2, "put", {"file": "a.seg"}, b"", 70000),
    "reply": Reply(1, {"end": 9, "text": "größer"}, b"tail"),
    "part": Part(3, {"n": 5, "rows": 65536}),
    "data": Data(bytes(range(256))),
    "fault": Fault(3, "DataLoss", "rows are gone", {"earliest": 7, "topic": "orders"}),
    "link_fault": Fault(None, "Fenced", "a newer publisher has taken over", {}),
    "ping": Ping(12),
    "pong": Pong(12),
    "goodbye": Goodbye("the server closes"),
}


def frame(message: Message) -> bytes:
    payload = message.payload if isinstance(message, Data) else b"".join(encode(message))
    return encode_header(message.kind, len(payload), crc_of(message.kind, payload)) + payload


@pytest.mark.parametrize("name", MESSAGES)
def test_the_bytes_of_version_1_do_not_change(name: str) -> None:
    """We send them, and we understand them."""
    golden = (GOLDEN / f"{name}.bin").read_bytes()
    assert frame(MESSAGES[name]) == golden
    header = decode_header(golden, greeted=True)
    assert crc_of(header.kind, golden[HEADER.size :]) == header.crc
    assert decode(header.kind, golden[HEADER.size :]) == MESSAGES[name]


def test_there_is_one_golden_file_for_each() -> None:
    """None is forgotten."""
    assert {path.stem for path in GOLDEN.glob("*.bin")} == set(MESSAGES)


def test_a_frame_written_out_by_hand() -> None:
    """So that the golden files and the code cannot be wrong together."""
    assert (GOLDEN / "ping.bin").read_bytes() == (
        b"JPIP\x01\x08\x00\x00\x00\x00\x00\x10" + zlib.crc32(b'\x08\0\0\0\x0c{"nonce":12}').to_bytes(4, "big")
    ) + b'\0\0\0\x0c{"nonce":12}'


def test_a_result_that_many_share_has_the_same_bytes() -> None:
    """Also in the order of its keys, and with text that is escaped."""
    reply = MESSAGES["reply"]
    assert isinstance(reply, Reply)
    shared = share({name: reply.result[name] for name in sorted(reply.result, reverse=True)})
    assert shared == reply.result
    for number in (reply.id, 2**53 - 1):
        message = Reply(number, dict(reply.result), reply.blob)
        assert frame(Reply(number, shared, reply.blob)) == frame(message)
    assert frame(Reply(reply.id, shared, reply.blob)) == (GOLDEN / "reply.bin").read_bytes()


def test_what_is_no_json_is_not_shared() -> None:
    with pytest.raises(LocalProtocolError):
        share({"x": float("nan")})
