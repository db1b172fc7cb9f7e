"""A topic's place in an offset: a position, or, with ``readAhead``, the position where a slot begins, and the slot."""

from __future__ import annotations

from typing import Any

from jobpipe.store import Position, slot_id

__all__ = ["read_place", "write_place"]


def write_place(position: Position, slot: str | None) -> dict[str, Any]:
    """Return the JSON object; its keys are sorted."""
    return position.to_json() if slot is None else {**position.to_json(), "slot": slot}


def read_place(value: Any) -> tuple[Position, str | None]:
    """Return what :func:`write_place` wrote.

    Raises:
        RemoteProtocolError: it is anything else.
    """
    if not isinstance(value, dict) or "slot" not in value:
        return Position.from_json(value), None
    position = Position.from_json({key: inner for key, inner in value.items() if key != "slot"})
    return position, slot_id(value["slot"])
