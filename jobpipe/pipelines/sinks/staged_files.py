"""The files of a BATCH run: written aside, and put in place when all of them are there.

Each attempt writes into a hidden folder of its own next to the target, so a killed one leaves nothing that readers see.
What is in place says in a hidden file which run it is of: an attempt that follows one which ended between putting it
there and saying so writes nothing. The next attempt of the job, of the same run or of another one, first ends what a
killed attempt had begun to put in place, and deletes what it has left.

An attempt may stand still between two steps, while the next one does all of this, and file systems have no step that
depends on a condition. So an attempt lists what others have left, sees that no later one has begun, and touches only
what it listed; and a step that moves something looks afterwards at what it has moved. One case remains: an attempt that
stands still right before it moves the target away, and is killed right after. The job's next attempt puts it back.

A rename is one step on HDFS and on local disks. Object stores copy file by file: there readers may see a part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from jobpipe.errors import ConfigError, Fenced
from jobpipe.pipelines.plugins.job_context import JobContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MARK = "_jobpipe_run"
_RUNS = "_jobpipe_runs"
_OLD = ".old"


class StagedFiles:
    """The folder that a run writes, in any file system that Spark knows."""

    def __init__(self, spark: SparkSession, path: str, job: JobContext) -> None:
        jvm: Any = spark._jvm
        self._new = jvm.org.apache.hadoop.fs.Path
        self._fs = self._new(path).getFileSystem(spark._jsc.hadoopConfiguration())
        self._target = self._fs.makeQualified(self._new(path))
        if self._target.getParent() is None:
            raise ConfigError(f"{path} is the root of a file system; give a folder in it", path=path)
        self._job = job
        self._filter = jvm.org.apache.hadoop.fs.GlobFilter
        self._mine = _hash(job.name)  # in the names of all that the job's runs make
        self._run = f"{self._mine}.{_hash(job.run.id)}"
        self._aside = self._sibling(f"{self._run}.{job.attempt}")
        self._old = self._sibling(f"{self._run}.{job.attempt}{_OLD}")
        self._runs = self._below(self._target, _RUNS)

    def write(self, mode: str, save: Callable[[str], None]) -> None:
        """Write the run's rows.

        Args:
            mode: what happens if the target is there already: append, overwrite, error or ignore.
            save: writes all rows into the folder it is given, which does not exist.

        Raises:
            ConfigError: the target is there already, and ``mode`` is error.
        """
        self._tidy()
        if mode == "append":
            self._append(save)
            self._tidy()
        elif self._replace(mode, save):
            self._tidy(written=True)

    def _replace(self, mode: str, save: Callable[[str], None]) -> bool:
        """Put a whole folder in the target's place; return False if the mode leaves what is there."""
        if self._exists(self._target):
            if self._is_mine(self._target):
                return True
            if mode == "ignore":
                return False
            if mode == "error":
                text = f"{self._target} is there already; give mode: append, overwrite or ignore, or another path"
                raise ConfigError(text, path=str(self._target))
        self._save(save)
        self._swap()
        return True

    def _swap(self) -> None:
        """Put this attempt's folder in the target's place; nothing is changed if another attempt came between.

        Raises:
            Fenced: another attempt came between.
        """
        self._job.check()
        if self._exists(self._target):
            if self._is_mine(self._target):
                return
            self._rename(self._target, self._old)
            if self._is_mine(self._old):
                self._put_back(self._old)
                return
        try:
            self._rename(self._aside, self._target)
        except Exception:
            self._put_back(self._old)
            raise
        if self._exists(self._below(self._target, self._aside.getName())):  # a rename to what is there moves into it
            raise self._disturbed()

    def _is_mine(self, folder: Any) -> bool:
        """Tell whether a folder is of this run."""
        return self._read(self._below(folder, _MARK)) == self._job.run.id

    def _put_back(self, old: Any) -> None:
        if self._exists(old) and not self._exists(self._target):
            self._rename(old, self._target)

    def _disturbed(self) -> Fenced:
        text = f"another attempt of job {self._job.name} has moved {self._target}; the next one tries again"
        return Fenced(text, path=str(self._target))

    def _append(self, save: Callable[[str], None]) -> None:
        """Choose this attempt's files, which are then moved into the target: of a run, those of one attempt."""
        if self._exists(self._below(self._runs, f"{self._run}.done")):
            return
        self._save(save)
        self._job.check()
        self._create(self._below(self._runs, f"{self._run}.attempt"), str(self._job.attempt))

    def _tidy(self, *, written: bool = False) -> None:
        """End what the job's attempts, of any run, have begun to put in place; delete what else is left of them.

        Args:
            written: this attempt, or one of its run, has put its folder in the target's place.

        Raises:
            Fenced: then it is not there any more.
        """
        left = [*self._left(self._target), *self._left(self._target.getParent())]
        chosen = self._list(self._runs, f"{self._mine}.*.attempt")
        self._job.check()  # a later attempt makes its folders when it has begun: none of those listed is one's
        if written:
            if not self._is_mine(self._target):
                raise self._disturbed()
        elif before := [path for path in left if path.getName().endswith(_OLD)]:
            self._put_back(max(before, key=self._marked_at))  # an attempt ended between its two renames
        for file in chosen:
            if attempt := self._read(file):  # one that says nothing: it ended before a file was moved
                self._move(file.getName().removesuffix(".attempt"), attempt)
        for path in left:
            self._delete(self._below(path, _MARK))  # first: what is left of a folder is not taken for all of it
            self._delete(path)
        for file in chosen:  # last: as long as it is there, no other attempt of its run can be chosen
            self._delete(file)

    def _left(self, folder: Any) -> list[Any]:
        """Return what attempts of the job have left in a folder."""
        start = f".{self._target.getName()}.{self._mine}."
        return [path for path in self._list(folder, f"*.{self._mine}.*") if path.getName().startswith(start)]

    def _marked_at(self, folder: Any) -> int:
        """Return when a folder was made by a run, in milliseconds since 1970; 0 for one that was not."""
        mark = self._below(folder, _MARK)
        return int(self._fs.getFileStatus(mark).getModificationTime()) if self._exists(mark) else 0

    def _move(self, run: str, attempt: str) -> None:
        """Move the files of an attempt into the target, if that has not come to its end."""
        done = self._below(self._runs, f"{run}.done")
        aside = self._sibling(f"{run}.{attempt}")
        if self._exists(done) or not self._exists(self._below(aside, _MARK)):
            return  # without a mark: it stood still, and was chosen after a later attempt had deleted its files
        for file in list(self._files(aside)):
            inside = str(file)[len(str(aside)) + 1 :]
            folder, _, name = inside.rpartition("/")
            into = self._below(self._target, folder) if folder else self._target
            self._fs.mkdirs(into)
            self._rename(file, self._below(into, name))
        self._create(done, "")

    def _save(self, save: Callable[[str], None]) -> None:
        save(str(self._aside))
        self._create(self._below(self._aside, _MARK), self._job.run.id)

    # -- the file system -----------------------------------------------------------------------------------------------

    def _sibling(self, what: str) -> Any:
        return self._new(self._target.getParent(), f".{self._target.getName()}.{what}")

    def _below(self, folder: Any, name: str) -> Any:
        return self._new(folder, name)

    def _exists(self, path: Any) -> bool:
        return bool(self._fs.exists(path))

    def _list(self, folder: Any, names: str) -> list[Any]:
        """Return what is in a folder under such names; nothing if there is no folder."""
        if not self._exists(folder):
            return []
        return [status.getPath() for status in self._fs.listStatus(folder, self._filter(names))]

    def _delete(self, path: Any) -> None:
        self._fs.delete(path, True)

    def _rename(self, path: Any, to: Any) -> None:
        if not self._fs.rename(path, to):
            raise ConfigError(f"{path} cannot be renamed to {to}; look at the rights on both folders", path=str(to))

    def _create(self, path: Any, text: str) -> None:
        """Make a small file that is not there yet."""
        out = self._fs.create(path, False)
        try:
            out.write(bytearray(text.encode()))
        finally:
            out.close()

    def _read(self, path: Any) -> str:
        """Return what a small file says; "" if there is none."""
        if not self._exists(path):
            return ""
        stream = self._fs.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def _files(self, folder: Any) -> Iterator[Any]:
        """Yield the files with rows, of all levels."""
        if not self._exists(folder):
            return
        found = self._fs.listFiles(folder, True)
        while found.hasNext():
            path = found.next().getPath()
            if not path.getName().startswith(("_", ".")):
                yield path


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
