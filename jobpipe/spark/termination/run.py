"""``jobpipe.run``: the last line of a job. Waits for what it runs, ends it gently at a signal, closes its sinks."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobpipe.errors import ConfigError, JobpipeError
from jobpipe.publishing.open_publishers import OpenPublisher, open_publishers
from jobpipe.spark.termination.await_termination import FlowJob, RunningJob, end_jobs, job_of, wait_for
from jobpipe.spark.termination.close import topics_of, written_topics
from jobpipe.spark.termination.job_signals import JobSignals

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from jobpipe.flows.flow_driver import Flow

FAILED = 1
AGAIN = "a second signal ends it at once"


def run(
    *jobs: StreamingQuery | Flow,
    sinks: Sequence[OpenPublisher] | None = None,
    final: bool = False,
    timeout: float | None = None,
) -> int:
    """Run a job to its end: ``sys.exit(jobpipe.run(query))``, or, of a flow job, ``sys.exit(jobpipe.run(flow))``.

    Waits until each query has ended by itself, or has committed the ends of all its jobpipe topics, as
    :func:`jobpipe.await_end`, and each flow has come to the end of its source. At SIGINT (Ctrl-C) or SIGTERM the
    queries end after the micro-batch they are in, so no callback is cut short, and the flows after the call that their
    function is in, whose result they publish; a call that takes longer than ten seconds is not waited for, and is
    repeated at the next start. At a second signal they are stopped at once, and Spark repeats the batch, or the flow
    the call, at the next start. Then the sinks are closed, and one line on standard error says how it went. Signals
    reach the main thread only: called from another one it just waits.

    Args:
        jobs: one or more queries of this process, and flows.
        sinks: to be closed; by default all sinks and plain publishers that are open in this process, and the topics
            that are published by ``format("jobpipe")``.
        final: seal the end mark of each sink if all jobs came to their end: for a job whose topic ends with it.
            After a signal, a failure or a timeout the topics stay open, and so they do if a flow was stopped by its own
            program. What a flow publishes ends with its source.
        timeout: seconds after which the jobs are stopped as by a signal.

    Raises:
        ConfigError: there is no job, or one is neither a query nor a flow; ``final`` with a query of Spark Connect,
            whose topics are the server's.

    Returns:
        The exit code: 0 at the end, or if the program has stopped its flows itself, 1 if a job or a sink failed or
        ``timeout`` passed, 130 after SIGINT, 143 after SIGTERM.
    """
    if not jobs:
        raise ConfigError("jobpipe.run needs a query or a flow to wait for: jobpipe.run(query)")
    running = [job_of(job) for job in jobs]
    if final and any(type(job).__module__.startswith("pyspark.sql.connect.") for job in jobs):
        raise ConfigError(
            "jobpipe.run(final=True) needs a classic Spark session: over Spark Connect, end a topic by a last batch, "
            "of no rows if need be: df.write.format('jobpipe').option('final', 'true')"
        )
    signals = JobSignals()
    with signals.noted():
        began = time.monotonic()
        deadline = math.inf if timeout is None else began + timeout
        failure = wait_for(running, lambda: signals.first is not None or time.monotonic() >= deadline)
        over = not failure and signals.first is None and not any(job.active for job in running)
        stopped = [job.name for job in running if isinstance(job, FlowJob) and job.was_stopped] if over else []
        if not over:
            if signals.first is not None and (active := [job for job in running if job.active]):
                _print_notice(
                    f"{signals.first.name}: {'; '.join(dict.fromkeys(job.boundary for job in active))}; {AGAIN}"
                )
            end_jobs(running, lambda: signals.again)
            failure = _failures(running) or failure
        late = not (over or failure or signals.first)
        final = final and over and not stopped
        failure = _close(_open_now(jobs, final=final) if sinks is None else sinks, final=final) or failure
        names = "the query" if len(jobs) == 1 and not jobs[0].name else ", ".join(job.name for job in running)
        how = _how(failure, signals, running, stopped, late=late)
        _print_notice(f"{names} {how}, after {time.monotonic() - began:.0f} s")
        if failure or late:
            return FAILED
        return 0 if signals.first is None else 128 + signals.first


def _open_now(jobs: Sequence[StreamingQuery | Flow], *, final: bool) -> list[OpenPublisher]:
    """Return what is to be closed. With ``final`` also topics to which a query of the format has published nothing yet.

    Raises:
        ConfigError: the options of a query do not fit.
    """
    written: list[OpenPublisher] = list(written_topics())
    if final:
        known = {each.topic for each in written}
        queries = [job for job in jobs if hasattr(job, "_jsq")]
        written += [each for each in topics_of(queries) if each.topic not in known]
    return [*open_publishers(), *written]


def _failures(jobs: Sequence[RunningJob]) -> str:
    """Return in a line why jobs failed; of several jobs also which."""
    found = [(job.name, failure) for job in jobs if (failure := job.failure())]
    return "; ".join(failure if len(jobs) == 1 else f"{name}: {failure}" for name, failure in found)


def _close(sinks: Sequence[OpenPublisher], *, final: bool) -> str:
    failures = []
    for sink in sinks:
        try:
            sink.close(final)
        except JobpipeError as error:
            failures.append(f"topic {sink.topic!r}: {error}")
    return "; ".join(failures)


def _how(failure: str, signals: JobSignals, jobs: Sequence[RunningJob], stopped: Sequence[str], *, late: bool) -> str:
    if failure:
        return f"failed: {failure}"
    if late:
        return "was stopped before its end: the timeout has passed"
    if signals.first is None and stopped:
        return "was stopped" if len(jobs) == 1 else f"ended: {', '.join(f'{name} was stopped' for name in stopped)}"
    if signals.first is None:
        return "finished"
    cut = [job.unit for job in jobs if job.cut_short]
    units = " and ".join(dict.fromkeys(cut or [job.unit for job in jobs]))
    if cut:
        at_once = " at once" if signals.again else ""
        return f"stopped{at_once} by {signals.first.name}; its last {units} is repeated at the next start"
    return f"stopped by {signals.first.name} after a whole {units}"


def _print_notice(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the terminal is gone
        print(f"jobpipe: {text}", file=sys.stderr, flush=True)  # noqa: T201 - what the job says to its user
