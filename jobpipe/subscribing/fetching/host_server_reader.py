"""Reads a part from the host server that keeps its bytes, by what the topic's data process says of them."""

from __future__ import annotations

import contextlib
import ssl
from collections import deque
from collections.abc import Iterator

from jobpipe.errors import HostAway, LinkError, NotAuthorized, RemoteProtocolError
from jobpipe.net.address import Endpoint
from jobpipe.operations.data_operations import KeptPart, PartHeader
from jobpipe.operations.host_operations import ReadReply, ReadRequest
from jobpipe.operations.messages.calls import begin_stream
from jobpipe.subscribing.fetching.link_pool import pooled
from jobpipe.subscribing.fetching.part_stream import PartSource

READ_SECONDS = 30.0


@contextlib.contextmanager
def host_server_part(
    header: PartHeader, kept: KeptPart, topic: str, tls: ssl.SSLContext | None
) -> Iterator[PartSource]:
    """Yield the bytes of a part. Their lengths and checksums must be those of ``kept``, which are the catalog's.

    Args:
        header: of the part.
        kept: of the header: where its bytes are.
        topic: whose part.
        tls: of clients.

    Raises:
        HostAway: the host server does not answer, or another one does at its address.
        SegmentCorrupt: it cannot read the file.
        ChecksumMismatch: its bytes are not those that were sealed.
    """
    host, endpoint = kept.host, Endpoint.parse(kept.endpoint)
    where = {"offset": header.n, "partition": header.partition}
    try:
        with pooled(endpoint, topic, tls) as link:
            if link.welcome.instance != host:
                raise LinkError(f"{endpoint} is host server {link.welcome.instance!r} now")
            asked = ReadRequest(log=kept.log, file=kept.file, offset=kept.offset, chunks=kept.chunks)
            begin_stream(link, asked, timeout=READ_SECONDS)
            part = link.next_part()
            if part is None or ReadReply.from_json(part.header).length != header.length:
                raise RemoteProtocolError(f"host server {host} announces other bytes than were asked for", host=host)
            expected = deque((chunk.length, chunk.crc) for chunk in kept.chunks)
            yield PartSource(link, header.length, where, expected)
            if link.next_part() is not None:
                raise RemoteProtocolError(f"host server {host} sends more than was asked for", host=host)
    except (LinkError, NotAuthorized) as error:  # not authorized: a stranger has its port
        raise HostAway(
            f"topic {topic!r}, offset {header.n}, partition {header.partition}: host server {host} at "
            f"{endpoint}, which keeps the segment, cannot be read: {error}",
            topic=topic,
            host=host,
            endpoint=str(endpoint),
            **where,
        ) from error
