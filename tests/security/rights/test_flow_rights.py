"""Flow jobs: what a task needs besides a certificate, and what a certificate with some right must not reach."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path
from typing import Any

import pytest

from jobpipe.errors import Fenced, FlowNotFound, NotAuthorized, RemoteProtocolError
from jobpipe.net.tls.tls_context import Credentials
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import EARLIEST
from jobpipe.testing import SCHEMA
from tests.security.conftest import Served
from tests.security.rights.test_rights import LARGE, ask, dial

pytestmark = pytest.mark.zookeeper

LOG = "00112233445566aa"
START = Position(LOG, 1, 0).to_json()
NEXT = Position(LOG, 1, 1).to_json()
KEY = {"flow": "alerts", "topic": "raw", "log": LOG}
PART = {"partition": 0, "claim": 1, "start": START, "to": NEXT, "write_id": "00" * 8, "segments": 0}


def schema() -> dict[str, Any]:
    return {"arrow": base64.b64encode(SCHEMA.serialize().to_pybytes()).decode(), "spark": None}


def begin(served: Served, flow: str = "alerts", **more: Any) -> str:
    """Begin a flow that publishes, as its driver does; return its token."""
    token = secrets.token_hex(16)
    args = {
        "flow": flow,
        "topic": "raw",
        "start": START,
        "partitions": 2,
        "token": token,
        "schema": schema(),
        "job": served.publisher.coordinator.secret,
    }
    ask(dial(served, served.world.orders, "publisher", "driver"), "begin_flow", {**args, **more})
    return token


def grant(served: Served, files: Credentials, name: str) -> int:
    """Take a subscription's name."""
    with dial(served, files, "subscriber", name) as link:
        granted = int(link.call("grant", {"host": "h", "pid": 1}, timeout=20).result["grant"])
        link.call("first", {"start": EARLIEST.to_json(), "grant": granted}, timeout=20)
    return granted


TASKS: dict[str, dict[str, Any]] = {
    "claim": {**KEY, "partitions": [0]},
    "admit_part": {"flow": "alerts", "partition": 0, "claim": 1, "token": ""},
    "seal_parts": {**KEY, "parts": [PART]},
}


def standing(served: Served) -> list[dict[str, Any]]:
    """Return the cursors of the flow, as its driver sees them."""
    args = {**KEY, "job": served.publisher.coordinator.secret}
    found: list[dict[str, Any]] = ask(dial(served, served.world.orders, "publisher", "driver"), "cursors", args)[
        "cursors"
    ]
    return found


def as_task(served: Served, op: str, token: str) -> dict[str, Any]:
    """Return the arguments with which a task's request succeeds: it has claimed the first partition."""
    claim = {**TASKS["claim"], "token": token}
    (cursor,) = ask(dial(served, served.world.orders, "publisher", "task"), "claim", claim)["cursors"]
    part = {**PART, "claim": cursor["claim"], "start": cursor["position"]}
    part["to"] = {**cursor["position"], "epoch": 1, "n": cursor["position"]["n"] + 1}
    claimed = {"claim": {}, "admit_part": {"claim": cursor["claim"]}, "seal_parts": {"parts": [part]}}
    return {**TASKS[op], **claimed[op], "token": token}


@pytest.mark.parametrize("op", TASKS)
def test_tasks_show_the_token_of_their_flow(served: Served, op: str) -> None:
    """The right to publish is none to move another job's cursors, nor is the job's secret."""
    token, other = begin(served), begin(served, "others")
    args = as_task(served, op, token)
    assert ask(dial(served, served.world.orders, "publisher", "task"), op, args)
    before = standing(served)
    for files in (served.world.orders, served.world.successor):
        for shown in ({}, {"token": ""}, {"token": other}, {"token": token[:-1]}, {"grant": 1}):
            job = {"job": served.publisher.coordinator.secret}
            with pytest.raises((NotAuthorized, RemoteProtocolError)) as caught:
                ask(dial(served, files, "publisher", "task"), op, {**args, "token": "", **shown, **job})
            assert type(caught.value) is NotAuthorized
            assert token not in caught.value.message
    assert standing(served) == before, "nothing was claimed or moved in between"
    assert ask(dial(served, served.world.successor, "publisher", "task"), op, args), "its node may have another one"


def test_tasks_send_large_requests_by_the_token_of_their_flow(served: Served) -> None:
    """S2: it comes with HELLO, since the first request may be a large seal; another one's is refused there."""
    token, other, files = begin(served), begin(served, "others"), served.world.orders
    link = dial(served, files, "publisher", "alerts", proof=token)
    with link, pytest.raises(RemoteProtocolError, match="segments take 0 bytes"):  # it was read whole
        link.call("seal_parts", {**TASKS["seal_parts"], "token": token}, LARGE, timeout=20)
    with pytest.raises(NotAuthorized, match="only from tasks of the driver"):
        dial(served, files, "publisher", "alerts", proof=other)
    with pytest.raises(FlowNotFound):  # the task tries again: the driver may begin it there in a moment
        dial(served, files, "publisher", "elsewhere", proof=token)


@pytest.mark.parametrize("op", TASKS)
def test_tasks_that_publish_need_the_right_to_publish(served: Served, op: str) -> None:
    token = begin(served)
    args = as_task(served, op, token)
    assert ask(dial(served, served.world.orders, "publisher", "task"), op, args)
    for files, role in ((served.world.billing, "publisher"), (served.world.operations, "publisher")):
        with pytest.raises(NotAuthorized) as caught:
            ask(dial(served, files, role, "task"), op, args)
        assert caught.value.fields["right"] == "publish"
    for role in ("subscriber", "admin"):
        with pytest.raises(NotAuthorized, match=f"'{op}' is not for the role"):
            ask(dial(served, served.world.billing, role, "billing"), op, args)


def test_readers_move_no_cursors_of_a_flow_that_publishes(served: Served) -> None:
    """V1: under a name that fits, with the grant of that name, and with all that the topic's status tells of the flow.

    The same requests succeed with the flow's token, and where the reader's own flow reads this topic.
    """
    world, flow, log = served.world, "billing-3", served.publisher.log_id
    token, granted = begin(served, flow), grant(served, world.billing, flow)
    with dial(served, world.orders, "publisher", "task") as link:
        claim = {**TASKS["claim"], "flow": flow, "token": token}
        (cursor,) = link.call("claim", claim, timeout=20).result["cursors"]
        seal = {**TASKS["seal_parts"], "flow": flow, "token": token}
        seal["parts"] = [{**PART, "claim": cursor["claim"]}]
        assert link.call("seal_parts", seal, timeout=20).result["parts"][0]["position"]["n"] == 1
    start, end = Position(log, 0, 0).to_json(), Position(log, 1, 2).to_json()
    own = {"flow": flow, "topic": "orders", "log": log, "grant": granted}
    theirs = {**KEY, "flow": flow, "grant": granted}
    for key, places in ((own, (start, end)), (theirs, (NEXT, Position(LOG, 1, 1000).to_json()))):
        part = {**PART, "claim": 1, "start": places[0], "to": places[1]}
        for role, op, args in (
            ("subscriber", "begin_flow", {**key, "start": places[0], "partitions": 1}),
            ("subscriber", "cursors", key),
            ("reader", "claim", {**key, "partitions": [0]}),
            ("reader", "seal_parts", {**key, "parts": [part]}),
        ):
            link = dial(served, world.billing, role, flow)
            if key is own:
                assert ask(link, op, args), op
            else:
                with pytest.raises(NotAuthorized, match="to read is no right to them") as caught:
                    ask(link, op, args)
                assert caught.value.fields["right"] == "publish", op
    with pytest.raises(NotAuthorized) as caught:  # nor under a name that does not fit
        ask(dial(served, world.billing, "reader"), "claim", {**TASKS["claim"], "grant": granted})
    assert caught.value.fields["right"] == "read"
    (cursor,) = ask(dial(served, world.orders, "publisher", "task"), "claim", claim)["cursors"]
    assert (cursor["claim"], cursor["position"]["n"]) == (2, 1), "nothing was claimed or moved in between"


@pytest.mark.parametrize("op", ["begin_flow", "cursors"])
def test_only_its_own_job_begins_a_flow(served: Served, op: str) -> None:
    job = {"job": served.publisher.coordinator.secret}
    args = {**KEY, "start": START, "partitions": 1, "token": "ab" * 16, "schema": schema()}
    assert "cursors" in ask(dial(served, served.world.orders, "publisher", "driver"), op, {**args, **job})
    for files in (served.world.orders, served.world.successor):
        for shown in ({}, {"job": "0" * 64}):
            with pytest.raises(NotAuthorized, match="the job that started it"):
                ask(dial(served, files, "publisher", "mallory"), op, {**args, **shown})


def test_flows_of_others_are_theirs(served: Served) -> None:
    """Grants are small numbers: the name says whether they may be used, and only the newest one may."""
    world = served.world
    log = served.publisher.log_id
    place = Position(log, 0, 0).to_json()

    def requests(name: str, granted: int) -> list[tuple[str, str, dict[str, Any]]]:
        key = {"flow": name, "topic": "orders", "log": log, "grant": granted}
        follow = {"name": name, "grant": granted, "parts": [{"partition": 0, "at": place}], "partitions": 4, "wait": 0}
        return [
            ("subscriber", "begin_flow", {**key, "start": place, "partitions": 1}),
            ("subscriber", "cursors", key),
            ("reader", "follow", follow),
            ("reader", "claim", {**key, "partitions": [0]}),
            ("reader", "seal_parts", {**key, "parts": []}),
            ("subscriber", "halt", {"grant": granted}),
        ]

    granted = {name: grant(served, files, name) for name, files in (("audit", world.audit), ("billing", world.billing))}
    for name, files in (("audit", world.audit), ("billing", world.billing)):
        for role, op, args in requests(name, granted[name]):
            reply = ask(dial(served, files, role, name), op, args)
            if op == "begin_flow":
                assert [each["position"] for each in reply["cursors"]] == [place]
            if op == "follow":
                assert reply["parts"][0]["end"]["n"] >= 2
    for role, op, args in requests("audit", granted["audit"])[:-1]:  # a halt names no subscription
        with pytest.raises(NotAuthorized) as caught:
            ask(dial(served, world.billing, role, "billing"), op, args)
        assert caught.value.fields["right"] == "read", op
    for role, op, args in requests("billing", granted["billing"] + 7):
        if op != "cursors":  # which moves nothing, and needs no grant
            with pytest.raises(Fenced):
                ask(dial(served, world.billing, role, "billing"), op, args)
    with pytest.raises(NotAuthorized):  # who may publish only
        dial(served, world.successor, "reader")


@pytest.mark.parametrize("op", ["halt", "ack", "begin_flow", "first"])
def test_who_shares_a_name_has_no_grant_of_it(served: Served, op: str) -> None:
    """A grant is a small number that ``status`` shows: what is done under it is for the certificate that took it."""
    world = served.world
    mine, other = world.orders, world.billing  # both may read as billing-1
    granted = grant(served, mine, "billing-1")
    place = Position(served.publisher.log_id, 0, 0).to_json()
    key = {"flow": "billing-1", "topic": "orders", "log": served.publisher.log_id, "grant": granted}
    args: dict[str, Any] = {
        "halt": {"grant": granted},
        "ack": {"grant": granted, "position": place},
        "begin_flow": {**key, "start": place, "partitions": 1},
        "first": {"grant": granted, "start": EARLIEST.to_json()},
    }[op]
    follow = {"name": "billing-1", "grant": granted, "parts": [{"partition": 0, "at": place}], "partitions": 4}
    with pytest.raises(Fenced, match="another certificate"):
        ask(dial(served, other, "subscriber", "billing-1"), op, args)
    assert not ask(dial(served, mine, "reader"), "follow", {**follow, "wait": 0})["over"]
    ask(dial(served, mine, "subscriber", "billing-1"), op, args)
    assert ask(dial(served, mine, "reader"), "follow", {**follow, "wait": 0})["over"] == (op == "halt")


def test_who_shares_a_name_is_another_reader(served: Served) -> None:
    """``status`` shows the instance of a reader, too: another certificate that uses it gets a grant of its own."""
    args = {"host": "h", "pid": 1}
    with dial(served, served.world.orders, "subscriber", "billing-1") as link:
        granted = int(link.call("grant", args, timeout=20).result["grant"])
        assert link.call("grant", args, timeout=20).result["grant"] == granted, "the same comes back"
    assert ask(dial(served, served.world.billing, "subscriber", "billing-1"), "grant", args)["grant"] > granted


def test_a_halt_ends_with_the_grant(served: Served) -> None:
    """Else a flow that takes up its name again would be told for good that it is over."""
    files, place = served.world.orders, Position(served.publisher.log_id, 0, 0).to_json()
    follow = {"name": "billing-2", "parts": [{"partition": 0, "at": place}], "partitions": 4, "wait": 0}
    with dial(served, files, "subscriber", "billing-2") as link:
        for _ in range(2):  # the second time it is the same grant
            granted = int(link.call("grant", {"host": "h", "pid": 1}, timeout=20).result["grant"])
            link.call("first", {"grant": granted, "start": EARLIEST.to_json()}, timeout=20)
            assert not ask(dial(served, files, "reader"), "follow", {**follow, "grant": granted})["over"]
            link.call("halt", {"grant": granted}, timeout=20)
            assert ask(dial(served, files, "reader"), "follow", {**follow, "grant": granted})["over"]


def test_a_reset_is_for_administrators(served: Served) -> None:
    begin(served)
    for files in (served.world.billing, served.world.successor):
        with pytest.raises(NotAuthorized) as caught:
            ask(dial(served, files, "admin"), "reset_flow", {"flow": "alerts"})
        assert caught.value.fields["right"] == "admin"
    reply = ask(dial(served, served.world.operations, "admin"), "reset_flow", {"flow": "alerts", "dry_run": True})
    assert reply["topics"] == ["raw"]
    assert ask(dial(served, served.world.operations, "admin"), "reset_flow", {"flow": "alerts"})["topics"] == ["raw"]
    with pytest.raises(FlowNotFound):
        ask(dial(served, served.world.operations, "admin"), "reset_flow", {"flow": "alerts"})
    log = (Path(served.base["jobpipe.home"]) / "logs" / "coordinator.log").read_text()
    lines = [line for line in log.splitlines() if "jobpipe.audit" in line and 'what="reset_flow"' in line]
    assert len(lines) >= 3


def test_what_a_flow_asks_for_has_a_bound(served: Served) -> None:
    """Of one request; what is kept of them: tests/coordinator/test_seal_parts.py."""
    token = begin(served)
    claim, seal = {**KEY, "partitions": [0] * 128}, {**KEY, "parts": [PART] * 128}
    for op, args in (("claim", claim), ("seal_parts", seal)):
        assert ask(dial(served, served.world.orders, "publisher", "task"), op, {**args, "token": token})
    for op, args in (
        ("claim", {**claim, "partitions": [0] * 129}),
        ("seal_parts", {**seal, "parts": [PART] * 129}),
        ("seal_parts", {**seal, "parts": [{**PART, "segments": 1}]}),
    ):
        with pytest.raises(RemoteProtocolError, match=r"partitions|parts"):
            ask(dial(served, served.world.orders, "publisher", "task"), op, {**args, "token": token})
    granted, place = grant(served, served.world.billing, "billing"), Position(served.publisher.log_id, 0, 0).to_json()
    parts = [{"partition": 0, "at": place}] * 128
    args = {"name": "billing", "grant": granted, "parts": parts, "partitions": 1}
    assert ask(dial(served, served.world.billing, "reader"), "follow", args)
    with pytest.raises(RemoteProtocolError, match="parts"):
        ask(dial(served, served.world.billing, "reader"), "follow", {**args, "parts": [*parts, parts[0]]})
    begin(served, "wide", partitions=4096)
    with pytest.raises(RemoteProtocolError, match="partitions"):
        begin(served, "wide", partitions=4097)
