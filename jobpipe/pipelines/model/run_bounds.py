"""The bounds that a person gives a run of one job: from where to where it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.file.time_zones import time_zone
from jobpipe.pipelines.model.pipeline import Job, Pipeline


@dataclass(frozen=True)
class RunBounds:
    """A half-open range: times with their zone, or offsets; None: it has no such end."""

    lower: datetime | int | None = None
    upper: datetime | int | None = None

    @property
    def given(self) -> bool:
        return self.lower is not None or self.upper is not None


NO_BOUNDS = RunBounds()


def bounds_of(pipeline: Pipeline, only: Sequence[str], lower: str | None, upper: str | None) -> RunBounds:
    """Return the bounds of a run of the one job that ``only`` names; none if neither text is given.

    Args:
        lower, upper: ISO 8601, in the zone of the job's schedule, else UTC, unless they name another; or offsets.

    Raises:
        ConfigError: one of them is missing or wrong, or the job takes no bounds.
    """
    if lower is None and upper is None:
        return NO_BOUNDS
    if lower is None or upper is None:
        missing = "--lower" if lower is None else "--upper"
        raise ConfigError(f"a run has two bounds, and {missing} is missing; give both", key=missing)
    if len(set(only)) != 1:
        raise ConfigError("--lower and --upper are of one job; name it with --only", key="--only")
    job = pipeline.jobs.get(only[0])
    if job is None:  # the run says so
        return NO_BOUNDS
    if job.mode is not Mode.BATCH:
        raise ConfigError(
            f"job {job.name} is STREAMING: it takes no bounds; leave out --lower and --upper, or give the job "
            "execution: {runtime-mode: BATCH}",
            key=job.name,
        )
    first, last = _bound(job, "--lower", lower), _bound(job, "--upper", upper)
    if isinstance(first, int) is not isinstance(last, int):
        raise ConfigError("--lower and --upper are a time and an offset; give two times, or two offsets", key="--upper")
    if _number(first) >= _number(last):
        raise ConfigError(f"--upper {upper} is not after --lower {lower}; give a later one", key="--upper")
    return RunBounds(first, last)


def _bound(job: Job, option: str, text: str) -> datetime | int:
    if text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    schedule = job.spec.schedule
    zone = UTC if schedule is None else time_zone(schedule.timezone)
    try:
        found = datetime.fromisoformat(text)
        return (found.replace(tzinfo=zone) if found.tzinfo is None else found).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"{option} {text!r:.120} is neither an ISO 8601 time nor an offset; give it as 2026-11-21T00:00:00Z",
            key=option,
        ) from error


def _number(bound: datetime | int) -> float:
    return bound.timestamp() if isinstance(bound, datetime) else bound
