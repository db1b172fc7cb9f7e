"""Spark's REST submission protocol, ``v1/submissions``, as the master of a standalone cluster answers it.

Each call is one connection with a deadline for all of it, and its reply is bounded. Nothing is believed that is not
what the protocol says.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import re
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from jobpipe.config.types.secrets import Secret
from jobpipe.errors import ConfigError, LauncherUnavailable, NotAuthorized, short_repr

SUBMIT_SECONDS = 30.0
STATUS_SECONDS = 3.0
KILL_SECONDS = 5.0
MOST_BYTES = 1024 * 1024  # of a reply, with its headers; a message may hold Java's stack
SUBMISSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")
_VERSION = "4.3.0"  # of the protocol's fields, which have not changed since 1.4
_MESSAGE_MOST = 300


@dataclass(frozen=True, kw_only=True)
class DriverRequest:
    """A driver that is to be started. Master and workers show all of it: no secrets."""

    main_class: str
    arguments: tuple[str, ...]
    properties: Mapping[str, str]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class DriverStatus:
    """What a master says of a driver.

    Attributes:
        state: Spark's ``driverState``; "" if the master does not know the driver.
        message: of the cluster, one line; "" if it says nothing.
        worker: ``host:port`` of the worker that has it; "" if none has.
    """

    state: str
    message: str
    worker: str


class _Lost(Exception):
    """The request may have arrived, and there is no answer that can be understood."""


class Submissions:
    """A master's REST interface.

    Args:
        url: ``http://HOST:PORT``.
        token: for a master with ``JWSFilter``; read at each call, and sent nowhere else.
    """

    def __init__(self, url: str, token: Secret | None) -> None:
        self._url = url
        self._token = token

    def submit(self, submission: DriverRequest) -> str:
        """Start a driver; return its id.

        Raises:
            ConfigError: the master refuses it, or the token cannot be read.
            NotAuthorized: the master wants another token.
            LauncherUnavailable: there is no answer, or the master takes no drivers now.
        """
        found = self._ask(
            "POST",
            "/v1/submissions/create",
            {
                "action": "CreateSubmissionRequest",
                "clientSparkVersion": _VERSION,
                "appResource": "",
                "mainClass": submission.main_class,
                "appArgs": list(submission.arguments),
                "sparkProperties": dict(submission.properties),
                "environmentVariables": dict(submission.environment),
            },
            SUBMIT_SECONDS,
        )
        identity = found.get("submissionId")
        if found.get("success") is True and isinstance(identity, str) and SUBMISSION_ID.fullmatch(identity):
            return identity
        if found.get("success") is False:
            raise self._unavailable(f"takes no jobs now: {_message(found) or 'it does not say why'}")
        raise self._unavailable("did not answer as the protocol says", perhaps_started=True)

    def status(self, identity: str) -> DriverStatus:
        """Return what the master says of a driver.

        Raises:
            ConfigError, NotAuthorized, LauncherUnavailable: as :meth:`submit`.
        """
        found = self._ask("GET", f"/v1/submissions/status/{identity}", None, STATUS_SECONDS)
        state, worker = found.get("driverState"), found.get("workerHostPort")
        if found.get("submissionId") != identity or not isinstance(found.get("success"), bool):
            raise self._unavailable("did not answer as the protocol says")
        return DriverStatus(
            state if isinstance(state, str) and found["success"] else "",
            _message(found),
            worker[:_MESSAGE_MOST] if isinstance(worker, str) else "",
        )

    def kill(self, identity: str) -> None:
        """Ask the master to kill a driver; one that has ended is left alone.

        Raises:
            ConfigError, NotAuthorized, LauncherUnavailable: as :meth:`submit`.
        """
        self._ask("POST", f"/v1/submissions/kill/{identity}", None, KILL_SECONDS)

    # -- one call ------------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None, seconds: float) -> dict[str, object]:
        headers = {"Connection": "close", "Content-Type": "application/json;charset=UTF-8"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {_revealed(self._token)}"
        deadline = time.monotonic() + seconds
        try:
            opened = self._connect(deadline)
        except (OSError, UnicodeError) as error:
            raise self._unavailable(f"does not answer: {error}") from error
        with contextlib.closing(opened):
            try:
                status, text = _exchange(opened, self._url, method, path, headers, body, deadline)
            except (OSError, http.client.HTTPException, _Lost) as error:
                why = str(error) or type(error).__name__
                raise self._unavailable(f"gave no answer: {why[:_MESSAGE_MOST]}", perhaps_started=True) from error
        return self._parse_response(status, text)

    def _connect(self, deadline: float) -> socket.socket:
        parts = urlsplit(self._url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        opened = socket.create_connection((host, port), _left(deadline))
        if parts.scheme != "https":
            return opened
        try:
            opened.settimeout(_left(deadline))
            return ssl.create_default_context().wrap_socket(opened, server_hostname=host)
        except BaseException:
            opened.close()
            raise

    def _parse_response(self, status: int, text: bytes) -> dict[str, object]:
        if status in (401, 403):
            given = "refuses the token" if self._token is not None else "wants a token"
            raise NotAuthorized(
                f"the master at {self._url} {given} (HTTP {status}): give launcher: {{token: file:PATH}}, a token "
                "that is signed with the secretKey of its JWSFilter and has not expired",
                key="pipeline.launcher.token",
            )
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._unavailable(
                f"is not the REST interface of Spark's master (HTTP {status}); launcher.url is http://HOST:6066, and "
                "the master's configuration has spark.master.rest.enabled true",
                perhaps_started=True,
            )
        if status in (400, 468):
            raise ConfigError(
                f"the master at {self._url} refuses the request: {_message(found)}", key="pipeline.launcher"
            )
        if status != 200:
            raise self._unavailable(f"failed (HTTP {status}): {_message(found)}", perhaps_started=True)
        return found

    def _unavailable(self, how: str, *, perhaps_started: bool = False) -> LauncherUnavailable:
        return LauncherUnavailable(f"the master at {self._url} {how}", url=self._url, perhaps_started=perhaps_started)


def _exchange(
    opened: socket.socket,
    url: str,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: Mapping[str, object] | None,
    deadline: float,
) -> tuple[int, bytes]:
    """Send a request and read its reply: status and body."""
    opened.settimeout(_left(deadline))
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.sock = opened
    connection.request(method, path, None if body is None else json.dumps(body).encode(), dict(headers))
    with contextlib.closing(http.client.HTTPResponse(_Source(opened, deadline), method=method)) as reply:  # type: ignore[arg-type]
        reply.begin()
        return reply.status, reply.read()


class _Source:
    """What ``http.client`` takes for a socket."""

    def __init__(self, opened: socket.socket, deadline: float) -> None:
        self._opened = opened
        self._deadline = deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Bounded(self._opened, self._deadline))


class _Bounded(io.RawIOBase):
    """Bytes of a socket, until the deadline, and no more than :data:`MOST_BYTES`."""

    def __init__(self, opened: socket.socket, deadline: float) -> None:
        self._opened = opened
        self._deadline = deadline
        self._left = MOST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._opened.settimeout(_left(self._deadline))
        count = self._opened.recv_into(buffer)
        self._left -= count
        if self._left < 0:
            raise _Lost(f"its answer is longer than {MOST_BYTES} bytes")
        return count


def _left(deadline: float) -> float:
    """Return how many seconds are left, more than 0.

    Raises:
        TimeoutError: none are.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _revealed(token: Secret) -> str:
    text = token.reveal()
    if _TOKEN.fullmatch(text) is None:
        raise ConfigError(f"{token}: expected a bearer token: one word of ASCII", key="pipeline.launcher.token")
    return text


def _message(found: Mapping[str, object]) -> str:
    """Return the first line of what a master says."""
    message = found.get("message")
    if not isinstance(message, str):
        return ""
    lines = [line for line in message.splitlines() if line.strip() and line.strip() != "Exception from the cluster:"]
    return short_repr(lines[0])[:_MESSAGE_MOST] if lines else ""
