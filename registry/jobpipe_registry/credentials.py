"""Who we are to the registry's servers, whom we take for one of them, and what others may do with our nodes.

Parsed from options, checked, and free of I/O. A password is in no ``repr``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jobpipe_registry.registry_errors import BadOption

_PERMISSIONS = "crwda"
_GRANT = re.compile(r"\s*(?:(auth|open)|([a-z0-9]+):(.+?):([crwda]+))\s*(?:,|$)")


@dataclass(frozen=True)
class Sasl:
    """How to authenticate: ``DIGEST-MD5`` by name and password, ``GSSAPI`` by Kerberos.

    Of GSSAPI, ``service`` is the first part of the servers' principal, and ``principal`` ours, "" for the one that the
    ticket cache or the client keytab holds.
    """

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    principal: str = ""
    service: str = "zookeeper"

    def __str__(self) -> str:
        who = repr(self.username) if self.mechanism == "DIGEST-MD5" else self.principal or "the default principal"
        return f"SASL {self.mechanism} as {who}"


@dataclass(frozen=True)
class Tls:
    """PEM files: the only CA whose servers are believed, and our own certificate, if we have one."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class Grant:
    """One entry of an ACL; ``auth`` with an empty id stands for the client that makes the node.

    ``permissions`` are letters of ZooKeeper's: create, read, write, delete (both of children), administer.
    """

    scheme: str
    id: str
    permissions: str


_WORDS = {"auth": Grant("auth", "", _PERMISSIONS), "open": Grant("world", "anyone", _PERMISSIONS)}


def parse_sasl(options: Mapping[str, str]) -> Sasl | None:
    """Read ``sasl.mechanism``, ``.username``, ``.password``, ``.principal`` and ``.service``. None: no SASL.

    Raises:
        BadOption: another mechanism, or DIGEST-MD5 without name or password.
    """
    mechanism = options.get("sasl.mechanism", "")
    if not mechanism:
        return None
    if mechanism not in ("DIGEST-MD5", "GSSAPI"):
        raise BadOption("sasl.mechanism", "DIGEST-MD5 or GSSAPI")
    if mechanism == "GSSAPI":
        service = options.get("sasl.service", "") or "zookeeper"
        return Sasl(mechanism, principal=options.get("sasl.principal", ""), service=service)
    for name in ("sasl.username", "sasl.password"):
        if not options.get(name):
            raise BadOption(name, "a text, since sasl.mechanism is DIGEST-MD5")
    return Sasl(mechanism, options["sasl.username"], options["sasl.password"])


def parse_tls(options: Mapping[str, str]) -> Tls | None:
    """Read ``ssl.enabled``, ``ssl.ca``, ``ssl.cert`` and ``ssl.key``. None: no TLS. Opens no file.

    Raises:
        BadOption: ``ssl.enabled`` is neither true nor false, there is no CA, or one of certificate and key is missing.
    """
    enabled = options.get("ssl.enabled", "false")
    if enabled not in ("true", "false"):
        raise BadOption("ssl.enabled", "true or false")
    if enabled == "false":
        return None
    ca, cert, key = (Path(text) if (text := options.get(f"ssl.{name}")) else None for name in ("ca", "cert", "key"))
    if ca is None:
        raise BadOption("ssl.ca", "a file with the CA of the servers, since ssl.enabled is true")
    if (cert is None) != (key is None):
        raise BadOption("ssl.key" if key is None else "ssl.cert", "a file: ssl.cert and ssl.key go together")
    return Tls(ca, cert, key)


def parse_acl(text: str) -> tuple[Grant, ...]:
    """Read an ACL: ``auth`` (the maker of a node may do all), ``open`` (all clients may), or ``scheme:id:permissions``.

    >>> parse_acl("auth, world:anyone:r")
    (Grant(scheme='auth', id='', permissions='crwda'), Grant(scheme='world', id='anyone', permissions='r'))

    Several are separated by commas; an id may have commas, as the names of certificates do.

    Raises:
        BadOption: there is none, or one is of no such form.
    """
    grants, at = [], 0
    while at < len(text):
        match = _GRANT.match(text, at)
        if match is None:
            break
        grants.append(_WORDS[match[1]] if match[1] else Grant(match[2], match[3], match[4]))
        at = match.end()
    if not grants or at < len(text) or text.rstrip().endswith(","):
        raise BadOption("acl", "auth, open, or scheme:id:permissions (of c r w d a), or several, separated by commas")
    return tuple(grants)
