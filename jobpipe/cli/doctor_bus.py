"""Doctor's checks of what the jobs share: certificates and the registry."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from jobpipe.cli.findings import Finding, fail, ok, warn
from jobpipe.errors import ConfigError, JobpipeError

if TYPE_CHECKING:
    from pathlib import Path

    from jobpipe.config import Config

__all__ = ["certificates", "registry"]

SOON = timedelta(days=30)
MAKE_NEW = "make new ones with `jobpipe certs init --dir DIR`"


def certificates(config: Config) -> Iterator[Finding]:
    """The certificates in force fit together, are valid, and stay so for a while. Makes none."""
    from jobpipe.config.checks import plaintext_beyond_loopback
    from jobpipe.net.tls import Credentials, client_context

    if not config.tls:
        detail = "encryption is switched off: no identities, nobody is refused"
        remedy = "set jobpipe.ssl.enabled and security.ssl.enabled to true"
        yield warn("certificates", detail + (", on the network" if plaintext_beyond_loopback(config) else ""), remedy)
        return
    if config.ssl_ca is not None and config.ssl_cert is not None and config.ssl_key is not None:
        files = Credentials(config.ssl_ca, config.ssl_cert, config.ssl_key, config.ssl_key_password)
    else:
        home = config.home / "certs"
        files = Credentials(home / "ca.crt", home / "node.crt", home / "node.key")
        if not files.cert.exists():
            yield ok("certificates", f"none yet in {home}; made on first use")
            return
    try:
        client_context(files)
    except ConfigError as error:
        yield fail("certificates", error.message, f"put it right, or {MAKE_NEW}")
        return
    for path in (files.ca, files.cert):
        yield _expiry(path)


def _expiry(path: Path) -> Finding:
    from jobpipe.net.certs import describe

    try:
        info = describe(path)
    except ConfigError as error:
        return fail("certificates", error.message, MAKE_NEW)
    now = datetime.now(UTC)
    detail = f"{path}: valid to {info.not_after:%Y-%m-%d}, {(info.not_after - now).days} days left"
    renew = f"renew it: jobpipe certs issue {path.stem} --replace --dir {path.parent}"
    if info.is_ca:
        renew = MAKE_NEW
    if not info.not_before <= now < info.not_after:
        span = f"{info.not_before:%Y-%m-%d} to {info.not_after:%Y-%m-%d}"
        return fail("certificates", f"{path}: valid from {span}", renew)
    return warn("certificates", detail, renew) if info.expires_within(SOON) else ok("certificates", detail)


def registry(config: Config) -> Finding:
    """A real read is answered. An embedded registry that sleeps is not woken."""
    from jobpipe.discovery.handler import map_registry_errors, open_handler
    from registry.embedded import EmbeddedZooKeeper

    if config.embedded and EmbeddedZooKeeper(config.home).status() is None:
        return ok("registry", f"the embedded ZooKeeper of {config.home} does not run now; whoever needs it starts it")
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
            f"see that ZooKeeper runs at {where}, can be reached from here, and knows us (docs/registry-security.md)"
        )
        return fail("registry", error.message, remedy)
    spent = f"{time.monotonic() - began:.2f} s"
    return ok("registry", f"{config.registry_connect} answers in {spent}, {count} topics in {config.namespace}")
