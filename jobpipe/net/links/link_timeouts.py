"""The deadlines of links, in seconds, in one place, so that tests can make them short."""

from __future__ import annotations

from dataclasses import dataclass, fields

from jobpipe.errors import ConfigError


@dataclass(frozen=True)
class LinkTimeouts:
    """Deadlines in seconds. A peer that is stopped still accepts connections and bytes: only these notice it."""

    connect: float = 5.0
    """TCP connection."""
    handshake: float = 5.0
    """TLS handshake, both sides."""
    hello: float = 5.0
    """The server waits so long for HELLO."""
    welcome: float = 5.0
    """The client waits so long for WELCOME, and the server for its handler's answer."""
    heartbeat: float = 5.0
    """A link that heard nothing for so long sends PING, if the peer answers such."""
    silence: float = 15.0
    """A link that heard nothing for so long is dead; a blocking link waits so long for the next bytes of a stream."""
    write: float = 60.0
    """A peer that takes nothing for so long is cut."""
    idle: float = 60.0
    """A client that answers no PING is cut after so long without a request, or without the next bytes of its upload."""
    goodbye: float = 2.0
    """A closing link flushes and says goodbye for at most so long."""

    def __post_init__(self) -> None:
        for item in fields(self):
            if not getattr(self, item.name) > 0:
                raise ConfigError(f"timing {item.name} must be above 0", key=item.name)
        if self.silence <= self.heartbeat:
            raise ConfigError("timing silence must exceed heartbeat", key="silence")
