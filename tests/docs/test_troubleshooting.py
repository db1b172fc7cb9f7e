"""docs/troubleshooting.md: every entry is whole, and names a test that provokes that very message."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.pages import ROOT
from tests.docs.troubleshooting import PAGE, Entry, entries


def test_every_heading_is_an_entry() -> None:
    """No message without a test, and none twice."""
    headings = re.findall(r"^### (.*)$", PAGE.read_text(), re.MULTILINE)
    assert headings == [f"`{entry.message}`" for entry in entries()]
    assert len(set(headings)) == len(headings)


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.message[:40])
def test_a_heading_tells_messages_apart(entry: Entry) -> None:
    """It is in no other heading, but for the error that says the same, and has enough words of its own."""
    found = [other.message for other in entries() if entry.matches(other.message)]
    assert [message for message in found if not message.endswith(f": {entry.message}")] == [entry.message]
    assert len(re.sub(r"…|\W", "", entry.message)) >= 12


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.message[:40])
def test_an_entry_is_whole(entry: Entry) -> None:
    """Cause, then remedy."""
    assert re.fullmatch(r"\s*\*\*Cause\.\*\* .+?\n\n\*\*Remedy\.\*\* .+", entry.text, re.DOTALL), entry.message


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.message[:40])
def test_its_test_provokes_it(entry: Entry) -> None:
    """The test exists, and compares what it provoked with this entry."""
    file, _, name = entry.test.partition("::")
    (found,) = [
        node
        for node in ast.parse((ROOT / file).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    calls = [
        node
        for node in ast.walk(found)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "on_page"
    ]
    begun = [ast.literal_eval(call.args[1]) for call in calls]
    (heading,) = {heading for heading in begun if entry.message.startswith(heading)} or [f"none, but {begun}"]
    assert [other for other in entries() if other.message.startswith(heading)] == [entry], f"{name}: {heading}"
