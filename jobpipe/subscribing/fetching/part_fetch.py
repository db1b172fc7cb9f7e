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
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from jobpipe.arrow.ipc_validation import CheckedReader
from jobpipe.config import Config
from jobpipe.discovery.node_overrides import on_this_node
from jobpipe.discovery.topic_lookup import Location, locate
from jobpipe.errors import (
    ChecksumMismatch,
    HostAway,
    JobpipeError,
    RegistryUnavailable,
    RemoteProtocolError,
    SegmentCorrupt,
    TopicNotFound,
)
from jobpipe.net.address import Endpoint
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.retry import Attempts, Deadline
from jobpipe.operations.data_operations import CountedPart, FetchRequest, HeldPart, PartHeader
from jobpipe.operations.messages.calls import begin_stream, read_reply
from jobpipe.operations.range_messages import PlannedRange
from jobpipe.store.catalog.position import Position
from jobpipe.subscribing.fetching.host_server_reader import host_server_part
from jobpipe.subscribing.fetching.link_pool import pooled
from jobpipe.subscribing.fetching.part_stream import BytesSource, PartSource

log = logging.getLogger(__name__)

Accept: TypeAlias = Callable[[pa.Schema], object] | None
STREAM_SECONDS = 30.0  # until the first part of an answer
LOOK_SECONDS = 5.0  # at the registry, in one attempt
DAMAGED_TRIES = 3  # so often in a row at one place, it is not the way here that damages the bytes


@dataclass(frozen=True)
class FetchRange:
    """One partition of the batches from ``start`` to ``end``."""

    topic: str
    start: Position
    end: Position
    partition: int
    data: str  # hint: the "host:port" that served it when the range was planned
    counts: CountedPart | None = None  # what is reported of it; see count_report.py


@dataclass(frozen=True)
class Fetched:
    """One record batch and where it comes from."""

    batch: pa.RecordBatch
    header: PartHeader  # of its part
    row: int  # number of its first row within its partition of its batch


def fetch(wanted: FetchRange, config: Config, accept: Accept = None, *, skip: int = 0) -> Iterator[Fetched]:
    """Yield the range's record batches in order, each exactly once, over as many links as it takes.

    Args:
        accept: called with the schema of what comes before any of it is decoded; raises when it is not the agreed one.
        skip: record batches of the range that were read before.

    Raises:
        DataLoss: the range does not fit the log any more.
        SegmentCorrupt: committed bytes are damaged or missing.
        LinkError, TopicNotFound: it was not served within ``read.timeout``; HostAway names the host server.
        NotAuthorized: the server refuses us, or the registry repeatedly leads to an untrusted server.
    """
    done, damaged, endpoint = skip, 0, Endpoint.parse(wanted.data)
    attempts = Attempts(config.read_timeout, session=config.registry_session_timeout)
    location: Location | None = None  # what the registry said last; None while the endpoint is a hint
    missed_at = -1  # at what count of record batches a host server had no file
    while True:
        try:
            for fetched in _stream(wanted, endpoint, on_this_node(config, endpoint), done, accept):
                yield fetched
                done += 1
                damaged = 0
                attempts.progressed()
            return
        except SegmentCorrupt as error:
            if not error.fields.get("missing") or missed_at == done:
                raise
            missed_at = done  # ask for it again: the data process knows if retention has removed it meanwhile
        except Attempts.ERRORS as error:
            if isinstance(error, ChecksumMismatch) and "offset" in error.fields:
                damaged += 1
                if damaged >= DAMAGED_TRIES:
                    raise _damaged(wanted.topic, error) from error
            pause = attempts.failed(error, location)
            level = logging.WARNING if attempts.failures == 1 else logging.DEBUG  # once, until rows come again
            log.log(level, "topic %s, partition %d: %s; trying again", wanted.topic, wanted.partition, error)
            time.sleep(pause)
            if isinstance(error, HostAway):
                continue  # the data process says where that is, when it is back
            location = refresh_location(config, wanted.topic, location, attempts.deadline)
            endpoint = endpoint if location is None else location.data


def fetch_plan(topic: str, plan: PlannedRange, data: str, config: Config) -> Iterator[Fetched]:
    """Yield all partitions of a plan, batch after batch, and within one by partition.

    Several batches take a link for each partition at once; raises as :func:`fetch`.
    """
    streams = [
        fetch(FetchRange(topic, plan.start, plan.end, partition, data), config) for partition in range(plan.partitions)
    ]
    if plan.end.n - plan.start.n <= 1:
        return itertools.chain.from_iterable(streams)  # one link, one after another
    return heapq.merge(*streams, key=lambda fetched: (fetched.header.n, fetched.header.partition))


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


def refresh_location(config: Config, topic: str, failed: Location | None, deadline: Deadline) -> Location | None:
    """Ask the registry, with a client of its own made after the fork; None if it is silent, or the topic not served."""
    try:
        return locate(config, topic, deadline.left(LOOK_SECONDS, least=0.1), failed)
    except (RegistryUnavailable, TopicNotFound) as error:
        log.info("topic %s: %s", topic, error)
        return None


# -- one stream --------------------------------------------------------------------------------------------------------


def _stream(
    wanted: FetchRange, endpoint: Endpoint, tls: ssl.SSLContext | None, skip: int, accept: Accept
) -> Iterator[Fetched]:
    with pooled(endpoint, wanted.topic, tls) as link:  # it is cut where a reader stops
        asked = FetchRequest(wanted.start, wanted.end, wanted.partition, skip, wanted.counts)
        begin_stream(link, asked, timeout=STREAM_SECONDS)
        count = 0
        while (part := link.next_part()) is not None:
            header = PartHeader.from_json(part.header)
            with _source(link, header, wanted, tls) as source:
                for fetched in _decode(source, header, wanted.topic, accept):
                    yield fetched
                    count += 1
        promised = read_reply(link, asked).record_batches
        if promised != count:
            raise RemoteProtocolError(
                f"topic {wanted.topic!r}, partition {wanted.partition}: {count} record batches came, {promised} "
                "were sent",
                topic=wanted.topic,
            )


def _source(
    link: BlockingLink, header: PartHeader, wanted: FetchRange, tls: ssl.SSLContext | None
) -> contextlib.AbstractContextManager[PartSource]:
    """Return where the bytes of a part come from: this link, or the host server that keeps them."""
    if header.kept is not None:
        return host_server_part(header, header.kept, wanted.topic, tls)
    where = {"offset": header.n, "partition": header.partition}
    return contextlib.nullcontext(PartSource(link, header.length, where))


def decode(held: HeldPart, topic: str) -> Iterator[Fetched]:
    """Yield the record batches of a part that came with an answer; its checksums and bytes are checked as in a stream.

    Raises:
        ChecksumMismatch: its bytes are not those that were sealed.
        SegmentCorrupt: they cannot be decoded.
    """
    if not is_intact(held):
        raise ChecksumMismatch("a part came with other bytes than were sealed", offset=held.header.n)
    yield from _decode(BytesSource(held.data), held.header, topic)


def is_intact(held: HeldPart) -> bool:
    """Tell whether the bytes of a part that came with an answer are those that were sealed."""
    view, at = memoryview(held.data), 0
    for chunk in held.chunks:
        if zlib.crc32(view[at : at + chunk.length]) != chunk.crc:
            return False
        at += chunk.length
    return True


def _decode(
    source: PartSource | BytesSource, header: PartHeader, topic: str, accept: Accept = None
) -> Iterator[Fetched]:
    row = header.row0
    try:
        file: Any = source  # it has only what pyarrow calls
        reader = CheckedReader(pa.PythonFile(file, mode="r"), header, accept)
        for _ in range(header.record_batches):
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
            f"topic {topic!r}, offset {header.n}, partition {header.partition}: a segment cannot be decoded "
            f"({error}) although its checksums are right",
            topic=topic,
            offset=header.n,
            partition=header.partition,
        ) from error
    except Exception:
        if source.failure is not None:
            raise source.failure from None
        raise
