"""Patterns of names in which * stands for any characters. Matched in time linear in the name for each part: a regular
expression with two stars backtracks, and a peer chooses the name."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Glob"]


@dataclass(frozen=True)
class Glob:
    """A pattern.

    >>> Glob("orders-*").matches("orders-7"), Glob("*-orders").matches("orders-7"), Glob("orders").matches("orders")
    (True, False, True)
    """

    text: str

    def matches(self, name: str) -> bool:
        """Tell whether all of ``name`` fits: each part between two stars is found once, at its first place."""
        first, *parts = self.text.split("*")
        if not parts:
            return name == first
        last = parts.pop()
        if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
            return False
        at, end = len(first), len(name) - len(last)
        for part in parts:
            found = name.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True
