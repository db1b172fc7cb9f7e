"""What moving a subscription means: in rows, in words, and what is in the way. Values alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jobpipe.admin import Distance
from jobpipe.errors import ConfigError, short_repr
from jobpipe.plural import counted
from jobpipe.store.catalog.position import MAX_NUMBER, Position

_AT = re.compile("([0-9a-f]{16}):([0-9]{1,19}):([0-9]{1,19}):([0-9]{1,19})")


@dataclass(frozen=True, kw_only=True)
class MovePlan:
    """What a move of a subscription means, as long as the subscription stands where it stood.

    Attributes:
        at: what a move shows as ``expected``: where the subscription stood. "": it stood nowhere yet.
        before, to: offsets of the next batch that it reads, now and afterwards; ``before`` is None if it stood nowhere.
        rows: that are skipped, or read again; None: how many is not known.
        again: the move goes back, and the rows are read again; else they are skipped.
        said: what that means, in a sentence.
        obstacles: why it is refused now; () if nothing is in the way.
        remarks: what one should know besides.
        undoes: the move that it takes back; None: it is no undo.
    """

    topic: str
    subscription: str
    at: str
    before: int | None
    to: int
    rows: int | None
    again: bool
    said: str
    obstacles: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    undoes: Move | None = None


@dataclass(frozen=True, kw_only=True)
class Move:
    """A move that was made.

    Attributes:
        number: of this move; no other one has it.
        time: when, in seconds since 1970.
        by: who asked for it: ``token``, ``browser``, or ``certificate NAME``.
        before, to: offsets; ``before`` is None if the subscription stood nowhere.
        in_doubt: its answer was lost: it is not known whether it was made.
    """

    topic: str
    subscription: str
    number: int
    time: float
    by: str
    before: int | None
    to: int
    in_doubt: bool = False


def position_text(position: Position | None) -> str:
    """Return a position as ``at`` of a plan; "" for none."""
    return "" if position is None else f"{position.log}:{position.epoch}:{position.n}:{position.r}"


def read_position_text(text: str) -> Position | None:
    """Return the position that :func:`position_text` wrote.

    Raises:
        ConfigError: it is none.
    """
    if not text:
        return None
    found = _AT.fullmatch(text)
    numbers = [] if found is None else [int(each) for each in found.groups()[1:]]
    if found is None or max(numbers) > MAX_NUMBER:
        raise ConfigError(f"expected: {short_repr(text)} is not `at` of a plan", key="expected")
    return Position(found[1], *numbers)


def place_text(position: Position | None) -> str:
    """Return a position for people."""
    if position is None:
        return "no offset yet"
    return f"offset {position.n:,}" + (f", after its first {counted(position.r, 'record batch')}" if position.r else "")


def meaning(name: str, distance: Distance) -> str:
    """Return what a move over a distance means, in a sentence."""
    before, to = distance.position, distance.target
    if before is None:
        return f"{name} has no position yet; it gets one, and begins at {place_text(to)}"
    if before == to:
        return f"{name} stands at {place_text(to)} already"
    again = to.place < before.place
    first, last = (to, before) if again else (before, to)
    offsets = _offsets(first.n + distance.lost, last)
    if distance.rows is None:
        done = "reads again what is kept" if again else "skips what is there"
        return f"{name} {done}, {offsets}; how many rows that is cannot be said: {distance.problem}"
    rows = counted(distance.rows, "row")
    said = f"{name} reads {rows} again: {offsets}" if again else f"{name} skips {rows} that it never reads: {offsets}"
    if distance.lost:
        batches = counted(distance.lost, "batch")
        said += f". Besides, {batches} from offset {before.n:,} on were removed before it had read them"
    return said


def _offsets(first: int, end: Position) -> str:
    last = end.n if end.r else end.n - 1
    if last < first:
        return "no offset that is kept"
    return f"offset {first:,}" if first == last else f"offsets {first:,} to {last:,}"
