"""``jobpipe pipeline submit, rollback, list, status, stop, resume, restart, delete``: pipelines of a control server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.exit_codes import Exit
from jobpipe.cli.common.output import emit_json, emit_table, printable
from jobpipe.cli.common.server_connection import (
    JOB_KEYS,
    JobRef,
    JobRefType,
    client_of,
    emit_statuses,
    pass_client,
    server_options,
    view_of,
    wait_option,
    wait_until,
)
from jobpipe.cli.pipeline.pipeline_command import load, of_file
from jobpipe.cli.pipeline.plan_command import (
    OF_TODAY,
    new_checkpoint_option,
    previous,
    submission_of,
    submit_as_planned,
    yes_option,
)
from jobpipe.errors import ControlConflict

if TYPE_CHECKING:
    from jobpipe.control.control_service import JobStatus, PipelineStatus, Submitted
    from jobpipe.control.rest.rest_client import ControlClient
    from jobpipe.pipelines.file.problems import Problem

PROCESSES_SECONDS = 60.0  # for the processes of a job that has ended; a slow JVM takes half of it
_ref = click.argument("ref", metavar="NAME[/JOB]", type=JobRefType())


@click.command()
@of_file
@new_checkpoint_option
@yes_option
@wait_option("Wait until every job runs or has ended.")
@server_options
@json_option
@pass_settings
def submit(
    settings: Settings,
    file: str,
    given: tuple[str, ...],
    overlays: tuple[str, ...],
    new_checkpoint: tuple[str, ...],
    yes: bool,
    wait: bool,
    timeout: float,
    url: str | None,
    token_file: Path | None,
    as_json: bool,
) -> int:
    """Submit FILE to the control server, which runs it. If it has the pipeline, it restarts only jobs that changed.

    If runs that are under way would end, or subscriptions be dropped, it shows the plan first, as `jobpipe pipeline
    plan` does, and asks. Without a terminal it exits with 2 then, unless --yes is given.

    Returns at once. With the embedded registry, a control server is started if none is running. Exits with 1 if --wait
    finds a job that has failed or is lost, or if the plan is refused, which it shows then; with 2 if the file is wrong,
    with 3 if --wait takes too long.

    JSON keys: pipeline, created, version, changed, runs (job: id), unchanged, removed, warnings (file, line, key, what,
    remedy, severity).
    """
    from jobpipe.pipelines.model.graph import published_again

    found = load(file, given, overlays)
    client = client_of(settings, url, token_file, start=True)
    submitted, was_shown = submit_as_planned(client, submission_of(found, file), new_checkpoint, yes=yes)
    own = found.warnings
    for job in () if was_shown else new_checkpoint:
        if again := published_again(found, job):
            click.echo(printable(again), err=True)
    seen = {(each.key, each.what) for each in own}  # the server knows no lines
    warnings = (*own, *(each for each in submitted.warnings if (each.key, each.what) not in seen))
    return _emit_submitted(client, submitted, warnings, wait=wait, timeout=timeout, as_json=as_json)


@click.command()
@click.argument("name")
@click.option("--to", "version", type=click.IntRange(min=1), help="Version to go back to; by default the previous one.")
@new_checkpoint_option
@yes_option
@wait_option("Wait until every job runs or has ended.")
@pass_client
@json_option
def rollback(
    client: ControlClient,
    name: str,
    version: int | None,
    new_checkpoint: tuple[str, ...],
    yes: bool,
    wait: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Submit an earlier version of the file of pipeline NAME again, as a new version.

    Only the file itself goes back. Functions, libraries, and what `file:` refers to are as they are today.

    JSON keys: as those of `jobpipe pipeline submit`.
    """
    found = client.revisions(name)
    version = version or previous(found, name)
    submission = client.revision(name, version)
    click.echo(OF_TODAY.format(version=version), err=True)
    done, _ = submit_as_planned(client, submission, new_checkpoint, yes=yes, base=found[0].version)
    return _emit_submitted(client, done, done.warnings, wait=wait, timeout=timeout, as_json=as_json)


def _emit_submitted(
    client: ControlClient,
    submitted: Submitted,
    warnings: Iterable[Problem],
    *,
    wait: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Print what a submission did; wait until its runs have begun, if that is asked for; return the exit code."""
    for warning in warnings:
        click.echo(printable(str(warning)), err=True)
    if as_json:
        emit_json(view_of(submitted))
    else:
        what = "submitted"
        if not submitted.created:
            version = submitted.version
            what = f"changed to version {version}" if submitted.changed else f"unchanged (version {version})"
        click.echo(f"pipeline {printable(submitted.pipeline)} {what}")
        for job, run in submitted.runs.items():
            click.echo(f"  {printable(job)}: run {printable(run)}")
        for job in submitted.unchanged:
            click.echo(f"  {printable(job)}: unchanged, keeps running")
        for job in submitted.removed:
            click.echo(f"  {printable(job)}: no longer in the file, will be stopped")
    if not wait:
        return Exit.OK

    def has_begun(job: JobStatus) -> bool:
        """Whether it is in the run of this submission, or that has ended and another one has followed."""
        run = submitted.runs[job.name]
        return job.run == run or client.run(run).ended is not None

    ref = JobRef(submitted.pipeline, None)
    return _await_running(client, ref, submitted.runs, has_begun, timeout)


@click.command("list")
@pass_client
@json_option
def list_all(client: ControlClient, as_json: bool) -> None:
    """List the pipelines of the control server.

    JSON keys of each: as those of `jobpipe pipeline status`.
    """
    found = client.pipelines()
    if as_json:
        emit_json(view_of(found))
        return
    rows = [(each.name, each.version, each.want, _counted(each), str(each.file)) for each in found]
    emit_table(("PIPELINE", "VERSION", "WANTED", "JOBS", "FILE"), rows, right=("VERSION",))


@click.command(
    epilog=f"""\b
JSON keys of a pipeline: name, file, version, want, submitted, jobs.
Of a job, and of each of jobs: {JOB_KEYS}.
Without NAME a list of pipelines."""
)
@click.argument("ref", metavar="[NAME[/JOB]]", type=JobRefType(), required=False)
@pass_client
@json_option
def status(client: ControlClient, ref: JobRef | None, as_json: bool) -> int:
    """Show the state of the jobs of pipeline NAME, or of one job; without NAME of all pipelines.

    Exits with 1 if a job has failed or is lost.
    """
    if ref is None:
        every = client.pipelines()
        if as_json:
            emit_json(view_of(every))
        elif not every:
            click.echo("no pipeline has been submitted; jobpipe pipeline submit FILE submits one", err=True)
        else:
            emit_statuses(every)
        return Exit.UNHEALTHY if any(_is_bad(job) for each in every for job in each.jobs) else Exit.OK
    found = client.pipeline(ref.pipeline)
    job = None if ref.job is None else client.job(ref.pipeline, ref.job)
    if as_json:
        emit_json(view_of(found if job is None else job))
    else:
        emit_statuses([found], ref)
    return Exit.UNHEALTHY if any(map(_is_bad, ref.of(found))) else Exit.OK


@click.command()
@_ref
@wait_option("Wait until the jobs have ended.")
@pass_client
@json_option
def stop(client: ControlClient, ref: JobRef, wait: bool, timeout: float, as_json: bool) -> int:
    """Stop the jobs of pipeline NAME, or one job, at the next micro-batch boundary. They stay stopped.

    JSON keys: those of `jobpipe pipeline status NAME`, also with NAME/JOB. Exits with 1 if --wait finds a job that is
    lost.
    """
    from jobpipe.pipelines.model.job_states import ENDED, JobState

    found = client.stop(ref.pipeline, ref.job)

    def ended() -> PipelineStatus | None:
        now = client.pipeline(ref.pipeline)
        return now if all(job.state in (*ENDED, JobState.LOST) for job in ref.of(now)) else None

    if wait:
        found = wait_until(ended, timeout, f"{ref} has not stopped")
    _emit(found, ref, as_json)
    return Exit.UNHEALTHY if wait and any(job.state is JobState.LOST for job in ref.of(found)) else Exit.OK


@click.command()
@_ref
@wait_option("Wait until the jobs run or have ended.")
@pass_client
@json_option
def resume(client: ControlClient, ref: JobRef, wait: bool, timeout: float, as_json: bool) -> int:
    """Start the stopped or ended jobs of pipeline NAME, or one job, from their checkpoints.

    JSON keys: those of `jobpipe pipeline status NAME`, also with NAME/JOB. Exits with 1 if --wait finds a job that
    has failed or is lost.
    """
    found = client.resume(ref.pipeline, ref.job)
    _emit(found, ref, as_json)
    names = [job.name for job in ref.of(found)]
    return _await_running(client, ref, names, lambda job: True, timeout) if wait else Exit.OK


@click.command()
@_ref
@click.option(
    "--force", is_flag=True, help="Also restart a LOST job. Use it only if you know that the job has ended everywhere."
)
@wait_option("Wait until the new runs are running or have ended.")
@pass_client
@json_option
def restart(client: ControlClient, ref: JobRef, force: bool, wait: bool, timeout: float, as_json: bool) -> int:
    """Stop the jobs of pipeline NAME, or one job, and start them again as new runs.

    JSON keys: those of `jobpipe pipeline status NAME`, also with NAME/JOB. Exits with 1 if --wait finds a job that
    has failed or is lost.
    """
    before = {job.name: job.run for job in ref.of(client.pipeline(ref.pipeline))}
    found = client.restart(ref.pipeline, ref.job, force=force)
    _emit(found, ref, as_json)
    return _await_running(client, ref, before, lambda job: job.run != before[job.name], timeout) if wait else Exit.OK


@click.command()
@click.argument("name")
@click.option("--keep-subscriptions", is_flag=True, help="Keep its subscriptions, and the rows that are kept for them.")
@pass_client
@json_option
def delete(client: ControlClient, name: str, keep_subscriptions: bool, as_json: bool) -> None:
    """Delete pipeline NAME from the control server, and drop its subscriptions. Its jobs must have ended.

    Waits at most a minute for the processes of jobs that have just ended. Checkpoints and logs stay where they are.
    JSON keys: pipeline, kept_subscriptions.
    """

    readers = {job.name: job.reads for job in client.pipeline(name).jobs if job.reads}

    def deleted() -> bool | None:
        try:
            client.delete(name, keep_subscriptions=keep_subscriptions)
        except ControlConflict as error:
            if error.fields.get("ending") is not True:
                raise
            return None
        return True

    wait_until(deleted, PROCESSES_SECONDS, f"processes of pipeline {name} have not ended")
    if as_json:
        emit_json({"pipeline": name, "kept_subscriptions": keep_subscriptions})
    else:
        click.echo(f"deleted pipeline {printable(name)}")
        for job, topics in {} if keep_subscriptions else readers.items():
            for topic in map(printable, topics):
                what = f"subscription {printable(f'{name}.{job}')} of {topic} is dropped as soon as {topic} is served"
                click.echo(f"  {what}; if its publisher does not come back: jobpipe topics serve {topic}")


def _emit(found: PipelineStatus, ref: JobRef, as_json: bool) -> None:
    if as_json:
        emit_json(view_of(found))
    else:
        emit_statuses([found], ref)


def _await_running(
    client: ControlClient, ref: JobRef, names: Collection[str], has_begun: Callable[[JobStatus], bool], timeout: float
) -> int:
    """Wait until each of the jobs runs, or has ended, in a run that ``has_begun``; return the exit code."""

    def settled() -> list[JobStatus] | None:
        jobs = [job for job in ref.of(client.pipeline(ref.pipeline)) if job.name in names]
        return jobs if all(_is_settled(job, has_begun) for job in jobs) else None

    jobs = wait_until(settled, timeout, f"{ref} is not running")
    for job in filter(_is_bad, jobs):
        click.echo(f"jobpipe: job {printable(job.name)} is {job.state}: {printable(job.detail)}", err=True)
    return Exit.UNHEALTHY if any(map(_is_bad, jobs)) else Exit.OK


def _is_settled(job: JobStatus, has_begun: Callable[[JobStatus], bool]) -> bool:
    """Whether a job runs or has ended, in a run that ``has_begun``; one with a schedule has no run by itself."""
    from jobpipe.pipelines.model.job_states import ENDED, JobState

    if job.scheduled:
        return True
    settled = job.state in (*ENDED, JobState.RUNNING, JobState.BLOCKED, JobState.LOST)
    return settled and has_begun(job)


def _is_bad(job: JobStatus) -> bool:
    from jobpipe.pipelines.model.job_states import JobState

    return job.state in (JobState.FAILED, JobState.LOST)


def _counted(status: PipelineStatus) -> str:
    counts: dict[str, int] = {}
    for job in status.jobs:
        counts[job.state] = counts.get(job.state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
