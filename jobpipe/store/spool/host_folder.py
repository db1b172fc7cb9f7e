"""The folder of a host server: segments of many topics, by topic and log, and the word for tasks on the same host.

::

    <dir>/server.json                        which server it is and where it listens, for tasks on this host
    <dir>/identity.json, <dir>/lock          its id, for ever; one server at a time
    <dir>/topics/<topic>/<place>/segments/   as in a spool, but without a catalog: coordinators know what is in there

The place of a log is its id and 32 hex digits that follow from a secret of its publisher
(jobpipe.net.servers.write_tokens).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from jobpipe.config.reading.file_permissions import read_own_file, why_distrusted
from jobpipe.errors import RemoteProtocolError, SpoolError
from jobpipe.store.spool.segment_index import is_host_id
from jobpipe.store.spool.spool_files import (
    SEGMENTS,
    check_folder,
    check_length,
    check_topic,
    prepare_topic,
    remove_files,
    spool_error,
    sync_directory,
    write_id_of,
)
from jobpipe_registry.host.local_files import locked_file, write_whole

_PLACE = re.compile(r"[0-9a-f]{16}-[0-9a-f]{32}")
MAX_ANNOUNCEMENT = 4096
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class HostServerInfo:
    """What a host server says of itself to tasks on its host."""

    id: str
    endpoint: str


def announced(folder: Path) -> HostServerInfo | None:
    """Return the host server of ``folder``, None where none is, or none that can be read. It may have ended since.

    The server may be of another user than the tasks; what everybody may write is not believed.
    """
    try:
        if why_distrusted(folder.stat(), any_owner=True):
            return None
        text, why = read_own_file(folder / "server.json", MAX_ANNOUNCEMENT, any_owner=True)
        value = json.loads(text) if why is None else {}
        found = HostServerInfo(str(value["id"]), str(value["endpoint"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if is_host_id(found.id) else None


def log_directory(folder: Path, topic: str, place: str) -> Path:
    """Return the directory of one log; its files are in ``segments`` there.

    Raises:
        ConfigError: not a topic's name.
        RemoteProtocolError: not a log's place.
    """
    check_topic(topic)
    if _PLACE.fullmatch(place) is None:
        raise RemoteProtocolError("a log's place is 16 and 32 hex digits", place=repr(place)[:100])
    return folder / "topics" / topic / place


def directories_of_log(folder: Path, topic: str, log: str) -> list[Path]:
    """Return the directories of a log, by its id alone; none if this host keeps nothing of it.

    Raises:
        ConfigError: not a topic's name.
    """
    check_topic(topic)
    parent = folder / "topics" / topic
    entries = sorted(parent.iterdir()) if parent.is_dir() else []
    return [entry for entry in entries if _PLACE.fullmatch(entry.name) and entry.name.startswith(log)]


class HostFolder:
    """A folder that this process, and no other, serves.

    Attributes:
        path: the folder.
        id: of the host server, random, made with the folder; it begins with the host's name.
        starts: how often it was opened, this time included: a later server of the folder has a higher number.

    Raises:
        SpoolError: another process serves it, or the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened = time.time()
        try:
            path.mkdir(mode=0o755, parents=True, exist_ok=True)  # tasks of other users read server.json
            check_folder(path)
            (path / "topics").mkdir(mode=0o700, exist_ok=True)
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(locked_file(path / "lock"))
                except TimeoutError as error:
                    raise SpoolError(f"{path}: another host server serves this folder", file=str(path)) from error
                self.id, self.starts = self._identify()
                self._lock = stack.pop_all()
        except OSError as error:
            raise spool_error("cannot prepare", path, error) from error

    def _identify(self) -> tuple[str, int]:
        file = self.path / "identity.json"
        name, starts = "", 0
        if file.exists():
            try:
                value = json.loads(file.read_text())
                name, starts = str(value["id"]), int(value["starts"])
            except (ValueError, KeyError, TypeError):
                name = ""
            if not is_host_id(name):
                raise SpoolError(
                    f"{file} is damaged, and catalogs know this folder by the id in it: restore it, or remove the "
                    "folder with its segments",
                    file=str(file),
                )
        else:
            host = _NOT_IN_A_NAME.sub("-", socket.gethostname())[:64].strip("-.") or "host"
            name = f"{host}-{secrets.token_hex(4)}"
        self._write(file, {"id": name, "starts": starts + 1}, 0o600)
        return name, starts + 1

    def announce(self, endpoint: str) -> None:
        """Tell tasks on this host where the server listens."""
        try:
            self._write(self.path / "server.json", {"id": self.id, "endpoint": endpoint}, 0o644)
        except OSError as error:
            raise spool_error("cannot write", self.path / "server.json", error) from error

    def close(self) -> None:
        """Let tasks and other servers know that the folder is not served any more; the segments stay."""
        with contextlib.suppress(OSError):
            (self.path / "server.json").unlink()
        self._lock.close()

    def _write(self, file: Path, value: dict[str, object], mode: int) -> None:
        write_whole(file, json.dumps(value).encode(), mode)

    # -- segments ------------------------------------------------------------------------------------------------------

    def segments(self, topic: str, place: str) -> Path:
        """Return where the files of a log are."""
        return log_directory(self.path, topic, place) / SEGMENTS

    def prepare(self, topic: str, place: str) -> Path:
        """Make the directory of a log, if it is not there; return where its files go."""
        directory = log_directory(self.path, topic, place)
        prepare_topic(directory, topic)
        return directory / SEGMENTS

    def adopt(self, topic: str, place: str, name: str, length: int, *, fsync: bool) -> None:
        """Take a file that a task of this host wrote here itself; with ``fsync`` its name is durable then.

        Raises:
            SegmentCorrupt: it is not there, or shorter than ``length``.
        """
        folder = self.segments(topic, place)
        check_length(folder / check_file(name), length)
        if fsync:
            sync_directory(folder)

    def files(self, topic: str, place: str, after: str, limit: int) -> list[str]:
        """Return the names of a log's files that sort after ``after``, sorted, at most ``limit``."""
        try:
            names = [entry.name for entry in os.scandir(self.segments(topic, place))]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise spool_error("cannot list", self.path, error) from error
        return sorted(name for name in names if name > after and write_id_of(name) is not None)[:limit]

    def remove(self, topic: str, place: str, names: list[str]) -> int:
        """Unlink files; return how many were there."""
        return remove_files(self.segments(topic, place), [check_file(name) for name in names])

    def renew(self, topic: str, place: str) -> None:
        """Note that a log is in use: :meth:`forget_logs` counts from now, as after a write."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.segments(topic, place))

    def forget_logs(self, topic: str, keep: str, idle: float) -> list[str]:
        """Remove the topic's other logs that were not in use for ``idle`` seconds; return their ids.

        A topic has another log after its spool was lost or wiped; the former one cannot be read then. Time before this
        folder was opened does not count: no log could be renewed then.
        """
        check_topic(topic)
        forgotten = []
        parent = self.path / "topics" / topic
        for entry in sorted(parent.iterdir()) if parent.is_dir() else []:
            folder = entry / SEGMENTS
            if entry.name == keep or _PLACE.fullmatch(entry.name) is None or not folder.is_dir():
                continue
            if time.time() - max(folder.stat().st_mtime, self._opened) > idle:
                remove_files(folder, [file.name for file in folder.iterdir()])
                with contextlib.suppress(OSError):  # not empty: a task writes there after all
                    folder.rmdir()
                    entry.rmdir()
                    forgotten.append(entry.name)
        return forgotten


def check_file(name: str) -> str:
    """Return the name of a segment file.

    Raises:
        RemoteProtocolError: it is none; it might lead elsewhere.
    """
    if write_id_of(name) is None:
        raise RemoteProtocolError(f"not a segment file's name: {name[:200]!r}", file=name[:200])
    return name
