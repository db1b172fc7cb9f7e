"""Notes of the dead letters of micro-batches that are not finished: a small file for each, next to the checkpoint.

A note is written before the dead letters are sealed, and removed after the good rows were written. So an attempt that
repeats a micro-batch knows which rows were dead before, and sees if it has sorted them in another way.

A micro-batch of a stream has its number as the name of its note, a run of a BATCH job a hash of its id.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jobpipe.pipelines.file_paths import local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = "dead-letters"
_OF_RUN = re.compile("[0-9a-f]{16}")


def note_of_run(run: str) -> str:
    """Return the name of a run's note, by the run's id."""
    return hashlib.sha256(run.encode()).hexdigest()[:16]


class LetterNotes:
    """The notes of one job, in any file system that Spark knows.

    Args:
        storage: folder or URI of the job's checkpoint.
    """

    def __init__(self, spark: SparkSession, storage: str) -> None:
        path = local_folder(storage)
        self._files: _Files = _HadoopFiles(spark, f"{storage}/{FOLDER}") if path is None else _LocalFiles(path / FOLDER)
        self._noted = self._files.read()

    def of(self, batch: str) -> str | None:
        """Return what is noted of a batch; None if nothing is."""
        return self._noted.get(batch)

    def note(self, batch: str, text: str) -> None:
        """Note it; it is durable when this returns."""
        self._files.write(batch, text)
        self._noted[batch] = text

    def forget(self, batch: str) -> None:
        """Remove what is noted of a batch, if anything is."""
        if batch in self._noted:
            self._files.delete(batch)
            del self._noted[batch]

    def forget_other_runs(self, own: str, check: Callable[[], None]) -> None:
        """Remove the notes of runs before this one, which failed and do not come again.

        A run that has begun takes the job from those before: no attempt of theirs is ordered any more. An attempt that
        comes after this one writes its mark first, and its notes later: if ``check`` finds no such mark now, all notes
        that were read are of attempts before.

        Args:
            own: the name of the note of the run that this attempt is of.
            check: raises, or ends this process, if another attempt has taken this one's place.
        """
        others = [name for name in self._noted if _OF_RUN.fullmatch(name) and name != own]
        if others:
            check()
        for name in others:
            self.forget(name)


class _Files(Protocol):
    """Small files of one folder, by name."""

    def read(self) -> dict[str, str]: ...

    def write(self, name: str, text: str) -> None: ...

    def delete(self, name: str) -> None: ...


class _LocalFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> dict[str, str]:
        if not self._folder.is_dir():
            return {}
        return {path.name: path.read_text() for path in self._folder.iterdir() if not path.name.startswith(".")}

    def write(self, name: str, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / f".{name}"
        with part.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._folder / name)
        for folder in (self._folder, self._folder.parent):
            self._sync(folder)

    def _sync(self, folder: Path) -> None:
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)

    def delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


class _HadoopFiles:
    def __init__(self, spark: SparkSession, uri: str) -> None:
        jvm: Any = spark._jvm
        self._new = jvm.org.apache.hadoop.fs.Path
        self._text = jvm.org.apache.commons.io.IOUtils.toString
        self._folder = self._new(uri)
        self._fs = self._folder.getFileSystem(spark._jsc.hadoopConfiguration())

    def read(self) -> dict[str, str]:
        if not self._fs.exists(self._folder):
            return {}
        found = {}
        for status in self._fs.listStatus(self._folder):
            stream = self._fs.open(status.getPath())
            try:
                found[status.getPath().getName()] = str(self._text(stream, "UTF-8"))
            finally:
                stream.close()
        return found

    def write(self, name: str, text: str) -> None:
        out = self._fs.create(self._new(self._folder, name), True)
        try:
            out.write(bytearray(text.encode()))
            out.hsync()
        finally:
            out.close()

    def delete(self, name: str) -> None:
        self._fs.delete(self._new(self._folder, name), False)
