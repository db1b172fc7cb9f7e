"""Takes a segment file that a task uploads."""

from __future__ import annotations

import asyncio
from pathlib import Path

from jobpipe.errors import RemoteProtocolError
from jobpipe.net.link import Link
from jobpipe.store.files import FileSink
from jobpipe.wire.messages import Request

__all__ = ["receive_file"]


async def receive_file(link: Link, request: Request, path: Path, length: int, *, fsync: bool) -> None:
    """Write the bytes that come with ``request`` to a new file.

    The disk's pace is the sender's: while more than 1 MiB waits here the link is not read.

    Raises:
        RemoteProtocolError: another number of bytes came.
        SpoolError: the disk refuses; the file is gone.
    """
    target = await asyncio.to_thread(FileSink, path)
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
