"""S5, S10: small holes that a holder of a certificate found."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.coordinator.handlers.admin_handlers import AdminHandlers
from jobpipe.errors import ConfigError, JobpipeError, SubscriptionNotFound, from_fault
from jobpipe.net.links.socket_options import for_clients
from jobpipe.net.servers import audit_log as auditing
from jobpipe.net.servers.audit_log import audit
from jobpipe.net.tls.certificates import describe
from jobpipe.operations.admin_operations import DropLeaseRequest, DropRequest, MovedReply, SeekRequest
from jobpipe.operations.coordinator_operations import CONTROL
from jobpipe.store.reading.boundary import LATEST
from jobpipe.wire.codec import decode, encode
from jobpipe.wire.frames import Kind
from jobpipe.wire.wire_messages import Fault
from tests.security.kit import World


@pytest.mark.parametrize("name", ["self", "message", "kind", "args", "fields", "__class__", "error", "cls", "peer", ""])
@pytest.mark.parametrize("code", ["DataLoss", "Nonsense"])
def test_a_fault_may_have_fields_of_any_name(name: str, code: str) -> None:
    """S10: a FAULT with the field `self` was a TypeError in whoever read it."""
    message = decode(Kind.FAULT, b"".join(encode(Fault(1, code, "text", {name: 7}))))
    assert isinstance(message, Fault)
    error = message.error()
    assert isinstance(error, JobpipeError)
    assert (error.message, error.fields) == ("text", {name: 7})
    assert from_fault(code, "text", {name: 7}).fields == {name: 7}


def test_one_identity_fills_no_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """S10: one reader's refusals wrote 720 KB a second; others are heard all the same, and nothing is kept of many."""
    caplog.set_level(logging.INFO, "jobpipe.audit")
    monkeypatch.setattr(auditing, "_limited", type(auditing._limited)())
    for number in range(5000):
        audit(("noisy",), "h:1", "read", "refused", topic=f"t{number}")
    audit(("other",), "h:2", "read", "refused", topic="x")
    audit(("noisy",), "h:1", "seek", "done", topic="x", changed=True)
    lines = [record.getMessage() for record in caplog.records]
    assert 100 <= sum("noisy" in line for line in lines) < 200
    assert 'principal="other" peer=h:2 what="read" topic="x" result="refused"' in lines
    assert "done" in lines[-1]
    left_out = auditing.lines_left_out()
    assert left_out.keys() == {"noisy"}, "others are not refused so often"
    assert 4800 < left_out["noisy"] <= 4900
    auditing._limited["noisy"]._tokens = 1.0
    audit(("noisy",), "h:1", "read", "refused", topic="t")
    assert "lines of this kind were left out before" in caplog.records[-1].getMessage()
    assert auditing.lines_left_out() == left_out, "as `status` shows it, it is the sum"
    for number in range(1000):
        audit((f"n{number}",), "h:1", "read", "refused")
    assert len(auditing._limited) == auditing.MAX_LIMITED


@pytest.mark.parametrize(
    ("asked", "fails", "most"),
    [
        (SeekRequest("billing", LATEST, dry_run=True), False, 200),
        (DropRequest("billing", dry_run=True), False, 200),
        (DropLeaseRequest("x", dry_run=True), False, 200),
        (DropRequest("billing", dry_run=False), True, 200),
        (SeekRequest("billing", LATEST, dry_run=False), False, 1100),
    ],
    ids=["seek", "drop", "drop a lease", "failed", "changes"],
)
def test_changes_and_what_changes_nothing_fill_no_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, asked: Any, fails: bool, most: int
) -> None:
    """S10: dry runs of a reader on its own subscription were not limited; what was left out is counted."""
    caplog.set_level(logging.INFO, "jobpipe.audit")
    for known in ("_limited", "_changes"):
        monkeypatch.setattr(auditing, known, OrderedDict())
    service = AdminHandlers(None, None, "")  # type: ignore[arg-type]
    link = SimpleNamespace(peer_names=("noisy",), peer="h:1", hello=SimpleNamespace(instance="i"))
    at: Any = SimpleNamespace(link=link, topic=SimpleNamespace(topic="orders"))
    (operation,) = [each for each in CONTROL.values() if each.request is type(asked)]

    async def answer(*_: object) -> MovedReply:
        if fails:
            raise SubscriptionNotFound("there is none")
        return MovedReply("billing", 1, 2)

    async def ask() -> None:
        for _ in range(2000):
            with contextlib.suppress(SubscriptionNotFound):
                await service._audited(operation, answer, at, asked)

    asyncio.run(ask())
    assert most // 2 <= len(caplog.records) < most
    assert auditing.lines_left_out()["noisy"] == 2000 - len(caplog.records)
    assert ("dry run" in caplog.text) == asked.dry_run


def test_certificates_say_that_they_are_for_clients(world: World) -> None:
    """S10: OpenSSL takes a client's certificate without extended key usage; ours have it."""
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509 import load_pem_x509_certificate

    def der(path: Path) -> bytes:
        return load_pem_x509_certificate(path.read_bytes()).public_bytes(Encoding.DER)

    assert for_clients(der(world.orders.cert))
    assert for_clients(der(world.billing.cert))
    assert not for_clients(der(world.serving.cert))
    assert not for_clients(der(world.folder / "ca.crt")), "it has none"
    assert "client" in describe(world.billing.cert).usages
    assert not for_clients(b"nonsense")


def test_a_config_error_of_a_node_may_name_a_host() -> None:
    assert ConfigError("text", host="h").fields == {"host": "h"}
