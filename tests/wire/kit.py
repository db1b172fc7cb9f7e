"""Messages for the tests of the wire."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from jobpipe.wire import (
    ENDED,
    NEED_DATA,
    Connection,
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
    Side,
    Welcome,
)
from jobpipe.wire.connection import Pause
from jobpipe.wire.wire_messages import ROLES

HELLO = Hello("orders", "reader", instance="i-1")
WELCOME = Welcome("orders", "log-1", 3, "i-2")

ids = st.integers(1, 2**53 - 1)
texts = st.text(max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, json_values, max_size=3)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Hello,
        topic=texts,
        role=st.sampled_from(ROLES),
        name=st.none() | texts,
        instance=texts,
        epoch=st.integers(0, 2**53 - 1),
        log=st.none() | texts,
        versions=st.tuples(st.integers(1, 9), st.integers(9, 255)),
        heartbeat=st.booleans(),
    ),
    st.builds(Welcome, texts, texts, st.integers(0, 2**53 - 1), texts, st.integers(1, 255)),
    st.builds(Request, ids, texts, objects, st.binary(max_size=40), st.integers(0, 2**53 - 1)),
    st.builds(Reply, ids, objects, st.binary(max_size=40)),
    st.builds(Part, ids, objects),
    st.builds(Fault, st.none() | ids, texts, texts, objects),
    st.builds(Ping, st.integers(0, 2**53 - 1)),
    st.builds(Pong, st.integers(0, 2**53 - 1)),
    st.builds(Goodbye, texts),
)


def wire_bytes(connection: Connection) -> bytes:
    """What the connection wants to write."""
    return b"".join(connection.data_to_send())


def events(connection: Connection) -> list[Message | DataHeader]:
    """All events that are ready."""
    got: list[Message | DataHeader] = []
    while (event := connection.next_event()) is not NEED_DATA and event is not ENDED:
        assert not isinstance(event, Pause)
        got.append(event)
    return got


def pass_on(source: Connection, target: Connection) -> list[Message | DataHeader]:
    """Carry what the source wants to write to the target; return what the target makes of it."""
    target.receive_data(wire_bytes(source))
    return events(target)


def open_pair() -> tuple[Connection, Connection]:
    """A client and a server that have greeted each other."""
    client, server = Connection(Side.CLIENT), Connection(Side.SERVER)
    client.send(HELLO)
    assert pass_on(client, server) == [HELLO]
    server.send(WELCOME)
    assert pass_on(server, client) == [WELCOME]
    return client, server


def conversation() -> tuple[list[Message], list[Message]]:
    """A whole legal link: what the client says, and what the server says."""
    client: list[Message] = [
        HELLO,
        Request(1, "plan", {"start": 4}),
        Request(2, "read", {"from": 4}, b"blob"),
        Ping(7),
        Request(3, "put", {}, b"", 5),
        Data(b"abc"),
        Request(4, "poll"),
        Data(b"de"),
        Goodbye("done"),
    ]
    server: list[Message] = [
        WELCOME,
        Reply(1, {"end": 9}),
        Part(2, {"rows": 1}),
        Data(b"x" * 300),
        Pong(7),
        Fault(4, "WaitTimeout", "nothing"),
        Part(2, {"rows": 2}),
        Data(b"y"),
        Reply(2, {"done": True}, b"tail"),
        Reply(3),
        Goodbye(),
    ]
    return client, server


def talk(side: Side, said: Iterable[Message], heard: Iterable[Message]) -> bytes:
    """Bytes of one side of a conversation; the greeting and the requests of the other are heard first."""
    connection = Connection(side)
    said = list(said)
    if side is Side.CLIENT:
        connection.send(said[0])
        connection.state.apply(Side.SERVER, WELCOME)
        rest = said[1:]
    else:
        for message in heard:
            connection.state.apply(Side.CLIENT, message)
            if message == HELLO:
                connection.send(said[0])
            if isinstance(message, Data) and not connection.state.upload_left:
                break
        rest = said[1:]
    for message in rest:
        connection.send(message)
    return wire_bytes(connection)
