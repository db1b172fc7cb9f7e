"""Whom a server lets in: its certificates and its access list, both as the files are now.

One for each serving process. Its server asks it for the TLS context of each connection and lets it look at the files
(:class:`jobpipe.net.listener.RenewableTls`); its service asks :meth:`Trust.require` before it does anything for a peer.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
from pathlib import Path

from jobpipe.config import Config
from jobpipe.discovery.security import credentials
from jobpipe.errors import ConfigError, NotAuthorized
from jobpipe.net.access import ADMIN, PUBLISH, READ, AccessList, read_access
from jobpipe.net.admission import ConnectionLimits
from jobpipe.net.audit import audit, who
from jobpipe.net.budget import Budgets, identity_of
from jobpipe.net.expiry import ExpiryWatch
from jobpipe.net.link import Link
from jobpipe.net.served import Handler
from jobpipe.net.server import Server
from jobpipe.net.tls import ServerTls

log = logging.getLogger(__name__)

MAX_DECIDED = 4096


class Trust:
    """The identities and rights that one serving process goes by.

    A peer with exactly the names of this process's own certificate is the same job, or its next process, and may do
    everything. Others need an entry in ``security.access``. Without such a list no other peer is let in, except in
    embedded mode, where every certificate of the home's CA is. In plaintext there are no identities, and everybody may
    do everything.

    Attributes:
        budgets: what each identity holds of the process.

    Raises:
        ConfigError: a certificate, the revocation list or the access list cannot be used: what, where.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        files = credentials(config)
        self._files = files
        self._tls = None if files is None else ServerTls(files)
        self._open = config.access is None and (files is None or (config.embedded and config.ssl_ca is None))
        self._list = AccessList() if config.access is None else read_access(config.access)
        self._reading = threading.Lock()
        self._seen = self._stamps()
        self._own = self._own_names()
        self._expiry = None if files is None else ExpiryWatch(files, lambda: credentials(config))
        self.budgets = Budgets()
        self._decided: dict[tuple[tuple[str, ...], str, str, str | None], bool] = {}

    @property
    def encrypted(self) -> bool:
        """Whether there are identities at all."""
        return self._tls is not None

    def server(self, handler: Handler) -> Server:
        """Return a server that goes by these identities, with the configuration's limits."""
        tls, limits = self if self.encrypted else None, ConnectionLimits.of(self._config)
        return Server(
            handler, tls=tls, limits=limits, max_age=self._config.ssl_max_connection_age, budgets=self.budgets
        )

    @property
    def context(self) -> ssl.SSLContext:
        """What the next connection gets."""
        if self._tls is None:
            raise ConfigError("encryption is off, there is no TLS context")
        return self._tls.context

    def refresh(self) -> bool:
        """Look at all files; return True if other CAs are trusted now, or other certificates revoked. Blocking."""
        changed = self._tls is not None and self._tls.refresh()
        self._take_in_changes()
        if self._expiry is not None:
            self._expiry.look()
        return changed

    def _take_in_changes(self) -> None:
        """Read list and own names again if their files have changed."""
        with self._reading:  # the server's look in its thread, or a refusal in the loop
            stamps = self._stamps()
            if stamps == self._seen:
                return
            self._seen = stamps
            try:
                if self._config.access is not None:
                    self._list = read_access(self._config.access)
                self._own = self._own_names()
            except ConfigError as error:
                log.error("%s; the access list stays as it was", error.message)
                return
            self._decided = {}
            log.info("access list and own certificate were read again")

    def require(self, link: Link, right: str, topic: str, subscription: str | None = None) -> None:
        """See that the holder of the link's certificate has a right; as :meth:`allows`.

        Raises:
            NotAuthorized: it has not; says who it is, what is missing, and where that is given. Written to the log.
        """
        if self.allows(link, right, topic, subscription):
            return
        self._take_in_changes()
        if self.allows(link, right, topic, subscription):
            return  # given a moment ago; a reader asks two processes, and both must say the same
        instance = link.hello.instance
        audit(link.peer_names, link.peer, right, "refused", topic=topic, subscription=subscription, instance=instance)
        raise self.refusal(link, right, topic, subscription)

    def require_role(self, link: Link) -> None:
        """See that a peer may have the role on the topic that its HELLO names.

        An administrator needs any right: which one, the operation says (:mod:`jobpipe.coordinator.access`).

        Raises:
            NotAuthorized: it may not.
        """
        topic, name = link.hello.topic, link.hello.name
        match link.hello.role:
            case "publisher":
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
            right: one of :data:`jobpipe.net.access.PUBLISH`, ``READ``, ``ADMIN``.
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
            own = bool(link.peer_names) and frozenset(link.peer_names) == self._own
            decided[key] = own or self._list.allows(link.peer_names, right, topic, subscription)
        return decided[key]

    def shared_with(self, link: Link) -> str:
        """Return the identity whose share of a topic is bounded; "" for this server's own, and where there are none."""
        names = link.peer_names
        if self._open or not names or frozenset(names) == self._own:
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
                f"are let in: {who(sorted(self._own))}"
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

    def _own_names(self) -> frozenset[str]:
        if self._files is None:
            return frozenset()
        from jobpipe.net.certs import describe

        return frozenset(describe(self._files.cert).names)

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        certificate = None if self._files is None else self._files.cert
        return tuple(_stamp(path) for path in (self._config.access, certificate))


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        info = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (info.st_mtime_ns, info.st_size, info.st_ino)
