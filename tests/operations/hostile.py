"""Hostile values for the fields of the requests, generated from the requests' own definitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobpipe.operations.messages.checked_values import Boolean, Check, Items
from jobpipe.operations.messages.message_fields import Fields, checks
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import EARLIEST, Boundary

PLACE = Position("0123456789abcdef", 1, 1).to_json()
PLACED = f"{'0' * 16}-{'0' * 32}"  # of a log, at host servers
MISSING = object()


def nested(depth: int) -> Any:
    """Return lists in lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


VALUES: dict[str, Any] = {
    "missing": MISSING,
    "null": None,
    "true": True,
    "NaN": "nan",
    "infinity": "inf",
    "1e300": 1e300,
    "-1": -1,
    "0.5": 0.5,
    "2^53": 2**53,
    "2^63": 2**63,
    "2^64": 2**64,
    "-2^64": -(2**64),
    "1e4000": 10**4000,
    "empty": "",
    "10^5 characters": "x" * 100_000,
    "control characters": "a\x00\x1b[2J\r\nb",
    "right to left": "a\u202eb",
    "lone surrogate": "\ud800",
    "a path": "../../etc/passwd",
    "deep lists": nested(200),
    "a long list": [0] * 100_000,
    "wide objects": {str(number): {} for number in range(10_000)},
    "an object": {},
    "odd position": {**PLACE, "n": 2**64},
    "odd boundary": {"kind": ["offset"], "value": -1, "otherwise": {}},
}


def is_fit(check: Check, value: Any) -> bool:
    """Tell whether the check takes a value after all: some odd value is right for some field."""
    try:
        check.take(value)
    except Exception:
        return False
    return True


def fitting(check: Check) -> Any:
    """Return a value that the check takes."""
    if isinstance(check, Boolean):
        return False
    if isinstance(check, Items):
        return []
    candidates = (1, "billing", "0123456789abcdef-1.seg", "0" * 32, "0" * 16, PLACED, PLACE, EARLIEST.to_json(), "", {})
    application = {"id": "host-1-0123abcd"}
    counted = {"name": "billing", "start": PLACE, "end": PLACE, "reading": "0" * 32, "number": 0}
    report = {"position": "0/1", "behind_bytes": 0}
    marks = {"log": "0" * 16, "tail": 1, "rows": []}
    for value in (
        *candidates,
        {"arrow": "", "spark": None},
        marks,
        counted,
        report,
        application,
        "AAAAAAAAAAAAAAABAAAAAA==",
    ):
        if is_fit(check, value):
            return value
    raise AssertionError(f"no value for {check}")


def whole(kind: type[Fields]) -> dict[str, Any]:
    """Return a request in which every field is right."""
    return {name: fitting(check) for name, check in checks(kind).items()}


def bad_requests(kind: type[Fields]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (field, what is wrong, arguments): one field hostile, the others right."""
    right = whole(kind)
    for name, check in checks(kind).items():
        optional = kind.__dataclass_fields__[name].default
        for what, value in VALUES.items():
            if value is MISSING or (value is None and optional is None):
                if kind.__dataclass_fields__[name].default.__class__.__name__ == "_MISSING_TYPE":
                    yield name, what, {key: right[key] for key in right if key != name}
            elif not is_fit(check, value):
                yield name, what, {**right, name: value}


def boundary_at(n: int) -> dict[str, Any]:
    """Return a boundary by offset, as JSON."""
    return Boundary("offset", n).to_json()
