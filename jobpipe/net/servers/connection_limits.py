"""Which connections a server lets in before it knows who they are. Pure: ``now`` is passed in, in seconds, monotonic.

A connection is judged by its source address alone, before a byte of TLS is spent on it: a token bucket for each address
gives one token to a connection and takes ten more for one that was never welcomed. So an address that
never completes a handshake gets only a few attempts a second, and clients from elsewhere are not delayed. An attacker
with many addresses is a matter for the network's firewall.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

from jobpipe.config import Config

BURST_SECONDS = 2.0  # of its rate, that an address may use at once: all tasks of a host begin together
FAILURE_COST = 10.0  # tokens: a handshake costs some hundred times what a drop does (2.6 ms against 20 us)
MAX_SOURCES = 4096  # addresses that are remembered; the one longest not seen goes first, those with links stay


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections a server holds at once, and how many an address may make a second.

    Attributes:
        identity_key: of the configuration, that sets ``per_identity``; "" if there is none.
    """

    connections: int = 1024
    per_address: int = 512
    per_identity: int = 512
    rate: float = 200.0
    identity_key: str = ""

    @classmethod
    def of(cls, config: Config) -> ConnectionLimits:
        """Return those of the configuration."""
        return cls(
            config.max_connections,
            config.max_connections_per_address,
            config.max_connections_per_identity,
            float(config.connection_rate),
            "jobpipe.sinkserver.max_connections_per_identity",
        )


class ConnectionRefusal(Enum):
    """Why a connection is dropped."""

    RATE = "it connects, or fails, too often"
    ADDRESS = "its address has too many connections"
    TOTAL = "too many connections are open"


@dataclass(slots=True)
class _Source:
    tokens: float
    seen: float
    open: int = 0


class ConnectionLimiter:
    """Counts what is open, by address and by identity.

    Attributes:
        refused: How many connections were dropped, by reason.
        open: All that came in and did not leave.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.refused: Counter[ConnectionRefusal] = Counter()
        self.open = 0
        self._burst = limits.rate * BURST_SECONDS
        self._sources: OrderedDict[str, _Source] = OrderedDict()
        self._identities: Counter[Hashable] = Counter()

    def arrive(self, source: str, now: float) -> ConnectionRefusal | None:
        """Judge a new connection by rate alone; one that may come in is counted until :meth:`leave`."""
        found = self._at(source, now)
        if found.tokens < 1.0:
            self.refused[ConnectionRefusal.RATE] += 1
            return ConnectionRefusal.RATE
        found.tokens -= 1.0
        found.open += 1
        self.open += 1
        return None

    def over(self, source: str) -> ConnectionRefusal | None:
        """Tell which cap the newest connection of ``source`` breaks: another must go, or it."""
        found = self._sources.get(source)
        if found is not None and found.open > self.limits.per_address:
            return ConnectionRefusal.ADDRESS
        return ConnectionRefusal.TOTAL if self.open > self.limits.connections else None

    def failed(self, source: str, now: float) -> None:
        """Note that a connection ended before it was welcomed."""
        found = self._at(source, now)
        found.tokens = max(found.tokens - FAILURE_COST, -self._burst)

    def leave(self, source: str) -> None:
        """Note the end of a connection that came in."""
        found = self._sources.get(source)
        if found is not None and found.open:
            found.open -= 1
            self.open -= 1

    def identify(self, identity: Hashable) -> bool:
        """Count a connection to whom its certificate names; False, and not counted, when that one has too many."""
        if self._identities[identity] >= self.limits.per_identity:
            return False
        self._identities[identity] += 1
        return True

    def forget(self, identity: Hashable) -> None:
        """Note the end of a connection that was counted to ``identity``."""
        self._identities[identity] -= 1
        if not self._identities[identity]:
            del self._identities[identity]

    def _at(self, source: str, now: float) -> _Source:
        found = self._sources.get(source)
        if found is None:
            found = self._sources[source] = _Source(self._burst, now)
            self._shrink()
        else:
            found.tokens = min(self._burst, found.tokens + (now - found.seen) * self.limits.rate)
            found.seen = now
            self._sources.move_to_end(source)
        return found

    def _shrink(self) -> None:
        for source, found in self._sources.items() if len(self._sources) > MAX_SOURCES else ():
            if not found.open:
                del self._sources[source]
                return


def source_of(address: object) -> str:
    """Return what stands for the host of a socket address: its IPv4 address, or its IPv6 network of 64 bits."""
    host = str(address[0]) if isinstance(address, tuple) and address else "unknown"
    if ":" not in host:
        return host
    try:
        parsed = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
