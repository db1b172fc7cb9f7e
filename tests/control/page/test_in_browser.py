"""The page in a real browser, over a core in memory: what is shown, how it stays live, what a person does."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from jobpipe.control.control_service import AttemptView, PipelineStatus, RunView
from jobpipe.errors import ControlConflict, RegistryUnavailable
from jobpipe.pipelines.model.job_states import JobState
from tests.control.page.kit import Shown, flights, job_status, put_pipeline, put_topics, topic
from tests.control_api.kit import DEADLINE, SCHEDULE, Served

pytestmark = pytest.mark.processes

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'
RIGHT_TO_LEFT = "שלום עולם"
LONG = "x" * 10_000


def test_signing_in_by_the_form(page: Page, served: Served) -> None:
    """With a token; then the graph is there, and says what to type while nothing runs."""
    page.goto("/")
    expect(page.get_by_role("heading")).to_have_text("Sign in")
    page.get_by_label("Or give a token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("The server does not have that token.")
    page.get_by_label("Or give a token").fill(served.view)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#main")).to_contain_text("jobpipe pipeline submit")
    expect(page.locator(".who")).to_contain_text("may view")
    page.get_by_role("button", name="sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_the_graph_shows_jobs_topics_rates_and_lags(shown: Shown) -> None:
    """And follows what happens, without being loaded again."""
    flights(shown.served.control)
    shown.open("/")
    graph = shown.page.locator("#graph")
    expect(graph.get_by_role("link", name="flights.report")).to_contain_text("running · 900 rows")
    expect(graph).to_contain_text("lag 2.5 s")
    shown.page.evaluate("window.stays = true")
    put_topics(
        shown.served.control, topic("flights", "flights.publish", {"flights.report": (7, 60.0)}, rows=1400, at=12.0)
    )
    shown.tell()
    expect(graph).to_contain_text("lag 60 s")
    expect(graph).to_contain_text("100 rows/s")
    put_topics(
        shown.served.control, topic("flights", "flights.publish", {"flights.report": (0, 0.0)}, rows=1400, at=14.0)
    )
    shown.tell()
    expect(graph).not_to_contain_text("lag")
    assert shown.page.evaluate("window.stays")


def test_a_new_job_appears(shown: Shown) -> None:
    """The page is made again, with what a person typed."""
    flights(shown.served.control)
    shown.open("/")
    shown.page.get_by_label("Find").fill("rep")
    expect(shown.page.locator(".node.found")).to_have_count(1)
    put_pipeline(shown.served.control, *(job_status(name) for name in ("publish", "report", "repeat")))
    shown.tell()
    expect(shown.page.locator(".node.found")).to_have_count(2)
    expect(shown.page.get_by_label("Find")).to_have_value("rep")


def test_the_cause_of_a_failure_is_two_clicks_away(shown: Shown) -> None:
    """From anywhere: the graph, then the job that it names."""
    control = shown.served.control
    said = "ValueError: row 17 of topic flights: 'price' is no number"
    put_pipeline(control, job_status("report", state=JobState.FAILED, detail=said))
    attempt = AttemptView(number=1, state=JobState.FAILED, began=1.0, ended=2.0, detail=said, exit_code=1)
    control.run_views["run-1"] = RunView(
        id="run-1", pipeline="flights", job="report", state=JobState.FAILED, began=1.0, ended=2.0, attempts=(attempt,)
    )
    control.lines = ("one", "Traceback (most recent call last):", "ValueError: 'price'")
    shown.open("/ui/topics")
    shown.page.get_by_role("link", name="Graph").click()
    shown.page.locator(".troubles").get_by_role("link", name="flights.report").click()
    expect(shown.page.get_by_role("alert")).to_have_text(said)
    expect(shown.page.locator("#log")).to_contain_text("ValueError: 'price'")
    expect(shown.page.locator("#runs")).to_contain_text("exit code 1")


def test_stop_and_restart(shown: Shown) -> None:
    """Each asks once, and says what it will do; Cancel does nothing."""
    control = shown.served.control
    flights(control)
    shown.open("/ui/jobs/flights/report")
    stop, dialog = shown.page.get_by_role("button", name="Stop"), shown.page.get_by_role("dialog")
    stop.click()
    expect(dialog).to_contain_text("flights.report ends after the micro-batch that it is in.")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    assert not any(call[0] == "stop" for call in control.calls)
    stop.click()
    dialog.get_by_role("button", name="Stop").click()
    expect(dialog).to_be_hidden()
    expect(shown.page.locator("#told")).to_have_text("Stop: done")
    assert ("stop", "flights", "report") in control.calls
    expect(shown.page.locator("#state")).to_contain_text("stopped")
    shown.page.get_by_role("button", name="Resume").click()
    dialog.get_by_role("button", name="Resume").click()
    expect(shown.page.locator("#state")).to_contain_text("running")


def test_a_refused_action_says_why(shown: Shown) -> None:
    """In the server's words, and the dialog stays."""
    control = shown.served.control
    flights(control)
    shown.open("/ui/jobs/flights/report")
    shown.page.get_by_role("button", name="Stop").click()
    dialog = shown.page.get_by_role("dialog")
    control.stop = _refuse  # type: ignore[method-assign]
    dialog.get_by_role("button", name="Stop").click()
    expect(dialog.get_by_role("alert")).to_have_text("flights is being deleted; wait")


def _refuse(*_: object) -> None:
    raise ControlConflict("flights is being deleted; wait")


def test_a_viewer_has_no_buttons(page: Page, served: Served) -> None:
    """One who may operate has them at the same place."""
    flights(served.control)
    shown = Shown(page, served)
    shown.sign_in()
    shown.open("/ui/jobs/flights/report")
    expect(page.get_by_role("button", name="Stop")).to_have_count(1)
    shown.sign_in("view")
    shown.open("/ui/jobs/flights/report")
    expect(page.locator("#state")).to_contain_text("running")
    expect(page.locator("button[data-path]")).to_have_count(0)


def test_a_link_cut_and_back(shown: Shown) -> None:
    """The page says of when it is, and goes on by itself."""
    control = shown.served.control
    flights(control)
    shown.open("/")
    shown.page.context.set_offline(True)
    shown.page.evaluate("dispatchEvent(new Event('offline'))")
    expect(shown.page.locator("#live")).to_contain_text("as of")
    put_topics(control, topic("flights", "flights.publish", {"flights.report": (9, 99.0)}, rows=1, at=1.0))
    shown.page.context.set_offline(False)
    shown.wait_live()
    expect(shown.page.locator("#graph")).to_contain_text("lag 99 s")


def test_a_registry_that_is_away_is_said(shown: Shown) -> None:
    """Jobs are shown all the same."""
    control = shown.served.control
    flights(control)
    shown.open("/")
    put_topics(control, error=RegistryUnavailable("no ZooKeeper at 127.0.0.1:1 answers"))
    shown.tell()
    expect(shown.page.get_by_role("alert")).to_contain_text("no ZooKeeper at 127.0.0.1:1 answers")
    expect(shown.page.locator("#graph")).to_contain_text("flights.report")


def test_hostile_names_stay_text(shown: Shown) -> None:
    """Markup, ten thousand characters, right-to-left text: in names, errors and logs; nothing breaks the layout."""
    control = shown.served.control
    said = f"{HOSTILE} {LONG} {RIGHT_TO_LEFT}"
    put_pipeline(control, job_status("report", state=JobState.FAILED, detail=said, reads=("flights",)))
    readers = {HOSTILE[:90]: (1, 1.0), RIGHT_TO_LEFT: (1, 1.0), "y" * 2000: (1, 1.0)}
    put_topics(control, topic("flights", HOSTILE[:90], readers, rows=1, at=1.0))
    control.lines = (said, "\u202e turned")
    for path in ("/", "/ui/jobs", "/ui/jobs/flights/report", "/ui/topics", "/ui/topics/flights", "/ui/events"):
        shown.open(path)
        assert shown.page.locator("#main img, #main script").count() == 0
        wide = shown.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, path
    shown.open("/ui/topics/flights")
    assert RIGHT_TO_LEFT in shown.main()
    assert "<script>alert(2)" in shown.main()


def test_a_selection_is_not_taken_away(shown: Shown) -> None:
    """A person who copies a line of the log keeps it selected until done; then the log goes on."""
    control = shown.served.control
    flights(control)
    control.lines = ("the first line",)
    shown.open("/ui/jobs/flights/report")
    shown.page.evaluate("getSelection().selectAllChildren(document.getElementById('log'))")
    control.lines = ("the first line", "the second line")
    control.set_state("flights", "report", JobState.BLOCKED)
    shown.tell()
    expect(shown.page.locator("#state")).to_contain_text("blocked")  # the same message had the log
    assert shown.page.evaluate("getSelection().toString()").strip() == "the first line"
    shown.page.evaluate("getSelection().removeAllRanges()")
    expect(shown.page.locator("#log")).to_contain_text("the second line")


def test_the_keyboard_alone(shown: Shown) -> None:
    """From the top to the job, its dialog and back."""
    flights(shown.served.control)
    shown.open("/ui/jobs/flights/report")
    shown.page.keyboard.press("Tab")
    expect(shown.page.get_by_text("Skip to the content")).to_be_focused()
    shown.page.keyboard.press("Enter")
    for _ in range(10):
        shown.page.keyboard.press("Tab")
        if shown.page.evaluate("document.activeElement.textContent") == "Stop":
            break
    shown.page.keyboard.press("Enter")
    expect(shown.page.get_by_role("dialog")).to_be_visible()
    expect(shown.page.get_by_role("button", name="Cancel")).to_be_focused()  # what does nothing is nearest
    shown.page.keyboard.press("Escape")
    expect(shown.page.get_by_role("dialog")).to_be_hidden()
    expect(shown.page.get_by_role("button", name="Stop")).to_be_focused()


def test_schedules_as_a_strip(shown: Shown) -> None:
    """With what failed, and how to run it again."""
    control = shown.served.control
    put_pipeline(control, job_status("report", scheduled=True, schedule=SCHEDULE))
    control.schedule_views[("flights", "report")] = SCHEDULE
    control.run_views["run-1"] = RunView(
        id="run-1", pipeline="flights", job="report", state=JobState.FAILED, began=1.0, ended=2.0
    )
    shown.open("/ui/schedules")
    expect(shown.page.locator(".strip .mark")).to_have_attribute("aria-label", "2026-11-21T00:00:00Z: failed")
    shown.page.get_by_role("button", name="Run again").click()
    dialog = shown.page.get_by_role("dialog")
    expect(dialog).to_contain_text("its run once more")
    dialog.get_by_role("button", name="Run again").click()
    expect(dialog).to_be_hidden()
    assert ("retry", "run-1", False) in control.calls


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen(shown: Shown, width: int, scheme: str) -> None:
    """Tables and the graph scroll by themselves."""
    control = shown.served.control
    flights(control)
    control.schedule_views[("flights", "report")] = replace(SCHEDULE)
    shown.page.set_viewport_size({"width": width, "height": 800})
    shown.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    for path in ("/", "/ui/jobs", "/ui/jobs/flights/report", "/ui/topics", "/ui/topics/flights", "/ui/schedules"):
        shown.open(path)
        wide = shown.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, path


def test_no_script_of_others_runs(shown: Shown) -> None:
    """Even if markup got into the page: the Content-Security-Policy refuses it, and fetches nothing from elsewhere."""
    shown.open("/")
    with shown.page.expect_console_message(lambda said: "Content Security Policy" in said.text):
        shown.page.evaluate("""() => {
            const script = document.createElement("script");
            script.textContent = "window.broken = true";
            document.body.append(script);
        }""")
    assert shown.page.evaluate("window.broken") is None
    shown.expected.append("Content Security Policy")


def test_an_answer_that_comes_late_is_not_taken_for_another(shown: Shown) -> None:
    """A dialog that was closed before its answer came says so aside; the next one stays open."""
    control = shown.served.control
    flights(control)
    shown.open("/ui/jobs/flights/report")
    asked, go_on = threading.Event(), threading.Event()

    def stop(*_: object) -> PipelineStatus:
        asked.set()
        assert go_on.wait(DEADLINE)
        return control.statuses["flights"]

    control.stop = stop  # type: ignore[method-assign]
    dialog = shown.page.get_by_role("dialog")
    shown.page.get_by_role("button", name="Stop").click()
    dialog.get_by_role("button", name="Stop").click()
    assert asked.wait(DEADLINE)
    shown.page.keyboard.press("Escape")
    shown.page.get_by_role("button", name="Restart").click()
    go_on.set()
    expect(shown.page.locator("#told")).to_have_text("Stop: done")
    expect(dialog).to_be_visible()
    assert not any(call[0] == "restart" for call in control.calls)


def test_an_ended_session_leads_to_the_form(shown: Shown) -> None:
    """Also if the link was cut when it ended."""
    flights(shown.served.control)
    shown.open("/")
    shown.page.context.clear_cookies()
    shown.page.evaluate("dispatchEvent(new Event('offline'))")
    expect(shown.page.get_by_role("heading", name="Sign in")).to_be_visible()


@pytest.mark.slow
def test_a_tab_that_is_not_seen_pauses(shown: Shown) -> None:
    """A browser has six connections to a server, for all its tabs and for what their buttons send."""
    control = shown.served.control
    flights(control)
    tabs = [shown.page.context.new_page() for _ in range(7)]
    hide = "Object.defineProperty(document, 'hidden', {get: () => window.isHidden ?? true})"
    for tab in tabs:
        tab.add_init_script(hide)
        tab.goto("/")
        expect(tab.locator("#live")).to_contain_text("paused")
    shown.open("/ui/jobs/flights/report")
    shown.page.get_by_role("button", name="Stop").click()
    shown.page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(shown.page.locator("#state")).to_contain_text("stopped")
    tabs[0].evaluate("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
    tabs[0].wait_for_selector("#live[data-state=live]")


def test_the_focus_does_not_move_to_another_button(shown: Shown) -> None:
    """Enter would press it."""
    control = shown.served.control
    flights(control)
    shown.open("/ui/jobs/flights/report")
    shown.page.get_by_role("button", name="Stop").focus()
    control.set_state("flights", "report", JobState.STOPPED)
    shown.tell()
    expect(shown.page.locator("#state")).to_contain_text("stopped")
    assert shown.page.evaluate("document.activeElement.tagName") != "BUTTON"


def test_nothing_is_calm_that_is_not_known(shown: Shown) -> None:
    """While topics are not known; once they are, it is."""
    control = shown.served.control
    flights(control)
    put_topics(control, error=RegistryUnavailable("no ZooKeeper at 127.0.0.1:1 answers"))
    shown.open("/")
    expect(shown.page.get_by_role("alert")).to_contain_text("no ZooKeeper")
    expect(shown.page.locator("#main")).not_to_contain_text("nothing needs attention")
    flights(control)
    shown.tell()
    expect(shown.page.locator("#main")).to_contain_text("nothing needs attention")
