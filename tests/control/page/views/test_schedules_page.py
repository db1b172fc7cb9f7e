"""The page of schedules: what failed is listed, whatever its age, and what can be done fits how the job stands."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from jobpipe.control.control_service import IntervalView
from jobpipe.control.page.page_snapshot import PageSnapshots
from jobpipe.control.page.pages import Pages
from jobpipe.control.page.troubles import troubles
from jobpipe.control.page.views.schedules_page import MOST_FAILED, NEWEST
from jobpipe.control.permissions import Caller, Right
from jobpipe.errors import PipelineNotFound
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.model.job_states import DesiredState, JobState
from tests.control.page.kit import job_status, put_pipeline
from tests.control_api.kit import SCHEDULE, MemoryControl

OPERATOR, VIEWER = Caller(Right.OPERATE), Caller(Right.VIEW)
PAGE = "/ui/schedules"


class Schedules(MemoryControl):
    """Intervals of one schedule, the oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[IntervalView] = []

    def put(self, *failed: int, count: int = 200, mode: Mode = Mode.BATCH, **job: Any) -> None:
        """Let there be so many intervals, some of which failed."""
        self.kept = [
            IntervalView(
                pipeline="flights",
                job="report",
                lower=f"2026-{1 + hour // 672:02d}-{1 + hour // 24 % 28:02d}T{hour % 24:02d}:00:00Z",
                upper="2027-01-01T00:00:00Z",
                state="FAILED" if hour in failed else "SUCCEEDED",
                since=1000.0,
                run=f"run-{hour}",
            )
            for hour in range(count)
        ]
        paused, is_stopped = bool(job.pop("paused", False)), job.get("want") is DesiredState.STOP
        view = replace(SCHEDULE, failed=len(failed), paused=paused, active=not (paused or is_stopped))
        self.schedule_views[("flights", "report")] = view
        fields = {"state": JobState.FINISHED, "scheduled": True, "schedule": view, "mode": mode, **job}
        put_pipeline(self, job_status("report", **fields))

    def intervals(self, pipeline: str, job: str, *, limit: int = 100) -> tuple[IntervalView, ...]:
        return tuple(reversed(self.kept))[:limit]

    def intervals_in(self, pipeline: str, job: str, state: str, *, limit: int = 100) -> tuple[IntervalView, ...]:
        return tuple(each for each in self.kept if each.state == state)[:limit]


@pytest.fixture
def control() -> Schedules:
    return Schedules()


@pytest.fixture
def snapshots(control: Schedules) -> PageSnapshots:
    return PageSnapshots(control, "/test")


@pytest.fixture
def pages(control: Schedules, snapshots: PageSnapshots) -> Pages:
    return Pages(control, snapshots)


def _buttons(main: str) -> list[str]:
    return re.findall(r"<button[^>]*>([^<]*)</button>", main)


def test_an_interval_that_failed_long_ago_has_its_buttons(
    pages: Pages, snapshots: PageSnapshots, control: Schedules
) -> None:
    """It is not among those of the strip, and attention leads to it."""
    control.put(0)
    main = pages.render(PAGE, OPERATOR).main
    assert main.count("<li ") == NEWEST < 200
    assert main.count('class="failed"') == 1
    assert 'data-path="/runs/run-0/retry"' in main
    assert 'data-path="/runs/run-0/skip"' in main
    assert "The interval 2026-01-01T00:00:00Z to 2027-01-01T00:00:00Z of flights.report is abandoned" in main
    (trouble,) = troubles(snapshots.newest())
    assert trouble.said == "1 interval failed: run again, or skip"
    path, _, part = trouble.href.partition("#")
    assert path == PAGE
    assert f'id="{part}"' in main


def test_the_earliest_that_failed_are_listed_and_the_rest_counted(pages: Pages, control: Schedules) -> None:
    control.put(*range(150))
    main = pages.render(PAGE, OPERATOR).main
    assert main.count('class="failed"') == MOST_FAILED == 100
    assert "run-99/retry" in main
    assert "run-100/" not in main
    assert "50 later intervals failed, too." in main
    control.put(*range(100))
    pages.look_again()
    assert "failed, too" not in pages.render(PAGE, OPERATOR).main


def test_a_viewer_sees_what_failed(pages: Pages, control: Schedules) -> None:
    control.put(3)
    assert _buttons(pages.render(PAGE, OPERATOR).main) == ["Run again", "Skip", "Pause the schedule"]
    main = pages.render(PAGE, VIEWER).main
    assert main.count('class="failed"') == 1
    assert _buttons(main) == []


@pytest.mark.parametrize(
    ("fields", "said", "buttons"),
    [
        ({}, "next run", ["Pause the schedule"]),
        ({"paused": True}, "paused", ["Resume the schedule"]),
        ({"want": DesiredState.STOP}, "its job is stopped", ["Resume the job"]),
        ({"want": DesiredState.STOP, "paused": True}, "paused, and its job is stopped", ["Resume the job"]),
        ({"want": DesiredState.STOP, "state": JobState.LOST}, "its job is stopped", []),
    ],
)
def test_a_stopped_job_is_resumed_here(
    pages: Pages, control: Schedules, fields: dict[str, Any], said: str, buttons: list[str]
) -> None:
    """To pause what is stopped, or to let it go on, would not help."""
    control.put(**fields)
    main = pages.render(PAGE, OPERATOR).main
    assert re.search(rf"· {said}(</p>| <time)", main)
    assert _buttons(main) == buttons
    if buttons == ["Resume the job"]:
        assert 'data-path="/pipelines/flights/jobs/report/resume"' in main
        assert ("the schedule is paused, too" in main) is ("paused" in fields)


def test_what_a_skip_leaves_out_follows_how_the_job_runs(pages: Pages, control: Schedules) -> None:
    """A stream goes on after what it has read, whatever its intervals."""
    control.put(0)
    assert "Rows that it has not read are left out." in pages.render(PAGE, OPERATOR).main
    control.put(0, mode=Mode.STREAMING)
    pages.look_again()
    main = pages.render(PAGE, OPERATOR).main
    assert "left out." not in main
    assert "What it has not read, the next run reads." in main


def test_a_schedule_that_is_gone_leaves_the_others(
    pages: Pages, control: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest file does not have its job, which still ends."""
    control.put(0)
    control.schedule_views[("flights", "gone")] = replace(SCHEDULE, job="gone")
    there = control.intervals

    def intervals(pipeline: str, job: str, *, limit: int = 100) -> tuple[IntervalView, ...]:
        if job == "gone":
            raise PipelineNotFound("pipeline flights has no job 'gone'", job=job)
        return there(pipeline, job, limit=limit)

    assert "flights.gone" in pages.render(PAGE, OPERATOR).main
    monkeypatch.setattr(control, "intervals", intervals)
    pages.look_again()
    page = pages.render(PAGE, OPERATOR)
    assert page.status == 200
    assert "flights.report" in page.main
    assert "flights.gone" not in page.main
