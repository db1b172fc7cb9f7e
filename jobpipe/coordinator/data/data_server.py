"""The data server: streams segments to readers as they lie on disk, and takes segments from remote tasks.

It runs in a process of its own, so that streaming never delays the control loop, and reads the catalogs through
read-only connections; it decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from jobpipe.config import Config
from jobpipe.coordinator.data.count_pipe import CountPipe
from jobpipe.coordinator.data.segment_files import map_range, part_header, receive_file
from jobpipe.coordinator.topic.fair_executor import FairExecutor
from jobpipe.discovery.peer_authentication import PeerAuthentication
from jobpipe.errors import DataLoss, HostAway, JobpipeError, LinkEnded, SegmentCorrupt, TopicNotFound
from jobpipe.net.links.async_link import Link
from jobpipe.net.servers.access_list import READ
from jobpipe.net.servers.identity_quota import identity_of
from jobpipe.net.servers.write_tokens import check_write_ticket
from jobpipe.operations.coordinator_operations import CONTROL
from jobpipe.operations.data_operations import (
    DATA,
    CountedPart,
    CountRequest,
    FetchReply,
    FetchRequest,
    KeptPart,
    PutReply,
    PutRequest,
    ServedReply,
)
from jobpipe.operations.hello import check_hello
from jobpipe.operations.host_operations import HOSTSERVER
from jobpipe.operations.messages.message_fields import EmptyReply, Fields
from jobpipe.operations.messages.operation import read_request
from jobpipe.store.reading.catalog_reader import CatalogReader, PageStart, SegmentRange
from jobpipe.store.spool.spool_files import CATALOG, SEGMENTS, write_id_of
from jobpipe.wire.wire_messages import Hello, Request, Welcome

R = TypeVar("R")
log = logging.getLogger(__name__)

PAGE = 64  # pieces looked up at once
_OTHERS = CONTROL.keys() | HOSTSERVER.keys()


@dataclass
class _OpenCatalog:
    """One topic's catalog, open for reading, with the thread that may touch it."""

    reader: CatalogReader
    inode: int
    thread: FairExecutor

    async def run(self, work: Callable[[], R]) -> R:
        return await self.thread.run(work)


class DataService:
    """Implements :class:`jobpipe.net.servers.served_link.LinkHandler` for data links."""

    def __init__(
        self, config: Config, instance: str, trust: PeerAuthentication, secret: str, counts: CountPipe | None = None
    ) -> None:
        self._config = config
        self._counts = counts or CountPipe()  # to the coordinator
        self._secret = secret  # of the job; its tasks show what follows from it
        self._trust = trust
        self._instance = instance
        self._open: dict[str, _OpenCatalog] = {}
        self._opening: dict[str, asyncio.Future[_OpenCatalog]] = {}  # topics whose catalog is being opened or read
        self.directories: dict[str, Path] = {}  # a sink may have a spool.dir of its own
        self.places: dict[str, str] = {}  # where in a host server's folder the files of a topic are
        self.hosts: dict[str, str | None] = {}  # endpoints of the host servers, None for a lost one
        self._served: Counter[str] = Counter()  # bytes by topic
        # What readers have got and not counted yet, by reading and number.
        self._uncounted: WeakKeyDictionary[Link, dict[tuple[str, int], CountedPart]] = WeakKeyDictionary()

    def _directory(self, topic: str) -> Path:
        return self.directories.get(topic, self._config.spool_dir / topic)

    async def _catalog(self, topic: str) -> _OpenCatalog:
        if (looking := self._opening.get(topic)) is not None:
            await asyncio.wait({looking})  # it may have looked before we came; the next look is for all who wait here
        if (looking := self._opening.get(topic)) is None:
            looking = self._opening[topic] = asyncio.ensure_future(self._open_catalog(topic))
            looking.add_done_callback(partial(self._opened, topic))
        return await asyncio.shield(looking)  # a peer that leaves must not let another thread wait for a hung disk

    def _opened(self, topic: str, looking: asyncio.Future[_OpenCatalog]) -> None:
        del self._opening[topic]
        if not looking.cancelled():
            looking.exception()  # perhaps no request waits for it any more

    async def _open_catalog(self, topic: str) -> _OpenCatalog:
        """Open the topic's catalog, if it is not open or another file has its place; one call a topic at a time.

        Whatever asks the disk does so in the topic's own thread: a spool that hangs holds up its own topic only.
        """
        directory, known = self._directory(topic), self._open.get(topic)
        thread = FairExecutor(f"read-{topic}") if known is None else known.thread

        def work() -> _OpenCatalog:
            try:
                inode = os.stat(directory / CATALOG).st_ino
            except OSError as error:
                raise TopicNotFound(f"topic {topic!r} has no log here", topic=topic) from error
            if known is not None and known.inode == inode:
                return known
            reader = CatalogReader.open(directory, topic)
            if known is not None:  # the log was wiped and made again
                known.reader.close()
            return _OpenCatalog(reader, inode, thread)

        try:
            found = self._open[topic] = await thread.run(work, whose="")
        except BaseException:
            if known is None:
                thread.close(lambda: None)
            raise
        return found

    async def _shut(self, catalog: _OpenCatalog) -> None:
        await catalog.thread.close(catalog.reader.close)

    # -- jobpipe.net.servers.served_link.LinkHandler ------------------------------------------------------------------

    async def welcome(self, link: Link, hello: Hello) -> Welcome:
        """Prove topic, log and epoch to a peer."""
        check_hello(hello)
        self._trust.require_role(link)
        catalog = await self._catalog(hello.topic)
        log_id, epoch = await catalog.run(lambda: (catalog.reader.log_id, catalog.reader.epoch))
        return Welcome(version=1, topic=hello.topic, log=log_id, epoch=epoch, instance=self._instance)

    async def handle(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        """Answer ``fetch``, ``count``, ``put`` and ``served``."""
        operation, asked = read_request(DATA, request, link.hello.role, others=_OTHERS)
        if operation.right is not None:
            self._trust.require(link, operation.right, link.hello.topic)
        reply: Fields
        match asked:
            case FetchRequest():
                reply = await self._fetch(link, request.id, asked)
            case CountRequest():
                reply = self._count(link, asked)
            case PutRequest():
                reply = await self._put(link, request, asked)
            case _:
                reply = ServedReply(self._served[link.hello.topic])
        return reply.to_json(), reply.blob

    def disconnected(self, link: Link, why: JobpipeError) -> None:
        """A link ended. A reader whose link broke may have read what it could not report."""
        owed = self._uncounted.pop(link, {})
        if not isinstance(why, LinkEnded):
            for part in owed.values():
                self._counts.broken(link.hello.topic, part)

    @property
    def owing(self) -> list[str]:
        """The topics of which a reader has got rows and has not reported them yet."""
        return sorted({link.hello.topic for link, owed in self._uncounted.items() if owed})

    async def close(self) -> None:
        for catalog in self._open.values():
            await self._shut(catalog)
        self._open.clear()

    # -- operations ----------------------------------------------------------------------------------------------------

    async def _fetch(self, link: Link, request_id: int, asked: FetchRequest) -> FetchReply:
        catalog = await self._catalog(link.hello.topic)
        batches = rows = 0
        cursor: PageStart | None = None
        look = partial(catalog.reader.segments, asked.start, asked.end, asked.partition, skip=asked.skip, limit=PAGE)
        while True:
            pieces, cursor = await catalog.run(partial(look, cursor=cursor))
            if not pieces and cursor is not None:  # what is wanted lies far from there
                identity = identity_of(link.peer_names, link.peer)
                async with self._trust.quotas.expensive(identity, link.hello.topic, "fetch"):
                    while not pieces and cursor is not None:
                        pieces, cursor = await catalog.run(partial(look, cursor=cursor))
            for piece in pieces:
                await self._send(link, request_id, catalog, piece)
                batches += piece.record_batches
                rows += piece.rows
            if cursor is None:
                if asked.counts is not None and rows:
                    owed = self._uncounted.setdefault(link, {})
                    owed[asked.counts.reading, asked.counts.number] = asked.counts
                return FetchReply(record_batches=batches, rows=rows)

    def _count(self, link: Link, asked: CountRequest) -> EmptyReply:
        """Pass on what a task has read; it decides nothing here, and is believed of whom may read under the name."""
        topic = link.hello.topic
        for piece in asked.pieces:
            for owed in (self._uncounted.get(link, {}), *self._uncounted.values()):  # mostly the same link
                if owed.pop((asked.reading, piece.number), None) is not None:
                    break
        if self._trust.allows(link, READ, topic, asked.name):
            self._counts.counted(topic, asked)
        else:  # a task with another certificate than its driver, or anybody
            self._counts.doubt(topic, asked.name)
        return EmptyReply()

    async def _send(self, link: Link, request_id: int, catalog: _OpenCatalog, piece: SegmentRange) -> None:
        kept = None if piece.host is None else self._kept(link.hello.topic, piece)
        header = part_header(piece, kept)
        await link.send_part(request_id, header.to_json())
        if piece.host is not None:
            return  # the reader asks there
        if piece.data is not None:
            view, skew = memoryview(piece.data), 0
        else:
            view, skew = await catalog.run(partial(_map, catalog.reader, piece))
        for chunk in piece.chunks:
            offset = chunk.offset + skew
            await link.send_data(view[offset : offset + chunk.length], chunk.crc)
            self._served[link.hello.topic] += chunk.length

    def _kept(self, topic: str, piece: SegmentRange) -> KeptPart:
        """Return where the bytes of a piece lie with a host server, and what they must be.

        Raises:
            HostAway: the host server is not registered now.
            DataLoss: it has not been for so long that it counts as lost.
        """
        where = f"topic {topic!r}, offset {piece.n}, partition {piece.partition}"
        facts = {"topic": topic, "offset": piece.n, "partition": piece.partition, "host": piece.host}
        facts["epoch"] = piece.epoch  # to go on after the batch with
        assert piece.host is not None and piece.path is not None  # noqa: S101, PT018 - the caller looked
        if piece.host not in self.hosts:
            raise HostAway(f"{where}: host server {piece.host}, which keeps the segment, is not registered", **facts)
        endpoint = self.hosts[piece.host]
        if endpoint is None:
            raise DataLoss(
                f"{where}: host server {piece.host}, which keeps the segment, is lost: away for longer than "
                "jobpipe.hostserver.lost_after. Start `jobpipe server host` on its host and folder again, or skip its "
                "batches with failOnDataLoss=false; `jobpipe topics describe` lists host servers",
                reason="host lost",
                **facts,
            )
        return KeptPart(
            host=piece.host,
            endpoint=endpoint,
            log=self.places.get(topic, ""),
            file=piece.path.name,
            offset=piece.offset,
            chunks=tuple(piece.chunks),
        )

    async def _put(self, link: Link, request: Request, asked: PutRequest) -> PutReply:
        topic = link.hello.topic
        check_write_ticket(self._secret, topic, str(write_id_of(asked.file)), asked.ticket)
        link.note_proof()
        # Whether it is forced to disk is not this process's own setting: that is of the sink that happened to start it.
        path = self._directory(topic) / SEGMENTS / asked.file
        await receive_file(link, request, path, asked.length, fsync=asked.fsync)
        return PutReply(asked.length)


def _map(reader: CatalogReader, piece: SegmentRange) -> tuple[memoryview, int]:
    """Map the piece's part of its file; return a view of it and what to add to a chunk's offset.

    Raises:
        DataLoss: the batch was removed since it was looked up.
        SegmentCorrupt: it was not, but its file cannot be read.
    """
    assert piece.path is not None  # noqa: S101 - a piece has a path or data
    try:
        return map_range(piece.path, piece.offset, max(chunk.offset + chunk.length for chunk in piece.chunks))
    except (OSError, ValueError) as error:
        reader.check_kept(piece.n)
        raise SegmentCorrupt(
            f"topic {reader.topic!r}, offset {piece.n}, partition {piece.partition}: segment file {piece.path.name} "
            f"cannot be read ({error}); restore it from a backup, or let subscribers skip the batch with "
            "failOnDataLoss=false",
            topic=reader.topic,
            offset=piece.n,
            partition=piece.partition,
            file=piece.path.name,
        ) from error
