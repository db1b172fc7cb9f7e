"""The end of jobs, of queries and of flows: waits for it, or brings it about where nothing is cut short."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from jobpipe.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from jobpipe.flows.flow_driver import Flow

POLL_SECONDS = 0.1
STOP_SECONDS = 3.0  # of a stop in the middle of a unit


class RunningJob(Protocol):
    """A query or a flow, as far as its end goes.

    Attributes:
        name: for its user.
        unit: what it ends after, when it is let: each is done as a whole, or again at the next start.
        boundary: the same, said to its user.
        cut_short: it was ended inside a unit.
    """

    @property
    def name(self) -> str: ...

    @property
    def unit(self) -> str: ...

    @property
    def boundary(self) -> str: ...

    @property
    def cut_short(self) -> bool: ...

    @property
    def active(self) -> bool:
        """Whether it runs."""

    def at_end(self) -> bool:
        """Tell whether it has come to its end, or failed."""

    def failure(self) -> str:
        """Return in a line why it failed, an empty text if it did not."""

    def begin_end(self) -> None:
        """Let it end after the unit it is in; do not wait."""

    def has_ended(self) -> bool:
        """Tell whether it has, since :meth:`begin_end`."""

    def end_at_once(self, seconds: float) -> None:
        """End it inside a unit; wait at most so long."""


class FlowJob:
    """A flow; see :class:`RunningJob`."""

    unit = "call of its function"
    boundary = "each flow ends after the call that its function is in"

    def __init__(self, flow: Flow) -> None:
        self.name = flow.name
        self._flow = flow

    @property
    def cut_short(self) -> bool:
        return self._flow.cut_short

    @property
    def was_stopped(self) -> bool:
        """Whether it has ended, and not with its source: its own program has stopped it."""
        from jobpipe.flows.flow_settings import FlowState

        return not self.active and self._flow.status().state is FlowState.STOPPED

    @property
    def active(self) -> bool:
        return not self._flow.join(0.0)

    def at_end(self) -> bool:
        return not self.active

    def failure(self) -> str:
        error = self._flow.exception()
        return "" if error is None else f"{type(error).__name__}: {error}"

    def begin_end(self) -> None:
        self._flow.begin_stop()

    def has_ended(self) -> bool:
        return not self.active

    def end_at_once(self, seconds: float) -> None:
        self._flow.begin_stop(at_once=True)
        self._flow.join(seconds)


def job_of(job: StreamingQuery | Flow) -> RunningJob:
    """Return a query or a flow as what is waited for. Neither loads the other's modules, Spark's among them.

    Raises:
        ConfigError: it is neither.
    """
    flows = sys.modules.get("jobpipe.flows.flow_driver")  # where that is not loaded there is no flow
    if flows is not None and isinstance(job, flows.Flow):
        return FlowJob(job)
    if not hasattr(job, "isActive"):
        raise ConfigError(
            f"jobpipe.run takes queries that run, and flows, one after another: jobpipe.run(query, flow); "
            f"got {type(job).__name__}"
        )
    from jobpipe.spark.termination.query_job import QueryJob

    return QueryJob(cast("StreamingQuery", job))


def wait_for(jobs: Sequence[RunningJob], asked: Callable[[], bool]) -> str:
    """Wait until all jobs are at their ends, one has failed, or an end was asked for; return why one failed.

    Args:
        asked: called ten times a second.

    Returns:
        An empty text if none failed.
    """
    left = list(jobs)
    while left and not asked():
        for job in list(left):
            if job.at_end():
                left.remove(job)
                if failure := job.failure():
                    return failure
        time.sleep(POLL_SECONDS if left else 0.0)
    return ""


def end_jobs(jobs: Sequence[RunningJob], hurry: Callable[[], bool]) -> None:
    """End jobs after the unit that each is in; once ``hurry()`` is true, those that are left at once."""
    for job in jobs:
        job.begin_end()
    left = list(jobs)
    while left and not hurry():
        left = [job for job in left if hurry() or not job.has_ended()]  # each may wait for Spark for a moment
        time.sleep(POLL_SECONDS if left else 0.0)
    for job in left:
        job.end_at_once(STOP_SECONDS)
