"""Sockets: their options, and the one place where foreign errors become ours.

:func:`map_error` and :func:`mapped` are the only code that knows what OSError and ssl.SSLError mean for a link.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator

from jobpipe.errors import JobpipeError, LinkBroken, LinkTimeout, NotAuthorized, PeerNotTrusted
from jobpipe.net.links.link_timeouts import LinkTimeouts

_REFUSALS = {
    # TLS 1.3: comes after the client's handshake is over
    "CERTIFICATE_REQUIRED": "it requires a certificate, and we showed none; set jobpipe.ssl.cert and jobpipe.ssl.key",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "",  # the same, seen by the server
    "CERTIFICATE_EXPIRED": (
        "ours has expired, or its revocation list of our CA has; see `jobpipe certs show`, then renew"
    ),
    "CERTIFICATE_REVOKED": "ours is revoked; the owner of the CA can issue another: `jobpipe certs issue`",
    "UNKNOWN_CA": "it does not trust the CA that issued ours, or has no revocation list of it; compare jobpipe.ssl.ca",
    "UNSUPPORTED_CERTIFICATE": "ours is not made for this side of a link; see its usages in `jobpipe certs show`",
    "BAD_CERTIFICATE": "ours is damaged or not accepted; see `jobpipe certs show`, and the server's log",
    "CERTIFICATE_UNKNOWN": "ours is not accepted; see the server's log",
    "ACCESS_DENIED": "see the server's log",
    "CERTIFICATE_VERIFY_FAILED": "",
}
"""Words in the reason of an SSLError that speak of a certificate, and what they mean where the peer says them to us."""


_UNTRUSTED = {  # by OpenSSL's X509_V_ERR_...
    3: "there is no revocation list of its CA; see jobpipe.ssl.crl",
    10: "its holder must renew it: `jobpipe certs renew`",
    12: "our revocation list has ended; `jobpipe certs revoke` renews it",
    18: "its CA is not in our jobpipe.ssl.ca",
    19: "its CA is not in our jobpipe.ssl.ca",
    20: "its CA is not in our jobpipe.ssl.ca",
    21: "its CA is not in our jobpipe.ssl.ca",
    23: "its holder needs another: `jobpipe certs issue`",
    26: "it is not made for this side of a link; see its usages in `jobpipe certs show`",
    62: "it is made for another topic",
}


def map_error(error: BaseException, peer: str, doing: str) -> JobpipeError:
    """Return our error for a foreign one.

    PeerNotTrusted: we refuse the peer. NotAuthorized: it refuses us, and has proven before that it is of our CA, since
    a client sends its certificate last. Else LinkTimeout or LinkBroken.
    """
    if isinstance(error, JobpipeError):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = _UNTRUSTED.get(error.verify_code, "")
        text = f"{doing} {peer}: its certificate is not accepted: {error.verify_message}"
        text += f" ({advice})" if advice else ""
        return PeerNotTrusted(text, peer=peer, doing=doing, reason=error.verify_message)
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "reason", None) or str(error)  # not all of them have it
        word = next((word for word in _REFUSALS if word in reason), None)
        if word is not None:
            if "ALERT" in reason:
                text = f"{doing} {peer}: it refuses our certificate: {_REFUSALS[word]} ({reason})"
            else:
                text = f"{doing} {peer}: TLS refused a certificate ({reason})"
            return NotAuthorized(text, peer=peer, doing=doing, reason=reason)
        return LinkBroken(f"{doing} {peer}: TLS failed ({reason})", peer=peer, doing=doing, reason=reason)
    text = f"{doing} {peer}: {error or type(error).__name__}"
    if isinstance(error, TimeoutError) or "SSL handshake is taking longer" in str(error):
        return LinkTimeout(f"{doing} {peer}: timed out", peer=peer, doing=doing)
    return LinkBroken(text, peer=peer, doing=doing, reason=type(error).__name__)


@contextlib.contextmanager
def mapped(peer: str, doing: str) -> Iterator[None]:
    """Raise our errors for the foreign ones of the block; ``doing`` is a phrase like "connect to"."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a host name that IDNA refuses
        raise map_error(error, peer, doing) from error


@contextlib.contextmanager
def greeting(*, tls: bool) -> Iterator[None]:
    """Add a hint to a cut after the TCP connection and before WELCOME, over TLS.

    Our servers say by a TLS alert why they refuse a certificate (:mod:`jobpipe.net.tls.tls_alerts`), but it may be lost
    on its way, and then a refusal looks like a cut. With TLS 1.3 the client's handshake, and its first write, have
    succeeded by then. With TLS 1.2 a client without a certificate hears of no more than a failed handshake.
    """
    try:
        yield
    except LinkBroken as error:
        if not tls or isinstance(error.__cause__, (ConnectionRefusedError, socket.gaierror)):
            raise
        hint = "before WELCOME: the server may have refused our certificate, or be full; its log says so"
        text = f"{error.message} ({hint})"
        raise LinkBroken(text, **error.fields | {"before_welcome": True}) from error


def copy_of(error: JobpipeError) -> JobpipeError:
    """Return a fresh copy of an error that is raised in several places, each with its own traceback."""
    return type(error)(error.message, **error.fields)


def tune(sock: socket.socket, timing: LinkTimeouts) -> None:
    """Set no delay, keepalive and the kernel's own write deadline; sockets that are not TCP are left alone."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", max(1, round(timing.silence))),
            ("TCP_KEEPINTVL", max(1, round(timing.heartbeat))),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", round(timing.write * 1000)),  # not below ours: it also counts a zero window
        ):
            option = getattr(socket, name, None)
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


def peer_of(address: object) -> str:
    """Return "host:port" of a socket address, "[host]:port" for IPv6."""
    if not isinstance(address, tuple) or len(address) < 2:
        return "unknown"
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def peer_names(certificate: object) -> tuple[str, ...]:
    """Return the DNS names of a certificate as ``getpeercert()`` gives it; () for none."""
    if not isinstance(certificate, dict):
        return ()
    return tuple(value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")


def for_clients(certificate: bytes) -> bool:
    """Tell whether a certificate, DER, says that it is for clients."""
    from cryptography import x509  # a server has loaded it; a worker, which only connects, need not
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        usages = x509.load_der_x509_certificate(certificate).extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    except (ValueError, x509.ExtensionNotFound):
        return False
    return ExtendedKeyUsageOID.CLIENT_AUTH in usages.value


def peer_expires(certificate: object) -> float | None:
    """Return when a certificate as ``getpeercert()`` gives it ends, in seconds since 1970; None for none."""
    end = certificate.get("notAfter") if isinstance(certificate, dict) else None
    return ssl.cert_time_to_seconds(end) if isinstance(end, str) else None
