"""``jobpipe dead-letters``: the rows that jobs could not take: listed, shown, and published again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
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
from jobpipe.store.reading.boundary import EARLIEST, LATEST, Boundary
from jobpipe.store.spool.spool_files import is_topic

if TYPE_CHECKING:
    import pyarrow as pa

    from jobpipe.cli.common.row_filter import RowFilter
    from jobpipe.cli.common.spool_reader import Spools
    from jobpipe.config import Config
    from jobpipe.operations.reader_operations import Bounds
    from jobpipe.pipelines.dead_letters.redrive import Letter, Outcome
    from jobpipe.store.catalog.redrive_marks import SourceRow
    from jobpipe.subscribing.fetching.part_fetch import Fetched
    from jobpipe.subscribing.topic_reader import TopicReader

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
    groups: list[_Group] = []
    with ExitStack() as stack:
        letters = _Letters(stack, config)
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
        emit_table(columns, [group.line() for group in groups], right=("LETTERS", "REDRIVEN", "LEFT"))


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
        for fetched, numbers in _Letters(stack, settings.config).read(name, starting, ending, where):
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
        outcome = _Letters(stack, settings.config).redrive(name, starting, ending, where, allowed, dry_run=dry_run)
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


@dataclass
class _Group:
    """The letters of one topic, stage and error."""

    topic: str
    stage: str
    error_class: str
    first: datetime
    last: datetime
    letters: int = 0
    left: int = 0
    rows: dict[str, list[SourceRow]] = field(default_factory=dict)
    redriven: int | None = 0

    def add(self, letter: Letter) -> None:
        """Count a letter."""
        at = letter.values["at"]
        self.first, self.last = min(self.first, at), max(self.last, at)
        self.letters += 1
        if letter.hindrance is not None:
            self.left += 1
        else:
            self.rows.setdefault(letter.topic, []).append(letter.source)

    def line(self) -> tuple[object, ...]:
        """Return it for people."""
        times = self.first.isoformat(timespec="seconds"), self.last.isoformat(timespec="seconds")
        counts = count(self.letters), count(self.redriven), count(self.left)
        return self.topic, self.stage, self.error_class, *counts, *times

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "topic": self.topic,
            "stage": self.stage,
            "error_class": self.error_class,
            "letters": self.letters,
            "redriven": self.redriven,
            "left": self.left,
            "first": self.first.isoformat(),
            "last": self.last.isoformat(),
        }


class _Letters:
    """Reads topics of dead letters; what is opened is closed with ``stack``."""

    def __init__(self, stack: ExitStack, config: Config) -> None:
        from jobpipe.cli.common.spool_reader import Spools

        self._stack = stack
        self._config = config
        self._spools: Spools = Spools(stack, config)

    def _reader(self, topic: str) -> TopicReader:
        from jobpipe.subscribing.topic_reader import TopicReader

        self._spools.serve(topic)
        return self._stack.enter_context(TopicReader(self._config, topic))

    def read(
        self, topic: str, starting: Boundary, ending: Boundary | None, where: str | None
    ) -> Iterator[tuple[Fetched, list[int] | None]]:
        """Yield record batches with the numbers of the rows that are meant, None for all."""
        reader = self._reader(topic)
        bounds = reader.bounds(starting, ending or LATEST)
        yield from _rows(reader, bounds, _filter(where))

    def groups(self, topic: str) -> list[_Group]:
        """Return how many letters there are, by stage and error."""
        from jobpipe.pipelines.dead_letters.redrive import letters_of

        reader = self._reader(topic)
        bounds = reader.bounds(EARLIEST, LATEST)
        found: dict[tuple[str, str], _Group] = {}
        for fetched, _ in _rows(reader, bounds, None):
            for letter in letters_of(topic, fetched):
                key = letter.values["stage"], letter.values["error_class"]
                at = letter.values["at"]
                found.setdefault(key, _Group(topic, *key, at, at)).add(letter)
        self._count_redriven(list(found.values()))
        return [found[key] for key in sorted(found)]

    def _count_redriven(self, groups: list[_Group]) -> None:
        marked: dict[str, set[SourceRow]] = {}
        for topic in sorted({topic for group in groups for topic in group.rows}):
            if is_topic(topic) and (self._spools.serve(topic) or self._spools.is_served(topic)):
                rows = {row for group in groups for row in group.rows.get(topic, ())}
                marked[topic] = self._reader(topic).marked(tuple(rows))
        for group in groups:
            known = group.rows.keys() <= marked.keys()
            again = [row in marked[topic] for topic, rows in group.rows.items() for row in rows if known]
            group.redriven = sum(again) if known else None

    def redrive(
        self,
        topic: str,
        starting: Boundary,
        ending: Boundary | None,
        where: str | None,
        allowed: Callable[[str], bool],
        *,
        dry_run: bool,
    ) -> Outcome:
        """Publish the rows of the letters again."""
        from jobpipe.pipelines.dead_letters.redrive import Redrive, letters_of
        from jobpipe.publishing.appender import Appender

        def open_topic(name: str, query_id: str) -> Appender:
            self._spools.serve(name)
            return self._stack.enter_context(Appender(self._config, name, query_id))

        reader = self._reader(topic)
        bounds = reader.bounds(starting, ending or LATEST)
        made = Redrive(open_topic, allowed, dry_run=dry_run)
        for fetched, numbers in _rows(reader, bounds, _filter(where)):
            letters = list(letters_of(topic, fetched))
            for letter in letters if numbers is None else [letters[number] for number in numbers]:
                made.take(letter)
        return made.finish()


def _rows(
    reader: TopicReader, bounds: Bounds, condition: RowFilter | None
) -> Iterator[tuple[Fetched, list[int] | None]]:
    end = bounds.end or bounds.head
    if end == bounds.start:
        return
    for fetched in reader.fetch(bounds.start, end):
        yield fetched, None if condition is None else condition.numbers(fetched.batch)


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
