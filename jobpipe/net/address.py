"""Addresses: text and pairs, the interface to listen on, a free port in a range.

Nothing here sends a packet, and no name is looked up but the one to bind.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import secrets
import socket
from dataclasses import dataclass
from typing import cast

import psutil

from jobpipe.errors import AddressError, ConfigError

LOOPBACK = "127.0.0.1"
BACKLOG = 1024
# Documentation addresses (RFC 5737, RFC 3849): connecting a UDP socket only asks the routing table.
_NOWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252})", re.ASCII)

_IP = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, order=True)
class Endpoint:
    """A host (name or IP address, IPv6 without brackets) and a TCP port.

    Raises:
        AddressError: the host is neither a name nor an address, or the port is not within 1-65535.
    """

    host: str
    port: int

    def __post_init__(self) -> None:
        if not _is_host(self.host):
            raise AddressError(f"{self.host!r} is not a host name or an IP address", host=self.host)
        if isinstance(self.port, bool) or not isinstance(self.port, int) or not 1 <= self.port <= 65535:
            raise AddressError(f"{self.port!r} is not a port: expected 1-65535", port=self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Return the endpoint that ``str`` of it wrote: ``host:port`` or ``[v6]:port``.

        Raises:
            AddressError: the text is something else.
        """
        host, colon, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if bracketed:
            host = host[1:-1]
        if not colon or bracketed != (":" in host) or not (port.isascii() and port.isdigit() and len(port) <= 5):
            raise AddressError(f"{text!r} is not an endpoint: expected host:port or [IPv6 address]:port", endpoint=text)
        return cls(host, int(port))


def is_loopback(host: str) -> bool:
    """Whether a host is this one by its loopback interface; of names only ``localhost``, since others may move."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def require_plaintext_allowed(endpoint: Endpoint, *, allowed: bool) -> None:
    """See that an endpoint may be dialled, or listened on, without encryption.

    Raises:
        ConfigError: it is beyond loopback, and the configuration does not allow that.
    """
    if not allowed and not is_loopback(endpoint.host):
        raise ConfigError(
            f"{endpoint}: encryption is switched off by jobpipe.ssl.enabled or security.ssl.enabled, and this is "
            "beyond loopback: switch both on, or set security.allow_plaintext to true",
            key="security.allow_plaintext",
            endpoint=str(endpoint),
        )


def pick_interface(subnet: str | None, *, embedded: bool) -> str:
    """Return the address to listen on.

    With a ``subnet``: the lowest address of an interface of this host in it. Without one: loopback if the registry is
    embedded, else the address of the interface that the default route leaves by.

    Raises:
        AddressError: no interface lies in the subnet, or the host has loopback only; ``fields["addresses"]`` has what
            there is.
    """
    if subnet is not None:
        return _in_subnet(subnet)
    return LOOPBACK if embedded else _primary()


def host_addresses() -> dict[str, list[str]]:
    """Return the IP addresses of each interface that is up, by the interface's name."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = {}
    for name, entries in sorted(psutil.net_if_addrs().items()):
        addresses = [entry.address for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
        if addresses and name in up:
            found[name] = addresses
    return found


def bind_in_range(
    host: str, port_range: tuple[int, int], *, key: str = "jobpipe.sinkserver.port.range"
) -> socket.socket:
    """Return a socket that listens on ``host`` at a free port of the range, both ends included.

    The ports are tried once each from a random one on, so that jobs that start together seldom meet. A port whose last
    connections are still in TIME_WAIT is free; one that is listened on is not. The socket listens already:
    on Linux two sockets may *bind* one port with SO_REUSEADDR, and only ``listen`` tells who has it.

    Raises:
        AddressError: the host is not an address of this machine, or no port is free; ``fields`` have ``host``,
            ``port_range`` and ``reason``.
    """
    first, last = port_range
    family, address = _resolve(host)
    count = last - first + 1
    start = secrets.randbelow(count)
    reason = ""
    for step in range(count):
        port = first + (start + step) % count
        try:
            return _listen(family, (address[0], port, *address[2:]))
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise _not_bound(host, port_range, reason, key) from error
    raise _not_bound(host, port_range, reason, key)


def _listen(family: socket.AddressFamily, address: tuple[str | int, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _resolve(host: str) -> tuple[socket.AddressFamily, tuple[str | int, ...]]:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise AddressError(f"cannot listen on {host!r}: {error}", host=host, reason=str(error)) from error
    family, _, _, _, address = found[0]
    return family, cast("tuple[str | int, ...]", address)


def _not_bound(host: str, port_range: tuple[int, int], reason: str, key: str) -> AddressError:
    first, last = port_range
    ports = f"port {first}" if first == last else f"any port of {first}-{last}"
    text = f"cannot listen on {ports} at {host} ({reason}); see {key}"
    return AddressError(text, host=host, port_range=list(port_range), reason=reason)


def _in_subnet(subnet: str) -> str:
    try:
        network = ipaddress.ip_network(subnet, strict=False)
    except ValueError as error:
        raise AddressError(f"{subnet!r} is not a subnet", subnet=subnet) from error
    inside = [address for address in _parsed() if address.version == network.version and address in network]
    if not inside:
        raise _no_interface(f"no interface of this host lies in the subnet {subnet}", subnet=subnet)
    return str(min(inside, key=int))


def _primary() -> str:
    for family, nowhere in _NOWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((nowhere, 9))
                text = str(probe.getsockname()[0])
        except OSError:  # no route in this family
            continue
        if _is_outside(ipaddress.ip_address(text)):
            return text
    outside = [address for address in _parsed() if _is_outside(address)]
    if not outside:
        raise _no_interface("this host has only loopback addresses; set jobpipe.sinkserver.subnet", subnet=None)
    return str(min(outside, key=lambda address: (address.version, int(address))))


def _parsed() -> list[_IP]:
    return [ipaddress.ip_address(text) for addresses in host_addresses().values() for text in addresses]


def _is_outside(address: _IP) -> bool:
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


def _no_interface(what: str, *, subnet: str | None) -> AddressError:
    addresses = host_addresses()
    listed = "; ".join(f"{name}: {', '.join(texts)}" for name, texts in addresses.items()) or "none"
    return AddressError(f"{what}; there are {listed}", subnet=subnet, addresses=addresses)


def _is_host(host: object) -> bool:
    if not isinstance(host, str):
        return False
    if _HOST.fullmatch(host) is not None:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
