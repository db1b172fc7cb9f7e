"""The server's end of one link: admits the client and answers each request in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

from jobpipe.errors import (
    JobpipeError,
    LinkClosed,
    LinkError,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
)
from jobpipe.net.links.async_link import Link
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.net.servers.accepted_connection import AcceptedConnection
from jobpipe.net.servers.identity_quota import IdentityQuotas, asking
from jobpipe.wire import Goodbye, Hello, Phase, Reply, Request, Side, Welcome
from jobpipe.wire.codec import encode, fault
from jobpipe.wire.frames import ASKING_LIMIT
from jobpipe.wire.wire_messages import choose_version

log = logging.getLogger(__name__)

MAX_REQUESTS = 64
"""Unanswered requests of one link, long polls included; those above get a Fault, twice as many end the link."""

MAX_REFUSALS = 256
"""Refusals that a link may leave unread, while its write buffer is full; one more ends it."""

UNHEARD_SECONDS = 0.2
"""How long the end of TLS is waited for of a client that reads nothing now; it could not answer."""

MAX_OP = 64  # characters: it stands in logs and in names of tasks

MAX_HELD = 32 * 1024 * 1024
"""Bytes that the unanswered requests of a link take whose peer is the job's own, above which the link is not read."""

MAX_ASKED = 4 * 1024 * 1024
"""The same for every other link."""


class LinkHandler(Protocol):
    """What a server does with its links. All methods run in the server's event loop and must not block it."""

    async def welcome(self, link: Link, hello: Hello) -> Welcome:
        """Admit a client; a raised JobpipeError refuses it, and is sent to it."""
        ...

    async def handle(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        """Answer a request with (result, blob). Runs in a task of its own, cancelled when the link ends.

        A raised JobpipeError is sent as it is; any other exception is logged and sent as a plain JobpipeError.
        """
        ...

    def disconnected(self, link: Link, why: JobpipeError) -> None:
        """A link that was welcomed has ended. Its handlers are being cancelled."""
        ...


class ServedLink(Link):
    """A client's link, with the tasks that answer its requests.

    Attributes:
        accepted: its peer, and until when; there once the transport is.
        identity: whose quota it counts to; known then.
        tasks: of its unanswered requests.
    """

    accepted: AcceptedConnection

    def __init__(
        self,
        handler: LinkHandler,
        timing: LinkTimeouts,
        forget: Callable[[ServedLink], None],
        quotas: IdentityQuotas | None = None,
    ) -> None:
        super().__init__(Side.SERVER, timing)
        self._handler = handler
        self._forget = forget
        self._welcomed = False
        self._answering = asyncio.Lock()
        self._held = 0
        self._received = 0  # bytes of requests and uploads that no handler has yet, as they are counted
        self._received_kind = "requests"  # the quota that they are counted to
        self._quotas = quotas or IdentityQuotas()
        self._uploads = 0  # unanswered requests with one
        self._refusals = 0  # since the write buffer is full: none waits until the peer has taken them
        self.tasks: set[asyncio.Task[None]] = set()
        self.identity = ""
        self._wire.request_limit = ASKING_LIMIT

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio: the transport is there, its TLS handshake done."""
        super().connection_made(transport)
        self.accepted = AcceptedConnection(transport)
        self.identity = self.accepted.identity

    async def admit(self) -> None:
        """Take HELLO, ask the handler, send WELCOME."""
        hello = await self._greet(self.timing.hello, "HELLO")
        if not isinstance(hello, Hello):
            raise RemoteProtocolError(f"{self.peer} sent no HELLO", peer=self.peer)
        choose_version(hello.versions)
        self.hello = hello
        asking.set(self.identity)
        try:
            async with asyncio.timeout(self.timing.welcome):
                welcome = await self._handler.welcome(self, hello)
        except TimeoutError as error:
            raise LinkError("the server took too long to admit us", peer=self.peer) from error
        self.welcome = welcome
        self._write(welcome)
        self._welcomed = True
        self._watch(beats=hello.heartbeat)

    @property
    def busy(self) -> bool:
        """Whether it streams an answer or takes an upload, for which there is no other try, or is not welcomed yet."""
        return not self._welcomed or bool(self._uploads) or self._wire.state.stream is not None

    @property
    def gone(self) -> bool:
        """Its transport is gone, or never came."""
        return self._lost.is_set()

    def refuse(self, error: JobpipeError) -> None:
        """End a link that was not welcomed."""
        self._end(error, fault(None, error))

    def leave(self, reason: str) -> None:
        """Say goodbye without waiting. An idle client without a heartbeat reads it when it is used again."""
        unsent = self._transport is not None and self._transport.get_write_buffer_size() > 0
        unheard = self._welcomed and not (self.hello.heartbeat or self.tasks or self.busy or unsent)
        self._end(LinkClosed(f"{reason}: link to {self.peer}", peer=self.peer, reason=reason), Goodbye(reason))
        if unheard and self._timer is not None and self._transport is not None:
            self._timer.cancel()
            self._timer = self._loop.call_later(UNHEARD_SECONDS, self._transport.abort)

    async def wait_gone(self) -> None:
        """Wait until the transport and all tasks are gone."""
        await self._lost.wait()
        if self.tasks:
            await asyncio.wait(list(self.tasks))

    def _on_request(self, request: Request) -> None:
        if len(self.tasks) >= 2 * MAX_REQUESTS:
            raise RemoteProtocolError(f"{self.peer} has {len(self.tasks)} unanswered requests", peer=self.peer)
        if len(request.op) > MAX_OP or not request.op.isprintable():
            raise RemoteProtocolError(f"{self.peer}: an operation has at most {MAX_OP} characters", peer=self.peer)
        try:
            self._quotas.acquire(self.identity, "requests", request.weight, bounded=not self.proven)
        except LinkError as error:
            self._refuse_request(request, error)
            return
        self._hold(request.weight)
        full = len(self.tasks) >= MAX_REQUESTS
        task = asyncio.create_task(self._serve(request, full=full), name=f"jobpipe-{request.op}-{self.peer}")
        self.tasks.add(task)
        task.add_done_callback(self._served)

    def _refuse_request(self, request: Request, error: LinkError) -> None:
        """Answer without a task, which would cost more than the refusal.

        Raises:
            RemoteProtocolError: the peer asks on, and takes none of its refusals.
        """
        self._answer_fault(request, error)
        self._upload_buffers.drop(request.id)
        if self._writable.is_set():
            return
        self._refusals += 1
        if self._refusals > MAX_REFUSALS:
            raise RemoteProtocolError(
                f"{self.peer} was refused {self._refusals} requests, and reads none of the answers", peer=self.peer
            )

    def resume_writing(self) -> None:
        """Asyncio: the write buffer has room."""
        self._refusals = 0
        super().resume_writing()

    def _served(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request of %s failed", self.peer, exc_info=error)

    async def _serve(self, request: Request, *, full: bool) -> None:
        self._uploads += bool(request.upload)
        asking.set(self.identity)
        try:
            if full:
                raise JobpipeError(f"more than {MAX_REQUESTS} requests are open on this link", limit=MAX_REQUESTS)
            result, blob = await self._handler.handle(self, request)
            await self._send_answer(Reply(request.id, result, blob))
        except JobpipeError as error:
            self._answer_fault(request, error)
        except Exception as error:
            log.exception("%s of %s failed", request.op, self.peer)
            self._answer_fault(request, error)
        finally:
            self._upload_buffers.drop(request.id)
            self._give_back(request)
            self._uploads -= bool(request.upload)
        with contextlib.suppress(JobpipeError):
            await self._drain()  # counts as unanswered until the peer takes it

    def _give_back(self, request: Request) -> None:
        self._quotas.release(self.identity, "requests", request.weight)
        self._hold(-request.weight)

    def _hold(self, size: int) -> None:
        """Account for unanswered requests; a link that brings too many is not read for a while."""
        self._held += size
        self._read_gate("requests", paused=self._held > (MAX_HELD if self.proven else MAX_ASKED))

    def data_received(self, data: bytes) -> None:
        """Asyncio: bytes came; what is not a whole request yet counts to the peer's identity, too.

        A link that brings more than the identity may hold is ended: there is no request yet that could be refused.
        """
        self._count_received(0)  # of a request that gets whole now, the weight counts
        super().data_received(data)
        if self._why is None:
            try:
                self._count_received(self._wire.unread + self._upload_buffers.waiting)
            except LinkError as error:
                self._end(error, fault(None, error))

    def _count_received(self, size: int) -> None:
        before, self._received = self._received, 0
        if before:
            self._quotas.release(self.identity, self._received_kind, before)
        if size:
            # Many tasks of one certificate upload at once, and each link is read up to the window of its uploads.
            # Those of the job itself count apart: a new one, which is not proven yet, must find room next to them.
            uploads = self._welcomed and self.hello.role == "publisher"
            self._received_kind = ("the job's uploads" if self.proven else "uploads") if uploads else "requests"
            self._quotas.acquire(self.identity, self._received_kind, size, bounded=not self.proven)
            self._received = size

    def _on_upload_taken(self, size: int) -> None:
        size = min(size, self._received)
        self._received -= size
        self._quotas.release(self.identity, self._received_kind, size)

    async def _send_answer(self, reply: Reply) -> None:
        """Send an answer when the peer has taken those before it, and wait until it takes this one.

        Until then it waits here as bytes, not in the write buffer; they count to the peer's identity until the peer has
        taken all but what the buffer may hold. One that comes as the buffer gets free may overtake one that waits: each
        bears the number of its request.

        Raises:
            LinkError: the identity has taken too few of its answers.
            JobpipeError: it cannot be sent.
        """
        try:
            encoded = encode(reply)
        except ProtocolError as error:
            raise JobpipeError(f"the answer cannot be sent: {error.message}") from error
        size, reply = sum(map(len, encoded)), Reply(reply.id)  # what it was made from is let go
        self._quotas.acquire(self.identity, "answers", size, bounded=not self.proven)
        try:
            if self._answering.locked() or not self._writable.is_set():
                async with self._answering:
                    await self._drain()
                    self._write(reply, encoded)
            else:
                self._write(reply, encoded)
            await self._drain()
        except ProtocolError as error:
            raise JobpipeError(f"the answer cannot be sent: {error.message}") from error
        finally:
            self._quotas.release(self.identity, "answers", size)

    def _answer_fault(self, request: Request, error: BaseException) -> None:
        if self._why is None and self._wire.phase is Phase.OPEN:
            try:
                self._write(fault(request.id, error))
            except LocalProtocolError:
                log.exception("%s of %s: its fault cannot be sent", request.op, self.peer)
                self.abort()

    def _on_end(self, why: JobpipeError) -> None:
        super()._on_end(why)
        self._count_received(0)
        for task in self.tasks:
            task.cancel()
        if self._welcomed:
            self._handler.disconnected(self, why)

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio: the transport is gone."""
        super().connection_lost(exc)
        self._forget(self)
