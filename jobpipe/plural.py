"""Numbers with what they count, for people."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """Return a number with its thing, which is in the plural unless it is one.

    >>> counted(1, "row"), counted(2000, "batch")
    ('1 row', '2,000 batches')
    """
    ending = "" if number == 1 else "es" if thing.endswith("ch") else "s"
    return f"{number:,} {thing}{ending}"
