"""Reads a part from the host server that keeps its bytes, by what the topic's data process says of them."""

from __future__ import annotations

import base64
import binascii
import contextlib
import ssl
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any

from jobpipe.errors import HostAway, LinkError, NotAuthorized, RemoteProtocolError
from jobpipe.net.address import Endpoint
from jobpipe.store.index import PACKED_CHUNK
from jobpipe.subscriber.part import PartSource
from jobpipe.subscriber.pool import give_back, take

__all__ = ["kept_part"]

READ_SECONDS = 30.0


@contextlib.contextmanager
def kept_part(header: dict[str, Any], topic: str, tls: ssl.SSLContext | None) -> Iterator[PartSource]:
    """Yield the bytes of a part. Their lengths and checksums must be those of ``header``, which are the catalog's.

    Args:
        header: of the part, with host, endpoint, log (its place there), file, offset and chunks.
        topic: whose part.
        tls: of clients.

    Raises:
        HostAway: the host server does not answer, or another one does at its address.
        SegmentCorrupt: it cannot read the file.
        ChecksumMismatch: its bytes are not those that were sealed.
    """
    host, endpoint = str(header["host"]), Endpoint.parse(str(header["endpoint"]))
    where = {"offset": header["n"], "partition": header["partition"]}
    try:
        chunks = list(PACKED_CHUNK.iter_unpack(base64.b64decode(str(header["chunks"]), validate=True)))
    except (binascii.Error, struct.error, ValueError) as error:
        raise RemoteProtocolError(f"topic {topic!r}: a part's chunks are malformed ({error})", topic=topic) from error
    whole = False
    link = None
    try:
        link = take(endpoint, topic, tls)
        if link.welcome.instance != host:
            raise LinkError(f"{endpoint} is host server {link.welcome.instance!r} now")
        asked = {name: header[name] for name in ("log", "file", "offset", "chunks")}
        link.start_stream("read", asked, timeout=READ_SECONDS)
        part = link.next_part()
        if part is None or part.header.get("length") != int(header["length"]):
            raise RemoteProtocolError(f"host server {host} announces other bytes than were asked for", host=host)
        yield PartSource(link, int(header["length"]), where, deque((length, crc) for _, length, crc in chunks))
        if link.next_part() is not None:
            raise RemoteProtocolError(f"host server {host} sends more than was asked for", host=host)
        whole = True
    except (LinkError, NotAuthorized) as error:  # not authorized: a stranger has its port
        raise HostAway(
            f"topic {topic!r}, offset {header['n']}, partition {header['partition']}: host server {host} at "
            f"{endpoint}, which keeps the segment, cannot be read: {error}",
            topic=topic,
            host=host,
            endpoint=str(endpoint),
            **where,
        ) from error
    finally:
        if link is not None and whole:
            give_back(link, endpoint, topic, tls)
        elif link is not None:
            link.abort()
