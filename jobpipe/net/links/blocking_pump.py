"""The pump under a blocking link: one socket, one user at a time, and one place that decides when the link is cut."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from types import TracebackType
from typing import Self, cast

from jobpipe.errors import (
    JobpipeError,
    LinkBroken,
    LinkClosed,
    LinkEnded,
    LinkError,
    LocalProtocolError,
    ProtocolError,
)
from jobpipe.net.links.fork_guard import ForkGuard
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.net.links.socket_options import copy_of, map_error, peer_names
from jobpipe.wire import (
    ENDED,
    NEED_DATA,
    Connection,
    DataHeader,
    Fault,
    Goodbye,
    Message,
    Phase,
    Ping,
    Pong,
    Request,
    Side,
)

RECEIVE = 64 * 1024


class BlockingPump:
    """Moves messages over a blocking socket. It belongs to the process that made it, and to one user at a time.

    Attributes:
        peer: "host:port" of the server.
        peer_names: DNS names of its certificate; () in plaintext.
    """

    def __init__(self, sock: socket.socket, peer: str, timing: LinkTimeouts) -> None:
        self.peer = peer
        self.peer_names = peer_names(sock.getpeercert()) if isinstance(sock, ssl.SSLSocket) else ()
        self.timing = timing
        self._socket = sock
        self._wire = Connection(Side.CLIENT, split_data=True)
        self._why: JobpipeError | None = None
        self._owner = ForkGuard("this link")
        self._user = threading.Lock()
        self._request: Request | None = None
        """The request whose answer, stream or upload is not over."""
        self._chunk: DataHeader | None = None
        """The DATA frame whose payload was not read yet."""

    def __repr__(self) -> str:
        state = self._wire.phase.value if self._why is None else type(self._why).__name__
        return f"<{type(self).__name__} {self.peer} {state}>"

    def usable(self) -> bool:
        """Whether a pool may hand it out: open, of this process, nothing half done and nothing pending."""
        if self._why is not None or not self._owner.is_here or self._request is not None:
            return False
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)  # idle: a byte, an end or an error all mean that the server gave up

    def close(self) -> None:
        """Say goodbye, if nothing is half done, and close; idempotent."""
        if self._why is None and self._owner.is_here and self._request is None:
            try:
                with self._io("close"):
                    self._send(Goodbye(""), self.timing.goodbye)
            except JobpipeError:
                return
        self.abort()

    def abort(self) -> None:
        """Cut the link; idempotent."""
        self._cut(LinkClosed(f"we cut the link to {self.peer}", peer=self.peer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ for subclasses

    def _cut(self, why: JobpipeError) -> None:
        if self._why is None:
            self._why = why
            self._socket.close()

    def _io(self, doing: str) -> _ExclusiveUse:
        return _ExclusiveUse(self, doing)

    def _send(self, message: Message, timeout: float) -> None:
        self._wire.send(message)
        self._socket.settimeout(timeout)
        self._socket.sendall(b"".join(self._wire.data_to_send()))

    def _receive(self, deadline: float) -> Message | DataHeader:
        """Return the next message that concerns the user of the link; answer PING on the way.

        Raises:
            TimeoutError: not by ``deadline`` (monotonic seconds).
            JobpipeError: the link ended.
        """
        while True:
            event = self._wire.next_event()
            if event is NEED_DATA:
                self._fill(deadline)
                continue
            if event is ENDED:
                raise LinkBroken(f"the link to {self.peer} is over", peer=self.peer)
            match event:
                case Ping(nonce):
                    self._send(Pong(nonce), self.timing.write)
                case Pong():
                    pass
                case Goodbye(reason):
                    raise LinkEnded(f"{self.peer} said goodbye: {reason}", peer=self.peer, reason=reason)
                case Fault(id=None):
                    error = event.error()
                    self._cut(error)
                    raise error
                case _:
                    return cast("Message | DataHeader", event)

    def _fill(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        data = self._socket.recv(min(self._wire.bytes_wanted, RECEIVE))
        if data:
            self._wire.receive_data(data)
        else:
            self._wire.receive_eof()


class _ExclusiveUse:
    """One use of a link: a second one at the same time is refused, and whatever interrupts it cuts the link."""

    def __init__(self, link: BlockingPump, doing: str) -> None:
        self._link = link
        self._doing = doing

    def __enter__(self) -> None:
        link = self._link
        link._owner.require()
        if not link._user.acquire(blocking=False):
            raise LocalProtocolError(f"{self._doing}: another thread uses the link to {link.peer}")
        if link._why is not None:
            link._user.release()
            raise copy_of(link._why)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        link = self._link
        try:
            if error is None:
                return
            if isinstance(error, OSError):
                mine = map_error(error, link.peer, f"{self._doing} with")
                link._cut(mine)
                raise mine from error
            if isinstance(error, LocalProtocolError) and link._wire.phase is Phase.OPEN and not self._half_done():
                return  # nothing was sent or read: the link is as before
            link._cut(error if isinstance(error, (LinkError, ProtocolError)) else LinkClosed("interrupted"))
        finally:
            link._user.release()

    def _half_done(self) -> bool:
        link = self._link
        return link._chunk is not None or link._wire.mid_frame
