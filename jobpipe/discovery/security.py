"""TLS contexts from the configuration."""

from __future__ import annotations

import dataclasses
import ssl

from jobpipe.config import Config
from jobpipe.net.tls import Credentials, client_context, server_context

__all__ = ["client_tls", "credentials", "server_tls", "with_credentials"]


def credentials(config: Config) -> Credentials | None:
    """Return the certificate files in force, None when encryption is off; the embedded mode makes them on first use.

    Raises:
        ConfigError: they cannot be made.
    """
    if config.tls and config.ssl_ca is not None and config.ssl_cert is not None and config.ssl_key is not None:
        return Credentials(config.ssl_ca, config.ssl_cert, config.ssl_key, config.ssl_key_password)
    from jobpipe.net import certs  # loads `cryptography`, which a Spark worker has no use for

    return certs.credentials(config)


def with_credentials(config: Config) -> Config:
    """Return ``config`` with the certificate files in force written out, for workers that shall not look for them."""
    files = credentials(config)
    return (
        config
        if files is None
        else dataclasses.replace(config, ssl_ca=files.ca, ssl_cert=files.cert, ssl_key=files.key)
    )


def server_tls(config: Config) -> ssl.SSLContext | None:
    """Return the context for servers, None when encryption is off."""
    files = credentials(config)
    return None if files is None else server_context(files)


def client_tls(config: Config) -> ssl.SSLContext | None:
    """Return the context for clients, None when encryption is off."""
    files = credentials(config)
    return None if files is None else client_context(files)
