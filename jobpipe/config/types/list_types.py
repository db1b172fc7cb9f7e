"""Types of values that are lists: in YAML a list, or, as everywhere, a text with commas between the members."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobpipe.config.types.value_types import MOST_PARTS, PATH, BadValueError, ValueType, plain_text

_WRITTEN = ", as a list or with commas between them"
_MOST_NAME = 500  # characters of a column, with its topic and its field
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?", re.ASCII)


def _listed(name: str, expected: str, member: Callable[[str, Path], Any]) -> ValueType:
    def parse(raw: object, base: Path) -> tuple[Any, ...]:
        parts = list(raw) if isinstance(raw, (list, tuple)) else plain_text(raw).split(",")
        if not 1 <= len(parts) <= MOST_PARTS:
            raise BadValueError
        return tuple(member(plain_text(str(part) if isinstance(part, Path) else part), base) for part in parts)

    return ValueType(name, expected, parse, lambda value: ",".join(map(str, value)))


def _path(text: str, base: Path) -> Path:
    if "," in text:
        raise BadValueError
    found: Path = PATH.parse(text, base)
    return found


def _variable(text: str, _base: Path) -> str:
    if _VARIABLE.fullmatch(text) is None:
        raise BadValueError
    return text


def _column(text: str, _base: Path) -> str:
    if not text or len(text) > _MOST_NAME or not text.isprintable() or "," in text:
        raise BadValueError
    return text


PATHS = _listed("paths", f"one or more paths without commas{_WRITTEN}; ~ is the home folder", _path)
VARIABLES = _listed(
    "variables", f"one or more names of environment variables, which may end with *{_WRITTEN}", _variable
)
COLUMNS = _listed("columns", f"one or more names of columns without commas{_WRITTEN}", _column)
