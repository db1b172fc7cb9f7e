"""docs/page.md: its block is run as it stands there, and its pictures are there."""

from __future__ import annotations

import re

import pytest

from tests.control_api.kit import Served
from tests.docs.pages import ROOT, block, shell


@pytest.mark.processes
def test_open_it(served: Served) -> None:
    """The address that is printed signs one browser in."""
    done = shell(block("docs/page.md", "sign-in"), served.folder, JOBPIPE__HOME=str(served.home))
    assert done.returncode == 0, done.stderr
    path = done.stdout.strip().removeprefix(served.address.url)
    first, second = (served.ask("GET", path, token=None) for _ in range(2))
    assert (first.status, second.status) == (200, 403)
    assert "set-cookie" in first.headers


def test_it_says_what_a_cookie_is_not_safe_from() -> None:
    """A row of SECURITY.md that nothing prevents."""
    text = " ".join((ROOT / "docs" / "page.md").read_text().split())
    assert "**Browsers send a cookie to all ports of a host.**" in text


def test_its_pictures_are_there() -> None:
    text = (ROOT / "docs" / "page.md").read_text()
    pictures = re.findall(r"!\[[^]]+\]\((images/[\w-]+\.png)\)", text)
    assert pictures
    for picture in pictures:
        assert (ROOT / "docs" / picture).read_bytes().startswith(b"\x89PNG"), picture
