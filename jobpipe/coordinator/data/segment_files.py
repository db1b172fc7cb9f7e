"""The bytes of segments between disk and link: taken from a task that uploads them, mapped and described to be sent."""

from __future__ import annotations

import asyncio
import mmap
import os
from pathlib import Path

from jobpipe.errors import RemoteProtocolError
from jobpipe.net.links.async_link import Link
from jobpipe.operations.data_operations import HeldPart, KeptPart, PartHeader
from jobpipe.store.reading.catalog_reader import SegmentRange
from jobpipe.store.spool.spool_files import FileSegmentSink
from jobpipe.wire.wire_messages import Request


def part_header(piece: SegmentRange, kept: KeptPart | None = None) -> PartHeader:
    """Return what is said of a piece before its bytes; ``kept``: where they are, if a host server has them."""
    return PartHeader(
        n=piece.n,
        partition=piece.partition,
        partitions=piece.partitions,
        schema_id=piece.schema_id,
        sealed_ms=piece.sealed_ms,
        epoch=piece.epoch,
        publisher=piece.publisher,
        row0=piece.row0,
        rows=piece.rows,
        record_batches=piece.record_batches,
        length=sum(chunk.length for chunk in piece.chunks),
        before=piece.before,
        kept=kept,
    )


def held_part(piece: SegmentRange) -> HeldPart:
    """Return a piece whose bytes lie in the catalog, to be sent with an answer."""
    assert piece.data is not None  # noqa: S101 - the store gives no other
    view = memoryview(piece.data)
    data = b"".join(view[chunk.offset : chunk.offset + chunk.length] for chunk in piece.chunks)
    return HeldPart(part_header(piece), tuple(piece.chunks), data)


async def receive_file(link: Link, request: Request, path: Path, length: int, *, fsync: bool) -> None:
    """Write the bytes that come with ``request`` to a new file.

    The disk's pace is the sender's: while more than 1 MiB waits here the link is not read.

    Raises:
        RemoteProtocolError: another number of bytes came.
        SpoolError: the disk refuses; the file is gone.
    """
    target = await asyncio.to_thread(FileSegmentSink, path)
    written = 0
    try:
        async for payload in link.receive_stream(request):
            await asyncio.to_thread(target.write, payload)
            written += len(payload)
        if written != length:
            raise RemoteProtocolError(f"file {path.name}: {written} of {length} bytes came", file=path.name)
        await asyncio.to_thread(target.finish, fsync=fsync)
    except BaseException:
        await asyncio.to_thread(target.abort)
        raise


def map_range(path: Path, offset: int, length: int) -> tuple[memoryview, int]:
    """Map ``length`` bytes from ``offset``; return a view of the map and where ``offset`` is in it.

    Only this part is mapped, and only while it is sent: mapped pages count as memory of the process. A transport may
    hold a slice for a while, so the map is not closed but let go: it ends with its last slice. Safe for segments:
    they are immutable, and only ever unlinked.

    Raises:
        OSError, ValueError: the file cannot be read, or is too short.
    """
    first = offset - offset % mmap.ALLOCATIONGRANULARITY
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        mapped = mmap.mmap(descriptor, offset + length - first, access=mmap.ACCESS_READ, offset=first)
        return memoryview(mapped), offset - first
    finally:
        os.close(descriptor)
