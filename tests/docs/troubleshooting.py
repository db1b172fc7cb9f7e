"""docs/troubleshooting.md: each entry is a message, as its first line is seen, and names the test that provokes it.

That test gives what it provoked to :func:`on_page`, with the beginning of the heading. ``…`` in it stands for anything.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
_ENTRY = re.compile(
    r"^### `(?P<message>[^\n]+)`\n\n<!-- provoked by (?P<test>tests/[\w/]+\.py::test_\w+) -->\n(?P<text>.*?)(?=^##|\Z)",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Entry:
    """A message, the test that provokes it, and what stands below: cause and remedy."""

    message: str
    test: str
    text: str

    def matches(self, text: str) -> bool:
        """Tell whether a text holds this message on one of its lines."""
        parts = [re.escape(part) for part in self.message.split("…")]
        return re.search(".*?".join(parts), text) is not None


def entries() -> list[Entry]:
    """Return all entries of the page."""
    return [Entry(**match.groupdict()) for match in _ENTRY.finditer(PAGE.read_text())]


def on_page(told: object, heading: str) -> None:
    """Check that an error, or a text, is what the one entry says whose heading begins so, and which names this test."""
    test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0].partition("[")[0]
    text = f"{type(told).__name__}: {told}" if isinstance(told, BaseException) else str(told)
    (entry,) = [entry for entry in entries() if entry.message.startswith(heading)]
    assert entry.test == test, f"{PAGE.name} says of {entry.message!r} that {entry.test} provokes it"
    assert entry.matches(text), f"{entry.message!r} is not in: {text}"
