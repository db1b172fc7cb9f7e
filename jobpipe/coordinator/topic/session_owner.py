"""The session that owns a subscription's name now, and how it is connected."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from jobpipe.net.links.async_link import Link

RECONNECT_SECONDS = 30.0  # a reader whose link broke redials at most 2 s apart (topic_follower.py): then it is gone


@dataclass
class SessionOwner:
    """The live holder of one subscription's name.

    Attributes:
        instance: the reader's own id. Each reader of the topic may learn it, so it proves nothing.
        identity: of the certificate that asked for the name, see
            :func:`jobpipe.net.servers.identity_quota.identity_of`; "" in plaintext, where a host may have several
            addresses.
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

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"host {self.where.get('host', '?')}, pid {self.where.get('pid', '?')}"

    def state(self) -> dict[str, Any]:
        """Return what ``describe`` says of it; ``since`` and ``last_seen`` are seconds ago."""
        now = time.monotonic()
        if self.link is not None:
            state, seen = "connected", self.link.silence
        else:
            back = self.broken and now - self.since < RECONNECT_SECONDS
            state, seen = "reconnecting" if back else "absent", now - self.seen
        return {
            "state": state,
            "since": round(now - self.since, 3),
            "reconnects": self.reconnects,
            "last_seen": round(seen, 3),
            "where": self.where,
        }
