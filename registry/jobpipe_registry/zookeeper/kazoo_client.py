"""A kazoo client that tells why it cannot connect, and that no failed authentication ends.

kazoo 2.11 stops for good when the connection drops during SASL, when it is refused there, and when anything unforeseen
happens; some of these end its thread with a traceback. Here each is a failed attempt like a refused connection: kazoo's
own loop tries the next server, with its back-off.
"""

from __future__ import annotations

import importlib.util
import socket
import ssl
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    SASLException,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.retry import KazooRetry

from jobpipe_registry.credentials import Sasl, Tls
from jobpipe_registry.registry_errors import BadOption, RegistryError
from jobpipe_registry.registry_options import RegistryOptions
from jobpipe_registry.zookeeper.kazoo_log import KazooLog
from jobpipe_registry.zookeeper.zookeeper_tls import make_context

_REFUSED = (AuthFailedError, SessionClosedRequireSaslError)


def check_options(options: RegistryOptions) -> None:
    """Check what can be known without a server, so that it is an error at once.

    Raises:
        BadOption: a package for SASL is missing, or a file for TLS is wrong.
    """
    if options.tls is not None:
        make_context(options.tls)
    if options.sasl is not None:
        wanted = {"puresasl": "pure-sasl", **({"kerberos": "kerberos"} if options.sasl.mechanism == "GSSAPI" else {})}
        missing = [package for module, package in wanted.items() if importlib.util.find_spec(module) is None]
        if missing:
            raise BadOption(
                "sasl.mechanism", f"what is installed; {options.sasl.mechanism} needs: pip install {missing[0]}"
            )


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


class RegistryClient(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """One kazoo client for the options.

    Args:
        on_attempt: Called with each failed attempt's error, and with None when one succeeded, authentication included;
            in kazoo's thread, so it must not wait.
    """

    def __init__(
        self, options: RegistryOptions, on_attempt: Callable[[Exception | None], None], logger: KazooLog
    ) -> None:
        sasl = None if options.sasl is None else _for_kazoo(options.sasl)
        retry = KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_jitter=0.4, max_delay=2.0)
        super().__init__(
            hosts=options.connect,
            timeout=options.session_timeout,
            handler=SequentialThreadingHandler() if options.tls is None else TlsHandler(options.tls),
            use_ssl=options.tls is not None,
            connection_retry=retry,
            logger=logger,
        )
        connection = _Connection(self, self._conn_retry.copy(), logger=logger, sasl_options=sasl)
        connection.on_attempt = on_attempt
        connection.options = options
        self._connection = connection


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    on_attempt: Callable[[Exception | None], None]
    options: RegistryOptions

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        found: list[tuple[str, str, int]] = super()._expand_client_hosts()
        if not found:
            self.on_attempt(RegistryError("none of its host names can be resolved"))
        return found

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        try:
            timeouts = super()._connect(host, hostip, port)
        except SessionExpiredError:
            raise  # kazoo begins a new session
        except Exception as error:
            self.on_attempt(error)
            if isinstance(error, (ConnectionDropped, KazooTimeoutError)):
                raise
            raise ConnectionDropped(explain(error, self.options)) from error
        self.on_attempt(None)
        return timeouts


def explain(error: BaseException, options: RegistryOptions) -> str:
    """Return what a failed attempt means, as a phrase without secrets."""
    cause = error.__cause__ if error.__cause__ is not None else error.__context__
    if isinstance(error, ConnectionDropped):
        if isinstance(cause, OSError):
            return _explain_socket(cause, options)
        hint = "" if options.tls is not None else "; does this port expect TLS (ssl.enabled)?"
        return f"the server closed the connection before a session began{hint}"
    if isinstance(error, AuthFailedError) and isinstance(cause, ConnectionDropped):
        return f"the connection was lost during {options.sasl}; old servers refuse a wrong password in this way"
    if isinstance(error, _REFUSED) and cause is None:
        if options.sasl is None:
            return "the server demands SASL, and sasl.mechanism is not set"
        what = "wrong name or password" if options.sasl.mechanism == "DIGEST-MD5" else "no such principal there"
        return f"{options.sasl} was refused ({what}, or a server without SASL)"
    if isinstance(error, (AuthFailedError, SASLException)) or type(error).__module__ in ("kerberos", "puresasl"):
        return f"{options.sasl} failed: {_words(cause if cause is not None else error)}"
    if isinstance(error, KazooTimeoutError):
        hint = "" if options.sasl is None else f", at least not to {options.sasl}: does it know SASL?"
        return f"the server does not answer{hint}"
    if isinstance(error, RegistryError):
        return str(error)
    return type(error).__name__


def _explain_socket(error: OSError, options: RegistryOptions) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        trusted = "" if options.tls is None else f"; trusted is {options.tls.ca}"
        return f"the server's certificate is refused: {error.verify_message}{trusted}"
    if isinstance(error, ssl.SSLEOFError | ConnectionResetError) and options.tls is not None:
        return "the server ended the TLS handshake; does this port expect TLS?"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "").replace("_", " ").lower()
        if "alert" in reason:
            ours = "no client certificate" if options.tls is None else options.tls.cert or "no client certificate"
            return f"the server refused us during the TLS handshake ({reason}); we show {ours}"
        return f"TLS failed: {reason or type(error).__name__}"
    return "the server does not answer" if isinstance(error, TimeoutError) else error.strerror or type(error).__name__


def _words(error: BaseException) -> str:
    """Return the texts of a library's error, which kerberos gives as nested tuples."""

    def texts(value: object) -> list[str]:
        if isinstance(value, tuple | list):
            return [text for item in value for text in texts(item)]
        return [value] if isinstance(value, str) else []

    return ", ".join(texts(error.args)) or type(error).__name__


def _for_kazoo(sasl: Sasl) -> dict[str, str]:
    if sasl.mechanism == "DIGEST-MD5":
        return {"mechanism": sasl.mechanism, "username": sasl.username, "password": sasl.password}
    ours = {"principal": sasl.principal} if sasl.principal else {}
    return {"mechanism": sasl.mechanism, "service": sasl.service, **ours}
