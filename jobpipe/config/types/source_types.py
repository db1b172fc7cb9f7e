"""Types of values that only options of the source have: topics, places in their logs, times.

An option is a text; JSON in it is read here, strictly: a name given twice is a mistake. A file may have a section.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobpipe.config.types.value_types import BadValueError, ValueType, plain_text

EARLIEST, LATEST = -2, -1  # as offsets, in JSON; Kafka's own
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")  # as check_name of jobpipe_registry
_NAMES = "letters, digits, . _ - (at most 128, a letter or digit first)"
_POSITION = {"epoch", "log", "n", "r"}
_MOST = 2**63 - 1


def _name(raw: object, _base: Path) -> str:
    if not isinstance(raw, str) or _NAME.fullmatch(raw) is None:
        raise BadValueError
    return raw


def _topics(raw: object, _base: Path) -> tuple[str, ...]:
    given = raw.split(",") if isinstance(raw, str) else raw if isinstance(raw, (list, tuple)) else ()  # a list of YAML
    if not all(isinstance(name, str) for name in given):
        raise BadValueError
    names = [name.strip() for name in given if name.strip()]
    if not names:
        raise BadValueError
    for name in names:
        _require_name(name)
    return tuple(sorted(set(names)))


def _require_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise BadValueError(f"names of topics, but {name!r} is not one: {_NAMES}")


def _pattern(raw: object, _base: Path) -> str:
    if not isinstance(raw, str) or not raw:
        raise BadValueError
    try:
        re.compile(raw)
    except re.error as error:
        raise BadValueError(f"a Python regular expression ({error})") from error
    return raw


def _assign(raw: object, _base: Path) -> dict[str, tuple[int, ...]]:
    found = _object(raw)
    for topic, numbers in found.items():
        _require_name(topic)
        right = isinstance(numbers, list) and numbers and all(type(n) is int and n >= 1 for n in numbers)
        if not right or len(set(numbers)) != len(numbers):
            raise BadValueError(
                f"for each topic the numbers of its partitions (parallel-1 is 1), from 1 and each once, as in "
                f'{{"orders": [1, 3]}}; {topic} has {json.dumps(numbers)}'
            )
    return {topic: tuple(sorted(numbers)) for topic, numbers in found.items()}


def one_offset(raw: object, *, ending: bool = False) -> int | dict[str, Any]:
    """Return an offset, -1 for latest, -2 (of a start) for earliest, or a position as Spark's progress shows it.

    Raises:
        BadValueError: it is anything else.
    """
    if isinstance(raw, dict) and set(raw) == _POSITION:
        return raw
    if isinstance(raw, dict) and raw and all(str(key).isdecimal() for key in raw):
        raise BadValueError(
            "one offset for a topic, not one for each partition as in Kafka: an offset counts whole batches, with all "
            'their partitions, as in {"orders": 12}'
        )
    if type(raw) is not int or not (LATEST if ending else EARLIEST) <= raw <= _MOST:
        raise BadValueError
    return raw


def one_time(raw: object) -> int:
    """Return milliseconds since 1970 UTC, from a number of them or from a text in ISO 8601 with its zone.

    Raises:
        BadValueError: it is anything else.
    """
    if isinstance(raw, dict):
        raise BadValueError('one time for a topic, as in {"orders": 1795255200000}')
    text = str(raw).strip() if isinstance(raw, int) and not isinstance(raw, bool) else plain_text(raw)
    if text.isascii() and text.isdigit():
        number = int(text) if len(text) < 20 else _MOST + 1
        if number > _MOST:
            raise BadValueError
        return number
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadValueError from None
    if when.tzinfo is None:
        raise BadValueError("a time with its zone: 2026-11-21T10:00:00Z, or 2026-11-21T11:00:00+01:00")
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    if since.days < 0:
        raise BadValueError
    return (since.days * 86_400 + since.seconds) * 1000 + -(-since.microseconds // 1000)  # up: publish times are whole


def by_topic(raw: object, one: Callable[[Any], Any]) -> dict[str, Any]:
    """Return what JSON says of each topic, read by ``one``.

    Raises:
        BadValueError: it is no object, or what it says of a topic is wrong; then the text names the topic.
    """
    found = {}
    for topic, value in _object(raw).items():
        _require_name(topic)
        try:
            found[topic] = one(value)
        except BadValueError as error:
            if str(error):
                raise
            raise BadValueError(f"another value for topic {topic} than {json.dumps(value)}") from error
    return found


def _object(raw: object) -> dict[str, Any]:
    if not isinstance(raw, (str, dict)):
        raise BadValueError
    try:
        found = raw if isinstance(raw, dict) else json.loads(raw, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadValueError):
            raise
        raise BadValueError from error
    if not isinstance(found, dict) or not found:
        raise BadValueError
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadValueError(f"each name once, but {twice!r} is given twice")
    return found


def _is_object(raw: object) -> bool:
    return isinstance(raw, dict) or (isinstance(raw, str) and raw.lstrip().startswith("{"))


def _offsets(words: tuple[str, ...], *, ending: bool) -> Callable[[object, Path], Any]:
    def parse(raw: object, _base: Path) -> str | dict[str, Any]:
        if _is_object(raw):
            try:
                return by_topic(raw, lambda value: one_offset(value, ending=ending))
            except BadValueError as error:
                special = "-1 for latest" if ending else "-2 for earliest, -1 for latest"
                more = "a batch number from 0, or " + special if "another value" in str(error) else ""
                raise BadValueError("; ".join(filter(None, (str(error), more)))) from error
        text = plain_text(raw).lower()
        if text not in words:
            raise BadValueError
        return text

    return parse


def _bound(raw: object, _base: Path) -> str:
    text = json.dumps(raw) if isinstance(raw, dict) or type(raw) is int else raw
    return plain_text(text)  # what it is, boundaryType says


def _boundary(raw: object, _base: Path) -> str:
    text = plain_text(raw).upper()
    if text not in ("TIME", "OFFSET"):
        raise BadValueError
    return text


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_TIME = "a time: milliseconds since 1970 UTC, or text such as 2026-11-21T10:00:00Z"

NAME = ValueType("name", _NAMES, _name)
TOPICS = ValueType("topics", "topic, or topic,topic", _topics, ",".join)
PATTERN = ValueType("regular expression", "a Python regular expression that must match the whole topic name", _pattern)
ASSIGN = ValueType(
    "JSON",
    'JSON such as {"orders": [1, 3]}: for each topic the numbers of its partitions, from 1 (parallel-1 is 1)',
    _assign,
    lambda value: json.dumps({topic: list(numbers) for topic, numbers in value.items()}),
)
STARTING = ValueType(
    "offsets",
    'earliest, latest, committed, or JSON such as {"orders": 12, "payments": -2} (-2 earliest, -1 latest)',
    _offsets(("earliest", "latest", "committed"), ending=False),
    _written,
)
ENDING = ValueType(
    "offsets",
    'latest, or JSON such as {"orders": 12, "payments": -1} (-1 latest)',
    _offsets(("latest",), ending=True),
    _written,
)
TIME = ValueType("time", _TIME, lambda raw, _base: one_time(plain_text(raw) if isinstance(raw, dict) else raw))
TIMES = ValueType(
    "JSON",
    'JSON such as {"orders": 1795255200000, "payments": "2026-11-21T10:00:00Z"}: a time for each topic',
    lambda raw, _base: by_topic(raw, one_time),
    _written,
)
BOUNDARY = ValueType("choice", "TIME or OFFSET", _boundary)
BOUND = ValueType("bound", "an offset or a time, as boundaryType says, or JSON with one for each topic", _bound)
