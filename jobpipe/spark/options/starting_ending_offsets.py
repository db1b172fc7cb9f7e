"""From options to the two ends of a read, topic by topic. Precedence as in Spark's Kafka source: times win."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from jobpipe.config.types.source_types import by_topic, one_offset, one_time
from jobpipe.config.types.value_types import BadValueError
from jobpipe.errors import RemoteProtocolError
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import COMMITTED, EARLIEST, LATEST, Boundary

Complain = Callable[[str, str], None]
"""(option, what was expected)"""
_WORDS = {"earliest": EARLIEST, "latest": LATEST, "committed": COMMITTED, -2: EARLIEST, -1: LATEST}
_BOUND = {"starting": "lowerBound", "ending": "upperBound"}


@dataclass(frozen=True)
class OffsetBounds:
    """One end of a read: ``topics`` by name, ``others`` for the rest; None where no option says anything.

    Attributes:
        option: The option that says it, and ``said``, what it says, as text.
    """

    topics: Mapping[str, Boundary] = field(default_factory=dict)
    others: Boundary | None = None
    option: str = ""
    said: str = ""

    def of(self, topic: str) -> Boundary | None:
        """Return the boundary of one topic."""
        return self.topics.get(topic, self.others)


def ends(
    values: Mapping[str, Any], topics: tuple[str, ...], pattern: str | None, complain: Complain
) -> tuple[OffsetBounds, OffsetBounds]:
    """Return where to start and where to end.

    Args:
        values: the options as parsed by their kinds; those that are not given, or wrong, are missing.
        topics: what is subscribed; nothing where there is a pattern, or where that option is wrong.
        pattern: of topics.
        complain: takes what does not go together.
    """
    start = _one(values, "starting", complain)
    end = _one(values, "ending", complain)
    for found in (start, end):
        _require_topics(found, topics, pattern, complain)
    if _behind(start.others, end.others):
        complain(end.option, "an end that is not before the start")
    for topic in sorted({*start.topics, *end.topics}):
        if _behind(start.of(topic), end.of(topic)):
            complain(end.option, f"an end that is not before the start (topic {topic})")
            break
    if pattern is not None and start.topics:
        return replace(start, others=EARLIEST), end
    return start, end


def _one(values: Mapping[str, Any], side: Literal["starting", "ending"], complain: Complain) -> OffsetBounds:
    """Return what the options tell of one side: the first that is given."""
    bound = _BOUND[side] if "boundaryType" in values else ""
    for option in (bound, f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"):
        if option in values:
            said = values[option]
            try:
                found = _read(values, option, side)
            except BadValueError as error:
                complain(option, str(error))
                return OffsetBounds()
            return replace(found, option=option, said=said if isinstance(said, str) else json.dumps(said))
    return OffsetBounds()


def _read(values: Mapping[str, Any], option: str, side: str) -> OffsetBounds:
    strategy = values.get("startingOffsetsByTimestampStrategy", "error")
    otherwise: Literal["error", "latest"] = "latest" if side == "ending" or strategy == "latest" else "error"

    def time(number: int) -> Boundary:
        return Boundary("time", number, otherwise)

    said = values[option]
    if option in _BOUND.values():
        return _bound(str(said), values["boundaryType"], time, ending=side == "ending")
    if option.endswith("ByTimestamp"):
        return OffsetBounds({topic: time(number) for topic, number in said.items()})
    if option.endswith("Timestamp"):
        return OffsetBounds(others=time(said))
    if isinstance(said, dict):
        return OffsetBounds({topic: _place(value) for topic, value in said.items()})
    return OffsetBounds(others=_WORDS[said])


def _bound(text: str, kind: str, time: Callable[[int], Boundary], *, ending: bool) -> OffsetBounds:
    try:
        if kind == "TIME":
            return _by_text(text, one_time, one_time, time)
        return _by_text(text, lambda raw: one_offset(raw, ending=ending), _offset_of(ending), _place)
    except BadValueError as error:
        expected = "an offset from 0" if kind == "OFFSET" else "milliseconds since 1970, or ISO 8601"
        raise BadValueError(
            str(error) or f"{expected}, or JSON with one for each topic, since boundaryType says so"
        ) from error


def _by_text(
    text: str, inner: Callable[[Any], Any], scalar: Callable[[str], Any], make: Callable[[Any], Boundary]
) -> OffsetBounds:
    if text.lstrip().startswith("{"):
        return OffsetBounds({topic: make(value) for topic, value in by_topic(text, inner).items()})
    return OffsetBounds(others=make(scalar(text)))


def _offset_of(ending: bool) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            number = int(text)
        except ValueError:
            raise BadValueError from None
        return one_offset(number, ending=ending)

    return read


def _place(value: int | dict[str, Any]) -> Boundary:
    if isinstance(value, dict):
        try:
            return Boundary("position", Position.from_json(value))
        except RemoteProtocolError as error:
            raise BadValueError(f"a position as progress shows it ({error.message})") from error
    return _WORDS.get(value) or Boundary("offset", value)


def _require_topics(found: OffsetBounds, topics: tuple[str, ...], pattern: str | None, complain: Complain) -> None:
    """Demand that JSON names every topic and no other; with a pattern, only such as it matches."""
    if not found.topics:
        return
    if pattern is not None:
        strange = sorted(topic for topic in found.topics if not re.fullmatch(pattern, topic))
        if strange:
            complain(found.option, f"topics that match subscribePattern, and {strange[0]} does not")
        return
    missing, strange = sorted(set(topics) - set(found.topics)), sorted(set(found.topics) - set(topics))
    if topics and (missing or strange):
        wrong = [f"{', '.join(missing)} is missing"] * bool(missing) + [f"{', '.join(strange)} is not read"] * bool(
            strange
        )
        complain(found.option, f"a value for each topic that is read, and for no other: {'; '.join(wrong)}")


def _behind(start: Boundary | None, end: Boundary | None) -> bool:
    """Tell whether a start lies after an end for certain; only the log can tell of most."""
    if start is None or end is None or start.kind != end.kind or start.kind not in ("offset", "time"):
        return False
    return isinstance(start.value, int) and isinstance(end.value, int) and start.value > end.value
