"""A link on a plain blocking socket, for Spark's workers: no event loop, no thread, and no copy of the data.

It never reads ahead: payloads of streams go from the socket straight into the caller's buffer.
It answers PING only while it waits for something, so it tells the server not to expect more (``heartbeat`` is false).
"""

from __future__ import annotations

import dataclasses
import socket
import ssl
import time
import zlib
from typing import TYPE_CHECKING, Any

from jobpipe.errors import (
    ChecksumMismatch,
    LinkBroken,
    LinkTimeout,
    LocalProtocolError,
    RemoteProtocolError,
)
from jobpipe.net.links.async_link import check_welcome
from jobpipe.net.links.blocking_pump import BlockingPump
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.net.links.socket_options import greeting, mapped, peer_of, tune
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.wire import CHUNK, DataHeader, Fault, Hello, Message, Part, Reply, Request, Welcome

if TYPE_CHECKING:
    from jobpipe.net.address import Endpoint

_sessions: dict[tuple[ssl.SSLContext, str, int, str | None], ssl.SSLSession] = {}
"""The last TLS session of each server, under the name it was verified by: halves the price of a reconnect."""

MAX_SESSIONS = 64


def _connected(
    endpoint: Endpoint, seconds: float, tls: ssl.SSLContext | None, hostname: str, session: ssl.SSLSession | None
) -> socket.socket:
    """Return a connected socket; over TLS, one that has yet to shake hands.

    As :func:`socket.create_connection`, but TLS comes before the connection: put over one that the peer has cut by
    then, CPython raises an error and leaves the socket open.

    Raises:
        OSError, ValueError: it failed.
    """
    failed = OSError(f"{endpoint.host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            if tls is not None:
                sock = tls.wrap_socket(sock, do_handshake_on_connect=False, server_hostname=hostname, session=session)
            sock.settimeout(seconds)
            sock.connect(address)
        except OSError as error:
            failed = error
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failed


class BlockingLink(BlockingPump):
    """One link, one user at a time, in the process that made it.

    After a LinkError or ProtocolError the link is cut; after any other error, an answered Fault, it goes on.

    Attributes:
        hello: What we said.
        welcome: What the server answered.
        stream_reply: The answer that ended the last stream.
    """

    hello: Hello
    welcome: Welcome

    def __init__(self, sock: socket.socket, peer: str, timing: LinkTimeouts) -> None:
        super().__init__(sock, peer, timing)
        self.stream_reply: Reply | None = None
        self._next_id = 1

    @classmethod
    def connect(
        cls,
        endpoint: Endpoint,
        hello: Hello,
        *,
        tls: ssl.SSLContext | None,
        server_hostname: str | None = None,
        timing: LinkTimeouts | None = None,
    ) -> BlockingLink:
        """Open a link and wait for WELCOME; arguments and errors are those of :func:`.async_link.connect`."""
        timing = timing or LinkTimeouts()
        peer = str(endpoint)
        server_hostname = server_hostname or topic_server_name(hello.topic)
        known = None if tls is None else _sessions.get((tls, endpoint.host, endpoint.port, server_hostname))
        with mapped(peer, "connect to"):
            sock = _connected(endpoint, timing.connect, tls, server_hostname, known)
        try:
            tune(sock, timing)
            with greeting(tls=tls is not None):
                if isinstance(sock, ssl.SSLSocket):
                    sock.settimeout(timing.handshake)  # counts for the handshake as a whole
                    with mapped(peer, "handshake with"):
                        sock.do_handshake()
                with mapped(peer, "connect to"):
                    link = cls(sock, peer_of(sock.getpeername()), timing)
                link._greet(dataclasses.replace(hello, heartbeat=False))
            if tls is not None and isinstance(sock, ssl.SSLSocket) and sock.session is not None:
                if len(_sessions) >= MAX_SESSIONS:
                    _sessions.clear()
                _sessions[tls, endpoint.host, endpoint.port, server_hostname] = sock.session
        except BaseException:
            sock.close()
            raise
        return link

    # -------------------------------------------------------------------------------------------------------- calls

    def call(self, op: str, args: dict[str, Any] | None = None, blob: bytes = b"", *, timeout: float) -> Reply:
        """Ask and wait for the answer.

        Raises:
            LinkTimeout: no answer within ``timeout`` seconds; the link is cut.
            JobpipeError: the error the server answered, or why the link is cut.
        """
        with self._io(op):
            self._begin(op, args, blob, 0)
            answer = self._answer(time.monotonic() + timeout)
        return self._finish(answer)

    def start_stream(self, op: str, args: dict[str, Any] | None = None, *, timeout: float) -> None:
        """Ask for a stream; read it with :meth:`next_part` and the two methods for chunks, up to its end.

        Args:
            op: What is asked.
            args: JSON object.
            timeout: Seconds within which the request must have been taken by the server's host.
        """
        with self._io(op):
            self.stream_reply = None
            self._begin(op, args, b"", 0, timeout)

    def next_part(self) -> Part | None:
        """Wait at most ``timing.silence`` for the next part of the stream; None: its last answer has come.

        All chunks of the part before must have been read.

        Raises:
            JobpipeError: the error the server answered instead; the link goes on.
            LinkError: the stream was cut.
        """
        with self._io("next part"):
            self._require_stream()
            event = self._receive(time.monotonic() + self.timing.silence)
            if isinstance(event, DataHeader):
                raise RemoteProtocolError(f"{self.peer} sent DATA where a PART or the end was due", peer=self.peer)
        if isinstance(event, Part):
            return event
        self.stream_reply = self._finish(event)
        return None

    def next_chunk_length(self) -> int:
        """Wait at most ``timing.silence`` for the next DATA frame; return the length of its payload.

        Raises:
            JobpipeError: the error the server answered instead; the link goes on.
            LinkError: the stream was cut.
            RemoteProtocolError: the part, or the stream, ended instead.
        """
        with self._io("next chunk"):
            self._require_stream()
            event = self._receive(time.monotonic() + self.timing.silence)
            if isinstance(event, DataHeader):
                self._chunk = event
                return event.length
            if not isinstance(event, Fault):
                raise RemoteProtocolError(f"{self.peer} sent {event.kind.name} where DATA was due", peer=self.peer)
        self._finish(event)
        raise AssertionError("a fault raises")

    @property
    def chunk_crc(self) -> int:
        """The checksum that came with the chunk announced by :meth:`next_chunk_length`."""
        if self._chunk is None:
            raise LocalProtocolError("no chunk was announced")
        return self._chunk.crc

    def read_chunk_into(self, view: memoryview) -> None:
        """Read the payload announced by :meth:`next_chunk_length` straight into ``view`` and check its CRC.

        The server may pause for ``timing.silence`` between two bytes, and ``timing.write`` for the whole.

        Raises:
            ChecksumMismatch: the bytes are damaged; ``view`` holds rubbish, the link is cut.
            LinkError: the stream was cut.
        """
        with self._io("read chunk"):
            chunk = self._chunk
            if chunk is None or view.nbytes != chunk.length:
                raise LocalProtocolError(f"a view of {view.nbytes} bytes, no such chunk was announced")
            receive = self._socket.recv_into
            self._socket.settimeout(self.timing.silence)
            deadline = time.monotonic() + self.timing.write
            got, length = 0, chunk.length
            while got < length:
                count = receive(view[got:])
                if not count:
                    raise LinkBroken(f"{self.peer} ended the link in the middle of a frame", mid_frame=True)
                got += count
                if time.monotonic() > deadline and got < length:
                    raise LinkTimeout(f"{self.peer} took over {self.timing.write:g} s for a chunk", peer=self.peer)
            crc = zlib.crc32(view)
            if crc != chunk.crc:
                raise ChecksumMismatch(
                    f"DATA from {self.peer} is damaged", peer=self.peer, expected=chunk.crc, actual=crc
                )
            self._chunk = None

    # ------------------------------------------------------------------------------------------------------ uploads

    def start_upload(self, op: str, args: dict[str, Any] | None = None, *, length: int, timeout: float) -> None:
        """Ask, and announce ``length`` bytes: send exactly so many with :meth:`send_data`, then :meth:`end_upload`."""
        if length <= 0:
            raise LocalProtocolError("an upload has at least one byte; use call without", length=length)
        with self._io(op):
            self._begin(op, args, b"", length, timeout)

    def send_data(self, payload: bytes | memoryview) -> None:
        """Send the next bytes of the upload, any number; cut into frames here, not copied.

        Raises:
            LinkError: the server took none of them for ``timing.write`` seconds, or the link broke.
            LocalProtocolError: more than announced.
        """
        with self._io("upload"), memoryview(payload) as whole, whole.cast("B") as view:
            self._socket.settimeout(self.timing.write)
            for start in range(0, view.nbytes, CHUNK):
                with view[start : start + CHUNK] as chunk:
                    self._wire.send_data_header(chunk.nbytes, zlib.crc32(chunk))
                    (header,) = self._wire.data_to_send()
                    self._socket.sendall(header)
                    self._socket.sendall(chunk)

    def end_upload(self, *, timeout: float) -> Reply:
        """Wait for the answer to the upload; errors are those of :meth:`call`."""
        with self._io("end upload"):
            if self._wire.state.upload_left:
                raise LocalProtocolError(f"{self._wire.state.upload_left} bytes of the upload were not sent")
            answer = self._answer(time.monotonic() + timeout)
        return self._finish(answer)

    # ---------------------------------------------------------------------------------------------------- internals

    def _begin(
        self, op: str, args: dict[str, Any] | None, blob: bytes, upload: int, timeout: float | None = None
    ) -> None:
        if self._request is not None:
            raise LocalProtocolError(f"{op} while {self._request.op} is not over", op=op)
        request = Request(self._next_id, op, {} if args is None else args, blob, upload)
        self._send(request, timeout or self.timing.write)
        self._next_id += 1
        self._request = request

    def _require_stream(self) -> None:
        if self._request is None or self._chunk is not None:
            raise LocalProtocolError("no stream is open, or its last chunk was not read")

    def _answer(self, deadline: float) -> Reply | Fault:
        event = self._receive(deadline)
        if not isinstance(event, (Reply, Fault)):
            raise RemoteProtocolError(f"{self.peer} streams where an answer was due", peer=self.peer)
        return event

    def _finish(self, answer: Message) -> Reply:
        """The request is over: return its REPLY, or raise its FAULT; the link goes on, unless an upload is open."""
        self._request = None
        if self._wire.state.upload_left:
            self.abort()
        if isinstance(answer, Fault):
            raise answer.error()
        if not isinstance(answer, Reply):
            raise LocalProtocolError(f"{answer.kind.name} is no answer")
        return answer

    def _greet(self, hello: Hello) -> None:
        deadline = time.monotonic() + self.timing.welcome
        with self._io("greet"):
            try:
                self._send(hello, self.timing.welcome)
            except TimeoutError:
                raise
            except OSError:  # refused: the alert that says why may still lie in our receive buffer
                self._receive(deadline)
                raise
            answer = self._receive(deadline)
            if not isinstance(answer, Welcome):
                raise RemoteProtocolError(f"{self.peer} sent no WELCOME", peer=self.peer)
            check_welcome(answer, hello, self.peer)
        self.hello, self.welcome = hello, answer
