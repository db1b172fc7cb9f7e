"""The wire protocol, sans I/O: frames, messages, state and the connection that ties them together."""

from __future__ import annotations

from jobpipe.wire.connection import ENDED, NEED_DATA, Connection
from jobpipe.wire.frames import CHUNK, DATA_LIMIT, VERSION, Kind
from jobpipe.wire.protocol_state import Phase, Side
from jobpipe.wire.wire_messages import (
    Data,
    DataHeader,
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

__all__ = [
    "CHUNK",
    "DATA_LIMIT",
    "ENDED",
    "NEED_DATA",
    "VERSION",
    "Connection",
    "Data",
    "DataHeader",
    "Fault",
    "Goodbye",
    "Hello",
    "Kind",
    "Message",
    "Part",
    "Phase",
    "Ping",
    "Pong",
    "Reply",
    "Request",
    "Side",
    "Welcome",
]
