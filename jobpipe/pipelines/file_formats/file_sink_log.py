"""Spark's log of the files that its file sink has written, ``_spark_metadata`` in their folder.

Readers in Spark see only the files that are in it, and the sink leaves out, without a word, every micro-batch whose
number is in it already: also that of another query, or of this one with another checkpoint.
https://spark.apache.org/docs/latest/streaming/apis-on-dataframes-and-datasets.html#output-sinks
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.file_paths import is_hidden

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = "_spark_metadata"
_NOTE = "_jobpipe_query"  # in the log: Spark reads only files there whose names are numbers
_BATCH = re.compile(r"(\d+)(\.compact)?")
_HEAD_BYTES = 1 << 16  # of a file of the log; a copied folder differs from its first entry on
_NOTE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Writer:
    """Which query writes a folder.

    Attributes:
        job: its name with its pipeline.
        storage: folder or URI of its checkpoint.
        query: Spark's id of it, which stands in the checkpoint; "" until it has started.
    """

    job: str
    storage: str
    query: str = ""


class FileLog:
    """The log of one folder, in any file system that Spark knows."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        jvm: Any = spark._jvm
        self._new = jvm.org.apache.hadoop.fs.Path
        self._configuration = spark._jsc.hadoopConfiguration()
        self._fs = self._new(folder).getFileSystem(self._configuration)
        self._folder = self._fs.makeQualified(self._new(folder))
        self._log = self._new(self._folder, LOG)
        self._is_new = False

    @property
    def exists(self) -> bool:
        """Whether Spark keeps a log of the folder's files."""
        return bool(self._fs.exists(self._log))

    def require_none(self) -> None:
        """Check that readers in Spark will see files that are written without the log.

        Raises:
            ConfigError: they would not, since a stream has written here by Spark's file sink.
        """
        if self.exists:
            raise ConfigError(
                f"a job without dead letters and other sinks has written to {self._folder}, and Spark keeps a log "
                "of its files: readers in Spark would not see the files of this job; give another path",
                path=str(self._folder),
            )

    def require_own_files(self) -> None:
        """Check that what the log names is in this folder.

        Raises:
            ConfigError: it is not: the folder is a copy of another one, or was moved.
        """
        for entry in self._first_entries():
            if not self._holds(entry):
                raise ConfigError(
                    f"{self._folder} was copied or moved, or is another name of a folder: the log of its files, {LOG}, "
                    f"names {entry}, and Spark would not read what is here; give the folder's first name, or, if all "
                    f"files here are whole, delete {self._log}",
                    path=str(self._folder),
                )

    # -- who writes ----------------------------------------------------------------------------------------------------

    def claim(self, writer: Writer) -> None:
        """Make sure that a query may write here without that a row of it, or of another one, is lost; say that it does.

        Args:
            writer: without the id of its query, which is in the checkpoint, if that has begun.

        Raises:
            ConfigError: another query writes here, or this one did with another checkpoint; or there are files that
                readers in Spark would not see any more.
        """
        self._is_new = not self.exists
        last, note = self._last(), self._note()
        mine, reached = self._checkpoint(writer.storage)
        if last < 0:
            if note is None:
                self._require_no_files()
                if self._make_note(writer):
                    return
                note = self._note()  # of one that starts at the same time
            if note is not None and (mine or "-") != note.query and (note.job, note.storage) != _names(writer):
                raise self._refused(note, "has begun to write to")
        else:
            self.require_own_files()
            if note is not None and note.query not in ("", mine):
                raise self._refused(note, "has written to")
            if last > reached:
                raise self._refused(note, "has written to") if not mine else self._ahead(last, reached, writer.storage)
        self.note(replace(writer, query=mine))

    def note(self, writer: Writer) -> None:
        """Say in the folder of the log which query writes it."""
        self._write_note(writer, overwrite=True)

    def withdraw(self) -> None:
        """Take back a claim whose query could not start, if that began the log: readers in Spark go by any log."""
        if self._is_new and self._last() < 0:
            self._fs.delete(self._log, True)

    def _make_note(self, writer: Writer) -> bool:
        """Say it if no other query has; return whether none has."""
        try:
            self._write_note(writer, overwrite=False)
        except Exception as error:
            if "FileAlreadyExists" not in str(error):
                raise
            return False
        return True

    def _write_note(self, writer: Writer, *, overwrite: bool) -> None:
        self._fs.mkdirs(self._log)
        out = self._fs.create(self._new(self._log, _NOTE), overwrite)
        try:
            out.write(bytearray(json.dumps(asdict(writer)).encode()))
        finally:
            out.close()

    def _refused(self, other: Writer | None, did: str) -> ConfigError:
        who = (
            "another query" if other is None else f"another query, of job {other.job} with checkpoint {other.storage},"
        )
        return ConfigError(
            f"{who} {did} {self._folder}, and Spark would leave out the micro-batches of this one that have the "
            "numbers of that one's; give another path, or the checkpoint of that query, or delete the folder if its "
            "rows are to be written again",
            path=str(self._folder),
        )

    def _ahead(self, last: int, reached: int, storage: str) -> ConfigError:
        return ConfigError(
            f"{self._folder} has micro-batches up to {last}, and checkpoint {storage} knows of {reached + 1} of them: "
            "is it older than the folder, or of another query? Spark would leave out the next ones, which have numbers "
            "that the folder has already; give another path, or the checkpoint that is as new",
            path=str(self._folder),
        )

    def _require_no_files(self) -> None:
        """Check that there are no files that were written without the log: Spark would no longer see them."""
        if not self._fs.exists(self._folder):
            return
        found = self._fs.listFiles(self._folder, True)
        while found.hasNext():
            path = found.next().getPath()
            if not any(is_hidden(part) for part in self._below(path).split("/")):
                raise ConfigError(
                    f"{self._folder} holds files that no stream with this sink alone has written, as {path}; Spark "
                    "keeps a log of a stream's files, and its readers would see those alone; give another path",
                    path=str(self._folder),
                )

    def _below(self, path: Any) -> str:
        return str(path.toUri().getPath()).removeprefix(str(self._folder.toUri().getPath())).lstrip("/")

    def _checkpoint(self, storage: str) -> tuple[str, int]:
        """Return the id of the query that a checkpoint is of, and its last micro-batch; "" and -1 of a new one."""
        root = self._new(storage)
        files = root.getFileSystem(self._configuration)
        metadata, offsets = self._new(root, "metadata"), self._new(root, "offsets")
        said = json_of(self._head(files, metadata, _NOTE_BYTES)) if files.exists(metadata) else {}
        return str(said.get("id", "")), max(self._numbers(files, offsets), default=-1)

    def _note(self) -> Writer | None:
        """Return what the note says; None if there is none, or it was cut off when its writer ended."""
        path = self._new(self._log, _NOTE)
        if not self._fs.exists(path):
            return None
        try:
            said = json_of(self._head(self._fs, path, _NOTE_BYTES))
        except Exception as error:
            if "ChecksumException" not in str(error):
                raise
            said = {}
        if not said:
            return None
        return Writer(*(str(said.get(name, ""))[:1000] for name in ("job", "storage", "query")))

    # -- the log -------------------------------------------------------------------------------------------------------

    def _last(self) -> int:
        """Return the number of the last micro-batch in the log; -1 if there is none."""
        return max(self._numbers(self._fs, self._log), default=-1)

    def _numbers(self, files: Any, folder: Any) -> Iterator[int]:
        if files.exists(folder):
            for status in files.listStatus(folder):
                if named := _BATCH.fullmatch(str(status.getPath().getName())):
                    yield int(named[1])

    def _first_entries(self) -> Iterator[str]:
        """Yield, of each file of the log that counts, the URI that it names first."""
        names = [str(status.getPath().getName()) for status in self._fs.listStatus(self._log)] if self.exists else []
        batches = sorted((int(named[1]), name) for name in names if (named := _BATCH.fullmatch(name)))
        compact = max((number for number, name in batches if name.endswith(".compact")), default=0)
        for number, name in batches:
            if number >= compact:
                lines = self._head(self._fs, self._new(self._log, name), _HEAD_BYTES).splitlines()
                if len(lines) > 1 and (entry := str(json_of(lines[1]).get("path", ""))):
                    yield entry

    def _holds(self, entry: str) -> bool:
        """Tell whether a file, by its URI, is in this folder."""
        found, folder = urlsplit(entry), self._folder.toUri()
        here = (str(folder.getScheme()).lower(), str(folder.getAuthority() or ""))
        inside = str(folder.getPath()).rstrip("/") + "/"
        return (found.scheme.lower(), found.netloc) == here and unquote(found.path).startswith(inside)

    def _head(self, files: Any, path: Any, limit: int) -> str:
        stream = files.open(path)
        try:
            return bytes(stream.readNBytes(limit)).decode(errors="replace")
        finally:
            stream.close()


def _names(writer: Writer) -> tuple[str, str]:
    return writer.job, writer.storage


def json_of(text: str) -> dict[str, Any]:
    """Return the object that a text is; an empty one if it is none."""
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
