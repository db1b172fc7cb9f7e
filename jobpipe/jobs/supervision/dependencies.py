"""What all jobs under supervision share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jobpipe.jobs.allowed_paths import AllowedPaths
from jobpipe.jobs.definition_cache import DefinitionCache
from jobpipe.jobs.storage.job_store import Store
from jobpipe.jobs.supervision.circuit_breaker import CircuitBreaker


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """What all jobs under supervision share.

    Attributes:
        roots: looked at again before each attempt, since modes and links may have changed.
        config_file: of jobpipe's configuration, for the attempts; None: found as always.
        stop_seconds: how long a stop may take; half of it for the end of a micro-batch.
        lost_seconds: for which a launcher may not know of an attempt before that makes it LOST.
        clock: seconds since 1970.
        cleanup_added: called when the store has more cleanup tasks.
        run_ended: called after a run of a job, given by its pipeline and name, has ended for good.
    """

    store: Store
    jobs: CircuitBreaker
    definitions: DefinitionCache
    home: Path
    roots: AllowedPaths
    config_file: Path | None
    stop_seconds: float
    lost_seconds: float
    clock: Callable[[], float]
    cleanup_added: Callable[[], None]
    run_ended: Callable[[tuple[str, str]], None] = lambda _: None
