"""The files that a source of files reads: what Spark would pass over there in silence is found before the first row."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file_log import LOG, FileLog
from jobpipe.pipelines.file_patterns import literal
from jobpipe.pipelines.spec import Mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

NamePart = Literal["file_name", "file_path"]

EVERY_AGE = "3650000d"
"""Of ``maxFileAge``: ten thousand years. Spark's default, a week, leaves out what is older than the newest file."""
_SKIPPING = ("ignoreCorruptFiles", "ignoreMissingFiles")
_LOOKED_AT = 1000  # files of sub-folders, to find one that is not read
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
            " has one of the characters []{}*?\\, and a stream of Spark's would read it more than once; rename it, or "
            "give the source options: {recursiveFileLookup: true}, or {maxFilesPerTrigger: 1}"
        ),
    )
    return frame.filter(sf.when(odd, sf.raise_error(said).cast("boolean")).otherwise(sf.lit(True)))


class InputFiles:
    """The files that a pattern names, in any file system that Spark knows.

    Args:
        pattern: as Hadoop has them, for all of Spark's readers of files.
        given: Spark's options of the source.
    """

    def __init__(self, spark: SparkSession, pattern: str, given: Mapping[str, Any], mode: Mode) -> None:
        self._spark = spark
        self._pattern = pattern
        self._given = {name.lower(): str(value).lower() for name, value in given.items()}
        self._stream = mode is Mode.STREAMING
        jvm: Any = spark._jvm
        self._new = jvm.org.apache.hadoop.fs.Path
        self._fs = self._new(pattern).getFileSystem(spark._jsc.hadoopConfiguration())

    def checked(self) -> Input:
        """Return what Spark's reader is given; warn of files that it will not read.

        Raises:
            ConfigError: the folder is not there, or Spark would leave out files, or read some twice, or before they are
                whole.
        """
        self._require_no_skipping()
        name = literal(self._pattern)
        if name is None:
            self._require_no_log_below()
        elif (files := FileLog(self._spark, name)).exists:
            files.require_own_files()
            if self._stream and name != self._pattern:
                raise ConfigError(
                    f"{name} is written by a stream, and its log says which files there are whole; of a folder whose "
                    "name has one of the characters []{}*?\\ a stream of Spark's does not look at it; rename the "
                    "folder, or read it in a BATCH job",
                    path=name,
                )
            return Input(name, self._every_age())  # a pattern would not be where Spark looks for the log
        elif name != self._pattern and not self._fs.exists(self._new(name)):
            raise ConfigError(f"{name} does not exist", path=name)  # to Spark it is a pattern that matches nothing
        self._tell_of_sub_folders()
        if not self._stream:
            return Input(self._pattern)
        return self._each_file_once(literally=name is not None)

    def _every_age(self) -> dict[str, str]:
        return {"maxFileAge": EVERY_AGE} if self._stream and "maxfileage" not in self._given else {}

    def _each_file_once(self, *, literally: bool) -> Input:
        """Return how a stream reads these folders; see :func:`require_plain_names`."""
        age = self._every_age()
        if self._given.get("recursivefilelookup") == "true" or self._given.get("maxfilespertrigger") == "1":
            return Input(self._pattern, age)
        parts = self._has_partitions()
        odd = next((folder for folder in self._folders() if literal(folder) != folder), None)
        if odd is None:
            if literally and parts:
                return Input(self._pattern, age)  # in partitions Spark takes the names for names
            return Input(self._pattern, age, "file_name" if literally else "file_path")
        said = f"the name of {odd} has one of the characters []{{}}*?\\, and a stream of Spark's"
        if parts:
            raise ConfigError(f"{said} cannot read its partitions; rename the folder", path=odd)
        often = f"{said} reads each file of a micro-batch as often as it has files"
        remedy = "rename the folder, or give the source options: {recursiveFileLookup: true}"
        if "maxbytespertrigger" in self._given:
            raise ConfigError(f"{often}, and so it must have one, without maxBytesPerTrigger; {remedy}", path=odd)
        log.warning("%s, and so each has one; if that is too slow, %s", often, remedy)
        return Input(self._pattern, {**age, "maxFilesPerTrigger": "1"})

    def _folders(self) -> list[str]:
        """Return the names of what the pattern matches now."""
        found = self._fs.globStatus(self._new(self._pattern)) or ()
        return [str(status.getPath().toUri().getPath()) for status in found]

    def _has_partitions(self) -> bool:
        return bool(self._fs.globStatus(self._new(f"{self._pattern}/*=*/*")))

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

    def _require_no_log_below(self) -> None:
        """Check that a pattern matches nothing of a folder with a log, which Spark would not look at; warn if nothing.

        Raises:
            ConfigError: it does. Spark would also read what a micro-batch that failed has left.
        """
        found = self._fs.globStatus(self._new(self._pattern)) or ()
        if not found and self._stream:
            log.warning("%s matches nothing; the stream waits for files there", self._pattern)
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

    def _tell_of_sub_folders(self) -> None:
        """Warn if there are files in sub-folders that are not read; those of partitions, ``key=value``, are."""
        if "recursivefilelookup" in self._given:
            return
        found = self._fs.globStatus(self._new(f"{self._pattern}/*/*")) or ()
        for status in islice(found, _LOOKED_AT):
            folder = status.getPath().getParent()
            name = str(folder.getName())
            if "=" not in name and not name.startswith(("_", ".")):
                log.warning(
                    "%s is not read, nor what else is in sub-folders of %s; options: {recursiveFileLookup: true} "
                    "reads them, and with false this is not said",
                    status.getPath(),
                    self._pattern,
                )
                return
