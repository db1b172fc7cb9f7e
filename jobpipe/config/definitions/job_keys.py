"""The keys of what a job does: how it listens, keeps, publishes and reads."""

# ruff: noqa: RUF009  key() returns a new dataclass field for each attribute

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jobpipe.config.definitions.definition import key
from jobpipe.config.types.network_types import HOST, PORT_RANGE, SUBNET
from jobpipe.config.types.value_types import BOOLEAN, PATH, choice, duration, optional, size, whole


@dataclass(frozen=True, kw_only=True)
class JobKeys:
    """Network, spool, host server, publisher, retention, subscriber."""

    port_range: tuple[int, int] = key(
        "jobpipe.sinkserver.port.range",
        PORT_RANGE,
        "28444-28943",
        "Ports that a publisher may listen on: a range or one port. Each publisher job takes two or more of them.",
        group="network",
    )
    subnet: str | None = key(
        "jobpipe.sinkserver.subnet",
        optional(SUBNET),
        None,
        "Listen on, and advertise, the interface in this subnet, for example 10.162.222.0/24. null = loopback if the "
        "registry is embedded, otherwise the host's primary address.",
        group="network",
    )
    advertise: str | None = key(
        "jobpipe.sinkserver.advertise",
        optional(HOST),
        None,
        "Host name or address that subscribers connect to, if it is not the one that the publisher listens on (NAT, "
        "containers). null = the address that it listens on.",
        group="network",
    )
    max_connections: int = key(
        "jobpipe.sinkserver.max_connections",
        whole(8, 100_000),
        1024,
        "Maximum number of open connections of each process of a coordinator. When it is reached, connections whose "
        "clients have not authenticated yet are dropped first.",
        group="network",
    )
    max_connections_per_address: int = key(
        "jobpipe.sinkserver.max_connections_per_address",
        whole(1, 100_000),
        512,
        "How many of these connections one address may have. All addresses of one IPv6 network of 64 bits count as "
        "one.",
        group="network",
    )
    max_connections_per_identity: int = key(
        "jobpipe.sinkserver.max_connections_per_identity",
        whole(1, 100_000),
        512,
        "How many of these connections one identity may have: certificates with the same names are one identity.",
        group="network",
    )
    connection_rate: int = key(
        "jobpipe.sinkserver.connection_rate",
        whole(1, 100_000),
        200,
        "Connections per second that one address may make, after a burst of twice as many. Connections above this rate "
        "are dropped before the TLS handshake. A connection that fails before its client is admitted counts as eleven.",
        group="network",
    )
    discovery_timeout: float = key(
        "jobpipe.discovery.timeout",
        duration(0.1),
        "60s",
        "How long a reader waits for a topic's publisher before it fails. If the topic was published before, streams "
        "and plain clients wait without limit; load(), batch reads and commands fail after this time all the same.",
        group="network",
    )

    spool_dir: Path = key(
        "jobpipe.spool.dir",
        optional(PATH),
        None,
        "Folder of the topics' catalogs and segments, on a local disk. If spool.placement is shared: on storage that "
        "all hosts of the driver can reach. null = the folder spool in jobpipe.home.",
        group="spool",
    )
    spool_placement: Literal["driver", "shared", "host"] = key(
        "jobpipe.spool.placement",
        choice("driver", "shared", "host"),
        "driver",
        "Where segments are kept: driver = on the host where the publisher's driver runs; shared = in a spool.dir that "
        "is reachable from every host where the driver may run, so that a driver that moves continues the same log; "
        "host = on the hosts whose tasks wrote them, by the host servers there.",
        group="spool",
        recommended=("driver", "shared", "host"),
    )
    fsync: bool = key(
        "jobpipe.spool.fsync",
        BOOLEAN,
        True,
        "Force sealed batches to disk. false saves one to three forced writes per batch, but then a power loss may "
        "lose sealed batches. kill -9 does not lose them.",
        group="spool",
    )
    spool_max_bytes: int = key(
        "jobpipe.spool.max_bytes",
        size(1024),
        "8GiB",
        "Cap of a topic's spool; must be at least segment.max_bytes. A batch that begins below the cap may take the "
        "spool above it. A batch that is itself larger than the cap fails. The part of the catalog's write-ahead log "
        "above 3 MiB counts too.",
        group="spool",
    )
    on_full: Literal["block", "drop_oldest"] = key(
        "jobpipe.spool.on_full",
        choice("block", "drop_oldest"),
        "block",
        "At the cap: block = the publisher waits, and says for which subscription, hold or lease; drop_oldest = the "
        "oldest batches are removed, and subscriptions that needed them fail with data loss; the publisher waits only "
        "for leases.",
        group="spool",
        recommended=("block", "drop_oldest"),
    )

    hostserver_dir: Path = key(
        "jobpipe.hostserver.dir",
        optional(PATH),
        None,
        "Folder where this host's jobpipe server host keeps segments (spool.placement host). Tasks on this host find "
        "the host server through this folder. null = the folder hostserver in jobpipe.home.",
        group="host server",
    )
    hostserver_port: tuple[int, int] = key(
        "jobpipe.hostserver.port",
        PORT_RANGE,
        28443,
        "Port that the host server listens on, or a range from which it takes any free port.",
        group="host server",
    )
    hostserver_lost_after: float = key(
        "jobpipe.hostserver.lost_after",
        duration(1.0),
        "5min",
        "A host server that is absent from the registry for this long counts as lost: subscribers that need its "
        "segments fail with data loss. Until then they wait for it.",
        group="host server",
    )

    linger: float = key(
        "jobpipe.coordinator.linger",
        duration(),
        "60s",
        "How long the coordinator keeps serving sealed batches after its job has died, or has closed a topic that not "
        "every subscription has read. The time starts again whenever a subscription advances.",
        group="publisher",
    )
    write_path: Literal["auto", "collect", "tasks"] = key(
        "jobpipe.write_path",
        choice("auto", "collect", "tasks"),
        "auto",
        "How a batch reaches the spool: collect = through the driver, with the least latency for small batches; tasks "
        "= each Spark task writes its rows; auto = by the size of the last batch, the first one by tasks.",
        group="publisher",
        recommended=("auto", "collect", "tasks"),
    )
    parallelism: int | None = key(
        "jobpipe.parallelism",
        optional(whole(1, 4096)),
        None,
        "Partitions of a published topic. null = Spark's default parallelism; 1 for a publisher without Spark.",
        group="publisher",
    )
    acks: Literal["stored", "all"] = key(
        "jobpipe.acks",
        choice("stored", "all"),
        "stored",
        "What the sink waits for before it returns to Spark: stored = the batch is durable in the spool; all = every "
        "required subscription has committed it (needs required_subscribers or min_subscribers of the sink, and "
        "on_full block).",
        group="publisher",
        recommended=("stored", "all"),
    )
    acks_timeout: float = key(
        "jobpipe.acks.timeout",
        duration(0.1),
        "10min",
        "How long the sink waits for subscribers (acks=all, or room in a full spool) before it fails and names them.",
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
        "Compression of the columns in segments, on disk and on the wire.",
        group="publisher",
        recommended=("none", "lz4", "zstd"),
    )

    retention_time: float = key(
        "jobpipe.retention.time",
        duration(),
        "10min",
        "Batches that every subscription has acknowledged are kept this long after they were sealed, counted while a "
        "coordinator is up. So are all batches of a topic without subscriptions, unless min_subscribers is set. Other "
        "batches are kept until each subscription has acknowledged them or has expired, or until spool.on_full "
        "drop_oldest removes them. Holds and leases keep batches longer.",
        group="retention",
    )
    retention_bytes: int = key(
        "jobpipe.retention.bytes",
        size(),
        "1GiB",
        "If a topic is larger than this, acknowledged batches are removed before retention.time is over.",
        group="retention",
    )
    ack_grace: float = key(
        "jobpipe.retention.ack_grace",
        duration(),
        "60s",
        "Minimum time between the last acknowledgement of a batch and its removal. Spark does not force its own "
        "checkpoint to disk, so after a power loss it may read the batch again.",
        group="retention",
    )
    subscription_expiry: float = key(
        "jobpipe.subscription.expiry",
        duration(1.0),
        "24h",
        "A subscription that is not required is dropped when its reader has been away for this long, counted while a "
        "coordinator is up. A reader that returns after its batches were removed fails with data loss. Batches that a "
        "reader was reading when it disappeared are kept for jobpipe.read.timeout; the subscription does not expire "
        "before that.",
        group="retention",
    )

    max_subscriptions: int = key(
        "jobpipe.subscription.max",
        whole(1, 100_000),
        1000,
        "Maximum number of subscriptions of one topic. Further names are refused. One identity of the access list "
        "gets at most half of them. Each subscription makes a seal slower: with 1,200, a seal takes 37 ms.",
        group="retention",
    )

    hold_max_time: float = key(
        "jobpipe.hold.max_time",
        duration(1.0),
        "168h",
        "How long a hold of a scheduled job keeps batches without being moved, counted while a coordinator is up, and "
        "only while there is something to read. Then the hold is dropped and reported as a gap, so that no schedule "
        "blocks the publisher forever. Under jobpipe topics serve no hold is dropped.",
        group="retention",
    )

    read_timeout: float = key(
        "jobpipe.read.timeout",
        duration(0.1),
        "10min",
        "How long a task, a batch read, or a reader that starts tries to reach the topic's coordinator before it "
        "fails. Between batches, streams and plain clients without a timeout wait for the publisher without limit.",
        group="subscriber",
    )
