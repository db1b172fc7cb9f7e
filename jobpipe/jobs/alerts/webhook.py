"""A POST of JSON to a webhook.

A webhook's address is a secret: no error of this module repeats any of it. Which host it names is not restricted:
who may submit a pipeline can run code as the server's user, and reach that host anyway.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT = 10.0  # for connecting, whatever the number of addresses, and for each read of the answer
ADDRESS_SECONDS = 2.0  # for connecting to one of several addresses, at least
TOTAL_SECONDS = 20.0
MAX_URL = 2000

Resolve = Callable[[str, int], Sequence[str]]


class WebhookError(Exception):
    """It was not delivered; another attempt may be."""


class WebhookRefused(WebhookError):
    """It will never be delivered to that address."""


class WebhookRejected(WebhookError):
    """The webhook refuses the message itself: it may be set up wrongly, for a while.

    Attributes:
        status: of its answer; 0 without one.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Cutter:
    """Ends posts from another thread, for good."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cut: Callable[[], None] | None = None
        self.is_closed = False

    def watch(self, cut: Callable[[], None] | None) -> None:
        """Note what ends the post that begins; None: it has ended."""
        with self._lock:
            self._cut = cut
            if self.is_closed and cut is not None:
                cut()

    def close(self) -> None:
        """End the post that is made, if there is one; it raises. Later ones end at once. Idempotent."""
        with self._lock:
            self.is_closed = True
            if self._cut is not None:
                self._cut()


@dataclass(frozen=True, repr=False)
class Webhook:
    """A webhook's address, taken apart."""

    scheme: str
    host: str
    port: int
    target: str

    @classmethod
    def parse(cls, url: str) -> Webhook:
        """Return it.

        Raises:
            WebhookRefused: it is no https address, nor http of loopback.
        """
        try:
            parts = urlsplit(url.strip())
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise WebhookRefused("it is not an address") from None
        if len(url) > MAX_URL or not url.strip().isascii() or not url.strip().isprintable() or not host:
            raise WebhookRefused("it is not an address")
        if parts.scheme not in ("https", "http") or parts.username is not None or parts.password is not None:
            raise WebhookRefused("it is not an address such as https://HOST/PATH")
        hook = cls(
            parts.scheme,
            host.lower(),
            port or (443 if parts.scheme == "https" else 80),
            (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        )
        if hook.scheme == "http" and not hook.is_loopback:
            raise WebhookRefused("http is allowed only to loopback; use https")
        return hook

    @property
    def is_loopback(self) -> bool:
        """Whether it names this host: then nothing of the message crosses a network."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __repr__(self) -> str:
        return "Webhook(***)"


def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host.

    Raises:
        OSError: there are none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def post(
    hook: Webhook,
    message: Mapping[str, Any] | bytes,
    *,
    resolver: Resolve = resolve,
    headers: Mapping[str, str] | None = None,
    cutter: Cutter | None = None,
) -> None:
    """Send a message; any status from 200 to 299 is a success. Redirects are not followed.

    If the host has several addresses, they are tried in their order until one lets us connect.

    Args:
        message: bytes are JSON already.
        headers: besides those of each post.
        cutter: may end it.

    Raises:
        WebhookRefused: it answers with a redirect; or http would leave this host.
        WebhookRejected: it answers with a status from 400 to 499, other than 408 and 429.
        WebhookError: it does not answer, or cannot take the message now.
    """
    try:
        addresses = resolver(hook.host, hook.port)
    except (OSError, ValueError):
        raise WebhookError("its host has no address") from None
    if hook.scheme == "http" and not all(
        ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in addresses
    ):
        raise WebhookRefused("it names loopback, and has another address; use https")
    connection = _Connection(hook, addresses)
    timer = threading.Timer(TOTAL_SECONDS, connection.cut)
    timer.daemon = True
    timer.start()
    try:
        if cutter is not None:
            cutter.watch(connection.cut)
        body = message if isinstance(message, bytes) else json.dumps(message, ensure_ascii=False).encode()
        always = {"Content-Type": "application/json", "User-Agent": "jobpipe", "Connection": "close"}
        connection.request("POST", hook.target, body=body, headers={**always, **(headers or {})})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise WebhookError(f"no answer ({_reason(error)})") from None
    finally:
        if cutter is not None:
            cutter.watch(None)
        timer.cancel()
        connection.close()
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        raise WebhookRefused(f"status {status}, a redirect, which is not followed")
    if 400 <= status < 500 and status not in (408, 429):
        raise WebhookRejected(f"status {status}", status)
    raise WebhookError(f"status {status}")


def _reason(error: Exception) -> str:
    """Return why there is no answer, without the address."""
    if isinstance(error, _NoConnection):
        return "; ".join(dict.fromkeys(map(_reason, error.errors))) or "it was ended"
    why = getattr(error, "strerror", None) or type(error).__name__
    return type(error).__name__ if isinstance(error, ssl.SSLError) else why


class _NoConnection(OSError):
    """None of the addresses lets us connect."""

    def __init__(self, errors: Sequence[OSError]) -> None:
        super().__init__()
        self.errors = errors


class _Connection(http.client.HTTPConnection):
    """HTTP to the first of some addresses that answers, all looked up before; TLS checks the name."""

    def __init__(self, hook: Webhook, addresses: Sequence[str]) -> None:
        super().__init__(hook.host, hook.port, timeout=TIMEOUT)
        self._hook = hook
        self._addresses = addresses
        self._is_cut = False

    def connect(self) -> None:
        """Try each address, as long as the time for connecting lasts."""
        errors: list[OSError] = []
        until = time.monotonic() + TIMEOUT
        for number, address in enumerate(self._addresses):
            left = until - time.monotonic()
            if self._is_cut or (errors and left <= 0):
                break
            share = left / (len(self._addresses) - number)
            try:
                self._connect(address, min(left, max(share, ADDRESS_SECONDS)))
            except OSError as error:
                self._drop()
                errors.append(error)
            else:
                return
        raise _NoConnection(errors)

    def _drop(self) -> None:
        sock, self.sock = self.sock, None
        if sock is not None:
            sock.close()

    def _connect(self, address: str, timeout: float) -> None:
        self.sock = socket.create_connection((address, self._hook.port), timeout)
        if self._hook.scheme == "https":
            context = ssl.create_default_context()
            self.sock = context.wrap_socket(self.sock, server_hostname=self._hook.host)
        self.sock.settimeout(TIMEOUT)

    def cut(self) -> None:
        """End it from another thread: the answer takes too long."""
        self._is_cut = True
        if self.sock is not None:
            try:
                self.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return
