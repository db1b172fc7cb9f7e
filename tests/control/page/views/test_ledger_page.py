"""The pages of the ledger, and what of it needs attention: as HTML, and in a real browser."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from jobpipe.control.page.page_snapshot import PageSnapshots
from jobpipe.control.page.pages import Pages, asks_coordinators
from jobpipe.control.page.troubles import troubles
from jobpipe.control.page.views.ledger_page import MINUTES, MOST_HOPS, ledger_href
from jobpipe.control.permissions import Caller, Right
from jobpipe.errors import LinkBroken, RemoteProtocolError
from jobpipe.ledger.hop_states import NEWS_SECONDS
from jobpipe.metrics.metric_samples import TopicsSnapshot
from jobpipe.operations.messages.ledger_messages import HopCounts, HopLedger, HopMinute, LedgerMinute, RowDifference
from jobpipe.operations.status_operations import LedgerReply
from tests.control.page.kit import Shown, flights, put_topics
from tests.control_api.kit import MemoryControl, Served
from tests.statuses import subscription_status, topic_status

OPERATOR, VIEWER = Caller(Right.OPERATE), Caller(Right.VIEW)
NOW = 1_795_943_700.0
FOUND = RowDifference(first=41, end=44, published=100, read=99, partitions=(2,), found=NOW - 58.0, reason="counted")
EQUAL = HopCounts(committed=500, read=500)
LOST = HopCounts(committed=600, read=599, lost=1, differences=1, newest=FOUND)
SAID = "offsets 41 to 43, partition 2: 99 rows read of 100 published"
HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'
HREF = ledger_href("orders", "billing")


def put(control: MemoryControl, counts: HopCounts | None, *, rows: int = 0, **given: Any) -> None:
    """Let topic orders have subscriptions audit, all equal, and billing with these counts, and a ledger."""
    lines = (
        subscription_status("audit", position=44, counts=EQUAL),
        subscription_status("billing", rows=rows, position=44, counts=counts),
    )
    put_topics(control, topic_status("orders", subscriptions=lines))
    minutes = (None, HopMinute(100, 100, 99, differs=True), HopMinute(50, 20, 20))
    hop = HopLedger(name="billing", position=44, counts=counts or EQUAL, minutes=minutes, **given)
    begun = int(NOW // 60) - 2
    control.ledgers["orders"] = LedgerReply(
        topic="orders",
        at=NOW,
        minutes=tuple(LedgerMinute(begun + each, 40 + each, 44, 9) for each in range(3)),
        hops=(HopLedger(name="audit", counts=EQUAL, minutes=(None, None, None)), hop),
    )


@pytest.fixture
def control() -> MemoryControl:
    made = MemoryControl()
    put(made, LOST, rows=30, differences=(FOUND,))
    return made


@pytest.fixture
def snapshots(control: MemoryControl) -> PageSnapshots:
    return PageSnapshots(control, "/test", lambda: NOW)


@pytest.fixture
def pages(control: MemoryControl, snapshots: PageSnapshots) -> Pages:
    return Pages(control, snapshots)


def text(html: str) -> str:
    """What a reader sees of HTML."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


@pytest.mark.parametrize("address", ["/ui/ledger", HREF])
def test_each_part_is_one_element_with_its_id(pages: Pages, address: str) -> None:
    """And nothing is there that the policy refuses."""
    page = pages.render(address, VIEWER)
    assert page.status == 200
    ids = re.findall(r'\bid="([^"]*)"', page.main)
    assert len(ids) == len(set(ids))
    for id_, html in page.parts.items():
        assert re.match(rf'<\w+ id="{id_}"', html)
    assert not re.search(r"\sstyle=|<script|<img|<style|javascript:", page.main)


def test_all_hops_those_that_differ_first(pages: Pages) -> None:
    rows = [text(row) for row in re.findall(r"<tr id=.*?</tr>", pages.render("/ui/ledger", VIEWER).main, re.DOTALL)]
    assert rows == [
        "orders → billing different 600 599 600 30 0 0 1 0",
        "orders → audit equal 500 500 500 0 0 0 0 0",
    ]


def test_without_a_subscription(pages: Pages, control: MemoryControl) -> None:
    """It says what to type."""
    assert "readStream" not in pages.render("/ui/ledger", VIEWER).main
    control.topics = TopicsSnapshot({}, 0.0)
    pages.look_again()
    assert "readStream" in pages.render("/ui/ledger", VIEWER).main


def test_topics_that_do_not_answer_are_named(pages: Pages, control: MemoryControl) -> None:
    control.topics = TopicsSnapshot({**control.topics.topics, "silent": LinkBroken("refused")}, 0.0)
    main = text(pages.render("/ui/ledger", VIEWER).main)
    assert "Not known now: silent ." in main
    assert "orders → billing different" in main


def test_the_list_is_bounded(pages: Pages, control: MemoryControl) -> None:
    lines = tuple(subscription_status(f"s{number:04}", counts=EQUAL) for number in range(MOST_HOPS + 2))
    last = replace(lines[-1], counts=LOST)
    put_topics(control, topic_status("orders", subscriptions=(*lines[:-1], last)))
    main = pages.render("/ui/ledger", VIEWER).main
    assert main.count("<tr id=") == MOST_HOPS
    assert text(re.findall(r"<tr id=.*?</tr>", main, re.DOTALL)[0]).startswith(f"orders → {last.name} different")
    assert "2 more hops are not listed" in main


def test_one_hop_by_minute(pages: Pages, control: MemoryControl) -> None:
    """The newest minute first, and each difference in words, with what to do."""
    page = pages.render(HREF, VIEWER)
    assert ("ledger", "orders", MINUTES, "billing") in control.calls
    rows = [text(row) for row in re.findall(r"<tr>.*?</tr>", page.parts["minutes"], re.DOTALL)[1:]]
    assert rows == [
        "2026-11-29 09:15:00 UTC open 50 20 20 30 0 0 42 to 43",
        "2026-11-29 09:14:00 UTC different 100 99 100 0 0 0 41 to 43",
        "2026-11-29 09:13:00 UTC no account – – – – – – 40 to 43",
    ]
    assert page.parts["minutes"].count("<li ") == 3
    assert f"{SAID}; its readers counted" in page.parts["differences"]
    assert "What to do (counted): compare" in page.parts["differences"]
    assert "different Rows were lost, or came twice." in text(page.parts["state"])


def test_many_who_look_ask_a_coordinator_once(pages: Pages, control: MemoryControl) -> None:
    for _ in range(5):
        pages.look_again()
        assert pages.render(HREF, VIEWER).status == 200
    assert [call[0] for call in control.calls].count("ledger") == 1
    assert asks_coordinators(HREF)
    assert not asks_coordinators("/ui/ledger")


def test_a_ledger_that_does_not_come(pages: Pages, control: MemoryControl) -> None:
    """What the status says is shown all the same."""
    control.ledgers["orders"] = LinkBroken("cut in the middle")
    main = text(pages.render(HREF, VIEWER).main)
    assert "The minutes are not known now: cut in the middle" in main
    assert SAID in main


def test_a_coordinator_of_an_older_version(pages: Pages, control: MemoryControl) -> None:
    put(control, None)
    control.ledgers["orders"] = RemoteProtocolError("unknown operation 'ledger'", op="ledger")
    main = text(pages.render(HREF, VIEWER).main)
    assert "no account Nothing is counted yet" in main
    assert "its coordinator is of an older version, which does not count rows" in main


@pytest.mark.parametrize("address", ["/ui/ledger/orders", ledger_href("orders", "none"), ledger_href("no", "billing")])
def test_a_hop_that_is_not_there(pages: Pages, control: MemoryControl, address: str) -> None:
    assert pages.render(address, VIEWER).status == 404
    assert not any(call[0] == "ledger" for call in control.calls)


def test_a_difference_needs_attention_for_a_day(control: MemoryControl, snapshots: PageSnapshots) -> None:
    """It leads to the hop. Lag, rows that are not proven and moves need none."""
    (trouble,) = troubles(snapshots.newest())
    assert (trouble.mark.tone, trouble.mark.word, trouble.name, trouble.href) == (
        "alarm",
        "rows differ",
        "orders",
        HREF,
    )
    assert trouble.said == f"billing: {SAID}"
    old = replace(FOUND, found=NOW - NEWS_SECONDS - 1.0)
    for counts in (
        None,
        EQUAL,
        replace(EQUAL, read=0, unproven=500),
        replace(EQUAL, moved=7),
        replace(LOST, newest=old),
    ):
        put(control, counts, rows=30)
        snapshots.forget()
        assert troubles(snapshots.newest()) == ()


def test_an_old_difference_stays_on_the_page_of_the_hop(pages: Pages, control: MemoryControl) -> None:
    old = replace(FOUND, found=NOW - NEWS_SECONDS - 1.0)
    put(control, replace(LOST, newest=old), differences=(old,))
    page = pages.render(HREF, VIEWER)
    assert "equal" in text(page.parts["state"])
    assert SAID in page.parts["differences"]


def test_the_page_of_a_topic_leads_to_ledgers(pages: Pages) -> None:
    readers = pages.render("/ui/topics/orders", VIEWER).parts["readers"]
    assert re.findall(r'aria-label="Ledger of (\w+)"><span class="state (\w+)">', readers) == [
        ("audit", "good"),
        ("billing", "alarm"),
    ]


@pytest.mark.parametrize("name", [HOSTILE, "\u202egnp.exe", "x" * 10_000])
def test_names_and_reasons_stay_text(pages: Pages, control: MemoryControl, name: str) -> None:
    hostile = replace(FOUND, reason=name)
    counts = replace(LOST, newest=hostile)
    put_topics(control, topic_status(name, subscriptions=(subscription_status(name, counts=counts),)))
    control.ledgers[name] = LinkBroken(name)
    for address in ("/", "/ui/ledger", ledger_href(name, name)):
        main = pages.render(address, VIEWER).main
        assert not re.search(r"<script|<img", main)


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_difference_shows_where_a_person_looks(shown: Shown) -> None:
    """In Attention as soon as it is known; from there to its hop, whose page stays live."""
    control = shown.served.control
    put(control, EQUAL)
    shown.open("/")
    expect(shown.page.locator("#troubles")).to_contain_text("nothing needs attention")
    newest = replace(FOUND, found=shown.page.evaluate("Date.now() / 1000"))
    put(control, replace(LOST, newest=newest), differences=(newest,))
    shown.tell()
    trouble = shown.page.locator(".troubles li")
    expect(trouble).to_contain_text(f"billing: {SAID}")
    trouble.get_by_role("link", name="orders").click()
    shown.wait_live()
    expect(shown.page.locator("#state")).to_contain_text("different")
    expect(shown.page.locator("#differences")).to_contain_text(SAID)
    expect(shown.page.locator("#minutes tbody tr")).to_have_count(3)
    shown.page.get_by_role("link", name="Ledger").click()
    expect(shown.page.locator("#main tbody tr").first).to_contain_text("orders → billing")
    shown.page.get_by_label("Find").fill("audit")
    expect(shown.page.locator("#main tbody tr:visible")).to_have_count(1)


@pytest.mark.processes
def test_a_viewer_sees_the_same(page: Page, served: Served) -> None:
    """As of a topic's status."""
    flights(served.control)
    put(served.control, LOST, rows=30, differences=(FOUND,))
    shown = Shown(page, served)
    found = []
    for right in ("operate", "view"):
        shown.sign_in(right)
        shown.open(HREF)
        expect(page.locator("#minutes tbody tr")).to_have_count(3)
        found.append(shown.main())
    assert found[0] == found[1]
    assert SAID in found[0]


@pytest.mark.processes
def test_a_narrow_window_scrolls_the_tables_alone(shown: Shown) -> None:
    put(shown.served.control, LOST, rows=30, differences=(FOUND,))
    shown.page.set_viewport_size({"width": 360, "height": 700})
    for address in ("/ui/ledger", HREF):
        shown.open(address)
        assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
