"""What travels: JSON of each operation, recorded of the code before requests and replies were typed, and the same now.

``golden/`` holds what a client sent and what a server answered, without the secret of the job and keys nobody reads.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobpipe.errors import RemoteProtocolError
from jobpipe.operations.coordinator_operations import CONTROL
from jobpipe.operations.data_operations import DATA, PartHeader
from jobpipe.operations.host_operations import HOSTSERVER
from jobpipe.operations.messages.operation import Operation
from jobpipe.operations.protocol_page import operations_page, with_operations
from jobpipe.operations.subscriber_operations import PlanReply, PlanRequest

TABLES = {"control": CONTROL, "data": DATA, "hostserver": HOSTSERVER}
GOLDEN = Path(__file__).parent / "golden"


def recorded(table: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads((GOLDEN / f"{table}.json").read_text())
    return found


EXCHANGES = [
    pytest.param(TABLES[table][name], exchange, id=f"{table}-{name}-{number}")
    for table in TABLES
    for name, exchanges in recorded(table).items()
    for number, exchange in enumerate(exchanges)
]


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


@pytest.mark.parametrize("table", TABLES)
def test_every_operation_was_recorded(table: str) -> None:
    assert set(recorded(table)) | ({"served"} if table == "hostserver" else set()) == set(TABLES[table])


@pytest.mark.parametrize(("operation", "exchange"), EXCHANGES)
def test_requests_are_what_they_were(operation: Operation[Any], exchange: dict[str, Any]) -> None:
    blob = bytes.fromhex(exchange.get("request_blob", ""))
    request = operation.request.from_json(json.loads(canonical(exchange["request"])), blob)
    assert canonical(request.to_json()) == canonical(exchange["request"])
    assert request.blob == blob


@pytest.mark.parametrize(("operation", "exchange"), EXCHANGES)
def test_replies_are_what_they_were(operation: Operation[Any], exchange: dict[str, Any]) -> None:
    blob = bytes.fromhex(exchange.get("reply_blob", ""))
    reply = operation.reply.from_json(json.loads(canonical(exchange["reply"])), blob)
    assert canonical(reply.to_json()) == canonical(exchange["reply"])
    assert reply.blob == blob
    for part in exchange.get("parts", []):
        header = operation.reply if "n" not in part else PartHeader
        assert canonical(header.from_json(part).to_json()) == canonical(part)


def test_the_reply_of_plan_has_one_field_more() -> None:
    """Where the data are served, as in the replies of ``range`` and ``bind``; an older coordinator does not say it."""
    (exchange, *_) = recorded("control")["plan"]
    before = PlanReply.from_json(exchange["reply"])
    assert before.data is None
    now = replace(before, data="127.0.0.1:1")
    assert canonical(now.to_json()) == canonical({**exchange["reply"], "data": "127.0.0.1:1"})


def test_a_plan_that_does_not_wait_is_what_it_was() -> None:
    """So an older coordinator understands it, and an older subscriber gets nothing that it does not know."""
    (exchange, *_) = recorded("control")["plan"]
    asked = PlanRequest.from_json(exchange["request"])
    assert (asked.wait, asked.held) == (0.0, False)
    now = replace(asked, wait=15.0, held=True)
    assert canonical(now.to_json()) == canonical({**exchange["request"], "wait": 15.0, "held": True})
    reply = PlanReply.from_json(exchange["reply"])
    assert (reply.news, reply.held) == (None, None)


def test_held_rows_are_all_of_the_blob() -> None:
    exchange = next(each for each in recorded("control")["plan"] if "reply_blob" in each)
    blob = bytes.fromhex(exchange["reply_blob"])
    reply = PlanReply.from_json(exchange["reply"], blob)
    assert reply.held is not None
    assert b"".join(part.data for part in reply.held) == blob
    without = {name: value for name, value in exchange["reply"].items() if name != "held"}
    for values, bytes_ in ((exchange["reply"], blob[:-1]), (exchange["reply"], blob + b"x"), (without, blob)):
        with pytest.raises(RemoteProtocolError, match="bytes"):
            PlanReply.from_json(values, bytes_)


@pytest.mark.parametrize(("operation", "exchange"), EXCHANGES)
def test_a_reply_is_checked(operation: Operation[Any], exchange: dict[str, Any]) -> None:
    """A server is a peer too: each field that is not what it must be is refused by its name."""
    reply, blob = exchange["reply"], bytes.fromhex(exchange.get("reply_blob", ""))
    for name in reply:
        with pytest.raises(RemoteProtocolError, match=name if name != "from" else "before"):
            operation.reply.from_json({**reply, name: {"odd": [10**400]}}, blob)
    assert operation.reply.from_json({**reply, "of a later version": [1]}, blob) == (
        operation.reply.from_json(reply, blob)
    )


def test_the_page_has_the_tables_of_the_definitions() -> None:
    page = Path(__file__).parents[2] / "docs" / "protocol.md"
    text = page.read_text(encoding="utf-8")
    assert operations_page() in text
    assert with_operations(text) == text, "run `make docs`"
