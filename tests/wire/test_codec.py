"""Control payloads."""

from __future__ import annotations

import contextlib
import datetime
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpipe.errors import DataLoss, JobpipeError, LocalProtocolError, RemoteProtocolError, TopicOwned
from jobpipe.wire.codec import decode, encode, fault
from jobpipe.wire.frames import GREETING_LIMIT, Kind
from jobpipe.wire.wire_messages import Data, Fault, Message, Ping, Request, choose_version
from tests.wire.kit import messages


def payload(text: bytes, blob: bytes = b"") -> bytes:
    return struct.pack("!I", len(text)) + text + blob


@given(messages)
def test_a_message_decodes_to_what_was_encoded(message: Message) -> None:
    """Encode and decode are inverse, and the same message is always the same bytes."""
    head, blob = encode(message)
    assert decode(message.kind, head + blob) == message
    assert encode(message) == (head, blob)


@given(kind=st.sampled_from(Kind), data=st.binary(max_size=64))
def test_garbage_raises_only_remote_protocol_errors(kind: Kind, data: bytes) -> None:
    """Any bytes under any kind."""
    with contextlib.suppress(RemoteProtocolError):
        decode(kind, data)


@given(kind=st.sampled_from([kind for kind in Kind if kind is not Kind.DATA]), body=st.text(max_size=30))
def test_wrong_json_raises_only_remote_protocol_errors(kind: Kind, body: str) -> None:
    """Well framed, but not what the kind demands."""
    with pytest.raises(RemoteProtocolError):
        decode(kind, payload(body.encode("utf-8", "replace")))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Kind.PING, b""),
        (Kind.PING, b"\0\0\0"),
        (Kind.PING, struct.pack("!I", 99) + b"{}"),
        (Kind.PING, payload(b"{}")),
        (Kind.PING, payload(b"[]")),
        (Kind.PING, payload(b'{"nonce": true}')),
        (Kind.PING, payload(b'{"nonce": 1.0}')),
        (Kind.PING, payload(b'{"nonce": -1}')),
        (Kind.PING, payload(b'{"nonce": 9007199254740992}')),
        (Kind.PING, payload(b'{"nonce": 1}', b"blob")),
        (Kind.REQUEST, payload(b'{"id":0,"op":"x","args":{}}')),
        (Kind.REQUEST, payload(b'{"id":1,"op":null,"args":{}}')),
        (Kind.REQUEST, payload(b'{"id":1,"op":"x","args":[]}')),
        (Kind.REQUEST, payload(b'{"id":1,"op":"x","args":{},"upload":-1}')),
        (Kind.REPLY, payload(b'{"id":1,"result":{"x":NaN}}')),
        (Kind.REPLY, payload(b'{"id":1,"result":' + b"[" * 100_000 + b"}")),
        (Kind.REPLY, payload(b'{"id":' + b"1" * 5000 + b',"result":{}}')),
        (Kind.REPLY, payload(b'{"id":1,"result":{"\xff":1}}')),
        (Kind.FAULT, payload(b'{"id":"1","code":"x","message":"","fields":{}}')),
        (Kind.HELLO, payload(b'{"versions":[2,1],"topic":"t","role":"reader"}')),
        (
            Kind.HELLO,
            payload(b'{"versions":[1,1],"topic":"t","role":"root","instance":"","epoch":0,"heartbeat":false}'),
        ),
        (Kind.DATA, b""),
    ],
)
def test_what_is_refused(kind: Kind, data: bytes) -> None:
    """Each a thing that a lenient reader would take."""
    with pytest.raises(RemoteProtocolError):
        decode(kind, data)


def test_unknown_keys_are_ignored() -> None:
    """A later minor change may add some."""
    assert decode(Kind.PING, payload(b'{"nonce":1,"colour":"red"}')) == Ping(1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", object(), {1, 2}])
def test_a_value_that_is_not_json_is_our_fault(value: object) -> None:
    """A bug of ours, found before a byte is sent."""
    with pytest.raises(LocalProtocolError):
        encode(Request(1, "x", {"value": value}))


def test_data_has_no_control_payload() -> None:
    """It is raw bytes."""
    assert decode(Kind.DATA, b"raw") == Data(b"raw")
    with pytest.raises(LocalProtocolError):
        encode(Data(b"raw"))


def test_an_error_travels_with_its_type_text_and_fields() -> None:
    """What a handler raises is what its caller catches."""
    error = fault(4, DataLoss("rows 3 to 7 are gone", topic="orders", head=9)).error()
    assert type(error) is DataLoss
    assert (error.message, error.fields) == ("rows 3 to 7 are gone", {"topic": "orders", "head": 9})


def test_a_fault_can_always_be_sent() -> None:
    """Fields that are not JSON become text, or are dropped; long texts are cut."""
    when = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    assert fault(1, TopicOwned("x", when=when)).fields == {"when": str(when)}
    loop: list[object] = []
    loop.append(loop)
    assert fault(1, TopicOwned("x", loop=loop)).fields == {}
    assert fault(1, TopicOwned("x", lag=float("nan"))).fields == {}
    assert len(fault(1, TopicOwned("x" * 100_000)).message) == 2000
    refusal = fault(None, TopicOwned("\U0001f600" * 100_000, owner="y" * 100_000))
    assert sum(map(len, encode(refusal))) <= GREETING_LIMIT


def test_a_foreign_error_travels_as_a_plain_one() -> None:
    """An unknown code is no reason to fail."""
    assert fault(1, KeyError("x")).code == "JobpipeError"
    assert type(Fault(1, "FromTheFuture", "text").error()) is JobpipeError


@pytest.mark.parametrize(("versions", "fits"), [((1, 1), True), ((1, 9), True), ((2, 9), False)])
def test_the_version_is_negotiated(versions: tuple[int, int], fits: bool) -> None:
    """The highest that both speak."""
    if fits:
        assert choose_version(versions) == 1
    else:
        with pytest.raises(RemoteProtocolError):
            choose_version(versions)
