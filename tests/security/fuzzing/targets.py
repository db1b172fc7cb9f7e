"""What is fuzzed: each target takes any bytes and raises nothing, or what it found.

A target turns bytes into calls of the parser under test; the documented errors are caught here, and nothing else is.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict

import pyarrow as pa

from jobpipe.arrow.ipc_validation import declared_size
from jobpipe.errors import LinkBroken, RemoteProtocolError, SegmentCorrupt
from jobpipe.net.address import Endpoint
from jobpipe.operations.data_operations import PartHeader
from jobpipe.store.spool.segment_index import SegmentIndex, SegmentInfo
from jobpipe.wire import ENDED, NEED_DATA, Connection, DataHeader, Hello, Kind, Request, Side, Welcome
from jobpipe.wire.codec import decode
from jobpipe.wire.frames import CONTROL_LIMIT, HEADER
from jobpipe.wire.wire_messages import Reply
from jobpipe_registry.registry_errors import BadRecord
from jobpipe_registry.topic_records import MAX_RECORD_BYTES, OwnerRecord, RegisterRecord, parse_epoch
from tests.wire.kit import HELLO, WELCOME

CHUNKS = (7, 64, 1 << 20, 1, 1000, 300, 5000, 1 << 20)


def frames(data: bytes) -> None:
    """A connection: the first byte says which side we are, and in what pieces the others come."""
    how, said = (data[0], data[1:]) if data else (0, b"")
    if how & 1:
        connection = Connection(Side.SERVER)
    else:
        connection = Connection(Side.CLIENT, split_data=bool(how & 2))
        connection.send(HELLO)
        connection.state.apply(Side.SERVER, WELCOME)
        for number in range(1, 5):
            connection.send(Request(number, "read", {}))
        connection.data_to_send()
    size = CHUNKS[(how >> 2) % len(CHUNKS)]
    at = 0
    with contextlib.suppress(RemoteProtocolError, LinkBroken):
        while at < len(said):
            take = min(size, connection.bytes_wanted) if how & 2 and not how & 1 else size
            connection.receive_data(said[at : at + max(take, 0)])
            at += max(take, 0)
            at = _events(connection, said, at)
            assert len(connection._buffer) <= CONTROL_LIMIT + HEADER.size + size
            if connection.next_event() is ENDED:
                return
        connection.receive_eof()
        _events(connection, said, at)


def _events(connection: Connection, said: bytes, at: int) -> int:
    """Take all events; answer as a server does; skip the payload that a blocking skin reads by itself."""
    while (event := connection.next_event()) is not NEED_DATA and event is not ENDED:
        if isinstance(event, Hello):
            connection.send(Welcome(event.topic[:100], "log-1", 3, "i-2"))
        elif isinstance(event, Request) and not event.upload:
            connection.send(Reply(event.id, {}))
        elif isinstance(event, DataHeader):
            at += event.length
        connection.data_to_send()
    return at


def message(data: bytes) -> None:
    """A payload whose CRC is right; the first byte is its kind."""
    if data and 1 <= data[0] <= len(Kind):
        with contextlib.suppress(RemoteProtocolError):
            decode(Kind(data[0]), data[1:])


def index(data: bytes) -> None:
    """A segment's index as it lies in the catalog, or comes from a task: refused, or whole and the same again."""
    with contextlib.suppress(SegmentCorrupt):
        found = SegmentIndex.unpack(data)
        assert found.pack() == data
        if len(found.crcs) < 10_000:
            chunks = found.chunks(0, len(found.batches))
            assert sum(chunk.length for chunk in chunks) == found.length
            assert len(chunks) == len(found.crcs)


def described(data: bytes) -> None:
    """A task's description of a segment, and a part's header: JSON of any shape."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    with contextlib.suppress(RemoteProtocolError):
        info = SegmentInfo.from_json(value, None)
        assert SegmentInfo.from_json(info.to_json()) == info
    if isinstance(value, dict):
        with contextlib.suppress(RemoteProtocolError):
            PartHeader.from_json(value)


def record(data: bytes) -> None:
    """A node of the registry: refused, or a record whose endpoints can be dialled."""
    for kind in (RegisterRecord, OwnerRecord):
        with contextlib.suppress(BadRecord):
            found = kind.from_bytes(data)
            assert len(data) <= MAX_RECORD_BYTES
            assert kind(**asdict(found)) == found
            for endpoint in (getattr(found, name, None) for name in ("coordinator", "data", "endpoint")):
                assert endpoint is None or Endpoint.parse(endpoint)
    with contextlib.suppress(BadRecord):
        assert 0 <= parse_epoch(data) < 2**63


def metadata(data: bytes) -> None:
    """A record batch's metadata, and a body of 64 bytes."""
    with contextlib.suppress(pa.ArrowInvalid):
        assert declared_size(memoryview(data[64:]), memoryview(data[:64])) >= 0


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (frames, message, index, described, record, metadata)
}
