"""What of the driver's configuration each node replaces by its own: the paths of the certificates.

A reader's or a sink's task gets the configuration that the driver resolved; it holds paths and numbers, no secrets. An
option, or ``spark.jobpipe.*``, is the application's word and holds on every node. Environment and configuration files
are each node's own: where the task's have a path, that one is used, else the driver's.
"""

from __future__ import annotations

import functools
import socket
import ssl
from dataclasses import dataclass, replace
from typing import Any

from jobpipe.config import Config, node_settings
from jobpipe.discovery.configured_tls import credentials
from jobpipe.errors import ConfigError
from jobpipe.net.address import Endpoint, require_plaintext_allowed
from jobpipe.net.tls.tls_context import Credentials, latest_context

PER_NODE = {"ssl_ca": "ca", "ssl_cert": "cert", "ssl_key": "key", "ssl_key_password": "password", "ssl_crl": "crl"}
"""Attributes of the configuration, and the fields of Credentials that they fill."""


@dataclass(frozen=True)
class NodeCredentials:
    """The paths of the driver's certificate files, on their way to a task."""

    files: Credentials
    pinned: frozenset[str]  # attributes of the configuration that the application set

    @classmethod
    def of(cls, config: Config) -> NodeCredentials | None:
        """Return what is in force in this process; None without TLS.

        Raises:
            ConfigError: the certificates of the embedded mode cannot be made.
        """
        files = credentials(config)
        if files is None:
            return None
        return cls(files, config.pinned & PER_NODE.keys())

    def context(self) -> ssl.SSLContext:
        """Return the context for connecting from this node.

        Raises:
            ConfigError: a file is missing or wrong, on this host; says where its path came from, and what to do.
        """
        own = own_paths()
        here = {PER_NODE[name]: value for name, value in own.items() if name not in self.pinned}
        files = replace(self.files, **here)
        try:
            return latest_context(files)
        except ConfigError as error:
            raise self._explained(error, files) from error

    def _explained(self, error: ConfigError, files: Credentials) -> ConfigError:
        at_fault = (name for name, part in PER_NODE.items() if str(getattr(files, part)) == error.fields.get("file"))
        wrong = next(at_fault, "ssl_ca")
        key = "jobpipe." + wrong.replace("_", ".")
        host = socket.gethostname()
        if wrong in self.pinned:
            source = "an option or spark.jobpipe.* of the application, and holds on every host"
            remedy = (
                f"put the file there, or leave {key} out of them, and let the configuration of each host name its own"
            )
        elif wrong in own_paths():
            source = f"the configuration of {host}"
            remedy = "mend it"
        else:
            source = f"the driver, since the configuration of {host} has none"
            remedy = (
                f"put the file there, or set {key} on {host}, in /etc/jobpipe/jobpipe.yaml or in the environment of "
                "Spark's worker"
            )
        return ConfigError(
            f"on host {host}: {error}. The path comes from {source}: {remedy}", **{**error.fields, "host": host}
        )


def on_this_node(config: Config, endpoint: Endpoint) -> ssl.SSLContext | None:
    """Return the context to dial ``endpoint`` with a configuration that may be another host's; None in plaintext.

    Raises:
        ConfigError: see :meth:`NodeCredentials.context`; or encryption is off, and the endpoint beyond loopback.
    """
    if not config.tls:
        require_plaintext_allowed(endpoint, allowed=config.allow_plaintext)
    files = NodeCredentials.of(config)
    return None if files is None else files.context()


@functools.cache
def own_paths() -> dict[str, Any]:
    """Return what this process's own environment and file set of the paths; read once, for there is one per task.

    Raises:
        ConfigError: names the host; there is something wrong with them.
    """
    try:
        return {name: path for name, path in node_settings(PER_NODE).items() if path is not None}
    except ConfigError as error:
        raise ConfigError(f"on host {socket.gethostname()}: {error}", **error.fields) from error
