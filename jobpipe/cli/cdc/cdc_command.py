"""``jobpipe cdc``: the captures of a pipeline's file, without Spark."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from jobpipe.cli.command_tree import CommandGroup
from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.exit_codes import Exit, exit_of
from jobpipe.cli.common.output import emit_json, emit_table, printable, size
from jobpipe.cli.pipeline.pipeline_command import load, of_file
from jobpipe.errors import ConfigError, JobpipeError

if TYPE_CHECKING:
    from jobpipe.cdc.capture_options import CaptureOptions
    from jobpipe.cdc.mariadb.mysql_options import MysqlOptions
    from jobpipe.cdc.postgresql.database.database_catalog import Slot
    from jobpipe.cdc.postgresql.postgres_options import PostgresOptions
    from jobpipe.pipelines.model.pipeline import Job, Pipeline


@click.group(cls=CommandGroup)
def cdc() -> None:
    """Capture tables of a database as topics, without Spark; list and drop what captures leave in it."""


@cdc.command()
@of_file
@click.argument("job", required=False)
@pass_settings
def run(settings: Settings, file: str, given: tuple[str, ...], overlays: tuple[str, ...], job: str | None) -> int:
    """Run the captures of FILE here until they are stopped: JOB alone, or all, each in a thread of this process.

    A capture is a job with source postgres-cdc or mysql-cdc. Spark need not be installed. A cut link to the database or
    a topic is made again. If one capture fails, the others are stopped: let a supervisor, such as systemd, start the
    command again. It goes on where it was. The control server and `jobpipe pipeline run` run captures, too, and restart
    them.

    Ctrl-C and SIGTERM end a capture after the batch that it is publishing. A line every few seconds on standard error
    says how far each one is.

    Exits with 130 after Ctrl-C, 143 after SIGTERM, else as its first error.
    """
    from jobpipe.config import load as load_config
    from jobpipe.jobs.bus_keys import bus_keys
    from jobpipe.jobs.captures.foreground_captures import ForegroundCaptures, choose_captures, require_not_running
    from jobpipe.jobs.captures.open_capture import collect_rarely, open_capture
    from jobpipe.own_application import JOB, PIPELINE
    from jobpipe.pipelines.file.interpolation import RunValues

    found = _load(file, given, overlays)
    jobs = choose_captures(found, job)
    require_not_running(settings.config, found, jobs)
    if len(jobs) == 1:
        os.environ |= {PIPELINE: found.name, JOB: jobs[0].name}  # what the topics' status calls this process
    captures = {
        each.name: open_capture(found, each, RunValues("cdc"), load_config(settings.file, spark=bus_keys(found, each)))
        for each in jobs
    }
    collect_rarely()
    done = ForegroundCaptures(captures, _say).run()
    for name, error in done.errors.items():
        if not isinstance(error, JobpipeError):
            traceback.print_exception(error)
        text = error.message if isinstance(error, JobpipeError) else f"{type(error).__name__}: {error}"
        click.echo(f"jobpipe: capture {name} failed: " + "\n".join(map(printable, text.splitlines())), err=True)
    for name in done.late:
        click.echo(f"jobpipe: capture {name} did not end in time, and was left where it was", err=True)
    if done.errors:
        first = next(iter(done.errors.values()))
        return exit_of(first) if isinstance(first, JobpipeError) else Exit.UNHEALTHY
    return Exit.OK if done.stopped_by is None else 128 + done.stopped_by


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # its reader is gone, and the captures go on
        click.echo(printable(line), err=True)


@cdc.command("list")
@of_file
@json_option
def list_all(file: str, given: tuple[str, ...], overlays: tuple[str, ...], as_json: bool) -> None:
    """List what the databases keep of their logs for the captures of FILE, and for others.

    PostgreSQL has replication slots. One that no capture reads keeps the log of its database, whose disk may fill up:
    `jobpipe cdc drop`. Slots are of one database; those of other databases of the same server are not listed. MariaDB
    and MySQL keep their binary log for a time, read or not: of such a capture the whole log is shown, and how long
    it is kept.

    JSON: a list of database, slot, plugin, active, retained_bytes, wal_status, capture (null: none of FILE). A slot
    that its capture has not made yet has no plugin. Of MariaDB and MySQL slot is the server-id of the capture, plugin
    binlog, active null, and wal_status how long the log is kept.
    """
    from jobpipe.cdc.mariadb.mysql_options import MysqlOptions
    from jobpipe.cdc.postgresql.postgres_options import PostgresOptions
    from jobpipe.jobs.captures.foreground_captures import choose_captures

    found = _load(file, given, overlays)
    rows = []
    every = [_capture_options(found, job) for job in choose_captures(found, None)]
    for options in _databases([each for each in every if isinstance(each, PostgresOptions)]):
        owners = {each.slot: each.name for each in options}
        database = options[0].database_api()
        known = {slot.name: slot for slot in _slots(options[0])}
        rows += [_line(database.name, name, known.get(name), owners.get(name)) for name in sorted({*known, *owners})]
    rows += [_log_line(each) for each in every if isinstance(each, MysqlOptions)]
    if as_json:
        emit_json([asdict(row) for row in rows])
        return
    columns = ("DATABASE", "SLOT", "PLUGIN", "ACTIVE", "RETAINED", "WAL STATUS", "CAPTURE")
    emit_table(columns, [_cells(row) for row in rows], right=("RETAINED",))


@dataclass(frozen=True)
class _Line:
    """What a database keeps, as the command lists it."""

    database: str
    slot: str
    plugin: str | None
    active: bool | None
    retained_bytes: int | None
    wal_status: str | None
    capture: str | None


def _line(database: str, name: str, slot: Slot | None, owner: str | None) -> _Line:
    if slot is None:
        return _Line(database, name, None, False, None, None, owner)
    return _Line(database, name, slot.plugin, slot.active_pid is not None, slot.retained, slot.wal_status, owner)


def _log_line(options: MysqlOptions) -> _Line:
    from jobpipe.cdc.mariadb.server.server_log import ServerLog
    from jobpipe.jobs.captures.capture_progress import duration

    database = options.database_api()
    with database.connection("jobpipe cdc list") as connection:
        log = ServerLog(connection)
        seconds = int(str(log.variable("binlog_expire_logs_seconds") or 0))
        kept = f"kept {duration(seconds)}" if seconds else "kept for ever"
        return _Line(
            f"{options.hostname}:{options.port}",
            str(options.replica_id),
            "binlog",
            None,
            sum(log.files().values()),
            kept,
            options.name,
        )


def _cells(line: _Line) -> tuple[object, ...]:
    retained = None if line.retained_bytes is None else size(line.retained_bytes)
    status = "not made yet" if line.plugin is None else line.wal_status
    active = None if line.plugin is None else line.active
    return line.database, line.slot, line.plugin, active, retained, status, line.capture


@cdc.command()
@of_file
@click.argument("job", required=False)
@click.option("--slot", metavar="NAME", help="Drop this slot of JOB's database: of a capture that FILE no longer has.")
@click.option("--yes", is_flag=True, help="Do not ask; for scripts.")
def drop(
    file: str, given: tuple[str, ...], overlays: tuple[str, ...], job: str | None, slot: str | None, yes: bool
) -> int:
    """Drop the replication slot and the publication of JOB, a capture of FILE that no longer runs.

    JOB may be left out if FILE has one capture.

    From then on the database keeps no log for it. The changes since the capture ended are lost to it: started again
    under its name, it fails with DataLoss. Under another name it reads all tables again. Topics keep their rows.

    Asks first. Exits with 2 if the slot is in use, or is not there.
    """
    from jobpipe.cdc.postgresql.database.slot_admin import drop_publication, drop_slot, has_publication, require_idle

    found, chosen = _one_capture(file, given, overlays, job)
    options = _options(found, chosen)
    name = slot or options.slot
    owner = next((each for each in _all_options(found) if _place(each) == _place(options) and each.slot == name), None)
    publication = name if owner is None else owner.publication
    known = next((each for each in _slots(options) if each.name == name), None)
    database = options.database_api()
    with database.connection("jobpipe cdc drop") as connection:
        published = has_publication(connection, publication)
        if known is None and not published:
            raise ConfigError(
                f"database {database.name} has no replication slot {name}; jobpipe cdc list {file} lists them",
                key="slot",
                slot=name,
            )
        if known is not None:
            require_idle(known)
        if not yes:
            _ask(known, publication if published else None, database.name, None if owner is None else owner.name)
        if known is not None:
            drop_slot(connection, name)
        drop_publication(connection, publication)
    click.echo(f"dropped of database {printable(database.name)}: {printable(_named(known, publication, published))}")
    return Exit.OK


@cdc.command("read-again")
@of_file
@click.argument("table")
@click.argument("job", required=False)
@click.option("--after", metavar="VALUE", multiple=True, help="Begin after this key; once for each of its columns.")
@click.option("--through", metavar="VALUE", multiple=True, help="End with this key; once for each of its columns.")
def read_again(
    file: str,
    given: tuple[str, ...],
    overlays: tuple[str, ...],
    table: str,
    job: str | None,
    after: tuple[str, ...],
    through: tuple[str, ...],
) -> None:
    """Let the capture JOB of FILE read a part of TABLE (schema.table) again, and publish its rows once more.

    Without --after it begins with the first row, without --through it ends with the last. JOB may be left out if FILE
    has one capture. The request is in the database's log: a capture that runs finds it at once, another one when it is
    started.
    """
    from jobpipe.cdc.postgresql.reading_again import request

    options = _options(*_one_capture(file, given, overlays, job))
    request(options, table, after or None, through or None)
    click.echo(f"capture {printable(options.name)} will read it again")


def _one_capture(file: str, given: tuple[str, ...], overlays: tuple[str, ...], job: str | None) -> tuple[Pipeline, Job]:
    """Return a pipeline, and the capture that is named, or the only one."""
    from jobpipe.jobs.captures.foreground_captures import choose_captures

    found = _load(file, given, overlays)
    jobs = choose_captures(found, job)
    if len(jobs) > 1:
        raise click.UsageError(f"{file} has {len(jobs)} captures; name one: {', '.join(each.name for each in jobs)}")
    return found, jobs[0]


def _named(slot: Slot | None, publication: str, published: bool) -> str:
    parts = [f"replication slot {slot.name}"] if slot is not None else []
    return " and ".join([*parts, *([f"publication {publication}"] if published else [])])


def _ask(slot: Slot | None, publication: str | None, database: str, owner: str | None) -> None:
    if slot is not None:
        click.echo(
            f"replication slot {printable(slot.name)} of database {printable(database)} keeps {size(slot.retained)} of "
            "the log. Without it, changes that are not published yet are lost to "
            f"{f'capture {owner}' if owner else 'its capture'}: to go on, it needs another name, and reads all tables "
            "again",
            err=True,
        )
    if publication is not None:
        click.echo(f"publication {printable(publication)} goes, too", err=True)
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask; give --yes if you are sure")
    if not click.confirm("Drop it?", err=True):
        click.echo("nothing was changed", err=True)
        raise click.exceptions.Exit(Exit.UNHEALTHY)


def _load(file: str, given: tuple[str, ...], overlays: tuple[str, ...]) -> Pipeline:
    """Return the pipeline, without looking at what its other jobs need; its warnings are said."""
    found = load(file, given, overlays, captures_only=True)
    for warning in found.warnings:
        click.echo(printable(str(warning)), err=True)
    return found


def _options(pipeline: Pipeline, job: Job) -> PostgresOptions:
    """Return the settings of a capture.

    Raises:
        ConfigError: it is none of PostgreSQL.
    """
    from jobpipe.cdc.postgresql.postgres_options import PostgresOptions

    found = _capture_options(pipeline, job)
    if not isinstance(found, PostgresOptions):
        raise ConfigError(
            f"job {job.name} captures no PostgreSQL, which alone has slots, and reads parts of tables again", key="job"
        )
    return found


def _capture_options(pipeline: Pipeline, job: Job) -> CaptureOptions:
    from jobpipe.cdc.cdc_sources import TableCaptureSource
    from jobpipe.jobs.captures.open_capture import context_of, source_of
    from jobpipe.pipelines.file.interpolation import RunValues

    source = source_of(job, RunValues("cdc"))
    if not isinstance(source, TableCaptureSource):
        raise ConfigError(f"job {job.name} captures no database, but {source.type}", key="job")
    return source.capture_options(context_of(pipeline, job))


def _all_options(pipeline: Pipeline) -> list[PostgresOptions]:
    from jobpipe.cdc.postgresql.postgres_options import PostgresOptions

    every = (_capture_options(pipeline, job) for job in pipeline.jobs.values() if job.spec.captures)
    return [each for each in every if isinstance(each, PostgresOptions)]


def _place(options: PostgresOptions) -> tuple[str, int, str]:
    return options.hostname, options.port, options.database


def _databases(every: list[PostgresOptions]) -> list[list[PostgresOptions]]:
    """Return captures by the database that they read."""
    found: dict[tuple[str, int, str], list[PostgresOptions]] = {}
    for options in every:
        found.setdefault(_place(options), []).append(options)
    return list(found.values())


def _slots(options: PostgresOptions) -> list[Slot]:
    from jobpipe.cdc.postgresql.database.slot_admin import slots_of

    with options.database_api().connection("jobpipe cdc list") as connection:
        return slots_of(connection)
