"""The spools of a folder: what lies there whether it is served or not, and their removal."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jobpipe.errors import SpoolError
from jobpipe.store.catalog.batches import Batches
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.lock_holder import users
from jobpipe.store.catalog.log_clock import LogClock
from jobpipe.store.log.catalog_status import CatalogStatus, describe_log
from jobpipe.store.log.host_segments import HostSegments
from jobpipe.store.spool.spool_files import CATALOG, check_topic, is_topic, spool_error, sync_directory
from jobpipe.store.subscriptions.holds import Holds
from jobpipe.store.subscriptions.positions import Subscriptions


@dataclass(frozen=True)
class Spool:
    """One topic's spool.

    Attributes:
        directory: ``<spool_dir>/<topic>``.
        namespace: The one it is published in; None if it never was.
        log: The log's id.
        publisher, epoch: Who published last.
        tail, head: The offsets that are kept: from ``tail``, before ``head``.
        rows: In what is kept.
        ended: Its newest batch is an end mark.
        unread: Batches that subscriptions have not acknowledged, by name; none for who has read everything.
        held: Batches that holds keep for scheduled jobs, by name.
        hosts: Ids of the host servers that keep segments of it.
        disk_bytes: Of all its files.
        used_by: Processes of this host that have its catalog open.
    """

    topic: str
    directory: Path
    namespace: str | None
    log: str
    publisher: str
    epoch: int
    tail: int
    head: int
    rows: int
    ended: bool
    unread: dict[str, int]
    held: dict[str, int]
    hosts: tuple[str, ...]
    disk_bytes: int
    used_by: tuple[int, ...]


def has_spool(directory: Path) -> bool:
    """Tell whether there is a catalog."""
    return (directory / CATALOG).is_file()


def is_blank(directory: Path, topic: str) -> bool:
    """Tell whether a spool was made, and nothing was published to it, not even a schema.

    Raises:
        SpoolError: there is no spool, or it is damaged, of another format or topic.
    """
    database = Database.open_to_read(directory / CATALOG, topic)
    try:
        return not database.value("SELECT next_n + (SELECT count(*) FROM schemas) FROM meta")
    finally:
        database.close()


def list_spools(folder: Path) -> Iterator[Spool | SpoolError]:
    """Yield the spools in ``spool_dir``, by topic; one that cannot be read as the error that says why."""
    for directory in sorted(folder.iterdir()) if folder.is_dir() else []:
        if is_topic(directory.name) and has_spool(directory):
            try:
                yield read_spool(directory, directory.name)
            except SpoolError as error:
                yield error


def read_spool(directory: Path, topic: str) -> Spool:
    """Return what is in a spool; a coordinator may have it open meanwhile.

    Raises:
        SpoolError: there is none, or it is damaged, of another format or topic.
    """
    check_topic(topic)
    used_by = tuple(users(directory / CATALOG))
    database = Database.open_to_read(directory / CATALOG, topic)
    try:
        batches = Batches(database, topic)
        with database.read():
            clock = LogClock(database, time.time)
            status = describe_log(database, batches, Subscriptions(database, batches, clock), clock)
            last = database.one("SELECT epoch, publisher FROM epochs ORDER BY epoch DESC LIMIT 1")
            return Spool(
                topic=topic,
                directory=directory,
                namespace=database.value("SELECT namespace FROM meta"),
                log=batches.log_id,
                publisher="" if last is None else str(last["publisher"]),
                epoch=int(database.value("SELECT epoch FROM meta")),
                tail=status.tail.n,
                head=status.head.n,
                rows=status.rows,
                ended=status.ended,
                unread={line.name: line.lag.batches for line in status.subscriptions if line.lag.batches},
                held={
                    hold.name: status.head.n - hold.offset
                    for hold in Holds(database, batches, clock).all()
                    if hold.gap is None and hold.offset < status.head.n
                },
                hosts=tuple(sorted(HostSegments(database, batches).kept())),
                disk_bytes=sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file()),
                used_by=used_by,
            )
    finally:
        database.close()


def read_status(directory: Path, topic: str) -> CatalogStatus:
    """Return how a topic that is not served stands.

    Raises:
        SpoolError: there is no spool, or it is damaged, of another format or topic.
    """
    check_topic(topic)
    database = Database.open_to_read(directory / CATALOG, topic)
    try:
        batches = Batches(database, topic)
        with database.read():
            clock = LogClock(database, time.time)
            return describe_log(database, batches, Subscriptions(database, batches, clock), clock)
    finally:
        database.close()


def set_aside(directory: Path) -> None:
    """Take the name from a spool that no process has open: the topic has none from now on. Its files are there still.

    Raises:
        SpoolError: the disk refuses.
    """
    finish_removal(directory)
    try:
        os.rename(directory, _aside(directory))
        sync_directory(directory.parent)
    except OSError as error:
        raise spool_error("cannot remove", directory, error) from error


def put_back(directory: Path) -> None:
    """Undo :func:`set_aside`; nothing happens if nothing was set aside.

    Raises:
        SpoolError: the disk refuses.
    """
    if is_set_aside(directory):
        try:
            os.rename(_aside(directory), directory)
            sync_directory(directory.parent)
        except OSError as error:
            raise spool_error("cannot put back", directory, error) from error


def is_set_aside(directory: Path) -> bool:
    """Tell whether :func:`set_aside` was called for this directory, and :func:`finish_removal` was not."""
    return _aside(directory).is_dir()


def finish_removal(directory: Path) -> None:
    """Remove the files of a spool that was set aside; nothing happens if there is none.

    Raises:
        SpoolError: the disk refuses.
    """
    if is_set_aside(directory):
        try:
            shutil.rmtree(_aside(directory))
        except OSError as error:
            raise spool_error("cannot remove", directory, error) from error


def _aside(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.removed")  # no topic's name begins with a dot
