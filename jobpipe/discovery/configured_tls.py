"""TLS contexts from the configuration."""

from __future__ import annotations

import dataclasses
import logging
import ssl

from jobpipe.config import Config
from jobpipe.errors import ConfigError
from jobpipe.net.address import Endpoint, require_plaintext_allowed
from jobpipe.net.tls.tls_context import Credentials, client_context, configured, latest_context

log = logging.getLogger(__name__)

_found: dict[Config, Credentials | None] = {}  # by what they were found, last


def credentials(config: Config) -> Credentials | None:
    """Return the certificate files in force, None when encryption is off; the embedded mode makes them on first use.

    Raises:
        ConfigError: they cannot be made.
    """
    if config.tls and (given := configured(config)) is not None:
        return given
    from jobpipe.net.tls import certificates  # loads `cryptography`, which a Spark worker has no use for

    return certificates.credentials(config)


def with_credentials(config: Config) -> Config:
    """Return ``config`` with the certificate files in force written out, for workers that must not look for them."""
    files = credentials(config)
    return (
        config
        if files is None
        else dataclasses.replace(config, ssl_ca=files.ca, ssl_cert=files.cert, ssl_key=files.key)
    )


def client_tls(config: Config) -> ssl.SSLContext | None:
    """Return the context for clients, None when encryption is off."""
    files = credentials(config)
    return None if files is None else client_context(files)


def dial_tls(config: Config, endpoint: Endpoint) -> ssl.SSLContext | None:
    """Return the context to dial ``endpoint`` with, None in plaintext. Ask again for each link: certificates change.

    Raises:
        ConfigError: as :func:`jobpipe.net.tls.tls_context.latest_context`; encryption is off, and the endpoint is
            beyond loopback.
    """
    if not config.tls:
        require_plaintext_allowed(endpoint, allowed=config.allow_plaintext)
        return None
    try:
        files = _found[config] = credentials(config)
    except ConfigError as error:  # the home's are looked at each time, and may be out of reach for a moment
        if config not in _found:
            raise
        files = _found[config]
        log.warning("%s; the previous certificates stay in use", error.message)
    return None if files is None else latest_context(files)
