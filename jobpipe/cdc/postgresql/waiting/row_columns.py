"""Changed rows of a table as columns, from the messages of PostgreSQL's output plug-in, thousands at a time.

A message has the values of a row one after the other, each with its length. So the messages are joined, and walked
through side by side: all first values, then all second ones. Reads bytes; does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jobpipe.cdc.postgresql.stream.pgoutput import HEADER
from jobpipe.errors import RemoteProtocolError

INSERT, UPDATE, DELETE = b"IUD"
KEY, OLD, NEW = b"KON"
_NULL, _SAME, _TEXT = b"nut"
_TAG = HEADER + 5  # the letter of the first tuple, after that of the message and the table's number
_TUPLE = _TAG + 1
_MOST = (1 << 31) - 64  # bytes that Arrow's texts may have together
_PADDING = 8  # bytes, so that a length may be looked for at the end of the last message

Flags: TypeAlias = npt.NDArray[np.bool_]
Places: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tuples:
    """The old, or the new, values of rows.

    Attributes:
        there: which rows have them.
        texts: of each column; null where there is none.
        same: of each column, where an update has left it alone, and it was not sent.
    """

    there: Flags
    texts: list[pa.Array[Any]]
    same: list[Flags]


@dataclass(frozen=True)
class DecodedRows:
    """Changed rows.

    Attributes:
        kinds: INSERT, UPDATE or DELETE, of each row.
        tags: KEY if the old values are those of the key alone, OLD if they are all, NEW if there are none.
        old, new: None if no row has them.
    """

    kinds: npt.NDArray[np.uint8]
    tags: npt.NDArray[np.uint8]
    old: Tuples | None
    new: Tuples | None


def decode_rows(messages: Sequence[bytes], width: int) -> DecodedRows:
    """Return the rows of messages, each with its header; at least one, and less than 2 GiB of them.

    Args:
        width: how many columns the table has.

    Raises:
        RemoteProtocolError: a message is none of a row of such a table.
    """
    count = len(messages)
    lengths = np.fromiter(map(len, messages), np.int64, count)
    _require(bool((lengths >= _TUPLE + 2).all()), "it is cut off")
    _require(bool(lengths.sum() < _MOST), "too much of them at once")
    walk = _Walk(b"".join([*messages, bytes(_PADDING)]), np.cumsum(lengths), width)
    starts = walk.ends - lengths
    kinds, tags, at = walk.octets[starts + HEADER], walk.octets[starts + _TAG], starts + _TUPLE
    has_old, has_new = tags != NEW, kinds != DELETE
    _require(bool(np.isin(kinds, (INSERT, UPDATE, DELETE)).all()), "it is not of a row")
    _require(bool(np.isin(tags, (KEY, OLD, NEW)).all()), "a tuple of another kind")
    _require(bool((has_old == ((kinds == DELETE) | (has_old & (kinds == UPDATE)))).all()), "it lacks a tuple")
    old = new = None
    if has_old.any():
        old = walk.tuples(has_old, at)
        _require(not any(same.any() for same in old.same), "an old value that was not sent")
        both = has_old & has_new
        _require(bool((walk.octets[at[both]] == NEW).all()), "it lacks the new tuple")
        at[both] += 1
    if has_new.any():
        new = walk.tuples(has_new, at)
    _require(bool((at == walk.ends).all()), "something follows its values")
    return DecodedRows(kinds, tags, old, new)


class _Walk:
    """Messages that were joined.

    Attributes:
        octets: all of them.
        ends: where each message ends.
    """

    def __init__(self, data: bytes, ends: Places, width: int) -> None:
        self.octets = np.frombuffer(data, np.uint8)
        self.ends = ends
        self._buffer = pa.py_buffer(data)
        self._width = width
        # A number may begin at any byte.
        self._counts: Any = np.ndarray((len(data) - 1,), ">u2", data, strides=(1,))
        self._lengths: Any = np.ndarray((len(data) - 3,), ">u4", data, strides=(1,))

    def tuples(self, there: Flags, at: Places) -> Tuples:
        """Return the tuples of those rows that have one at their place, and move the places to the end of them."""
        rows = np.flatnonzero(there)
        now, ends = at[rows], self.ends[rows]
        _require(bool((self._counts[now] == self._width).all()), f"it has not {self._width} values")
        now += 2
        texts, sames = [], []
        for _ in range(self._width):
            kinds = self.octets[now]
            is_text, is_same = kinds == _TEXT, kinds == _SAME
            _require(bool((is_text | is_same | (kinds == _NULL)).all()), "a value of another kind")
            lengths = self._lengths[now + 1].astype(np.int64)
            starts = np.where(is_text, now + 5, now + 1)
            now = np.where(is_text, starts + lengths, starts)
            _require(bool((now <= ends).all()), "it is cut off")
            texts.append(self._texts(rows, starts, now, is_text, len(there)))
            same = np.zeros(len(there), np.bool_)
            same[rows] = is_same
            sames.append(same)
        at[rows] = now
        return Tuples(there, texts, sames)

    def _texts(self, rows: Places, starts: Places, ends: Places, is_text: Flags, count: int) -> pa.Array[Any]:
        """Return the bytes between places as a column for all rows, null where there is none."""
        offsets: Any = np.empty(2 * len(rows), np.int32)  # each second text is what lies between two that are wanted
        offsets[::2], offsets[1::2] = starts, ends
        both = pa.Array.from_buffers(
            pa.binary(),
            len(offsets) - 1,
            [None, pa.py_buffer(offsets), self._buffer],
        )
        wanted, missing = np.zeros(count, np.int64), np.ones(count, np.bool_)
        wanted[rows] = np.arange(0, len(offsets), 2)
        missing[rows] = ~is_text
        places: Any = pa.array(wanted, mask=missing if missing.any() else None)
        return both.take(places)


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise RemoteProtocolError(f"PostgreSQL sent a wrong message of a row: {why}", kind="row")
