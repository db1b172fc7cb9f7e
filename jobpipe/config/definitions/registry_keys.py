"""The keys of the home and of the registry."""

# ruff: noqa: RUF009  key() returns a new dataclass field for each attribute

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jobpipe.config.definitions.definition import key
from jobpipe.config.types.network_types import ACL, CONNECT, HANDLER, ZNODE
from jobpipe.config.types.secrets import Secret
from jobpipe.config.types.value_types import BOOLEAN, PATH, SECRET, TEXT, choice, duration, optional


@dataclass(frozen=True, kw_only=True)
class RegistryKeys:
    """Where jobs meet, and who this process is there."""

    home: Path = key(
        "jobpipe.home",
        PATH,
        "~/.jobpipe",
        "Folder of this user's embedded ZooKeeper, own CA and default spool.",
        group="general",
    )

    registry_connect: str = key(
        "jobpipe.registerserver.connect",
        CONNECT,
        "embedded",
        "Where the registry is: host:port,host:port of a ZooKeeper ensemble, followed by /path for a chroot; or "
        "embedded, which starts, or joins, the ZooKeeper of this home on loopback.",
        group="registry",
        recommended=("embedded", "zk1:2181,zk2:2181,zk3:2181"),
    )
    registry_handler: str = key(
        "jobpipe.registerserver.handler",
        HANDLER,
        "zookeeper",
        "Client of the registry: zookeeper, or your own RegisterServerHandler as package.module:Class.",
        group="registry",
        recommended=("zookeeper",),
    )
    namespace: str = key(
        "jobpipe.registerserver.topic.storage",
        ZNODE,
        "/jobpipe/topics",
        "Namespace: the registry path under which topics are registered. Jobs meet only within one namespace.",
        group="registry",
    )
    registry_session_timeout: float = key(
        "jobpipe.registerserver.session.timeout",
        duration(1.0),
        "10s",
        "How long the registry keeps the registrations of a process that it no longer hears from.",
        group="registry",
    )
    registry_connect_timeout: float = key(
        "jobpipe.registerserver.connect.timeout",
        duration(0.1),
        "15s",
        "How long to wait for the first connection to the registry.",
        group="registry",
    )

    registry_sasl_mechanism: Literal["DIGEST-MD5", "GSSAPI"] | None = key(
        "jobpipe.registerserver.sasl.mechanism",
        optional(choice("DIGEST-MD5", "GSSAPI")),
        None,
        "How this process authenticates to the registry: DIGEST-MD5 = with sasl.username and sasl.password; GSSAPI = "
        "with Kerberos. Kerberos finds its ticket cache or client keytab as usual (KRB5CCNAME, KRB5_CLIENT_KTNAME) "
        "and needs pip install 'kerberos>=1.3.1'. null = without SASL.",
        group="registry",
        recommended=("DIGEST-MD5", "GSSAPI"),
    )
    registry_sasl_username: str | None = key(
        "jobpipe.registerserver.sasl.username",
        optional(TEXT),
        None,
        "User name for DIGEST-MD5.",
        group="registry",
    )
    registry_sasl_password: Secret | None = key(
        "jobpipe.registerserver.sasl.password",
        optional(SECRET),
        None,
        "Password for DIGEST-MD5. Anyone who records the connection can guess it offline: set ssl.enabled as well.",
        group="registry",
        secret=True,
    )
    registry_sasl_principal: str | None = key(
        "jobpipe.registerserver.sasl.principal",
        optional(TEXT),
        None,
        "Own principal for GSSAPI, such as jobpipe@EXAMPLE.ORG. null = the one of the ticket cache or keytab.",
        group="registry",
    )
    registry_sasl_service: str = key(
        "jobpipe.registerserver.sasl.service",
        TEXT,
        "zookeeper",
        "First part of the servers' principals, for GSSAPI: zookeeper/<host>@<realm>.",
        group="registry",
        recommended=("zookeeper",),
    )
    registry_ssl_enabled: bool = key(
        "jobpipe.registerserver.ssl.enabled",
        BOOLEAN,
        False,
        "Use TLS to the registry. The ports of registerserver.connect must then be the servers' secureClientPort. "
        "Each server needs a certificate of registerserver.ssl.ca, with the host name that registerserver.connect "
        "uses.",
        group="registry",
    )
    registry_ssl_ca: Path | None = key(
        "jobpipe.registerserver.ssl.ca",
        optional(PATH),
        None,
        "Certificate of the registry servers' CA (PEM); no other CA is trusted.",
        group="registry",
    )
    registry_ssl_cert: Path | None = key(
        "jobpipe.registerserver.ssl.cert",
        optional(PATH),
        None,
        "This process's certificate for the registry (PEM), if the servers require one or identify clients by it.",
        group="registry",
    )
    registry_ssl_key: Path | None = key(
        "jobpipe.registerserver.ssl.key",
        optional(PATH),
        None,
        "Private key of registerserver.ssl.cert (PEM, not encrypted), which only its owner may read.",
        group="registry",
    )
    registry_acl: str | None = key(
        "jobpipe.registerserver.acl",
        optional(ACL),
        None,
        "The access rights of each node that jobpipe makes in the registry. auth: its creator may do everything; "
        "open: everyone may do everything; scheme:id:permissions: that identity has these permissions (create, read, "
        "write, delete, administer: crwda). Separate several with commas. null = auth with sasl.mechanism or "
        "registerserver.ssl.cert, otherwise open. Publishers and subscribers that authenticate under different names "
        "must name each other, as in auth,sasl:reader:r.",
        group="registry",
        recommended=("auth", "open", "auth,world:anyone:r"),
    )
