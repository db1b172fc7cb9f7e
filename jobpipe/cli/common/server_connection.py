"""What the commands of the control server share: which server, NAME[/JOB], waiting, views as JSON and as tables."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jobpipe.cli.common.command_context import Settings, pass_settings
from jobpipe.cli.common.output import emit_table
from jobpipe.errors import WaitTimeout
from jobpipe.plural import counted, seconds

if TYPE_CHECKING:
    from jobpipe.control.control_service import IntervalView, JobStatus, PipelineStatus, ScheduleView
    from jobpipe.control.rest.rest_client import ControlClient

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
POLL_SECONDS = 0.2
JOB_KEYS = (
    "pipeline, name, kind, state, want, known_at, since, detail, run, attempt, attempts, mode, scheduled, "
    "on_demand, new_checkpoint, removed, batches, rows, reads, publishes, schedule"
)
INTERVAL_KEYS = "pipeline, job, lower, upper, state, since, run"
SCHEDULE_KEYS = (
    "pipeline, job, rule, paused, active, accepted, next_due, waiting, running, failed, last, problem, engine (last: "
    f"{INTERVAL_KEYS})"
)
RUN_KEYS = (
    "id, pipeline, job, state, began, ended, detail, lower, upper, attempts (number, state, began, ended, launched, "
    "application, error, detail, exit_code, batches, rows)"
)


@dataclass(frozen=True)
class JobRef:
    """A pipeline, or one job of it."""

    pipeline: str
    job: str | None

    def __str__(self) -> str:
        return self.pipeline if self.job is None else f"{self.pipeline}/{self.job}"

    def of(self, status: PipelineStatus) -> tuple[JobStatus, ...]:
        """Return the jobs that are meant."""
        return tuple(job for job in status.jobs if self.job in (None, job.name))


class JobRefType(click.ParamType[JobRef]):
    """Reads NAME or NAME/JOB."""

    name = "NAME[/JOB]"

    def __init__(self, *, job: bool = False) -> None:
        self._job = job

    def convert(self, value: str | JobRef, param: click.Parameter | None, ctx: click.Context | None) -> JobRef:
        """Return it; a wrong text is a usage error."""
        if isinstance(value, JobRef):
            return value
        pipeline, slash, job = value.partition("/")
        if not pipeline or (slash and not job) or "/" in job:
            self.fail(f"{value!r} is not NAME or NAME/JOB", param, ctx)
        if self._job and not job:
            self.fail(f"{value!r} does not name a job; give NAME/JOB", param, ctx)
        return JobRef(pipeline, job or None)


def server_options(command: F) -> F:
    """Add what says which server is meant; without it this home's."""
    for option in (
        click.option(
            "--token-file",
            type=click.Path(path_type=Path, dir_okay=False),
            help="File with the token for --url. It needs mode 0600.",
        ),
        click.option("--url", metavar="URL", help="Address of the control server, if not the one of jobpipe.home."),
    ):
        command = option(command)
    return command


def pass_client(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add :func:`server_options`, and call the command with ``client``, a client of that server."""

    @functools.wraps(command)
    def call(settings: Settings, /, url: str | None, token_file: Path | None, **given: Any) -> Any:
        return command(client=client_of(settings, url, token_file), **given)

    return server_options(pass_settings(call))


def wait_option(about: str) -> Callable[[F], F]:
    """Add --wait and its time limit."""

    def add(command: F) -> F:
        limit = click.option(
            "--timeout", type=click.FloatRange(min=0.1), default=300.0, show_default=True, help="Seconds for --wait."
        )
        wait = click.option("--wait", is_flag=True, help=about)
        return wait(limit(command))

    return add


def client_of(settings: Settings, url: str | None, token_file: Path | None, *, start: bool = False) -> ControlClient:
    """Return a client of the server that is meant; with ``start`` this home's is started if none runs."""
    from jobpipe.control.process.local_server import ensure_server, require_server
    from jobpipe.control.rest.rest_client import ControlClient, ServerAddress

    if token_file is not None and url is None:
        raise click.UsageError("--token-file needs --url")
    if url is not None:
        address = ServerAddress.given(url, settings.config, token_file)
    elif start:
        address = ensure_server(settings.config, settings.resolved.file)
    else:
        address = require_server(settings.config)
    return ControlClient(address)


def wait_until(poll: Callable[[], T | None], timeout: float, what: str) -> T:
    """Return what ``look`` returns once it is not None.

    Raises:
        WaitTimeout: that takes too long.
    """
    deadline = time.monotonic() + timeout
    while (found := poll()) is None:
        if time.monotonic() >= deadline:
            raise WaitTimeout(f"{what} after {timeout:g} s; `jobpipe pipeline status` says more")
        time.sleep(POLL_SECONDS)
    return found


def view_of(value: object) -> Any:
    """Return a view, or several, as JSON values."""
    from pydantic import TypeAdapter

    return (
        TypeAdapter(type(value)).dump_python(value, mode="json")
        if not isinstance(value, (list, tuple))
        else [view_of(each) for each in value]
    )


def _detail(job: JobStatus) -> str:
    if job.schedule is None:
        return job.detail
    return "; ".join(filter(None, (job.detail, schedule_text(job.schedule))))


def schedule_text(view: ScheduleView) -> str:
    """Return on one line how a schedule stands: its next run, the last interval, what waits for a person."""
    parts = []
    if view.problem:
        parts.append(f"its schedule cannot go on: {view.problem}")
    elif view.paused:
        parts.append("its schedule is paused")
    elif view.active and view.next_due is not None:
        parts.append(f"next run due {local_time(view.next_due)}")
    elif view.active:
        parts.append("no more intervals")
    if view.last is not None:
        parts.append(f"last interval {interval_text(view.last)} {view.last.state}")
    if view.failed:
        parts.append(f"{counted(view.failed, 'interval')} FAILED: retry or skip the run (`jobpipe runs`)")
    return "; ".join(parts)


def interval_text(view: IntervalView) -> str:
    """Return an interval as ``[from, to)``."""
    return f"[{view.lower}, {view.upper})"


def local_time(at: float) -> str:
    """Return a time of day of this host, with its zone."""
    return datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")


def emit_statuses(statuses: Sequence[PipelineStatus], ref: JobRef | None = None) -> None:
    """Print a line for each job."""
    now = time.time()
    rows = [
        (
            status.name,
            job.name,
            job.state,
            job.want,
            seconds(max(0.0, now - job.since)),
            job.attempt or None,
            job.batches,
            job.rows,
            _detail(job),
        )
        for status in statuses
        for job in (status.jobs if ref is None else ref.of(status))
    ]
    columns = ("PIPELINE", "JOB", "STATE", "WANTED", "SINCE", "ATTEMPT", "BATCHES", "ROWS READ", "DETAIL")
    emit_table(columns, rows, right=("SINCE", "ATTEMPT", "BATCHES", "ROWS READ"))
