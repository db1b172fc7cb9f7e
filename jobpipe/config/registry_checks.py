"""Checks of the registry's keys: what is wrong only together, and whether a server answers at its address."""

from __future__ import annotations

import socket
import threading
import time

from jobpipe.config.model import Config

SECONDS = 1.0  # for all servers of an ensemble together, their names included

_OWN_WAY = "while the registry is embedded: that one is on loopback, and makes its own TLS files"


def _mechanism(config: Config) -> str | None:
    if config.embedded and config.registry_sasl_mechanism is not None:
        return f"null {_OWN_WAY}"
    given = {
        "sasl.username": config.registry_sasl_username,
        "sasl.password": config.registry_sasl_password,
        "sasl.principal": config.registry_sasl_principal,
    }
    names = [name for name, value in given.items() if value is not None]
    if config.registry_sasl_mechanism is None and names:
        return f"DIGEST-MD5 or GSSAPI, since registerserver.{names[0]} is given"
    return None


def _username(config: Config) -> str | None:
    if config.registry_sasl_mechanism == "DIGEST-MD5" and config.registry_sasl_username is None:
        return "a name, since registerserver.sasl.mechanism is DIGEST-MD5"
    return None


def _password(config: Config) -> str | None:
    if config.registry_sasl_mechanism == "DIGEST-MD5" and config.registry_sasl_password is None:
        return "a reference to the password, since registerserver.sasl.mechanism is DIGEST-MD5"
    return None


def _ssl_enabled(config: Config) -> str | None:
    return f"false {_OWN_WAY}" if config.embedded and config.registry_ssl_enabled else None


def _ssl_ca(config: Config) -> str | None:
    if config.registry_ssl_enabled and config.registry_ssl_ca is None:
        return "a file with the CA of the ZooKeeper servers, since registerserver.ssl.enabled is true"
    return None


def _ssl_cert(config: Config) -> str | None:
    if config.registry_ssl_cert is None and config.registry_ssl_key is not None:
        return "a file: registerserver.ssl.cert and registerserver.ssl.key go together"
    return None


def _ssl_key(config: Config) -> str | None:
    if config.registry_ssl_key is None and config.registry_ssl_cert is not None:
        return "a file: registerserver.ssl.cert and registerserver.ssl.key go together"
    return None


def _acl(config: Config) -> str | None:
    known = config.registry_sasl_mechanism is not None or (
        config.registry_ssl_enabled and config.registry_ssl_cert is not None
    )
    words = [word.strip() for word in (config.registry_acl or "").split(",")]
    if "auth" in words and not known:
        return "no auth without authentication to the registry: set registerserver.sasl.mechanism or ssl.cert"
    return None


_SASL = tuple(f"registry_sasl_{name}" for name in ("mechanism", "username", "password", "principal"))
_SSL = tuple(f"registry_ssl_{name}" for name in ("enabled", "ca", "cert", "key"))

REGISTRY_CHECKS = (
    ("registry_sasl_mechanism", ("registry_connect", *_SASL), _mechanism),
    ("registry_sasl_username", _SASL, _username),
    ("registry_sasl_password", _SASL, _password),
    ("registry_ssl_enabled", ("registry_connect",), _ssl_enabled),
    ("registry_ssl_ca", _SSL, _ssl_ca),
    ("registry_ssl_cert", _SSL, _ssl_cert),
    ("registry_ssl_key", _SSL, _ssl_key),
    ("registry_acl", (*_SASL, *_SSL), _acl),
)
"""(attribute that is blamed, attributes that are read, the check), as jobpipe.config.checks takes them."""


def why_unreachable(connect: str) -> str | None:
    """Return why no server of ``host:port,host:port/path`` takes a connection, None when one does; within a second.

    A server that is merely slow counts as reachable: its error comes later, from those who wait longer.
    """
    servers = connect.partition("/")[0].split(",")
    answers: dict[str, str | None] = {}

    def dial(server: str) -> None:
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), SECONDS).close()
        except TimeoutError:
            answers[server] = None
        except OSError as error:
            answers[server] = error.strerror or type(error).__name__
        else:
            answers[server] = None

    threads = [threading.Thread(target=dial, args=(server,), name="reach", daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    reasons = [answers.get(server) for server in servers]
    if any(reason is None for reason in reasons):
        return None
    return "; ".join(f"{server}: {reason}" for server, reason in zip(servers, reasons, strict=True))
