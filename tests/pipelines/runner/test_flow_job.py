"""What an attempt of a flow job tells of its progress; the flow is only told of, and needs no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobpipe.errors import FlowFailed, JobpipeError
from jobpipe.flows.flow_settings import FlowState, FlowStatus, PartitionStatus
from jobpipe.jobs.workloads import flow_workload
from jobpipe.jobs.workloads.flow_workload import FlowWorkload
from jobpipe.jobs.workloads.progress_reports import Report, Reporter, read_report
from jobpipe.jobs.workloads.stop_request import StopRequest
from jobpipe.jobs.workloads.workload import WorkloadOutcome
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.job_context import JobContext
from tests.pipelines.conftest import Write, loaded

FILE = """
pipeline: {name: x}
jobs:
  make: {source: {type: rate}, sink: {type: jobpipe, topic: orders}}
  alerts: {type: flow, source: {type: jobpipe, subscribe: orders}, function: alerts:check}
"""


class Told:
    """A flow whose two partitions stand where it is told, one step at each question whether it has ended."""

    def __init__(self, steps: list[tuple[int, int]], error: JobpipeError | None, report: Path) -> None:
        self.steps = steps
        self.reports: list[Report | None] = []
        self._error = error
        self._report = report

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *exc: object) -> None:
        self.steps = self.steps[-1:]

    def join(self, timeout: float) -> bool:
        self.reports.append(read_report(self._report))
        self.steps = self.steps[1:] or self.steps
        return len(self.steps) == 1

    def exception(self) -> JobpipeError | None:
        return self._error

    def status(self) -> FlowStatus:
        lines = tuple(PartitionStatus(number, offset, 0, 1, None) for number, offset in enumerate(self.steps[0]))
        return FlowStatus("x.alerts", FlowState.RUNNING, "orders", None, lines, None)


@pytest.mark.parametrize(
    ("steps", "error", "done"),
    [
        ([(100, 100), (101, 100), (103, 102), (105, 105)], None, WorkloadOutcome(batches=5)),
        ([(7, 7), (8, 7)], FlowFailed("no"), WorkloadOutcome("FlowFailed", "no", batches=0)),
        ([(7, 7), (9, 9), (0, 0), (2, 1), (2, 2)], None, WorkloadOutcome(batches=4)),  # its source's log was lost
    ],
)
def test_the_batches_of_this_attempt(
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[tuple[int, int]],
    error: JobpipeError | None,
    done: WorkloadOutcome,
) -> None:
    """Those that are done in all partitions since it began, told while it runs."""
    monkeypatch.setattr(flow_workload, "COUNT_SECONDS", 0.0)
    told = Told(steps, error, tmp_path / "report")
    monkeypatch.setattr(FlowWorkload, "_begin", lambda *_: told)
    context = JobContext(
        pipeline="x", job="alerts", mode=Mode.STREAMING, storage="s", folder=tmp_path, run=RunValues("r1")
    )
    spark: Any = None
    work = FlowWorkload(spark, loaded(write(FILE)).jobs["alerts"], context, Reporter(tmp_path / "report"))
    assert work.run(StopRequest(10.0)) == done
    counts = [0 if report is None else report.batches for report in told.reports]
    assert counts == sorted(counts)
    assert (counts[-1] > 0) is (len(steps) > 2)
    newest = read_report(tmp_path / "report")
    assert (0 if newest is None else newest.batches) == done.batches
