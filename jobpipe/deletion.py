"""Deletes a topic that is not served.

The registry is claimed meanwhile, as by a publisher, so that none can come in between. What is interrupted can be done
again: the spool loses its name first, then the registry forgets the topic, then the files go.
"""

from __future__ import annotations

import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil

from jobpipe.config import Config
from jobpipe.discovery.registry_handler import map_registry_errors
from jobpipe.discovery.topic_lookup import TopicLocator, from_records
from jobpipe.errors import DataLoss, SpoolError, TopicNotFound, TopicOwned
from jobpipe.store.log.spool_folders import (
    Spool,
    finish_removal,
    has_spool,
    is_set_aside,
    put_back,
    read_spool,
    set_aside,
)
from jobpipe.store.spool.host_folder import directories_of_log
from jobpipe.store.spool.spool_files import check_topic
from jobpipe_registry.host.process_identity import PidScope, start_ticks
from jobpipe_registry.topic_records import OwnerRecord

NOWHERE = "127.0.0.1:1"  # the endpoint of our claim: no coordinator answers there


@dataclass(frozen=True)
class Deletion:
    """What was, or would be, deleted.

    Attributes:
        topic: The topic.
        epoch: The highest one that the registry knew, 0 if it knew none.
        spool: Its spool; None if there is none here.
        host_files: The folders of this host's host server that have its segments.
        elsewhere: Ids of the host servers that keep segments of it; their files stay until they are removed there.
    """

    topic: str
    epoch: int
    spool: Spool | None
    host_files: tuple[Path, ...]
    elsewhere: tuple[str, ...]


class Deleter:
    """Deletes topics; uses the registry session of a locator."""

    def __init__(self, config: Config, locator: TopicLocator) -> None:
        self._config = config
        self._locator = locator
        self._handler = locator.handler

    def delete(self, topic: str, *, unread: bool, dry_run: bool) -> Deletion:
        """Delete a topic; see :meth:`jobpipe.admin.Admin.delete`."""
        check_topic(topic)
        self._require_unserved(topic)
        found = self._inspect(topic, unread=unread)
        if dry_run:
            return found
        with map_registry_errors():
            self._handler.claim(topic, _claimant(found.epoch))
        try:
            found = self._inspect(topic, unread=unread)  # no publisher can come from now on; one may have come before
            if found.spool is not None:
                set_aside(found.spool.directory)
            with map_registry_errors():
                self._handler.forget(topic)
        except BaseException:
            if found.spool is not None:
                put_back(found.spool.directory)  # before the claim goes: no other one was made meanwhile
            with map_registry_errors():
                self._handler.release(topic)
            raise
        finish_removal(self._config.spool_dir / topic)
        for directory in found.host_files:
            shutil.rmtree(directory, ignore_errors=True)  # the host server forgets what is left
        return found

    def _require_unserved(self, topic: str) -> None:
        with map_registry_errors():
            place, owner = from_records(topic, self._handler.records(topic)), self._handler.owner(topic)
            if place is None and owner is None and not self._handler.is_claimed(topic):
                return
        where = "" if place is None else f" at {place.control}"
        who = " by a publisher whose record cannot be read" if place is None else ""
        who = who if owner is None else f" by {owner.name!r} on {owner.host}, coordinator pid {owner.pid}"
        raise TopicOwned(
            f"topic {topic!r} is served{where}{who}: end its publisher, or `jobpipe topics serve`, first. If it "
            f"was killed, it stays registered for up to {self._config.registry_session_timeout:g} s, and is served for "
            f"jobpipe.coordinator.linger ({self._config.linger:g} s)",
            topic=topic,
        )

    def _inspect(self, topic: str, *, unread: bool) -> Deletion:
        """Return what there is of a topic; raises where it must not go."""
        directory = self._config.spool_dir / topic
        with map_registry_errors():
            epoch = self._handler.epoch(topic)
        if not has_spool(directory):
            if epoch == 0 and not is_set_aside(directory):
                raise TopicNotFound(
                    f"topic {topic!r} has no spool in {directory.parent}; {self._locator.why_absent(topic)}",
                    topic=topic,
                )
            if not unread and not is_set_aside(directory):
                raise SpoolError(
                    f"topic {topic!r} has no spool in {directory.parent}, so it is not known here whether all was "
                    "read: delete it on the host, and with the jobpipe.spool.dir, of its publisher, or pass --unread "
                    "if that spool is lost",
                    topic=topic,
                    directory=str(directory),
                )
            return Deletion(topic, epoch, None, (), ())
        spool = read_spool(directory, topic)
        if spool.namespace not in (None, self._config.namespace):
            raise SpoolError(
                f"{directory} holds the topic {topic!r} of namespace {spool.namespace}, not of "
                f"{self._config.namespace}; to delete it set jobpipe.registerserver.topic.storage to that namespace",
                topic=topic,
                namespace=spool.namespace,
            )
        if spool.used_by:
            pids = ", ".join(map(str, spool.used_by))
            raise TopicOwned(
                f"topic {topic!r}: process {pids} has its catalog in {directory} open; end it first", topic=topic
            )
        if spool.unread and not unread:
            names = ", ".join(f"{name} ({count} batches)" for name, count in sorted(spool.unread.items()))
            raise DataLoss(
                f"topic {topic!r} has not been fully read by {names}: `jobpipe topics serve {topic}` lets them "
                "continue, --unread deletes it anyway",
                topic=topic,
                unread=spool.unread,
            )
        if spool.held and not unread:
            names = ", ".join(f"{name} ({count} batches)" for name, count in sorted(spool.held.items()))
            raise DataLoss(
                f"topic {topic!r} is kept for scheduled jobs by the holds {names}: `jobpipe topics serve {topic}` lets "
                "them run, --unread deletes it anyway",
                topic=topic,
                held=spool.held,
            )
        files = directories_of_log(self._config.hostserver_dir, topic, spool.log)
        return Deletion(topic, epoch, spool, tuple(files), spool.hosts)


def _claimant(epoch: int) -> OwnerRecord:
    process, place = psutil.Process(), PidScope.here()
    return OwnerRecord(
        endpoint=NOWHERE,
        epoch=max(1, epoch),
        instance=uuid.uuid4().hex,
        name="jobpipe topics delete",
        host=place.host,
        pid=os.getpid(),
        started=process.create_time(),
        boot=place.boot,
        pid_namespace=place.pid_namespace,
        ticks=start_ticks(os.getpid()),
    )
