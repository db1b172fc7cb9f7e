"""SECURITY.md: what shows that a threat is stopped is there."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT

TESTS = ROOT / "tests"
_SECTION = re.search(r"^## Threats.*?\n(?=\|)(.*?)\n\n", (ROOT / "SECURITY.md").read_text(), re.DOTALL | re.MULTILINE)
assert _SECTION is not None
THREATS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in _SECTION[1].splitlines()[2:]]


def test_the_table_is_read() -> None:
    assert len(THREATS) > 25
    assert {len(row) for row in THREATS} == {4}


@pytest.mark.parametrize("row", THREATS, ids=lambda row: row[1][:40])
def test_what_shows_it_is_there(row: list[str]) -> None:
    """Files or folders below tests/, or a target of the Makefile."""
    named = re.findall(r"`([^`]+)`", row[3])
    assert named
    for each in named:
        target = each.removeprefix("make ")
        if target != each:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), each
        else:
            assert (TESTS / each).exists(), each
