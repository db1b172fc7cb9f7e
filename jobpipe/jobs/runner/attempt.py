"""One attempt from its start to its end record."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from jobpipe.config import Config, load
from jobpipe.config.job_secrets import export
from jobpipe.discovery.registry_handler import map_registry_errors, open_handler
from jobpipe.errors import JobpipeError, RegistryUnavailable
from jobpipe.jobs.bus_keys import bus_keys
from jobpipe.jobs.log_file_tail import FAILED_BECAUSE
from jobpipe.jobs.runner.checkpoint_fence import Fence
from jobpipe.jobs.runner.driver_environment import prepare_environment
from jobpipe.jobs.runner.driver_jvm import DriverJvm
from jobpipe.jobs.runner.job_lease import JobLease, LeaseLost
from jobpipe.jobs.session_processes import kill_companions
from jobpipe.jobs.workloads.progress_reports import Reporter
from jobpipe.jobs.workloads.spark_session import add_path, make_session, master_of, prepare_jvm, session_keys
from jobpipe.jobs.workloads.stop_request import StopAsked, StopRequest, watch_parent
from jobpipe.jobs.workloads.workload import Workload, WorkloadOutcome, failure, with_checkpoint_error
from jobpipe.own_application import JOB, PIPELINE, RUN
from jobpipe.pipelines.checkpoints.checkpoint_owner import Owner, owner_of
from jobpipe.pipelines.checkpoints.checkpoint_storage import claim
from jobpipe.pipelines.file.file_paths import local_folder
from jobpipe.pipelines.loading.snapshot import Snapshot
from jobpipe.pipelines.model.graph import subscribers_of
from jobpipe.pipelines.model.job_states import MISCONFIGURED, REPLACED
from jobpipe.pipelines.model.pipeline import Job, Pipeline
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe_registry.handler import RegisterServerHandler
from jobpipe_registry.job_records import EndRecord
from jobpipe_registry.registry_jobs import Jobs

log = logging.getLogger(__name__)

FAILED = 1
REGISTRY_SECONDS = 120.0  # that the registry may be away at the start
LEAVE_SECONDS = 900.0  # and at the end: what is done would otherwise be taken for a failure, and done again
SPARK_SECONDS = 10.0  # for the session to end
TELL_SECONDS = 2.0  # for the last word of an attempt that was replaced


def run_attempt(snapshot: Snapshot, jvm: DriverJvm | None = None) -> int:
    """Run an attempt in the main thread of this process; return its exit code.

    0: it finished, or was stopped; 1: it failed; 75: another attempt has taken its place; 78: it cannot begin:
    its file or configuration is wrong. With 75 this process, its JVM and Spark's workers are killed where they are, and
    write nothing any more.

    Args:
        jvm: the one that has started this process, and is the driver's; None: this process starts one.
    """
    reporter = Reporter(snapshot.report)
    reporter.report(0, 0)
    code = _run(snapshot, jvm, reporter)
    reporter.end(code)
    return code


def _run(snapshot: Snapshot, jvm: DriverJvm | None, reporter: Reporter) -> int:
    if jvm is not None:
        jvm.watch(_exit_now)
    stop = StopRequest(snapshot.stop_seconds)
    if snapshot.parent is not None:
        watch_parent(snapshot.parent, stop, _exit_now)
    stop.note_signals()
    if snapshot.config is not None:
        os.environ["JOBPIPE_CONFIG"] = str(snapshot.config)  # for all that loads a configuration in this process
    try:
        pipeline = snapshot.pipeline()
        job = pipeline.jobs[snapshot.job]
        # All processes of the attempt tell the bus whose they are: a JVM that it starts inherits this.
        os.environ |= {PIPELINE: pipeline.name, JOB: job.name, RUN: snapshot.run}
        if job.spec.captures:
            keys = bus_keys(pipeline, job)
        else:
            prepare_environment(master_of(pipeline, job), has_jvm=jvm is not None)
            keys = session_keys(pipeline, job, snapshot.storage)
        config = load(spark=keys)
        owner = owner_of(config.namespace, pipeline.name, job)
        handler = _open_registry(config, stop)
    except RegistryUnavailable as error:
        log.error("%s", error)
        return FAILED
    except JobpipeError as error:
        log.error("%s: %s", type(error).__name__, error)
        reporter.report(0, 0, f"{type(error).__name__}: {error}")
        return MISCONFIGURED
    if handler is None:
        return 0
    try:
        return _run_with_lease(snapshot, pipeline, job, keys, owner, handler, stop, reporter, jvm)
    finally:
        handler.shutdown()


def _open_registry(config: Config, stop: StopRequest) -> RegisterServerHandler | None:
    """Return the registry's handler, waiting for it; None if a stop was asked for meanwhile."""
    until = time.monotonic() + REGISTRY_SECONDS
    while not stop.asked:
        try:
            return open_handler(config)
        except RegistryUnavailable as error:
            if time.monotonic() > until:
                raise
            log.warning("%s; trying again", error)
    return None


def _run_with_lease(
    snapshot: Snapshot,
    pipeline: Pipeline,
    job: Job,
    keys: dict[str, str],
    owner: Owner,
    handler: RegisterServerHandler,
    stop: StopRequest,
    reporter: Reporter,
    jvm: DriverJvm | None,
) -> int:
    """Take the lease, work, leave the end record."""
    with map_registry_errors():
        jobs: Jobs = handler.jobs
    leaving = threading.Event()  # the work is done: what is heard from now on ends nothing

    def replaced(why: str) -> None:
        if not leaving.is_set():
            _exit_replaced(why, reporter, jvm)

    job_lease = JobLease(
        jobs,
        pipeline.name,
        job.name,
        snapshot.run,
        snapshot.attempt,
        on_replaced=replaced,
        on_stop=lambda: stop.ask("a stop was ordered"),
    )
    try:
        if not job_lease.acquire(REGISTRY_SECONDS, lambda: stop.asked):
            return 0
        log.info("run %s has the lease of the job, with fence %d", snapshot.run, snapshot.attempt)
        if job.spec.captures:
            done = _run_capture(snapshot, pipeline, job, keys, stop, reporter)
        else:
            done = _run_workload(snapshot, pipeline, job, keys, owner, job_lease, stop, reporter, replaced, jvm)
        leaving.set()
        done = with_checkpoint_error(done, snapshot.storage, job)
        _log_outcome(done, stop)
        reporter.report(done.batches, done.rows, done.cause)
        job_lease.release(_end_record(snapshot, done), LEAVE_SECONDS)
    except LeaseLost as error:
        _exit_replaced(str(error), reporter, jvm)
    except RegistryUnavailable as error:
        log.warning("%s", error)
        return FAILED
    return FAILED if done.error else 0


def _exit_now() -> None:
    """End where it is: the driver was canceled, its worker is gone, or no one else can end it."""
    kill_companions()
    os._exit(FAILED)


def _exit_replaced(why: str, reporter: Reporter, jvm: DriverJvm | None = None) -> None:
    """End here, without another word to anybody: neither to Spark, whose commit it would be, nor to the registry."""
    kill_companions()
    text = f"jobpipe: this attempt was replaced, and ends where it is: {why}\n"

    def report() -> None:
        reporter.end(REPLACED)
        os.write(2, text.encode())

    reporting = threading.Thread(target=report, daemon=True)  # disk and log may be full, or gone
    reporting.start()
    reporting.join(TELL_SECONDS)
    if jvm is not None:  # after the text, which goes through it
        jvm.kill()
    os._exit(REPLACED)


def _run_capture(
    snapshot: Snapshot, pipeline: Pipeline, job: Job, keys: dict[str, str], stop: StopRequest, reporter: Reporter
) -> WorkloadOutcome:
    """Capture tables: without a session, and without a checkpoint. Its topics fence what earlier attempts publish."""
    from jobpipe.jobs.captures.capture_workload import CaptureWorkload

    reporter.start()
    try:
        return CaptureWorkload(pipeline, job, snapshot.values, load(spark=keys), reporter).run(stop)
    except JobpipeError as error:
        return failure(error)


def _run_workload(
    snapshot: Snapshot,
    pipeline: Pipeline,
    job: Job,
    keys: dict[str, str],
    owner: Owner,
    job_lease: JobLease,
    stop: StopRequest,
    reporter: Reporter,
    replaced: Callable[[str], None],
    jvm: DriverJvm | None,
) -> WorkloadOutcome:
    spark: SparkSession | None = None
    try:
        is_here = local_folder(snapshot.storage) is not None
        if is_here:  # else it takes a session to look
            claim(snapshot.storage, owner)
        if jvm is None:
            prepare_jvm(keys)
        with stop.interrupting():
            spark = make_session(pipeline, None if jvm is None else keys)
        fence = Fence(spark, snapshot.storage, job_lease.lease, lambda: job_lease.is_confirmed(REGISTRY_SECONDS))
        # The session took its time. Cut off meanwhile, this attempt would put its mark over that of the next one.
        try:
            if not job_lease.confirm(REGISTRY_SECONDS, lambda: stop.asked):
                return WorkloadOutcome(stopped=True)
        except LeaseLost as error:
            replaced(str(error))
        owner = claim(snapshot.storage, owner, spark)  # an attempt before this one may have noted its own meanwhile
        fence.mark()
        fence.watch(replaced)

        def check() -> None:
            try:
                fence.check()
            except LeaseLost as error:
                replaced(str(error))

        add_path(pipeline.folder)
        export(job.spec.secrets)
        context = _context(snapshot, pipeline, job, check, names_sources=bool(owner.names))
        workload = _make_workload(spark, pipeline, job, context, reporter)
        reporter.start()
        return _confirm_outcome(workload.run(stop))
    except StopAsked:
        return _confirm_outcome(WorkloadOutcome(stopped=True))
    except (JobpipeError, PySparkException, Py4JError) as error:
        log.debug("the job failed", exc_info=True)
        return (
            _confirm_outcome(WorkloadOutcome(stopped=True))
            if stop.asked and isinstance(error, Py4JError)
            else failure(error)
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - of a plug-in, or the user's code
        traceback.print_exc()
        return failure(error)
    finally:
        if spark is not None:
            _end_session(spark)


def _confirm_outcome(done: WorkloadOutcome) -> WorkloadOutcome:
    """Return how the work ended. If the JVM is gone, this process is asked to stop, and that is a failure."""
    process = getattr(SparkContext._gateway, "proc", None)
    if done.stopped and process is not None and process.poll() is not None:
        return failure("JvmGone: the job's JVM was killed, or has crashed", batches=done.batches, rows=done.rows)
    return done


def _context(
    snapshot: Snapshot, pipeline: Pipeline, job: Job, check: Callable[[], None], *, names_sources: bool
) -> JobContext:
    return JobContext(
        pipeline=pipeline.name,
        job=job.name,
        mode=job.mode,
        storage=snapshot.storage,
        folder=pipeline.folder,
        run=snapshot.values,
        parameters=pipeline.spec.parameters,
        topic_prefix=pipeline.spec.topic_prefix,
        names_sources=names_sources,
        trigger=job.trigger,
        subscribers=subscribers_of(pipeline, job),
        attempt=snapshot.attempt,
        check=check,
    )


def _make_workload(
    spark: SparkSession, pipeline: Pipeline, job: Job, context: JobContext, reporter: Reporter
) -> Workload:
    if job.spec.application is not None:
        from jobpipe.jobs.workloads.application_workload import ApplicationWorkload

        return ApplicationWorkload(Path(pipeline.folder / job.spec.application), job.arguments(context.run))
    if job.spec.type == "flow":
        from jobpipe.jobs.workloads.flow_workload import FlowWorkload

        return FlowWorkload(spark, job, context, reporter)
    from jobpipe.jobs.workloads.query_workload import QueryWorkload

    return QueryWorkload(spark, pipeline, job, context, reporter)


def _end_session(spark: SparkSession) -> None:
    """End the session, and wait at most so long: what it does not do by then ends with the process."""
    ending = threading.Thread(target=spark.stop, name="session-end", daemon=True)
    ending.start()
    ending.join(SPARK_SECONDS)


def _end_record(snapshot: Snapshot, done: WorkloadOutcome) -> EndRecord:
    return EndRecord(
        run=snapshot.run,
        attempt=snapshot.attempt,
        state="FAILED" if done.error else "STOPPED" if done.stopped else "FINISHED",
        at=time.time(),
        error=done.error[:128],
        place=done.place[:300],
        batches=done.batches,
        rows=done.rows,
    )


def _log_outcome(done: WorkloadOutcome, stop: StopRequest) -> None:
    if done.error:
        text = f"{FAILED_BECAUSE}{done.cause}"
    elif done.stopped:
        text = f"jobpipe: stopped: {stop.why}"
    else:
        text = "jobpipe: finished"
    with contextlib.suppress(OSError):  # the registry gets it even without a log
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
