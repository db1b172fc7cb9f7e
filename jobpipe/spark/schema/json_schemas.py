"""Schemas as Spark's publishers give them: judged as plain JSON, before Spark builds types of them.

It imports the class of a user-defined type. What passes here names none; :mod:`jobpipe.arrow.ipc_validation` judges the
same schema as Arrow has it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from jobpipe.errors import UnsupportedType
from jobpipe.spark.session import spark_versions
from jobpipe.store.spool.segment import MAX_DEPTH, MAX_FIELDS

MAX_TEXT = 8 * 1024 * 1024  # characters of a schema in JSON
SHOWN = 100  # characters of a schema's part in an error
_NUMBERS = r"\(\s*-?\d{1,9}\s*(,\s*-?\d{1,9}\s*)?\)"
_CRS = r"\(\s*[\w:-]{1,64}\s*(,\s*\w{1,64}\s*)?\)"
_DAY_TIME = r"(day|hour|minute|second)"
_NAME = re.compile(
    "void|boolean|byte|short|integer|long|float|double|date|timestamp|timestamp_ntz|binary|variant"
    rf"|(decimal|time|char|varchar)({_NUMBERS})?|(geometry|geography)({_CRS})?"
    rf"|interval {_DAY_TIME}( to {_DAY_TIME})?|string(\s+collate\s+\w{{1,64}})?"
)


def parse_spark_schema(topic: str, text: str) -> StructType:
    """Return the Spark schema that a publisher gave as JSON.

    Raises:
        UnsupportedType: a column has a user-defined type, a type that Spark does not know, or is nested too deeply; or
            the text is no schema. Nothing of it was imported.
    """
    if len(text) > MAX_TEXT:
        raise _refused(topic, f"its Spark schema has {len(text)} characters; at most {MAX_TEXT} are read")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(topic, f"its Spark schema is not JSON ({error!s:.{SHOWN}})") from None
    if not isinstance(value, dict) or value.get("type") != "struct":
        raise _refused(topic, "its Spark schema is not a struct")
    _check(topic, value)
    try:
        return StructType.fromJson(value)
    except (PySparkException, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _refused(topic, f"Spark does not take its schema ({error!s:.{SHOWN}})") from error


def _check(topic: str, schema: dict[str, Any]) -> None:
    """See that all types in a schema's JSON are Spark's own, and that it has the shape that Spark expects."""
    left: list[tuple[str, Any, int]] = [("", schema, 0)]
    seen = 0
    while left:
        path, kind, depth = left.pop()
        seen += 1
        if depth > MAX_DEPTH or seen > MAX_FIELDS:
            raise _refused(
                topic, f"{_column(path)} is nested deeper than {MAX_DEPTH}, or one of more than {MAX_FIELDS} fields"
            )
        if isinstance(kind, str):
            if _NAME.fullmatch(kind) is None:
                raise _refused(topic, f"{_column(path)} has the type {kind!r:.{SHOWN}}, which no reader knows")
            if re.split(r"\W", kind, maxsplit=1)[0] in spark_versions.UNKNOWN_TYPES:
                raise _refused(
                    topic, f"{_column(path)} has the type {kind!r:.{SHOWN}}, which began with a later version of Spark"
                )
            continue
        named = kind.get("type") if isinstance(kind, dict) else None
        if named == "udt":
            raise _refused(
                topic,
                f"{_column(path)} has a user-defined type, whose class would run here; publish what it is made of",
            )
        if named == "struct" and isinstance(kind.get("fields"), list):
            for field in kind["fields"]:
                if not _is_field(field):
                    raise _refused(topic, f"{_column(path)} has a malformed field: {field!r:.{SHOWN}}")
                name = field["name"][:SHOWN]  # names may be long, and paths are for errors only
                left.append((f"{path}.{name}" if path else name, field["type"], depth + 1))
        elif named == "array" and isinstance(kind.get("containsNull"), bool):
            left.append((f"{path}[]", kind.get("elementType"), depth + 1))
        elif named == "map" and isinstance(kind.get("valueContainsNull"), bool):
            left.append((f"{path}.key", kind.get("keyType"), depth + 1))
            left.append((f"{path}.value", kind.get("valueType"), depth + 1))
        else:
            raise _refused(topic, f"{_column(path)} has a malformed type: {kind!r:.{SHOWN}}")


def _is_field(field: Any) -> bool:
    return (
        isinstance(field, dict)
        and isinstance(field.get("name"), str)
        and "type" in field
        and isinstance(field.get("nullable", True), bool)
        and isinstance(field.get("metadata", {}), dict | None)
    )


def _column(path: str) -> str:
    return f"column {path!r:.{SHOWN}}" if path else "it"


def _refused(topic: str, why: str) -> UnsupportedType:
    return UnsupportedType(f"topic {topic!r}: what its publisher says of its columns is refused: {why}", topic=topic)
