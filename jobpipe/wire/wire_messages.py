"""The messages of protocol version 1.

How they become bytes is in :mod:`jobpipe.wire.codec`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from jobpipe.errors import JobpipeError, RemoteProtocolError, from_fault
from jobpipe.wire.frames import VERSION, Kind

ROLES = ("publisher", "subscriber", "reader", "admin", "appender")
"""publisher: driver or task of the job; subscriber: control link with a name; reader: data or one-off question;
appender: publishes next to the job, through its coordinator, such as a redrive."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's first message: who it is and what it wants.

    ``heartbeat``: it answers PING at any time. ``proof``: what shows that a publisher is the job's own: the job's
    secret, or of a flow's task the flow's token, with the flow's name as ``name``; "" for none.
    """

    kind: ClassVar[Kind] = Kind.HELLO
    topic: str
    role: str
    name: str | None = None
    instance: str = ""
    epoch: int = 0
    log: str | None = None
    versions: tuple[int, int] = (VERSION, VERSION)
    heartbeat: bool = False
    proof: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server's answer to HELLO; before it, nothing is believed."""

    kind: ClassVar[Kind] = Kind.WELCOME
    topic: str
    log: str
    epoch: int
    instance: str
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Request:
    """A question. Exactly one REPLY or FAULT with the same id answers it.

    ``upload`` is the number of bytes that follow it as DATA frames; 0 for none. ``weight`` is about how many bytes a
    received one takes in memory; it does not travel.
    """

    kind: ClassVar[Kind] = Kind.REQUEST
    id: int
    op: str
    args: dict[str, Any] = field(default_factory=dict)
    blob: bytes = b""
    upload: int = 0
    weight: int = field(default=0, compare=False)


class SharedJson(dict[str, Any]):
    """A JSON object that many messages carry: it is encoded once, and must not change any more.

    Attributes:
        text: how it is encoded; :func:`jobpipe.wire.codec.share` makes it.
    """

    text: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the request ``id``, and the end of its stream if it had one."""

    kind: ClassVar[Kind] = Kind.REPLY
    id: int
    result: dict[str, Any] = field(default_factory=dict)
    blob: bytes = b""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the stream that answers request ``id``; the DATA frames up to the next PART or the answer are its."""

    kind: ClassVar[Kind] = Kind.PART
    id: int
    header: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Data:
    """Raw bytes of a stream: 1 byte to 1 MiB."""

    kind: ClassVar[Kind] = Kind.DATA
    payload: bytes


@dataclass(frozen=True, slots=True)
class DataHeader:
    """A DATA frame whose payload the skin itself sends or receives right after this header."""

    kind: ClassVar[Kind] = Kind.DATA
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class Fault:
    """An error: of the request ``id``, or, without one, of the link, which then ends."""

    kind: ClassVar[Kind] = Kind.FAULT
    id: int | None
    code: str
    message: str
    fields: dict[str, Any] = field(default_factory=dict)

    def error(self) -> JobpipeError:
        """Return the error it stands for."""
        return from_fault(self.code, self.message, self.fields)


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a PONG with the same nonce."""

    kind: ClassVar[Kind] = Kind.PING
    nonce: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to PING."""

    kind: ClassVar[Kind] = Kind.PONG
    nonce: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The last message of its sender; the link ends without an error."""

    kind: ClassVar[Kind] = Kind.GOODBYE
    reason: str = ""


Message: TypeAlias = Hello | Welcome | Request | Reply | Part | Data | Fault | Ping | Pong | Goodbye


def choose_version(versions: tuple[int, int]) -> int:
    """Return the highest version of the range that we speak.

    Raises:
        RemoteProtocolError: we speak none of them.
    """
    low, high = versions
    if not low <= VERSION <= high:
        raise RemoteProtocolError(
            f"the peer speaks protocol versions {low} to {high}, we speak {VERSION}", versions=[low, high], ours=VERSION
        )
    return VERSION
