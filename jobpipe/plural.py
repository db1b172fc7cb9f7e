"""Numbers with what they count, and spans of time, for people."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """Return a number with its thing, which is in the plural unless it is one.

    >>> counted(1, "row"), counted(2000, "batch")
    ('1 row', '2,000 batches')
    """
    ending = "" if number == 1 else "es" if thing.endswith("ch") else "s"
    return f"{number:,} {thing}{ending}"


def seconds(number: float | None) -> str | None:
    """Return a span of time in the unit that fits, such as ``2.5 s`` or ``3.1 h``."""
    if number is None:
        return None
    for limit, divisor, unit in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172_800.0, 3600.0, "h")):
        if number < limit:
            return f"{number / divisor:.1f} {unit}"
    return f"{number / 86_400:.1f} d"
