"""README, docs/kafka.md and docs/deploy.md: every block is run by a test, as written, or says that it is not."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.pages import PAGES, ROOT, Block, blocks

EVERY = [each for page in PAGES for each in blocks(page).values()]
SPARKS = {"spark-class", "spark-submit"}


def called(each: Block) -> str:
    return f"{each.page}:{each.name}"


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_its_test(page: str) -> None:
    """No fence without a comment that names a test."""
    fences = re.findall(r"^```", (ROOT / page).read_text(), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page))


@pytest.mark.parametrize("each", EVERY, ids=called)
def test_the_test_is_there(each: Block) -> None:
    """It exists, and takes this block from the page; what is not run says so to whoever reads the page."""
    file, _, name = each.test.partition("::")
    text = (ROOT / file).read_text()
    assert f"def {name}(" in text
    if each.how == "run":
        assert f'"{each.name}"' in text
        assert f'"{each.page}"' in text
    else:
        assert re.search(r"not run", each.section), f"{called(each)}: its section does not say what was not run"


@pytest.mark.parametrize("each", [each for each in EVERY if each.language == "python"], ids=called)
def test_python_blocks_compile(each: Block) -> None:
    compile(each.code, called(each), "exec")


@pytest.mark.parametrize("each", [each for each in EVERY if each.language == "sh"], ids=called)
def test_shell_blocks_parse(each: Block) -> None:
    """And name nothing that is not there: subcommands of ours, files of this repository."""
    done = subprocess.run(["/bin/bash", "-n"], input=each.code, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr


def test_every_block_has_a_language() -> None:
    assert {each.language for each in EVERY} <= {"python", "sh", "yaml"}


def test_the_readme_is_short() -> None:
    """Two screens, then links."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 155


def test_no_link_is_dead() -> None:
    """Of all pages, to files of this repository."""
    named = [
        (page, target)
        for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    ]
    assert [f"{page.name}: {target}" for page, target in named if not (page.parent / target).exists()] == []
