"""TLS to ZooKeeper with a context of our own.

kazoo's own options trust every CA of the system beside the one given, and leave the host name unchecked unless told
otherwise; here only the given CA counts, the name of the host that was dialled must be in the certificate, and TLS is
1.2 or newer. There is no way to switch a check off.
"""

from __future__ import annotations

import os
import socket
import ssl
import stat
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from registry.errors import BadOption
from registry.identity import Tls

__all__ = ["TlsHandler", "make_context"]


def make_context(tls: Tls) -> ssl.SSLContext:
    """Return a context from the files as they are now.

    Raises:
        BadOption: a file is missing, unreadable or no PEM, the key is encrypted, is not that of the certificate, or
            may be read by group or others.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks names; not create_default_context: it trusts more CAs
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False
    try:
        context.load_verify_locations(cafile=tls.ca)
    except OSError as error:  # ssl.SSLError is one
        raise BadOption("ssl.ca", f"a readable file of CA certificates in PEM: {tls.ca} ({_cause(error)})") from error
    if tls.cert is not None and tls.key is not None:
        try:
            mode = stat.S_IMODE(os.stat(tls.key).st_mode)
            if mode & 0o077:
                text = f"a private key that only its owner may read (chmod 600), not mode {mode:04o}: {tls.key}"
                raise BadOption("ssl.key", text)
            context.load_cert_chain(tls.cert, tls.key, password=_no_password)
        except OSError as error:
            text = f"a certificate in PEM, {tls.cert}, with its private key {tls.key} ({_cause(error)})"
            raise BadOption("ssl.cert", text) from error
    return context


def _no_password() -> str:
    """OpenSSL would ask for it at the terminal."""
    raise BadOption("ssl.key", "a private key without a password")


def _cause(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's handler with threads, whose connections are ours. A renewed certificate counts from the next one on."""

    def __init__(self, tls: Tls) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> ssl.SSLSocket:
        """Connect to ``address``, which ``hostname`` was resolved to, and shake hands.

        Raises:
            OSError: it failed, or a step took longer than ``timeout`` seconds; ssl.SSLError is one.
            BadOption: as :func:`make_context`.
        """
        context = make_context(self._tls)
        raw = socket.create_connection(address, timeout)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return context.wrap_socket(raw, server_hostname=hostname or address[0])
        except BaseException:
            raw.close()
            raise
