"""One link without its I/O: bytes in, messages out, and the reverse.

A skin pumps it: what the socket gives goes to :meth:`Connection.receive_data`, then :meth:`Connection.next_event` is
called until it says NEED_DATA; after :meth:`Connection.send` the skin writes :meth:`Connection.data_to_send`.
There is no clock, no thread and no socket in here; deadlines are the skin's business.
"""

from __future__ import annotations

from enum import Enum

from jobpipe.errors import (
    ChecksumMismatch,
    FrameTooLarge,
    JobpipeError,
    LinkBroken,
    LocalProtocolError,
    RemoteProtocolError,
)
from jobpipe.wire.codec import blob_bytes, decode, encode, weight_of
from jobpipe.wire.frames import (
    CONTROL_LIMIT,
    DATA_LIMIT,
    HEADER,
    SIGNAL_LIMIT,
    Header,
    Kind,
    crc_of,
    decode_header,
    encode_header,
    limit_of,
)
from jobpipe.wire.protocol_state import IllegalStepError, Phase, ProtocolState, Side
from jobpipe.wire.wire_messages import Data, DataHeader, Message

JOINED = 16 * 1024  # bytes of a blob that are copied: each buffer is a TLS record of its own
WEIGHT = 8  # what a request may take in memory, for each byte that its payload may have: a thousand segments take six


class Pause(Enum):
    """Why :meth:`Connection.next_event` has no message."""

    NEED_DATA = "need data"
    ENDED = "ended"


NEED_DATA = Pause.NEED_DATA
ENDED = Pause.ENDED


class Connection:
    """The protocol of one link, seen from one side.

    Args:
        side: Which side we are.
        split_data: The skin receives DATA payloads itself: :meth:`next_event` gives a ``DataHeader``, and the skin
            must take exactly ``length`` bytes from its socket and check their CRC before it goes on. It must then
            never hand in more than :attr:`bytes_wanted` bytes.
    """

    def __init__(self, side: Side, *, split_data: bool = False) -> None:
        self.side = side
        self.state = ProtocolState()
        self.request_limit = CONTROL_LIMIT  # bytes of a REQUEST that the peer may send
        self.blob_limit = 0  # bytes by which its blob may exceed that
        self._split_data = split_data
        self._buffer = bytearray()
        self._header: Header | None = None
        self._eof = False
        self._error: JobpipeError | None = None
        self._out: list[bytes] = []

    @property
    def phase(self) -> Phase:
        """How far the link is."""
        return self.state.phase

    # ------------------------------------------------------------------------------------------------------ sending

    def send(self, message: Message, encoded: tuple[bytes, bytes] | None = None) -> None:
        """Queue a message for :meth:`data_to_send`; ``encoded`` are its bytes, if they were made before.

        Raises:
            LocalProtocolError: it is illegal now, too large or not JSON; nothing has changed.
        """
        if isinstance(message, Data):
            self.send_data_header(len(message.payload), crc_of(Kind.DATA, message.payload))
            self._out.append(message.payload)
            return
        greeted = self.state.greeted  # the limit of WELCOME itself is the small one
        head, blob = encode(message) if encoded is None else encoded
        limit = limit_of(message.kind, greeted=greeted)
        length = len(head) + len(blob)
        if length > limit:
            raise LocalProtocolError(
                f"{message.kind.name} of {length} bytes exceeds the limit of {limit}",
                kind=message.kind.name,
                size=length,
                limit=limit,
            )
        self._step(message)
        crc = crc_of(message.kind, head, blob)
        if len(blob) <= JOINED:
            self._out.append(encode_header(message.kind, length, crc) + head + blob)
        else:
            self._out += encode_header(message.kind, length, crc) + head, blob

    def send_data_header(self, length: int, crc: int) -> None:
        """Queue the header of a DATA frame; the skin writes exactly ``length`` bytes right after it.

        Raises:
            LocalProtocolError: DATA is illegal now, or of an illegal size; nothing has changed.
        """
        if not 0 < length <= DATA_LIMIT:
            raise LocalProtocolError(f"DATA of {length} bytes, 1 to {DATA_LIMIT} are allowed", size=length)
        number = self.state.numbers[self.side]
        self._step(DataHeader(length, crc))
        self._out.append(encode_header(Kind.DATA, length, crc, number))

    def data_to_send(self) -> list[bytes]:
        """Return, once, the buffers to write, in order. Large blobs are not joined to the rest: they are not copied."""
        out, self._out = self._out, []
        return out

    def _step(self, message: Message | DataHeader) -> None:
        try:
            self.state.apply(self.side, message)
        except IllegalStepError as error:
            raise LocalProtocolError(f"must not send {error}", kind=message.kind.name) from None

    # ---------------------------------------------------------------------------------------------------- receiving

    @property
    def bytes_wanted(self) -> int:
        """How many bytes complete the header or payload at hand; what a skin that must not read ahead asks for."""
        whole = HEADER.size if self._header is None else self._header.length
        return max(0, whole - len(self._buffer))

    @property
    def mid_frame(self) -> bool:
        """A part of a frame has come, the rest has not."""
        return self._header is not None or bool(self._buffer)

    @property
    def unread(self) -> int:
        """How many bytes have come of which no message was made yet."""
        return len(self._buffer) + (0 if self._header is None else HEADER.size)

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes from the peer. Those that come after the end of the link are dropped."""
        if self._split_data and len(data) > self.bytes_wanted:
            raise LocalProtocolError(f"{len(data)} bytes handed in, {self.bytes_wanted} were wanted")
        if self.phase is not Phase.CLOSED and self._error is None:
            self._buffer += data

    def receive_eof(self) -> None:
        """Note that the peer will send nothing more."""
        self._eof = True

    def next_event(self) -> Message | DataHeader | Pause:
        """Return the next message of the peer, NEED_DATA, or ENDED after GOODBYE or a link fault.

        Raises:
            RemoteProtocolError: the peer broke the protocol; each later call raises it again.
            LinkBroken: the bytes ended without GOODBYE.
        """
        if self._error is not None:
            raise self._error
        if self.phase is Phase.CLOSED:
            self._buffer.clear()
            return ENDED
        try:
            event = self._take()
        except (RemoteProtocolError, LinkBroken) as error:
            self._error = error
            self._buffer.clear()
            raise
        return event

    def _take(self) -> Message | DataHeader | Pause:
        if self._header is None:
            if len(self._buffer) < HEADER.size:
                return self._starved()
            limit = self.request_limit + self.blob_limit
            self._header = decode_header(self._buffer, greeted=self.state.greeted, request=limit)
            del self._buffer[: HEADER.size]
            self._check_client(self._header)
        header = self._header
        if header.kind is Kind.DATA:
            if not header.length:
                raise RemoteProtocolError("DATA frame without a byte", kind="DATA")
            if self._split_data:
                self._header = None
                event = DataHeader(header.length, header.crc)
                self._accept(event, header)
                return event
        if len(self._buffer) < header.length:
            return self._starved()
        with memoryview(self._buffer) as view:  # one copy, not two
            payload = bytes(view[: header.length])
        del self._buffer[: header.length]
        self._header = None
        crc = crc_of(header.kind, payload)
        if crc != header.crc:
            raise ChecksumMismatch(
                f"{header.kind.name} payload has CRC {crc:#010x}, its header says {header.crc:#010x}",
                kind=header.kind.name,
                expected=header.crc,
                actual=crc,
            )
        weight = weight_of(payload) if header.kind is Kind.REQUEST else 0
        if weight:
            self._check_request(payload, weight)
        message = decode(header.kind, payload, weight)
        self._accept(message, header)
        return message

    def _check_request(self, payload: bytes, weight: int) -> None:
        """Refuse a request whose JSON is large, or would be in memory; all of it that is no blob counts."""
        blob = min(blob_bytes(payload), self.blob_limit)
        for size, limit in ((len(payload) - blob, self.request_limit), (weight - blob, WEIGHT * self.request_limit)):
            if size > limit:
                raise FrameTooLarge(
                    f"REQUEST of {len(payload)} bytes would take {weight} in memory: {size} count, at most {limit}",
                    kind=Kind.REQUEST.name,
                    size=size,
                    limit=limit,
                )

    def _check_client(self, header: Header) -> None:
        """Refuse what only a server may have much to say in, before it is decoded: a FAULT, a REPLY, a PART."""
        if self.side is Side.CLIENT or header.kind in (Kind.REQUEST, Kind.DATA):
            return
        if header.length > SIGNAL_LIMIT:
            raise FrameTooLarge(
                f"{header.kind.name} frame of {header.length} bytes exceeds the limit of {SIGNAL_LIMIT} for a client",
                kind=header.kind.name,
                size=header.length,
                limit=SIGNAL_LIMIT,
            )

    def _accept(self, message: Message | DataHeader, header: Header) -> None:
        try:
            self.state.apply(self.side.peer, message, header.number)
        except IllegalStepError as error:
            raise RemoteProtocolError(f"the peer sent {error}", kind=message.kind.name) from None

    def _starved(self) -> Pause:
        if self._eof:
            where = "in the middle of a frame" if self.mid_frame else "without goodbye"
            raise LinkBroken(f"the peer ended the link {where}", mid_frame=self.mid_frame, phase=self.phase.value)
        return NEED_DATA
