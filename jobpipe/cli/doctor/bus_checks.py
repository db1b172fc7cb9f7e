"""Doctor's checks of what the jobs share: certificates and the registry."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jobpipe.cli.doctor.findings import Finding, fail, ok, warn
from jobpipe.errors import ConfigError, JobpipeError
from jobpipe.plural import counted

if TYPE_CHECKING:
    from jobpipe.config import Config
    from jobpipe.net.tls.expiry_warnings import Expiry
    from jobpipe.net.tls.tls_context import Credentials

MAKE_NEW = "make new ones with `jobpipe certs init --dir DIR`"
CONNECT_SECONDS = 1.0  # for all servers of an ensemble together, their names included


def certificates(config: Config) -> Iterator[Finding]:
    """The certificates in force fit together, are valid, and stay so for a while. Makes none."""
    from jobpipe.config.reading.config_checks import plaintext_beyond_loopback
    from jobpipe.net.tls.expiry_warnings import expiries
    from jobpipe.net.tls.tls_context import Credentials, client_context, configured

    if not config.tls:
        detail = "encryption is switched off: peers have no identity, and everyone is let in"
        remedy = "set jobpipe.ssl.enabled and security.ssl.enabled to true"
        yield warn("certificates", detail + (", on the network" if plaintext_beyond_loopback(config) else ""), remedy)
        return
    files = configured(config)
    if files is None:
        home = config.home / "certs"
        files = Credentials(home / "ca.crt", home / "node.crt", home / "node.key", crl=config.ssl_crl)
        if not files.cert.exists():
            yield ok("certificates", f"none yet in {home}; the first job makes them")
            return
    try:
        client_context(files)
        found = expiries(files)
    except ConfigError as error:
        yield fail("certificates", error.message, f"correct it, or {MAKE_NEW}")
        return
    if (finding := _revoked(files)) is not None:
        yield finding
    for item in found:
        yield _expiry(item)


def _revoked(files: Credentials) -> Finding | None:
    from jobpipe.net.tls.certificates import describe
    from jobpipe.net.tls.revocation import describe_crls

    own = describe(files.cert)
    lists = describe_crls(files.revoked) if files.revoked.exists() else []
    if not any(each.issuer == own.issuer and own.serial in each.revoked for each in lists):
        return None
    remedy = "issue a new one, with a new key, on the host of the CA: jobpipe certs issue"
    return fail("certificates", f"{files.cert}: revoked; every peer refuses it", remedy)


def _expiry(item: Expiry) -> Finding:
    now = datetime.now(UTC)
    if not item.start <= now < item.end:
        span = f"{item.start:%Y-%m-%d} to {item.end:%Y-%m-%d}"
        return fail("certificates", f"{item.path}: valid from {span}", f"renew it: {item.remedy}")
    detail = f"{item.path}: {item.what}, valid to {item.end:%Y-%m-%d}, {item.left(now)}"
    if item.threshold(now) is None:
        return ok("certificates", detail)
    return warn("certificates", detail, f"renew it: {item.remedy}")


def access(config: Config) -> Iterator[Finding]:
    """The access list, if there is one, can be read."""
    from jobpipe.net.servers.access_list import read_access

    if config.access is None:
        return
    try:
        found = read_access(config.access)
    except ConfigError as error:
        yield fail(
            "access list", error.message, "correct it: until then publishers do not start, or they keep their old list"
        )
        return
    yield ok("access list", f"{config.access}: {len(found.entries)} topics or patterns")


def doubtful_address(error: ConfigError) -> str | None:
    """Return the registry's address if a configuration has nothing else for it: perhaps only the address is wrong."""
    from jobpipe.config.reading.config_checks import MAKE_CERTIFICATES

    return next((item["value"] for item in error.fields["problems"] if item["expected"] == MAKE_CERTIFICATES), None)


def address(connect: str) -> Finding:
    """Not every server of ``host:port,host:port/path`` refuses connections, or has a name that is not known."""
    servers = connect.partition("/")[0].split(",")
    refused: dict[str, str] = {}

    def dial(server: str) -> None:
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except TimeoutError:
            return
        except (OSError, ValueError) as error:
            refused[server] = getattr(error, "strerror", None) or type(error).__name__

    threads = [threading.Thread(target=dial, args=(server,), name="reach", daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + CONNECT_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    why = [f"{server}: {refused[server]}" for server in servers if server in refused]
    if len(why) < len(servers):
        return ok("registry", f"something may listen at {connect}; without certificates it was not asked")
    remedy = "correct jobpipe.registerserver.connect, or leave it out: then a ZooKeeper is started on this host"
    return fail("registry", f"no connection to a ZooKeeper ({'; '.join(why)})", remedy)


def registry(config: Config) -> Finding:
    """A real read is answered. An embedded registry that sleeps is not woken."""
    from jobpipe.discovery.registry_handler import map_registry_errors, open_handler
    from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper

    if config.embedded and EmbeddedZooKeeper(config.home).status() is None:
        return ok(
            "registry", f"the embedded ZooKeeper of {config.home} is not running; the first job that needs it starts it"
        )
    began = time.monotonic()
    try:
        handler = open_handler(config)
        try:
            with map_registry_errors():
                count = len(handler.topics())
        finally:
            handler.shutdown()
    except JobpipeError as error:
        where = config.registry_connect
        remedy = (
            f"make sure that ZooKeeper runs at {where}, can be reached from here, and accepts our identity "
            "(docs/registry-security.md)"
        )
        return fail("registry", error.message, remedy)
    spent = f"{time.monotonic() - began:.2f} s"
    there = f"{counted(count, 'topic')} in {config.namespace}"
    return ok("registry", f"{config.registry_connect} answers in {spent}, {there}")
