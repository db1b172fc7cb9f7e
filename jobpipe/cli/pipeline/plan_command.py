"""``jobpipe pipeline plan, history``, and the question before a submission that ends runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.exit_codes import Exit
from jobpipe.cli.common.output import emit_json, emit_table, printable
from jobpipe.cli.common.server_connection import client_of, local_time, pass_client, server_options, view_of
from jobpipe.cli.pipeline.pipeline_command import load, of_file
from jobpipe.errors import ConfigError

if TYPE_CHECKING:
    from jobpipe.control.control_service import JobPlan, Plan, RevisionView, Submission, Submitted
    from jobpipe.control.rest.rest_client import ControlClient
    from jobpipe.pipelines.model.pipeline import Pipeline

PLAN_KEYS = (
    "pipeline, version, born, changed, jobs (job, action, reasons, rows_again, from_checkpoint, ends_run, "
    "drops_subscriptions), settings, refused, warnings"
)
REVISION_KEYS = "pipeline, version, submitted, by, file, added, removed, changed, settings"
OF_TODAY = (
    "only the file itself is of version {version}: functions, libraries and what file: refers to are as they are today"
)

new_checkpoint_option = click.option(
    "--new-checkpoint",
    multiple=True,
    metavar="JOB",
    help="Start this job over, without its checkpoint; may be repeated.",
)
yes_option = click.option(
    "--yes", is_flag=True, help="Do not ask before runs are ended or subscriptions dropped; for scripts."
)


@click.command()
@of_file
@new_checkpoint_option
@server_options
@json_option
@pass_settings
def plan(
    settings: Settings,
    file: str,
    given: tuple[str, ...],
    overlays: tuple[str, ...],
    new_checkpoint: tuple[str, ...],
    url: str | None,
    token_file: Path | None,
    as_json: bool,
) -> int:
    """Show what `submit FILE` would do with each job, and why. Nothing is changed, and no server is started.

    Exits with 1 if the file would be refused, also because a job needs --new-checkpoint; with 2 if the file is wrong.

    JSON keys: pipeline, version (that the server has; 0: none), born (seconds since 1970), changed, jobs (job, action,
    reasons, rows_again, from_checkpoint, ends_run, drops_subscriptions), settings, refused, warnings.
    """
    from jobpipe.control.active_runs import is_known_to_server
    from jobpipe.control.rest.rest_client import ServerAddress
    from jobpipe.control.revisions.submission_checks import plan_without_server

    found = load(file, given, overlays)
    home, submission = settings.config.home, submission_of(found, file)
    if url is None and ServerAddress.local(settings.config) is None and not is_known_to_server(home, found.name):
        said = f"no control server of {home} is running, and none has had pipeline {found.name}: this is a plan for one"
        click.echo(printable(said), err=True)
        made = plan_without_server(submission, new_checkpoint, settings.config, settings.resolved.file)
    else:
        made = client_of(settings, url, token_file).plan(submission, new_checkpoint=new_checkpoint)
    if as_json:
        emit_json(view_of(made))
    else:
        for line in plan_lines(made):
            click.echo(line)
    return Exit.UNHEALTHY if made.is_refused else Exit.OK


@click.command()
@click.argument("name")
@pass_client
@json_option
def history(client: ControlClient, name: str, as_json: bool) -> None:
    """List the versions of the file of pipeline NAME, the newest first. The server keeps the last 100.

    JSON keys of each: pipeline, version, submitted (seconds since 1970), by, file, added, removed, changed, settings.
    """
    found = client.revisions(name)
    if as_json:
        emit_json(view_of(found))
        return
    rows = [
        (
            each.version,
            local_time(each.submitted) if each.submitted else None,
            each.by or None,
            "; ".join(_changes(each)) or None,
            str(each.file),
        )
        for each in found
    ]
    emit_table(("VERSION", "SUBMITTED", "BY", "CHANGES", "FILE"), rows, right=("VERSION",))


def submission_of(found: Pipeline, file: str) -> Submission:
    """Return a loaded file as it is submitted."""
    from jobpipe.config.reading.located_values import plain
    from jobpipe.control.control_service import Submission

    return Submission(file=Path(file).absolute(), folder=found.folder, tree=plain(found.tree))


def submit_as_planned(
    client: ControlClient,
    submission: Submission,
    new_checkpoint: Sequence[str],
    *,
    yes: bool,
    base: int | None = None,
) -> tuple[Submitted, bool]:
    """Submit a file; if that ends runs, show what it does, and ask. Return what it did, and whether it was shown.

    Args:
        base: the version that the caller knows; None: the one of the plan.

    Raises:
        ControlConflict: another submission came in between.
        click.exceptions.Exit: the file is refused; the plan was shown.
        click.UsageError: it has to be asked, and there is no terminal.
    """
    made = client.plan(submission, new_checkpoint=new_checkpoint)
    base = made.version if base is None else base
    asks = made.needs_consent and base == made.version  # else the server refuses it
    if asks or made.is_refused:
        for line in plan_lines(made):
            click.echo(line, err=True)
    if made.is_refused:
        raise click.exceptions.Exit(Exit.UNHEALTHY)
    if asks and not yes:
        _ask()
    return client.submit(submission, new_checkpoint=new_checkpoint, base=base, born=made.born), asks


def _ask() -> None:
    if not has_terminal():
        raise click.UsageError(
            "runs that are under way would end, or subscriptions be dropped, and there is no terminal to ask; if the "
            "plan above is as you want it, give --yes"
        )
    if not click.confirm("Go on?", err=True):
        click.echo("nothing was changed", err=True)
        raise click.exceptions.Exit(Exit.UNHEALTHY)


def has_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty()


def plan_lines(made: Plan) -> Iterator[str]:
    """Yield a plan as lines for people."""
    if not made.version:
        yield f"pipeline {printable(made.pipeline)} (new)"
    else:
        following = f" -> {made.version + 1}" if made.changed else ", the same file"
        yield f"pipeline {printable(made.pipeline)}, version {made.version}{following}"
    width = max((len(job.job) for job in made.jobs), default=0)
    for job in made.jobs:
        yield f"  {printable(job.job):<{width}}  {_words(job)}"
        for reason in (*job.reasons, *job.rows_again):
            yield f"      {printable(reason)}"
    if made.settings:
        yield "taken without a restart:"
        yield from (f"      {printable(each)}" for each in made.settings)
    for why in made.refused:
        yield f"refused: {printable(why)}"


def _words(job: JobPlan) -> str:
    from jobpipe.control.control_service import Action

    more = {
        Action.STORED: "; its run ends" if job.ends_run else "; no run begins now",
        Action.STARTED: " from its checkpoint" if job.from_checkpoint else "",
        Action.RESTARTED: " from its checkpoint" if job.from_checkpoint else "",
        Action.NEW_CHECKPOINT: "; its run ends" if job.ends_run else "",
        Action.NEEDS_NEW_CHECKPOINT: ": the file is refused",
    }
    return f"{job.action}{more.get(job.action, '')}"


def _changes(view: RevisionView) -> Iterator[str]:
    for what in ("added", "removed", "changed"):
        if names := getattr(view, what):
            yield f"{what} {', '.join(names)}"
    if view.settings:
        yield f"changed {', '.join(view.settings)}"


def previous(found: Sequence[RevisionView], name: str) -> int:
    """Return the version before the newest one.

    Raises:
        ConfigError: none is kept.
    """
    if len(found) < 2:
        raise ConfigError(f"no earlier version of pipeline {name} is kept", key="--to")
    return found[1].version
