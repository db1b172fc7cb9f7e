"""The folder of a job's checkpoint, on this host or in any file system that Spark knows, and small files in it."""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from jobpipe.pipelines.checkpoint_owner import MOST_BYTES, NAME, Owner
from jobpipe.pipelines.file_paths import local_folder


class StorageFile(ABC):
    """One file."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Put a text in place of what is there."""

    @abstractmethod
    def create(self, text: str) -> bool:
        """Write the file if it is not there; return whether it was written."""

    @abstractmethod
    def read(self, most: int) -> str:
        """Return what is there, up to so many bytes.

        Raises:
            OSError, Py4JError: it cannot be read.
        """


class Storage(ABC):
    """The folder."""

    @abstractmethod
    def file(self, name: str) -> StorageFile:
        """Return the file of that name, which need not be there."""

    @abstractmethod
    def has_files(self, folder: str) -> bool:
        """Tell whether a folder in it has files, but for hidden ones."""


def storage_of(storage: str, spark: SparkSession | None) -> Storage:
    """Return a folder, given as path or URI; one that is not on this host needs a session."""
    local = local_folder(storage)
    if local is not None:
        return _LocalStorage(local)
    if spark is None:
        raise ValueError(f"{storage} needs a session")
    return _HadoopStorage(spark, storage)


def claim(storage: str, owner: Owner, spark: SparkSession | None = None) -> None:
    """Make sure that a checkpoint belongs to a job, and note that it does. One without a note is taken for the job's.

    Raises:
        CheckpointMismatch: it belongs to another job, or was begun with other sources, state or sinks.
    """
    folder, text = storage_of(storage, spark), owner.text()
    note = folder.file(NAME)
    if note.create(text):
        return
    before = note.read(MOST_BYTES)
    owner.require_fit(before, storage, begun=folder.has_files("offsets"))
    if before != text:
        note.write(text)


class _LocalStorage(Storage):
    def __init__(self, path: Path) -> None:
        self._path = path

    def file(self, name: str) -> StorageFile:
        return _LocalFile(self._path / name)

    def has_files(self, folder: str) -> bool:
        try:
            return any(not path.name.startswith(".") for path in (self._path / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return False


class _LocalFile(StorageFile):
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, text: str) -> None:
        os.replace(self._part(text), self._path)

    def create(self, text: str) -> bool:
        part = self._part(text)
        try:
            os.link(part, self._path)
        except FileExistsError:
            return False
        finally:
            part.unlink()
        return True

    def read(self, most: int) -> str:
        with self._path.open("rb") as file:
            return file.read(most).decode(errors="replace")

    def _part(self, text: str) -> Path:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with part.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return part


class _HadoopStorage(Storage):
    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._spark = spark
        self._uri = uri

    def file(self, name: str) -> StorageFile:
        return _HadoopFile(self._spark, f"{self._uri}/{name}")

    def has_files(self, folder: str) -> bool:
        jvm: Any = self._spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{self._uri}/{folder}")
        files = path.getFileSystem(self._spark._jsc.hadoopConfiguration())
        found = files.listStatus(path) if files.exists(path) else ()
        return any(not str(status.getPath().getName()).startswith(".") for status in found)


class _HadoopFile(StorageFile):
    def __init__(self, spark: SparkSession, uri: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._path = jvm.org.apache.hadoop.fs.Path(uri)
        self._fs = self._path.getFileSystem(spark._jsc.hadoopConfiguration())

    def write(self, text: str) -> None:
        self._put(self._path, text)

    def create(self, text: str) -> bool:
        if self._fs.exists(self._path):
            return False
        part = self._jvm.org.apache.hadoop.fs.Path(
            self._path.getParent(), f".{self._path.getName()}.{uuid.uuid4().hex[:8]}"
        )
        self._put(part, text)
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

    def _put(self, path: Any, text: str) -> None:
        out = self._fs.create(path, True)
        try:
            out.write(bytearray(text.encode()))
        finally:
            out.close()
