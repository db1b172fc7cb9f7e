"""The host server's handlers: take segments of tasks on its host, stream them to readers, remove them.

It knows no catalog. Which bytes make up a range, and their checksums, a topic's coordinator says; readers bring it
along. So what a reader accepts is what was sealed, whatever lies here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from jobpipe.coordinator.data.segment_files import map_range, receive_file
from jobpipe.discovery.peer_authentication import PeerAuthentication
from jobpipe.errors import JobpipeError, SegmentCorrupt
from jobpipe.net.links.async_link import Link
from jobpipe.net.servers.write_tokens import log_place
from jobpipe.operations import host_operations as ops
from jobpipe.operations.coordinator_operations import CONTROL
from jobpipe.operations.data_operations import DATA, ServedReply
from jobpipe.operations.hello import check_hello
from jobpipe.operations.host_operations import HOSTSERVER
from jobpipe.operations.messages.message_fields import EmptyReply, Fields
from jobpipe.operations.messages.operation import read_request
from jobpipe.store.spool.host_folder import HostFolder
from jobpipe.store.spool.spool_files import sync_directory
from jobpipe.wire.wire_messages import Hello, Request, Welcome

_OTHERS = CONTROL.keys() | DATA.keys()


class HostHandlers:
    """Implements :class:`jobpipe.net.servers.served_link.LinkHandler`.

    Args:
        folder: what it serves.
        trust: who may do what.
        keep_seconds: a log is kept for so long after the last write to it, or request that showed its token, before
            the publisher of another one may have it removed.
    """

    def __init__(self, folder: HostFolder, trust: PeerAuthentication, *, keep_seconds: float) -> None:
        self._folder = folder
        self._trust = trust
        self._keep_seconds = keep_seconds
        self._served: Counter[str] = Counter()  # bytes by topic

    async def welcome(self, link: Link, hello: Hello) -> Welcome:
        """Admit a peer for one topic, on which it may have the role that it names."""
        check_hello(hello)
        self._trust.require_role(link)
        return Welcome(version=1, topic=hello.topic, log="", epoch=0, instance=self._folder.id)

    async def handle(self, link: Link, request: Request) -> tuple[dict[str, Any], bytes]:
        topic = link.hello.topic
        operation, asked = read_request(HOSTSERVER, request, link.hello.role, others=_OTHERS)
        if operation.right is not None:
            self._trust.require(link, operation.right, topic)
        reply: Fields
        match asked:
            case ops.ReadRequest():
                reply = await self._read(link, request.id, asked)
            case ops.OfWrittenLog():
                reply = await self._write(link, request, topic, asked)
            case _:
                reply = ServedReply(self._served[topic])
        return reply.to_json(), reply.blob

    def disconnected(self, link: Link, why: JobpipeError) -> None:
        """Nothing is kept per link."""

    async def _write(self, link: Link, request: Request, topic: str, asked: ops.OfWrittenLog[Any]) -> Fields:
        folder, place = self._folder, log_place(topic, asked.log, asked.token)
        match asked:
            case ops.PrepareRequest():
                await asyncio.to_thread(folder.prepare, topic, place)
                return EmptyReply()
            case ops.HostPutRequest(
                file=name, length=length, fsync=fsync
            ):  # fsync: the sink's setting, not this server's
                directory = await asyncio.to_thread(folder.prepare, topic, place)
                await receive_file(link, request, directory / name, length, fsync=fsync)
                if fsync:
                    await asyncio.to_thread(sync_directory, directory)
                return EmptyReply()
            case ops.AdoptRequest(file=name, length=length, fsync=fsync):
                await asyncio.to_thread(folder.adopt, topic, place, name, length, fsync=fsync)
                return EmptyReply()
            case ops.FilesRequest(after=after):
                await asyncio.to_thread(folder.renew, topic, place)
                return ops.FilesReply(tuple(await asyncio.to_thread(folder.files, topic, place, after, ops.FILES_PAGE)))
            case ops.RemoveRequest(files=names):
                return ops.RemoveReply(await asyncio.to_thread(folder.remove, topic, place, list(names)))
            case ops.ForgetLogsRequest(idle=idle):
                idle = max(idle, self._keep_seconds)  # other logs are not the caller's to remove at once
                return ops.ForgetLogsReply(tuple(await asyncio.to_thread(folder.forget_logs, topic, place, idle)))
            case _:
                raise AssertionError(f"{type(asked).__name__} has no answer here")

    async def _read(self, link: Link, request_id: int, asked: ops.ReadRequest) -> ops.ReadReply:
        """Stream chunks of a segment: what the catalog says of them comes with the request, and goes back as it is."""
        topic, name, chunks = link.hello.topic, asked.file, asked.chunks
        path = self._folder.segments(topic, asked.log) / name
        last = max(chunk.offset + chunk.length for chunk in chunks)
        try:
            view, skew = await asyncio.to_thread(map_range, path, asked.offset, last)
        except (OSError, ValueError) as error:
            raise SegmentCorrupt(
                f"topic {topic!r}: host server {self._folder.id} cannot read segment file {name} ({error}); restore "
                "it from a backup, or let subscribers skip the batch with failOnDataLoss=false",
                topic=topic,
                host=self._folder.id,
                file=name,
                missing=isinstance(error, FileNotFoundError),  # retention may have removed it: the catalog knows
            ) from error
        length = sum(chunk.length for chunk in chunks)
        await link.send_part(request_id, {"length": length})
        for chunk in chunks:
            start = skew + chunk.offset
            await link.send_data(view[start : start + chunk.length], chunk.crc)
            self._served[topic] += chunk.length
        return ops.ReadReply(length)
