"""The host server on this task's host, with placement ``host``: found by local configuration, asked before it is used.

For Spark tasks and the driver; blocking.
"""

from __future__ import annotations

import functools
import logging
import os
import ssl
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from jobpipe.config import node_settings
from jobpipe.errors import ConfigError, LinkError, NotAuthorized, RemoteProtocolError, SpoolError
from jobpipe.net.address import Endpoint
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.servers.write_tokens import log_place
from jobpipe.operations.data_operations import PutRequest
from jobpipe.operations.host_operations import AdoptRequest, HostPutRequest, PrepareRequest
from jobpipe.operations.messages.calls import ask_blocking, begin_upload, end_upload
from jobpipe.store.spool.host_folder import HostServerInfo, announced, log_directory
from jobpipe.store.spool.spool_files import SEGMENTS
from jobpipe.wire.wire_messages import Hello

logger = logging.getLogger(__name__)

CALL_SECONDS = 30.0
UPLOAD_SECONDS = 60.0
UPLOAD_CHUNK = 256 * 1024


@functools.cache
def _own_folder() -> Path | None:
    """Return where this host's server keeps its segments, if the host's own configuration says so."""
    try:
        found: Path | None = node_settings(("hostserver_dir",)).get("hostserver_dir")
    except ConfigError as error:
        logger.warning("this host's configuration is not usable, and no host server is looked for: %s", error)
        return None
    return found


@dataclass(frozen=True)
class HostedLog:
    """A log of which host servers keep segments.

    Attributes:
        topic, id: which.
        token: what lets its publisher write, list and remove files there.
        fsync: a file is to be on the disk before it counts.
    """

    topic: str
    id: str
    token: str = field(repr=False)
    fsync: bool


def find_local_host_server(
    log: HostedLog, known: Collection[str], folder: Path, *, pinned: bool, tls: ssl.SSLContext | None
) -> LocalHostServer | None:
    """Return this host's server, ready to take files of a log; None where there is none that works.

    Args:
        log: whose segments will be written.
        known: ids of the host servers that are registered; one of another namespace is none of ours.
        folder: the server's by the driver's configuration.
        pinned: the application set it for all hosts; else this host's own configuration may name another one.
        tls: of clients.
    """
    folder = folder if pinned else _own_folder() or folder
    found = announced(folder)
    if found is None or found.id not in known:
        return None
    try:
        return LocalHostServer(found, folder, log, tls)
    except (LinkError, NotAuthorized, RemoteProtocolError, SpoolError) as error:
        logger.warning("topic %s: host server %s does not work: %s", log.topic, found.id, error)
        return None


class LocalHostServer:
    """A link to the server, and the directory that files may be written to.

    Attributes:
        id: the server's.
        place: the log's folder there, where this process may write into it; else None, and files are uploaded.
    """

    def __init__(self, found: HostServerInfo, folder: Path, log: HostedLog, tls: ssl.SSLContext | None) -> None:
        self.id = found.id
        self._log = log
        hello = Hello(topic=log.topic, role="publisher", instance=f"task-{os.getpid()}")
        self._link = BlockingLink.connect(
            Endpoint.parse(found.endpoint),
            hello,
            tls=tls,
        )
        try:
            if self._link.welcome.instance != self.id:
                raise RemoteProtocolError(
                    f"{found.endpoint} is host server {self._link.welcome.instance}, not {self.id}"
                )
            ask_blocking(self._link, PrepareRequest(log.id, log.token), timeout=CALL_SECONDS)
        except BaseException:
            self.close()
            raise
        place = log_directory(folder, log.topic, log_place(log.topic, log.id, log.token)) / SEGMENTS
        self.place = place if _is_ours(place) else None

    def take(self, path: Path, name: str) -> None:
        """Let the server take the file: by its name where it lies in its folder already, else byte by byte.

        Raises:
            LinkError, SpoolError: it did not.
        """
        log, length = self._log, path.stat().st_size
        if self.place is not None:
            adopt = AdoptRequest(log.id, log.token, name, length, log.fsync)
            ask_blocking(self._link, adopt, timeout=CALL_SECONDS)
        else:
            upload(self._link, path, HostPutRequest(log.id, log.token, name, length, log.fsync))

    def close(self) -> None:
        self._link.close()


def upload(link: BlockingLink, path: Path, request: PutRequest | HostPutRequest) -> None:
    """Send a file by operation ``put``; returns when it is durable there.

    Raises:
        LinkError, SpoolError: it is not.
    """
    begin_upload(link, request, length=request.length, timeout=UPLOAD_SECONDS)
    with path.open("rb") as file:
        while chunk := file.read(UPLOAD_CHUNK):
            link.send_data(chunk)
    end_upload(link, request, timeout=UPLOAD_SECONDS)


def _is_ours(place: Path) -> bool:
    """Tell whether this process may write there, and the server may read what it writes: both are of one user."""
    try:
        return place.stat().st_uid == os.geteuid() and os.access(place, os.W_OK | os.X_OK)
    except OSError:
        return False
