"""How states are shown: by a shape and a word, never by colour alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobpipe.control.control_service import JobStatus
from jobpipe.graph.namespace_graph import LinkState, TopicState
from jobpipe.jobs.schedules.schedule_decisions import IntervalState
from jobpipe.ledger.hop_states import HopState
from jobpipe.pipelines.model.job_states import ENDED, DesiredState, JobState


@dataclass(frozen=True)
class Mark:
    """A shape, by its name in the page's symbols, with its word, and how much it matters: "", warn or alarm."""

    shape: str
    word: str
    tone: str = ""


_JOBS: Mapping[JobState, Mark] = {
    JobState.SUBMITTED: Mark("ring", "submitted"),
    JobState.RUNNING: Mark("disc", "running", "good"),
    JobState.BLOCKED: Mark("diamond", "blocked", "warn"),
    JobState.RESTARTING: Mark("turn", "restarting", "warn"),
    JobState.STOPPING: Mark("half", "stopping"),
    JobState.STOPPED: Mark("square", "stopped"),
    JobState.FINISHED: Mark("check", "finished"),
    JobState.FAILED: Mark("cross", "failed", "alarm"),
    JobState.CANCELED: Mark("slash", "canceled"),
    JobState.LOST: Mark("question", "lost", "alarm"),
}
_LINKS: Mapping[LinkState, Mark] = {
    LinkState.CONNECTED: Mark("disc", "connected", "good"),
    LinkState.RECONNECTING: Mark("turn", "reconnecting", "warn"),
    LinkState.ABSENT: Mark("ring", "absent"),
}
_TOPICS: Mapping[TopicState, Mark] = {
    TopicState.PUBLISHED: Mark("disc", "published", "good"),
    TopicState.BLOCKED: Mark("diamond", "waits", "warn"),
    TopicState.SERVED: Mark("ring", "no publisher now"),
    TopicState.ENDED: Mark("check", "ended"),
    TopicState.AWAY: Mark("ring", "not served now"),
    TopicState.UNKNOWN: Mark("question", "not known", "alarm"),
}
_INTERVALS: Mapping[IntervalState, Mark] = {
    IntervalState.WAITING: Mark("ring", "waiting"),
    IntervalState.RUNNING: Mark("half", "running", "good"),
    IntervalState.FAILED: Mark("cross", "failed", "alarm"),
    IntervalState.SUCCEEDED: Mark("check", "succeeded"),
    IntervalState.SKIPPED: Mark("slash", "skipped"),
    IntervalState.LEFT_OUT: Mark("slash", "left out"),
}
_LEDGER: Mapping[HopState, Mark] = {
    HopState.DIFFERENT: Mark("cross", "different", "alarm"),
    HopState.OPEN: Mark("half", "open"),
    HopState.UNPROVEN: Mark("question", "unproven"),
    HopState.MOVED: Mark("turn", "moved"),
    HopState.EQUAL: Mark("check", "equal", "good"),
    HopState.NO_ACCOUNT: Mark("ring", "no account"),
}


def job_mark(job: JobStatus) -> Mark:
    """Return that of a job; one that a schedule, or a person, runs over ranges is not stopped between its runs.

    A job that a person stopped is, however its last run ended; but what failed is to be looked at all the same.
    """
    if job.want is DesiredState.STOP and job.state in ENDED and job.state is not JobState.FAILED:
        return _JOBS[JobState.STOPPED]
    if job.run is None and job.state is JobState.STOPPED:
        return Mark("ring", "scheduled" if job.scheduled else "not run yet")
    return _JOBS[job.state]


def run_mark(state: JobState) -> Mark:
    """Return that of a run or an attempt."""
    return _JOBS[state]


def link_mark(state: LinkState) -> Mark:
    """Return that of an application at a topic."""
    return _LINKS[state]


def topic_mark(state: TopicState) -> Mark:
    """Return that of a topic."""
    return _TOPICS[state]


def interval_mark(state: str) -> Mark:
    """Return that of an interval of a schedule."""
    return _INTERVALS[IntervalState(state)]


def ledger_mark(state: HopState) -> Mark:
    """Return that of a hop, or of one of its minutes."""
    return _LEDGER[state]
