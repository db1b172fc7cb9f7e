"""A master's REST interface as the tests play it: what it is asked is kept, what it answers is given, or broken off."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    token: str | None
    body: Any


Answer = tuple[int, bytes] | Callable[[socket.socket], None]


def created(identity: Any = "driver-1", **more: Any) -> tuple[int, bytes]:
    """Return the answer to a submission that was taken."""
    found = {"action": "CreateSubmissionResponse", "submissionId": identity, "success": True, **more}
    return 200, json.dumps(found).encode()


def status(state: Any = None, identity: str = "driver-1", success: Any = True, **more: Any) -> tuple[int, bytes]:
    """Return the answer to a question for a driver; without a state the master does not know it."""
    found = {"action": "SubmissionStatusResponse", "submissionId": identity, "success": success, **more}
    if state is not None:
        found["driverState"] = state
    return 200, json.dumps(found).encode()


@dataclass
class Master:
    """On loopback; a context manager. ``answers`` are given in turn, the last one for ever."""

    answers: list[Answer] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        outer = self
        self.ended = threading.Event()  # what hangs, hangs until then

        class Handler(BaseHTTPRequestHandler):
            def _handle(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                outer.asked.append(Asked(self.command, self.path, self.headers.get("Authorization"), body))
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                if callable(answer):
                    answer(self.connection)
                    self.close_connection = True
                    return
                code, text = answer
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_GET(self) -> None:
                self._handle()

            def do_POST(self) -> None:
                self._handle()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign, assignment]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Master:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # -- faults --------------------------------------------------------------------------------------------------------

    def hang(self, _connection: socket.socket) -> None:
        """Say nothing."""
        self.ended.wait()

    def drip(self, connection: socket.socket) -> None:
        """Say a byte now and then, so that no single wait is long."""
        for byte in b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"x" * 10_000:
            if self.ended.wait(0.05):
                return
            connection.sendall(bytes([byte]))
