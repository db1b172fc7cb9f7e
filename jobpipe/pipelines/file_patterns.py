"""Paths that Spark takes for patterns: what in them is a name, and what is not.

Hadoop's patterns know ``* ? [a-c] {a,b}``, and a backslash takes the meaning away from the character that follows it:
https://hadoop.apache.org/docs/stable/api/org/apache/hadoop/fs/FileSystem.html#globStatus-org.apache.hadoop.fs.Path-
"""

from __future__ import annotations

import re
from pathlib import Path

from jobpipe.pipelines.file_options import absolute, is_uri

FILE_FORMATS = frozenset({"csv", "json", "xml", "parquet", "orc", "avro", "text", "binaryfile"})
"""Spark's formats, in small letters, whose paths are patterns, and which a stream writes with a log of its files."""
_SPECIAL = re.compile(r"[\\*?\[\]{}]")
_BACKSLASH = re.compile(r"\\(.)", re.DOTALL)


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
