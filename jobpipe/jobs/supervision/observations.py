"""What launcher and registry say of an attempt, as the facts that :mod:`jobpipe.jobs.supervision.assessment` judges."""

from __future__ import annotations

from jobpipe.jobs.storage.job_rows import AttemptRow, LeaseHolder
from jobpipe.jobs.supervision.assessment import EndOf, Facts, LauncherAnswer, LeaseOf, OrderOf
from jobpipe.pipelines.plugins.api import LaunchState, LaunchStatus
from jobpipe_registry.host.process_identity import PidScope, lives
from jobpipe_registry.job_records import EndRecord, Lease
from jobpipe_registry.registry_jobs import JobRecords

SKEW_SECONDS = 5.0  # by which the clock of a driver's host may be late
_LAUNCHED = {
    LaunchState.RUNNING: LauncherAnswer.RUNNING,
    LaunchState.ENDED: LauncherAnswer.ENDED,
    LaunchState.UNKNOWN: LauncherAnswer.UNKNOWN,
}


def holder_of(lease: Lease, since: float) -> LeaseHolder:
    """Return the process that has a lease, as it was first seen then."""
    return LeaseHolder(
        host=lease.host,
        boot=lease.boot,
        pid_namespace=lease.pid_namespace,
        pid=lease.pid,
        started=lease.started,
        ticks=lease.ticks,
        since=since,
    )


def process_status(holder: LeaseHolder) -> LaunchStatus:
    """Return how an attempt stands whose launcher's id is not known, by the process that had its lease."""
    place = PidScope(holder.host, holder.boot, holder.pid_namespace)
    found = lives(holder.pid, holder.started, holder.ticks, place) if holder.pid else None
    if found is None:
        return LaunchStatus(LaunchState.UNKNOWN)
    return LaunchStatus(LaunchState.RUNNING if found else LaunchState.ENDED)


def has_rebooted(holder: LeaseHolder | None) -> bool:
    """Whether it ran on this host, and the host has booted since, so none of its processes is alive.

    False where a host has no boot id. A container that is made again with the same host name, on the same boot, proves
    nothing.
    """
    here = PidScope.here()
    if holder is None or not (holder.boot and here.boot):
        return False
    return holder.host == here.host and holder.boot != here.boot


def lease_is_own(attempt: AttemptRow, records: JobRecords) -> bool:
    """Whether the registry has the lease of this attempt."""
    return _lease(attempt, records) is LeaseOf.OWN


def end_of(attempt: AttemptRow, records: JobRecords) -> EndRecord | None:
    """Return the attempt's own end record, None if the registry has none."""
    end = records.end
    return end if end is not None and (end.run, end.attempt) == (attempt.run, attempt.number) else None


def facts_of(
    attempt: AttemptRow,
    status: LaunchStatus | None,
    records: JobRecords,
    *,
    exit_code: int | None,
    canceled: bool = False,
    forced: bool,
) -> Facts:
    """Return what is known of an attempt; without a status nothing says that it was started."""
    own = end_of(attempt, records)
    end = EndOf(own.state) if own is not None else EndOf.NONE if records.end is None else EndOf.OLDER
    return Facts(
        launcher=LauncherAnswer.NOT_KNOWN if status is None else _LAUNCHED[status.state],
        lease=_lease(attempt, records),
        end=end,
        order=_order(attempt, records),
        exit_code=exit_code,
        rebooted=has_rebooted(attempt.holder),
        stopping=attempt.stop_by is not None,
        canceled=canceled and own is not None and own.at >= (attempt.stop_by or 0.0) - SKEW_SECONDS,
        forced=forced,
        said="" if status is None else status.detail,
    )


def _lease(attempt: AttemptRow, records: JobRecords) -> LeaseOf:
    lease = records.lease
    if lease is None:
        return LeaseOf.NONE
    if (lease.run, lease.attempt) == (attempt.run, attempt.number):
        return LeaseOf.OWN
    return LeaseOf.EARLIER if lease.attempt < attempt.number else LeaseOf.STRANGER


def _order(attempt: AttemptRow, records: JobRecords) -> OrderOf:
    order = records.order
    if order is None or order.attempt < attempt.number:
        return OrderOf.NONE
    if order.run != attempt.run:
        return OrderOf.OTHER
    if order.attempt == attempt.number:
        return OrderOf.RUN if order.want == "run" else OrderOf.STOP
    return OrderOf.FENCE if attempt.stop_by is None else OrderOf.FENCE_OF_STOP
