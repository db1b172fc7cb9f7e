"""What the supervision of all jobs shares: store, registry, definitions, clock and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from jobpipe.jobs.storage.job_store import Store
from jobpipe.jobs.supervision.circuit_breaker import CircuitBreaker
from jobpipe.jobs.workloads.progress_reports import Report
from jobpipe.pipelines.file.problems import Problem
from jobpipe.pipelines.loading.snapshot import ParentProcess
from jobpipe.pipelines.model.pipeline import Pipeline

Key = tuple[str, str]  # pipeline and job
LOST_SECONDS = 30.0  # longer than a session in the registry lasts by default, after which a lease proves nothing


class Definitions(Protocol):
    """The pipelines whose jobs are supervised."""

    def get(self, name: str, version: int) -> Pipeline:
        """Return one version of a pipeline.

        Raises:
            ConfigError: it is not kept, or not right here any more.
        """


@dataclass(frozen=True, kw_only=True)
class SupervisionContext:
    """What all jobs under supervision share.

    Attributes:
        untrusted: why a pipeline's files are not to be used, asked before each attempt: modes and links may have
            changed. OSError: they cannot be looked at now.
        config_file: of jobpipe's configuration, for the attempts; None: found as always.
        parent: the process with which attempts on this host end; None: they live on.
        environment: what is added to theirs.
        takes_over: a run takes the job from another one that is still under way; else it waits for its lease.
        stop_seconds: how long a stop may take; half of it for the end of a micro-batch.
        lost_seconds: for which a launcher may not know of an attempt before that makes it LOST.
        clock: seconds since 1970.
        cleanup_added: called when the store has more cleanup tasks.
        attempt_ended: called with the last report of an attempt of this host, before its end is stored.
        run_ended: called after a run of a job has ended for good.
    """

    store: Store
    jobs: CircuitBreaker
    definitions: Definitions
    home: Path
    untrusted: Callable[[Pipeline], Iterable[Problem]]
    config_file: Path | None
    parent: ParentProcess | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    takes_over: bool = False
    stop_seconds: float
    lost_seconds: float = LOST_SECONDS
    clock: Callable[[], float]
    cleanup_added: Callable[[], None]
    attempt_ended: Callable[[Key, Report], None] = lambda key, report: None
    run_ended: Callable[[Key], None] = lambda key: None
