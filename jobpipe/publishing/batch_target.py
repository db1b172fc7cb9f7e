"""Where one batch's segments go: to the host server here, into a spool that this host reaches, or to the coordinator.

A target travels to Spark tasks: paths, numbers, and what lets them write this batch and to the log's place at host
servers, which is shown nowhere. The job's own secret stays in the driver.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from jobpipe.arrow.schema_validation import readable_pieces
from jobpipe.discovery.node_overrides import NodeCredentials
from jobpipe.errors import LinkError, SpoolError
from jobpipe.net.address import Endpoint, require_plaintext_allowed
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.retry import Deadline
from jobpipe.operations.data_operations import PutRequest
from jobpipe.operations.messages.calls import ask_blocking
from jobpipe.operations.publisher_operations import RoomRequest
from jobpipe.publishing.local_host_server import HostedLog, LocalHostServer, find_local_host_server, upload
from jobpipe.publishing.publisher_messages import WaitLogger, spool_full
from jobpipe.store.spool.partition_writer import PartitionedWriter
from jobpipe.store.spool.segment import SegmentFile
from jobpipe.store.spool.segment_index import SegmentInfo
from jobpipe.store.spool.spool_files import SEGMENTS, FileSegmentSink, file_name, holds_instance
from jobpipe.wire.wire_messages import Hello

log = logging.getLogger(__name__)

WAIT_SECONDS = 0.9  # of one question for room
ROOM_SECONDS = 30.0  # for the answer, of a coordinator under load


@dataclass(frozen=True)
class WriteTarget:
    """One batch's destination."""

    topic: str
    directory: str  # the topic's spool directory, as its coordinator sees it
    instance: str  # the coordinator's; a directory that holds it is the coordinator's own
    data: str  # "host:port" of the data endpoint
    tls: NodeCredentials | None
    write_id: str
    partitions: int
    segment_max_bytes: int
    compression: str
    fsync: bool
    inline_max: int
    log: str = ""  # the topic's
    hosts: tuple[str, ...] = ()  # ids of the host servers that may keep segments
    host_folder: Path = Path()  # of the host server on a host without a configuration of its own
    host_folder_pinned: bool = False  # and on any other: the application's word
    plaintext: bool = False  # may leave this host without encryption
    ticket: str = field(default="", repr=False)  # for uploads of this batch to the coordinator
    log_token: str = field(default="", repr=False)  # of the log, for host servers

    def write(
        self,
        schema: pa.Schema,
        batches: Iterable[tuple[pa.RecordBatch, pa.Int32Array | int]],
        attempt: str,
        *,
        small: bool = False,
    ) -> list[SegmentInfo]:
        """Write record batches, each with the partition number of its rows; return the segments.

        Args:
            schema: what every batch has exactly.
            batches: pairs of a record batch and either one partition number for all its rows, or an int32 array.
            attempt: unique among all writers of this batch.
            small: all of it is held in memory, most likely: then neither the disk nor a host server is asked.

        Raises:
            RowTooLarge: no reader could take one of the rows.
            SpoolError: the disk refused; nothing of it becomes visible.
            LinkError: the coordinator could not be reached.
        """
        name = file_name(self.write_id, attempt)
        with _FileDestination(self) as place:
            if not small:
                place.find_spool()
            infos = self._write_to(place, name, schema, batches)
            if place.folder is None or place.is_spool:
                return infos
            return self._hand_over(place.local_host_server, place.folder / name, infos)

    def find_local_host_server(self) -> LocalHostServer | None:
        """Return the host server of this host, if it may keep segments."""
        if not self.hosts:
            return None
        tls = self._context(Endpoint.parse(self.data))
        log = HostedLog(self.topic, self.log, self.log_token, self.fsync)
        return find_local_host_server(log, self.hosts, self.host_folder, pinned=self.host_folder_pinned, tls=tls)

    def _write_to(
        self,
        place: _FileDestination,
        name: str,
        schema: pa.Schema,
        batches: Iterable[tuple[pa.RecordBatch, pa.Int32Array | int]],
    ) -> list[SegmentInfo]:
        writer = PartitionedWriter(
            schema,
            SegmentFile(name, lambda: place.open(name), inline_max=self.inline_max),
            partitions=self.partitions,
            segment_max_bytes=self.segment_max_bytes,
            compression=self.compression,
        )
        try:
            for batch, partition in readable_pieces(self.topic, batches):
                writer.write(batch, partition)
            return writer.finish(fsync=self.fsync)
        except BaseException:
            writer.abort()
            raise

    def _hand_over(
        self, local_host_server: LocalHostServer | None, path: Path, infos: list[SegmentInfo]
    ) -> list[SegmentInfo]:
        """Let the host server have the file, or else the coordinator; it is durable there on return."""
        if local_host_server is not None:
            try:
                local_host_server.take(path, path.name)
            except (LinkError, SpoolError) as error:
                log.warning(
                    "topic %s: host server %s failed (%s), the coordinator gets it",
                    self.topic,
                    local_host_server.id,
                    error,
                )
            else:
                return [replace(info, host=local_host_server.id) if info.file else info for info in infos]
        self._upload(path)
        with contextlib.suppress(OSError):
            path.unlink()
        return infos

    def await_room(self, control: str, seconds: float) -> None:
        """Wait until the spool has room for a batch.

        Args:
            control: endpoint of the coordinator.
            seconds: how long.

        Raises:
            SpoolFull: there was none in time; says what keeps it full.
            LinkError: the coordinator could not be reached.
        """
        deadline, waits = Deadline(seconds), WaitLogger(self.topic)
        with self._dialled(control) as link:
            while True:
                wait = deadline.left(WAIT_SECONDS)
                full = ask_blocking(link, RoomRequest(self.write_id, self.ticket, wait), timeout=ROOM_SECONDS).full
                if full is None:
                    return
                waits.log(full)
                if deadline.passed:
                    raise spool_full(self.topic, seconds, full)

    def _upload(self, path: Path) -> None:
        with self._dialled(self.data) as link:
            upload(link, path, PutRequest(path.name, path.stat().st_size, self.ticket, self.fsync))

    @contextlib.contextmanager
    def _dialled(self, endpoint: str) -> Iterator[BlockingLink]:
        hello = Hello(topic=self.topic, role="publisher", instance=f"task-{os.getpid()}")
        at = Endpoint.parse(endpoint)
        link = BlockingLink.connect(at, hello, tls=self._context(at))
        try:
            yield link
        finally:
            link.close()

    def _context(self, endpoint: Endpoint) -> ssl.SSLContext | None:
        if self.tls is None:
            require_plaintext_allowed(endpoint, allowed=self.plaintext)
            return None
        return self.tls.context()


class _FileDestination:
    """Where the file goes. No host server is asked, and no folder made, before the first byte goes to disk.

    Attributes:
        folder: of the file; None while there is none.
        is_spool: it is the coordinator's own.
        local_host_server: the host server that gets the file.
    """

    def __init__(self, target: WriteTarget) -> None:
        self.folder: Path | None = None
        self.is_spool = False
        self.local_host_server: LocalHostServer | None = None
        self._target = target
        self._spool: bool | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def find_spool(self) -> bool:
        """Tell whether the coordinator's folder is here, as it was when this was first asked.

        Another coordinator may come while rows are computed: it has the same folder, and knows what is being written.
        """
        if self._spool is None:
            self._spool = holds_instance(Path(self._target.directory), self._target.instance)
        return self._spool

    def open(self, name: str) -> FileSegmentSink:
        """Find the folder and make the file there."""
        self.local_host_server = self._target.find_local_host_server()
        folder = None if self.local_host_server is None else self.local_host_server.place
        if self.local_host_server is None and self.find_spool():
            folder, self.is_spool = Path(self._target.directory) / SEGMENTS, True
        if folder is not None:
            self.folder = folder
            return FileSegmentSink(folder / name)
        self._temporary = tempfile.TemporaryDirectory(prefix="jobpipe-")
        self.folder = Path(self._temporary.name)
        return _TemporarySink(self.folder / name)

    def __enter__(self) -> _FileDestination:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.local_host_server is not None:
            self.local_host_server.close()
        if self._temporary is not None:
            self._temporary.cleanup()


class _TemporarySink(FileSegmentSink):
    """A file on its way elsewhere: it need not be durable here."""

    def finish(self, *, fsync: bool) -> None:
        super().finish(fsync=False)
