"""docs/design.md and docs/modules.md: the map of modules is that of the tree; the path of one row names functions."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.module_map import DESIGN, MODULES, design_page, modules_page
from tests.pages import ROOT

_SECTION = re.search(
    r"^### One row's path\n(.*?)^### ", (ROOT / "docs" / "design.md").read_text(), re.DOTALL | re.MULTILINE
)
assert _SECTION is not None
PATH = re.findall(r"^\| [^|]*\| `([\w/]+)\.py:([\w.]+)` \|", _SECTION[1], re.MULTILINE)
ROWS = [line for line in _SECTION[1].splitlines() if line.startswith("| ")][1:]


def test_every_row_names_a_function_and_all_are_counted() -> None:
    assert len(PATH) == len(ROWS)
    assert f"{len(PATH)} functions" in _SECTION[1]  # type: ignore[index]


@pytest.mark.parametrize(("module", "name"), PATH)
def test_the_function_exists(module: str, name: str) -> None:
    found: object = importlib.import_module("jobpipe." + module.replace("/", "."))
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)


def test_the_map_of_modules_is_that_of_the_tree() -> None:
    """If it is not: ``python -m tests.module_map``."""
    assert DESIGN.read_text() == design_page(DESIGN.read_text())
    assert MODULES.read_text() == modules_page()
