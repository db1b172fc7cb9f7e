"""What may be sent when. All legality of the protocol is in this file, and nothing else decides it.

It does not know which of the two sides we are: both ends apply each message, sent or received, by its *sender*, to the
same tables. A link has one :class:`Phase`, and each direction has one :class:`Streaming`:

* downstream (server to client): PART opens the stream of a request, DATA follows, the REPLY or FAULT of that request
  ends it. Replies to other requests may stand between.
* upstream (client to server): a REQUEST with ``upload`` opens it, DATA follows, the last announced byte ends it.
  The request may be answered before that; the bytes still come, and are thrown away.

At most one stream flows in each direction. Its DATA frames are numbered from 0: none passes twice or is missing.
"""

from __future__ import annotations

from enum import Enum

from jobpipe.wire.frames import NUMBERS
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


class _Key(Enum):
    """Members are keys of the tables for each frame: Enum's own hash is a Python function, and takes 0.2 us."""

    __hash__ = object.__hash__


class Side(_Key):
    """Who opened the connection is the client."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def peer(self) -> Side:
        return Side.SERVER if self is Side.CLIENT else Side.CLIENT


class Phase(_Key):
    """How far the link is."""

    START = "start"
    GREETING = "greeting"
    OPEN = "open"
    CLOSED = "closed"


class Streaming(_Key):
    """Whether a stream flows in one direction."""

    IDLE = "idle"
    STREAM = "stream"


class Act(_Key):
    """What a message does; a kind that does two things has two acts."""

    HELLO = "HELLO"
    WELCOME = "WELCOME"
    REQUEST = "REQUEST"
    UPLOAD = "REQUEST with upload"
    REPLY = "REPLY or FAULT"
    END = "REPLY or FAULT that ends the stream"
    PART = "PART"
    DATA = "DATA"
    LINK_FAULT = "FAULT without id"
    PING = "PING"
    PONG = "PONG"
    GOODBYE = "GOODBYE"


_C, _S = Side.CLIENT, Side.SERVER

PHASES: dict[tuple[Side, Phase, Act], Phase] = {
    (_C, Phase.START, Act.HELLO): Phase.GREETING,
    (_S, Phase.START, Act.LINK_FAULT): Phase.CLOSED,  # HELLO did not come, or was none
    (_S, Phase.START, Act.GOODBYE): Phase.CLOSED,
    (_S, Phase.GREETING, Act.WELCOME): Phase.OPEN,
    (_S, Phase.GREETING, Act.LINK_FAULT): Phase.CLOSED,  # refused
    (_S, Phase.GREETING, Act.GOODBYE): Phase.CLOSED,
    (_C, Phase.GREETING, Act.LINK_FAULT): Phase.CLOSED,
    (_C, Phase.GREETING, Act.GOODBYE): Phase.CLOSED,
    **{(_C, Phase.OPEN, act): Phase.OPEN for act in (Act.REQUEST, Act.UPLOAD, Act.DATA, Act.PING, Act.PONG)},
    **{(_S, Phase.OPEN, act): Phase.OPEN for act in (Act.REPLY, Act.END, Act.PART, Act.DATA, Act.PING, Act.PONG)},
    **{(side, Phase.OPEN, act): Phase.CLOSED for side in Side for act in (Act.LINK_FAULT, Act.GOODBYE)},
}
"""(sender, phase, act) -> next phase; what is not in it is illegal."""

FLOWS: dict[tuple[Side, Streaming, Act], Streaming] = {
    (_C, Streaming.IDLE, Act.UPLOAD): Streaming.STREAM,
    (_C, Streaming.STREAM, Act.DATA): Streaming.STREAM,  # IDLE with the last announced byte
    (_S, Streaming.IDLE, Act.PART): Streaming.STREAM,
    (_S, Streaming.STREAM, Act.PART): Streaming.STREAM,  # of the same request
    (_S, Streaming.STREAM, Act.DATA): Streaming.STREAM,
    (_S, Streaming.STREAM, Act.END): Streaming.IDLE,
}
"""(sender, its flow, act) -> its next flow, for the acts that concern streams; what is not in it is illegal."""

STREAM_ACTS = frozenset({Act.UPLOAD, Act.PART, Act.DATA, Act.END})


class IllegalStepError(ValueError):
    """A message that the tables do not allow. Never leaves this package."""


_ACTS: dict[type[Message | DataHeader], Act] = {
    Hello: Act.HELLO,
    Welcome: Act.WELCOME,
    Part: Act.PART,
    Data: Act.DATA,
    DataHeader: Act.DATA,
    Ping: Act.PING,
    Pong: Act.PONG,
    Goodbye: Act.GOODBYE,
}
"""Of the messages that always do the same."""


def act_of(message: Message | DataHeader, stream: int | None) -> Act:
    """Return what the message does while the downstream serves request ``stream``."""
    if isinstance(message, Request):
        return Act.UPLOAD if message.upload else Act.REQUEST
    if isinstance(message, (Reply, Fault)):
        if message.id is None:
            return Act.LINK_FAULT
        return Act.END if message.id == stream else Act.REPLY
    return _ACTS[type(message)]


class ProtocolState:
    """The state of one link, as one of its ends knows it."""

    def __init__(self) -> None:
        self.phase = Phase.START
        self.flows = {Side.CLIENT: Streaming.IDLE, Side.SERVER: Streaming.IDLE}
        self.stream: int | None = None
        """Id of the request that the downstream answers."""
        self.upload_left = 0
        """Bytes of the upload that were announced and did not pass yet."""
        self.unanswered: set[int] = set()
        self.numbers = {Side.CLIENT: 0, Side.SERVER: 0}
        """The number that the next DATA frame of each side's stream must bear."""
        self._last_id = 0

    @property
    def greeted(self) -> bool:
        return self.phase is Phase.OPEN

    def check(self, sender: Side, message: Message | DataHeader, frame: int | None = None) -> Act:
        """Return what the message does; ``frame`` is the number that a received DATA frame bears.

        Raises:
            IllegalStepError: the message is illegal now.
        """
        act = act_of(message, self.stream)
        if (sender, self.phase, act) not in PHASES:
            raise IllegalStepError(f"{message.kind.name} from the {sender.value} in phase {self.phase.value}")
        if act in STREAM_ACTS and (sender, self.flows[sender], act) not in FLOWS:
            raise IllegalStepError(
                f"{message.kind.name} from the {sender.value} in phase {self.phase.value}, "
                f"stream {self.flows[sender].value}"
            )
        # Not by match: its class patterns take several times as long, and this is done for each message twice.
        if isinstance(message, Request):
            if message.id <= self._last_id:
                raise IllegalStepError(f"REQUEST id {message.id} after {self._last_id}")
        elif isinstance(message, (Reply, Part, Fault)):
            number = message.id
            if number is not None and number not in self.unanswered:
                raise IllegalStepError(f"{message.kind.name} for request {number}, which is not open")
            if act is Act.PART and self.stream not in (None, number):
                raise IllegalStepError(f"PART for request {number} inside the stream of request {self.stream}")
        elif isinstance(message, (Data, DataHeader)):
            if sender is Side.CLIENT and _size(message) > self.upload_left:
                raise IllegalStepError(f"DATA of {_size(message)} bytes, {self.upload_left} of the upload are left")
            if frame not in (None, self.numbers[sender]):
                raise IllegalStepError(f"DATA frame {frame} of its stream where {self.numbers[sender]} was due")
        return act

    def apply(self, sender: Side, message: Message | DataHeader, frame: int | None = None) -> None:
        """Move on by one message; ``frame`` as for :meth:`check`.

        Raises:
            IllegalStepError: the message is illegal now; nothing has changed.
        """
        act = self.check(sender, message, frame)
        self.phase = PHASES[sender, self.phase, act]
        if act in STREAM_ACTS:
            if act is Act.DATA:
                self.numbers[sender] = (self.numbers[sender] + 1) % NUMBERS
            elif self.flows[sender] is Streaming.IDLE:
                self.numbers[sender] = 0
            self.flows[sender] = FLOWS[sender, self.flows[sender], act]
        if isinstance(message, Request):
            self._last_id = message.id
            self.unanswered.add(message.id)
            if message.upload:
                self.upload_left = message.upload
        elif isinstance(message, Part):
            self.stream = message.id
        elif isinstance(message, (Reply, Fault)):
            if message.id is not None:
                self.unanswered.discard(message.id)
            if act is Act.END:
                self.stream = None
        elif isinstance(message, (Data, DataHeader)) and sender is Side.CLIENT:
            self.upload_left -= _size(message)
            if not self.upload_left:
                self.flows[sender] = Streaming.IDLE


def _size(message: Data | DataHeader) -> int:
    return message.length if isinstance(message, DataHeader) else len(message.payload)


def describe() -> str:
    """Return both tables as Markdown: docs/protocol.md holds this text, and a test compares them."""
    lines = ["| sender | phase | message | next phase |", "|---|---|---|---|"]
    for (sender, phase, act), after in PHASES.items():
        lines.append(f"| {sender.value} | {phase.value} | {act.value} | {after.value} |")
    lines += ["", "| sender | its stream | message | next |", "|---|---|---|---|"]
    for (sender, flow, act), then in FLOWS.items():
        last = " (idle with the last announced byte)" if (sender, act) == (Side.CLIENT, Act.DATA) else ""
        lines.append(f"| {sender.value} | {flow.value} | {act.value} | {then.value}{last} |")
    return "\n".join(lines) + "\n"
