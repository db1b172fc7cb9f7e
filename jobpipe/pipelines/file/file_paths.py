"""Paths of files: names, and patterns, as which Spark takes them; what in them is a name, and what is not.

Hadoop's patterns know ``* ? [a-c] {a,b}``, and a backslash takes the meaning away from the character that follows it:
https://hadoop.apache.org/docs/stable/api/org/apache/hadoop/fs/FileSystem.html#globStatus-org.apache.hadoop.fs.Path-
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from jobpipe.config.types.value_types import BadValueError, expand_home
from jobpipe.errors import ConfigError

FILE_FORMATS = frozenset({"csv", "json", "xml", "parquet", "orc", "avro", "text", "binaryfile"})
"""Spark's formats, in small letters, whose paths are patterns, and which a stream writes with a log of its files."""
EXTENSIONS = {"text": "txt", "parquet": "snappy.parquet", "orc": "snappy.orc"}
"""How names of the files that Spark writes end, where that is not the format."""
_CLASS = re.compile(
    r"(?:org\.apache\.spark\.sql|com\.databricks\.spark)\.(?:.*\.)?"
    r"(csv|json|xml|parquet|orc|avro|text|binaryfile)(?:\..*)?"
)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SCHEME = re.compile(r"([^:/]+):(//[^/]*)?")
_SPECIAL = re.compile(r"[\\*?\[\]{}]")
_BACKSLASH = re.compile(r"\\(.)", re.DOTALL)


def is_uri(path: str) -> bool:
    """Tell whether a path is a URI."""
    return _URI.match(path) is not None


def absolute(path: str, folder: Path) -> str:
    """Return a path that starts from ``folder`` if it is relative; a URI as it is.

    Raises:
        ConfigError: it starts from the home folder of a user who has none.
    """
    return path if is_uri(path) else str(folder / expanded(path, "path"))


def local_folder(storage: str) -> Path | None:
    """Return the folder of a storage, a URI or a path, on this host's files; None of another one."""
    if storage.startswith("file:"):
        return Path("/" + storage.removeprefix("file:").lstrip("/"))
    return Path(storage) if ":" not in storage.split("/")[0] else None


def same_place(storage: str) -> str:
    """Return a storage such that it is equal to another one if both are the same: a path without links, or a URI."""
    scheme = _SCHEME.match(storage)
    if scheme is not None and is_uri(storage):  # schemes and hosts are the same in any case
        storage = scheme[0].lower() + re.sub("/+", "/", storage[scheme.end() :])
    local = local_folder(storage)
    return storage.rstrip("/") if local is None else os.path.realpath(local)


def expanded(path: str, key: str) -> Path:
    """Return a path with the home folder in place of ``~``.

    Raises:
        ConfigError: there is no such home folder.
    """
    try:
        return expand_home(path)
    except BadValueError as error:
        raise ConfigError(f"{key}: {path} cannot be used; expected {error}", key=key) from error


def is_hidden(name: str) -> bool:
    """Tell whether Spark passes over a file, or a folder, for its name; ``_day=1`` is a partition."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def file_format(name: str) -> str | None:
    """Return the format of files that Spark knows by this name, or by a class; None if it is no format of files.

    >>> file_format("CSV"), file_format("org.apache.spark.sql.execution.datasources.v2.json.JsonDataSourceV2")
    ('csv', 'json')
    """
    short = name.strip().lower()
    if short in FILE_FORMATS:
        return short
    named = _CLASS.fullmatch(short)
    return named[1] if named else None


def escaped(name: str) -> str:
    """Return the pattern that matches this name alone.

    >>> escaped("orders [2026]")
    'orders \\\\[2026\\\\]'
    """
    return _SPECIAL.sub(r"\\\g<0>", name)


def literal(pattern: str) -> str | None:
    """Return the one name that a pattern matches; None if it may match several.

    >>> literal("orders \\\\[2026\\\\]")
    'orders [2026]'
    >>> literal("orders-*")
    """
    if _SPECIAL.search(_BACKSLASH.sub("", pattern)):
        return None
    return _BACKSLASH.sub(r"\1", pattern)


def may_match_twice(pattern: str) -> bool:
    """Tell whether a file may be matched by two of a pattern's alternatives, or with its folder.

    >>> may_match_twice("{in,in/*}"), may_match_twice("in/{a,b}*")
    (True, False)
    """
    return any("/" in inside for inside in re.findall(r"\{([^}]*)\}", _BACKSLASH.sub("", pattern)))


@dataclass(frozen=True, slots=True)
class InputPattern:
    """What a source of files reads.

    Attributes:
        pattern: absolute, or a URI.
        recursive: with all that is in sub-folders.
    """

    pattern: str
    recursive: bool


def reads_folder(source: InputPattern, folder: str, file: str) -> bool:
    """Tell whether a source reads what is in a folder, as far as that is certain; see :func:`matches_folder`."""
    local = local_folder(source.pattern)
    pattern = source.pattern.rstrip("/") if local is None else os.path.normpath(local)
    name = literal(pattern)
    if name is None:
        return matches_folder(pattern, folder, file)
    inside = folder.removeprefix(f"{name}/").split("/") if folder.startswith(f"{name}/") else []
    return folder == name or (source.recursive and bool(inside) and not any(map(is_hidden, inside)))


def matches_folder(pattern: str, folder: str, file: str) -> bool:
    """Tell whether a pattern matches a folder, or a file in it; of one with ``{}`` nothing is sure, which is False.

    Args:
        pattern, folder: absolute.
        file: a name as files there have.
    """
    if "{" in _BACKSLASH.sub("", pattern):
        return False
    wanted = [re.compile(_regex(part)) for part in pattern.rstrip("/").split("/")]
    for given in (folder.split("/"), [*folder.split("/"), file]):
        if len(given) == len(wanted) and all(part.fullmatch(name) for part, name in zip(wanted, given, strict=True)):
            return True
    return False


def _regex(part: str) -> str:
    """Return the regular expression of one name of a pattern, without ``{}``."""
    found = ""
    for escape, kind, plain in re.findall(r"\\(.)|(\*|\?|\[[!^]?[^]]+\])|(.)", part, re.DOTALL):
        if kind.startswith("["):
            negated = kind[1] in "!^"
            inside = kind[2 if negated else 1 : -1].replace("\\", "\\\\").replace("^", "\\^")
            found += f"[^{inside}]" if negated else f"[{inside}]"
        else:
            found += {"*": ".*", "?": "."}.get(kind, re.escape(escape or plain))
    return found


def pattern_from(pattern: str, folder: Path) -> str:
    """Return a pattern that starts from ``folder``, whose own name is none, if it is relative; a URI as it is.

    Raises:
        ConfigError: it starts from the home folder of a user who has none.
    """
    if is_uri(pattern):
        return pattern
    home, slash, rest = pattern.partition("/")
    if home.startswith("~"):
        return escaped(absolute(home, folder)) + slash + rest
    return str(Path(escaped(str(folder))) / pattern)
