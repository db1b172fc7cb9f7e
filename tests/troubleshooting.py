"""Holds docs/troubleshooting.md to what is printed: a message that a test provoked is looked up on the page."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

__all__ = ["entries", "entry_of"]

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
_EXAMPLES = ("zk1:2181", "/jobpipe/topics", "orders", "billing", "discount")  # stand for any name or address
_PARTS = re.compile("|".join([*map(re.escape, _EXAMPLES), r"\d+(?:\.\d+)?", "…"]))


@cache
def entries() -> dict[str, tuple[re.Pattern[str], ...]]:
    """Return the headings of the page, each with the patterns of its quoted messages."""
    headings = re.findall(r"(?m)^## (.+)$", PAGE.read_text())
    return {heading: tuple(map(_pattern, re.findall(r"`([^`]+)`", heading))) for heading in headings}


def _pattern(quoted: str) -> re.Pattern[str]:
    plain = _PARTS.split(quoted)
    wild = [r"\S+?" if part != "…" else ".*" for part in _PARTS.findall(quoted)]
    pairs = zip(plain, [*wild, ""], strict=True)
    return re.compile("".join(re.escape(text) + any_ for text, any_ in pairs), re.DOTALL)


def entry_of(message: str) -> str:
    """Return the heading of the entry for a message; all that the heading quotes is in it.

    Raises:
        AssertionError: the page has none, so its user finds none.
    """
    found = [heading for heading, patterns in entries().items() if all(each.search(message) for each in patterns)]
    assert found, f"docs/troubleshooting.md has no entry for: {message}"
    return max(found, key=len)
