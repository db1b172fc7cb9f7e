"""The host server's answers: takes segments of tasks on its host, streams them to readers, removes what it is told to.

It knows no catalog. Which bytes make up a range, and their checksums, a topic's coordinator says; readers bring it
along. So what a reader accepts is what was sealed, whatever lies here.
"""

from __future__ import annotations

import asyncio
import base64
import struct
from collections import Counter
from typing import Any

from jobpipe.coordinator.access import demand_role
from jobpipe.coordinator.receiving import receive_file
from jobpipe.discovery.trust import Trust
from jobpipe.errors import JobpipeError, NotAuthorized, RemoteProtocolError, SegmentCorrupt
from jobpipe.net.access import PUBLISH, READ
from jobpipe.net.capability import log_place
from jobpipe.net.link import Link
from jobpipe.store.files import sync_directory
from jobpipe.store.hostfolder import HostFolder, check_file
from jobpipe.store.index import PACKED_CHUNK
from jobpipe.store.mapping import map_range
from jobpipe.wire.frames import DATA_LIMIT
from jobpipe.wire.messages import Hello, Request, Welcome
from registry.names import check_name

__all__ = ["HostService"]

FILES_PAGE = 1000
WRITING = {"prepare", "put", "adopt", "files", "remove", "forget_logs"}


class HostService:
    """Implements :class:`jobpipe.net.server.Handler`.

    Args:
        folder: what it serves.
        trust: who may do what.
        keep_seconds: for so long nothing must have been written to a log before another one's publisher may have it
            removed.
    """

    def __init__(self, folder: HostFolder, trust: Trust, *, keep_seconds: float) -> None:
        self._folder = folder
        self._trust = trust
        self._keep_seconds = keep_seconds
        self._served: Counter[str] = Counter()  # bytes by topic

    async def welcome(self, link: Link, hello: Hello) -> Welcome:
        """Admit a peer for one topic, on which it may have the role that it names."""
        check_name(hello.topic)
        demand_role(self._trust, link)
        return Welcome(version=1, topic=hello.topic, log="", epoch=0, instance=self._folder.id)

    async def handle(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        """Answer one request."""
        topic, args = link.hello.topic, request.args
        if request.op in WRITING and link.hello.role != "publisher":
            raise NotAuthorized(f"operation {request.op!r} is for publishers", op=request.op)
        if request.op in WRITING:
            self._trust.demand(link, PUBLISH, topic)
        try:
            if request.op == "read":
                self._trust.demand(link, READ, topic)
                return await self._read(link, request), b""
            if request.op == "served":
                return {"bytes": self._served[topic]}, b""
            if request.op in WRITING:
                place = log_place(topic, str(args["log"]), args.get("token"))
                return await self._write(link, request, topic, place, args), b""
        except (KeyError, TypeError, ValueError, struct.error) as error:
            raise RemoteProtocolError(
                f"operation {request.op!r}: malformed arguments ({error!r})", op=request.op
            ) from error
        raise RemoteProtocolError(f"unknown operation {request.op!r}", op=request.op)

    def disconnected(self, link: Link, why: JobpipeError) -> None:
        """Nothing is kept per link."""

    async def _write(
        self, link: Link, request: Request, topic: str, place: str, args: dict[str, Any]
    ) -> dict[str, Any]:
        folder = self._folder
        fsync = args.get("fsync") is not False  # the sink's setting, not this server's
        if request.op == "prepare":
            await asyncio.to_thread(folder.prepare, topic, place)
            return {}
        if request.op == "put":
            directory = await asyncio.to_thread(folder.prepare, topic, place)
            await receive_file(
                link, request, directory / check_file(str(args["file"])), int(args["length"]), fsync=fsync
            )
            if fsync:
                await asyncio.to_thread(sync_directory, directory)
            return {}
        if request.op == "adopt":
            name, length = str(args["file"]), int(args["length"])
            await asyncio.to_thread(folder.adopt, topic, place, name, length, fsync=fsync)
            return {}
        if request.op == "files":
            return {"files": await asyncio.to_thread(folder.files, topic, place, str(args["after"]), FILES_PAGE)}
        if request.op == "remove":
            names = [str(name) for name in args["files"]]
            return {"removed": await asyncio.to_thread(folder.remove, topic, place, names)}
        idle = max(float(args["idle"]), self._keep_seconds)  # other logs are not the caller's to remove at once
        return {"forgotten": await asyncio.to_thread(folder.forget_logs, topic, place, idle)}

    async def _read(self, link: Link, request: Request) -> dict[str, Any]:
        """Stream chunks of a segment: what the catalog says of them comes with the request, and goes back as it is."""
        topic, args = link.hello.topic, request.args
        name, start = check_file(str(args["file"])), int(args["offset"])
        chunks = list(PACKED_CHUNK.iter_unpack(base64.b64decode(str(args["chunks"]), validate=True)))
        if not chunks or start < 0 or any(not 0 < length <= DATA_LIMIT for _, length, _ in chunks):
            raise ValueError("chunks")
        path = self._folder.segments(topic, str(args["log"])) / name
        last = max(offset + length for offset, length, _ in chunks)
        try:
            view, skew = await asyncio.to_thread(map_range, path, start, last)
        except (OSError, ValueError) as error:
            raise SegmentCorrupt(
                f"topic {topic!r}: host server {self._folder.id} cannot read segment file {name} ({error}); restore "
                "it from a backup, or let subscribers skip the batch with failOnDataLoss=false",
                topic=topic,
                host=self._folder.id,
                file=name,
            ) from error
        length = sum(size for _, size, _ in chunks)
        await link.send_part(request.id, {"length": length})
        for offset, size, crc in chunks:
            await link.send_data(view[skew + offset : skew + offset + size], crc)
            self._served[topic] += size
        return {"length": length}
