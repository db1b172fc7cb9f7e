"""``jobpipe runs``: the runs of jobs on a control server. (``jobpipe pipeline run`` is in pipeline_command.py.)"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.command_context import json_option
from jobpipe.cli.common.exit_codes import Exit
from jobpipe.cli.common.output import emit_json, emit_pairs, emit_table, printable
from jobpipe.cli.common.server_connection import (
    INTERVAL_KEYS,
    RUN_KEYS,
    JobRef,
    JobRefType,
    interval_text,
    pass_client,
    view_of,
    wait_option,
    wait_until,
)
from jobpipe.plural import seconds

if TYPE_CHECKING:
    from jobpipe.control.control_service import IntervalView, RunView
    from jobpipe.control.rest.rest_client import ControlClient

_KEYS = f"\b\nJSON keys of a run: {RUN_KEYS}."


@click.group()
def runs() -> None:
    """Start, list, show, cancel, retry and skip runs of jobs; each run may have several attempts."""


@runs.command("list", epilog=_KEYS)
@click.argument("ref", metavar="[NAME[/JOB]]", type=JobRefType(), required=False)
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Number of runs.")
@pass_client
@json_option
def list_all(client: ControlClient, ref: JobRef | None, limit: int, as_json: bool) -> None:
    """List the runs of pipeline NAME, of one of its jobs, or of all pipelines. The newest come first."""
    found = client.runs(None if ref is None else ref.pipeline, None if ref is None else ref.job, limit=limit)
    if as_json:
        emit_json(view_of(found))
        return
    rows = [
        (
            each.id,
            each.pipeline,
            each.job,
            each.state,
            _time(each.began),
            _lasted(each),
            len(each.attempts),
            each.detail,
        )
        for each in found
    ]
    columns = ("RUN", "PIPELINE", "JOB", "STATE", "BEGAN", "LASTED", "ATTEMPTS", "DETAIL")
    emit_table(columns, rows, right=("LASTED", "ATTEMPTS"))


@runs.command(epilog=_KEYS)
@click.argument("id_", metavar="ID")
@pass_client
@json_option
def status(client: ControlClient, id_: str, as_json: bool) -> int:
    """Show run ID with its attempts. Exits with 1 if it has failed or is lost."""
    found = client.run(id_)
    _emit(found, as_json)
    return Exit.UNHEALTHY if found.state in ("FAILED", "LOST") else Exit.OK


@runs.command(epilog=_KEYS)
@click.argument("ref", metavar="NAME/JOB", type=JobRefType(job=True))
@click.option(
    "--lower", required=True, metavar="BOUND", help="A time in ISO 8601, in UTC without a zone, or an offset."
)
@click.option("--upper", required=True, metavar="BOUND", help="As --lower; it is not part of the range.")
@wait_option("Wait until it has ended.")
@pass_client
@json_option
def start(client: ControlClient, ref: JobRef, lower: str, upper: str, wait: bool, timeout: float, as_json: bool) -> int:
    """Run BATCH job NAME/JOB, which has no schedule, over a range. For cron, systemd, Airflow and other schedulers.

    The same command again is the same run: one that is under way or has succeeded is shown, one that has failed is made
    again under its id, so that sinks write its rows once. Exits with 1 if --wait finds that it has not succeeded, with
    3 if --wait takes too long.
    """
    from jobpipe.pipelines.model.job_states import ENDED, JobState

    found = client.start_run(ref.pipeline, str(ref.job), lower, upper)

    def ended() -> RunView | None:
        now = client.run(found.id)
        return now if now.state in (*ENDED, JobState.LOST) else None

    if wait:
        found = wait_until(ended, timeout, f"run {found.id} has not ended")
    _emit(found, as_json)
    return Exit.UNHEALTHY if wait and found.state is not JobState.FINISHED else Exit.OK


@runs.command(epilog=_KEYS)
@click.argument("id_", metavar="ID")
@wait_option("Wait until it has ended.")
@pass_client
@json_option
def cancel(client: ControlClient, id_: str, wait: bool, timeout: float, as_json: bool) -> int:
    """Stop run ID, at the next micro-batch boundary if one comes soon. Exits with 1 if --wait finds it LOST."""
    from jobpipe.pipelines.model.job_states import ENDED, JobState

    found = client.cancel(id_)

    def ended() -> RunView | None:
        now = client.run(id_)
        return now if now.state in (*ENDED, JobState.LOST) else None

    if wait:
        found = wait_until(ended, timeout, f"run {id_} has not ended")
    _emit(found, as_json)
    return Exit.UNHEALTHY if wait and found.state is JobState.LOST else Exit.OK


@runs.command(epilog=f"\b\nJSON keys: {INTERVAL_KEYS}.")
@click.argument("id_", metavar="ID")
@click.option("--force", is_flag=True, help="Also a run that has succeeded; topics then get its rows once more.")
@pass_client
@json_option
def retry(client: ControlClient, id_: str, force: bool, as_json: bool) -> None:
    """Run the interval of run ID again, which has failed or was canceled or skipped.

    The run keeps its ID, so sinks that have written some of its rows write them only once.
    """
    _emit_interval(client.retry(id_, force=force), as_json)


@runs.command(epilog=f"\b\nJSON keys: {INTERVAL_KEYS}.")
@click.argument("id_", metavar="ID")
@pass_client
@json_option
def skip(client: ControlClient, id_: str, as_json: bool) -> None:
    """Abandon the interval of run ID, which has failed. Its rows are not read, and later intervals no longer wait."""
    _emit_interval(client.skip(id_), as_json)


def _emit_interval(found: IntervalView, as_json: bool) -> None:
    if as_json:
        emit_json(view_of(found))
    else:
        click.echo(printable(f"interval {interval_text(found)} of {found.pipeline}/{found.job}: {found.state}"))


def _emit(found: RunView, as_json: bool) -> None:
    if as_json:
        emit_json(view_of(found))
        return
    pairs: list[tuple[str, object]] = [
        ("run", found.id),
        ("job", f"{found.pipeline}/{found.job}"),
        ("state", found.state),
        ("began", _time(found.began)),
        ("lasted", _lasted(found)),
        ("detail", found.detail or None),
    ]
    if found.lower is not None or found.upper is not None:
        pairs.append(("interval", f"{found.lower} to {found.upper}"))
    emit_pairs(pairs)
    rows = [
        (each.number, each.state, _time(each.began), each.exit_code, each.batches, each.rows, each.error, each.detail)
        for each in found.attempts
    ]
    if rows:
        click.echo()
        columns = ("ATTEMPT", "STATE", "BEGAN", "EXIT", "BATCHES", "ROWS READ", "ERROR", "DETAIL")
        emit_table(columns, rows, right=("ATTEMPT", "EXIT", "BATCHES", "ROWS READ"))


def _lasted(found: RunView) -> str | None:
    return seconds(max(0.0, (time.time() if found.ended is None else found.ended) - found.began))


def _time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")
