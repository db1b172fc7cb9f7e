"""Doctor's check of how many connections the registry takes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psutil

from jobpipe.cli.doctor.findings import Finding, ok, warn

if TYPE_CHECKING:
    from jobpipe.config import Config

CHECK = "registry use"
PER_ADDRESS = 60  # maxClientCnxns of a ZooKeeper whose zoo.cfg says nothing
NEAR = 0.8  # of the limit


def connections(config: Config) -> Iterator[Finding]:
    """The registry has room for further jobs of this host. For a registry that answers.

    A ZooKeeper does not tell its limit to everybody, so that of an ordinary one is assumed.
    """
    from jobpipe_registry.embedded.embedded_files import MAX_CONNECTIONS
    from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper

    if config.embedded:
        embedded = EmbeddedZooKeeper(config.home)
        count = MAX_CONNECTIONS if embedded.is_full() else embedded.count_connections()
        if count is not None and count >= NEAR * MAX_CONNECTIONS:
            remedy = "use a ZooKeeper of your own: set jobpipe.registerserver.connect, see docs/deploy.md, section 7"
            yield warn(CHECK, f"{count} connections, and the embedded ZooKeeper takes {MAX_CONNECTIONS}", remedy)
        return
    for server in config.registry_connect.partition("/")[0].split(","):
        count = _from_here(server)
        said = f"{count} connections of this host to {server}"
        if count < NEAR * PER_ADDRESS:
            yield ok(CHECK, said)
            continue
        remedy = (
            "unless it is set already, set maxClientCnxns in that server's zoo.cfg, to twice the jobs of a host, or to "
            "0 for no limit; see docs/deploy.md, section 7"
        )
        yield warn(CHECK, f"{said}; a ZooKeeper takes {PER_ADDRESS} of one address by default", remedy)


def _from_here(server: str) -> int:
    """Return how many connections of this host's processes to a server, ``host:port``, are open."""
    host, _, port = server.strip().rpartition(":")
    host, port = (host, port) if host else (port, "2181")
    addresses: set[str] = set()
    with contextlib.suppress(OSError, ValueError):
        addresses = {str(found[4][0]) for found in socket.getaddrinfo(host.strip("[]"), int(port))}
    return sum(
        1
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_ESTABLISHED
        and each.raddr
        and each.raddr.ip.removeprefix("::ffff:") in addresses
        and str(each.raddr.port) == port
    )
