"""Reads one partition of a range of batches from data servers: verified, decoded step by step, resumed after a cut.

For Spark's executor workers and plain clients: blocking, with links pooled by endpoint and process. Memory holds one
record batch and one chunk, never a segment.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from jobpipe.config import Config
from jobpipe.discovery.locate import Location, locate
from jobpipe.discovery.node import on_this_node
from jobpipe.errors import (
    ChecksumMismatch,
    HostAway,
    JobpipeError,
    PeerNotTrusted,
    RegistryUnavailable,
    RemoteProtocolError,
    SegmentCorrupt,
    TopicNotFound,
)
from jobpipe.net.address import Endpoint
from jobpipe.net.blocking import BlockingLink
from jobpipe.net.retry import PROTOCOL_TRIES, RETRYABLE, Distrust, backoff
from jobpipe.store import Position
from jobpipe.subscriber.checked import CheckedReader, check_part
from jobpipe.subscriber.kept import kept_part
from jobpipe.subscriber.part import PartSource
from jobpipe.subscriber.pool import give_back, take

__all__ = ["FetchRange", "Fetched", "fetch", "fetch_plan", "look_up"]

log = logging.getLogger(__name__)

Accept: TypeAlias = Callable[[pa.Schema], object] | None
STREAM_SECONDS = 30.0  # until the first part of an answer
BACKOFF_CAP_SECONDS = 2.0
DAMAGED_TRIES = 3  # so often in a row at one place, it is not the way here that damages the bytes


@dataclass(frozen=True)
class FetchRange:
    """One partition of the batches from ``start`` to ``end``."""

    topic: str
    start: Position
    end: Position
    partition: int
    data: str  # hint: the "host:port" that served it when the range was planned


@dataclass(frozen=True)
class Fetched:
    """One record batch and where it comes from."""

    batch: pa.RecordBatch
    header: dict[str, Any]  # of its part: n, partition, partitions, schema_id, sealed_ms, epoch, publisher
    row: int  # number of its first row within its partition of its batch


def fetch(wanted: FetchRange, config: Config, accept: Accept = None) -> Iterator[Fetched]:
    """Yield the range's record batches in order, each exactly once, over as many links as it takes.

    Args:
        accept: called with the schema of what comes before any of it is decoded; raises when it is not the agreed one.

    Raises:
        DataLoss: the range does not fit the log any more.
        SegmentCorrupt: committed bytes are damaged or missing.
        LinkError, TopicNotFound: nobody served it within ``read.timeout``; HostAway names the host server.
        NotAuthorized: the server refuses us, or what the registry names is, again and again, none that we trust.
    """
    done, damaged, endpoint = 0, 0, Endpoint.parse(wanted.data)
    deadline: float | None = None
    delays, garbled = backoff(cap=BACKOFF_CAP_SECONDS), 0
    distrust = Distrust(config.registry_session_timeout)
    location: Location | None = None  # what the registry said last; None while the endpoint is a hint
    while True:
        try:
            for fetched in _stream(wanted, endpoint, on_this_node(config, endpoint), done, accept):
                yield fetched
                done += 1
                damaged, garbled, deadline, delays = 0, 0, None, backoff(cap=BACKOFF_CAP_SECONDS)
            return
        except (*RETRYABLE, PeerNotTrusted) as error:
            if isinstance(error, ChecksumMismatch) and "offset" in error.fields:
                damaged += 1
                if damaged >= DAMAGED_TRIES:
                    raise _damaged(wanted.topic, error) from error
            garbled += isinstance(error, RemoteProtocolError)
            now = time.monotonic()
            level = logging.WARNING if deadline is None else logging.DEBUG  # once, until rows come again
            deadline = deadline or now + config.read_timeout
            if now >= deadline or garbled >= PROTOCOL_TRIES or distrust.is_final(error, location, now):
                raise
            log.log(level, "topic %s, partition %d: %s; trying again", wanted.topic, wanted.partition, error)
            time.sleep(next(delays))
            if isinstance(error, HostAway):
                continue  # the data process says where that is, when it is back
            location = look_up(config, wanted.topic, location, deadline)
            endpoint = endpoint if location is None else location.data


def fetch_plan(topic: str, plan: dict[str, Any], data: str, config: Config) -> Iterator[Fetched]:
    """Yield all partitions of a plan, batch after batch, and within one by partition.

    Several batches take a link for each partition at once; raises as :func:`fetch`.
    """
    start, end = Position.from_json(plan["start"]), Position.from_json(plan["end"])
    streams = [
        fetch(FetchRange(topic, start, end, partition, data), config) for partition in range(int(plan["partitions"]))
    ]
    if end.n - start.n <= 1:
        return itertools.chain.from_iterable(streams)  # one link, one after another
    return heapq.merge(*streams, key=lambda fetched: (fetched.header["n"], fetched.header["partition"]))


def _damaged(topic: str, error: ChecksumMismatch) -> SegmentCorrupt:
    offset, partition = error.fields["offset"], error.fields.get("partition")
    return SegmentCorrupt(
        f"topic {topic!r}, offset {offset}, partition {partition}: committed bytes do not match their checksum, "
        f"{DAMAGED_TRIES} times in a row; restore the spool from a backup, or let subscribers skip the batch with "
        "failOnDataLoss=false",
        topic=topic,
        offset=offset,
        partition=partition,
    )


def look_up(config: Config, topic: str, failed: Location | None, deadline: float) -> Location | None:
    """Ask the registry, with a client of its own made after the fork; None while it is silent, or nobody serves."""
    try:
        return locate(config, topic, min(5.0, max(deadline - time.monotonic(), 0.1)), failed)
    except (RegistryUnavailable, TopicNotFound) as error:
        log.info("topic %s: %s", topic, error)
        return None


# -- one stream --------------------------------------------------------------------------------------------------------


def _stream(
    wanted: FetchRange, endpoint: Endpoint, tls: ssl.SSLContext | None, skip: int, accept: Accept
) -> Iterator[Fetched]:
    link = take(endpoint, wanted.topic, tls)
    whole = False
    try:
        link.start_stream(
            "fetch",
            {
                "start": wanted.start.to_json(),
                "end": wanted.end.to_json(),
                "partition": wanted.partition,
                "skip": skip,
            },
            timeout=STREAM_SECONDS,
        )
        count = 0
        while (part := link.next_part()) is not None:
            check_part(part.header)
            with _source(link, part.header, wanted, tls) as source:
                for fetched in _decode(source, part.header, wanted.topic, accept):
                    yield fetched
                    count += 1
        promised = link.stream_reply.result["record_batches"] if link.stream_reply is not None else None
        if promised != count:
            raise RemoteProtocolError(
                f"topic {wanted.topic!r}, partition {wanted.partition}: {count} record batches came, {promised} "
                "were sent",
                topic=wanted.topic,
            )
        whole = True
    finally:
        if whole:
            give_back(link, endpoint, wanted.topic, tls)
        else:
            link.abort()  # half-read, or left by a reader that wants no more


def _source(
    link: BlockingLink, header: dict[str, Any], wanted: FetchRange, tls: ssl.SSLContext | None
) -> contextlib.AbstractContextManager[PartSource]:
    """Return where the bytes of a part come from: this link, or the host server that keeps them."""
    if "host" in header:
        return kept_part(header, wanted.topic, tls)
    where = {"offset": header["n"], "partition": header["partition"]}
    return contextlib.nullcontext(PartSource(link, int(header["length"]), where))


def _decode(source: PartSource, header: dict[str, Any], topic: str, accept: Accept = None) -> Iterator[Fetched]:
    row, expected = int(header["row0"]), int(header["record_batches"])
    try:
        file: Any = source  # it has what pyarrow calls, and no more
        reader = CheckedReader(pa.PythonFile(file, mode="r"), header, accept)
        for _ in range(expected):
            batch = reader.read_next_batch()
            batch.validate(full=True)
            yield Fetched(batch, header, row)
            row += batch.num_rows
        source.finish()
    except (JobpipeError, pa.ArrowCancelled):
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, OverflowError, StopIteration) as error:
        if source.failure is not None:  # pyarrow wraps what its source raised
            raise source.failure from error
        raise SegmentCorrupt(
            f"topic {topic!r}, offset {header['n']}, partition {header['partition']}: a segment cannot be decoded "
            f"({error}) although its checksums are right",
            topic=topic,
            offset=header["n"],
            partition=header["partition"],
        ) from error
    except Exception:
        if source.failure is not None:
            raise source.failure from None
        raise
