"""docs/design.md and docs/modules.md: the map of modules is that of the tree; the two paths name functions."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.docs.module_map import DESIGN, MODULES, design_page, modules_page
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "design.md").read_text()
SECTIONS = {
    title: re.search(rf"^### {title}\n(.*?)^### ", TEXT, re.DOTALL | re.MULTILINE)[1]  # type: ignore[index]
    for title in ("One row's path", "One submitted file's path")
}


def functions(section: str) -> list[tuple[str, str]]:
    """Return module and name of each row's function."""
    return re.findall(r"^\| [^|]*\| `([\w/]+)\.py:([\w.]+)` \|", section, re.MULTILINE)


@pytest.mark.parametrize("title", SECTIONS)
def test_every_row_names_a_function_and_all_are_counted(title: str) -> None:
    found = functions(SECTIONS[title])
    assert len(found) == len([line for line in SECTIONS[title].splitlines() if line.startswith("| ")][1:])
    assert f"{len(found)} functions" in SECTIONS[title]


@pytest.mark.parametrize(("module", "name"), [each for section in SECTIONS.values() for each in functions(section)])
def test_the_function_exists(module: str, name: str) -> None:
    found: object = importlib.import_module("jobpipe." + module.replace("/", "."))
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)


def test_the_map_of_modules_is_that_of_the_tree() -> None:
    """If it is not: ``python -m tests.docs.module_map``."""
    assert DESIGN.read_text() == design_page(DESIGN.read_text())
    assert MODULES.read_text() == modules_page()
