"""Whom a server lets in: its certificates and its access list, both as the files are now.

One for each serving process. Its server goes by the files (:class:`jobpipe.net.tls.trusted_files.TrustedFiles`); its
service asks :meth:`PeerAuthentication.require` before it does anything for a peer.
"""

from __future__ import annotations

import logging
import socket

from jobpipe.config import Config
from jobpipe.discovery.configured_tls import credentials
from jobpipe.errors import NotAuthorized
from jobpipe.net.links.async_link import Link
from jobpipe.net.servers.access_list import ADMIN, PUBLISH, READ, AccessList, read_access
from jobpipe.net.servers.audit_log import audit, who
from jobpipe.net.servers.connection_limits import ConnectionLimits
from jobpipe.net.servers.identity_quota import IdentityQuotas, identity_of
from jobpipe.net.servers.link_server import LinkServer
from jobpipe.net.servers.served_link import LinkHandler
from jobpipe.net.tls.trusted_files import TrustedFiles

log = logging.getLogger(__name__)

MAX_DECIDED = 4096


class PeerAuthentication:
    """The identities and rights that one serving process goes by.

    A peer with exactly the names of this process's own certificate is the same job, or its next process, and may do
    everything. Others need an entry in ``security.access``. Without such a list no other peer is let in, except in
    embedded mode, where every certificate of the home's CA is. In plaintext there are no identities, and everybody may
    do everything.

    Attributes:
        quotas: what each identity holds of the process.

    Raises:
        ConfigError: a certificate, the revocation list or the access list cannot be used: what, where.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        files = credentials(config)
        self._open = config.access is None and (files is None or (config.embedded and config.ssl_ca is None))
        self._decided: dict[tuple[tuple[str, ...], str, str, str | None], bool] = {}
        self._files = TrustedFiles(
            files,
            config.access,
            read_access,
            AccessList(),
            renew=lambda: credentials(config),
            changed=self._forget_decided,
        )
        self.quotas = IdentityQuotas()

    @property
    def encrypted(self) -> bool:
        """Whether there are identities at all."""
        return self._files.encrypted

    def server(self, handler: LinkHandler) -> LinkServer:
        """Return a server that goes by these identities, with the configuration's limits."""
        tls, limits = self._files if self.encrypted else None, ConnectionLimits.of(self._config)
        return LinkServer(
            handler, tls=tls, limits=limits, max_age=self._config.ssl_max_connection_age, quotas=self.quotas
        )

    def refresh(self) -> bool:
        """Look at all files; return True if other CAs are trusted now, or other certificates revoked. Blocking."""
        return self._files.refresh()

    def _forget_decided(self) -> None:
        self._decided = {}

    def require(self, link: Link, right: str, topic: str, subscription: str | None = None) -> None:
        """See that the holder of the link's certificate has a right; as :meth:`allows`.

        Raises:
            NotAuthorized: it has not; says who it is, what is missing, and where that is given. Written to the log.
        """
        if self.allows(link, right, topic, subscription):
            return
        self._files.take_in_changes()
        if self.allows(link, right, topic, subscription):
            return  # given a moment ago; a reader asks two processes, and both must say the same
        instance = link.hello.instance
        audit(link.peer_names, link.peer, right, "refused", topic=topic, subscription=subscription, instance=instance)
        raise self.refusal(link, right, topic, subscription)

    def require_role(self, link: Link) -> None:
        """See that a peer may have the role on the topic that its HELLO names.

        An administrator needs any right: which one, the operation says
            (:mod:`jobpipe.coordinator.handlers.operation_rights`).

        Raises:
            NotAuthorized: it may not.
        """
        topic, name = link.hello.topic, link.hello.name
        match link.hello.role:
            case "publisher" | "appender":
                self.require(link, PUBLISH, topic)
            case "subscriber":
                self.require(link, READ, topic, name or "")
            case "admin":
                if not (self.allows(link, READ, topic) or self.allows(link, PUBLISH, topic)):
                    self.require(link, ADMIN, topic)
            case _:
                self.require(link, READ, topic)

    def allows(self, link: Link, right: str, topic: str, subscription: str | None = None) -> bool:
        """Whether the holder of the link's certificate has a right.

        Args:
            link: its TLS handshake is over, HELLO is there.
            right: one of :data:`jobpipe.net.servers.access_list.PUBLISH`, ``READ``, ``ADMIN``.
            topic: what it is about.
            subscription: with READ, the name; None for reading without a subscription.
        """
        if self._open:
            return True
        key = (link.peer_names, right, topic, subscription)
        decided = self._decided
        if key not in decided:
            if len(decided) >= MAX_DECIDED:
                decided.clear()
            own = bool(link.peer_names) and frozenset(link.peer_names) == self._files.own
            decided[key] = own or self._files.listed.allows(link.peer_names, right, topic, subscription)
        return decided[key]

    def shared_with(self, link: Link) -> str:
        """Return the identity whose share of a topic is bounded; "" for this server's own, and where there are none."""
        names = link.peer_names
        if self._open or not names or frozenset(names) == self._files.own:
            return ""
        return identity_of(names, link.peer)

    def refusal(self, link: Link, right: str, topic: str, subscription: str | None) -> NotAuthorized:
        """Return the error for a peer that lacks a right."""
        doing = {PUBLISH: "publish", READ: "read"}.get(right, "administer")
        under = "" if subscription is None else f" as subscription {subscription!r}"
        name = link.peer_names[0] if link.peer_names else "its certificate's name"
        host = socket.gethostname()
        if self._config.access is None:
            remedy = (
                f"its publisher on {host} has no access list (security.access), so only holders of its own certificate "
                f"are let in: {who(sorted(self._files.own))}"
            )
        else:
            what = "" if subscription is None else f" with the subscription {subscription}"
            remedy = (
                f"enter {name}{what} under {topic}: {right}: in {self._config.access} on {host}, its publisher's list"
            )
        return NotAuthorized(
            f"topic {topic!r}: the certificate of {who(link.peer_names)} does not give the right to {doing} it{under}; "
            f"{remedy}",
            principal=list(link.peer_names),
            right=right,
            topic=topic,
            subscription=subscription,
        )
