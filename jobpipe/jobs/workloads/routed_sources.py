"""The sources whose rows went to topics that were not known beforehand, kept next to the checkpoint.

A topic that a route makes of a row's source has rows that are to be served, and an end to come, also when an attempt
sees no row for it. Sources are kept, not targets: which topics they lead to, is said by the routes as they are now.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

from pyspark.sql import SparkSession

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.file_paths import local_folder

FOLDER = "routed"
SOURCES_MOST = 1000


class RoutedSources:
    """The names of sources, each an empty file: one that is there twice, or is written by two attempts, is one.

    Args:
        storage: folder or URI of the job's checkpoint.
    """

    def __init__(self, spark: SparkSession, storage: str) -> None:
        path = local_folder(storage)
        self._local = None if path is None else path / FOLDER
        self._uri = f"{storage}/{FOLDER}"
        self._spark = spark
        self._known: set[str] | None = None

    def names(self) -> tuple[str, ...]:
        """Return them, in order.

        Raises:
            OSError, Py4JError: the storage cannot be read.
        """
        if self._known is None:
            files = self._files() if self._local is None else self._local_files()
            self._known = {unquote(file) for file in files}
        return tuple(sorted(self._known))

    def add(self, name: str) -> None:
        """Keep a name; on return it is kept.

        Raises:
            ConfigError: there are too many.
            OSError, Py4JError: the storage cannot be written.
        """
        known = set(self.names())
        if name in known:
            return
        if len(known) >= SOURCES_MOST:
            what = f"route: rows of more than {SOURCES_MOST} topics go to topics that are named by them, with {name}"
            raise ConfigError(f"{what}; give several jobs, or a sink-table for several topics", key="route")
        if self._local is None:
            self._create(quote(name, safe=""))
        else:
            self._local.mkdir(parents=True, exist_ok=True)
            (self._local / quote(name, safe="")).touch()
        self._known = {*known, name}

    def _local_files(self) -> list[str]:
        assert self._local is not None  # noqa: S101 - the caller has looked
        return [file.name for file in self._local.iterdir()] if self._local.is_dir() else []

    def _hadoop(self, file: str = "") -> tuple[Any, Any]:
        """Return the file system of the storage, and the path of a file, or of the folder."""
        jvm: Any = self._spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(self._uri)
        files = path.getFileSystem(self._spark._jsc.hadoopConfiguration())
        return files, jvm.org.apache.hadoop.fs.Path(path, file) if file else path

    def _files(self) -> list[str]:
        files, folder = self._hadoop()
        return [str(each.getPath().getName()) for each in files.listStatus(folder)] if files.exists(folder) else []

    def _create(self, file: str) -> None:
        files, path = self._hadoop(file)
        files.create(path, True).close()
