"""The folder of a job's checkpoint, on this host or in any file system that Spark knows, and small files in it."""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobpipe.errors import CheckpointMismatch
from jobpipe.pipelines.checkpoints.checkpoint_owner import (
    MOST_BYTES,
    NAME,
    KnownSources,
    Owner,
    namespace_of,
    owner_of,
    remedy,
)
from jobpipe.pipelines.file.file_paths import local_folder
from jobpipe.pipelines.model.pipeline import Job
from jobpipe.pipelines.plugins.job_context import name_of_source, view_of_source
from jobpipe.store.spool.spool_files import sync_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Progress:
    """How far a query has come.

    Attributes:
        named: Spark knows its sources by names, not by their order.
        names: of the sources whose offsets the newest micro-batch has, as Spark knows them; it remembers no others.
        noted: names of sources of files of which it has noted files.
        batch: its number; None: the first one is not planned yet.
        is_done: it was committed; else it will be repeated, with these offsets.
    """

    named: bool
    names: frozenset[str] = frozenset()
    noted: frozenset[str] = frozenset()
    batch: int | None = None
    is_done: bool = True


class StorageFile(ABC):
    """One file. Each call raises OSError or Py4JError if the file system refuses, SpoolError if it is not durable."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Put a text in place of what is there; it is durable when this returns."""

    @abstractmethod
    def create(self, text: str) -> bool:
        """Write the file if it is not there; return whether it was written."""

    @abstractmethod
    def read(self, most: int) -> str:
        """Return what is there, up to so many bytes."""

    @abstractmethod
    def delete(self) -> None:
        """Remove the file, if it is there."""


class Storage(ABC):
    """The folder."""

    @abstractmethod
    def file(self, name: str) -> StorageFile:
        """Return the file of that name, which need not be there; the name may begin with a folder's."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the names of what is in a folder in it, but for hidden ones; none if there is no such folder."""

    @abstractmethod
    def remove_hidden(self, folder: str) -> None:
        """Remove the hidden files in a folder in it, if there is one."""

    def remove_unfinished(self) -> None:
        """Remove what a query has left that was killed while it wrote its first offsets.

        Spark writes a file under a hidden name and renames it, and refuses to begin a query that keeps state next to
        one that it finds there (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY), which no restart would mend.
        """
        folders = ("offsets", "commits")
        if not any(self.names(folder) for folder in folders):
            for folder in folders:
                self.remove_hidden(folder)

    @property
    def begun(self) -> bool:
        """Whether a query has begun: Spark notes the files of a first micro-batch before its offsets."""
        return bool(self.names("offsets") or self.names("sources"))

    def progress(self) -> Progress | None:
        """Return how far the query has come, by Spark's own log; None: none has begun.

        Before the log's first entry only sources of files leave something.

        Raises:
            OSError, Py4JError: the log cannot be read.
        """
        planned, done = ([int(name) for name in self.names(of) if name.isdigit()] for of in ("offsets", "commits"))
        noted = frozenset(self.names("sources"))
        if not planned:
            return Progress(named=any(not name.isdigit() for name in noted), noted=noted) if noted else None
        newest = max(planned)
        version, _, entries = self.file(f"offsets/{newest}").read(MOST_BYTES).partition("\n")
        lines = entries.split("\n")[1:] if version == "v2" else []
        names = frozenset(line.partition(":")[0] for line in lines)
        named = any(not name.isdigit() for name in names)
        return Progress(named=named, names=names, noted=noted, batch=newest, is_done=newest in done)


def storage_of(storage: str, spark: SparkSession | None) -> Storage:
    """Return a folder, given as path or URI; one that is not on this host needs a session."""
    local = local_folder(storage)
    if local is not None:
        return _LocalStorage(local)
    if spark is None:
        raise ValueError(f"{storage} needs a session")
    return _HadoopStorage(spark, storage)


def claim(storage: str, owner: Owner, spark: SparkSession | None = None) -> Owner:
    """Make sure that a checkpoint belongs to a job, and note that it does. One without a note is taken for the job's.

    Returns:
        What is noted: with names if the query is to know its sources by these.

    Raises:
        CheckpointMismatch: it belongs to another job, or was begun with other sources, state or sinks.
    """
    claimed, progress = _owner_as_begun(owner, storage_of(storage, spark), storage)
    if progress is not None:
        _require_all_of_batch(claimed, progress, storage)

    def fit(before: str, begun: bool) -> str | None:
        nonlocal claimed
        claimed = claimed.resumed_from(before, storage, begun=begun, known=_known_sources(progress))
        return claimed.text() if owner.sources else None  # a run of a BATCH job leaves what a stream noted

    keep_note(storage, NAME, claimed.text(), fit, spark)
    return claimed


def _owner_as_begun(owner: Owner, folder: Storage, storage: str) -> tuple[Owner, Progress | None]:
    """Return what a checkpoint belongs to, with names of sources only if it was begun with these, or has not begun.

    Returns:
        Also how far a query with named sources has come; None if there is none, or the job has no checkpoint.

    Raises:
        CheckpointMismatch: it was begun with names, and the job's sources have none; or the offsets cannot be read.
    """
    if not owner.sources:
        return owner, None
    try:
        progress = folder.progress()
    except OSError as error:
        what = f"the offsets of the checkpoint in {storage} cannot be read: {error.strerror}"
        raise CheckpointMismatch(f"{what}. {remedy(owner.job, storage)}", file=storage) from error
    if progress is None:
        return owner, None
    if not progress.named:
        return owner.by_order(), None
    owner.require_names(storage)
    return owner, progress


def _require_all_of_batch(owner: Owner, progress: Progress, storage: str) -> None:
    """Check that a micro-batch which is to be repeated has all of its sources.

    Raises:
        CheckpointMismatch: it lacks one.
    """
    missing = progress.names - {name_of_source(name) for name in owner.names}
    if missing and not progress.is_done:
        views = ", ".join(sorted(map(view_of_source, missing)))
        raise CheckpointMismatch(
            f"the checkpoint in {storage} does not fit job {owner.job}: micro-batch {progress.batch} has not ended, "
            f"and may have rows of sources that are gone ({views}), which would be lost. Take these back until it has "
            f"ended. {remedy(owner.job, storage)}",
            file=storage,
        )


def _known_sources(progress: Progress | None) -> KnownSources:
    return KnownSources() if progress is None else KnownSources(progress.names, progress.names | progress.noted)


def keep_note(
    storage: str, name: str, text: str, fit: Callable[[str, bool], str | None], spark: SparkSession | None = None
) -> None:
    """Write a note next to a checkpoint, unless the one that is there says that it is not this query's.

    Args:
        fit: gets what is noted, and whether a query has begun. Raises if it does not fit; returns what is to be noted
            in its place, None to leave it.

    Raises:
        CheckpointMismatch: the note cannot be read; or what ``fit`` raises.
    """
    folder = storage_of(storage, spark)
    note = folder.file(name)
    if note.create(text):
        return
    before = _read_note(note, f"{storage}/{name}")
    after = fit(before, folder.begun) if before.strip() else text
    if after is not None and after != before:
        note.write(after)


def check_owner(storage: str, pipeline: str, job: Job) -> None:
    """Check, as far as it is to be seen without a session, that a checkpoint belongs to a job; note nothing.

    The namespace is not compared: the attempt's own configuration says it. Nor is a micro-batch that has not ended: the
    attempt that is under way may end it.

    Raises:
        CheckpointMismatch: as :func:`claim`.
    """
    if local_folder(storage) is None:
        return
    folder = storage_of(storage, None)
    if NAME in _list_names(folder, storage):
        before = _read_note(folder.file(NAME), f"{storage}/{NAME}")
        if before.strip():
            owner, progress = _owner_as_begun(owner_of(namespace_of(before, storage), pipeline, job), folder, storage)
            owner.resumed_from(before, storage, begun=folder.begun, known=_known_sources(progress))


def _list_names(folder: Storage, storage: str) -> list[str]:
    """Return the names of what is in a checkpoint's folder.

    Raises:
        CheckpointMismatch: that cannot be seen.
    """
    try:
        return folder.names(".")
    except OSError as error:
        what = f"the checkpoint in {storage} cannot be seen: {error.strerror}; mend that, or give another storage"
        raise CheckpointMismatch(what, file=storage) from error


def has_begun(storage: str) -> bool:
    """Whether a query has begun with a checkpoint in a folder of this host; False of one elsewhere.

    Raises:
        CheckpointMismatch: that cannot be seen.
    """
    if local_folder(storage) is None:
        return False
    folder = storage_of(storage, None)
    _list_names(folder, storage)
    return folder.begun


def _read_note(note: StorageFile, path: str) -> str:
    try:
        return note.read(MOST_BYTES)
    except OSError as error:
        said = f"{path} cannot be read: {error.strerror}. It says what the checkpoint belongs to; mend that"
        raise CheckpointMismatch(said, file=path) from error


class _LocalStorage(Storage):
    def __init__(self, path: Path) -> None:
        self._path = path

    def file(self, name: str) -> StorageFile:
        return _LocalFile(self._path / name)

    def names(self, folder: str) -> list[str]:
        try:
            return [name for name in os.listdir(self._path / folder) if not name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove_hidden(self, folder: str) -> None:
        for file in (self._path / folder).glob(".*"):
            file.unlink(missing_ok=True)


class _LocalFile(StorageFile):
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, text: str) -> None:
        part = self._part(text)
        try:
            part.replace(self._path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        for folder in (self._path.parent, self._path.parent.parent):
            sync_directory(folder)

    def create(self, text: str) -> bool:
        if os.path.lexists(self._path):
            return False
        part = self._part(text)
        try:
            os.link(part, self._path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links: then a reader may see a part of it
            return self._create_here(text)
        finally:
            part.unlink()
        return True

    def _create_here(self, text: str) -> bool:
        try:
            _put(self._path, text)
        except FileExistsError:
            return False
        return True

    def read(self, most: int) -> str:
        with self._path.open("rb") as file:
            return file.read(most).decode(errors="replace")

    def delete(self) -> None:
        self._path.unlink(missing_ok=True)

    def _part(self, text: str) -> Path:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex[:8]}")
        _put(part, text)
        return part


def _put(path: Path, text: str) -> None:
    """Write a new file that only its user may read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


class _HadoopStorage(Storage):
    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._spark = spark
        self._uri = uri

    def file(self, name: str) -> StorageFile:
        return _HadoopFile(self._spark, f"{self._uri}/{name}")

    def names(self, folder: str) -> list[str]:
        return [name for name in self._all_names(folder) if not name.startswith(".")]

    def remove_hidden(self, folder: str) -> None:
        for name in self._all_names(folder):
            if name.startswith("."):
                self.file(f"{folder}/{name}").delete()

    def _all_names(self, folder: str) -> list[str]:
        jvm: Any = self._spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{self._uri}/{folder}")
        files = path.getFileSystem(self._spark._jsc.hadoopConfiguration())
        found = files.listStatus(path) if files.exists(path) else ()
        return [str(status.getPath().getName()) for status in found]


class _HadoopFile(StorageFile):
    def __init__(self, spark: SparkSession, uri: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._gateway: Any = spark._sc._gateway
        self._conf = spark._jsc.hadoopConfiguration()
        self._path = jvm.org.apache.hadoop.fs.Path(uri)
        self._fs = self._path.getFileSystem(self._conf)

    def write(self, text: str) -> None:
        from py4j.protocol import Py4JJavaError

        hadoop = self._jvm.org.apache.hadoop.fs
        try:
            context = hadoop.FileContext.getFileContext(self._path.toUri(), self._conf)
        except Py4JJavaError:  # UnsupportedFileSystemException: it has no rename that replaces
            self._put(self._path, text)
            return
        rename = getattr(hadoop, "Options$Rename")
        ways = self._gateway.new_array(rename, 1)
        ways[0] = rename.OVERWRITE
        part = self._part(text)
        try:
            context.rename(part, self._path, ways)
        except Py4JJavaError:
            self._fs.delete(part, False)
            raise

    def create(self, text: str) -> bool:
        if self._fs.exists(self._path):
            return False
        part = self._part(text)
        if self._fs.rename(part, self._path):
            return True
        self._fs.delete(part, False)
        return False

    def read(self, most: int) -> str:
        stream = self._fs.open(self._path)
        try:
            return bytes(stream.readNBytes(most)).decode(errors="replace")
        finally:
            stream.close()

    def delete(self) -> None:
        self._fs.delete(self._path, False)

    def _part(self, text: str) -> Any:
        name = f".{self._path.getName()}.{uuid.uuid4().hex[:8]}"
        part = self._jvm.org.apache.hadoop.fs.Path(self._path.getParent(), name)
        self._put(part, text)
        return part

    def _put(self, path: Any, text: str) -> None:
        out = self._fs.create(path, True)
        try:
            out.write(bytearray(text.encode()))
            out.hsync()
        finally:
            out.close()
