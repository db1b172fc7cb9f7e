"""A start or end as a user gives it, which the log resolves to a position; and how much lies between."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

from jobpipe.config.types.source_types import one_time
from jobpipe.errors import ConfigError, RemoteProtocolError, short_repr
from jobpipe.store.catalog.position import MAX_NUMBER, Position

Kind = Literal["earliest", "latest", "committed", "offset", "position", "time"]
Otherwise = Literal["error", "latest"]

_WORDS = ("earliest", "latest", "committed")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS_DIGITS = 12  # of a number that is no offset but milliseconds since 1970: from 1973 on


@dataclass(frozen=True)
class Boundary:
    """One end of what is read of a topic. Reads are half-open: the start belongs to them, the end does not.

    Attributes:
        kind: ``earliest`` (the first batch that is there), ``latest`` (after the newest one), ``committed`` (where the
            subscription stands), ``offset`` (after so many batches), ``position``, or ``time`` (before the first batch
            that was published at that time or later).
        value: The offset, the position, or the time in milliseconds since 1970 UTC; None for a word.
        otherwise: Of a start by time, what holds if nothing was published since: an error, or ``latest``.
    """

    kind: Kind
    value: int | Position | None = None
    otherwise: Otherwise = "error"

    @classmethod
    def of(cls, value: str | int | datetime | Boundary, key: str) -> Boundary:
        """Return what an argument means: a word, an offset, or a time with its zone.

        Args:
            value: the argument's value.
            key: its name, for the error.

        Raises:
            ConfigError: it is anything else.
        """
        if isinstance(value, Boundary):
            return value
        if isinstance(value, str) and value in _WORDS:
            return cls(cast("Kind", value))
        if type(value) is int and 0 <= value <= MAX_NUMBER:
            return cls("offset", value)
        if isinstance(value, datetime) and value.tzinfo is not None and value >= _EPOCH:
            return cls("time", -((_EPOCH - value) // timedelta(milliseconds=1)))  # up: publish times are whole
        raise ConfigError(
            f"{key}={value!r}, expected one of {', '.join(_WORDS)}, an offset, or a datetime with its zone",
            key=key,
            value=repr(value),
        )

    @classmethod
    def read(cls, text: str, words: Collection[str]) -> Boundary:
        """Return what a person wrote: one of some words, an offset, or a time in ISO 8601 or ms since 1970.

        Blanks around it mean nothing.

        Raises:
            BadValueError: it is anything else.
        """
        text = text.strip()
        if text in words:
            return cls.of(text, "place")
        if text.isascii() and text.isdecimal() and len(text) < _MS_DIGITS:
            return cls("offset", int(text))
        return cls("time", one_time(text))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of this boundary."""
        value = self.value.to_json() if isinstance(self.value, Position) else self.value
        return {"kind": self.kind, "value": value, "otherwise": self.otherwise}

    @classmethod
    def from_json(cls, value: object) -> Boundary:
        """Return the boundary that :meth:`to_json` wrote.

        Raises:
            RemoteProtocolError: ``value`` is anything else, unknown keys included.
        """
        if not isinstance(value, Mapping) or set(value) != {"kind", "value", "otherwise"}:
            raise RemoteProtocolError("a boundary has exactly the keys kind, otherwise, value", value=short_repr(value))
        kind, inner, otherwise = value["kind"], value["value"], value["otherwise"]
        if otherwise in ("error", "latest"):
            if kind in _WORDS and inner is None:
                return cls(kind, None, otherwise)
            if kind == "position":
                return cls(kind, Position.from_json(inner), otherwise)
            if kind in ("offset", "time") and type(inner) is int and 0 <= inner <= MAX_NUMBER:
                return cls(kind, inner, otherwise)
        raise RemoteProtocolError("a boundary of no known kind", value=short_repr(value))


EARLIEST = Boundary("earliest")
LATEST = Boundary("latest")
COMMITTED = Boundary("committed")


@dataclass(frozen=True)
class ReadLimits:
    """What a range ends at; None where nothing limits it.

    Attributes:
        end: where the whole read ends.
        max_rows, max_bytes: of this range.
    """

    end: Boundary | None = None
    max_rows: int | None = None
    max_bytes: int | None = None
