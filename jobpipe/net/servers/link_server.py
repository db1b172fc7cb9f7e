"""The server of links: a listener whose connections are served by a handler."""

from __future__ import annotations

import ssl
from collections.abc import Collection

from jobpipe.net.links.async_link import Link
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.net.servers.connection_limits import ConnectionLimits
from jobpipe.net.servers.identity_quota import IdentityQuotas
from jobpipe.net.servers.listener import Listener
from jobpipe.net.servers.served_link import LinkHandler, ServedLink
from jobpipe.net.tls.tls_context import RenewableTls


class LinkServer(Listener[ServedLink]):
    """Serves links at one listening socket, each request in a task of its own.

    Args:
        handler: What to do with the links.
        tls: The server's context, fixed or renewable, or None for plaintext.
        timing: Deadlines.
        limits: How many connections, and how fast, see :class:`jobpipe.net.servers.listener.Listener`.
        max_age: Seconds after which the client must reconnect, or sooner if its certificate expires.
        quotas: Counts and limits what each identity holds.
    """

    def __init__(
        self,
        handler: LinkHandler,
        *,
        tls: ssl.SSLContext | RenewableTls | None,
        timing: LinkTimeouts | None = None,
        limits: ConnectionLimits | None = None,
        max_age: float | None = None,
        quotas: IdentityQuotas | None = None,
    ) -> None:
        deadlines, counted = timing or LinkTimeouts(), quotas or IdentityQuotas()
        super().__init__(
            lambda forget: ServedLink(handler, deadlines, forget, counted),
            tls=tls,
            timing=deadlines,
            limits=limits,
            max_age=max_age,
        )
        self.quotas = counted

    @property
    def links(self) -> Collection[Link]:
        """The links that were welcomed and live."""
        return self.admitted
