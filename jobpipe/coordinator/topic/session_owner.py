"""The session that owns a subscription's name now, and how it is connected."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jobpipe.errors import RemoteProtocolError
from jobpipe.net.links.async_link import Link
from jobpipe.operations.messages.application import Application
from jobpipe.operations.status_operations import ReaderProcess

RECONNECT_SECONDS = 30.0  # a reader whose link broke redials at most 2 s apart (topic_follower.py): then it is gone


@dataclass(frozen=True)
class Connection:
    """How a subscription is connected; attributes as ``SubscriptionStatus``."""

    state: str
    since: float | None
    reconnects: int
    last_seen: float | None
    where: ReaderProcess | None
    application: Application | None


def process_of(where: Mapping[str, Any]) -> ReaderProcess | None:
    """Return the process of a holder; None if it was not told."""
    return ReaderProcess(where["host"], where["pid"]) if "pid" in where else None


def application_of(where: Mapping[str, Any]) -> Application | None:
    """Return the application of a holder; None if it was not told, or a catalog has it in another form."""
    told = where.get("application")
    if not isinstance(told, dict):
        return None
    try:
        return Application.from_json(told)
    except RemoteProtocolError:  # it is for people alone, and must not hide how the topic stands
        return None


@dataclass
class SessionOwner:
    """The live holder of one subscription's name.

    Attributes:
        instance: the reader's own id. Each reader of the topic may learn it, so it proves nothing.
        identity: of the certificate that asked for the name, see
            :func:`jobpipe.net.servers.identity_quota.identity_of`; "" in plaintext, where a host may have several
            addresses.
        application: the reader's.
    """

    instance: str
    grant: int
    link: Link | None
    where: dict[str, Any]
    identity: str = ""
    reconnects: int = 0
    seen: float = field(default_factory=time.monotonic)
    since: float = field(default_factory=time.monotonic)  # that it has, or has not, its link
    broken: bool = False  # its link ended without a goodbye
    halted: bool = False  # it is a flow job that is stopped: its tasks are to end
    application: Application | None = field(init=False)

    def __post_init__(self) -> None:
        self.application = application_of(self.where)

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"host {self.where.get('host', '?')}, pid {self.where.get('pid', '?')}"

    def connection(self) -> Connection:
        """Return how it is connected now."""
        now = time.monotonic()
        if self.link is not None:
            state, seen = "connected", self.link.silence
        else:
            back = self.broken and now - self.since < RECONNECT_SECONDS
            state, seen = "reconnecting" if back else "absent", now - self.seen
        who = process_of(self.where), self.application
        return Connection(state, round(now - self.since, 3), self.reconnects, round(seen, 3), *who)
