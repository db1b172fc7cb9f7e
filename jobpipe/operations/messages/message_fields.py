"""A message as a frozen dataclass: its JSON form, both ways, with the check of each of its fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_type_hints,
    overload,
)

from jobpipe.errors import RemoteProtocolError, short_repr
from jobpipe.operations.messages.checked_values import (
    Base64Bytes,
    Boolean,
    BoundaryValue,
    Check,
    CheckedName,
    Integer,
    Number,
    Object,
    PositionValue,
    SecretText,
    SegmentFileName,
    SlotName,
    Text,
)
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import Boundary
from jobpipe.wire.codec import share
from jobpipe.wire.wire_messages import SharedJson

MAX_WAIT_SECONDS = 20.0
"""Of one long poll; a peer that wants to wait longer asks again."""

MAX_LEASE_SECONDS = 86_400.0
"""Of one lease; it may be renewed."""

MIN_LEASE_SECONDS = 0.001
"""One of no time at all would hold nothing, and have no end."""

MAX_HOLD_SECONDS = 366 * 86_400.0
"""That a hold may last without being moved."""

MAX_PARTITION = 2**31 - 1

C = TypeVar("C")

OMITTED = "omitted"
"""In a field's annotation, after its check: it is left out of the JSON where it has its default."""

Count = Annotated[int, Integer()]
Flag = Annotated[bool, Boolean()]
Wait = Annotated[float, Number(0.0, MAX_WAIT_SECONDS)]
Name = Annotated[str, CheckedName()]
At = Annotated[Position, PositionValue()]
Start = Annotated[Boundary, BoundaryValue()]
End = Annotated[Boundary | None, BoundaryValue()]
FileName = Annotated[str, SegmentFileName()]
SlotId = Annotated[str, SlotName()]
LogId = Annotated[str, Text(16, 16, pattern="[0-9a-f]*", words="a log's id, 16 hex digits")]
LogPlace = Annotated[
    str, Text(49, 49, pattern="[0-9a-f]{16}-[0-9a-f]{32}", words="a log's place at host servers, 16 and 32 hex digits")
]
Secret = Annotated[str, SecretText()]
Base64 = Annotated[bytes, Base64Bytes(16 * 1024 * 1024)]
BatchId = Annotated[int, Integer(-(2**63), 2**63 - 1)]
FreeText = Annotated[str, Text(4096, printable=False)]  # a user's words, such as the names of columns
SparkSchema = Annotated[str | None, Text(16 * 1024 * 1024, printable=False)]
Rows = Annotated[int | None, Integer()]
InstanceId = Annotated[str, Text(128)]
EndpointText = Annotated[str, Text(300)]  # "host:port"; who dials it parses it


def checks(kind: type[Fields]) -> dict[str, Check]:
    """Return the check of each field of a message, by its name; a field without a check does not stand in the JSON."""
    return {name: check for name, (check, _, _) in _form(kind).items()}


def _form(kind: type[Fields]) -> dict[str, tuple[Check, bool, Any]]:
    """Return of each field that stands in the JSON its check, whether its default is left out, and that default."""
    known = _known.get(kind)
    if known is None:
        hints = get_type_hints(kind, include_extras=True)
        marks = {field: getattr(hints[field.name], "__metadata__", ()) for field in fields(kind)}
        known = _known[kind] = {
            field.name: (mark[0], OMITTED in mark[1:], field.default) for field, mark in marks.items() if mark
        }
    return known


_known: dict[type[Fields], dict[str, tuple[Check, bool, Any]]] = {}


@overload
def message(cls: type[C], /) -> type[C]: ...
@overload
def message(*, kw_only: bool) -> Callable[[type[C]], type[C]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def message(cls: type[C] | None = None, /, *, kw_only: bool = False) -> type[C] | Callable[[type[C]], type[C]]:
    """Make a subclass of :class:`Fields` a frozen dataclass.

    What Python would compile for each, to show and to compare it, is in :class:`Fields`. There are a hundred messages,
    and every process of a query begins by importing them.
    """
    made = dataclass(frozen=True, kw_only=kw_only, repr=False, eq=False)
    return made if cls is None else made(cls)


@dataclass(frozen=True, repr=False, eq=False)
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
        for name, (check, _, default) in _form(cls).items():
            if name in values and (values[name] is not None or default is not None):
                taken[name] = take(check, name, values[name])
            elif default is MISSING:
                raise RemoteProtocolError(f"field {name!r} is missing, expected {check.expected}", field=name)
        return taken

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that :meth:`from_json` reads."""
        given: dict[str, Any] = {}
        for name, (check, omitted, default) in _form(type(self)).items():
            value = getattr(self, name)
            if omitted and value == default:
                continue
            given[name] = None if value is None else check.give(value)
        return given

    @property
    def blob(self) -> bytes:
        """The bytes that travel with the JSON."""
        return b""

    def __repr__(self) -> str:
        listed = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
        return f"{type(self).__qualname__}({listed})"

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))


@message
class SharedReply(Fields):
    """A reply whose JSON and bytes are made once, for many who ask the same."""

    made: SharedJson
    data: bytes

    @classmethod
    def of(cls, reply: Fields) -> Self:
        return cls(share(reply.to_json()), reply.blob)

    def to_json(self) -> dict[str, Any]:
        return self.made

    @property
    def blob(self) -> bytes:
        return self.data


@message
class EmptyReply(Fields):
    """A reply that says only that it is done."""


R = TypeVar("R", bound=Fields)


@message
class RequestFor(Fields, Generic[R]):
    """A request that is answered by an R; :mod:`jobpipe.operations.messages.calls` sends it.

    Attributes:
        op: the operation's name, as it stands in the request.
        reply: R.
    """

    op: ClassVar[str]
    reply: ClassVar[type[Fields]]

    def __init_subclass__(cls, op: str | None = None) -> None:
        super().__init_subclass__()
        if op is not None:
            cls.op = op
            (cls.reply,) = get_args(cls.__dict__["__orig_bases__"][0])  # of RequestFor[R]


@dataclass(frozen=True)
class Nested:
    """An object with fields of its own."""

    kind: type[Fields]
    expected: str = "an object"

    def take(self, value: object) -> Fields:
        return self.kind.from_json(Object().take(value))

    def give(self, value: Fields) -> dict[str, Any]:
        return value.to_json()


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
        raise RemoteProtocolError(
            f"field {name!r} is {short_repr(value)}, expected {check.expected}", field=name
        ) from error
