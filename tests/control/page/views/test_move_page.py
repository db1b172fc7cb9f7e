"""The page that moves a subscription: as HTML, and in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from jobpipe.control.page.page_snapshot import PageSnapshots
from jobpipe.control.page.pages import Pages
from jobpipe.control.page.views.recent_answers import MAX_AGE_SECONDS, RecentAnswers
from jobpipe.control.permissions import Caller, Right
from jobpipe.errors import JobpipeError, LinkTimeout
from tests.control.page.kit import Shown, flights
from tests.control.positions.positions_kit import at
from tests.control_api.kit import MemoryControl

OPERATOR, VIEWER = Caller(Right.OPERATE), Caller(Right.VIEW)
PAGE = "/ui/topics/flights/move?subscription=flights.report"


@pytest.fixture
def control() -> MemoryControl:
    made = MemoryControl()
    flights(made)
    return made


@pytest.fixture
def pages(control: MemoryControl) -> Pages:
    return Pages(control, PageSnapshots(control, "/test", lambda: 2000.0))


def test_the_topic_leads_to_it(pages: Pages) -> None:
    """For those who may operate."""
    link = 'href="/ui/topics/flights/move?subscription=flights.report"'
    assert link in pages.render("/ui/topics/flights", OPERATOR).main
    assert link not in pages.render("/ui/topics/flights", VIEWER).main


@pytest.mark.parametrize("query", ["", "&to=latest", "&to=offset&offset=x", "&to=time&time=", "&to=x"])
def test_each_part_is_one_element_with_its_id(pages: Pages, control: MemoryControl, query: str) -> None:
    """And nothing is there that the policy refuses."""
    control.topic.places["flights.report"] = at(7)
    page = pages.render(PAGE + query, OPERATOR)
    assert (page.status, set(page.parts)) == (200, {"problem", "stands", "plan", "undo"})
    for id_, html in page.parts.items():
        assert re.match(rf'<\w+ id="{id_}"', html)
    assert not re.search(r"\sstyle=|<script|<style|\son\w+=|javascript:", page.main)


def test_a_plan_changes_a_part_alone(pages: Pages, control: MemoryControl) -> None:
    """So that the form keeps what a person types."""
    before = pages.render(f"{PAGE}&to=latest", OPERATOR)
    control.topic.places["flights.report"] = at(9)
    pages.look_again()
    after = pages.render(f"{PAGE}&to=latest", OPERATOR)
    assert after.shape == before.shape
    assert "skips 1,300 rows" in before.parts["plan"]
    assert "skips 1,100 rows" in after.parts["plan"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("&to=offset&offset=x", "give the offset to move to"),
        ("&to=time&time=", "give the time to move to"),
        ("&to=x", "is not one of earliest, latest"),
        ("&to=offset&offset=99", "are missing"),
    ],
)
def test_a_place_that_is_none_is_said(pages: Pages, query: str, said: str) -> None:
    page = pages.render(PAGE + query, OPERATOR)
    assert said in page.parts["plan"]
    assert "data-path" not in page.main
    assert "data-path" in pages.render(f"{PAGE}&to=offset&offset=9", OPERATOR).main


@pytest.mark.parametrize("given", ["2026-11-21T10:00", "2026-11-21T10:00:00", "2026-11-21T10:00:00Z"])
def test_a_time_without_a_zone_is_in_utc(pages: Pages, control: MemoryControl, given: str) -> None:
    """A browser's field for times knows none."""
    assert "reads 700 rows again" in pages.render(f"{PAGE}&to=time&time={given}", OPERATOR).parts["plan"]
    assert set(control.topic.times) == {1_795_255_200_000}


def test_a_viewer_sees_what_it_means(pages: Pages) -> None:
    page = pages.render(f"{PAGE}&to=latest", VIEWER)
    assert "skips 1,300 rows" in page.main
    assert "data-path" not in page.main


def test_what_is_in_the_way_takes_the_button(pages: Pages, control: MemoryControl) -> None:
    control.topic.connected.add("flights.report")
    page = pages.render(f"{PAGE}&to=latest", OPERATOR)
    assert "stop its subscriber first" in page.main
    assert "data-path" not in page.main
    control.topic.connected.clear()
    pages.look_again()
    assert "data-path" in pages.render(f"{PAGE}&to=latest", OPERATOR).main


def test_the_undo_names_the_move(pages: Pages, control: MemoryControl) -> None:
    """By its number: another move may end at the same place. One that was not made is not shown."""
    moves, name = control.moves, "flights.report"

    def move(to: int) -> int:
        return moves.move("flights", name, to, expected=moves.plan("flights", name, to).at, by="token").number

    number = move(10)
    part = pages.render(PAGE, OPERATOR).parts["undo"]
    assert f"&#34;number&#34;: {number}" in part
    control.topic.fails = LinkTimeout("no answer")
    with pytest.raises(LinkTimeout):
        move(15)
    pages.look_again()
    assert pages.render(PAGE, OPERATOR).parts["undo"] == part
    control.topic.places[name] = at(12)
    pages.look_again()
    part = pages.render(PAGE, OPERATOR).parts["undo"]
    assert "to offset 15" in part
    assert "it is not known whether it was made" in part
    assert "data-path" not in part


def test_many_looks_ask_once(pages: Pages, control: MemoryControl) -> None:
    """An open page is made again every two seconds."""
    for _ in range(5):
        pages.render(f"{PAGE}&to=latest", OPERATOR)
    assert control.topic.asked == 1


def test_recent_answers() -> None:
    """Are kept for a while, errors too; what was made before something happened is not kept."""
    now = [0.0]
    asked: list[int] = []
    answers: RecentAnswers[int] = RecentAnswers(lambda: now[0])

    def make() -> int:
        asked.append(1)
        return len(asked)

    assert [answers.get("a", make), answers.get("a", make), answers.get("b", make)] == [1, 1, 2]
    now[0] += MAX_AGE_SECONDS + 1
    assert answers.get("a", make) == 3

    def fail() -> int:
        asked.append(1)
        raise LinkTimeout("late")

    assert isinstance(answers.get("c", fail), JobpipeError)
    assert isinstance(answers.get("c", make), JobpipeError)

    def meanwhile() -> int:
        answers.forget()
        return make()

    assert answers.get("d", meanwhile) == 5
    assert answers.get("d", make) == 6


@pytest.mark.processes
def test_move_and_undo(shown: Shown) -> None:
    """From the topic: what it means in rows, one question, and the way back."""
    control = shown.served.control
    flights(control)
    shown.open("/ui/topics/flights")
    shown.page.get_by_role("link", name="Move flights.report").click()
    shown.wait_live()
    shown.page.get_by_label("latest").check()
    shown.page.get_by_role("button", name="Show what it means").click()
    shown.wait_live()
    plan, dialog = shown.page.locator("#plan"), shown.page.get_by_role("dialog")
    said = "flights.report skips 1,300 rows that it never reads: offsets 7 to 19"
    expect(plan).to_contain_text(said)
    plan.get_by_role("button", name="Move").click()
    expect(dialog).to_contain_text(said)
    assert control.topic.places["flights.report"] == at(7)
    dialog.get_by_role("button", name="Move").click()
    expect(dialog).to_be_hidden()
    assert control.topic.places["flights.report"] == at(20)
    undo = shown.page.locator("#undo")
    expect(undo).to_contain_text("from offset 7 to offset 20")
    expect(undo).to_contain_text("flights.report reads 1,300 rows again: offsets 7 to 19")
    undo.get_by_role("button", name="Undo").click()
    dialog.get_by_role("button", name="Undo").click()
    expect(dialog).to_be_hidden()
    assert control.topic.places["flights.report"] == at(7)
    expect(undo).to_contain_text("skips 1,300 rows")


@pytest.mark.processes
def test_a_move_that_is_out_of_date_says_so(shown: Shown) -> None:
    """The reader has gone on while the question was open; nothing is changed."""
    control = shown.served.control
    flights(control)
    shown.open(f"{PAGE}&to=offset&offset=2")
    shown.page.locator("#plan").get_by_role("button", name="Move").click()
    control.topic.places["flights.report"] = at(8)
    dialog = shown.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Move").click()
    expect(dialog.get_by_role("alert")).to_contain_text("stands at offset 8, and the plan saw it at offset 7")
    assert control.topic.places["flights.report"] == at(8)


@pytest.mark.processes
@pytest.mark.parametrize("width", [390, 1280])
def test_the_form_fits_the_screen(shown: Shown, width: int) -> None:
    flights(shown.served.control)
    shown.page.set_viewport_size({"width": width, "height": 800})
    shown.open(f"{PAGE}&to=latest")
    assert shown.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
