"""The definition of every configuration key: name, kind, default, documentation, and the attribute it fills.

Parsing, validation, ``config show`` and the check of ``conf/jobpipe.yaml`` all read it from here.
"""

# ruff: noqa: RUF009  key() returns a dataclass field, made anew for each attribute

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, cast

from jobpipe.config.definition import Key, key
from jobpipe.config.identity import ACL, NAME
from jobpipe.config.places import CONNECT, HANDLER, HOST, PORT_RANGE, SUBNET, ZNODE
from jobpipe.config.secrets import Secret
from jobpipe.config.values import (
    BOOLEAN,
    PATH,
    SECRET,
    choice,
    duration,
    optional,
    size,
    whole,
)

__all__ = ["KEYS", "Config"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of one process: times in seconds, sizes in bytes, absolute paths.

    Made by :func:`jobpipe.config.load`, which checks it. ``Config()`` holds the defaults and reads no source;
    values given to the constructor are not checked.
    """

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
        "Where the registry is: host:port,host:port of a ZooKeeper ensemble, with /path behind it for a chroot; or "
        "embedded, which starts, or joins, the ZooKeeper of this home on loopback.",
        group="registry",
        recommended=("embedded", "zk1:2181,zk2:2181,zk3:2181"),
    )
    registry_handler: str = key(
        "jobpipe.registerserver.handler",
        HANDLER,
        "zookeeper",
        "What speaks to the registry: zookeeper, or your own RegisterServerHandler as package.module:Class.",
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
        "How long the registry keeps the registrations of a process it does not hear from.",
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
        "How this process proves to the registry who it is: DIGEST-MD5 = by sasl.username and sasl.password; GSSAPI = "
        "by Kerberos, whose ticket cache or client keytab is found as usual (KRB5CCNAME, KRB5_CLIENT_KTNAME) and which "
        "needs pip install 'jobpipe[kerberos]'. null = not at all.",
        group="registry",
        recommended=("DIGEST-MD5", "GSSAPI"),
    )
    registry_sasl_username: str | None = key(
        "jobpipe.registerserver.sasl.username",
        optional(NAME),
        None,
        "Name for DIGEST-MD5.",
        group="registry",
    )
    registry_sasl_password: Secret | None = key(
        "jobpipe.registerserver.sasl.password",
        optional(SECRET),
        None,
        "Password for DIGEST-MD5. Who listens to the connection can guess it at leisure: use ssl.enabled, too.",
        group="registry",
        secret=True,
    )
    registry_sasl_principal: str | None = key(
        "jobpipe.registerserver.sasl.principal",
        optional(NAME),
        None,
        "Own principal for GSSAPI, such as jobpipe@EXAMPLE.ORG. null = the one of the ticket cache or keytab.",
        group="registry",
    )
    registry_sasl_service: str = key(
        "jobpipe.registerserver.sasl.service",
        NAME,
        "zookeeper",
        "First part of the servers' principals, for GSSAPI: zookeeper/<host>@<realm>.",
        group="registry",
        recommended=("zookeeper",),
    )
    registry_ssl_enabled: bool = key(
        "jobpipe.registerserver.ssl.enabled",
        BOOLEAN,
        False,
        "TLS to the registry; its port is then the secureClientPort. The servers must have a certificate of "
        "registerserver.ssl.ca with the host name by which registerserver.connect names them.",
        group="registry",
    )
    registry_ssl_ca: Path | None = key(
        "jobpipe.registerserver.ssl.ca",
        optional(PATH),
        None,
        "Certificate of the registry servers' CA (PEM); no other one is believed.",
        group="registry",
    )
    registry_ssl_cert: Path | None = key(
        "jobpipe.registerserver.ssl.cert",
        optional(PATH),
        None,
        "This process's certificate for the registry (PEM), where the servers demand one, or know us by it.",
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
        "Who may do what with each node that we make in the registry: auth = whoever made it, all; open = everybody, "
        "all; scheme:id:permissions = that one, these (create, read, write, delete, administer: crwda); several with "
        "commas. null = auth with sasl.mechanism or registerserver.ssl.cert, else open. Publishers and subscribers "
        "that authenticate by different names must name each other, as in auth,sasl:reader:r.",
        group="registry",
        recommended=("auth", "open", "auth,world:anyone:r"),
    )

    port_range: tuple[int, int] = key(
        "jobpipe.sinkserver.port.range",
        PORT_RANGE,
        "28444-28943",
        "Ports a publisher may listen on: a range or one port. Each publisher job takes two or more of them.",
        group="network",
    )
    subnet: str | None = key(
        "jobpipe.sinkserver.subnet",
        optional(SUBNET),
        None,
        "Listen on, and advertise, the interface in this subnet, for example 10.162.222.0/24. null = loopback when the "
        "registry is embedded, else the host's primary address.",
        group="network",
    )
    advertise: str | None = key(
        "jobpipe.sinkserver.advertise",
        optional(HOST),
        None,
        "Host name or address that subscribers are told to connect to, where it is not the one listened on (NAT, "
        "containers). null = the address listened on.",
        group="network",
    )
    max_connections: int = key(
        "jobpipe.sinkserver.max_connections",
        whole(8, 100_000),
        1024,
        "Connections each process of a coordinator holds at once. At this cap those that have not proven who they are "
        "make room first.",
        group="network",
    )
    max_connections_per_address: int = key(
        "jobpipe.sinkserver.max_connections_per_address",
        whole(1, 100_000),
        512,
        "How many of them may come from one address (IPv6: from one network of 64 bits).",
        group="network",
    )
    max_connections_per_identity: int = key(
        "jobpipe.sinkserver.max_connections_per_identity",
        whole(1, 100_000),
        512,
        "How many of them may show the same names in their certificates.",
        group="network",
    )
    connection_rate: int = key(
        "jobpipe.sinkserver.connection_rate",
        whole(1, 100_000),
        200,
        "Connections a second from one address, after twice as many at once; those above are dropped before the TLS "
        "handshake. One that fails before it is welcomed counts for eleven.",
        group="network",
    )
    discovery_timeout: float = key(
        "jobpipe.discovery.timeout",
        duration(0.1),
        "60s",
        "How long a reader waits for a topic that was never published before it fails. Streams and plain clients wait "
        "on for the publisher of one that was; load(), batch reads and commands do not.",
        group="network",
    )

    spool_dir: Path = key(
        "jobpipe.spool.dir",
        optional(PATH),
        None,
        "Folder of the topics' catalogs and segments, on a local disk. null = spool under home.",
        group="spool",
    )
    spool_placement: Literal["driver", "shared", "host"] = key(
        "jobpipe.spool.placement",
        choice("driver", "shared", "host"),
        "driver",
        "Where segments are kept: driver = on the host of the publisher's driver; shared = in a spool.dir that every "
        "host of the driver reaches, so that a driver that moves goes on with the same log; host = on the hosts that "
        "wrote them, by the host server there.",
        group="spool",
        recommended=("driver", "shared", "host"),
    )
    fsync: bool = key(
        "jobpipe.spool.fsync",
        BOOLEAN,
        True,
        "Force sealed batches to the disk. false saves one to three forced writes a batch, but a power loss may then "
        "take sealed batches; kill -9 does not.",
        group="spool",
    )
    spool_max_bytes: int = key(
        "jobpipe.spool.max_bytes",
        size(1024),
        "8GiB",
        "Hard cap of a topic's spool, at least segment.max_bytes. One batch may pass it; a batch that alone exceeds "
        "it fails. The catalog's write-ahead log counts where it is over 3 MiB.",
        group="spool",
    )
    on_full: Literal["block", "drop_oldest"] = key(
        "jobpipe.spool.on_full",
        choice("block", "drop_oldest"),
        "block",
        "At the cap: block = the publisher waits for the slow subscription and names it; drop_oldest = the oldest "
        "batches go, and subscriptions that needed them fail with data loss.",
        group="spool",
        recommended=("block", "drop_oldest"),
    )

    hostserver_dir: Path = key(
        "jobpipe.hostserver.dir",
        optional(PATH),
        None,
        "Folder where this host's jobpipe host-server keeps segments (spool.placement host). Tasks on this host look "
        "there for it. null = hostserver under home.",
        group="host server",
    )
    hostserver_port: tuple[int, int] = key(
        "jobpipe.hostserver.port",
        PORT_RANGE,
        28443,
        "Port the host server listens on, or a range to take any free one from.",
        group="host server",
    )
    hostserver_lost_after: float = key(
        "jobpipe.hostserver.lost_after",
        duration(1.0),
        "5min",
        "A host server that is absent from the registry for so long counts as lost: subscribers that need its segments "
        "fail with data loss. Until then they wait for it.",
        group="host server",
    )

    linger: float = key(
        "jobpipe.coordinator.linger",
        duration(),
        "60s",
        "How long the coordinator goes on serving what is sealed after its job died.",
        group="publisher",
    )
    write_path: Literal["auto", "collect", "tasks"] = key(
        "jobpipe.write_path",
        choice("auto", "collect", "tasks"),
        "auto",
        "How a batch reaches the spool: collect = through the driver, least latency for small batches; tasks = each "
        "Spark task writes its rows; auto = by the size of the batches before.",
        group="publisher",
        recommended=("auto", "collect", "tasks"),
    )
    parallelism: int | None = key(
        "jobpipe.parallelism",
        optional(whole(1, 4096)),
        None,
        "Partitions of a published topic. null = Spark's default parallelism.",
        group="publisher",
    )
    acks: Literal["stored", "all"] = key(
        "jobpipe.acks",
        choice("stored", "all"),
        "stored",
        "How far a batch must have got before the sink returns to Spark: stored = durable in the spool; all = "
        "committed by every required subscription (needs required_subscribers or min_subscribers of the sink, and "
        "on_full block).",
        group="publisher",
        recommended=("stored", "all"),
    )
    acks_timeout: float = key(
        "jobpipe.acks.timeout",
        duration(0.1),
        "10min",
        "How long the sink waits for subscribers (acks=all, or room in a full spool) before it fails with their names.",
        group="publisher",
    )
    segment_max_bytes: int = key(
        "jobpipe.segment.max_bytes",
        size(1024),
        "64MiB",
        "Size at which a segment ends and the next one begins.",
        group="publisher",
    )
    segment_compression: Literal["none", "lz4", "zstd"] = key(
        "jobpipe.segment.compression",
        choice("none", "lz4", "zstd"),
        "none",
        "Compression of the columns in segments, on the disk and on the wire.",
        group="publisher",
        recommended=("none", "lz4", "zstd"),
    )

    retention_time: float = key(
        "jobpipe.retention.time",
        duration(),
        "10min",
        "Batches that every subscription has acknowledged are kept this long after they were sealed, counted while a "
        "coordinator is up. Batches not yet acknowledged are kept in any case.",
        group="retention",
    )
    retention_bytes: int = key(
        "jobpipe.retention.bytes",
        size(),
        "1GiB",
        "Acknowledged batches beyond this size of the topic go before retention.time is over.",
        group="retention",
    )
    ack_grace: float = key(
        "jobpipe.retention.ack_grace",
        duration(),
        "60s",
        "Least time from the last acknowledgement of a batch to its removal: Spark's own checkpoint is not forced to "
        "the disk.",
        group="retention",
    )
    subscription_expiry: float = key(
        "jobpipe.subscription.expiry",
        duration(1.0),
        "24h",
        "A subscription that is not required and was not seen for this long, while a coordinator was up, is dropped; "
        "it fails when it returns. What a reader that vanished was reading is kept for jobpipe.read.timeout, and it "
        "does not expire before that is over.",
        group="retention",
    )

    max_subscriptions: int = key(
        "jobpipe.subscription.max",
        whole(1, 100_000),
        1000,
        "Subscriptions of one topic; a new name above that is refused. Each makes a seal slower: 1,200 make it 37 ms.",
        group="retention",
    )

    read_timeout: float = key(
        "jobpipe.read.timeout",
        duration(0.1),
        "10min",
        "How long a subscriber's task tries to reach a coordinator of its topic before it fails.",
        group="subscriber",
    )

    ssl_enabled: bool = key(
        "jobpipe.ssl.enabled",
        BOOLEAN,
        True,
        "jobpipe's own switch. Links are encrypted, with certificates checked on both sides, when this switch and "
        "security.ssl.enabled are both true.",
        group="security",
    )
    ssl_ca: Path | None = key(
        "jobpipe.ssl.ca",
        optional(PATH),
        None,
        "Certificate of the CA (PEM) that all jobs of the namespace trust. null + embedded registry = made on first "
        "use under home; else run: jobpipe certs init.",
        group="security",
    )
    ssl_cert: Path | None = key(
        "jobpipe.ssl.cert",
        optional(PATH),
        None,
        "This process's certificate (PEM), for serving and for connecting. null as with ssl.ca.",
        group="security",
    )
    ssl_key: Path | None = key(
        "jobpipe.ssl.key",
        optional(PATH),
        None,
        "Private key of ssl.cert (PEM), which only its owner may read. null as with ssl.ca.",
        group="security",
    )
    ssl_key_password: Secret | None = key(
        "jobpipe.ssl.key.password",
        optional(SECRET),
        None,
        "Where the password of ssl.key is, if it has one: file:PATH, env:NAME, or enc:... as made by: jobpipe config "
        "encrypt.",
        group="security",
        secret=True,
    )
    ssl_crl: Path | None = key(
        "jobpipe.ssl.crl",
        optional(PATH),
        None,
        "Revocation list (PEM) of the CAs in ssl.ca; every one of them needs its own in it. null = the file beside "
        "ssl.ca with the ending .crl, if there is one.",
        group="security",
    )
    ssl_max_connection_age: float = key(
        "jobpipe.ssl.max_connection_age",
        duration(1.0),
        "24h",
        "A server ends links that are older, so that their clients prove themselves anew; they dial again by "
        "themselves.",
        group="security",
    )
    platform_ssl: bool = key(
        "security.ssl.enabled",
        BOOLEAN,
        True,
        "The platform's switch for encryption, beside jobpipe.ssl.enabled.",
        group="security",
    )
    allow_plaintext: bool = key(
        "security.allow_plaintext",
        BOOLEAN,
        False,
        "Allow links without encryption and without identities beyond loopback.",
        group="security",
    )
    access: Path | None = key(
        "security.access",
        optional(PATH),
        None,
        "Access list of the topics that this job publishes (YAML): who may publish, read under which subscription "
        "names, or administer which topics. Read anew when it changes. null = with the embedded registry and its own "
        "CA everybody who has that CA's certificates, else only who has this process's certificate.",
        group="security",
    )

    pinned: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """Attributes set by options, a file they name, or ``spark.jobpipe.*``: they hold on each node of an application."""

    def __post_init__(self) -> None:
        if cast("Path | None", self.spool_dir) is None:  # its own default, until home is known
            object.__setattr__(self, "spool_dir", self.home / "spool")
        if cast("Path | None", self.hostserver_dir) is None:
            object.__setattr__(self, "hostserver_dir", self.home / "hostserver")

    @property
    def tls(self) -> bool:
        """Whether links are encrypted: both switches are on."""
        return self.ssl_enabled and self.platform_ssl

    @property
    def embedded(self) -> bool:
        """Whether the registry is the embedded ZooKeeper of ``home``."""
        return self.registry_connect == "embedded"

    def to_dict(self) -> dict[str, str]:
        """Return every key with its value as text, for another process; of secrets where they are."""
        return {about.name: about.format(getattr(self, about.attribute)) for about in KEYS}

    @classmethod
    def from_dict(cls, mapping: Mapping[str, str]) -> Config:
        """Return the settings that :meth:`to_dict` wrote; keys that are missing have their defaults.

        Raises:
            ConfigError: as :func:`jobpipe.config.load`.
        """
        from jobpipe.config.sources import from_mapping  # needs this module

        return from_mapping(mapping)


KEYS: tuple[Key, ...] = tuple(
    Key(attribute=each.name, **each.metadata["key"]) for each in fields(Config) if "key" in each.metadata
)
"""Every key, in the order of conf/jobpipe.yaml."""
