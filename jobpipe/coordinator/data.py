"""The data server's answers: streams segments to readers as they lie on disk, and takes segments from remote tasks.

It runs in a process of its own, so that streaming never delays the control loop, and reads the catalogs through
read-only connections; it decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jobpipe.config import Config
from jobpipe.coordinator.access import demand_role
from jobpipe.discovery.trust import Trust
from jobpipe.errors import JobpipeError, NotAuthorized, RemoteProtocolError, SegmentCorrupt, TopicNotFound
from jobpipe.net.access import PUBLISH, READ
from jobpipe.net.link import Link
from jobpipe.store import CatalogReader, Cursor, FileSink, Piece, Position
from jobpipe.store.files import SEGMENTS, write_id_of
from jobpipe.wire.messages import Hello, Request, Welcome
from registry.names import check_name

__all__ = ["DataService"]

R = TypeVar("R")
log = logging.getLogger(__name__)

PAGE = 64  # pieces looked up at once


@dataclass
class _Open:
    """One topic's catalog, open for reading, with the thread that may touch it."""

    reader: CatalogReader
    inode: int
    executor: ThreadPoolExecutor

    async def run(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)


class DataService:
    """Implements :class:`jobpipe.net.server.Handler` for data links."""

    def __init__(self, config: Config, instance: str, trust: Trust) -> None:
        self._config = config
        self._trust = trust
        self._instance = instance
        self._open: dict[str, _Open] = {}
        self._opening = asyncio.Lock()
        self.directories: dict[str, Path] = {}  # a sink may have a spool.dir of its own

    def _directory(self, topic: str) -> Path:
        return self.directories.get(topic, self._config.spool_dir / topic)

    async def _catalog(self, topic: str) -> _Open:
        check_name(topic)
        directory = self._directory(topic)
        async with self._opening:
            try:
                inode = (await asyncio.to_thread(os.stat, directory / "catalog.db")).st_ino
            except OSError as error:
                raise TopicNotFound(f"topic {topic!r} has no log here", topic=topic) from error
            known = self._open.get(topic)
            if known is not None and known.inode == inode:
                return known
            if known is not None:  # the log was wiped and made again
                await self._shut(known)
            executor = ThreadPoolExecutor(1, thread_name_prefix=f"read-{topic}")
            reader = await asyncio.get_running_loop().run_in_executor(executor, CatalogReader.open, directory, topic)
            self._open[topic] = _Open(reader, inode, executor)
            return self._open[topic]

    async def _shut(self, catalog: _Open) -> None:
        await catalog.run(catalog.reader.close)
        catalog.executor.shutdown(wait=False)

    # -- jobpipe.net.server.Handler ------------------------------------------------------------------------------------

    async def welcome(self, link: Link, hello: Hello) -> Welcome:
        """Prove topic, log and epoch to a peer."""
        demand_role(self._trust, link)
        catalog = await self._catalog(hello.topic)
        log_id, epoch = await catalog.run(lambda: (catalog.reader.log_id, catalog.reader.epoch))
        return Welcome(version=1, topic=hello.topic, log=log_id, epoch=epoch, instance=self._instance)

    async def handle(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        """Answer ``fetch`` and ``put``."""
        try:
            if request.op == "fetch":
                self._trust.demand(link, READ, link.hello.topic)
                return await self._fetch(link, request), b""
            if request.op == "put":
                if link.hello.role != "publisher":
                    raise NotAuthorized("operation 'put' is for publishers", op="put")
                self._trust.demand(link, PUBLISH, link.hello.topic)
                return await self._put(link, request), b""
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(
                f"operation {request.op!r}: malformed arguments ({error!r})", op=request.op
            ) from error
        raise RemoteProtocolError(f"unknown operation {request.op!r}", op=request.op)

    def disconnected(self, link: Link, why: JobpipeError) -> None:
        """Nothing is kept per link."""

    async def close(self) -> None:
        """Close all catalogs."""
        for catalog in self._open.values():
            await self._shut(catalog)
        self._open.clear()

    # -- operations ----------------------------------------------------------------------------------------------------

    async def _fetch(self, link: Link, request: Request) -> dict[str, Any]:
        args = request.args
        start, end = Position.from_json(args["start"]), Position.from_json(args["end"])
        partition, skip = int(args["partition"]), int(args.get("skip", 0))
        catalog = await self._catalog(link.hello.topic)
        batches = rows = 0
        cursor: Cursor | None = None
        while True:

            def page(cursor: Cursor | None = cursor) -> tuple[list[Piece], Cursor | None]:
                return catalog.reader.pieces(start, end, partition, skip=skip, limit=PAGE, cursor=cursor)

            pieces, cursor = await catalog.run(page)
            for piece in pieces:
                await self._send(link, request.id, piece)
                batches += piece.record_batches
                rows += piece.rows
            if cursor is None:
                return {"record_batches": batches, "rows": rows}

    async def _send(self, link: Link, request_id: int, piece: Piece) -> None:
        length = sum(chunk.length for chunk in piece.chunks)
        await link.send_part(
            request_id,
            {
                "n": piece.n,
                "partition": piece.partition,
                "partitions": piece.partitions,
                "schema_id": piece.schema_id,
                "sealed_ms": piece.sealed_ms,
                "epoch": piece.epoch,
                "publisher": piece.publisher,
                "row0": piece.row0,
                "rows": piece.rows,
                "record_batches": piece.record_batches,
                "length": length,
            },
        )
        if piece.data is not None:
            view, skew = memoryview(piece.data), 0
        else:
            view, skew = await asyncio.to_thread(_map, piece, link.hello.topic)
        for chunk in piece.chunks:
            offset = chunk.offset + skew
            await link.send_data(view[offset : offset + chunk.length], chunk.crc)

    async def _put(self, link: Link, request: Request) -> dict[str, Any]:
        topic, name, length = link.hello.topic, str(request.args["file"]), int(request.args["length"])
        directory = self._directory(topic)
        if write_id_of(name) is None:
            raise RemoteProtocolError(f"not a segment file's name: {name!r}", file=name)
        target = await asyncio.to_thread(FileSink, directory / SEGMENTS / name)
        written = 0
        try:
            async for payload in link.receive_stream(request):
                await asyncio.to_thread(target.write, payload)
                written += len(payload)
            if written != length:
                raise RemoteProtocolError(f"file {name}: {written} of {length} bytes came", file=name)
            await asyncio.to_thread(target.finish, fsync=self._config.fsync)
        except BaseException:
            await asyncio.to_thread(target.abort)
            raise
        return {"length": written}


def _map(piece: Piece, topic: str) -> tuple[memoryview, int]:
    """Map the piece's part of its file; return a view of it and what to add to a chunk's offset.

    Only this part is mapped, and only while it is sent: mapped pages count as memory of the process. The transport may
    hold a slice for a while, so the map is not closed but let go: it ends with its last slice.
    """
    assert piece.path is not None  # noqa: S101 - a piece has a path or data
    first = piece.offset - piece.offset % mmap.ALLOCATIONGRANULARITY
    last = piece.offset + max(chunk.offset + chunk.length for chunk in piece.chunks)
    try:
        descriptor = os.open(piece.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            mapped = mmap.mmap(descriptor, last - first, access=mmap.ACCESS_READ, offset=first)
            return memoryview(mapped), piece.offset - first
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise SegmentCorrupt(
            f"topic {topic!r}, offset {piece.n}, partition {piece.partition}: segment file {piece.path.name} cannot be "
            f"read ({error}); restore it from a backup, or let subscribers skip the batch with failOnDataLoss=false",
            topic=topic,
            offset=piece.n,
            partition=piece.partition,
            file=piece.path.name,
        ) from error
