"""Where a capture is in a binary log: a place in a file, or the set of transactions that it has had."""

from __future__ import annotations

import re
import struct
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import total_ordering
from typing import Final, NamedTuple

from jobpipe.errors import short_repr

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_MARIADB = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})", re.ASCII)
_INTERVAL = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?", re.ASCII)
_MAX_U32: Final = 2**32 - 1
_MAX_U64: Final = 2**64 - 1
_MAX_I64: Final = 2**63 - 1


@total_ordering
@dataclass(frozen=True)
class Position:
    """A place in a file of the log; places are ordered by the number of the file.

    >>> Position.of("binlog.000009:154") < Position.of("binlog.000010:4")
    True
    """

    file: str
    offset: int

    @classmethod
    def of(cls, text: str) -> Position:
        """Return the place that a text names.

        Raises:
            ValueError: it names none.
        """
        file, colon, offset = text.rpartition(":")
        if not (colon and offset.isascii() and offset.isdigit() and _file_number(file) is not None):
            raise ValueError(f"not a place in a binary log, as binlog.000003:154: {short_repr(text)}")
        return cls(file, int(offset))

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"

    def __lt__(self, other: Position) -> bool:
        if self.file == other.file:
            return self.offset < other.offset
        return (_file_number(self.file) or 0, self.offset) < (_file_number(other.file) or 0, other.offset)


def _file_number(file: str) -> int | None:
    suffix = file.rpartition(".")[2]
    return int(suffix) if suffix.isascii() and suffix.isdigit() and len(suffix) < len(file) else None


class GtidState(ABC):
    """The transactions that a capture has had, by their GTIDs. Immutable."""

    @staticmethod
    def of(text: str, mariadb: bool) -> GtidState:
        """Return the state that a text of the server names: ``gtid_binlog_pos`` or ``gtid_executed``.

        >>> GtidState.of("1-5-20,0-1-100", True).text
        '0-1-100,1-5-20'

        Raises:
            ValueError: it names none.
        """
        return _MariaDbState.parse(text) if mariadb else _MySqlState.parse(text)

    @property
    @abstractmethod
    def text(self) -> str:
        """As the server writes it, in one line."""

    @abstractmethod
    def contains(self, gtid: str) -> bool:
        """Tell whether a transaction is in it. MariaDB: it is not after the last one of its domain."""

    @abstractmethod
    def adding(self, gtid: str) -> GtidState:
        """Return the state with one transaction more."""

    @abstractmethod
    def covers(self, other: GtidState) -> bool:
        """Tell whether all transactions of another state are in it."""

    @abstractmethod
    def encoded(self) -> bytes:
        """Return it as MySQL's command COM_BINLOG_DUMP_GTID has it."""

    def __str__(self) -> str:
        return self.text


class _MariaDbGtid(NamedTuple):
    domain: int
    server: int
    sequence: int

    @classmethod
    def parse(cls, text: str) -> _MariaDbGtid:
        if (found := _MARIADB.fullmatch(text)) is not None:
            gtid = cls(*map(int, found.groups()))
            if gtid.domain <= _MAX_U32 and gtid.server <= _MAX_U32 and gtid.sequence <= _MAX_U64:
                return gtid
        raise ValueError(f"not a GTID of MariaDB, as 0-1-100: {short_repr(text)}")


@dataclass(frozen=True)
class _MariaDbState(GtidState):
    """By domain, the last transaction."""

    _last: Mapping[int, _MariaDbGtid]

    @classmethod
    def parse(cls, text: str) -> _MariaDbState:
        last: dict[int, _MariaDbGtid] = {}
        for each in text.split(",") if text.strip() else ():
            gtid = _MariaDbGtid.parse(each.strip())
            if gtid.domain in last:
                raise ValueError(f"a GTID state names the domain {gtid.domain} twice: {short_repr(text)}")
            last[gtid.domain] = gtid
        return cls(last)

    @property
    def text(self) -> str:
        return ",".join("-".join(map(str, self._last[domain])) for domain in sorted(self._last))

    def contains(self, gtid: str) -> bool:
        wanted = _MariaDbGtid.parse(gtid)
        last = self._last.get(wanted.domain)
        return last is not None and wanted.sequence <= last.sequence

    def adding(self, gtid: str) -> GtidState:
        added = _MariaDbGtid.parse(gtid)
        last = self._last.get(added.domain)
        if last is not None and added.sequence <= last.sequence:
            return self
        return _MariaDbState({**self._last, added.domain: added})

    def covers(self, other: GtidState) -> bool:
        if not isinstance(other, _MariaDbState):
            raise TypeError("states of MariaDB and of MySQL do not compare")
        mine = self._last
        return all(
            domain in mine and (last.sequence < mine[domain].sequence or last == mine[domain])  # else they went apart
            for domain, last in other._last.items()
        )

    def encoded(self) -> bytes:
        raise TypeError("MariaDB takes its state as text")


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Numbers of one source, ascending; the last interval is apart, since nearly all additions are to it."""

    before: tuple[tuple[int, int], ...]
    first: int
    last: int

    def __iter__(self) -> Iterator[tuple[int, int]]:
        yield from self.before
        yield self.first, self.last

    def contains(self, first: int, last: int) -> bool:
        if first >= self.first:
            return last <= self.last
        place = bisect_right(self.before, (first, _MAX_I64)) - 1
        return place >= 0 and last <= self.before[place][1]

    def adding(self, number: int) -> _Intervals:
        if number == self.last + 1:
            return _Intervals(self.before, self.first, number)
        return _Intervals.of([*self, (number, number)])

    @classmethod
    def of(cls, intervals: list[tuple[int, int]]) -> _Intervals:
        """Join intervals that meet or overlap."""
        joined: list[tuple[int, int]] = []
        for first, last in sorted(intervals):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
            else:
                joined.append((first, last))
        return cls(tuple(joined[:-1]), *joined[-1])


_Source = tuple[str, str]  # UUID and tag


@dataclass(frozen=True)
class _MySqlState(GtidState):
    """By source, the numbers of transactions."""

    _sources: Mapping[_Source, _Intervals]

    @classmethod
    def parse(cls, text: str) -> _MySqlState:
        found: dict[_Source, list[tuple[int, int]]] = {}
        for each in text.split(",") if text.strip() else ():
            source, *parts = (part.strip().lower() for part in each.strip().split(":"))
            if not (_UUID.fullmatch(source) and parts):
                raise _not_mysql(each)
            tag = ""
            for place, part in enumerate(parts):
                if (match := _INTERVAL.fullmatch(part)) is not None:
                    first = int(match[1])
                    last = int(match[2] or first)
                    if not 0 < first <= last < _MAX_I64:
                        raise _not_mysql(each)
                    found.setdefault((source, tag), []).append((first, last))
                elif _TAG.fullmatch(part) and place + 1 < len(parts) and _INTERVAL.fullmatch(parts[place + 1]):
                    tag = part
                else:
                    raise _not_mysql(each)
        return cls({source: _Intervals.of(intervals) for source, intervals in found.items()})

    @property
    def text(self) -> str:
        by_uuid: dict[str, list[str]] = {}
        for source, tag in sorted(self._sources):
            parts = by_uuid.setdefault(source, [source])
            if tag:
                parts.append(tag)
            intervals = self._sources[source, tag]
            parts += (f"{first}" if first == last else f"{first}-{last}" for first, last in intervals)
        return ",".join(":".join(parts) for parts in by_uuid.values())

    def contains(self, gtid: str) -> bool:
        source, number = _mysql_gtid(gtid)
        intervals = self._sources.get(source)
        return intervals is not None and intervals.contains(number, number)

    def adding(self, gtid: str) -> GtidState:
        source, number = _mysql_gtid(gtid)
        intervals = self._sources.get(source)
        if intervals is None:
            added = _Intervals((), number, number)
        elif intervals.contains(number, number):
            return self
        else:
            added = intervals.adding(number)
        return _MySqlState({**self._sources, source: added})

    def covers(self, other: GtidState) -> bool:
        if not isinstance(other, _MySqlState):
            raise TypeError("states of MariaDB and of MySQL do not compare")
        return all(
            (mine := self._sources.get(source)) is not None
            and all(mine.contains(first, last) for first, last in intervals)
            for source, intervals in other._sources.items()
        )

    def encoded(self) -> bytes:
        tagged = any(tag for _, tag in self._sources)
        # The first and the last byte say that tags are in it, as MySQL has it since 8.3.
        count = len(self._sources) << 8 | 1 << 56 | 1 if tagged else len(self._sources)
        parts = [struct.pack("<Q", count)]
        for source, tag in sorted(self._sources):
            intervals = list(self._sources[source, tag])
            parts.append(bytes.fromhex(source.replace("-", "")))
            if tagged:
                parts.append(bytes([len(tag) << 1]) + tag.encode())
            parts.append(struct.pack("<Q", len(intervals)))
            parts += (struct.pack("<QQ", first, last + 1) for first, last in intervals)
        return b"".join(parts)


def _not_mysql(text: str) -> ValueError:
    return ValueError(f"not a GTID set of MySQL, as 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5: {short_repr(text)}")


def _mysql_gtid(text: str) -> tuple[_Source, int]:
    source, _, rest = text.partition(":")
    tag, _, number = rest.rpartition(":")
    if not (number.isascii() and number.isdigit() and _UUID.fullmatch(source) and (not tag or _TAG.fullmatch(tag))):
        raise ValueError(f"not a GTID of MySQL, as 3e11fa47-71ca-11e1-9e33-c80aa9429562:5: {short_repr(text)}")
    return (source, tag), int(number)
