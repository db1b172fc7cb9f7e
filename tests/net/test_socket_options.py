"""Foreign errors become ours, in one place."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from jobpipe.errors import Fenced, JobpipeError, LinkBroken, LinkError, LinkTimeout, NotAuthorized
from jobpipe.net.links.socket_options import copy_of, greeting, map_error, mapped, peer_names, peer_of


def tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), LinkBroken),
        (ConnectionResetError(errno.ECONNRESET, "reset"), LinkBroken),
        (BrokenPipeError(errno.EPIPE, "pipe"), LinkBroken),
        (socket.gaierror(-2, "unknown host"), LinkBroken),
        (TimeoutError(), LinkTimeout),
        (ConnectionAbortedError("SSL handshake is taking longer than 5 seconds: aborting the connection"), LinkTimeout),
        (tls_error("TLSV13_ALERT_CERTIFICATE_REQUIRED"), NotAuthorized),
        (tls_error("TLSV1_ALERT_UNKNOWN_CA"), NotAuthorized),
        (tls_error("PEER_DID_NOT_RETURN_A_CERTIFICATE"), NotAuthorized),
        (tls_error("WRONG_VERSION_NUMBER"), LinkBroken),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), LinkBroken),
        (UnicodeError("label too long"), LinkBroken),
    ],
)
def test_each_error_has_one_meaning(error: Exception, expected: type[JobpipeError]) -> None:
    """And keeps its cause."""
    assert type(map_error(error, "h:1", "connect to")) is expected
    with pytest.raises(expected) as caught, mapped("h:1", "connect to"):
        raise error
    assert caught.value.__cause__ is error
    assert caught.value.fields["peer"] == "h:1"


def test_our_own_errors_pass() -> None:
    """Unchanged."""
    error = Fenced("x", epoch=3)
    with pytest.raises(Fenced) as caught, mapped("h:1", "connect to"):
        raise error
    assert caught.value is error
    assert map_error(error, "h:1", "connect to") is error
    copy = copy_of(error)
    assert (type(copy), copy.message, copy.fields) == (Fenced, "x", {"epoch": 3})
    assert copy is not error


@pytest.mark.parametrize(
    ("error", "tls", "hinted"),
    [
        (ConnectionResetError(), True, True),
        (ConnectionResetError(), False, False),
        (ConnectionRefusedError(), True, False),
        (TimeoutError(), True, False),
    ],
)
def test_a_cut_before_welcome_over_tls_gets_a_hint(error: OSError, tls: bool, hinted: bool) -> None:
    """The server judges the client late, and in silence."""
    with pytest.raises(LinkError) as caught, greeting(tls=tls), mapped("h:1", "connect to"):
        raise error
    assert ("before_welcome" in caught.value.fields) is hinted


def test_names_of_peers() -> None:
    """Addresses and certificates as Python gives them."""
    assert peer_of(("10.0.0.1", 80)) == "10.0.0.1:80"
    assert peer_of(("::1", 80, 0, 0)) == "[::1]:80"
    assert peer_of(None) == peer_of("") == "unknown"
    assert peer_names({"subjectAltName": (("DNS", "a.b"), ("IP Address", "1.2.3.4"), ("DNS", "c"))}) == ("a.b", "c")
    assert peer_names(None) == peer_names({}) == ()
