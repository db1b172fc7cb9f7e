"""An accepted connection: who its peer is by its certificate, until when that counts, and what a listener does with it.

Every listener takes its peers through this class, whatever protocol they speak: links of the bus and HTTP alike.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Collection
from typing import Protocol

from jobpipe.errors import JobpipeError, NotAuthorized
from jobpipe.net.links.socket_options import for_clients, peer_expires, peer_names, peer_of
from jobpipe.net.servers.audit_log import who
from jobpipe.net.servers.identity_quota import identity_of


class AcceptedConnection:
    """The other end of a connection whose TLS handshake, if there is one, is over. Belongs to one event loop.

    Attributes:
        address: "host:port".
        names: DNS names of its certificate; () in plaintext.
        identity: whose quota it counts to, see :func:`jobpipe.net.servers.identity_quota.identity_of`.
        expires: when its certificate ends, in seconds since 1970; None in plaintext.
    """

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        certificate = transport.get_extra_info("peercert")
        session = transport.get_extra_info("ssl_object")
        self.address = peer_of(transport.get_extra_info("peername"))
        self.names = peer_names(certificate)
        self.identity = identity_of(self.names, self.address)
        self.expires = peer_expires(certificate)
        self._certificate = session.getpeercert(binary_form=True) if isinstance(session, ssl.SSLObject) else None
        self._loop = asyncio.get_running_loop()
        self._due: float | None = None  # when it has to prove itself again, by the loop's clock

    def require(self) -> None:
        """See that its certificate has not ended and is for clients: OpenSSL looks at neither in all cases.

        It does not look again when a client resumes its session, and takes a certificate without any key usage.

        Raises:
            NotAuthorized: it has ended, or has no extended key usage, or another one only.
        """
        if self.expires is not None and self.expires <= time.time():
            raise NotAuthorized(f"{self.address}: its certificate has expired", peer=self.address)
        if self._certificate is not None and not for_clients(self._certificate):
            raise NotAuthorized(
                f"{self.address}: the certificate of {who(self.names)} is not made for clients: it needs the extended "
                "key usage clientAuth, as those of `jobpipe certs issue` have it",
                peer=self.address,
                principal=list(self.names),
            )

    def limit_age(self, max_age: float | None) -> None:
        """Let it be due in ``max_age`` seconds, if that is given, and no later than its certificate ends."""
        if max_age is not None:
            self.expire(max_age)
        if self.expires is not None:
            self.expire(self.expires - time.time())

    def expire(self, seconds: float) -> None:
        """Let it be due to prove itself again in so many seconds, if not before."""
        due = self._loop.time() + seconds
        self._due = due if self._due is None else min(self._due, due)

    @property
    def is_due(self) -> bool:
        """Whether its connection has to end: what it asks is no longer done."""
        return self.overdue() is not None

    def overdue(self) -> float | None:
        """Return for how many seconds its connection has been due to end; None if it is not."""
        late = None if self._due is None else self._loop.time() - self._due
        return None if late is None or late < 0 else late


class Connection(Protocol):
    """What a listener needs of the asyncio protocol that it gives a connection to."""

    @property
    def accepted(self) -> AcceptedConnection:
        """Its peer; there once the transport is."""
        ...

    @property
    def busy(self) -> bool:
        """Whether an end now would cut short what cannot be taken up again, or could not be told."""
        ...

    @property
    def proven(self) -> bool:
        """Whether its peer, once admitted, is of the job that the server belongs to."""
        ...

    @property
    def gone(self) -> bool:
        """Its transport is gone, or never came."""
        ...

    @property
    def tasks(self) -> Collection[asyncio.Task[None]]:
        """Those that work for it."""
        ...

    async def admit(self) -> None:
        """Wait until the peer, whose certificate is in order, has said what it wants, and let it in.

        Raises:
            JobpipeError: why it is not let in; :meth:`refuse` comes next.
        """
        ...

    def refuse(self, error: JobpipeError) -> None:
        """End a connection that was not admitted; tell the peer why, if it can still be told."""
        ...

    def leave(self, reason: str) -> None:
        """End, as politely as is possible without waiting."""
        ...

    def abort(self) -> None: ...

    async def wait_gone(self) -> None:
        """Wait until the transport and all tasks are gone."""
        ...
