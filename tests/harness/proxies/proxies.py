"""Proxies before every port of a bus."""

from __future__ import annotations

import contextlib
import socket

from tests.harness.proxies.proxy import FaultProxy

PROXIED_HOST = "127.0.0.2"
"""Where the proxies listen, each at the port of what it stands before; publishers advertise it."""

PORTS = 16  # coordinator and data process take two; as many more for each new pair while the old one lingers


def open_proxies(proxies: list[FaultProxy]) -> dict[str, str]:
    """Stand before a range of ports.

    Args:
        proxies: Where to add the proxies, one by one: what is open when one fails can be closed.

    Returns:
        The settings by which a publisher listens at those ports and advertises the proxies.
    """
    first = _free_ports(PORTS)
    ports = range(first, first + PORTS)
    proxies.extend(FaultProxy(f"127.0.0.1:{port}", host=PROXIED_HOST, port=port) for port in ports)
    return {
        "sinkserver.port.range": f"{first}-{first + PORTS - 1}",
        "sinkserver.subnet": "127.0.0.1/32",
        "sinkserver.advertise": PROXIED_HOST,
    }


def _free_ports(count: int) -> int:
    """Return the first of ``count`` ports in a row that are free, below those that the kernel gives away."""
    for first in range(20_000, 28_000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    for host in ("127.0.0.1", PROXIED_HOST):
                        probe = stack.enter_context(socket.socket())
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind((host, port))
                        probe.listen()
            except OSError:
                continue
            return first
    raise RuntimeError(f"no {count} free ports in a row")
