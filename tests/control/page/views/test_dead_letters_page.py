"""The pages of dead letters: as HTML, and in a real browser."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from jobpipe.control.letters.letter_views import LetterCounts, LetterJob
from jobpipe.control.page.page_snapshot import PageSnapshots
from jobpipe.control.page.pages import Pages
from jobpipe.control.permissions import Caller, Right
from jobpipe.errors import NotAuthorized
from tests.control.letters.letters_kit import DEAD, GROUP, LEFT, ROW
from tests.control.page.kit import Shown, flights
from tests.control_api.kit import MemoryControl, until

OPERATOR, VIEWER = Caller(Right.OPERATE), Caller(Right.VIEW)
LIST, PAGE = "/ui/dead-letters", f"/ui/dead-letters/{DEAD}"
HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'


def with_letters(control: MemoryControl) -> MemoryControl:
    flights(control)
    control.letters.jobs.append(LetterJob("flights", "report", DEAD))
    return control


@pytest.fixture
def control() -> MemoryControl:
    return with_letters(MemoryControl())


@pytest.fixture
def pages(control: MemoryControl) -> Pages:
    return Pages(control, PageSnapshots(control, "/test", lambda: 2000.0))


def test_without_a_job_that_keeps_letters(pages: Pages, control: MemoryControl) -> None:
    """It says what to type."""
    assert "tolerance: all" not in pages.render(LIST, OPERATOR).main
    control.letters.jobs.clear()
    pages.look_again()
    assert "errors: {tolerance: all}" in pages.render(LIST, OPERATOR).main


@pytest.mark.parametrize("address", [LIST, PAGE])
def test_each_part_is_one_element_with_its_id(pages: Pages, control: MemoryControl, address: str) -> None:
    """And nothing is there that the policy refuses, whatever is in a row."""
    hostile = {"row": HOSTILE, "error_message": HOSTILE, "stage": HOSTILE, "topic": HOSTILE, "run": HOSTILE}
    control.letters.rows = (replace(ROW, **hostile), replace(ROW, row=None, topic=None, at=None, file=HOSTILE))
    control.letters.counts = LetterCounts(letters=9, looked_at=3, groups=(GROUP,))
    page = pages.render(address, OPERATOR)
    assert page.status == 200
    for id_, html in page.parts.items():
        assert re.match(rf'<\w+ id="{id_}"', html)
    assert not re.search(r"\sstyle=|<script|<img|<style|javascript:", page.main)
    assert "newest 3 of 9 letters were looked at" in page.main


def test_a_row_that_is_long(pages: Pages, control: MemoryControl) -> None:
    """Is shortened, and its length is said."""
    control.letters.rows = (replace(ROW, row="x" * 2000, row_characters=1_000_000),)
    assert "(1,000,000 characters)" in pages.render(PAGE, VIEWER).main
    assert "characters)" not in pages.render(LIST, VIEWER).main


def test_a_row_leads_to_the_topic_that_it_came_from(pages: Pages) -> None:
    main = pages.render(PAGE, VIEWER).parts["rows"]
    assert '<a href="/ui/topics/flights"><bdi>flights</bdi></a> offset 12, partition 0, row 3' in main
    assert "ValueError: bad price" in main


def test_a_viewer_has_no_button(pages: Pages) -> None:
    assert "data-path" not in pages.render(PAGE, VIEWER).main
    assert "data-path" in pages.render(PAGE, OPERATOR).main


def test_a_topic_of_no_job_is_not_found(pages: Pages) -> None:
    assert pages.render("/ui/dead-letters/orders", OPERATOR).status == 404
    assert pages.render(PAGE, OPERATOR).status == 200


def test_what_is_wrong_is_said(pages: Pages, control: MemoryControl) -> None:
    control.letters.fails = NotAuthorized("the server may not read it")
    for address in (LIST, PAGE):
        assert "the server may not read it" in pages.render(address, OPERATOR).main


@pytest.mark.processes
def test_redrive(shown: Shown) -> None:
    """From the bar: the groups, the newest letters, what a redrive would do, and what it did."""
    control = shown.served.control
    control.letters.gate.clear()
    shown.open("/")
    shown.page.get_by_role("link", name="Dead letters").click()
    expect(shown.page.get_by_role("table")).to_contain_text("ValueError")
    shown.page.get_by_role("link", name=DEAD).click()
    shown.wait_live()
    expect(shown.page.locator("#rows")).to_contain_text("bad price")
    expect(shown.page.locator("#redrive")).to_contain_text("A redrive publishes 2 rows to flights again")
    button, dialog = shown.page.get_by_role("button", name="Redrive"), shown.page.get_by_role("dialog")
    button.click()
    expect(dialog).to_contain_text(f"A redrive publishes 2 rows to flights again. {LEFT}.")
    assert control.letters.asked["redrive"] == 0
    dialog.get_by_role("button", name="Redrive").click()
    expect(dialog).to_be_hidden()
    shown.tell()
    expect(shown.page.locator("#redrive")).to_contain_text("A redrive is under way, by browser")
    expect(button).to_have_count(0)
    control.letters.gate.set()
    until(lambda: control.letters.published)
    expect(shown.page.locator("#redrive")).to_contain_text("It published 2 rows to flights again")
    expect(shown.page.locator("#redrive")).to_contain_text("Nothing to redrive")


@pytest.mark.processes
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen(shown: Shown, width: int) -> None:
    """Also with a row without spaces."""
    control = shown.served.control
    control.letters.rows = (replace(ROW, row="x" * 2000, row_characters=9000, error_message="y" * 1000),)
    shown.page.set_viewport_size({"width": width, "height": 800})
    for path in (LIST, PAGE):
        shown.open(path)
        assert shown.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
