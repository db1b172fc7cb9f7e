"""Rows in a real browser: the form, an error next to it, going on, and a download."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import expect

from jobpipe.control.rows.rows_query import Ended, FoundPlace, RowPlace, RowsFound, RowsQuery
from jobpipe.control.rows.sql_condition import SqlCondition
from tests.control.page.kit import Shown, flights

pytestmark = pytest.mark.processes

CITIES = ["Berlin", "Bern", "Paris", '"><img src=x onerror=alert(1)>', "שלום עולם", "x" * 10_000]
ROWS = pa.record_batch({"n": range(6), "city": CITIES, **{f"column_{n}": ["a value"] * 6 for n in range(20)}})


def _rows(query: RowsQuery) -> RowsFound:
    numbers = list(range(6))
    if query.where:
        numbers = SqlCondition(query.where).numbers(ROWS, 1.0, lambda: 0.0)
    taken = ROWS.take(pa.array(numbers, pa.int64()))
    return RowsFound(
        schema=ROWS.schema,
        batches=(taken,),
        places=[FoundPlace(3, 0, number, 1000.0) for number in numbers],
        ended=Ended.ROWS,
        looked_rows=6,
        first=3,
        last=3,
        there=6,
        older=RowPlace.of("before 3"),
        masked=("card",),
    )


@pytest.mark.parametrize("width", [390, 1280])
def test_rows(shown: Shown, width: int, tmp_path: Path) -> None:
    """From the topic to a filtered download; nothing is wider than the screen, and nothing is read twice."""
    control, page = shown.served.control, shown.page
    flights(control)
    control.rows_of = _rows
    streams: list[str] = []
    page.on("request", lambda request: streams.append(request.url) if "/ui/live" in request.url else None)
    page.set_viewport_size({"width": width, "height": 800})
    shown.open("/ui/topics/flights")
    page.get_by_role("link", name="Rows", exact=True).click()
    table = page.get_by_role("region", name="Rows")
    expect(table.locator("tbody tr")).to_have_count(6)
    expect(table).to_contain_text("•••")
    assert page.locator("#main img, #main script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    expect(page.locator("#live")).to_be_hidden()

    page.get_by_label("Where").fill("city LIKE 'ber%'")
    page.keyboard.press("Enter")
    expect(table.locator("tbody tr")).to_have_count(2)
    expect(page.get_by_label("Where")).to_have_value("city LIKE 'ber%'")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == "flights-part.csv"
    download.value.save_as(tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text("utf-8-sig").startswith('"n","city"')

    page.get_by_role("link", name="Older").click()
    page.wait_for_url("**from=before+3**")
    expect(page.get_by_label("From", exact=True)).to_have_value("before 3")
    page.get_by_label("Where").fill("town = 1")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("alert")).to_contain_text("no such column: town. Columns: n, city")
    expect(page.get_by_label("Where")).to_have_value("town = 1")
    for _ in range(3):
        shown.tell()  # what a live page would look at
    page.wait_for_timeout(300)
    asked = [call[1].where for call in control.calls if call[0] == "topic_rows"]
    assert streams
    assert not any("rows" in url for url in streams)  # those of the topic alone
    assert asked == ["", "city LIKE 'ber%'", "city LIKE 'ber%'", "city LIKE 'ber%'", "town = 1"]
