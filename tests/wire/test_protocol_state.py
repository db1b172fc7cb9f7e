"""The tables: every side, phase, stream state and message."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpipe.errors import JobpipeError, LocalProtocolError, RemoteProtocolError
from jobpipe.wire import Connection, Data, Fault, Goodbye, Message, Part, Ping, Pong, Reply, Request
from jobpipe.wire.protocol_state import (
    FLOWS,
    PHASES,
    STREAM_ACTS,
    Act,
    IllegalStepError,
    Phase,
    ProtocolState,
    Side,
    Streaming,
    act_of,
    describe,
)
from tests.wire.kit import HELLO, WELCOME, conversation, open_pair, pass_on

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"

SAMPLES: dict[Act, Message] = {
    Act.HELLO: HELLO,
    Act.WELCOME: WELCOME,
    Act.REQUEST: Request(3, "x"),
    Act.UPLOAD: Request(3, "x", upload=9),
    Act.REPLY: Reply(2),
    Act.END: Reply(1),
    Act.PART: Part(1),
    Act.DATA: Data(b"d"),
    Act.LINK_FAULT: Fault(None, "x", ""),
    Act.PING: Ping(1),
    Act.PONG: Pong(1),
    Act.GOODBYE: Goodbye(),
}


def machine_in(phase: Phase, *, downstream: Streaming, upstream: Streaming) -> ProtocolState:
    """A machine with the requests 1 and 2 open, and streams for 1."""
    machine = ProtocolState()
    machine.phase = phase
    machine.unanswered = {1, 2}
    machine._last_id = 2
    machine.flows = {Side.SERVER: downstream, Side.CLIENT: upstream}
    machine.stream = 1 if downstream is Streaming.STREAM else None
    machine.upload_left = 5 if upstream is Streaming.STREAM else 0
    return machine


ALL = list(itertools.product(Side, Phase, Streaming, Streaming, Act))


@pytest.mark.parametrize(("sender", "phase", "downstream", "upstream", "act"), ALL)
def test_every_step_is_in_the_tables_or_refused(
    sender: Side, phase: Phase, downstream: Streaming, upstream: Streaming, act: Act
) -> None:
    """Legal steps lead where the tables say; the others change nothing."""
    machine = machine_in(phase, downstream=downstream, upstream=upstream)
    message = SAMPLES[act]
    actual = act_of(message, machine.stream)
    flow = {Side.SERVER: downstream, Side.CLIENT: upstream}[sender]
    legal = (sender, phase, actual) in PHASES and (actual not in STREAM_ACTS or (sender, flow, actual) in FLOWS)
    before = (machine.phase, dict(machine.flows), machine.stream, machine.upload_left, set(machine.unanswered))
    if legal:
        machine.apply(sender, message)
        assert machine.phase is PHASES[sender, phase, actual]
        if actual in STREAM_ACTS:
            assert machine.flows[sender] is FLOWS[sender, flow, actual]
    else:
        with pytest.raises(IllegalStepError):
            machine.apply(sender, message)
        after = (machine.phase, dict(machine.flows), machine.stream, machine.upload_left, set(machine.unanswered))
        assert after == before


@pytest.mark.parametrize(("sender", "phase", "downstream", "upstream", "act"), ALL)
def test_the_connection_blames_who_erred(
    sender: Side, phase: Phase, downstream: Streaming, upstream: Streaming, act: Act
) -> None:
    """The same step is LocalProtocolError for its sender and RemoteProtocolError for its receiver."""
    message = SAMPLES[act]
    ours, theirs = Connection(sender), Connection(sender.peer)
    for connection in (ours, theirs):
        connection.state = machine_in(phase, downstream=downstream, upstream=upstream)
    try:
        ours.send(message)
    except LocalProtocolError:
        forger = Connection(sender)
        forger.state = _Lawless(phase)
        forger.send(message)
        if phase is Phase.CLOSED:
            assert pass_on(forger, theirs) == []
        else:
            with pytest.raises(RemoteProtocolError):
                pass_on(forger, theirs)
            with pytest.raises(RemoteProtocolError):
                theirs.next_event()
    else:
        assert pass_on(ours, theirs) == [message]


class _Lawless(ProtocolState):
    """Sends anything."""

    def __init__(self, phase: Phase) -> None:
        super().__init__()
        self.phase = phase

    @property
    def greeted(self) -> bool:
        return True

    def apply(self, sender: Side, message: object) -> None:
        pass


@pytest.mark.parametrize(
    "message",
    [Request(2, "x"), Request(1, "x"), Request(3, "x", upload=1)],
    ids=["id again", "id below", "second upload"],
)
def test_requests_that_are_refused(message: Request) -> None:
    """Ids rise; one upload at a time."""
    machine = machine_in(Phase.OPEN, downstream=Streaming.IDLE, upstream=Streaming.STREAM)
    with pytest.raises(IllegalStepError):
        machine.apply(Side.CLIENT, message)


@pytest.mark.parametrize("message", [Reply(9), Fault(9, "x", ""), Part(9), Part(2)])
def test_answers_that_are_refused(message: Message) -> None:
    """Each request is answered once, and one stream flows at a time."""
    machine = machine_in(Phase.OPEN, downstream=Streaming.STREAM, upstream=Streaming.IDLE)
    with pytest.raises(IllegalStepError):
        machine.apply(Side.SERVER, message)


def test_an_upload_ends_with_its_last_byte() -> None:
    """Neither more nor, unnoticed, less; the request may be answered before."""
    client, server = open_pair()
    client.send(Request(1, "put", upload=5))
    client.send(Data(b"abc"))
    server.state.apply(Side.CLIENT, Request(1, "put", upload=5))
    server.state.apply(Side.CLIENT, Data(b"abc"))
    server.send(Fault(1, "Fenced", "too late"))
    assert pass_on(server, client) == [Fault(1, "Fenced", "too late")]
    with pytest.raises(LocalProtocolError):
        client.send(Data(b"def"))
    client.send(Data(b"de"))
    assert client.state.flows[Side.CLIENT] is Streaming.IDLE
    with pytest.raises(LocalProtocolError):
        client.send(Data(b"f"))


def test_a_whole_conversation_is_legal_for_both() -> None:
    """Streams in both directions, other requests between their frames."""
    said, answered = conversation()
    client, server = open_pair()
    for message in said[1:]:
        if not isinstance(message, Goodbye):
            client.send(message)
    assert pass_on(client, server) == said[1:-1]
    for message in answered[1:]:
        server.send(message)
    assert pass_on(server, client) == answered[1:]
    assert client.phase is server.phase is Phase.CLOSED


@given(st.lists(st.tuples(st.sampled_from(Side), st.sampled_from(list(SAMPLES.values()))), max_size=30))
def test_two_ends_never_disagree(steps: list[tuple[Side, Message]]) -> None:
    """What one end may send, the other takes, while messages do not cross."""
    ends = {side: Connection(side) for side in Side}
    for sender, message in steps:
        try:
            ends[sender].send(message)
        except LocalProtocolError:
            continue
        try:
            assert pass_on(ends[sender], ends[sender.peer]) == [message]
        except JobpipeError as error:  # pragma: no cover
            raise AssertionError(f"{message} was refused") from error
        assert ends[Side.CLIENT].state.__dict__ == ends[Side.SERVER].state.__dict__


def test_the_document_holds_the_tables() -> None:
    """docs/protocol.md is not allowed to lag behind."""
    assert describe() in DOCUMENT.read_text(encoding="utf-8")
