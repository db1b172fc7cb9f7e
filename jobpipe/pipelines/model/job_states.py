"""The states of a job, and which follows which."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

REPLACED = 75  # EX_TEMPFAIL: exit code of an attempt that was replaced by another one
MISCONFIGURED = 78  # EX_CONFIG: of one that could not begin, as its file or configuration is wrong


class JobState(StrEnum):
    """How a job stands."""

    SUBMITTED = "SUBMITTED"  # its attempt was started, and does not have the lease yet
    RUNNING = "RUNNING"
    BLOCKED = "BLOCKED"  # it runs, and waits for room in a topic that it publishes
    RESTARTING = "RESTARTING"  # an attempt has failed, and the next one comes
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"  # ended in the middle, or replaced by an attempt that another one ordered
    LOST = "LOST"  # whether it runs is unknown


class DesiredState(StrEnum):
    """What a person wants of a job, or of a whole pipeline."""

    RUN = "run"
    STOP = "stop"


ENDED = frozenset({JobState.STOPPED, JobState.FINISHED, JobState.FAILED, JobState.CANCELED})

_OUT = {
    JobState.STOPPING,
    JobState.STOPPED,
    JobState.FINISHED,
    JobState.FAILED,
    JobState.CANCELED,
    JobState.RESTARTING,
    JobState.LOST,
}

FOLLOWING: Mapping[JobState, frozenset[JobState]] = {
    JobState.SUBMITTED: frozenset({JobState.RUNNING, *_OUT}),
    JobState.RUNNING: frozenset({JobState.BLOCKED, *_OUT}),
    JobState.BLOCKED: frozenset({JobState.RUNNING, *_OUT}),
    JobState.RESTARTING: frozenset(
        {JobState.SUBMITTED, JobState.STOPPED, JobState.FAILED, JobState.CANCELED, JobState.LOST}
    ),
    JobState.STOPPING: frozenset(
        {JobState.STOPPED, JobState.FINISHED, JobState.FAILED, JobState.CANCELED, JobState.LOST}
    ),
    JobState.LOST: frozenset({JobState.SUBMITTED, JobState.RUNNING, *_OUT}),
    **{state: frozenset({JobState.SUBMITTED}) for state in ENDED},
}
"""A job that has ended runs again by a new run, which begins with SUBMITTED."""
