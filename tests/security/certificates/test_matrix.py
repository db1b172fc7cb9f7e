"""Cases 67 and 68: who is refused, at every port, by every client, in both versions of TLS; and hears why."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobpipe.errors import JobpipeError, LinkBroken, NotAuthorized, RemoteProtocolError, TopicNotFound
from jobpipe.net.servers.audit_log import audit
from jobpipe.wire import Hello
from tests.security.conftest import Served
from tests.security.kit import TOPIC, VERSIONS, Dial, World

pytestmark = pytest.mark.zookeeper

FORGED = 'x" result="done\nroot'  # as a name: to look like the end of the line, and another one
BILLING = Hello(TOPIC, "subscriber", "billing", instance="test")


@dataclass(frozen=True)
class Bad:
    """A client that is refused, and what it hears: the TLS alert, or the right it lacks."""

    shown: str | None
    hears: str
    hello: Hello = BILLING


BAD = {
    "no certificate": Bad(None, "CERTIFICATE_REQUIRED"),
    "expired": Bad("expired", "CERTIFICATE_EXPIRED"),
    "other CA": Bad("stranger", "UNKNOWN_CA"),
    "wrong usage": Bad("serving", "UNSUPPORTED_CERTIFICATE"),
    "no usage": Bad("for_anything", "made for clients"),
    "revoked": Bad("revoked", "CERTIFICATE_REVOKED"),
    "wrong topic": Bad("elsewhere", "read"),
    "wrong topic, publisher": Bad("payments", "publish", Hello(TOPIC, "publisher", "p", instance="test")),
    "wrong topic, administrator": Bad("elsewhere", "admin", Hello(TOPIC, "admin", instance="test")),
    "wrong topic, reader": Bad("successor", "read", Hello(TOPIC, "reader", instance="test")),
    "wrong subscription": Bad("billing", "read", Hello(TOPIC, "subscriber", "audit", instance="test")),
    "reader as publisher": Bad("billing", "publish", Hello(TOPIC, "publisher", "p", instance="test")),
    "reader as appender": Bad("billing", "publish", Hello(TOPIC, "appender", instance="test")),
    "topic that is not there": Bad("billing", "read", Hello("payments", "reader", instance="test")),
}


@pytest.mark.parametrize("blocking", [False, True], ids=["asyncio", "blocking"])
@pytest.mark.parametrize("port", ["control", "data", "host"])
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize("case", BAD)
def test_refused(served: Served, case: str, version: ssl.TLSVersion, port: str, blocking: bool) -> None:
    bad = BAD[case]
    shown = None if bad.shown is None else getattr(served.world, bad.shown)
    tls = served.world.client(shown, version)
    if bad.hello.topic != TOPIC:
        tls.check_hostname = False  # this server has no such topic; that is for the client to see, not for this test
    with pytest.raises(JobpipeError) as caught:
        Dial(blocking)(getattr(served, port), bad.hello, tls)
    error = caught.value
    if case == "no certificate" and version == ssl.TLSVersion.TLSv1_2:
        # a protocol that has no word for it: the error says what it may be
        assert isinstance(error, LinkBroken)
        assert error.fields["before_welcome"]
        assert "HANDSHAKE_FAILURE" in error.message
    elif bad.hears.isupper():
        assert isinstance(error, NotAuthorized), error
        assert bad.hears in error.fields["reason"]
        assert "jobpipe" in error.message, "says what to do"
    elif case == "no usage":  # S10: OpenSSL takes it, so the server must look
        assert type(error) is NotAuthorized, error
        assert bad.hears in error.message
        assert "billing.subscription.jobpipe" in error.message
    else:
        assert type(error) is NotAuthorized, error
        assert error.fields["right"] == bad.hears
        assert error.fields["topic"] == bad.hello.topic
        assert error.fields["principal"] == [name for _, name in certificate_names(shown.cert)]
        assert str(served.world.access) in error.message, "says where it is given"


@pytest.mark.parametrize("blocking", [False, True], ids=["asyncio", "blocking"])
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize(
    ("shown", "hello"),
    [
        ("billing", BILLING),
        ("billing", Hello(TOPIC, "subscriber", "billing-2", instance="test")),
        ("audit", Hello(TOPIC, "subscriber", "audit", instance="test")),
        ("billing", Hello(TOPIC, "reader", instance="test")),
        ("billing", Hello(TOPIC, "admin", instance="test")),
        ("operations", Hello(TOPIC, "admin", instance="test")),
        ("successor", Hello(TOPIC, "publisher", "p", instance="test")),
        ("orders", Hello(TOPIC, "publisher", "p", instance="test")),
        ("orders", Hello(TOPIC, "subscriber", "any", instance="test")),
    ],
    ids=lambda item: item if isinstance(item, str) else f"{item.role} {item.name}",
)
@pytest.mark.parametrize("port", ["control", "data", "host"])
def test_let_in(served: Served, shown: str, hello: Hello, version: ssl.TLSVersion, port: str, blocking: bool) -> None:
    welcome = Dial(blocking)(getattr(served, port), hello, served.world.client(getattr(served.world, shown), version))
    assert welcome.topic == TOPIC


@pytest.mark.parametrize("port", ["control", "data", "host"])
def test_a_topic_that_is_not_there(served: Served, port: str) -> None:
    """Who may read it is told so, by whoever must know; the others hear of their missing right."""
    tls = served.world.client(served.world.elsewhere)
    tls.check_hostname = False
    hello = BAD["topic that is not there"].hello
    if port == "host":  # it has files of any topic
        assert Dial(True)(served.host, hello, tls).topic == hello.topic
    else:
        with pytest.raises(TopicNotFound):
            Dial(True)(getattr(served, port), hello, tls)


def test_refusals_are_in_the_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Section 6, repudiation: who, whence, what, with what result; what a peer says forges no line."""
    billing = served.world.client(served.world.billing)
    with pytest.raises(NotAuthorized):
        Dial(True)(served.control, Hello(TOPIC, "subscriber", "root", instance="liar"), billing)
    with pytest.raises(RemoteProtocolError, match="name"):
        Dial(True)(served.control, Hello(TOPIC, "subscriber", FORGED, instance="liar"), billing)
    text = (Path(served.base["jobpipe.home"]) / "logs" / "coordinator.log").read_text()
    (line,) = [line for line in text.splitlines() if "liar" in line and "jobpipe.audit" in line]
    assert 'principal="billing.subscription.jobpipe"' in line
    assert 'what="read" topic="orders" subscription="root"' in line
    assert line.endswith('result="refused"')
    assert FORGED not in text
    with caplog.at_level("INFO", logger="jobpipe.audit"):
        audit(["billing"], "127.0.0.1:1", "read", "refused", topic=TOPIC, subscription=FORGED)
    assert caplog.messages[-1].endswith(r'subscription="x\" result=\"done\nroot" result="refused"')


def certificate_names(path: Path) -> tuple[tuple[str, str], ...]:
    """Return what a certificate bears."""
    from jobpipe.net.tls.certificates import describe

    return tuple(("DNS", name) for name in describe(path).names)


def test_world_is_as_meant(world: World) -> None:
    assert certificate_names(world.billing.cert) == (("DNS", "billing.subscription.jobpipe"),)
