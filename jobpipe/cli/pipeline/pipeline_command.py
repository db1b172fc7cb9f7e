"""``jobpipe pipeline``: pipelines of jobs in one file: an example, checks, the graph, a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jobpipe.cli.command_tree import CommandGroup
from jobpipe.cli.common.command_context import Settings, graph_format_option, json_option, pass_settings
from jobpipe.cli.common.exit_codes import Exit
from jobpipe.cli.common.output import emit_json, printable
from jobpipe.errors import PipelineError

if TYPE_CHECKING:
    from jobpipe.pipelines.file.problems import Problem
    from jobpipe.pipelines.model.pipeline import Pipeline

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=CommandGroup)
def pipeline() -> None:
    """Write, check, show and run pipelines: YAML files of jobs that are chained by topics."""


def of_file(command: F) -> F:
    """Add what says which pipeline is meant."""
    for option in (
        click.option(
            "--overlay", "overlays", multiple=True, metavar="FILE", help="Merge this file over FILE; may be repeated."
        ),
        click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="Set a parameter; may be repeated."),
        click.argument("file"),
    ):
        command = option(command)
    return command


def load(file: str, given: tuple[str, ...], overlays: tuple[str, ...], *, captures_only: bool = False) -> Pipeline:
    """Return the checked pipeline.

    Args:
        captures_only: see :func:`.loader.load_pipeline`.

    Raises:
        PipelineError: with every problem.
        click.BadParameter: ``--set`` without an equals sign, or twice for one parameter.
    """
    from jobpipe.pipelines.loading.loader import load_pipeline

    values = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--set")
        if name.strip() in values:
            raise click.BadParameter(f"{name.strip()} is given twice; give it once", param_hint="--set")
        values[name.strip()] = value
    return load_pipeline(file, overlays=overlays, given=values, captures_only=captures_only)


def _warnings(found: Pipeline) -> list[Problem]:
    """Return what is probably wrong, and what a run does not do."""
    from jobpipe.pipelines.loading.lint import inputs_not_here, modules_of_others, types_of_no_column
    from jobpipe.pipelines.loading.spec_checks import left_out_by_run

    here = (*modules_of_others(found), *inputs_not_here(found), *types_of_no_column(found))
    return [*found.warnings, *left_out_by_run(found), *here]


@pipeline.command()
@of_file
@click.option(
    "--import", "importing", is_flag=True, help="Also import the functions that FILE names, in a separate process."
)
@json_option
def validate(file: str, given: tuple[str, ...], overlays: tuple[str, ...], importing: bool, as_json: bool) -> int:
    """Check FILE, and report every problem with its line and its remedy.

    None of your code is imported or run, unless you give --import.

    Exits with 2 if there is a problem. Warnings are not problems. JSON keys: ok, file, problems (file, line, key, what,
    remedy, severity: error or warning).
    """
    try:
        found = load(file, given, overlays)
        if importing:
            from jobpipe.pipelines.file.problems import pipeline_error
            from jobpipe.pipelines.loading.import_check import check_imports

            if wrong := check_imports(found):
                raise pipeline_error([*_warnings(found), *wrong])
    except PipelineError as error:
        if not as_json:
            raise
        emit_json({"ok": False, "file": file, "problems": error.fields["problems"]})
        return Exit.USAGE
    if as_json:
        from dataclasses import asdict

        emit_json({"ok": True, "file": file, "problems": [asdict(problem) for problem in _warnings(found)]})
        return Exit.OK
    for warning in _warnings(found):
        click.echo(printable(str(warning)), err=True)
    jobs = len(found.jobs)
    click.echo(f"ok: {printable(file)}: pipeline {found.name}, {jobs} job{'s' * (jobs != 1)}")
    if any(job.spec.schedule is not None for job in found.jobs.values()):
        click.echo(f"its schedules are run by the control server: jobpipe pipeline submit {printable(file)}")
    return Exit.OK


@pipeline.command()
@of_file
@graph_format_option
def graph(file: str, given: tuple[str, ...], overlays: tuple[str, ...], shape: str) -> None:
    """Show which job of FILE publishes and reads which topic.

    `--format dot | dot -Tsvg` draws it with Graphviz; `--format mermaid` is for Markdown. JSON keys: pipeline, jobs
    (name, kind, mode, sources, transforms, sinks, reads, publishes, schedule), topics (name, publishers, readers),
    cycles.
    """
    from jobpipe.graph.diagram import LANGUAGES
    from jobpipe.pipelines.model.graph import graph_of
    from jobpipe.pipelines.model.graph_rendering import as_diagram, as_dict, as_text

    made = graph_of(load(file, given, overlays))
    if shape == "json":
        emit_json(as_dict(made))
        return
    text = as_text(made) if shape == "text" else LANGUAGES[shape](as_diagram(made))
    click.echo("\n".join(map(printable, text.splitlines())))


@pipeline.command()
@of_file
@click.option("--only", multiple=True, metavar="JOB", help="Run only this job; may be repeated.")
@click.option(
    "--new-checkpoint",
    multiple=True,
    metavar="JOB",
    help="Start this job over, without its checkpoint; may be repeated.",
)
@click.option("--lower", metavar="LOWER", help="Where the run of a BATCH job begins: an ISO 8601 time, or an offset.")
@click.option("--upper", metavar="UPPER", help="Where it ends; rows from UPPER on are not of the run.")
@click.option("--plain", is_flag=True, help="Print lines instead of live tables, as without a terminal.")
@click.option("--timeout", type=click.FloatRange(min=1), metavar="SECONDS", help="Stop all jobs after this time.")
@pass_settings
def run(
    settings: Settings,
    file: str,
    given: tuple[str, ...],
    overlays: tuple[str, ...],
    only: tuple[str, ...],
    new_checkpoint: tuple[str, ...],
    lower: str | None,
    upper: str | None,
    plain: bool,
    timeout: float | None,
) -> int:
    """Run the jobs of FILE here until all have ended. Meanwhile, show topics, subscriptions and jobs.

    Ctrl-C stops each job after its current micro-batch. A second Ctrl-C, at least a second later, stops them at once. A
    job that fails is restarted as pipeline.restart says. When a job has failed for good, the others are stopped. Jobs
    with a schedule are left out, unless --only names them. Each job's log is in logs/pipelines/NAME under jobpipe.home.

    With --lower and --upper, --only names one BATCH job, which reads what lies between them. A time without a zone is
    in the zone of the job's schedule, else in UTC.

    Exits with 0 if all jobs ended normally, 1 if one failed, 130 after Ctrl-C, 143 after SIGTERM.
    """
    from jobpipe.config.reading.config_loader import settled_environment
    from jobpipe.control.active_runs import require_no_run_of_server
    from jobpipe.jobs.foreground.foreground_run import last_lines, run_pipeline
    from jobpipe.jobs.foreground.progress_display import DisplayConsole
    from jobpipe.pipelines.loading.spec_checks import schedules_not_fired
    from jobpipe.pipelines.model.job_states import JobState
    from jobpipe.pipelines.model.run_bounds import bounds_of

    found = load(file, given, overlays)
    bounds = bounds_of(found, only, lower, upper)
    for warning in (*_warnings(found), *(schedules_not_fired(found) if not only else ())):
        click.echo(printable(str(warning)), err=True)
    require_no_run_of_server(settings.config.home, found.name)
    console = DisplayConsole(stderr=True)
    ran = run_pipeline(
        found,
        config=settings.config,
        config_file=settings.resolved.file or Path(os.devnull),  # the jobs' working folder may have another one
        environment=settled_environment(os.environ),
        console=console,
        only=only,
        new_checkpoint=new_checkpoint,
        bounds=bounds,
        plain=plain,
        timeout=timeout,
    )
    for job in ran.failed:
        click.echo(f"jobpipe: job {job.name} failed: {printable(job.detail)}", err=True)
        for line in [] if job.cause else last_lines(job.log):
            click.echo(f"  {printable(line)}", err=True)
        if job.log.exists():  # a driver on a cluster has its log there
            click.echo(f"its log: {printable(str(job.log))}", err=True)
    for job in ran.jobs:
        if job.state is JobState.STOPPED and not (ran.stopped_by or ran.late or ran.failed):
            click.echo(f"jobpipe: job {job.name} was stopped by another program", err=True)
        if job.state is JobState.LOST:
            click.echo(f"jobpipe: job {job.name} is LOST: {printable(job.detail)}", err=True)
    if ran.late:
        click.echo(
            f"jobpipe: the jobs were stopped, since they had not ended after {timeout:g} s (--timeout)", err=True
        )
    for count in ran.dead_letters:
        click.echo(printable(str(count)), err=True)
    return ran.code


@pipeline.command("try")
@of_file
@click.argument("job")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    required=True,
    metavar="[VIEW=]ROWS",
    help="Sample rows; one file for each view.",
)
@click.option("--expect", metavar="ROWS", help="Compare the output with the rows of this file, in any order.")
def try_(
    file: str,
    given: tuple[str, ...],
    overlays: tuple[str, ...],
    job: str,
    inputs: tuple[str, ...],
    expect: str | None,
) -> int:
    """Try the transforms of JOB in FILE on sample rows. Prints each output row as a JSON object on its own line.

    Nothing is read from the job's sources or written to its sinks. ROWS is a file with a JSON object on each line, or
    with a JSON list of objects. Dead letters go to standard error.

    Exits with 1 if the output differs from --expect, with 2 if a stage fails.
    """
    import json

    from jobpipe.jobs.foreground.dry_run import differences, read_rows, try_job

    found = load(file, given, overlays)
    named: dict[str | None, str] = {}
    for each in inputs:
        view, equals, path = each.partition("=")
        named[view if equals else None] = path if equals else each
    expected = None if expect is None else read_rows(Path(expect))
    tried = try_job(found, job, {view: read_rows(Path(path)) for view, path in named.items()})
    for said in tried.unknown:
        click.echo(f"warning: {printable(said)}", err=True)
    for row in tried.rows:
        click.echo(json.dumps(row, ensure_ascii=False))
    for row in tried.dead:
        click.echo(f"dead letter: {json.dumps(row, ensure_ascii=False)}", err=True)
    if expected is None:
        return Exit.OK
    lines = differences(tried.rows, expected)
    for line in lines:
        click.echo(printable(line), err=True)
    return Exit.UNHEALTHY if lines else Exit.OK


@pipeline.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
def init(folder: Path) -> None:
    """Write a small example into FOLDER: three jobs, some rows, and a report.

    Existing files are never replaced.
    """
    from jobpipe.pipelines.loading.scaffold import copy_example

    for path in copy_example(folder):
        click.echo(printable(str(path)))
    click.echo(f"next: jobpipe pipeline run {printable(str(folder / 'pipeline.yaml'))}", err=True)
