"""Runs the demo from start to end: starts the jobs, shows them, checks their results, leaves nothing running."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

from jobpipe.admin import Admin
from jobpipe.config import Config, load
from jobpipe.demo.board import Board, open_board
from jobpipe.demo.facts import Fact, audit_facts, report_facts, topic_facts
from jobpipe.demo.folder import CONFIG, HOME, job_environment, private_folder
from jobpipe.demo.jobs import Job, end_processes, marked_processes
from jobpipe.demo.places import flights_examples, flights_zip
from jobpipe.demo.watch import Watcher
from jobpipe.errors import JobpipeError
from jobpipe.store import TopicLog
from registry.embedded import EmbeddedZooKeeper

__all__ = ["FILES", "TOPICS", "run_demo"]

JOBS = ("publish_flights", "delays", "report", "audit")
TOPICS = ("flights", "delays")
FILES = 120  # micro-batches of the first job
POLL_SECONDS = 1.0
PREPARE_SECONDS = 120.0
COORDINATOR_SECONDS = 30.0  # from the end of the last job to the end of the last coordinator
INTERRUPTED = 130


class _DemoFailedError(Exception):
    """The demo cannot go on; ``job`` is the one to blame, if one is."""

    def __init__(self, message: str, job: Job | None = None) -> None:
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
    """Run the four flights jobs over an embedded ZooKeeper of their own and check what they found.

    Args:
        work: folder of everything the demo writes, default ``./.demo``; wiped at the start, kept at the end.
        files: part files, thus micro-batches of the first job.
        timeout: seconds after which the demo gives up.
        plain: print lines even on a terminal.

    Returns:
        0 if every fact agrees and nothing is left running, 130 after Ctrl-C or SIGTERM, else 1.

    Raises:
        ConfigError: the folder cannot be used, or the demo's packages are missing.
    """
    work = (work or Path(".demo")).absolute()
    console = console or Console()
    started = time.monotonic()
    examples, source = flights_examples(), flights_zip()
    with _interruptible(), private_folder(work):
        try:
            facts = _run(work, examples, source, files, started + timeout, open_board(console, plain=plain))
        except KeyboardInterrupt:
            console.print("interrupted; everything the demo started was ended")
            return INTERRUPTED
        except (_DemoFailedError, JobpipeError) as error:
            _explain(console, error, work)
            return 1
        _print_facts(console, facts, time.monotonic() - started)
        ok = all(fact.ok for fact in facts)
        if not ok:
            _name_logs(console, work)
        return 0 if ok else 1


def _run(work: Path, examples: Path, source: Path, files: int, deadline: float, board: Board) -> list[Fact]:
    """Run the jobs to their end, tidy up whatever happens, and return the facts."""
    zookeeper = EmbeddedZooKeeper(work / HOME)
    jobs: list[Job] = []
    try:
        _prepare(work, examples, files)
        zookeeper.ensure()
        watcher = _run_jobs(work, examples, jobs, deadline, board)
        facts = [*audit_facts(work / "audit.json"), *report_facts(work / "report.csv", source)]
        facts += topic_facts(watcher.views)
        facts.append(Fact("jobs and coordinators left running", 0, len(marked_processes(work))))
    finally:
        with _uninterruptible():
            for job in jobs:
                job.stop()
            end_processes(marked_processes(work))
            zookeeper.stop()
    facts.append(Fact("ZooKeeper left running", False, zookeeper.status() is not None))
    return facts


def _prepare(work: Path, examples: Path, files: int) -> None:
    command = [sys.executable, str(examples / "prepare.py"), "--work", str(work), "--files", str(files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PREPARE_SECONDS, check=False)
    if done.returncode != 0:
        raise _DemoFailedError(f"prepare.py failed: {done.stderr.strip() or done.stdout.strip()}")


def _run_jobs(work: Path, examples: Path, jobs: list[Job], deadline: float, board: Board) -> Watcher:
    """Start the jobs, into ``jobs``, and show them until they and their coordinators have ended."""
    environ = job_environment(work)
    config = load(work / CONFIG, environ={})
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(config))
        stack.enter_context(board)
        watcher = Watcher(admin, TOPICS)
        for name in JOBS:
            jobs.append(Job(examples / f"{name}.py", work, environ))  # noqa: PERF401 - owned even if the next start fails
        while any(job.exit_code is None for job in jobs):
            for job in jobs:
                if job.exit_code:
                    board.show(watcher.views, jobs)
                    raise _DemoFailedError(f"job {job.name} failed with exit code {job.exit_code}", job)
            if time.monotonic() > deadline:
                running = [job for job in jobs if job.exit_code is None]
                raise _DemoFailedError(f"job {running[0].name} did not end in time", running[0])
            watcher.poll()
            board.show(watcher.views, jobs)
            time.sleep(POLL_SECONDS)
        until = min(deadline, time.monotonic() + COORDINATOR_SECONDS)
        while marked_processes(work) and time.monotonic() < until:  # the coordinators; what is left then is a fact
            watcher.poll()
            time.sleep(0.2)
        watcher.end(lambda topic: _catalog_status(config, topic))
        board.show(watcher.views, jobs)
    return watcher


def _catalog_status(config: Config, topic: str) -> dict[str, Any]:
    """Return what is in the catalog of a topic that nobody serves any more."""
    log = TopicLog.open(config.spool_dir / topic, topic, fsync=False)
    try:
        return log.status()
    finally:
        log.close()


def _explain(console: Console, error: Exception, work: Path) -> None:
    console.print(f"the demo failed: {error}", style="red", markup=False, soft_wrap=True)
    job = error.job if isinstance(error, _DemoFailedError) else None
    if job is not None:
        console.print(f"the last lines of {job.log}:", markup=False, highlight=False, soft_wrap=True)
        for line in job.tail(20):
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    _name_logs(console, work)


def _name_logs(console: Console, work: Path) -> None:
    places = f"{work / 'logs'} and {work / HOME / 'logs'}"
    console.print(f"the logs are in {places}", markup=False, highlight=False, soft_wrap=True)


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

    with _handling((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield


@contextmanager
def _uninterruptible() -> Iterator[None]:
    """Keep a second Ctrl-C from cutting the tidying short; every step of it has a deadline."""
    with _handling((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN):
        yield


@contextmanager
def _handling(numbers: tuple[signal.Signals, ...], handler: object) -> Iterator[None]:
    try:
        before = {number: signal.signal(number, handler) for number in numbers}  # type: ignore[arg-type]
    except ValueError:  # not the main thread: nothing to catch here
        yield
        return
    try:
        yield
    finally:
        for number, present in before.items():
            signal.signal(number, present)
