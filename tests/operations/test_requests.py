"""S1, S3, S5, S10: what a request may hold is said in one place, and checked before anything is done with it."""

from __future__ import annotations

import math
from dataclasses import MISSING, FrozenInstanceError
from typing import Any

import pytest

from jobpipe.coordinator.handlers.admin_handlers import AdminHandlers
from jobpipe.errors import ConfigError, NotAuthorized, RemoteProtocolError, TopicNotFound, short_repr
from jobpipe.operations.coordinator_operations import CONTROL
from jobpipe.operations.data_operations import DATA
from jobpipe.operations.hello import check_hello
from jobpipe.operations.host_operations import HOSTSERVER
from jobpipe.operations.messages.message_fields import checks
from jobpipe.operations.messages.operation import Operation, Table, read_request
from jobpipe.operations.publisher_operations import OpenRequest, SealRequest
from jobpipe.operations.reader_operations import LeaseRequest, lease_name
from jobpipe.operations.subscriber_operations import GrantRequest, PollRequest
from jobpipe.wire import Hello, Request
from tests.operations.hostile import PLACE, bad_requests, whole

ALL = [
    pytest.param(table, operation, id=f"{name}-{operation.name}")
    for name, table in (("control", CONTROL), ("data", DATA), ("host", HOSTSERVER))
    for operation in table.values()
]


def asked(known: Table, op: str, args: dict[str, Any], blob: bytes = b"") -> Any:
    """Read a request as the first role that may ask it."""
    role = sorted(known[op].roles)[0]
    return read_request(known, Request(1, op, args, blob), role)[1]


@pytest.mark.parametrize(("known", "operation"), ALL)
def test_hostile_values_of_every_field(known: Table, operation: Operation) -> None:
    """S1, S3, S5: the fault names operation and field, and stays short."""
    found = 0
    for name, what, args in bad_requests(operation.request):
        with pytest.raises((RemoteProtocolError, ConfigError)) as caught:
            asked(known, operation.name, args)
        if isinstance(caught.value, RemoteProtocolError):
            assert caught.value.fields["field"].startswith(name), (name, what)
            assert operation.name in caught.value.message
            assert name in caught.value.message
            assert len(caught.value.message) < 600, what
        found += 1
    assert found >= 10 * len(checks(operation.request))


@pytest.mark.parametrize(("known", "operation"), [each for each in ALL if each.values[1].request is not OpenRequest])
def test_right_values(known: Table, operation: Operation) -> None:
    """What is right is taken, and keys of a later version are passed over; nothing is kept of what was sent."""
    args = {**whole(operation.request), "of a later version": [1]}
    request = Request(1, operation.name, args)
    role = sorted(operation.roles)[0]
    assert type(read_request(known, request, role)[1]) is operation.request
    assert request.args == {}


@pytest.mark.parametrize(("known", "operation"), [each for each in ALL if each.values[1].request is not OpenRequest])
def test_what_may_be_left_out(known: Table, operation: Operation) -> None:
    fields = operation.request.__dataclass_fields__
    args = {name: value for name, value in whole(operation.request).items() if fields[name].default is MISSING}
    assert type(asked(known, operation.name, args)) is operation.request


def test_each_operation_is_answered() -> None:
    service = AdminHandlers(None, None, "")  # type: ignore[arg-type]
    assert set(service._answers) == {each.request for each in CONTROL.values()} - {OpenRequest}


def test_roles_come_before_fields() -> None:
    with pytest.raises(NotAuthorized, match="'seal' is not for the role 'reader'"):
        read_request(CONTROL, Request(1, "seal", {"query_id": 7}), "reader")
    with pytest.raises(RemoteProtocolError, match="unknown operation") as caught:
        read_request(CONTROL, Request(1, "x" * 100_000, {}), "reader")
    assert len(caught.value.message) < 200


def test_operations_of_other_servers() -> None:
    """Who asks for one has an old address; that is no mistake of his."""
    with pytest.raises(TopicNotFound, match="operation 'grant' is not of this port"):
        read_request(DATA, Request(1, "grant", {}), "subscriber", others=CONTROL)
    with pytest.raises(RemoteProtocolError, match="unknown operation 'grant'"):
        read_request(DATA, Request(1, "grant", {}), "subscriber")


@pytest.mark.parametrize("wait", [math.nan, math.inf, -math.inf, -0.1, 20.1, "nan", 1e300, 10**400])
def test_waits_are_finite(wait: object) -> None:
    """S1: NaN came through max(min()) and into the event loop's timers."""
    with pytest.raises(RemoteProtocolError, match="'wait'"):
        PollRequest.from_json({"wait": wait})


@pytest.mark.parametrize("seconds", [math.nan, math.inf, "inf", -1, 0, 1e-300, 86401, 1e300])
def test_leases_are_finite(seconds: object) -> None:
    """S3, R14; T1: one of no time at all was never forgotten."""
    with pytest.raises(RemoteProtocolError, match="'seconds'"):
        LeaseRequest.from_json({"secret": "x" * 32, "first": 0, "last": 1, "seconds": seconds})


def test_the_secret_of_a_lease_is_not_repeated() -> None:
    """T3: it is its owner."""
    for secret in ("x" * 31, "x" * 65, "short-secret", "ä" * 40):
        with pytest.raises(RemoteProtocolError, match="'secret'") as caught:
            LeaseRequest.from_json({"secret": secret, "first": 0, "last": 1, "seconds": 1.0})
        assert secret not in caught.value.message
    asked = LeaseRequest("0123456789abcdef" * 2, 0, 1, 1.0)
    assert asked.secret not in repr(asked)
    assert lease_name(asked.secret) == lease_name(asked.secret) != lease_name(asked.secret + "0")


def test_messages_are_values() -> None:
    """Equal by kind and fields, which they show."""
    one, same, other = PollRequest(ended=True), PollRequest(ended=True), PollRequest(ended=False)
    assert one == same != other
    assert hash(one) == hash(same)
    assert repr(one) == "PollRequest(head=None, ended=True, waiting=None, wait=0.0, head_wait=0.0)"
    with pytest.raises(FrozenInstanceError):
        one.wait = 1.0  # type: ignore[misc]


def test_where_a_reader_is_has_a_bound() -> None:
    """S5."""
    assert GrantRequest.from_json({"host": "h" * 255}).host == "h" * 255
    for host in ("h" * 256, "a\nb", 7):
        with pytest.raises(RemoteProtocolError, match="'host'"):
            GrantRequest.from_json({"host": host})


def test_blobs_are_for_those_who_ask_for_them() -> None:
    """A blob that nobody reads is memory."""
    with pytest.raises(RemoteProtocolError, match="takes none"):
        PollRequest.from_json({}, b"x")
    right = whole(SealRequest)
    segment = {"partition": 0, "rows": 1, "length": 2, "file": None, "offset": 0, "index": "", "inline": 2}
    sealed = SealRequest.from_json({**right, "segments": [segment, segment]}, b"abcd")
    assert [each.data for each in sealed.segments] == [b"ab", b"cd"]
    for blob in (b"abc", b"abcde", b""):
        with pytest.raises(RemoteProtocolError, match="segments"):
            SealRequest.from_json({**right, "segments": [segment, segment]}, blob)


@pytest.mark.parametrize(
    ("field", "hello"),
    [
        ("topic", Hello("a/b", "reader")),
        ("topic", Hello("x" * 3000, "reader")),
        ("topic", Hello("", "reader")),
        ("name", Hello("orders", "subscriber", None)),
        ("name", Hello("orders", "subscriber", "")),
        ("name", Hello("orders", "subscriber", "*" * 100)),
        ("name", Hello("orders", "admin", "a\nb")),
        ("instance", Hello("orders", "reader", instance="i" * 129)),
        ("instance", Hello("orders", "reader", instance="\x1b[2J")),
        ("log", Hello("orders", "reader", log="l" * 100)),
        ("proof", Hello("orders", "publisher", proof="p" * 65)),
        ("proof", Hello("orders", "publisher", proof="\ud800")),
    ],
)
def test_hello(field: str, hello: Hello) -> None:
    """S4: before the access list is asked, which keeps what it was asked."""
    with pytest.raises(RemoteProtocolError, match=f"HELLO: field '{field}'") as caught:
        check_hello(hello)
    assert len(caught.value.message) < 400


def test_hello_as_it_is() -> None:
    check_hello(Hello("orders", "subscriber", "billing", "i", 7, PLACE["log"]))
    check_hello(Hello("orders", "publisher", "jobpipe topics serve@host, pid 7", "i"))
    check_hello(Hello("orders", "reader", None, "reader-7"))


def test_values_in_errors_are_short() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    texts = {short_repr(each) for each in (deep, "x" * 10**6, "\x1b" * 1000, {"a": 1}, True, None, 10**5000)}
    assert max(map(len, texts)) <= 200
    assert {"a list of 1", "an object of 1", "true", "null", "an integer of 16610 bits"} <= texts
