"""The page of schedules: how each stands, its newest intervals, and all that failed, with what can be done."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jobpipe.control.control_service import Control, IntervalView, JobStatus, ScheduleView
from jobpipe.control.page.graph_drawing import job_href
from jobpipe.control.page.marks import Mark, interval_mark
from jobpipe.control.page.page_snapshot import PageSnapshot
from jobpipe.control.page.rendering import RenderedPage, part_id, render_page
from jobpipe.control.page.views.job_actions import resume_action
from jobpipe.control.page.views.page_action import PageAction
from jobpipe.control.permissions import Caller, Right
from jobpipe.errors import PipelineNotFound
from jobpipe.jobs.schedules.schedule_decisions import IntervalState
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.model.job_states import DesiredState

NEWEST = 60  # intervals in the strip
MOST_FAILED = 100  # that are listed


@dataclass(frozen=True)
class FailedInterval:
    """An interval whose run has failed."""

    interval: IntervalView
    actions: tuple[PageAction, ...]


@dataclass(frozen=True)
class ScheduleLine:
    """A schedule.

    Attributes:
        newest: intervals with their marks, the newest last.
        failed: the earliest ones that failed: what depends on them waits.
        more_failed: how many there are besides.
        action: what can be done with the schedule, or with its job.
    """

    schedule: ScheduleView
    id: str
    href: str
    newest: tuple[tuple[IntervalView, Mark], ...]
    failed: tuple[FailedInterval, ...]
    more_failed: int
    is_stopped: bool
    action: PageAction | None


def schedule_id(pipeline: str, job: str) -> str:
    """Return the id of a schedule's part of the page."""
    return part_id(f"{pipeline}/{job}")


def schedule_href(pipeline: str, job: str) -> str:
    """Return the address of a schedule's part of the page."""
    return f"/ui/schedules#{schedule_id(pipeline, job)}"


def schedules_page(control: Control, snapshot: PageSnapshot, caller: Caller) -> RenderedPage:
    """Return the page."""
    operates = caller.right.includes(Right.OPERATE)
    lines = []
    for schedule in control.schedules():
        try:
            lines.append(_line(control, schedule, snapshot.jobs.get((schedule.pipeline, schedule.job)), operates))
        except PipelineNotFound:
            continue  # the pipeline was deleted just now, or its newest file does not have the job any more
    mark = interval_mark(IntervalState.FAILED)
    return render_page("schedules.html", "Schedules", snapshot=snapshot, schedules=lines, failed_mark=mark)


def _line(control: Control, schedule: ScheduleView, job: JobStatus | None, operates: bool) -> ScheduleLine:
    pipeline, name = schedule.pipeline, schedule.job
    newest = control.intervals(pipeline, name, limit=NEWEST)
    failed = control.intervals_in(pipeline, name, IntervalState.FAILED, limit=MOST_FAILED) if schedule.failed else ()
    is_stopped = job is not None and job.want is DesiredState.STOP
    return ScheduleLine(
        schedule,
        schedule_id(pipeline, name),
        job_href(pipeline, name),
        tuple((each, interval_mark(each.state)) for each in reversed(newest)),
        tuple(FailedInterval(each, _interval_actions(each, job) if operates else ()) for each in failed),
        max(0, schedule.failed - len(failed)),
        is_stopped,
        _action(schedule, job if is_stopped else None) if operates else None,
    )


def _action(schedule: ScheduleView, stopped: JobStatus | None) -> PageAction | None:
    """Return what lets a schedule make runs, or no more: of a stopped job that is to resume the job."""
    name, path = f"{schedule.pipeline}.{schedule.job}", f"/pipelines/{schedule.pipeline}/jobs/{schedule.job}/schedule"
    if stopped is not None:
        resume = resume_action(stopped)
        return None if resume is None else replace(resume, label="Resume the job")
    if schedule.paused:
        said = f"The schedule of {name} makes runs again; what was missed follows its catchup."
        return PageAction("Resume the schedule", "PUT", f"{path}/resume", said)
    said = f"The schedule of {name} makes no runs until it is resumed. A run that is under way goes on."
    return PageAction("Pause the schedule", "PUT", f"{path}/pause", said)


def _interval_actions(interval: IntervalView, job: JobStatus | None) -> tuple[PageAction, ...]:
    """Return what can be done with an interval that failed."""
    if interval.run is None:
        return ()
    which = f"The interval {interval.lower} to {interval.upper} of {interval.pipeline}.{interval.job}"
    again = (
        f"{which} waits until its schedule makes its run once more, under the same run id, so that a topic gets "
        "nothing twice."
    )
    skip = f"{which} is abandoned: no run is made for it, and nothing waits for it."
    if job is not None and job.mode is Mode.STREAMING:
        skip = f"{skip} What it has not read, the next run reads."
    elif job is not None:
        skip = f"{skip} Rows that it has not read are left out."
    return (
        PageAction("Run again", "POST", f"/runs/{interval.run}/retry", again),
        PageAction("Skip", "POST", f"/runs/{interval.run}/skip", skip, True),
    )
