"""What the server's store holds, as values. Times are seconds since 1970."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobpipe.pipelines.model.job_states import ENDED, DesiredState, JobState


def new_run_id(now: float) -> str:
    """Return an id for a run that begins now: the time, and what tells it from others of the same second."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, kw_only=True)
class PipelineRow:
    """A pipeline.

    Attributes:
        version: of its newest definition.
        submitted, born: when its newest file was, and its first one, in seconds since 1970; 0 if that is not known.
    """

    name: str
    version: int
    want: DesiredState
    submitted: float
    born: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RevisionChanges:
    """What a version of a pipeline's file changed: jobs by name, settings by their keys."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DefinitionRow:
    """One version of a pipeline's file; ``tree`` is JSON.

    Attributes:
        submitter: as the API knows it; "" if it does not.
    """

    pipeline: str
    version: int
    file: Path
    folder: Path
    tree: str
    submitted: float = 0.0
    submitter: str = ""
    changes: RevisionChanges = field(default_factory=RevisionChanges)


@dataclass(frozen=True, kw_only=True)
class JobSubscription:
    """A subscription by which a job reads a topic; the topic's name has its prefix."""

    topic: str
    name: str


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job.

    Attributes:
        position: in the file.
        on_demand: it runs over ranges that others ask for, and has no schedule.
        in_definition: False: the newest file does not have it any more; it is stopped, then forgotten.
        reset_checkpoint: its next run begins without a checkpoint.
        digest: of all that its definition says.
        last_attempt: the highest number of an attempt that was used.
        run: the newest one that has begun; None before the first.
        next_run: a run that begins when that one has ended.
    """

    pipeline: str
    name: str
    position: int
    kind: str
    scheduled: bool
    on_demand: bool = False
    in_definition: bool
    want: DesiredState
    reset_checkpoint: bool
    digest: str
    reads: tuple[str, ...]
    publishes: tuple[str, ...]
    subscriptions: tuple[JobSubscription, ...]
    last_attempt: int = 0
    run: str | None = None
    next_run: str | None = None

    @property
    def begins_by_itself(self) -> bool:
        """Whether a submission, resume or restart makes a run of it."""
        return not (self.scheduled or self.on_demand)


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run.

    Attributes:
        since: it is in this state.
        stop: a person canceled it.
        forced: a person said that its lost attempt has ended.
        failures: attempts in a row that failed.
        next_at, delay: when its next attempt begins, if it is RESTARTING, and how many seconds after the one before.
        attempts: how many there were.
        before: how many of them there were before a person let it be made again.
        batches, rows: what those did that have ended.
    """

    id: str
    pipeline: str
    job: str
    state: JobState
    began: float
    since: float
    ended: float | None = None
    detail: str = ""
    lower: str | None = None
    upper: str | None = None
    stop: bool = False
    forced: bool = False
    failures: int = 0
    next_at: float = 0.0
    delay: float = 0.0
    attempts: int = 0
    before: int = 0
    batches: int = 0
    rows: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in ENDED


@dataclass(frozen=True, kw_only=True)
class LeaseHolder:
    """The process that had the lease, or, for a local launcher, the attempt's own process: used to prove its end.

    Attributes:
        since: when it was first seen to have the lease, 0.0: it never was.
    """

    host: str
    boot: str
    pid_namespace: int
    pid: int = 0
    started: float = 0.0
    ticks: int = 0
    since: float = 0.0


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """An attempt. It is stored before it is ordered, and ``launched`` as soon as the launcher has said it.

    Attributes:
        version: of the definition that it was started with.
        launched: the launcher's id; None: not known to have been started.
        holder: where it was seen; None: nowhere so far.
        stop_by: when it is ended in the middle, if it is to stop.
        open: its processes may not be gone yet, or its end record is still in the registry.
    """

    run: str
    pipeline: str
    job: str
    number: int
    version: int
    state: JobState
    began: float
    ended: float | None = None
    launched: str | None = None
    holder: LeaseHolder | None = None
    application: str = ""
    error: str = ""
    detail: str = ""
    exit_code: int | None = None
    batches: int = 0
    rows: int = 0
    stop_by: float | None = None
    open: bool = True


@dataclass(frozen=True, kw_only=True)
class CleanupTask:
    """What is done as soon as it can be; without a subscription: removing the order of a job that is gone.

    A subscription that its job has then becomes required; any other one is required no more, and dropped.
    """

    id: int
    pipeline: str
    job: str
    subscription: JobSubscription | None


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened; ``id`` rises."""

    id: int
    at: float
    pipeline: str
    job: str | None
    what: str
    state: JobState | None = None
    detail: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
