"""Launches one attempt, such that the server may be killed between any two steps.

The intention is stored, then ordered, then the launcher is asked, then its id is stored. An attempt that is found
without an id was started, or was not; see :mod:`jobpipe.jobs.supervision.assessment` for what is done then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum

from pydantic import ValidationError

from jobpipe.config.reading.located_values import plain
from jobpipe.errors import ConfigError, LauncherUnavailable
from jobpipe.jobs.storage.job_rows import AttemptRow, JobRow, LeaseHolder, RunRow
from jobpipe.jobs.supervision.supervision_context import SupervisionContext
from jobpipe.jobs.supervision.transitions import UNAVAILABLE
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.loading.snapshot import Snapshot
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.pipelines.model.paths import PipelinePaths
from jobpipe.pipelines.model.pipeline import Pipeline
from jobpipe.pipelines.plugins.api import Attempt, Launcher
from jobpipe_registry.host.process_identity import PidScope, lives
from jobpipe_registry.job_records import Lease, Order
from jobpipe_registry.registry_errors import OrderChanged, RegistryError, Unavailable

log = logging.getLogger(__name__)


class LaunchResult(StrEnum):
    """What came of it."""

    YES = "yes"  # an attempt is stored; whether it runs is seen from now on
    AGAIN = "again"  # something changed meanwhile: decide again
    WAIT = "wait"  # the lease of an attempt before is still there
    REPLACED = "replaced"  # another run has taken the job


def make_launcher(pipeline: Pipeline, run: str) -> Launcher:
    """Return a launcher for one attempt: what it remembers of it goes with it.

    Raises:
        ConfigError: its options do not fit.
    """
    try:
        return pipeline.launcher.make(RunValues(run))
    except (ValidationError, ValueError) as error:
        raise ConfigError(f"launcher {pipeline.launcher.type}: {error}", key="pipeline.launcher") from error


def start_attempt(
    context: SupervisionContext,
    job: JobRow,
    run: RunRow,
    version: int,
    launcher: Launcher,
    wanted: Callable[[], bool],
) -> tuple[LaunchResult, str]:
    """Order and start the next attempt of a run; return what came of it, and why not, for people.

    Args:
        wanted: asked in the change that stores the intention: False if it should no longer run.

    Raises:
        Unavailable: the registry does not answer.
        PipelineError, ConfigError: the pipeline is not right here any more.
    """
    pipeline = context.definitions.get(job.pipeline, version)
    key = (job.pipeline, job.name)
    found = context.jobs.state(*key)
    # Attempts from before a retry do not count: other runs of the job may have come in between.
    if run.attempts > run.before and found.order is not None and found.order.run != run.id:
        return LaunchResult.REPLACED, ""
    if found.lease is not None:
        if _has_died(found.lease):
            context.jobs.evict_lease(*key, found.lease.instance)
            return LaunchResult.AGAIN, ""
        if run.attempts or not context.takes_over:
            who = f"an earlier attempt, process {found.lease.pid} on {found.lease.host}"
            return LaunchResult.WAIT, f"waiting for {who}, run {found.lease.run}, to release the lease"
    number = max(job.last_attempt, 0 if found.order is None else found.order.attempt) + 1
    here = PidScope.here()
    attempt = AttemptRow(
        run=run.id,
        pipeline=job.pipeline,
        job=job.name,
        number=number,
        version=version,
        state=JobState.SUBMITTED,
        began=context.clock(),
        holder=None
        if launcher.cluster
        else LeaseHolder(host=here.host, boot=here.boot, pid_namespace=here.pid_namespace),
    )
    with context.store.write():
        if not wanted():
            return LaunchResult.AGAIN, ""
        context.store.begin_attempt(attempt)
        context.store.change_run(run.id, state=JobState.SUBMITTED, since=context.clock(), detail="")
    try:
        context.jobs.set_order(*key, Order(run.id, number, "run"), found.version)
    except OrderChanged:
        context.store.forget_attempt(run.id, number)
        return LaunchResult.AGAIN, ""
    except Unavailable:
        return LaunchResult.YES, ""  # perhaps it was ordered: that is seen when the registry answers again
    _launch(context, pipeline, attempt, run, launcher)
    if found.end is not None:
        try:
            context.jobs.remove_end(*key, found.end)
        except RegistryError as error:  # it is of an attempt before, and counts for nothing
            log.info("job %s.%s: an old end record is still there: %s", *key, error)
    return LaunchResult.YES, ""


def _has_died(lease: Lease) -> bool:
    return lives(lease.pid, lease.started, lease.ticks, lease.place) is False


def _launch(
    context: SupervisionContext, pipeline: Pipeline, attempt: AttemptRow, run: RunRow, launcher: Launcher
) -> None:
    places = PipelinePaths.of(context.home, attempt.pipeline)
    snapshot, report = (make(attempt.job, attempt.number) for make in (places.snapshot, places.report))
    try:
        report.unlink(missing_ok=True)  # of another registry, whose numbers began at 1, too
        Snapshot.model_validate(
            {
                "file": pipeline.file,
                "folder": pipeline.folder,
                "tree": plain(pipeline.tree),
                "job": attempt.job,
                "run": run.id,
                "lower": _bound(run.lower),
                "upper": _bound(run.upper),
                "attempt": attempt.number,
                "storage": places.storage(pipeline, attempt.job),
                "config": None if launcher.cluster else context.config_file,
                "stop_seconds": context.stop_seconds,
                "parent": None if launcher.cluster else context.parent,
                "report": None if launcher.cluster else report,
            }
        ).write(snapshot)
        launched = launcher.submit(
            Attempt(
                pipeline=attempt.pipeline,
                job=attempt.job,
                run=run.id,
                number=attempt.number,
                snapshot=snapshot,
                log=places.log(attempt.job),
                folder=pipeline.folder,
                environment=context.environment,
                configuration=pipeline.configuration(pipeline.jobs[attempt.job]),
            )
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's plug-in
        # A launcher that did not answer may have started it all the same: it is kept from beginning before it counts
        # as ended. So this is only noted here.
        detail = f"it cannot be started: {error}"
        log.warning("job %s.%s, attempt %d: %s", attempt.pipeline, attempt.job, attempt.number, detail)
        name = UNAVAILABLE if isinstance(error, LauncherUnavailable) else type(error).__name__
        context.store.change_attempt(attempt.run, attempt.number, error=name[:128], detail=detail[:1000])
        return
    context.store.change_attempt(attempt.run, attempt.number, launched=launched)


def _bound(text: str | None) -> str | int | None:
    """Return a bound as the snapshot has it: an offset is a number, a time a text."""
    return int(text) if text is not None and text.isdecimal() else text
