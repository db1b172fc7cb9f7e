"""The files that a source of files reads: what Spark would pass over there in silence is found before the first row."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.file_paths import is_hidden, literal, may_match_twice
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.file_formats.file_sink_log import LOG, FileLog, json_of
from jobpipe.pipelines.plugins.job_context import JobContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

NamePart = Literal["file_name", "file_path"]

EVERY_AGE = "3650000d"
"""Of ``maxFileAge``: ten thousand years. Spark's default, a week, leaves out what is older than the newest file."""
_SKIPPING = ("ignoreCorruptFiles", "ignoreMissingFiles")
_LOOKED_AT = 1000  # files of sub-folders, to find one that is not read
_LOG_BYTES = 1 << 24  # of a log of files read, at its end: those of the last micro-batch, some 100,000
_CHARACTERS = "[]{}*?\\"
_ESCAPED = r"\[\]\{\}\*\?\\"  # in brackets of a pattern
_REMEDY = "give the source options: {recursiveFileLookup: true}"
_ODD = r"%5B|%5D|%7B|%7D|%3F|%5C|\*"


@dataclass(frozen=True, slots=True)
class Input:
    """What Spark's reader is given so that each row comes once.

    Attributes:
        path: a name, or a pattern.
        options: they take the place of the user's.
        guarded: what :func:`require_plain_names` has to look at, if it has to.
    """

    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    guarded: NamePart | None = None


def require_plain_names(frame: DataFrame, part: NamePart) -> DataFrame:
    """Return rows of a stream that fail if their file's name has characters of patterns.

    To Spark each such file of a micro-batch is a pattern that matches all files of the micro-batch, and each of them is
    read as often (Spark 4.3.0: of the files ``a[1]``, ``b[2]`` and ``c`` a stream reads seven).

    Args:
        part: of the name, a column of Spark's ``_metadata``. It is a URI, in which most names have no escapes, so few
            rows are looked at more closely.
    """
    from pyspark.sql import functions as sf

    files = frame.metadataColumn("_metadata")
    odd = (sf.contains(files[part], sf.lit("%")) | sf.contains(files[part], sf.lit("*"))) & files[part].rlike(_ODD)
    said = sf.concat(
        sf.lit("the name of file "),
        files["file_path"],
        sf.lit(
            f" has one of the characters {_CHARACTERS}, and a stream of Spark's would read it more than once; {_REMEDY}"
        ),
    )
    return frame.filter(sf.when(odd, sf.raise_error(said).cast("boolean")).otherwise(sf.lit(True)))


class InputFiles:
    """The files that a pattern names, in any file system that Spark knows.

    Args:
        pattern: as Hadoop has them, for all of Spark's readers of files.
        given: Spark's options of the source.
        job: what reads them.
    """

    def __init__(self, spark: SparkSession, pattern: str, given: Mapping[str, Any], job: JobContext) -> None:
        self._spark = spark
        self._pattern = pattern
        self._given = {name.lower(): str(value).lower() for name, value in given.items()}
        filters = [str(value) for name, value in given.items() if name.lower() == "pathglobfilter"]
        self._stream = job.mode is Mode.STREAMING
        self._storage = job.storage
        jvm: Any = spark._jvm
        self._new = jvm.org.apache.hadoop.fs.Path
        self._filter = jvm.org.apache.hadoop.fs.GlobFilter(filters[0]) if filters else None
        self._configuration = spark._jsc.hadoopConfiguration()
        self._fs = self._new(pattern).getFileSystem(self._configuration)

    def checked(self) -> Input:
        """Return what Spark's reader is given; warn of files that it will not read.

        Raises:
            ConfigError: the folder is not there, or Spark would leave out files, or read some twice, or before they are
                whole.
        """
        self._require_no_skipping()
        name = literal(self._pattern)
        if name is None:
            self._require_plain_matches()
        elif (files := FileLog(self._spark, name)).exists:
            files.require_own_files()
            if self._stream and name != self._pattern:
                raise ConfigError(
                    f"{name} is written by a stream, and its log says which files there are whole; of a folder whose "
                    f"name has one of the characters {_CHARACTERS} a stream of Spark's does not look at it; rename the "
                    "folder, or read it in a BATCH job",
                    path=name,
                )
            return Input(name, self._every_age())  # a pattern would not be where Spark looks for the log
        elif name != self._pattern and not self._fs.exists(self._new(name)):
            said = "; what ${…} puts into a path is a name, and no pattern" if "*" in name or "?" in name else ""
            raise ConfigError(f"{name} does not exist{said}", path=name)  # to Spark a pattern that matches nothing
        self._warn_of_sub_folders()
        partitioned = self._partitioned_folders()
        if not self._is_recursive:
            for folder in partitioned:
                self._require_no_sibling_files(folder)
            if partitioned and self._stream and name is None and "basepath" not in self._given:
                raise ConfigError(
                    f"{partitioned[0]} has partitions, such as day=1/, and a stream of Spark's cannot read them where "
                    f"the path is a pattern, as {self._pattern}; name the folder, or give the source options: "
                    "{basePath: FOLDER}",
                    path=self._pattern,
                )
        if not self._stream:
            return Input(self._pattern)
        return self._each_file_once(name, parts=bool(partitioned))

    @property
    def _is_recursive(self) -> bool:
        return self._given.get("recursivefilelookup") == "true"

    def _every_age(self) -> dict[str, str]:
        return {"maxFileAge": EVERY_AGE} if self._stream and "maxfileage" not in self._given else {}

    def _each_file_once(self, name: str | None, *, parts: bool) -> Input:
        """Return how a stream reads these folders; see :func:`require_plain_names`.

        Args:
            name: of the only folder, if the path is no pattern.
            parts: there are partitions.
        """
        age = self._every_age()
        if self._is_recursive:
            return Input(self._pattern, age)
        folders = self._found(self._pattern) if name is None else [name]
        odd = next((folder for folder in folders if literal(folder) != folder), None)
        if odd is None:
            if name is not None and parts:
                return Input(self._pattern, age)  # in partitions Spark takes the names for names
            self._require_plain_names_in_checkpoint(name)
            if self._given.get("maxfilespertrigger") == "1":
                return Input(self._pattern, age)
            for status in islice(self._statuses(f"{self._pattern}/*[{_ESCAPED}]*"), _LOOKED_AT):
                if not status.isDirectory() and self._is_read(status.getPath()):
                    raise _odd_name(str(status.getPath().toUri().getPath()))
            return Input(self._pattern, age, "file_path" if name is None else "file_name")
        said = f"the name of {odd} has one of the characters {_CHARACTERS}, and a stream of Spark's"
        if parts:
            raise ConfigError(f"{said} cannot read its partitions; rename the folder", path=odd)
        often = f"{said} reads each file of a micro-batch as often as it has files"
        remedy = "rename the folder, or give the source options: {recursiveFileLookup: true}"
        if "maxbytespertrigger" in self._given:
            raise ConfigError(f"{often}, and so it must have one, without maxBytesPerTrigger; {remedy}", path=odd)
        log.warning("%s, and so each has one; if that is too slow, %s", often, remedy)
        return Input(self._pattern, {**age, "maxFilesPerTrigger": "1"})

    def _require_plain_names_in_checkpoint(self, folder: str | None) -> None:
        """Check that a micro-batch which has begun has no files with such names: it has them also when it is repeated.

        Raises:
            ConfigError: it has, as after a failure of :func:`require_plain_names`; also if the file was renamed since.
        """
        root = self._new(self._storage)
        files = root.getFileSystem(self._configuration)
        begun, done = (self._numbers(files, self._new(root, name)) for name in ("offsets", "commits"))
        if max(begun, default=-1) <= max(done, default=-1):
            return
        sources = self._new(root, "sources")
        for status in files.listStatus(sources) if files.exists(sources) else ():
            newest = max(self._numbers(files, status.getPath()), default=-1)
            names = self._names_in(files, status.getPath(), newest)
            if folder is not None:
                names = [name for name in names if unquote(urlsplit(name).path).startswith(f"{folder.rstrip('/')}/")]
            odd = next((name for name in names if re.search(_ODD, name)), None)
            if odd is not None and len(names) > 1:
                raise _odd_name(odd)

    def _numbers(self, files: Any, folder: Any) -> list[int]:
        if not files.exists(folder):
            return []
        names = (str(status.getPath().getName()).removesuffix(".compact") for status in files.listStatus(folder))
        return [int(name) for name in names if name.isdigit()]

    def _names_in(self, files: Any, folder: Any, number: int) -> list[str]:
        """Return the URIs of the files that the last entry of a source's log brought in."""
        for name in (str(number), f"{number}.compact"):
            path = self._new(folder, name)
            if files.exists(path):
                stream = files.open(path)
                try:
                    stream.seek(max(0, files.getFileStatus(path).getLen() - _LOG_BYTES))
                    lines = bytes(stream.readAllBytes()).decode(errors="replace").splitlines()
                finally:
                    stream.close()
                entries = [json_of(line) for line in lines]
                return [str(each.get("path", "")) for each in entries if each.get("batchId") == number]
        return []

    def _require_no_skipping(self) -> None:
        """Check that no setting of the session makes Spark leave out files, unless the source says so itself."""
        for name in _SKIPPING:
            key = f"spark.sql.files.{name}"
            if name.lower() not in self._given and str(self._spark.conf.get(key, "false")).lower() == "true":
                raise ConfigError(
                    f"{key} is true, and Spark would leave out files, or their ends, without a word; set it to false, "
                    f"or give the source options: {{{name}: true}}",
                    key=f"options.{name}",
                )

    def _require_plain_matches(self) -> None:
        """Check what a pattern matches; warn if that is nothing.

        Raises:
            ConfigError: a file is matched twice, or is in a folder with a log, which Spark would not look at: it would
                also read what a micro-batch that failed has left.
        """
        found = self._statuses(self._pattern)
        if not found and self._stream:
            log.warning("%s matches nothing; the stream waits for files there", self._pattern)
        if may_match_twice(self._pattern):
            names = [str(status.getPath()) for status in found]
            files = {str(status.getPath()) for status in found if not status.isDirectory()}
            for name in names:
                inside = name.rpartition("/")[0] in names and (self._is_recursive or name in files)
                if names.count(name) > 1 or inside:
                    raise ConfigError(
                        f"{self._pattern} matches {name} twice, and Spark would read it as often; give a pattern whose "
                        "alternatives have no file in common",
                        path=self._pattern,
                    )
        folders = dict.fromkeys(str(status.getPath().getParent()) for status in found)
        folders.update(dict.fromkeys(str(status.getPath()) for status in found if status.isDirectory()))
        for folder in folders:
            if self._fs.exists(self._new(folder, LOG)):
                raise ConfigError(
                    f"a stream writes {folder}, and its log says which files there are whole; Spark does not look at "
                    f"it where the path is a pattern, as {self._pattern}; name the folder, or read it in a source of "
                    "its own",
                    path=self._pattern,
                )

    def _warn_of_sub_folders(self) -> None:
        """Warn if there are files in sub-folders that are not read; those of partitions, ``key=value``, are."""
        if "recursivefilelookup" in self._given:
            return
        for status in islice(self._statuses(f"{self._pattern}/*/*"), _LOOKED_AT):
            folder = status.getPath().getParent()
            name = str(folder.getName())
            if "=" not in name and not is_hidden(name) and self._is_read(status.getPath()):
                log.warning(
                    "%s is not read, nor what else is in sub-folders of %s; options: {recursiveFileLookup: true} "
                    "reads them, and with false this is not said",
                    status.getPath(),
                    self._pattern,
                )
                return

    def _partitioned_folders(self) -> list[str]:
        """Return the folders in which there are partitions with files, or further partitions."""
        found: dict[str, None] = {}
        for status in islice(self._statuses(f"{self._pattern}/*=*/*"), _LOOKED_AT):
            if not is_hidden(str(status.getPath().getName())):
                found[str(status.getPath().getParent().getParent())] = None
        return list(found)

    def _require_no_sibling_files(self, folder: str) -> None:
        """Check that a folder with partitions has no files of its own: Spark would pass over them."""
        found = self._fs.listFiles(self._new(folder), False)
        while found.hasNext():
            path = found.next().getPath()
            if self._is_read(path):
                raise ConfigError(
                    f"{path} lies next to partitions, such as day=1/, and Spark would not read it; move it, or give "
                    "the source options: {recursiveFileLookup: true}, without columns of partitions",
                    path=str(path),
                )

    def _is_read(self, path: Any) -> bool:
        """Tell whether a file's name lets Spark read it."""
        return not is_hidden(str(path.getName())) and (self._filter is None or bool(self._filter.accept(path)))

    # -- the file system -----------------------------------------------------------------------------------------------

    def _found(self, pattern: str) -> list[str]:
        """Return the names of what a pattern matches now."""
        return [str(status.getPath().toUri().getPath()) for status in self._statuses(pattern)]

    def _statuses(self, pattern: str) -> Sequence[Any]:
        """Return what a pattern matches now; nothing if Hadoop cannot tell: not where a name on the way has a colon."""
        try:
            return self._fs.globStatus(self._new(pattern)) or ()
        except Exception as error:
            if "Relative path in absolute URI" not in str(error):
                raise
            return ()


def _odd_name(file: str) -> ConfigError:
    return ConfigError(
        f"the name of file {file} has one of the characters {_CHARACTERS}, and a stream of Spark's reads the files of "
        f"its micro-batch more than once; {_REMEDY}",
        path=file,
    )
