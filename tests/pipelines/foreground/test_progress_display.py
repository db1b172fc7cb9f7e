"""What is shown of a pipeline while it runs."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from jobpipe.jobs.foreground import progress_display as module
from jobpipe.jobs.foreground.foreground_jobs import JobView
from jobpipe.jobs.foreground.progress_display import (
    DisplayConsole,
    LineDisplay,
    LiveDisplay,
    common_prefix,
    open_display,
)
from jobpipe.jobs.monitor.topic_poller import SubscriptionView, TopicView
from jobpipe.pipelines.model.job_states import JobState

LINES = (SubscriptionView("flights.delays", "connected", 2, 2000, 1), SubscriptionView("other", "absent", 0, 0, 0))
TOPIC = TopicView("flights", "live", 12345, 100.4, 2_500_000.0, None, LINES)
JOB = JobView("report", JobState.RUNNING, 7, 1, 12.3, "", 0, 0, Path("report.log"))


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def console(*, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=160, record=True)


class Plain:
    """A plain board, and what it has printed since the last look."""

    def __init__(self) -> None:
        self._console = console()
        self._display = LineDisplay(self._console)

    def show(self, topics: Sequence[TopicView] = (), jobs: Sequence[JobView] = ()) -> list[str]:
        with self._display as display:
            display.show(topics, jobs)
        return self._console.export_text().splitlines()


def test_which_board(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_display(console(terminal=True), "x", plain=False), LiveDisplay)
    assert isinstance(open_display(console(terminal=True), "x", plain=True), LineDisplay)
    assert isinstance(open_display(console(), "x", plain=False), LineDisplay)
    monkeypatch.setenv("TERM", "dumb")  # it has no cursor that could go back
    assert isinstance(open_display(console(terminal=True), "x", plain=False), LineDisplay)


def test_a_line_for_each_change_of_a_topic(clock: Clock) -> None:
    display = Plain()
    assert display.show([TopicView("flights")]) == ["   0 s  topic flights: not there yet"]
    clock.now += 30
    assert display.show([TopicView("flights")]) == []
    line = "  30 s  topic flights: live, 12,345 rows, 100 rows/s; flights.delays is 2 batches (2,000 rows) behind"
    assert display.show([TOPIC]) == [line]
    clock.now += 10
    assert display.show([replace(TOPIC, rows=20_000)]) == []
    assert display.show([replace(TOPIC, rows=1, waiting="[full]", subscriptions=())]) == [
        "  40 s  topic flights: live, 1 row, 100 rows/s, waits: [full]"
    ]
    assert display.show([replace(TOPIC, state="away")]) == ["  40 s  topic flights: does not answer"]
    assert display.show([replace(TOPIC, state="ended", subscriptions=())]) == [
        "  40 s  topic flights: ended, 12,345 rows, 100 rows/s"
    ]
    assert display.show([replace(TOPIC, state="ended", subscriptions=())]) == []


def test_a_summary_each_minute(clock: Clock) -> None:
    display = Plain()
    idle = TopicView("bad", "live")
    assert len(display.show([TOPIC, idle], [JOB])) == 3
    clock.now += module.SUMMARY_SECONDS
    assert display.show([TOPIC, idle], [JOB]) == [
        "  60 s  1 of 1 job RUNNING; topic flights 12,345 rows, 100 rows/s; "
        "flights.delays is 2 batches (2,000 rows) behind"
    ]
    clock.now += module.SUMMARY_SECONDS - 1
    assert display.show([TOPIC, idle], [JOB]) == []


@pytest.mark.parametrize("width", [80, 100])
def test_names_on_a_narrow_terminal_are_whole(clock: Clock, width: int) -> None:
    shown = Console(file=io.StringIO(), force_terminal=True, width=width, record=True)
    lines = [SubscriptionView(f"shop.{name}", "connected", 0, 10, 0) for name in ("print-orders", "store-orders")]
    topics = [TopicView("dev.bad-orders", "live"), TopicView("dev.big-orders", "live", subscriptions=tuple(lines))]
    with LiveDisplay(shown, "pipeline shop") as display:
        display.show(topics, [JOB])
    text = shown.export_text()
    for part in ("dev.…", "bad-orders", "big-orders", "shop.…", "print-orders", "store-orders", "lag rows", "rows/s"):
        assert part in text
    assert not any(part in text for part in ("MB/s", "reconnects", "lag batches"))


def test_what_names_have_in_common() -> None:
    assert common_prefix(["dev.shop.a", "dev.shop.b"]) == "dev.shop."
    assert common_prefix(["dev.a"]) == common_prefix(["a", "b"]) == common_prefix(["bad", "big"]) == ""


def test_a_job_is_starting_until_its_spark_is_there(clock: Clock) -> None:
    display = Plain()
    assert display.show(jobs=[replace(JOB, starting=True)]) == ["   0 s  job report: STARTING, 12 s"]
    assert display.show(jobs=[JOB]) == ["   0 s  job report: RUNNING, 12 s"]


def test_a_line_for_each_change_of_a_job(clock: Clock) -> None:
    display = Plain()
    assert display.show(jobs=[JOB]) == ["   0 s  job report: RUNNING, 12 s"]
    clock.now += 5
    assert display.show(jobs=[replace(JOB, seconds=17.3)]) == []
    again = replace(JOB, state=JobState.RESTARTING, seconds=18.0, detail="attempt 7: [bold]OSError")
    assert display.show(jobs=[again]) == ["   5 s  job report: RESTARTING, 18 s: attempt 7: [bold]OSError"]
    assert display.show(jobs=[replace(again, state=JobState.SUBMITTED, attempts=2, detail="")]) == [
        "   5 s  job report: SUBMITTED, 18 s, attempt 2"
    ]
    ended = replace(again, state=JobState.FINISHED, attempts=2, detail="", rows=1500, rows_per_second=83.4)
    assert display.show(jobs=[ended]) == ["   5 s  job report: FINISHED, 18 s, 1,500 rows read, 83 rows/s, attempt 2"]
    slow = replace(JOB, name="slow", state=JobState.FINISHED, rows=1, rows_per_second=0.9)
    assert display.show(jobs=[slow]) == ["   5 s  job slow: FINISHED, 12 s, 1 row read, 1 row/s"]
    flow = replace(JOB, name="flow", state=JobState.FINISHED, batches=1)
    assert display.show(jobs=[flow]) == ["   5 s  job flow: FINISHED, 12 s, 1 batch"]


def test_why_a_job_waits_is_said_now_and_then(clock: Clock) -> None:
    display = Plain()
    assert display.show(jobs=[replace(JOB, detail="a")]) == ["   0 s  job report: RUNNING, 12 s: a"]
    clock.now += module.LINE_SECONDS - 1
    assert display.show(jobs=[replace(JOB, detail="b")]) == []
    clock.now += 1
    assert display.show(jobs=[replace(JOB, detail="c")]) == ["  10 s  job report: RUNNING, 12 s: c"]
    clock.now += 40
    assert display.show(jobs=[replace(JOB, detail="c")]) == []


def test_a_long_line_is_one_line(clock: Clock) -> None:
    (line,) = Plain().show(jobs=[replace(JOB, detail="word " * 100)])
    assert line.count("word") == 100


def test_tables_on_a_terminal(clock: Clock) -> None:
    shown = console(terminal=True)
    report = replace(JOB, rows=1500, rows_per_second=250.0, lag_rows=20)
    jobs = [report, replace(JOB, name="audit", state=JobState.FAILED, attempts=3, detail="SchemaMismatch [stage 2]")]
    jobs.append(replace(JOB, name="flow", batches=3))
    with LiveDisplay(shown, "pipeline flights") as display:
        clock.now += 65
        display.show([TOPIC, TopicView("delays")], jobs)
    text = shown.export_text()
    for part in ("pipeline flights, 65 s", "12,345", "100", "2.50", "flights.delays", "2,000", "other", "waiting"):
        assert part in text
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert rows[:3] == [
        ["report", "1,500", "250", "20", "RUNNING, 12 s"],
        ["audit", "-", "-", "-", "FAILED, 12 s, attempt 3: SchemaMismatch [stage 2]"],
        ["flow", "3 batches", "-", "-", "RUNNING, 12 s"],
    ]


def test_without_colours_there_are_no_styles(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> str:
        file = io.StringIO()
        with LiveDisplay(DisplayConsole(file=file, force_terminal=True, width=160), "pipeline flights") as display:
            display.show([TOPIC], [replace(JOB, state=JobState.FAILED)])
        return file.getvalue()

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "")
    assert "\x1b[1m" in drawn()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[\d;]*m", drawn())


def test_on_a_low_terminal_the_jobs_are_seen(clock: Clock) -> None:
    shown = Console(file=io.StringIO(), force_terminal=True, width=160, height=10, record=True)
    display = LiveDisplay(shown, "pipeline flights")
    with display:
        display.show([replace(TOPIC, topic=f"topic{number}") for number in range(30)], [JOB])
        assert "report" in shown.export_text(clear=False)


def test_a_console_whose_reader_is_gone() -> None:
    """As with `| head`; Rich's own would end the program, and with it the jobs in the middle of a micro-batch."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", encoding="utf-8") as file:
        shown = DisplayConsole(file=file)
        LineDisplay(shown).show([], [JOB])
        LineDisplay(shown).show([], [JOB])
        assert shown.quiet


def test_without_topics_there_is_a_title(clock: Clock) -> None:
    shown = console(terminal=True)
    with LiveDisplay(shown, "pipeline [flights]") as display:
        display.show([], [JOB])
    assert "pipeline [flights], 0 s" in shown.export_text()


def test_what_is_shown_is_no_markup(clock: Clock) -> None:
    shown = console(terminal=True)
    with LiveDisplay(shown, "pipeline [flights]") as display:
        lines = (replace(LINES[0], name="[/red]"),)
        display.show(
            [replace(TOPIC, waiting="no room for [bold] of [/a]", subscriptions=lines)], [replace(JOB, name="[b]")]
        )
    text = shown.export_text()
    for part in ("pipeline [flights], 0 s", "[bold]", "[/a]", "[/red]", "[b]"):
        assert part in text
