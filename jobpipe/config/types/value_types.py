"""Types of configuration values: text to value, value to text, and what to say when a value does not fit.

Each type reads what YAML gives (numbers, booleans, null, text) and what options and the environment give (text only).
For every value ``v`` of a type, ``parse(format(v)) == v``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobpipe.config.types.secrets import EXPECTED, Secret, parse_secret


class BadValueError(ValueError):
    """A value does not fit its type; the text, if any, says more than ``ValueType.expected``."""


class NoHomeError(BadValueError):
    """A path starts in the user's home, and there is none; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a path without ~: {reason}")
        self.reason = reason


@dataclass(frozen=True)
class ValueType:
    """How the values of a key are read and written.

    ``parse`` takes the raw value and the folder that relative paths start from, and raises :class:`BadValueError`.
    """

    name: str
    expected: str
    parse: Callable[[object, Path], Any]
    format: Callable[[Any], str] = str
    nullable: bool = False


DURATION_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
DURATION_MAX = 3650 * 86400.0  # ten years: still accepted as a time-out by sockets, locks and event loops
SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
SIZE_MAX = 2**60
WHOLE_MAX = 2**63 - 1
MOST_PARTS = 100  # of a value that is a list
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)


def duration(minimum: float = 0.0) -> ValueType:
    """Return the type of times, in seconds as a float, not below ``minimum``."""

    def parse(raw: object, _base: Path) -> float:
        number, unit = _split(raw)
        seconds = _scaled_seconds(number, unit)
        if not minimum <= seconds <= DURATION_MAX:
            raise BadValueError
        return seconds

    least = f"at least {_format_duration(minimum)}, " if minimum else ""
    return ValueType(
        "duration",
        f"a time, {least}such as 500ms, 60s, 10min or 24h (a plain number is seconds)",
        parse,
        _format_duration,
    )


def size(minimum: int = 0) -> ValueType:
    """Return the type of sizes, in whole bytes, not below ``minimum``."""

    def parse(raw: object, _base: Path) -> int:
        number, unit = _split(raw)
        factor = SIZE_UNITS.get(unit.lower())
        if factor is None:
            raise BadValueError
        count = int(number) * factor if number.isdigit() else float(number) * factor
        if not minimum <= count <= SIZE_MAX or count != int(count):
            raise BadValueError
        return int(count)

    least = f"at least {_format_size(minimum)}, " if minimum else ""
    return ValueType(
        "size", f"a size, {least}such as 64MiB, 8GiB or 1GB (a plain number is bytes)", parse, _format_size
    )


def whole(minimum: int, maximum: int = WHOLE_MAX) -> ValueType:
    """Return the type of whole numbers from ``minimum`` to ``maximum``."""

    def parse(raw: object, _base: Path) -> int:
        number = plain_whole(raw)
        if not minimum <= number <= maximum:
            raise BadValueError
        return number

    span = f"of at least {minimum}" if maximum == WHOLE_MAX else f"from {minimum} to {maximum}"
    return ValueType("number", f"a whole number {span}", parse)


def choice(*values: str) -> ValueType:
    """Return the type of one word out of ``values``."""
    listed = " or ".join([", ".join(values[:-1]), values[-1]] if len(values) > 1 else values)

    def parse(raw: object, _base: Path) -> str:
        text = plain_text(raw)
        if text not in values:
            raise BadValueError
        return text

    return ValueType("choice", listed, parse)


def optional(inner: ValueType) -> ValueType:
    """Return ``inner`` with null (also the words ``null`` and the empty text) allowed and read as None."""

    def parse(raw: object, base: Path) -> Any:
        if raw is None or (isinstance(raw, str) and raw.strip().lower() in ("", "null")):
            return None
        return inner.parse(raw, base)

    def write(value: Any) -> str:
        return "null" if value is None else inner.format(value)

    return ValueType(inner.name, f"{inner.expected}, or null", parse, write, nullable=True)


def _parse_boolean(raw: object, _base: Path) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.strip().lower() in ("true", "false"):
        return raw.strip().lower() == "true"
    if isinstance(raw, str) and raw.strip().lower() in ("yes", "no", "on", "off", "y", "n"):
        raise BadValueError("true or false; yes, no, on and off are texts in YAML 1.2")
    raise BadValueError


def _parse_line(raw: object, _base: Path) -> str:
    text = plain_text(raw)
    if not text.isprintable():
        raise BadValueError
    return text


def _parse_path(raw: object, base: Path) -> Path:
    text = os.fspath(raw) if isinstance(raw, os.PathLike) else raw
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise BadValueError
    return Path(os.path.abspath(base / expand_home(text)))


def expand_home(text: str) -> Path:
    """Return a path with the folder that a ``~`` at its beginning stands for.

    Raises:
        BadValueError: there is no such user; NoHomeError: this user has no home folder that can be used.
    """
    user = Path(text).parts[0].removeprefix("~") if text.startswith("~") else ""
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        if user:
            raise BadValueError(f"a path: there is no user {user!r}") from error
        raise NoHomeError(
            f"user {os.getuid()} has no home folder: HOME is not set, and the passwd database does not have the user"
        ) from error
    if text.startswith("~") and not path.is_absolute():
        raise NoHomeError(f"HOME is {os.environ.get('HOME')!r}, which is not absolute")
    return path


def _parse_secret(raw: object, base: Path) -> Secret:
    if isinstance(raw, Secret):
        return raw
    found = parse_secret(raw, base) if isinstance(raw, str) else None
    if found is None:
        raise BadValueError
    return found


BOOLEAN = ValueType("boolean", "true or false", _parse_boolean, lambda value: "true" if value else "false")
PATH = ValueType("path", "a path; ~ is the home folder", _parse_path)
TEXT = ValueType("name", "a text on one line", _parse_line)
SECRET = ValueType("secret", EXPECTED, _parse_secret, lambda value: str(value.reference))
"""Of passwords and the like; a key of this type is defined with ``secret=True``. A literal secret is refused."""


def plain_text(raw: object) -> str:
    """Return a text that is not empty, without blanks around it."""
    if not isinstance(raw, str) or not raw.strip():
        raise BadValueError
    return raw.strip()


def text_of_parts(raw: object) -> str:
    """Return a text with commas between its parts; they may come as a list of texts, which YAML has."""
    if not isinstance(raw, (list, tuple)):
        return plain_text(raw)
    if not 1 <= len(raw) <= MOST_PARTS:
        raise BadValueError
    return ",".join(plain_text(part) for part in raw)


def plain_whole(raw: object) -> int:
    """Return a whole number not below zero if it comes as text."""
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and len(raw) <= 20 and raw.strip().isascii() and raw.strip().isdigit():
        return int(raw)
    raise BadValueError


def _split(raw: object) -> tuple[str, str]:
    """Return number and unit, both as text, of a duration or size."""
    if isinstance(raw, bool):
        raise BadValueError
    if isinstance(raw, (int, float)):
        if not 0 <= raw <= SIZE_MAX:  # NaN fails here too
            raise BadValueError
        return repr(raw), ""
    match = _NUMBER.fullmatch(plain_text(raw)) if isinstance(raw, str) and len(raw) <= 40 else None
    if match is None:
        raise BadValueError
    return match[1], match[2]


def _scaled_seconds(number: str, unit: str) -> float:
    if unit == "ms":
        return float(number) / 1000  # a division is exact where a multiplication by 0.001 is not
    factor = DURATION_UNITS.get(unit) if unit else 1.0
    if factor is None:
        raise BadValueError
    return float(number) * factor


def _format_duration(seconds: float) -> str:
    """Return the shortest exact text: 600.0 is ``10min``, 86400.0 is ``24h``, 0.5 is ``500ms``."""
    if seconds == 0:
        return "0s"
    if seconds % 3600 == 0:
        return f"{int(seconds // 3600)}h"
    if seconds % 60 == 0 and seconds > 60:
        return f"{int(seconds // 60)}min"
    if seconds == int(seconds):
        return f"{int(seconds)}s"
    if round(seconds * 1000) / 1000 == seconds and seconds < 1:
        return f"{round(seconds * 1000)}ms"
    return f"{seconds!r}s"


def _format_size(count: int) -> str:
    """Return the shortest exact text in binary or decimal units."""
    for unit in ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "KB"):
        factor = SIZE_UNITS[unit.lower()]
        if count and count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)
