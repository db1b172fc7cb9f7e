"""Runs the demo from start to end: prepares input, runs the pipeline, checks its results, leaves nothing running."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from jobpipe.config import Config, load
from jobpipe.demo.demo_facts import (
    AUDIT,
    Fact,
    audit_facts,
    broken_lines,
    dead_letters,
    dead_letters_facts,
    report_facts,
    topic_facts,
)
from jobpipe.demo.demo_folder import (
    CONFIG,
    GRACE_SECONDS,
    HOME,
    end_processes,
    job_environment,
    marked_processes,
    own_environment,
    private_folder,
)
from jobpipe.demo.demo_paths import PIPELINE, flights_examples, flights_zip, require_user
from jobpipe.errors import JobpipeError
from jobpipe.jobs.foreground.foreground_jobs import JobView
from jobpipe.jobs.foreground.foreground_run import last_lines, run_pipeline
from jobpipe.jobs.foreground.progress_display import DisplayConsole
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.plural import counted
from jobpipe.signal_handlers import handled
from jobpipe.store.log.spool_folders import read_status
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper

TOPICS = ("flights", "delays")
DEAD_LETTERS = "flights.dead-letters"
FILES = 120  # micro-batches of the first job
BROKEN = 20  # lines of the input that do not parse
PREPARE_SECONDS = 120.0
POLL_SECONDS = 0.2
COORDINATOR_SECONDS = 30.0  # from the end of the last job to the end of the last coordinator
INTERRUPTED = 130


class _DemoFailedError(Exception):
    """The demo cannot go on; ``job`` is the one to blame, if one is."""

    def __init__(self, message: str, job: JobView | None = None) -> None:
        super().__init__(message)
        self.job = job


def run_demo(
    work: Path | None = None,
    *,
    files: int = FILES,
    timeout: float = 600.0,
    plain: bool = False,
    console: Console | None = None,
) -> int:
    """Run the pipeline of the flights over an embedded ZooKeeper of its own and check what its jobs found.

    Args:
        work: folder of everything the demo writes, default ``./.demo``; wiped at the start, kept at the end.
        files: part files, each a micro-batch of the first job.
        timeout: seconds after which the demo gives up.
        plain: print lines even on a terminal.

    Returns:
        0 if every fact agrees and nothing is left running, 130 after Ctrl-C or SIGTERM, else 1.

    Raises:
        ConfigError: the folder cannot be used, or the demo's packages are missing.
    """
    work = (work or Path(".demo")).absolute()
    console = console or DisplayConsole()
    started = time.monotonic()
    require_user()
    examples, source = flights_examples(), flights_zip()
    _say(console, _beginning(files, work))
    with _interruptible(), private_folder(work), own_environment():
        try:
            facts = _run(work, examples, source, files, started + timeout, console, plain=plain)
        except KeyboardInterrupt:
            console.print("interrupted; everything that the demo started was stopped")
            return INTERRUPTED
        except (_DemoFailedError, JobpipeError) as error:
            _explain(console, error, work)
            return 1
        _print_facts(console, facts, time.monotonic() - started)
        ok = all(fact.ok for fact in facts)
        if ok:
            _say(console, _ending(len(facts), work))
        else:
            _name_logs(console, work)
        return 0 if ok else 1


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _beginning(files: int, work: Path) -> str:
    return (
        f"Four Spark jobs pass {AUDIT['rows']:,} flights to each other, in {counted(files, 'micro-batch')}. This takes "
        "two to three minutes on two idle cores.\n"
        "The first minute shows no rows: each job starts its own Spark.\n"
        f"Everything is written to {work}, and nothing is left running."
    )


def _ending(facts: int, work: Path) -> str:
    program = "jobpipe" if shutil.which("jobpipe") else Path(sys.executable).with_name("jobpipe")
    return (
        f"All {facts} facts hold. The report of the job `report` is {work / 'report.csv'}.\n"
        f"Next, a pipeline of your own: {program} pipeline init orders && {program} pipeline run orders/pipeline.yaml"
    )


def _run(
    work: Path, examples: Path, source: Path, files: int, deadline: float, console: Console, *, plain: bool
) -> list[Fact]:
    """Run the jobs to their end, tidy up whatever happens, and return the facts."""
    zookeeper = EmbeddedZooKeeper(work / HOME)
    config = load(work / CONFIG, environ={})
    try:
        _prepare(work, examples, files)
        zookeeper.ensure()
        _run_jobs(work, config, examples / PIPELINE, deadline, console, plain=plain)
        facts = _facts(work, config, source)
        facts.append(Fact("jobs and coordinators left running", 0, len(marked_processes(work))))
    finally:
        with _uninterruptible():
            end_processes(marked_processes(work))
            zookeeper.stop()
    facts.append(Fact("ZooKeeper left running", False, zookeeper.status() is not None))
    return facts


def _prepare(work: Path, examples: Path, files: int) -> None:
    options = ["--work", str(work), "--files", str(files), "--broken", str(BROKEN)]
    command = [sys.executable, str(examples / "prepare.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PREPARE_SECONDS, check=False)
    if done.returncode != 0:
        raise _DemoFailedError(f"prepare.py failed: {done.stderr.strip() or done.stdout.strip()}")


def _run_jobs(work: Path, config: Config, file: Path, deadline: float, console: Console, *, plain: bool) -> None:
    """Run the pipeline until its jobs and their coordinators have ended."""
    ran = run_pipeline(
        load_pipeline(file, given={"work": str(work)}),
        config=config,
        config_file=work / CONFIG,
        console=console,
        plain=plain,
        timeout=max(0.0, deadline - time.monotonic()),
        environment=job_environment(work),
        stop_seconds=GRACE_SECONDS,
        totals={"flights": AUDIT["rows"]},
    )
    if ran.stopped_by is not None:
        raise KeyboardInterrupt
    if ran.failed:
        job = min(ran.failed, key=lambda each: each.seconds)  # all began together: the others may have failed of it
        raise _DemoFailedError(f"job {job.name} failed: {job.detail}", job)
    if ran.late:
        job = next((job for job in ran.jobs if job.state is not JobState.FINISHED), ran.jobs[0])
        raise _DemoFailedError(f"job {job.name} did not end in time", job)
    until = min(deadline, time.monotonic() + COORDINATOR_SECONDS)
    while marked_processes(work) and time.monotonic() < until:  # the coordinators; what is left then is a fact
        time.sleep(POLL_SECONDS)


def _facts(work: Path, config: Config, source: Path) -> list[Fact]:
    put_in = broken_lines(work / "input", source)
    return [
        *audit_facts(work / "audit.json"),
        *report_facts(work / "report.csv", source),
        *dead_letters_facts(BROKEN, put_in, dead_letters(config.spool_dir, DEAD_LETTERS)),
        *topic_facts({topic: read_status(config.spool_dir / topic, topic) for topic in TOPICS}),
    ]


def _explain(console: Console, error: Exception, work: Path) -> None:
    console.print(f"the demo failed: {error}", style="red", markup=False, soft_wrap=True)
    job = error.job if isinstance(error, _DemoFailedError) else None
    if job is not None:
        console.print(f"the last lines of {job.log}:", markup=False, highlight=False, soft_wrap=True)
        for line in last_lines(job.log):
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    _name_logs(console, work)


def _name_logs(console: Console, work: Path) -> None:
    console.print(f"the logs are in {work / HOME / 'logs'}", markup=False, highlight=False, soft_wrap=True)


def _print_facts(console: Console, facts: list[Fact], seconds: float) -> None:
    table = Table(title=f"facts, after {seconds:.0f} s", title_justify="left")
    table.add_column("fact")
    table.add_column("expected", justify="right")
    table.add_column("got", justify="right")
    table.add_column("ok")
    for fact in facts:
        verdict = "[green]yes[/green]" if fact.ok else "[red]NO[/red]"
        table.add_row(fact.what, _text(fact.expected), _text(fact.got), verdict)
    console.print(table)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does. Signals reach the main thread only."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with handled((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield


@contextmanager
def _uninterruptible() -> Iterator[None]:
    """Keep a second Ctrl-C from cutting the tidying short; every step of it has a deadline."""
    with handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN):
        yield
