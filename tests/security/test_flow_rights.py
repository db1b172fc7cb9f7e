"""Flow jobs: what a task needs besides a certificate, and what a certificate with some right must not reach."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path
from typing import Any

import pytest

from jobpipe.errors import Fenced, FlowNotFound, NotAuthorized, RemoteProtocolError
from jobpipe.net.tls import Credentials
from jobpipe.store.boundary import EARLIEST
from jobpipe.store.position import Position
from jobpipe.testing import SCHEMA
from tests.security.conftest import Served
from tests.security.test_rights import LARGE, ask, dial

pytestmark = pytest.mark.zookeeper

LOG = "00112233445566aa"
START = Position(LOG, 1, 0).to_json()
NEXT = Position(LOG, 1, 1).to_json()
KEY = {"flow": "alerts", "topic": "raw", "log": LOG}
PART = {"partition": 0, "claim": 1, "start": START, "to": NEXT, "write_id": "00" * 8, "segments": 0}


def begin(served: Served, flow: str = "alerts", **more: Any) -> str:
    """Begin a flow that publishes, as its driver does; return its token."""
    token = secrets.token_hex(16)
    args = {
        "flow": flow,
        "topic": "raw",
        "start": START,
        "partitions": 2,
        "token": token,
        "schema": {"arrow": base64.b64encode(SCHEMA.serialize().to_pybytes()).decode(), "spark": None},
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


@pytest.mark.parametrize("op", TASKS)
def test_tasks_show_the_token_of_their_flow(served: Served, op: str) -> None:
    """The right to publish is none to move another job's cursors, nor is the job's secret."""
    token, other = begin(served), begin(served, "others")
    with dial(served, served.world.orders, "publisher", "task") as link:
        claim = link.call("claim", {**TASKS["claim"], "token": token}, timeout=20).result["cursors"][0]["claim"]
    for files in (served.world.orders, served.world.successor):
        for shown in ({}, {"token": ""}, {"token": other}, {"token": token[:-1]}, {"grant": 1}):
            job = {"job": served.publisher.coordinator.secret}
            with pytest.raises((NotAuthorized, RemoteProtocolError)) as caught:
                ask(dial(served, files, "publisher", "task"), op, {**TASKS[op], "token": "", **shown, **job})
            assert type(caught.value) is NotAuthorized
            assert token not in caught.value.message
    with dial(served, served.world.orders, "publisher", "task") as link:
        again = link.call("claim", {**TASKS["claim"], "token": token}, timeout=20).result["cursors"][0]
    assert (again["claim"], again["position"]["n"]) == (claim + 1, 0), "nothing was claimed or moved in between"


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
    for files, role in ((served.world.billing, "publisher"), (served.world.operations, "publisher")):
        with pytest.raises(NotAuthorized) as caught:
            ask(dial(served, files, role, "task"), op, {**TASKS[op], "token": token})
        assert caught.value.fields["right"] == "publish"
    for role in ("subscriber", "admin"):
        with pytest.raises(NotAuthorized, match=f"'{op}' is not for the role"):
            ask(dial(served, served.world.billing, role, "billing"), op, {**TASKS[op], "token": token})


@pytest.mark.parametrize("op", ["claim", "seal_parts"])
def test_readers_move_no_cursors_of_a_flow_that_publishes(served: Served, op: str) -> None:
    token = begin(served)
    with pytest.raises(NotAuthorized) as caught:
        ask(dial(served, served.world.billing, "reader"), op, {**TASKS[op], "token": token, "grant": 1})
    assert caught.value.fields["right"] == "read"
    begin(served, "billing-3")  # a name that it may read under
    with pytest.raises(Fenced):
        ask(dial(served, served.world.billing, "reader"), op, {**TASKS[op], "flow": "billing-3", "grant": 1})


@pytest.mark.parametrize("op", ["begin_flow", "cursors"])
def test_only_its_own_job_begins_a_flow(served: Served, op: str) -> None:
    args = {**KEY, "start": START, "partitions": 1, "token": "ab" * 16}
    for files in (served.world.orders, served.world.successor):
        for job in ({}, {"job": "0" * 64}):
            with pytest.raises(NotAuthorized, match="the job that started it"):
                ask(dial(served, files, "publisher", "mallory"), op, {**args, **job})


def test_flows_of_others_are_theirs(served: Served) -> None:
    """Grants are small numbers: the name says whether they may be used."""
    world = served.world
    theirs, ours = grant(served, world.audit, "audit"), grant(served, world.billing, "billing")
    log = served.publisher.log_id
    place = Position(log, 0, 0).to_json()
    key = {"flow": "audit", "topic": "orders", "log": log, "grant": theirs}
    follow = {"parts": [{"partition": 0, "at": place}], "partitions": 4, "wait": 0}
    for role, op, args in (
        ("reader", "follow", {**follow, "name": "audit", "grant": theirs}),
        ("reader", "claim", {**key, "partitions": [0]}),
        ("reader", "seal_parts", {**key, "parts": []}),
        ("subscriber", "begin_flow", {**key, "start": place, "partitions": 1}),
        ("subscriber", "cursors", key),
    ):
        with pytest.raises(NotAuthorized) as caught:
            ask(dial(served, world.billing, role, "billing"), op, args)
        assert caught.value.fields["right"] == "read", op
    begun = {**key, "flow": "billing", "start": place, "partitions": 1}
    for role, op, args in (
        ("reader", "follow", {**follow, "name": "billing"}),
        ("reader", "claim", {**key, "flow": "billing", "partitions": [0]}),
        ("reader", "seal_parts", {**key, "flow": "billing", "parts": []}),
        ("subscriber", "begin_flow", begun),
        ("subscriber", "halt", {}),
    ):
        with pytest.raises(Fenced):
            ask(dial(served, world.billing, role, "billing"), op, {**args, "grant": ours + 7})
    (cursor,) = ask(dial(served, world.billing, "subscriber", "billing"), "begin_flow", {**begun, "grant": ours})[
        "cursors"
    ]
    assert cursor["position"] == place
    reply = ask(dial(served, world.billing, "reader"), "follow", {**follow, "name": "billing", "grant": ours})
    assert reply["parts"][0]["end"]["n"] >= 2
    with pytest.raises(NotAuthorized):  # who may publish only
        dial(served, world.successor, "reader")


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
    for op, args in (
        ("claim", {**KEY, "partitions": [0] * 129}),
        ("seal_parts", {**KEY, "parts": [PART] * 129}),
        ("seal_parts", {**KEY, "parts": [{**PART, "segments": 1}]}),
    ):
        with pytest.raises(RemoteProtocolError, match=r"partitions|parts"):
            ask(dial(served, served.world.orders, "publisher", "task"), op, {**args, "token": token})
    parts = [{"partition": 0, "at": START}] * 129
    args = {"name": "billing", "grant": 1, "parts": parts, "partitions": 1}
    with pytest.raises(RemoteProtocolError, match="parts"):
        ask(dial(served, served.world.billing, "reader"), "follow", args)
    with pytest.raises(RemoteProtocolError, match="partitions"):
        begin(served, partitions=4097)
