"""Seeds and mutations for the targets; one number draws the same inputs again."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator

import pyarrow as pa

from jobpipe.store.spool.segment_index import SegmentIndex, SegmentInfo
from jobpipe.wire import Kind, Message, Side
from jobpipe.wire.codec import encode
from jobpipe.wire.frames import HEADER, crc_of, encode_header
from tests.registry.worlds import owner
from tests.registry.worlds import record as registration
from tests.wire.kit import conversation, talk

EDGES = (b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80", b"{", b"}", b'"', b"[", b"-1", b"1e400")
VALUES = (None, True, -1, 0, 2**53, 2**63, 2**64, 1e308, "", "x" * 300, "../..", "\0", "\ud800", [], {}, [[[[]]]])


def seeds(target: str) -> list[bytes]:
    """Return valid inputs of a target."""
    client, server = conversation()
    match target:
        case "frames":
            said = {Side.CLIENT: talk(Side.CLIENT, client, server), Side.SERVER: talk(Side.SERVER, server, client)}
            return [
                bytes([how]) + said[Side.CLIENT if how & 1 else Side.SERVER] for how in (0, 1, 2, 5, 8, 9, 14, 16, 17)
            ]
        case "message":
            return [_payload(each) for each in (*client, *server) if each.kind is not Kind.DATA]
        case "index":
            return [
                SegmentIndex(8, ((1, 8),), (1, 2)).pack(),
                SegmentIndex(300_000, ((5, 600_000), (7, 1), (0, 262_144)), tuple(range(7))).pack(),
            ]
        case "described":
            part = {"n": 7, "partition": 3, "row0": 0, "rows": 8, "record_batches": 2, "length": 5}
            info = SegmentInfo(0, 1, 16, "f", 0, SegmentIndex(8, ((1, 8),), (1, 2)).pack())
            return [json.dumps(part).encode(), json.dumps(info.to_json()).encode()]
        case "record":
            return [registration().to_bytes(), owner().to_bytes(), b"17"]
        case _:
            return [bytes(64) + each for each in _metadata()]


def _payload(message: Message) -> bytes:
    return bytes([message.kind]) + b"".join(encode(message))


def _metadata() -> Iterator[bytes]:
    batch = pa.record_batch({"a": [1, 2, None], "b": ["x", None, "y"], "c": [[1], [], None]})
    for codec in (None, "zstd"):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=codec)  # type: ignore[arg-type]
        with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
            stream.write_batch(batch)
        reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue()))
        reader.read_next_message()
        yield reader.read_next_message().metadata.to_pybytes()


class Mutator:
    """Draws inputs of one target without end.

    Of frames, most keep a right length and checksum, so that what lies behind these is reached.
    """

    def __init__(self, target: str, seed: int, corpus: list[bytes] | None = None) -> None:
        self._target = target
        self._random = random.Random(seed)
        self._seeds = seeds(target) + (corpus or [])

    def draw(self) -> bytes:
        """Return the next input."""
        pick = self._random
        data = pick.choice(self._seeds)
        if self._target == "frames" and pick.random() < 0.7:
            return self._frames(data)
        if data[:1] == b"{" and pick.random() < 0.7:
            return self._json(data)
        return self._bytes(data)

    def _bytes(self, data: bytes) -> bytes:
        pick, copy = self._random, bytearray(data)
        for _ in range(pick.choice((1, 1, 1, 2, 4, 8))):
            at = pick.randrange(len(copy) + 1)
            match pick.randrange(6):
                case 0:
                    copy[at : at + 1] = bytes([pick.randrange(256)])
                case 1:
                    copy[at:at] = pick.choice(EDGES)
                case 2:
                    del copy[at : at + pick.randrange(1, 9)]
                case 3:
                    copy[at : at + 4] = struct.pack(
                        pick.choice("<>") + "I", pick.choice((0, 1, 2**31, 2**32 - 1, 65536))
                    )
                case 4:
                    copy[at:at] = copy[at : at + pick.randrange(1, 40)]
                case _:
                    copy[at : at + 8] = struct.pack(pick.choice("<>") + "q", pick.choice((-1, -(2**63), 2**62, 2**40)))
        return bytes(copy[: pick.randrange(len(copy) + 1)]) if pick.random() < 0.1 else bytes(copy)

    def _json(self, text: bytes) -> bytes:
        pick = self._random
        try:
            value = json.loads(text)
        except ValueError:
            return self._bytes(text)
        if isinstance(value, dict) and value:
            key = pick.choice(sorted(value))
            match pick.randrange(4):
                case 0:
                    value[key] = pick.choice(VALUES)
                case 1:
                    del value[key]
                case 2:
                    value[pick.choice(sorted(value))] = value[key]
                case _ if isinstance(value[key], str):
                    value[key] = self._bytes(value[key].encode("utf-8", "replace")).decode("utf-8", "replace")
                case _:
                    value[key] = (
                        pick.choice((-1, 1, 1000)) * value[key] if isinstance(value[key], int) else [value[key]]
                    )
        return json.dumps(value).encode()

    def _frames(self, data: bytes) -> bytes:
        pick = self._random
        parts = list(_split(data[1:]))
        for _ in range(pick.choice((1, 1, 2, 3))):
            if not parts:
                break
            at = pick.randrange(len(parts))
            kind, number, payload = parts[at]
            match pick.randrange(7):
                case 0:
                    parts.insert(pick.randrange(len(parts) + 1), parts[at])
                case 1:
                    parts.pop(at)
                case 2:
                    other = pick.randrange(len(parts))
                    parts[at], parts[other] = parts[other], parts[at]
                case 3:
                    parts[at] = pick.choice(list(Kind)), number, payload
                case 4:
                    parts[at] = kind, pick.randrange(65536), payload
                case 5 if kind is not Kind.DATA and len(payload) > 4:
                    (length,) = struct.unpack_from("!I", payload)
                    body = self._json(payload[4 : 4 + length])
                    parts[at] = kind, number, struct.pack("!I", len(body)) + body + payload[4 + length :]
                case _:
                    parts[at] = kind, number, self._bytes(payload) if payload else b"x"
        joined = b"".join(_frame(*part) for part in parts)
        return bytes([pick.choice((data[0], data[0], pick.randrange(32)))]) + joined


def _split(data: bytes) -> Iterator[tuple[Kind, int, bytes]]:
    at = 0
    while at + HEADER.size <= len(data):
        _, _, kind, number, length, _ = HEADER.unpack_from(data, at)
        at += HEADER.size
        if 1 <= kind <= len(Kind):
            yield Kind(kind), number, data[at : at + length]
        at += length


def _frame(kind: Kind, number: int, payload: bytes) -> bytes:
    return encode_header(kind, len(payload), crc_of(kind, payload), number) + payload
