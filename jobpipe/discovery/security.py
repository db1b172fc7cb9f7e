"""TLS contexts from the configuration."""

from __future__ import annotations

import ssl

from jobpipe.config import Config
from jobpipe.net.certs import credentials
from jobpipe.net.tls import client_context, server_context

__all__ = ["client_tls", "credentials", "server_tls"]


def server_tls(config: Config) -> ssl.SSLContext | None:
    """Return the context for servers, None when encryption is off."""
    files = credentials(config)
    return None if files is None else server_context(files)


def client_tls(config: Config) -> ssl.SSLContext | None:
    """Return the context for clients, None when encryption is off."""
    files = credentials(config)
    return None if files is None else client_context(files)
