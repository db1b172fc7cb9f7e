"""What can be done with a job, or a whole pipeline: only what works now, each with what it will do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from jobpipe.control.control_service import JobStatus, PipelineStatus
from jobpipe.control.page.views.page_action import PageAction
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.model.job_states import ENDED, DesiredState, JobState

MOST_NAMED = 20  # jobs in one sentence
_NO_ATTEMPT = (JobState.RESTARTING, JobState.STOPPING)  # that is to be told to end: there is none, or it ends already
_KEPT = "stopped, also when the server restarts."


def job_actions(job: JobStatus) -> tuple[PageAction, ...]:
    """Return what can be done with a job now."""
    found = (_stop(job), resume_action(job), _restart(job), _give_up(job))
    return tuple(action for action in found if action is not None)


def pipeline_actions(pipeline: PipelineStatus) -> tuple[PageAction, ...]:
    """Return what can be done with a pipeline now."""
    found = (_stop_all(pipeline), _resume_all(pipeline))
    return tuple(action for action in found if action is not None)


# -- one job -----------------------------------------------------------------------------------------------------------


def _stop(job: JobStatus) -> PageAction | None:
    if job.removed or job.want is DesiredState.STOP or job.state in ENDED:
        return None
    said = f"{_stopped(job)} It stays {_KEPT}"
    if job.reads and (job.scheduled or (_begins_by_itself(job) and _is_stream(job))):
        said = f"{said} Rows that it has not read are kept for it, as far as its topics' limits go."
    return PageAction("Stop", "PUT", f"{_path(job)}/stop", said, True)


def _stopped(job: JobStatus) -> str:
    """Return what a stop does to the run of a job, and to those that would follow."""
    name, said = _name(job), [_ends(job)]
    if job.scheduled and job.state not in (JobState.LOST, JobState.STOPPING):  # a canceled run's interval has failed
        said.append("Its interval waits, and is run again, under the same run id, when the job goes on.")
    if job.scheduled:
        said.append("Its schedule makes no runs until the job is resumed.")
    elif job.on_demand:
        said.append(f"New runs of {name} over ranges are refused until the job is resumed.")
    return " ".join(said)


def _ends(job: JobStatus) -> str:
    """Return how the run of a job ends when it is stopped."""
    name = _name(job)
    if job.state is JobState.LOST:
        return f"It is not known whether {name} still runs. If it does, it ends as soon as the server reaches it."
    if job.state in _NO_ATTEMPT:
        return f"{name} ends, and does not start again."
    said = f"{name} ends {_how(job)}."
    if job.state is JobState.SUBMITTED:
        said = f"{name} does not begin; if it has begun meanwhile, it ends {_how(job)}."
    return said if job.mode is Mode.BATCH else f"{said} If that takes too long, it is cut short."


def _how(job: JobStatus) -> str:
    """Return when a run ends that is under way, and that is stopped."""
    if job.kind == "application":
        return "as its program does on SIGTERM"
    if job.kind == "flow":
        return "when its tasks have published what its function has returned"
    if job.kind == "capture":
        return "after the batch that it is publishing"
    return "in the middle of its run" if job.mode is Mode.BATCH else "after the micro-batch that it is in"


def resume_action(job: JobStatus) -> PageAction | None:
    """Return what lets a job run that was stopped, or has ended; None if that would do nothing, or be refused."""
    is_wanted = job.want is DesiredState.RUN
    if job.removed or job.state is JobState.LOST or (is_wanted and not (_begins_by_itself(job) and job.state in ENDED)):
        return None
    name = _name(job)
    if job.scheduled:
        said = f"The schedule of {name} makes runs again: of intervals that wait, and, by its catchup, of those missed."
        if job.schedule is not None and job.schedule.failed:
            said = f"{said} Intervals that have failed wait for you: run them again, or skip them."
        if job.schedule is not None and job.schedule.paused:
            said = f"{said} But the schedule is paused, too, and makes none until you resume it."
    elif job.on_demand:
        said = f"{name} can be run over ranges again. No run begins by itself: `jobpipe runs start` begins one."
    elif job.state in ENDED:
        said = f"{name} starts as a new run, {_from(job)}."
    else:
        said = f"{name} starts as a new run, {_from(job)}, as soon as the present one has ended."
    return PageAction("Resume", "PUT", f"{_path(job)}/resume", said)


def _from(job: JobStatus) -> str:
    """Return where a new run of a job begins."""
    if job.kind == "application":
        return "from the beginning of its program"
    if job.kind == "flow":
        return "from the first batch that it has not done"
    if job.kind == "capture":
        return "from the first change that it has not published"
    if job.mode is Mode.BATCH:
        return "over all that it reads"
    return "without its checkpoint" if job.new_checkpoint else "from its checkpoint if it has one"


def _restart(job: JobStatus) -> PageAction | None:
    is_at_work = job.state not in ENDED and job.state is not JobState.LOST
    is_new = job.state is JobState.SUBMITTED and not job.attempt  # it begins anyway
    if job.removed or job.want is DesiredState.STOP or not is_at_work or is_new or not _begins_by_itself(job):
        return None
    name, begins = _name(job), f"a new run begins, {_from(job)}."
    if job.state is JobState.RESTARTING:
        said = f"{name} does not wait for its next attempt: {begins}"
    elif job.state in (JobState.STOPPING, JobState.SUBMITTED):
        said = f"As soon as the present run of {name} has ended, {begins}"
    else:
        said = f"{name} ends {_how(job)}, then {begins}"
    return PageAction("Restart", "POST", f"{_path(job)}/restart", said)


def _give_up(job: JobStatus) -> PageAction | None:
    """Return what is to be done with a job that is LOST, if a person knows more than the server."""
    if job.removed or job.state is not JobState.LOST:
        return None
    name, path = _name(job), f"{_path(job)}/restart?force"
    sure = "Do it only if you know that its processes are gone, for instance because its host was switched off."
    unknown = "although it is not known whether it has ended"
    if _begins_by_itself(job):
        said = f"The lost run of {name} is given up, {unknown}, and a new one begins, {_from(job)}. {sure}"
        return PageAction("Restart a lost job", "POST", path, said, True)
    said = f"The lost run of {name} is given up, {unknown}: it counts as canceled."
    if job.scheduled and job.want is DesiredState.STOP:
        said = f"{said} The job is resumed, and its schedule runs the interval again, under the same run id."
    elif job.scheduled:
        said = (
            f"{said} Its interval counts as failed, and no run begins for it until you run it again, or skip it, on "
            "the page of schedules. Runs of other intervals may begin at once."
        )
    else:
        resumed = "The job is resumed, but no" if job.want is DesiredState.STOP else "No"
        said = f"{said} {resumed} new run begins: `jobpipe runs start` makes one over the same range again."
    return PageAction("Give up a lost run", "POST", path, f"{said} {sure}", True)


# -- a pipeline --------------------------------------------------------------------------------------------------------


def _stop_all(pipeline: PipelineStatus) -> PageAction | None:
    jobs = [job for job in pipeline.jobs if job.want is DesiredState.RUN and not job.removed]
    running = [job for job in jobs if job.state not in ENDED]
    said = _grouped(running, _all_end)
    if scheduled := [job for job in jobs if job.scheduled]:
        said.append(
            f"The schedules of these make no runs until their jobs are resumed: {_names(scheduled)}. Intervals whose "
            "runs end by this wait until then."
        )
    if on_demand := [job for job in jobs if job.on_demand]:
        said.append(f"New runs of these over ranges are refused until they are resumed: {_names(on_demand)}.")
    if not said:
        return None
    question = " ".join((f"Jobs of {pipeline.name} are stopped.", *said, f"They stay {_KEPT}"))
    return PageAction("Stop all", "PUT", f"/pipelines/{pipeline.name}/stop", question, True)


def _all_end(job: JobStatus) -> str:
    if job.state is JobState.LOST:
        return "It is not known whether these still run; if they do, they end as soon as the server reaches them"
    return "These end, and do not start again" if job.state in _NO_ATTEMPT else f"These end, each {_how(job)}"


def _resume_all(pipeline: PipelineStatus) -> PageAction | None:
    jobs = [job for job in pipeline.jobs if not job.removed]
    if any(job.state is JobState.LOST and job.want is DesiredState.STOP for job in jobs):
        return None  # the server refuses all of it
    jobs = [job for job in jobs if resume_action(job) is not None]
    said = _grouped([job for job in jobs if _begins_by_itself(job)], lambda job: f"These start, each {_from(job)}")
    if scheduled := [job for job in jobs if job.scheduled]:
        said.append(f"The schedules of these make runs again, unless they are paused: {_names(scheduled)}.")
    if on_demand := [job for job in jobs if job.on_demand]:
        said.append(f"These can be run over ranges again, and do not run by themselves: {_names(on_demand)}.")
    if not said:
        return None
    question = " ".join((f"Jobs of {pipeline.name} are resumed.", *said))
    return PageAction("Resume all", "PUT", f"/pipelines/{pipeline.name}/resume", question)


def _grouped(jobs: Iterable[JobStatus], said: Callable[[JobStatus], str]) -> list[str]:
    """Return a sentence for all jobs of which the same is said."""
    groups: dict[str, list[JobStatus]] = {}
    for job in jobs:
        groups.setdefault(said(job), []).append(job)
    return [f"{sentence}: {_names(group)}." for sentence, group in groups.items()]


def _names(jobs: Sequence[JobStatus]) -> str:
    names = ", ".join(job.name for job in jobs[:MOST_NAMED])
    return names if len(jobs) <= MOST_NAMED else f"{names} and {len(jobs) - MOST_NAMED:,} more"


def _begins_by_itself(job: JobStatus) -> bool:
    return not (job.scheduled or job.on_demand)


def _is_stream(job: JobStatus) -> bool:
    return job.kind != "application" and job.mode is not Mode.BATCH


def _name(job: JobStatus) -> str:
    return f"{job.pipeline}.{job.name}"


def _path(job: JobStatus) -> str:
    return f"/pipelines/{job.pipeline}/jobs/{job.name}"
