"""``jobpipe dead-letters``: the rows that jobs could not take: listed, shown, and published again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobpipe.cli.common.broken_pipe import while_read
from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.exit_codes import Exit
from jobpipe.cli.common.offset_argument import PlaceType
from jobpipe.cli.common.output import count, emit_json, emit_table, printable
from jobpipe.errors import NotAuthorized
from jobpipe.plural import counted
from jobpipe.store.reading.boundary import Boundary

if TYPE_CHECKING:
    import pyarrow as pa

    from jobpipe.cli.common.row_filter import RowFilter
    from jobpipe.config import Config
    from jobpipe.pipelines.dead_letters.letter_reader import LetterGroup, LetterReader
    from jobpipe.pipelines.dead_letters.redrive import Outcome
    from jobpipe.subscribing.fetching.part_fetch import Fetched

SUFFIX = ".dead-letters"
_MISSING = "give PIPELINE/JOB, or --file and JOB, or --topic"
_place = PlaceType("earliest", "latest")

_of_job = click.argument("job", metavar="[PIPELINE/JOB]", required=False)
_file = click.option("--file", metavar="FILE", help="The pipeline's file, if it names the topic. JOB is a job in it.")
_topic = click.option("--topic", help="The topic of dead letters, by its full name.")
_from = click.option(
    "--from",
    "starting",
    type=_place,
    default="earliest",
    metavar="earliest|OFFSET|TIME",
    help="The first letters.  [default: earliest]",
)
_to = click.option(
    "--to", "ending", type=_place, metavar="latest|OFFSET|TIME", help="Where the letters end.  [default: latest]"
)
_where = click.option("--where", metavar="SQL", help="Only letters for which this condition of Spark SQL holds.")


@click.group("dead-letters")
def dead_letters() -> None:
    """List, show and redrive dead letters: rows that a job with `errors: {tolerance: all}` could not take.

    Their topic is PIPELINE.JOB.dead-letters, with the pipeline's `topic-prefix` before it, or the one that
    `errors.dead-letters` of the job names.
    """


@dead_letters.command("list")
@_of_job
@_file
@_topic
@json_option
@pass_settings
def list_letters(settings: Settings, job: str | None, file: str | None, topic: str | None, as_json: bool) -> None:
    """Count dead letters by stage and error, of one topic or of all that are known here.

    Without arguments these are the topics whose names end with .dead-letters, that are served or have a spool on this
    host. `redriven` letters were published again. `left` ones cannot be: `jobpipe dead-letters redrive --dry-run` says
    why.

    JSON keys: topic, stage, error_class, letters, redriven, left, first, last. redriven is null where the topic that
    the rows came from is neither served nor on this host.
    """
    config = settings.config
    groups: list[LetterGroup] = []
    with ExitStack() as stack:
        letters = _letters(stack, config)
        single = job is not None or file is not None or topic is not None
        if single:
            groups = letters.groups(_named(job, file, topic))
        else:
            for name in _known(config):
                try:
                    groups += letters.groups(name)
                except NotAuthorized as error:  # another team's
                    click.echo(f"{name} is left out: {printable(error.message)}", err=True)
    if as_json:
        emit_json([group.to_json() for group in groups])
    elif not groups:
        click.echo("no dead letters", err=True)
    else:
        columns = ("TOPIC", "STAGE", "ERROR", "LETTERS", "REDRIVEN", "LEFT", "FIRST", "LAST")
        emit_table(columns, [_line(group) for group in groups], right=("LETTERS", "REDRIVEN", "LEFT"))


@dead_letters.command()
@_of_job
@_file
@_topic
@_from
@_to
@_where
@click.option("--limit", type=click.IntRange(min=1), metavar="ROWS", help="Stop after this many letters.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per letter.")
@pass_settings
def show(
    settings: Settings,
    job: str | None,
    file: str | None,
    topic: str | None,
    starting: Boundary,
    ending: Boundary | None,
    where: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print dead letters, each with its place in their topic: OFFSET:ROW."""
    from jobpipe.cli.common.row_printer import JsonLines, RowPrinter, TableLines

    printer: RowPrinter = JsonLines() if as_json else TableLines()
    name = _named(job, file, topic)

    def print_them() -> None:
        left = limit
        for fetched, numbers in _letters(stack, settings.config).read(name, starting, ending, _filter(where)):
            batch = _with_place(fetched, numbers)
            printer.write(batch if left is None else batch.slice(0, left))
            if left is not None and (left := left - batch.num_rows) <= 0:
                return

    with ExitStack() as stack:
        while_read(print_them)


@dead_letters.command()
@_of_job
@_file
@_topic
@_from
@_to
@_where
@click.option("--into", multiple=True, metavar="TOPIC", help="A topic that rows may go back to; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Say what would be published, and publish nothing.")
@click.option("--skip-left", is_flag=True, help="Exit with 0 although some letters were left.")
@json_option
@pass_settings
def redrive(
    settings: Settings,
    job: str | None,
    file: str | None,
    topic: str | None,
    starting: Boundary,
    ending: Boundary | None,
    where: str | None,
    into: tuple[str, ...],
    dry_run: bool,
    skip_left: bool,
    as_json: bool,
) -> None:
    """Publish the rows of dead letters again, to the topics that they came from.

    Which topic that was a letter says, and who can publish letters can write anything in them. So rows go only to the
    topics that the job of --file reads, and to those that --into names; other letters are left.

    A row goes back as its topic had it, next to what the topic's publisher publishes, to all subscriptions. Each one is
    published again once, also if several letters are of it: that it was is stored with the row. So a redrive that was
    killed may be called again, and two may run at once. It needs the right `publish` on the topics. Where their spools
    are on this host, no publisher need run.

    Letters that cannot be published again are left, and counted with the reason; then the exit code is 1, unless
    --skip-left is given.

    JSON keys: published (rows by topic), already (letters whose rows were published again before), left (a list of
    reason, count), dry_run.
    """
    name, allowed = _named(job, file, topic), _allowed(job, file, into)
    with ExitStack() as stack:
        letters = _letters(stack, settings.config)
        outcome = letters.redrive(name, starting, ending, _filter(where), allowed, dry_run=dry_run)
    if as_json:
        left = [{"reason": why, "count": number} for why, number in outcome.left.items()]
        emit_json({"published": outcome.published, "already": outcome.already, "left": left, "dry_run": dry_run})
    else:
        _report(outcome, dry_run=dry_run)
    if outcome.left and not skip_left:
        click.get_current_context().exit(Exit.UNHEALTHY)


def _report(outcome: Outcome, *, dry_run: bool) -> None:
    verb = "would publish" if dry_run else "published"
    for topic, number in outcome.published.items():
        click.echo(f"{verb} {counted(number, 'row')} to {topic} again")
    if not sum(outcome.published.values()):
        click.echo(f"{verb} nothing")
    if outcome.already:
        click.echo(f"{counted(outcome.already, 'row')} were published again before")
    for why, number in outcome.left.items():
        places = [f"{each.letter.offset}:{each.letter.number}" for each in outcome.named if each.why == why]
        more = ", …" if len(places) < number else ""
        click.echo(f"left {counted(number, 'letter')} ({', '.join(places)}{more}): {printable(why)}", err=True)


# -- which topic -------------------------------------------------------------------------------------------------------


def _named(job: str | None, file: str | None, topic: str | None) -> str:
    """Return the topic of dead letters that the arguments mean."""
    if topic is not None:
        if job is not None or file is not None:
            raise click.UsageError("--topic goes with neither PIPELINE/JOB nor --file")
        return topic
    if job is None:
        raise click.UsageError(_MISSING)
    if file is not None:
        return _in_file(Path(file), job)
    pipeline, slash, name = job.partition("/")
    if not (pipeline and slash and name) or "/" in name:
        raise click.UsageError(f"{job!r} is not PIPELINE/JOB: {_MISSING}")
    return f"{pipeline}.{name}{SUFFIX}"


def _allowed(job: str | None, file: str | None, into: tuple[str, ...]) -> Callable[[str], bool]:
    """Return what tells of a topic whether rows may go there."""
    if file is None or job is None:
        return lambda topic: topic in into
    from jobpipe.pipelines.loading.loader import load_pipeline
    from jobpipe.pipelines.model.graph import reads_topic

    pipeline = load_pipeline(Path(file))
    return lambda topic: topic in into or reads_topic(pipeline, pipeline.jobs[job], topic)


def _in_file(file: Path, job: str) -> str:
    from jobpipe.pipelines.loading.loader import load_pipeline
    from jobpipe.pipelines.model.graph import dead_letters_of

    pipeline = load_pipeline(file)
    if job not in pipeline.jobs:
        raise click.UsageError(f"{file} has no job {job!r}; there are {', '.join(pipeline.jobs)}")
    topic = dead_letters_of(pipeline, pipeline.jobs[job])
    if topic is None:
        raise click.UsageError(f"job {job} of {file} has no dead letters: it needs `errors: {{tolerance: all}}`")
    return pipeline.spec.topic_prefix + topic


def _known(config: Config) -> list[str]:
    from jobpipe.admin import Admin
    from jobpipe.store.log.spool_folders import has_spool

    with Admin(config) as admin:
        found = {line.name for line in admin.topics() if line.location is not None}
    if config.spool_dir.is_dir():
        found |= {place.name for place in config.spool_dir.iterdir() if has_spool(place)}
    return sorted(name for name in found if name.endswith(SUFFIX))


# -- reading them ------------------------------------------------------------------------------------------------------


def _line(group: LetterGroup) -> tuple[object, ...]:
    """Return a group as a line of the table."""
    times = ["" if at is None else at.isoformat(timespec="seconds") for at in (group.first, group.last)]
    counts = count(group.letters), count(group.redriven), count(group.left)
    return group.topic, group.stage, group.error_class, *counts, *times


def _letters(stack: ExitStack, config: Config) -> LetterReader:
    from jobpipe.cli.common.spool_reader import Spools
    from jobpipe.pipelines.dead_letters.letter_reader import LetterReader

    return LetterReader(stack, config, Spools(stack, config))


def _filter(where: str | None) -> RowFilter | None:
    from jobpipe.cli.common.row_filter import RowFilter

    return None if where is None else RowFilter(where)


def _with_place(fetched: Fetched, numbers: list[int] | None) -> pa.RecordBatch:
    """Return the rows that are meant, with column ``letter`` before the others: where each one is."""
    import pyarrow as pa

    from jobpipe.cli.common.row_filter import filtered

    batch = fetched.batch
    places = pa.array([f"{fetched.header.n}:{fetched.row + number}" for number in range(batch.num_rows)])
    columns: list[Any] = [places, *batch.columns]
    return filtered(pa.RecordBatch.from_arrays(columns, names=["letter", *batch.schema.names]), numbers)
