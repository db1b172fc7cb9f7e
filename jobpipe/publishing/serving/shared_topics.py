"""Topics that all Python processes of one driver publish together, each as one of several publishers in one.

What one of them has to know of the others lies in files, in a folder of the driver's and the topic's name: that the
topic is published, with which settings, and which batches are in progress.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobpipe.config import Config
from jobpipe.coordinator.topic_liveness import WatchedParent
from jobpipe.errors import JobpipeError
from jobpipe.operations.publisher_operations import MAX_WRITERS, OpenRequest
from jobpipe.publishing.open_publishers import place_of
from jobpipe.publishing.serving.shared_coordinator import attach_for, file_of, known_as, read
from jobpipe.publishing.topic_publisher import Publisher

_SETTINGS = "settings.json"  # of a topic; the other files there have hexadecimal names
_WRITE_ID = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True)
class TopicMark:
    """What processes of a driver note of a topic that they publish, in a folder of the topic's name.

    Attributes:
        driver: whose processes they are.
        config: where the topic is.
        topic: its name.
    """

    driver: WatchedParent
    config: Config
    topic: str

    @property
    def folder(self) -> Path:
        return _marks(self.driver, self.config) / self.topic

    def exists(self) -> bool:
        """Tell whether the topic is published."""
        return self.folder.is_dir()

    def note(self, settings: OpenRequest) -> None:
        """Note that the topic is published, and what it was opened with."""
        self._write(_SETTINGS, json.dumps(settings.to_json()))

    def settings(self) -> dict[str, Any] | None:
        """Return what the topic was opened with, for :func:`open_shared`; None if it is not published."""
        try:
            found = OpenRequest.from_json(json.loads((self.folder / _SETTINGS).read_text()))
        except (OSError, ValueError, JobpipeError):
            return None
        return {
            "config": found.config,
            "name": found.name,
            "parallelism": found.parallelism,
            "required_subscribers": found.required,
            "min_subscribers": found.min_subscribers,
            "application": found.application,
        }

    def note_writing(self, writer: str, write_id: str) -> None:
        """Note the batch that a writer has in progress, for the process that opens the topic again: it is not swept."""
        self._write(writer, write_id)

    def _write(self, name: str, text: str) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self.folder / f"new-{os.getpid()}-{name}"
        temporary.write_text(text)
        temporary.rename(self.folder / name)

    def forget_writing(self, writer: str) -> None:
        """Note that a writer has nothing in progress any more."""
        (self.folder / writer).unlink(missing_ok=True)

    def writing(self) -> tuple[str, ...]:
        """Return the write ids of batches in progress, the newest ``MAX_WRITERS``, oldest first."""
        found = []
        for path in self.folder.glob("[0-9a-f]*"):
            with contextlib.suppress(OSError, UnicodeDecodeError):  # forgotten meanwhile
                found.append((path.stat().st_mtime_ns, path.read_text()[:64], path))
        found.sort()
        for _, _, path in found[:-MAX_WRITERS]:
            path.unlink(missing_ok=True)
        return tuple(write_id for _, write_id, _ in found[-MAX_WRITERS:] if _WRITE_ID.fullmatch(write_id))

    def forget(self) -> None:
        """Note that the topic is no longer published."""
        shutil.rmtree(self.folder, ignore_errors=True)


class SharedTopic:
    """A topic that processes of a driver publish, seen from another one of its processes.

    Args:
        mark: of the topic.
        settings: what it is opened with, if no process has it open.
    """

    def __init__(self, mark: TopicMark, settings: dict[str, Any]) -> None:
        self.topic = mark.topic
        self.place = place_of(mark.config)
        self._mark = mark
        self._settings = settings

    def close(self, final: bool = False) -> None:
        """Give the topic up; ``final`` seals an end mark first. The next batch opens it again. May be repeated.

        Raises:
            JobpipeError: it is not closed: another publisher has it, or its coordinator could not be told.
        """
        if final or read(file_of(self._mark.driver, self._mark.config)) is not None:
            publisher = open_shared(self._mark, **self._settings)
            try:
                publisher.close(final)
            finally:
                publisher.detach()
        self._mark.forget()

    def give_way(self) -> None:
        """Make room for another publisher."""
        self.close()


def open_shared(mark: TopicMark, **settings: Any) -> Publisher:
    """Open a topic as one of a driver's processes, or join the others.

    Args:
        mark: of the topic.
        settings: those of :class:`jobpipe.publishing.topic_publisher.Publisher`.

    Raises:
        JobpipeError: as that class.
    """
    publisher = Publisher(
        mark.topic,
        **settings,
        opener=opener_of(mark.driver),
        others=mark.writing,
        attaching=attach_for(mark.driver),
        wanted=mark.exists,
    )
    try:
        mark.note(publisher.settings)
    except BaseException:
        publisher.detach()
        raise
    return publisher


def opener_of(driver: WatchedParent) -> str:
    """Return the one name, in hexadecimal, under which all processes of a driver open topics."""
    return hashlib.sha256(known_as(driver).encode()).hexdigest()[:32]


def shared_topics(driver: WatchedParent, config: Config) -> list[SharedTopic]:
    """Return the topics that processes of a driver publish, by what :class:`TopicMark` noted."""
    folder = _marks(driver, config)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    marks = [TopicMark(driver, config, name) for name in names]
    return [SharedTopic(mark, settings) for mark in marks if (settings := mark.settings()) is not None]


def _marks(driver: WatchedParent, config: Config) -> Path:
    return file_of(driver, config).with_suffix("")
