"""``jobpipe schedule``: when bounded runs are made."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from jobpipe.cli.context import json_option
from jobpipe.cli.output import emit_json, emit_table, printable, seconds
from jobpipe.cli.pipeline import load, of_file
from jobpipe.errors import ConfigError

if TYPE_CHECKING:
    from jobpipe.control.schedules_rule import Rule
    from jobpipe.pipelines.pipeline import Pipeline
    from jobpipe.pipelines.spec import ScheduleSpec

_YEARS = (1970, 2999)


@click.group()
def schedule() -> None:
    """Preview the schedules of the jobs of pipelines."""


@schedule.command()
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
    from jobpipe.control.schedules_rule import Rule
    from jobpipe.pipelines.checks import schedules_not_fired

    found = load(file, given, overlays)
    rule = Rule.of(_schedule_of(found, job))
    for warning in schedules_not_fired(found):
        click.echo(printable(str(warning)), err=True)
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
    if text is None:
        return datetime.now(UTC)
    try:
        found = datetime.fromisoformat(text)
        moment = (found.replace(tzinfo=rule.zone) if found.tzinfo is None else found).astimezone(UTC)
        if not _YEARS[0] <= moment.year <= _YEARS[1]:
            raise ValueError
    except (ValueError, OverflowError) as error:
        what = f"{text!r:.120} is not a time in ISO 8601 between the years {_YEARS[0]} and {_YEARS[1]}"
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
