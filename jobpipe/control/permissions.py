"""What one may do at a control server."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Right(StrEnum):
    """What one may do. ``operate`` includes ``view``, and is code execution as the server's user."""

    VIEW = "view"
    OPERATE = "operate"

    def includes(self, other: Right) -> bool:
        """Whether who has this right has the other one too."""
        return self is Right.OPERATE or other is Right.VIEW


@dataclass(frozen=True)
class Caller:
    """Who asks.

    Attributes:
        name: how the right is known, for people: ``token``, ``browser``, or ``certificate NAME``; "" if it is not.
        until: when the session of a browser ends, in seconds since 1970; None for others.
    """

    right: Right
    name: str = ""
    until: float | None = None
