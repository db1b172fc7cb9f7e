"""docs/troubleshooting.md: every entry is whole, and names a test that provokes that very message."""

from __future__ import annotations

import ast
import re

import pytest

from tests.pages import ROOT
from tests.troubleshooting import PAGE, Entry, entries


def test_every_heading_is_an_entry() -> None:
    """No message without a test, and none twice."""
    headings = re.findall(r"^### (.*)$", PAGE.read_text(), re.MULTILINE)
    assert headings == [f"`{entry.message}`" for entry in entries()]
    assert len(set(headings)) == len(headings)


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.message[:40])
def test_an_entry_is_whole(entry: Entry) -> None:
    """Cause, then remedy."""
    assert re.fullmatch(r"\s*\*\*Cause\.\*\* .+?\n\n\*\*Remedy\.\*\* .+", entry.text, re.DOTALL), entry.message


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.message[:40])
def test_its_test_provokes_it(entry: Entry) -> None:
    """The test exists, and compares what it provoked with the page."""
    file, _, name = entry.test.partition("::")
    (found,) = [
        node
        for node in ast.parse((ROOT / file).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    called = [
        node.func.id for node in ast.walk(found) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert "on_page" in called
