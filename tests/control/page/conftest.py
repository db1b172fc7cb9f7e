"""Fixtures: a server with a core in memory, and a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.control.page.kit import Shown
from tests.control_api.conftest import control, limits, served, server_config  # noqa: F401 - fixtures
from tests.control_api.kit import Served

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a module: while it runs, so does an event loop of playwright in this thread."""
    if CHROMIUM is None:
        pytest.skip("no chromium is installed: apt-get install chromium")
    with sync_playwright() as playwright:
        # Chromium's sandbox needs another user than root.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:  # noqa: F811
    """A page of a new profile, which is not signed in."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, base_url=served.address.url)
    context.set_default_timeout(15_000)
    made = context.new_page()
    try:
        yield made
    finally:
        context.close()


@pytest.fixture
def shown(page: Page, served: Served) -> Iterator[Shown]:  # noqa: F811
    """The page, signed in by a person who may operate; an error that the browser reports fails the test."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    found = Shown(page, served, ["Failed to load resource"])
    found.sign_in()
    yield found
    unexpected = [error for error in errors if not any(part in error for part in found.expected)]
    assert not unexpected, unexpected  # also what the Content-Security-Policy refuses
