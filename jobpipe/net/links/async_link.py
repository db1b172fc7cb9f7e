"""A link on asyncio. A client makes calls on it; a server streams its answers, and receives uploads.

The server's end, which runs the handlers, is in :mod:`jobpipe.net.servers.served_link`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
import zlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from jobpipe.errors import JobpipeError, LinkTimeout, LocalProtocolError, RemoteProtocolError
from jobpipe.net.links.async_pump import Pump
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.net.links.socket_options import copy_of, greeting, mapped
from jobpipe.net.links.upload_buffer import UploadBuffers
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.wire import CHUNK, Data, Fault, Hello, Message, Part, Ping, Pong, Reply, Request, Side, Welcome
from jobpipe.wire.frames import CONTROL_LIMIT
from jobpipe.wire.wire_messages import choose_version

if TYPE_CHECKING:
    from jobpipe.net.address import Endpoint


class Link(Pump):
    """One link to a peer. Belongs to the event loop it was made in; all methods are called there.

    A client gets it from :func:`connect`, a server's handler as its first argument.

    Attributes:
        hello: What the client said.
        welcome: What the server answered. Not set yet while a handler's ``welcome`` method runs.
        proven: The peer has shown the secret of the job that this server serves: see :meth:`note_proof`.
    """

    hello: Hello
    welcome: Welcome

    def __init__(self, side: Side, timing: LinkTimeouts) -> None:
        super().__init__(side, timing)
        self._greeting: asyncio.Future[Hello | Welcome] = self._loop.create_future()
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        self._pings: dict[int, asyncio.Future[None]] = {}
        self._next_id = 1
        self._uploading = asyncio.Lock()
        self._upload_buffers = UploadBuffers(
            lambda paused: self._read_gate("upload", paused=paused), self._on_upload_taken
        )
        self.proven = False

    # ------------------------------------------------------------------------------------------------------- client

    async def call(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        blob: bytes = b"",
        *,
        timeout: float,
        upload: bytes | memoryview = b"",
    ) -> Reply:
        """Ask and wait for the answer. Calls run side by side. An answer after the time-out is dropped.

        Args:
            op: What is asked.
            args: JSON object.
            blob: Bytes that travel in the request itself. The whole request has at most 16 MiB, or 1 MiB until we
                have shown the server the secret of its job; an appender's blob, 8 MiB besides.
            timeout: Seconds until the answer must be there.
            upload: Bytes that follow the request as DATA; must not change until the call returns.

        Raises:
            LinkTimeout: no answer in time; the link stays, unless an upload was cut short.
            JobpipeError: the error the peer answered, or why the link ended.
        """
        data = memoryview(upload).cast("B")
        request = Request(self._next_id, op, {} if args is None else args, blob, data.nbytes)
        future: asyncio.Future[Reply] = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout):
                if data.nbytes:
                    await self._upload(request, data, future)
                else:
                    self._ask(request, future)
                    await self._drain()
                return await future
        except TimeoutError as error:
            raise LinkTimeout(
                f"{self.peer} did not answer {op} within {timeout:g} s", peer=self.peer, op=op, seconds=timeout
            ) from error
        finally:
            self._pending.pop(request.id, None)
            if future.done() and not future.cancelled():
                future.exception()  # seen: asyncio must not log it
            future.cancel()

    def _ask(self, request: Request, future: asyncio.Future[Reply]) -> None:
        request = dataclasses.replace(request, id=self._next_id) if request.id != self._next_id else request
        self._write(request)
        self._next_id += 1
        self._pending[request.id] = future

    async def _upload(self, request: Request, data: memoryview, future: asyncio.Future[Reply]) -> None:
        async with self._uploading:
            self._ask(request, future)
            try:
                for start in range(0, data.nbytes, CHUNK):
                    chunk = data[start : start + CHUNK]
                    await self.send_data(chunk, zlib.crc32(chunk))
            except BaseException:
                self.abort()  # the peer waits for bytes that will not come
                raise

    def note_proof(self) -> None:
        """Note that the peer has shown the secret of the job that this server serves, not only a certificate.

        From now on its requests may be as large as the protocol allows. They are still counted in the quota of its
        identity, but never refused for exceeding it.
        """
        self.proven = True
        self._wire.request_limit = CONTROL_LIMIT

    def allow_blobs(self, size: int) -> None:
        """Let the peer's requests have blobs of that size besides; the quota of its identity bounds them all."""
        self._wire.blob_limit = size

    async def ping(self, timeout: float) -> None:
        """Send PING and wait for its PONG.

        Raises:
            LinkTimeout: no PONG within ``timeout`` seconds.
            JobpipeError: why the link ended.
        """
        nonce = next(self._nonces)
        future = self._pings[nonce] = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout):
                self._write(Ping(nonce))
                await future
        except TimeoutError as error:
            raise LinkTimeout(f"{self.peer} did not answer a ping", peer=self.peer, seconds=timeout) from error
        finally:
            self._pings.pop(nonce, None)
            future.cancel()

    # ------------------------------------------------------------------------------------------------------- server

    async def send_part(self, request_id: int, header: dict[str, Any]) -> None:
        """Announce the next piece of the stream that answers a request; its bytes follow by :meth:`send_data`.

        Raises:
            LocalProtocolError: another request's stream is open, or the request is answered.
            JobpipeError: why the link ended.
        """
        self._write(Part(request_id, header))
        await self._drain()

    async def send_data(self, payload: bytes | memoryview, crc: int) -> None:
        """Send one DATA frame, wait for room in the write buffer, and let the loop serve others.

        Args:
            payload: 1 byte to 1 MiB, best ``CHUNK``; it must not change before it has left the buffer. This method
                does not copy it; the transport may.
            crc: Its CRC-32.

        Raises:
            JobpipeError: why the link ended; a peer that takes nothing for ``timing.write`` is cut.
        """
        view = memoryview(payload)
        self._write_data(view if view.format == "B" and view.contiguous else view.cast("B"), crc)
        await self._drain()
        await asyncio.sleep(0)  # drain does not yield while the peer keeps up, and others wait for their turn

    async def receive_stream(self, request: Request) -> AsyncIterator[bytes]:
        """Give the bytes that the client uploads with ``request``, as they come; once, to one reader.

        Once more than 1 MiB of all uploads waits to be taken, the socket is not read again until at most 512 KiB wait.
        What the handler leaves unread is thrown away.

        Raises:
            JobpipeError: why the link ended before all had come.
        """
        upload = self._upload_buffers.of(request.id)
        if upload is not None:
            async for payload in upload.chunks():
                yield payload

    # ----------------------------------------------------------------------------------------------------- messages

    def _on_message(self, message: Message) -> None:
        match message:
            case Reply(id=number):
                future = self._pending.pop(number, None)
                if future is not None and not future.done():
                    future.set_result(message)
            case Fault(id=int(number)):
                future = self._pending.pop(number, None)
                if future is not None and not future.done():
                    future.set_exception(message.error())
            case Fault():
                self._end(message.error())
            case Pong(nonce):
                waiter = self._pings.get(nonce)
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
            case Hello() | Welcome():
                if not self._greeting.done():
                    self._greeting.set_result(message)
            case Request():
                if message.upload:
                    self._upload_buffers.begin(message.id, message.upload)
                self._on_request(message)
            case Data(payload) if self._wire.side is Side.SERVER:
                self._upload_buffers.put(payload)
            case _:
                raise RemoteProtocolError(f"{self.peer} streams to a link that takes no streams", peer=self.peer)

    def _on_request(self, request: Request) -> None:
        raise LocalProtocolError("this link serves no requests")

    def _on_upload_taken(self, size: int) -> None:
        """Note that ``size`` bytes of an upload were taken by the handler, or thrown away."""

    def _on_end(self, why: JobpipeError) -> None:
        self._upload_buffers.fail(why)
        waiting: list[asyncio.Future[Any]] = [self._greeting, *self._pending.values(), *self._pings.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(copy_of(why))
                future.exception()  # seen: perhaps no caller waits for it

    async def _greet(self, timeout: float, what: str) -> Hello | Welcome:
        """Wait for the peer's first message."""
        try:
            async with asyncio.timeout(timeout):
                return await self._greeting
        except TimeoutError as error:
            raise LinkTimeout(f"{self.peer} sent no {what} within {timeout:g} s", peer=self.peer, what=what) from error


async def connect(
    endpoint: Endpoint,
    hello: Hello,
    *,
    tls: ssl.SSLContext | None,
    server_hostname: str | None = None,
    timing: LinkTimeouts | None = None,
) -> Link:
    """Open a link and wait for WELCOME.

    Args:
        endpoint: Where.
        hello: Who we are and what we want; ``heartbeat`` is set by this function.
        tls: The client's context, or None for plaintext.
        server_hostname: The name that the server's certificate must bear; by default that of the topic's publisher.
        timing: Deadlines.

    Raises:
        NotAuthorized: a certificate was refused, or the server refuses us.
        LinkError: no connection, handshake or WELCOME in time, or the connection was cut; another attempt may work.
        RemoteProtocolError: the peer does not speak our protocol.
        JobpipeError: what the server refused us with.
    """
    timing = timing or LinkTimeouts()
    loop = asyncio.get_running_loop()
    link = Link(Side.CLIENT, timing)
    peer = str(endpoint)
    hello = dataclasses.replace(hello, heartbeat=True)
    server_hostname = server_hostname or topic_server_name(hello.topic)
    secured = None if tls is None else timing.handshake
    farewell = None if tls is None else timing.goodbye
    try:
        with greeting(tls=tls is not None):
            with mapped(peer, "connect to"):
                async with asyncio.timeout(timing.connect + (secured or 0)):
                    await loop.create_connection(
                        lambda: link,
                        endpoint.host,
                        endpoint.port,
                        ssl=tls,
                        server_hostname=server_hostname if tls is not None else None,
                        ssl_handshake_timeout=secured,
                        ssl_shutdown_timeout=farewell,
                    )
            link._write(hello)
            answer = await link._greet(timing.welcome, "WELCOME")
        if not isinstance(answer, Welcome):
            raise RemoteProtocolError(f"{peer} sent no WELCOME", peer=peer)
        check_welcome(answer, hello, peer)
        link.hello, link.welcome = hello, answer
        link._raise_if_ended()
        link._watch(beats=True)
    except BaseException:
        link.abort()
        raise
    return link


def check_welcome(welcome: Welcome, hello: Hello, peer: str) -> None:
    """Refuse a server that speaks another version, or that got a reused port and serves another topic.

    Raises:
        RemoteProtocolError: the version or the topic is another one.
    """
    choose_version((welcome.version, welcome.version))
    if hello.topic and welcome.topic != hello.topic:
        raise RemoteProtocolError(
            f"{peer} serves topic {welcome.topic!r}, not {hello.topic!r}",
            peer=peer,
            topic=hello.topic,
            served=welcome.topic,
        )
