"""What a value from outside may be: finite, bounded, of one type.

Each check has the words that an error says of it (``expected``), takes a JSON value (``take``: it returns what the
dataclass keeps, or raises ValueError), and gives the JSON value of what is kept (``give``). The fields of requests and
replies carry their check in their annotation, see :class:`jobpipe.operations.messages.message_fields.Fields`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from jobpipe.errors import RemoteProtocolError, short_repr
from jobpipe.store.catalog.position import MAX_NUMBER, Position
from jobpipe.store.reading.boundary import Boundary
from jobpipe.store.spool.segment_index import PACKED_CHUNK, Chunk
from jobpipe.store.spool.spool_files import write_id_of
from jobpipe.wire.frames import DATA_LIMIT
from jobpipe_registry.names import check_name
from jobpipe_registry.registry_errors import InvalidName

MAX_CHUNKS = 65_536
"""Of one read: 16 GiB."""
MAX_OFFSET = 2**62


class Check(Protocol):
    """What one field may be."""

    @property
    def expected(self) -> str:
        """The words for it in an error."""
        ...

    def take(self, value: object) -> Any:
        """Return what the dataclass keeps of a JSON value.

        Raises:
            ValueError, JobpipeError: it is anything else.
        """
        ...

    def give(self, value: Any) -> Any:
        """Return the JSON value of what is kept; :meth:`take` returns the same of it."""
        ...


class PlainValue:
    """A check whose values stand in the JSON as they are kept."""

    def give(self, value: Any) -> Any:
        return value


@dataclass(frozen=True)
class Integer(PlainValue):
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
class Number(PlainValue):
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
class Boolean(PlainValue):
    """True or false, and nothing that counts as either."""

    expected: str = "true or false"

    def take(self, value: object) -> bool:
        if type(value) is not bool:
            raise ValueError(self.expected)
        return value


@dataclass(frozen=True)
class Text(PlainValue):
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
class SecretText(PlainValue):
    """What proves a right, in at most 64 ASCII characters; no error repeats it."""

    shortest: int = 0

    @property
    def expected(self) -> str:
        return f"{self.shortest} to 64 ASCII characters" if self.shortest else "at most 64 ASCII characters"

    def take(self, value: object) -> str:
        if not isinstance(value, str) or not self.shortest <= len(value) <= 64 or not value.isascii():
            raise RemoteProtocolError(f"expected {self.expected}")
        return value


@dataclass(frozen=True)
class CheckedName(PlainValue):
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
class SegmentFileName(PlainValue):
    """The name of a segment file, which leads nowhere else."""

    expected: str = "a segment file's name"

    def take(self, value: object) -> str:
        if not isinstance(value, str) or len(value) > 255 or write_id_of(value) is None:
            raise RemoteProtocolError(f"not a segment file's name: {short_repr(value)}")
        return value


@dataclass(frozen=True)
class Base64Bytes:
    """Bytes, as base64."""

    longest: int
    expected: str = "base64"

    def take(self, value: object) -> bytes:
        if not isinstance(value, str) or len(value) > self.longest:
            raise ValueError(self.expected)
        return base64.b64decode(value, validate=True)

    def give(self, value: bytes) -> str:
        return base64.b64encode(value).decode("ascii")


@dataclass(frozen=True)
class PositionValue:
    """A position in a log."""

    expected: str = "a position"

    def take(self, value: object) -> Position:
        return Position.from_json(value)

    def give(self, value: Position) -> dict[str, Any]:
        return value.to_json()


@dataclass(frozen=True)
class BoundaryValue:
    """One end of a read."""

    expected: str = "a boundary"

    def take(self, value: object) -> Boundary:
        return Boundary.from_json(value)

    def give(self, value: Boundary) -> dict[str, Any]:
        return value.to_json()


@dataclass(frozen=True)
class SlotName(PlainValue):
    """The id of a slot."""

    expected: str = "the id of a slot"

    def take(self, value: object) -> str:
        from jobpipe.store.reading.slots import slot_id  # loads SQLite, which a worker has no use for

        return slot_id(value)


@dataclass(frozen=True)
class Object(PlainValue):
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

    def give(self, value: tuple[Any, ...]) -> list[Any]:
        return [self.each.give(item) for item in value]


@dataclass(frozen=True)
class OrNull:
    """What may be null too, inside of another value; a field's default says that of a field."""

    check: Check

    @property
    def expected(self) -> str:
        return f"{self.check.expected}, or null"

    def take(self, value: object) -> Any:
        return None if value is None else self.check.take(value)

    def give(self, value: Any) -> Any:
        return None if value is None else self.check.give(value)


@dataclass(frozen=True)
class Entries:
    """An object of bounded length, whose keys are no fields but, say, the names of hosts; kept as a dict."""

    each: Check
    most: int

    @property
    def expected(self) -> str:
        return f"an object of at most {self.most} entries, each {self.each.expected}"

    def take(self, value: object) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > self.most:
            raise ValueError(self.expected)
        return {name: self.each.take(each) for name, each in value.items()}

    def give(self, value: dict[str, Any]) -> dict[str, Any]:
        return {name: self.each.give(each) for name, each in value.items()}


@dataclass(frozen=True)
class PackedChunks:
    """Chunks of a segment: offset, length and CRC-32 of each, packed, as base64."""

    expected: str = f"1 to {MAX_CHUNKS} chunks of a segment, packed, as base64"

    def take(self, value: object) -> tuple[Chunk, ...]:
        if not isinstance(value, str) or len(value) > MAX_CHUNKS * PACKED_CHUNK.size * 4 // 3 + 4:
            raise ValueError(self.expected)
        packed = base64.b64decode(value, validate=True)
        if not packed or len(packed) % PACKED_CHUNK.size:
            raise ValueError(self.expected)
        chunks = tuple(Chunk(*each) for each in PACKED_CHUNK.iter_unpack(packed))
        if any(not 0 < chunk.length <= DATA_LIMIT or chunk.offset > MAX_OFFSET for chunk in chunks):
            raise ValueError(self.expected)
        return chunks

    def give(self, value: tuple[Chunk, ...]) -> str:
        packed = b"".join(PACKED_CHUNK.pack(chunk.offset, chunk.length, chunk.crc) for chunk in value)
        return base64.b64encode(packed).decode("ascii")
