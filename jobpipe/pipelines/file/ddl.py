"""Columns as SQL declares them, ``id BIGINT, tags ARRAY<STRING>``: what Spark will surely not take, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator

_NAMES = """
    array bigint binary boolean byte char character date dec decimal double float geography geometry int integer
    interval long map numeric real short smallint string struct time timestamp timestamp_ltz timestamp_ntz tinyint
    varchar variant void
"""
TYPES = frozenset(_NAMES.split())
_COLUMN = re.compile(r"\s*(?P<name>`(?:[^`]|``)+`|\w+)(?:\s*:\s*|\s+)(?P<type>\w+)\s*(?P<rest>.*)", re.DOTALL)
_NESTED = re.compile(r"<(.*)>", re.DOTALL)
_SKIPPED = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")  # names and comments in quotes


def unknown_types(columns: str) -> Iterator[str]:
    """Yield each name that stands where a type must stand, and is none; what has another form is left to Spark.

    >>> list(unknown_types("id BIGINT, name STRNG, tags ARRAY<INTT>, `a, b` STRUCT<x: DOUBBLE>"))
    ['STRNG', 'INTT', 'DOUBBLE']
    """
    for column in _split(columns):
        if (found := _COLUMN.match(column)) is not None:
            yield from _unknown(f"{found['type']} {found['rest']}")


def _unknown(text: str) -> Iterator[str]:
    """Yield the unknown names of a type, and of those inside it."""
    word = re.match(r"\s*(\w+)", text)
    if word is None:
        return
    kind = word[1].lower()
    if kind not in TYPES:
        yield word[1]
    elif kind in ("array", "map", "struct") and (inside := _NESTED.search(text)) is not None:
        if kind == "struct":
            yield from unknown_types(inside[1])
        else:
            for each in _split(inside[1]):
                yield from _unknown(each)


def _split(text: str) -> Iterator[str]:
    """Yield the parts between commas that are in no brackets and no quotes."""
    depth, start = 0, 0
    plain = _SKIPPED.sub(lambda quoted: "_" * len(quoted[0]), text)
    for place, letter in enumerate(plain):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]
