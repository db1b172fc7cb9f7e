"""Bytes in, messages out."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobpipe.errors import (
    ChecksumMismatch,
    FrameTooLarge,
    LinkBroken,
    LocalProtocolError,
    RemoteProtocolError,
)
from jobpipe.wire import ENDED, NEED_DATA, Connection, Data, DataHeader, Goodbye, Kind, Part, Request, Side
from jobpipe.wire.codec import encode
from jobpipe.wire.connection import Pause
from jobpipe.wire.frames import (
    CONTROL_LIMIT,
    DATA_LIMIT,
    GREETING_LIMIT,
    HEADER,
    NUMBERS,
    SIGNAL_LIMIT,
    crc_of,
    encode_header,
)
from jobpipe.wire.wire_messages import Fault, Message, Ping, Reply
from tests.wire.kit import HELLO, WELCOME, conversation, events, open_pair, pass_on, talk, wire_bytes

SAID, ANSWERED = conversation()
CLIENT_BYTES = talk(Side.CLIENT, SAID, ANSWERED)
SERVER_BYTES = talk(Side.SERVER, ANSWERED, SAID)


def listening(side: Side) -> Connection:
    """A connection that takes the bytes of the other side's whole conversation."""
    connection = Connection(side)
    if side is Side.CLIENT:
        connection.send(HELLO)
        for message in SAID[1:]:
            if isinstance(message, Request):
                connection.state.unanswered.add(message.id)
    return connection


def take(connection: Connection, stream: bytes, cuts: list[int]) -> list[Message | DataHeader]:
    """Feed the stream in pieces; a server answers HELLO."""
    got: list[Message | DataHeader] = []
    start = 0
    for end in [*sorted(cuts), len(stream)]:
        connection.receive_data(stream[start:end])
        start = end
        while (event := connection.next_event()) is not NEED_DATA and event is not ENDED:
            assert not isinstance(event, Pause)
            got.append(event)
            if event == HELLO:
                connection.send(WELCOME)
    return got


@pytest.mark.parametrize(
    ("side", "stream", "expected"), [(Side.SERVER, CLIENT_BYTES, SAID), (Side.CLIENT, SERVER_BYTES, ANSWERED)]
)
@settings(max_examples=60)
@given(data=st.data())
def test_chunking_does_not_change_the_messages(
    side: Side, stream: bytes, expected: list[Message], data: st.DataObject
) -> None:
    """TCP may split the stream anywhere."""
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    assert take(listening(side), stream, cuts) == expected


@pytest.mark.parametrize(
    ("side", "stream", "expected"), [(Side.SERVER, CLIENT_BYTES, SAID), (Side.CLIENT, SERVER_BYTES, ANSWERED)]
)
def test_byte_at_a_time(side: Side, stream: bytes, expected: list[Message]) -> None:
    """The slowest network."""
    assert take(listening(side), stream, list(range(len(stream)))) == expected


@pytest.mark.parametrize(("side", "stream"), [(Side.SERVER, CLIENT_BYTES), (Side.CLIENT, SERVER_BYTES)])
def test_an_end_at_every_byte_is_an_error(side: Side, stream: bytes) -> None:
    """Case 14: EOF before GOODBYE is never "no more data"."""
    for length in range(len(stream)):
        connection = listening(side)
        take(connection, stream[:length], [])
        mid_frame = connection.mid_frame
        connection.receive_eof()
        with pytest.raises(LinkBroken) as caught:
            connection.next_event()
        assert caught.value.fields["mid_frame"] is mid_frame
    whole = listening(side)
    take(whole, stream, [])
    whole.receive_eof()
    assert whole.next_event() is ENDED


@given(st.binary(max_size=200), st.booleans())
def test_garbage_raises_only_remote_protocol_errors(data: bytes, greeted: bool) -> None:
    """Case 63."""
    server = open_pair()[1] if greeted else Connection(Side.SERVER)
    server.receive_data(data)
    try:
        events(server)
    except RemoteProtocolError as error:
        with pytest.raises(type(error)):
            server.next_event()  # never resynchronises


@settings(max_examples=200)
@given(place=st.integers(0, len(SERVER_BYTES) - 1), flip=st.integers(1, 255))
def test_a_changed_byte_is_never_delivered(place: int, flip: int) -> None:
    """Case 18: messages before it are right, it and all after it are not delivered."""
    damaged = bytearray(SERVER_BYTES)
    damaged[place] ^= flip
    connection = listening(Side.CLIENT)
    connection.receive_data(bytes(damaged))
    connection.receive_eof()
    got = []

    def read_all() -> None:
        while not isinstance(event := connection.next_event(), Pause):
            got.append(event)

    with pytest.raises((RemoteProtocolError, LinkBroken)):
        read_all()
    assert got == ANSWERED[: len(got)]


def test_a_large_frame_is_refused_from_its_header_alone() -> None:
    """Case 63: 16 bytes are enough. A PING of 16 MiB of empty lists would hold the server's loop for seconds."""
    for greeted, kind, length, limit in (
        (False, Kind.HELLO, GREETING_LIMIT + 1, GREETING_LIMIT),
        (True, Kind.REQUEST, CONTROL_LIMIT + 1, CONTROL_LIMIT),
        (True, Kind.DATA, DATA_LIMIT + 1, DATA_LIMIT),
        *((True, kind, SIGNAL_LIMIT + 1, SIGNAL_LIMIT) for kind in Kind if kind not in (Kind.REQUEST, Kind.DATA)),
    ):
        server = open_pair()[1] if greeted else Connection(Side.SERVER)
        server.receive_data(encode_header(kind, length, 0))
        with pytest.raises(FrameTooLarge) as caught:
            server.next_event()
        assert caught.value.fields["limit"] == limit


def test_nothing_is_believed_before_welcome() -> None:
    """A client that does not wait is refused."""
    server = Connection(Side.SERVER)
    client = Connection(Side.CLIENT)
    client.send(HELLO)
    client.state.apply(Side.SERVER, WELCOME)
    client.send(Request(1, "x"))
    server.receive_data(wire_bytes(client))
    assert server.next_event() == HELLO
    with pytest.raises(RemoteProtocolError):
        server.next_event()


def test_what_is_too_large_is_not_sent() -> None:
    """Our own limits are the peer's."""
    client, server = open_pair()
    with pytest.raises(LocalProtocolError):
        client.send(Request(1, "x", {}, bytes(CONTROL_LIMIT)))
    with pytest.raises(LocalProtocolError):
        server.send_data_header(DATA_LIMIT + 1, 0)
    with pytest.raises(LocalProtocolError):
        server.send_data_header(0, 0)
    with pytest.raises(LocalProtocolError):
        Connection(Side.CLIENT).send(type(HELLO)("t" * GREETING_LIMIT, "reader"))
    assert client.data_to_send() == []
    client.send(Request(1, "x"))  # the id is still free: nothing had changed


@pytest.mark.parametrize(
    ("args", "blob", "passes"),
    [({}, 5000, True), ({}, 5001 + 1000, False), ({"x": "y" * 900}, 5000, True), ({"x": "y" * 1000}, 0, False)],
)
def test_a_blob_may_come_besides(args: dict[str, str], blob: int, *, passes: bool) -> None:
    """What is parsed may have no more for it."""
    client, server = open_pair()
    server.request_limit, server.blob_limit = 1000, 5000
    client.send(Request(1, "x", args, bytes(blob)))
    server.receive_data(wire_bytes(client))
    if passes:
        assert isinstance(event := server.next_event(), Request)
        assert len(event.blob) == blob
    else:
        with pytest.raises(FrameTooLarge):
            server.next_event()


def test_a_large_blob_is_not_copied() -> None:
    """It leaves as the object that came in."""
    client, _ = open_pair()
    blob = bytes(1024 * 1024)
    client.send(Request(1, "x", {}, blob))
    assert client.data_to_send()[-1] is blob


def test_a_skin_can_take_the_data_itself() -> None:
    """It never has to hand in more than was asked for, so the payload stays in the socket."""
    server = open_pair()[1]
    client = Connection(Side.CLIENT, split_data=True)
    client.send(HELLO)
    client.state.apply(Side.SERVER, WELCOME)
    client.send(Request(1, "read"))
    server.state.apply(Side.CLIENT, Request(1, "read"))
    payload = b"p" * 500
    server.send(Part(1, {"n": 1}))
    server.send(Data(payload))
    server.send(Reply(1))
    stream = wire_bytes(server)
    got: list[object] = []
    while True:
        event = client.next_event()
        if event is NEED_DATA:
            if not stream:
                break
            wanted = client.bytes_wanted
            assert wanted > 0
            client.receive_data(stream[:wanted])
            stream = stream[wanted:]
            continue
        got.append(event)
        if isinstance(event, DataHeader):
            assert (stream[: event.length], event.crc) == (payload, zlib.crc32(payload))
            stream = stream[event.length :]
    assert got == [Part(1, {"n": 1}), DataHeader(500, zlib.crc32(payload)), Reply(1)]


def test_a_split_connection_refuses_to_read_ahead() -> None:
    """Bytes of a payload must not get lost in the buffer."""
    client = Connection(Side.CLIENT, split_data=True)
    assert client.bytes_wanted == HEADER.size
    with pytest.raises(LocalProtocolError):
        client.receive_data(bytes(17))


def test_after_goodbye_nothing_is_read_or_sent() -> None:
    """The link is over for both."""
    client, server = open_pair()
    server.send(Goodbye("bye"))
    assert pass_on(server, client) == [Goodbye("bye")]
    client.receive_data(b"rubbish")
    assert client.next_event() is ENDED
    for connection in (client, server):
        with pytest.raises(LocalProtocolError):
            connection.send(Ping(1))


def test_a_link_fault_ends_the_link() -> None:
    """With the error that the peer gives as the reason."""
    client, server = open_pair()
    server.send(Fault(None, "Fenced", "newer epoch"))
    assert pass_on(server, client) == [Fault(None, "Fenced", "newer epoch")]
    assert client.next_event() is ENDED


def streaming(side: Side) -> tuple[Connection, Connection]:
    """Sender and receiver of a stream that ``side`` has just begun."""
    client, server = open_pair()
    client.send(Request(1, "x", upload=0 if side is Side.SERVER else 100))
    pass_on(client, server)
    if side is Side.CLIENT:
        return client, server
    server.send(Part(1))
    pass_on(server, client)
    return server, client


@pytest.mark.parametrize("side", Side)
@settings(max_examples=60)
@given(order=st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_data_frames_pass_once_and_in_order(side: Side, order: list[int]) -> None:
    """Case 17: whatever a network makes of four frames of the same bytes; also one that lies in front of another's."""
    sender, receiver = streaming(side)
    frames = []
    for _ in range(4):
        sender.send(Data(b"same"))
        frames.append(wire_bytes(sender))
    right = next((place for place, frame in enumerate(order) if frame != place), len(order))
    for place, frame in enumerate(order[: right + 1]):
        receiver.receive_data(frames[frame])
        if place < right:
            assert receiver.next_event() == Data(b"same")
        else:
            with pytest.raises(RemoteProtocolError, match=rf"DATA frame {frame} of its stream where {place} was due"):
                receiver.next_event()


def number_of(connection: Connection, *messages: Message) -> int:
    """Send messages, DATA last, and return the number that its header bears."""
    for message in messages[:-1]:
        connection.send(message)
    wire_bytes(connection)
    connection.send(messages[-1])
    return int.from_bytes(wire_bytes(connection)[6:8], "big")


def test_each_stream_counts_from_0() -> None:
    """Parts of one stream count on; the next request's stream, and the next upload, begin anew."""
    client, server = open_pair()
    assert number_of(client, Request(1, "x", upload=2), Data(b"a")) == 0
    assert number_of(client, Request(2, "x"), Data(b"b")) == 1
    assert number_of(client, Request(3, "x", upload=1), Data(b"c")) == 0
    for number in (1, 2):
        server.state.apply(Side.CLIENT, Request(number, "x"))
    assert number_of(server, Part(1), Data(b"a")) == 0
    assert number_of(server, Part(1), Data(b"b")) == 1
    assert number_of(server, Reply(1), Part(2), Data(b"c")) == 0


@pytest.mark.parametrize("side", Side)
def test_the_number_wraps(side: Side) -> None:
    """16 bits are enough for a stream of any length."""
    sender, receiver = streaming(side)
    for connection in (sender, receiver):
        connection.state.numbers[side] = NUMBERS - 1
    assert number_of(sender, Data(b"x")) == NUMBERS - 1
    receiver.state.apply(side, Data(b"x"))
    sender.send(Data(b"y"))
    assert pass_on(sender, receiver) == [Data(b"y")]
    assert sender.state.numbers == receiver.state.numbers == {side: 1, side.peer: 0}


def test_a_wrong_checksum_is_named() -> None:
    """Case 18."""
    server = Connection(Side.SERVER)
    head, _ = encode(HELLO)
    server.receive_data(encode_header(Kind.HELLO, len(head), crc_of(Kind.HELLO, head) ^ 1) + head)
    with pytest.raises(ChecksumMismatch):
        server.next_event()
