"""Where one batch's segments go: straight into the spool when it is on this host, else to the coordinator.

A target travels to Spark tasks; it holds paths and numbers, no secrets.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from jobpipe.net.address import Endpoint, demand_plaintext_allowed
from jobpipe.net.blocking import BlockingLink
from jobpipe.net.identity import topic_server_name
from jobpipe.net.tls import Credentials, latest_context
from jobpipe.store import PartitionedWriter, SegmentFile, SegmentInfo
from jobpipe.store.files import SEGMENTS, file_name
from jobpipe.store.marker import holds_instance
from jobpipe.wire.messages import Hello

__all__ = ["WriteTarget"]

UPLOAD_CHUNK = 256 * 1024
UPLOAD_SECONDS = 60.0


@dataclass(frozen=True)
class WriteTarget:
    """One batch's destination."""

    topic: str
    directory: str  # the topic's spool directory, as its coordinator sees it
    instance: str  # the coordinator's; a directory that holds it is the coordinator's own
    data: str  # "host:port" of the data endpoint
    tls: Credentials | None
    write_id: str
    partitions: int
    segment_max_bytes: int
    compression: str
    fsync: bool
    inline_max: int
    plaintext: bool = False  # may leave this host without encryption

    def write(
        self, schema: pa.Schema, batches: Iterable[tuple[pa.RecordBatch, pa.Int32Array | int]], attempt: str
    ) -> list[SegmentInfo]:
        """Write record batches, each with the partition number of its rows; return the segments.

        Args:
            schema: what every batch has exactly.
            batches: pairs of a record batch and either one partition number for all its rows, or an int32 array.
            attempt: unique among all writers of this batch.

        Raises:
            SpoolError: the disk refused; nothing of it becomes visible.
            LinkError: the coordinator could not be reached.
        """
        name = file_name(self.write_id, attempt)
        local = holds_instance(Path(self.directory), self.instance)
        with self._folder(local) as folder:
            writer = PartitionedWriter(
                schema,
                SegmentFile.create(folder, name, inline_max=self.inline_max),
                partitions=self.partitions,
                segment_max_bytes=self.segment_max_bytes,
                compression=self.compression,
            )
            try:
                for batch, partition in batches:
                    writer.write(batch, partition)
                infos = writer.finish(fsync=self.fsync and local)
                if not local and any(info.file for info in infos):
                    self._upload(folder / name, name)
            except BaseException:
                writer.abort()
                raise
            return infos

    def _folder(self, local: bool) -> _Folder:
        return _Folder(Path(self.directory) / SEGMENTS if local else None)

    def _upload(self, path: Path, name: str) -> None:
        hello = Hello(topic=self.topic, role="publisher", instance=f"task-{os.getpid()}")
        link = BlockingLink.connect(
            Endpoint.parse(self.data),
            hello,
            tls=self._context(),
            server_hostname=topic_server_name(self.topic) if self.tls else None,
        )
        try:
            length = path.stat().st_size
            link.start_upload("put", {"file": name, "length": length}, length=length, timeout=UPLOAD_SECONDS)
            for chunk in _chunks(path):
                link.send_data(chunk)
            link.end_upload(timeout=UPLOAD_SECONDS)
        finally:
            link.close()

    def _context(self) -> ssl.SSLContext | None:
        if self.tls is None:
            demand_plaintext_allowed(Endpoint.parse(self.data), allowed=self.plaintext)
            return None
        return latest_context(self.tls)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(UPLOAD_CHUNK):
            yield chunk


class _Folder:
    """The spool's folder, or a temporary one that is removed afterwards."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Path:
        if self._folder is not None:
            return self._folder
        self._temporary = tempfile.TemporaryDirectory(prefix="jobpipe-")
        return Path(self._temporary.name)

    def __exit__(self, *exc: object) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
