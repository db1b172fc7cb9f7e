"""Derives the state of an attempt, and the next action, from observed facts. Pure: no clock, no I/O.

The launcher, the lease and the end record may contradict each other: each comes from elsewhere, and later or earlier.
An end record is believed above all; then a lease, which only a live session has; then the launcher. Without any of them
it is unknown whether the attempt runs: it is LOST, which is not FAILED, and nothing is started in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from jobpipe.jobs.supervision.exit_status import KILLED_DETAIL, MISCONFIGURED_TEXT, REPLACED_DETAIL, unrecorded
from jobpipe.pipelines.model.job_states import MISCONFIGURED, REPLACED, JobState


class LauncherAnswer(StrEnum):
    """What the launcher says."""

    NOT_KNOWN = "not known"  # the id was never stored, and no lease was seen: it was started, or it was not
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"  # the launcher does not answer, or cannot say


class LeaseOf(StrEnum):
    """Whose lease the registry has."""

    NONE = "none"
    OWN = "own"
    EARLIER = "earlier"  # of an attempt with a lower number
    STRANGER = "stranger"


class EndOf(StrEnum):
    """Whose end record the registry has; of the attempt's own, what it says."""

    NONE = "none"
    OLDER = "older"  # of another attempt
    FINISHED = "FINISHED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class OrderOf(StrEnum):
    """What the order says.

    A fence is an order of ours for the next number, which nothing is started for: the attempt cannot take the lease
    after it, and, as the version fits, has not done so before.
    """

    NONE = "none"  # there is none, or it is of an earlier attempt
    RUN = "run"
    STOP = "stop"
    FENCE = "fence"
    FENCE_OF_STOP = "fence of stop"  # the same, and the attempt was to stop
    OTHER = "other"  # another run has taken the job


class Step(StrEnum):
    """What is to be done."""

    WAIT = "wait"  # and look again
    ORDER = "order"  # write the order again, which is missing
    EVICT = "evict"  # remove the lease, if its process is proved dead; else it ends with its session
    FENCE = "fence"  # keep the attempt from ever taking the lease, then judge again
    RECORD = "record"  # it has ended as `state` says: store it


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of an attempt.

    Attributes:
        exit_code: with ENDED, None if the launcher does not know it.
        rebooted: the host that it ran on has booted since, so no process of it lives.
        stopping: it was to stop, whether the order could be changed or not.
        canceled: it ended after the time that it had for a stop, when it was ended from outside. Clusters end Spark
            first, and what Python then tells is no failure of the job.
        forced: a person says that it has ended.
        said: what the launcher says besides, for people.
    """

    launcher: LauncherAnswer
    lease: LeaseOf
    end: EndOf
    order: OrderOf
    exit_code: int | None = None
    rebooted: bool = False
    stopping: bool = False
    canceled: bool = False
    forced: bool = False
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """How an attempt stands.

    Attributes:
        state: None: as it was, until the step is done.
        free: with RECORD, whether another attempt may begin at once; else when no lease is left.
        started: with RECORD, False if it was not: that counts for nothing.
        error: with FAILED the class of the error where the registry has no record of it.
        detail: for people.
    """

    state: JobState | None
    step: Step = Step.WAIT
    free: bool = False
    started: bool = True
    error: str = ""
    detail: str = ""


_BY_ORDER = {
    OrderOf.NONE: JobState.RUNNING,
    OrderOf.RUN: JobState.RUNNING,
    OrderOf.STOP: JobState.STOPPING,
    OrderOf.FENCE: JobState.STOPPING,
    OrderOf.FENCE_OF_STOP: JobState.STOPPING,
    OrderOf.OTHER: JobState.STOPPING,
}
_FENCED = (OrderOf.FENCE, OrderOf.FENCE_OF_STOP)


def judge(facts: Facts) -> Assessment:
    """Return how an attempt stands, and what is to be done."""
    free = facts.lease is LeaseOf.NONE
    if facts.end not in (EndOf.NONE, EndOf.OLDER):
        if facts.end is EndOf.STOPPED and facts.order is OrderOf.RUN and not facts.stopping:
            why = "stopped by something other than jobpipe"
            return Assessment(state=JobState.FAILED, step=Step.RECORD, free=free, detail=why)
        if facts.end is EndOf.FAILED and facts.canceled:
            return Assessment(state=JobState.CANCELED, step=Step.RECORD, free=free, detail=KILLED_DETAIL)
        return Assessment(state=JobState(facts.end.value), step=Step.RECORD, free=free)
    launcher = facts.launcher
    if launcher is LauncherAnswer.UNKNOWN and facts.rebooted:
        launcher = LauncherAnswer.ENDED
    if facts.lease is LeaseOf.OWN:
        return _with_lease(facts, launcher)
    if facts.order is OrderOf.OTHER and launcher in (LauncherAnswer.NOT_KNOWN, LauncherAnswer.ENDED):
        return Assessment(
            state=JobState.CANCELED, step=Step.RECORD, free=free, error="Replaced", detail=REPLACED_DETAIL
        )
    match launcher:
        case LauncherAnswer.NOT_KNOWN:
            return _perhaps_started(facts, free)
        case LauncherAnswer.RUNNING:
            state = _BY_ORDER[facts.order]
            submitted = JobState.SUBMITTED if state is JobState.RUNNING else state
            return Assessment(state=submitted, step=_order_missing(facts), detail=_waits_for(facts) or facts.said)
        case LauncherAnswer.ENDED:
            return _ended(facts, free)
        case LauncherAnswer.UNKNOWN:
            return _lost(facts, free)


def _order_missing(facts: Facts) -> Step:
    return Step.ORDER if facts.order is OrderOf.NONE else Step.WAIT


def _waits_for(facts: Facts) -> str:
    return "" if facts.lease is LeaseOf.NONE else "waiting for another attempt to release the lease"


def _with_lease(facts: Facts, launcher: LauncherAnswer) -> Assessment:
    if launcher is LauncherAnswer.ENDED:
        detail = "its process has ended, without an end record so far; its lease ends with its session"
        return Assessment(state=_BY_ORDER[facts.order], step=Step.EVICT, detail=detail)
    return Assessment(state=_BY_ORDER[facts.order], step=_order_missing(facts))


def _perhaps_started(facts: Facts, free: bool) -> Assessment:
    """The server ended between the order and the answer of the launcher."""
    if facts.order in _FENCED:
        detail = "whether it was started is not known; it did nothing, and cannot begin any more"
        return Assessment(state=JobState.CANCELED, step=Step.RECORD, free=free, started=False, detail=detail)
    return Assessment(state=None, step=Step.FENCE)


def _ended(facts: Facts, free: bool) -> Assessment:
    """It has ended, and the registry may still have an end record that we did not see: the fence tells."""
    if facts.order not in _FENCED:
        return Assessment(state=None, step=Step.FENCE)
    code = facts.exit_code
    if code == MISCONFIGURED:
        state, error, detail = JobState.FAILED, "ConfigError", MISCONFIGURED_TEXT
    elif facts.order is OrderOf.FENCE_OF_STOP:
        stopped = code == 0  # before it had the lease
        state, error, detail = (JobState.STOPPED, "", "") if stopped else (JobState.CANCELED, "", KILLED_DETAIL)
    elif code == REPLACED:
        state, error, detail = JobState.CANCELED, "Replaced", REPLACED_DETAIL
    else:
        state, error, detail = JobState.FAILED, "", "; ".join(filter(None, (unrecorded(code), facts.said)))
    return Assessment(state=state, step=Step.RECORD, free=free, error=error, detail=detail)


def _lost(facts: Facts, free: bool) -> Assessment:
    if not facts.forced:
        why = facts.said or "the launcher does not answer for it"
        detail = f"{why}, and it has no lease; it may still run"
        return Assessment(state=JobState.LOST, step=_order_missing(facts), detail=detail)
    if facts.order in (*_FENCED, OrderOf.OTHER):
        detail = "it was lost, and abandoned by an operator"
        return Assessment(state=JobState.CANCELED, step=Step.RECORD, free=free, detail=detail)
    return Assessment(state=None, step=Step.FENCE)
