"""``jobpipe schedules``: when bounded runs are made."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from jobpipe.cli.common.command_context import json_option
from jobpipe.cli.common.output import emit_json, emit_table, printable
from jobpipe.cli.common.server_connection import (
    INTERVAL_KEYS,
    SCHEDULE_KEYS,
    JobRef,
    JobRefType,
    interval_text,
    local_time,
    pass_client,
    schedule_text,
    view_of,
)
from jobpipe.cli.pipeline.pipeline_command import load, of_file
from jobpipe.errors import ConfigError
from jobpipe.plural import counted, seconds

if TYPE_CHECKING:
    from jobpipe.control.control_service import ScheduleView
    from jobpipe.control.rest.rest_client import ControlClient
    from jobpipe.jobs.schedules.schedule_rule import Rule
    from jobpipe.pipelines.file.spec import ScheduleSpec
    from jobpipe.pipelines.model.pipeline import Pipeline


@click.group()
def schedules() -> None:
    """Preview, list, pause, resume, trigger, backfill and skip schedules of jobs.

    The control server makes their runs: submit the pipeline first.
    """


@schedules.command("list", epilog=f"\b\nJSON keys of each: {SCHEDULE_KEYS}.")
@click.argument("name", required=False)
@pass_client
@json_option
def list_all(client: ControlClient, name: str | None, as_json: bool) -> None:
    """List the schedules of pipeline NAME, or of all pipelines."""
    found = client.schedules(name)
    if as_json:
        emit_json(view_of(found))
        return
    columns = (
        "PIPELINE",
        "JOB",
        "RULE",
        "STATE",
        "NEXT DUE",
        "WAITING",
        "RUNNING",
        "FAILED",
        "LAST INTERVAL",
        "PROBLEM",
    )
    emit_table(columns, map(_row, found), right=("WAITING", "RUNNING", "FAILED"))


def _row(each: ScheduleView) -> tuple[object, ...]:
    state = "PAUSED" if each.paused else "ACTIVE" if each.active else "STOPPED"
    due = None if each.next_due is None else local_time(each.next_due)
    last = None if each.last is None else f"{interval_text(each.last)} {each.last.state}"
    counts = (each.waiting, each.running, each.failed)
    return each.pipeline, each.job, each.rule, state, due, *counts, last, each.problem


@schedules.command(epilog=f"\b\nJSON keys of each: {INTERVAL_KEYS}.")
@click.argument("ref", metavar="NAME/JOB", type=JobRefType(job=True))
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Number of intervals.")
@pass_client
@json_option
def intervals(client: ControlClient, ref: JobRef, limit: int, as_json: bool) -> None:
    """List the intervals of the schedule of NAME/JOB, with their runs. The newest come first.

    WAITING: its run is to begin. FAILED: retry or skip its run. LEFT_OUT: it was missed, and `catchup` runs it not.
    """
    found = client.intervals(ref.pipeline, str(ref.job), limit=limit)
    if as_json:
        emit_json(view_of(found))
        return
    rows = [(each.lower, each.upper, each.state, local_time(each.since), each.run) for each in found]
    emit_table(("FROM", "TO", "STATE", "SINCE", "RUN"), rows)


@schedules.command(epilog=f"\b\nJSON keys: {SCHEDULE_KEYS}.")
@click.argument("ref", metavar="NAME/JOB", type=JobRefType(job=True))
@pass_client
@json_option
def pause(client: ControlClient, ref: JobRef, as_json: bool) -> None:
    """Make no more runs of NAME/JOB. A run that is under way goes on."""
    _emit(client.pause(ref.pipeline, str(ref.job)), as_json)


@schedules.command(epilog=f"\b\nJSON keys: {SCHEDULE_KEYS}.")
@click.argument("ref", metavar="NAME/JOB", type=JobRefType(job=True))
@pass_client
@json_option
def resume(client: ControlClient, ref: JobRef, as_json: bool) -> None:
    """Make runs of NAME/JOB again. What was missed meanwhile follows `catchup`."""
    _emit(client.pause(ref.pipeline, str(ref.job), paused=False), as_json)


def _emit(found: ScheduleView, as_json: bool) -> None:
    if as_json:
        emit_json(view_of(found))
    else:
        click.echo(printable(f"{found.pipeline}/{found.job}: {schedule_text(found) or 'its job is stopped'}"))


@schedules.command(epilog="\b\nJSON keys, in numbers of intervals: added, repeated, done, under_way, ahead.")
@click.argument("ref", metavar="NAME/JOB", type=JobRefType(job=True))
@click.option("--from", "begin", metavar="TIME", required=True, help="Where the range begins, in ISO 8601 with a zone.")
@click.option("--to", "end", metavar="TIME", required=True, help="Where it ends, in ISO 8601 with a zone.")
@click.option("--force", is_flag=True, help="Also intervals that have succeeded; topics then get their rows once more.")
@pass_client
@json_option
def backfill(client: ControlClient, ref: JobRef, begin: str, end: str, force: bool, as_json: bool) -> None:
    """Run all whole intervals of a range that have not succeeded: those that failed, were skipped or left out.

    Also intervals from before the schedule was made, if the topic still has their rows.
    """
    lower, upper = _with_zone(begin, "--from"), _with_zone(end, "--to")
    done = client.backfill(ref.pipeline, str(ref.job), lower, upper, force=force)
    if as_json:
        emit_json(view_of(done))
        return
    later = " once the schedule is resumed" if client.schedule(ref.pipeline, str(ref.job)).paused else ""
    said = [f"{counted(done.added + done.repeated, 'interval')} will run{later}"]
    said += [f"{done.done} succeeded before"] if done.done else []
    said += [f"{done.under_way} under way already"] if done.under_way else []
    said += [f"{done.ahead} still to come by the schedule"] if done.ahead else []
    click.echo(", ".join(said))


@schedules.command(epilog="\b\nJSON keys, in numbers of intervals: skipped, done, under_way, ahead.")
@click.argument("ref", metavar="NAME/JOB", type=JobRefType(job=True))
@click.option("--from", "begin", metavar="TIME", required=True, help="Where the range begins, in ISO 8601 with a zone.")
@click.option("--to", "end", metavar="TIME", required=True, help="Where it ends, in ISO 8601 with a zone.")
@pass_client
@json_option
def skip(client: ControlClient, ref: JobRef, begin: str, end: str, as_json: bool) -> None:
    """Abandon all whole intervals of a range that wait or have failed. Their rows are not read; retention may go on.

    Of intervals that are due none waits before the run of the previous one has ended: pause the schedule, or skip them
    then. `schedule backfill` runs what was skipped after all, as long as the topic has the rows.
    """
    done = client.skip_range(ref.pipeline, str(ref.job), _with_zone(begin, "--from"), _with_zone(end, "--to"))
    if as_json:
        emit_json(view_of(done))
        return
    said = [f"{counted(done.skipped, 'interval')} skipped"]
    said += [f"{done.done} succeeded before"] if done.done else []
    said += [f"{done.under_way} under way; cancel the run first"] if done.under_way else []
    said += [f"{done.ahead} still to come by the schedule"] if done.ahead else []
    click.echo(", ".join(said))


@schedules.command(epilog=f"\b\nJSON keys: {SCHEDULE_KEYS}.")
@click.argument("ref", metavar="NAME/JOB", type=JobRefType(job=True))
@pass_client
@json_option
def trigger(client: ControlClient, ref: JobRef, as_json: bool) -> None:
    """Let the runs of NAME/JOB begin that are due now, for a scheduler of your own. It may call as often as it likes.

    For schedules with `engine: {type: external}`, which the server does not fire by itself.
    """
    _emit(client.trigger(ref.pipeline, str(ref.job)), as_json)


def _with_zone(text: str, option: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError
        return found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        what = f"{text!r:.120} is not a time in ISO 8601 with a zone, as 2026-11-21T00:00:00Z"
        raise click.BadParameter(what, param_hint=option) from error


@schedules.command()
@of_file
@click.argument("job", required=False)
@click.option("--from", "begin", metavar="TIME", help="ISO 8601; in the schedule's zone if it has none. Default: now.")
@click.option("--count", type=click.IntRange(1, 1000), default=10, show_default=True, help="Number of intervals.")
@json_option
def preview(
    file: str,
    given: tuple[str, ...],
    overlays: tuple[str, ...],
    job: str | None,
    begin: str | None,
    count: int,
    as_json: bool,
) -> None:
    """Show the next intervals of JOB's schedule in FILE, and when the run of each is due.

    A run is due at the end of its interval, plus the delay. JOB may be left out if only one job has a schedule. The
    first interval shown is the one that contains TIME. If TIME is before schedule.start, it is the very first interval.
    Times are in the schedule's zone, then in UTC.

    JSON keys of each: lower, upper, due (UTC), local_lower, local_upper, local_due, seconds (from lower to upper).
    """
    from jobpipe.jobs.schedules.schedule_rule import Rule

    found = load(file, given, overlays)
    rule = Rule.of(_schedule_of(found, job))
    rows = list(_rows(rule, _moment(begin, rule), count))
    if as_json:
        emit_json(rows)
        return
    emit_table(
        ("FROM", "TO", "LASTS", "RUN IS DUE", "FROM (UTC)", "TO (UTC)"),
        [
            (
                row["local_lower"],
                row["local_upper"],
                seconds(row["seconds"]),
                row["local_due"],
                row["lower"],
                row["upper"],
            )
            for row in rows
        ],
    )
    if len(rows) < count:
        click.echo("no more intervals: schedule.end is reached", err=True)


def _schedule_of(pipeline: Pipeline, name: str | None) -> ScheduleSpec:
    jobs = {each: job.spec.schedule for each, job in pipeline.jobs.items() if job.spec.schedule is not None}
    having = f"jobs with one: {', '.join(jobs)}" if jobs else "no job of the file has one"
    if name is None:
        if len(jobs) != 1:
            raise ConfigError(f"give the name of a job with a schedule; {having}", key="jobs")
        return next(iter(jobs.values()))
    if name not in jobs:
        there = "has no schedule" if name in pipeline.jobs else "is not in the file"
        raise ConfigError(f"job {name!r:.120} {there}; {having}", key="jobs")
    return jobs[name]


def _moment(text: str | None, rule: Rule) -> datetime:
    from jobpipe.jobs.schedules.schedule_rule import YEARS

    if text is None:
        return datetime.now(UTC)
    try:
        found = datetime.fromisoformat(text)
        moment = (found.replace(tzinfo=rule.zone) if found.tzinfo is None else found).astimezone(UTC)
        if not YEARS[0] <= moment.year <= YEARS[1]:
            raise ValueError
    except (ValueError, OverflowError) as error:
        what = f"{text!r:.120} is not a time in ISO 8601 between the years {YEARS[0]} and {YEARS[1]}"
        raise click.BadParameter(what, param_hint="--from") from error
    return moment


def _rows(rule: Rule, moment: datetime, count: int) -> list[dict[str, Any]]:
    """Return what is shown of each interval."""
    rows: list[dict[str, Any]] = []
    lower = rule.times.at_or_before(moment) or moment
    lower = lower if rule.start is None else max(lower, rule.start)
    while len(rows) < count and (interval := rule.following(lower)) is not None:
        row: dict[str, Any] = {}
        for name, at in (("lower", interval.lower), ("upper", interval.upper), ("due", interval.upper + rule.delay)):
            row[name] = at.isoformat().replace("+00:00", "Z")
            row[f"local_{name}"] = at.astimezone(rule.zone).isoformat()
        row["seconds"] = (interval.upper - interval.lower).total_seconds()
        rows.append(row)
        lower = interval.upper
    return rows
