"""What a value from outside may be: finite, bounded, of one type.

Each check has the words that an error says of it (``expected``) and takes a JSON value: it returns what the request
keeps, or raises ValueError. A request's fields carry their check in their annotation, see :class:`Fields`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Protocol, Self, get_type_hints

from jobpipe.errors import RemoteProtocolError, shown
from jobpipe.store.boundary import Boundary
from jobpipe.store.files import write_id_of
from jobpipe.store.position import MAX_NUMBER, Position
from jobpipe.store.slots import slot_id
from registry.errors import InvalidName
from registry.names import check_name

__all__ = [
    "MAX_LEASE_SECONDS",
    "MAX_PARTITION",
    "MAX_WAIT_SECONDS",
    "At",
    "Base64",
    "Bound",
    "Check",
    "Count",
    "End",
    "Fields",
    "FileName",
    "Flag",
    "Items",
    "LogId",
    "LogPlace",
    "Name",
    "Named",
    "Number",
    "Object",
    "Place",
    "Secret",
    "SegmentFile",
    "SlotId",
    "SlotName",
    "Start",
    "Text",
    "Truth",
    "Wait",
    "Whole",
    "checks",
    "take",
]

MAX_WAIT_SECONDS = 20.0
"""Of one long poll; a peer that wants to wait longer asks again."""

MAX_LEASE_SECONDS = 86_400.0
"""Of one lease; it may be renewed."""

MAX_PARTITION = 2**31 - 1


class Check(Protocol):
    """What one field may be."""

    @property
    def expected(self) -> str:
        """The words for it in an error."""
        ...

    def take(self, value: object) -> Any:
        """Return what the request keeps of a JSON value.

        Raises:
            ValueError, JobpipeError: it is anything else.
        """
        ...


@dataclass(frozen=True)
class Whole:
    """An integer; True is none."""

    low: int = 0
    high: int = MAX_NUMBER

    @property
    def expected(self) -> str:
        return f"an integer from {self.low} to {self.high}"

    def take(self, value: object) -> int:
        if type(value) is not int or not self.low <= value <= self.high:
            raise ValueError(self.expected)
        return value


@dataclass(frozen=True)
class Number:
    """A finite number between two bounds, both included."""

    low: float
    high: float

    @property
    def expected(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"

    def take(self, value: object) -> float:
        if type(value) not in (int, float) or not self.low <= value <= self.high:  # type: ignore[operator]
            raise ValueError(self.expected)  # neither bound holds for NaN
        return float(value)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Truth:
    """True or false, and nothing that counts as either."""

    expected: str = "true or false"

    def take(self, value: object) -> bool:
        if type(value) is not bool:
            raise ValueError(self.expected)
        return value


@dataclass(frozen=True)
class Text:
    """A text of bounded length that is valid UTF-8.

    Attributes:
        longest: characters.
        shortest: characters.
        printable: no control characters, so that it may stand in a log line or a table.
        pattern: what all of it must match, and ``expected`` its words.
    """

    longest: int
    shortest: int = 0
    printable: bool = True
    pattern: str | None = None
    words: str = ""

    @property
    def expected(self) -> str:
        kind = "printable characters" if self.printable else "characters"
        return self.words or f"{self.shortest} to {self.longest} {kind}"

    def take(self, value: object) -> str:
        if not isinstance(value, str) or not self.shortest <= len(value) <= self.longest:
            raise ValueError(self.expected)
        if self.printable and not value.isprintable():
            raise ValueError(self.expected)
        if self.pattern is not None and re.fullmatch(self.pattern, value) is None:
            raise ValueError(self.expected)
        value.encode()  # a lone surrogate, which neither files nor SQLite take, is a ValueError
        return value


@dataclass(frozen=True)
class Hidden:
    """What proves a right, in at most 64 ASCII characters; no error repeats it."""

    expected: str = "at most 64 ASCII characters"

    def take(self, value: object) -> str:
        if not isinstance(value, str) or len(value) > 64 or not value.isascii():
            raise RemoteProtocolError(f"expected {self.expected}")
        return value


@dataclass(frozen=True)
class Named:
    """The name of a topic or a subscription; with ``empty`` also none."""

    empty: bool = False
    expected: str = "a name: 1 to 128 of A-Z a-z 0-9 . _ - with a letter or digit first"

    def take(self, value: object) -> str:
        if self.empty and value == "":
            return ""
        try:
            return check_name(value)  # type: ignore[arg-type]
        except InvalidName as error:
            raise ValueError(self.expected) from error


@dataclass(frozen=True)
class SegmentFile:
    """The name of a segment file, which leads nowhere else."""

    expected: str = "a segment file's name"

    def take(self, value: object) -> str:
        if not isinstance(value, str) or len(value) > 255 or write_id_of(value) is None:
            raise RemoteProtocolError(f"not a segment file's name: {shown(value)}")
        return value


@dataclass(frozen=True)
class Encoded:
    """Bytes, as base64."""

    longest: int
    expected: str = "base64"

    def take(self, value: object) -> bytes:
        if not isinstance(value, str) or len(value) > self.longest:
            raise ValueError(self.expected)
        return base64.b64decode(value, validate=True)


@dataclass(frozen=True)
class Place:
    """A position in a log."""

    expected: str = "a position"

    def take(self, value: object) -> Position:
        return Position.from_json(value)


@dataclass(frozen=True)
class Bound:
    """One end of a read."""

    expected: str = "a boundary"

    def take(self, value: object) -> Boundary:
        return Boundary.from_json(value)


@dataclass(frozen=True)
class SlotName:
    """The id of a slot."""

    expected: str = "the id of a slot"

    def take(self, value: object) -> str:
        return slot_id(value)


@dataclass(frozen=True)
class Object:
    """A JSON object; who keeps it looks into it."""

    expected: str = "an object"

    def take(self, value: object) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(self.expected)
        return value


@dataclass(frozen=True)
class Items:
    """A list of bounded length; kept as a tuple."""

    each: Check
    most: int

    @property
    def expected(self) -> str:
        return f"a list of at most {self.most}, each {self.each.expected}"

    def take(self, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > self.most:
            raise ValueError(self.expected)
        return tuple(self.each.take(item) for item in value)


Count = Annotated[int, Whole()]
Flag = Annotated[bool, Truth()]
Wait = Annotated[float, Number(0.0, MAX_WAIT_SECONDS)]
Name = Annotated[str, Named()]
At = Annotated[Position, Place()]
Start = Annotated[Boundary, Bound()]
End = Annotated[Boundary | None, Bound()]
FileName = Annotated[str, SegmentFile()]
SlotId = Annotated[str, SlotName()]
LogId = Annotated[str, Text(16, 16, pattern="[0-9a-f]*", words="a log's id, 16 hex digits")]
LogPlace = Annotated[
    str, Text(49, 49, pattern="[0-9a-f]{16}-[0-9a-f]{32}", words="a log's place at host servers, 16 and 32 hex digits")
]
Secret = Annotated[str, Hidden()]
Base64 = Annotated[bytes, Encoded(16 * 1024 * 1024)]


def checks(kind: type[Fields]) -> dict[str, Check]:
    """Return the check of each field of a request, by its name; one without a check does not lie in the JSON."""
    if kind not in _known:
        hints, names = get_type_hints(kind, include_extras=True), [field.name for field in fields(kind)]
        _known[kind] = {name: hints[name].__metadata__[0] for name in names if hasattr(hints[name], "__metadata__")}
    return _known[kind]


_known: dict[type[Fields], dict[str, Check]] = {}


@dataclass(frozen=True)
class Fields:
    """What travels with one message. Subclasses are frozen dataclasses whose fields are ``Annotated[type, check]``.

    A field with a default may be left out; one whose default is None may be null. Keys that are not known are ignored,
    so that a later minor version may add some.
    """

    @classmethod
    def from_json(cls, values: Mapping[str, object], blob: bytes = b"") -> Self:
        """Return what a peer sent, every field checked.

        Raises:
            RemoteProtocolError: a field is missing, or is not what it must be: names it, in ``fields["field"]`` too;
                or there is a blob, and this takes none.
        """
        if blob:
            raise RemoteProtocolError(f"it carries {len(blob)} bytes, and takes none", field="blob")
        return cls(**cls.checked(values))

    @classmethod
    def checked(cls, values: Mapping[str, object]) -> dict[str, Any]:
        """Return the fields' values; raises as :meth:`from_json`."""
        taken: dict[str, Any] = {}
        for name, check in checks(cls).items():
            default = cls.__dataclass_fields__[name].default
            if name in values and (values[name] is not None or default is not None):
                taken[name] = take(check, name, values[name])
            elif default is MISSING:
                raise RemoteProtocolError(f"field {name!r} is missing, expected {check.expected}", field=name)
        return taken


def take(check: Check, name: str, value: object) -> Any:
    """Return a field's value.

    Raises:
        RemoteProtocolError: it is not what it must be; names the field.
    """
    try:
        return check.take(value)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"field {name!r}: {error.message}", **{**error.fields, "field": name}) from error
    except ValueError as error:
        raise RemoteProtocolError(f"field {name!r} is {shown(value)}, expected {check.expected}", field=name) from error
