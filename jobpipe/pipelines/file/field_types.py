"""Types of values for the models of files and plug-ins: those of the configuration, told in the same words.

Each is a type for a field of a pydantic model. It carries what a value must look like, for messages and the schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args
from zoneinfo import available_timezones

from pydantic import BaseModel, BeforeValidator, PlainSerializer, SecretBytes, SecretStr, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from jobpipe.config.definitions.key_names import by_loose_name, suggest
from jobpipe.config.types.secrets import Secret
from jobpipe.config.types.source_types import NAME, PATTERN
from jobpipe.config.types.value_types import BOOLEAN, SECRET, BadValueError, ValueType, duration, whole
from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.secret_keys import holds_secret, is_secret
from jobpipe.pipelines.file.time_zones import time_zone
from jobpipe_registry.names import JOB_NAME

SPARK_JOBPIPE = "spark.jobpipe."  # before keys of the configuration among Spark's
_PREFIXES = ("spark", "kafka", "jobpipe")  # of keys that have dots
EXPECTED = "x-expected"  # in the schema of a value: what it must look like; its description says what it means
FOLDER = "folder"  # in the context of a validation: where relative paths start
ENCRYPTED = "enc:"  # before a secret that the file itself has, encrypted
_URL = re.compile(r"(jdbc:)?[A-Za-z][A-Za-z0-9+.-]*:(//|oracle:)|\w+=[^;\s]*;\w+=")  # or a connection string
_OBJECT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_COLUMN_MOST = 1000


def unlike(what: str) -> PydanticCustomError:
    """Return the error of a value that is not what was expected, a phrase."""
    return PydanticCustomError("expected", "{expected}", {"expected": what})


def wrong_key(what: str, remedy: str) -> PydanticCustomError:
    """Return the error of a key that may not stand there."""
    return PydanticCustomError("wrong_key", "{what}; {remedy}", {"what": what, "remedy": remedy})


def expected(phrase: str, read: Callable[[Any, Path], Any], schema: dict[str, Any]) -> Any:
    """Return the annotations of a type: ``read`` makes the value, or raises ValueError, at best with another phrase."""

    def validate(raw: Any, info: ValidationInfo) -> Any:
        folder = (info.context or {}).get(FOLDER)
        try:
            return read(raw, folder if folder is not None else Path.cwd())
        except PydanticCustomError:
            raise
        except (ValueError, TypeError) as error:
            better = str(error) if isinstance(error, BadValueError) else ""
            raise unlike(better or phrase) from error

    return BeforeValidator(validate), WithJsonSchema({**schema, "description": phrase, EXPECTED: phrase})


def of_kind(kind: ValueType) -> Any:
    """Return the annotations of a type for values of one of the configuration's kinds."""
    types = {"boolean": "boolean", "number": "integer"}.get(kind.name)
    schema: dict[str, Any] = {"type": [types, "string"] if types else ["string", "number"]}
    if kind.name in ("columns", "names", "topics"):
        schema = {"type": ["string", "array"], "items": {"type": "string"}}
    elif kind.name == "JSON" or kind.name == "offsets":
        schema = {"type": ["string", "object"]}
    elif kind.name == "bound":
        schema = {"type": ["string", "number", "object"]}
    if kind.nullable:
        schema["type"] = [*schema["type"], "null"]

    return expected(kind.expected, kind.parse, schema)


def _matching(pattern: re.Pattern[str], phrase: str) -> Any:
    def read(raw: Any, _folder: Path) -> str:
        if not isinstance(raw, str) or pattern.fullmatch(raw) is None:
            raise ValueError
        return raw

    return expected(phrase, read, {"type": "string", "pattern": f"^{pattern.pattern}$"})


def _job_name(raw: Any, _folder: Path) -> str:
    if isinstance(raw, str) and JOB_NAME.fullmatch(raw) is None:
        proposed = re.sub(r"[^a-z0-9_-]+", "-", raw.lower()).strip("-_")[:40].rstrip("-_")
        raise BadValueError(f"{_JOB_NAMES}, such as {proposed}" if proposed else "")
    if not isinstance(raw, str):
        raise TypeError
    return raw


def _text(raw: Any, _folder: Path) -> str:
    if not isinstance(raw, str) or not raw.strip() or "\0" in raw:
        raise ValueError
    _refuse_secret_in_url(raw)
    return raw


def _columns(raw: Any, _folder: Path) -> tuple[str, ...]:
    names = [part.strip() for part in raw.split(",")] if isinstance(raw, str) else raw
    if not isinstance(names, (list, tuple)) or not 0 < len(names) <= _COLUMN_MOST:
        raise ValueError
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ValueError
    return tuple(names)


@dataclass(frozen=True)
class _Free:
    """A value with its key."""

    key: str
    raw: Any


def whole_key(key: str, section: dict[Any, Any]) -> str:
    """Return the key that the first value in a section would have without it.

    >>> whole_key("spark", {"sql": {"ansi.enabled": True}})
    'spark.sql.ansi.enabled'
    """
    name, inside = next(iter(section.items()))
    return whole_key(f"{key}.{name}", inside) if isinstance(inside, dict) and inside else f"{key}.{name}"


def _free_text(free: _Free, folder: Path) -> str:
    """Return a value as the text that Spark takes."""
    if isinstance(free.raw, dict) and free.raw:
        remedy = f"write each key whole, as in {whole_key(free.key, free.raw)}: ..."
        if free.key.partition(".")[0] not in _PREFIXES:  # a source of Spark's may take JSON, and passes over others
            remedy = f"write it as text: {free.key}: {json.dumps(free.raw)!r}"
        raise wrong_key("it is a section, and no key here has one", remedy)
    text = _plain_text(free.raw, folder)
    _refuse_secret(free, folder)
    return text


def _argument(free: _Free, folder: Path) -> Any:
    """Return the value of an argument of the user's function."""
    value = _plain(free.raw, folder)
    _refuse_secret(free, folder)
    return str(value) if is_secret(free.key) and not _is_flag(value) else value


def _parameter(free: _Free, folder: Path) -> Any:
    value = _plain(free.raw, folder)
    _refuse_secret(free, folder)
    return value


def _arguments(raw: Any, _folder: Path) -> dict[str, _Free]:
    if not isinstance(raw, dict):
        raise TypeError
    return {str(key): _Free(str(key), value) for key, value in raw.items()}


def _spark_text(free: _Free, folder: Path) -> str:
    """Return the value of a key of Spark's; those of jobpipe below ``spark.jobpipe.`` are checked."""
    key, text = free.key, _free_text(free, folder)
    if by_loose_name(key) is not None:
        raise wrong_key("it is a key of jobpipe's own", f"write it as {SPARK_JOBPIPE}{key.removeprefix('jobpipe.')}")
    if not key.startswith("spark."):
        remedy = f"write spark.{key}, or spark.hadoop.{key} if it is Hadoop's"
        raise wrong_key("Spark takes keys that begin with spark.", remedy)
    if key.startswith(SPARK_JOBPIPE):
        short = key.removeprefix("spark.")
        about = by_loose_name(short)
        if about is None:
            raise wrong_key("there is no such key", suggest(short, lambda each: each.spark))
        if about.short == "home" or about.short.startswith("registerserver."):
            where = f"set it where you start the pipeline: in jobpipe.yaml, or as {about.environment}"
            raise wrong_key("it says where all jobs of the pipeline meet, so no job has its own", where)
        try:
            about.parse(text)
        except BadValueError as error:
            raise BadValueError(str(error) or about.expected) from error
    return text


def secret_or_none(text: str, folder: Path) -> Secret | None:
    """Return the secret that a text refers to, None if it is no reference."""
    try:
        found = SECRET.parse(text, folder)
    except BadValueError:
        return None
    return found if isinstance(found, Secret) else None


def _is_flag(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _refuse_secret(free: _Free, folder: Path) -> None:
    """Refuse a secret in clear text, whether the key tells it or the value."""
    if is_secret(free.key) and not _is_flag(free.raw) and secret_or_none(str(free.raw), folder) is None:
        raise BadValueError(SECRET.expected)
    if isinstance(free.raw, str) and holds_secret(free.raw):
        raise wrong_key(
            "there is a password, token or secret in it",
            "take it out, and give a reference under the key for it; or encrypt the whole value with `jobpipe config "
            "encrypt`",
        )


def _refuse_secret_in_url(text: str) -> None:
    if _URL.match(text) and holds_secret(text):
        what = "there is a password, token or secret in it"
        raise wrong_key(what, "take it out, and give env:NAME, file:PATH or enc:... under the key for it")


def secrets_in_clear(model: type[BaseModel], given: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield the names of options of a plug-in that are secrets, by name or type, or hold one, and are in clear text."""
    for name, field in model.model_fields.items():
        key = field.validation_alias if isinstance(field.validation_alias, str) else name
        value = given.get(key)
        if isinstance(value, (dict, list)) or _is_flag(value) or value == "":
            continue
        secret = is_secret(key) or any(kind in (SecretStr, SecretBytes) for kind in _types(field.annotation))
        if (secret and secret_or_none(str(value), folder) is None) or (
            isinstance(value, str) and _URL.match(value) and holds_secret(value)
        ):
            yield key


def _types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _types(inner)


def revealed(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return options with their secrets, those of secret keys and all ``enc:``; where a job runs, and no sooner.

    Raises:
        ConfigError: there is no such secret.
    """
    found = dict(options)
    for key, value in options.items():
        if is_secret(key) or str(value).startswith(ENCRYPTED):
            secret = secret_or_none(str(value), folder)
            found[key] = value if secret is None else secret.reveal()
    return found


def _ratio(raw: Any, _folder: Path) -> float:
    if isinstance(raw, bool) or not 0 <= float(raw) <= 1:
        raise ValueError
    return float(raw)


def _zone(raw: Any, _folder: Path) -> str:
    if not isinstance(raw, str) or not raw:
        raise ValueError
    try:
        time_zone(raw)
    except ConfigError as error:
        if available_timezones():
            raise ValueError from error
        raise wrong_key("this host has no time zone files", "pip install tzdata, or give UTC") from error
    return raw


_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_DAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_CRON: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)


def _crontab(raw: Any, _folder: Path) -> str:
    fields = raw.split() if isinstance(raw, str) else []
    if len(fields) != len(_CRON):
        raise BadValueError("five fields: minute, hour, day of the month, month, day of the week, as in 0 2 * * *")
    for field, (name, low, high, words) in zip(fields, _CRON, strict=True):
        for part in field.split(","):
            _cron_part(part, name, low, high, words)
    return " ".join(fields)


def _cron_part(part: str, name: str, low: int, high: int, words: dict[str, int]) -> None:
    span, slash, step = part.partition("/")
    first, dash, last = span.partition("-")
    wrong = BadValueError(f"{low} to {high} as the {name}, *, a range such as {low}-{high}, or a step such as */2")
    if slash and not (step.isascii() and step.isdigit() and 0 < int(step[:4]) <= high):
        raise wrong
    if span == "*":
        return
    bounds = [words.get(end.lower(), end) for end in ([first, last] if dash else [first])]
    if name == "day of the month" and bounds == ["L"]:
        return
    numbers = [int(str(end)[:4]) if str(end).isascii() and str(end).isdigit() else -1 for end in bounds]
    if not all(low <= number <= high for number in numbers) or numbers != sorted(numbers):
        raise wrong


def _plain(raw: Any, _folder: Path) -> Any:
    if isinstance(raw, (dict, list)):
        raise TypeError
    return raw


def _plain_text(raw: Any, folder: Path) -> str:
    value = _plain(raw, folder)
    if value is None:
        raise ValueError
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain_text_without_secret(raw: Any, folder: Path) -> str:
    text = _plain_text(raw, folder)
    _refuse_secret_in_url(text)
    return text


Text = Annotated[str, *expected("a text", _text, {"type": "string", "minLength": 1})]
Plain = Annotated[Any, *expected("a plain value", _plain, {"type": ["string", "number", "boolean", "null"]})]
PlainText = Annotated[
    str, *expected("a plain value", _plain_text_without_secret, {"type": ["string", "number", "boolean"]})
]
Flag = Annotated[bool, *of_kind(BOOLEAN)]
Count = Annotated[int, *of_kind(whole(1))]
Duration = Annotated[float, *of_kind(duration())]
Ratio = Annotated[float, *expected("a number from 0 to 1", _ratio, {"type": ["number", "string"]})]
_JOB_NAMES = "letters, digits, _ - (at most 40, a letter or digit first); no dot"
JobName = Annotated[str, *expected(_JOB_NAMES, _job_name, {"type": "string", "pattern": f"^{JOB_NAME.pattern}$"})]
TopicName = Annotated[str, *of_kind(NAME)]
ObjectName = Annotated[str, *_matching(_OBJECT, "module:name, as in flights.delays:daily_delays")]
LibraryPattern = Annotated[
    str,
    *_matching(
        re.compile(r"(?!/)(?!.*\.\.)[^\x00]+(\.py|/\*\*)"),
        "a Python file such as jobs/own.py, or a folder such as jobs/**, below the folder of this file",
    ),
]
Columns = Annotated[
    tuple[str, ...],
    *expected(
        "names of columns: a list, or a text separated by commas; each name once",
        _columns,
        {"type": ["string", "array"], "items": {"type": "string"}},
    ),
]
_FREE_SCHEMA = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}
_FREE = Annotated[str, *expected("a plain value", _free_text, {})]
_SPARK = Annotated[str, *expected("a plain value", _spark_text, {})]
_PARAMETER = Annotated[Any, *expected("a plain value", _parameter, {})]
_ARGUMENT = Annotated[Any, *expected("a plain value", _argument, {})]
Arguments = Annotated[dict[str, _ARGUMENT], *expected("a section with plain values", _arguments, _FREE_SCHEMA)]
Parameters = Annotated[
    dict[str, _PARAMETER],
    *expected(
        "a section with keys",
        _arguments,
        {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
    ),
]
PlainMap = Annotated[dict[str, _FREE], *expected("a section with plain values", _arguments, _FREE_SCHEMA)]
SparkKeys = Annotated[dict[str, _SPARK], *expected("a section with Spark's keys", _arguments, _FREE_SCHEMA)]
RegularExpression = Annotated[str, *expected("a Python regular expression", PATTERN.parse, {"type": "string"})]
TimeZone = Annotated[str, *expected("a time zone such as Europe/Berlin or UTC", _zone, {"type": "string"})]
Crontab = Annotated[str, *expected("five fields, as in 0 2 * * *", _crontab, {"type": "string"})]
SecretReference = Annotated[
    Secret,
    *expected(SECRET.expected, SECRET.parse, {"type": "string"}),
    PlainSerializer(lambda secret: secret.reference),
]
