"""What is made of the answers of launcher and registry."""

from __future__ import annotations

import os
from dataclasses import replace

import psutil
import pytest

from jobpipe.jobs.storage.job_rows import AttemptRow, LeaseHolder
from jobpipe.jobs.supervision.assessment import EndOf, LeaseOf, OrderOf
from jobpipe.jobs.supervision.observations import facts_of, has_rebooted, process_status
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.pipelines.plugins.api import LaunchState
from jobpipe_registry.host.process_identity import PidScope, start_ticks
from jobpipe_registry.job_records import EndRecord, Lease, Order
from jobpipe_registry.registry_jobs import JobRecords

ATTEMPT = AttemptRow(
    run="r", pipeline="p", job="j", number=5, version=1, state=JobState.SUBMITTED, began=1.0, launched="x"
)


def holder(**more: object) -> LeaseHolder:
    place = PidScope.here()
    pid = os.getpid()
    here = LeaseHolder(
        host=place.host,
        boot=place.boot,
        pid_namespace=place.pid_namespace,
        pid=pid,
        started=psutil.Process(pid).create_time(),
        ticks=start_ticks(pid),
    )
    return replace(here, **more)  # type: ignore[arg-type]


def test_only_another_boot_of_this_host_proves_an_end() -> None:
    assert not has_rebooted(None)
    assert not has_rebooted(holder())
    assert has_rebooted(holder(boot="another"))
    assert not has_rebooted(holder(boot="another", host="elsewhere"))
    assert not has_rebooted(holder(boot=""))
    assert not has_rebooted(holder(pid_namespace=1))


def test_a_process_stands_for_the_launcher() -> None:
    ours = holder()
    dead = replace(ours, started=ours.started - 1000, ticks=ours.ticks - 1)
    assert process_status(ours).state is LaunchState.RUNNING
    assert process_status(dead).state is LaunchState.ENDED
    assert process_status(holder(host="elsewhere")).state is LaunchState.UNKNOWN
    assert process_status(holder(pid=0)).state is LaunchState.UNKNOWN


@pytest.mark.parametrize(
    ("order", "stop_by", "expected"),
    [
        (None, None, OrderOf.NONE),
        (Order("q", 4, "run"), None, OrderOf.NONE),
        (Order("r", 5, "run"), None, OrderOf.RUN),
        (Order("r", 5, "stop"), None, OrderOf.STOP),
        (Order("r", 6, "stop"), None, OrderOf.FENCE),
        (Order("r", 6, "stop"), 9.0, OrderOf.FENCE_OF_STOP),
        (Order("q", 5, "run"), None, OrderOf.OTHER),
        (Order("q", 6, "run"), None, OrderOf.OTHER),
    ],
)
def test_whose_order_it_is(order: Order | None, stop_by: float | None, expected: OrderOf) -> None:
    attempt = replace(ATTEMPT, stop_by=stop_by)
    assert facts_of(attempt, None, JobRecords(order, None, None), exit_code=None, forced=False).order is expected


@pytest.mark.parametrize(
    ("run", "number", "lease", "end"),
    [
        ("r", 5, LeaseOf.OWN, EndOf.FAILED),
        ("r", 4, LeaseOf.EARLIER, EndOf.OLDER),
        ("q", 5, LeaseOf.STRANGER, EndOf.OLDER),
        ("q", 6, LeaseOf.STRANGER, EndOf.OLDER),
    ],
)
def test_whose_lease_and_end_it_is(run: str, number: int, lease: LeaseOf, end: EndOf) -> None:
    registered = JobRecords(None, Lease(run, number, "h", 1, 1.0, "i"), EndRecord(run, number, "FAILED", 1.0))
    found = facts_of(ATTEMPT, None, registered, exit_code=None, forced=False)
    assert (found.lease, found.end) == (lease, end)
