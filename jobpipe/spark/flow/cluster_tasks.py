"""Runs the tasks of a flow on a cluster: each is a Spark job of one task, so that one that fails disturbs no other."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from functools import partial

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from jobpipe.errors import JobpipeError, LinkError
from jobpipe.flows.flow_task import TaskEnd, TaskOrder, run_task
from jobpipe.flows.user_function import Function, Setup

log = logging.getLogger(__name__)


class SparkRunner:
    """Runs each task as a Spark job of its own.

    Args:
        context: of the session; one core is left for what else it runs.
        function, setup: the user's; pickled, as those of an RDD.
    """

    in_threads = False

    def __init__(self, context: SparkContext, function: Function, setup: Setup | None) -> None:
        self._context = context
        self._function = function
        self._setup = setup
        self._group = f"flow-{uuid.uuid4().hex}"
        self.lanes = max(1, context.defaultParallelism - 1)

    def run(self, order: TaskOrder, number: int, stopped: Callable[[], bool]) -> TaskEnd:
        """Run a task to its end, on whatever executor has a core."""
        said = f"flow {order.key.flow}: partitions {', '.join(map(str, order.lane))} of {order.key.topic}"
        try:
            self._context.setJobGroup(self._group, said, interruptOnCancel=True)
            rows = self._context.parallelize([number], 1)
            ends: list[TaskEnd] = rows.mapPartitions(partial(_run, order, self._function, self._setup)).collect()
        except (Py4JError, PySparkException, OSError) as error:
            if stopped():
                return TaskEnd()
            # Its executor is gone, or the session; a function that fails comes back as a TaskEnd.
            text = str(error).strip().splitlines() or [""]
            why = f"{type(error).__name__}: {text[0][:500]}"
            if self._context._jsc is None or isinstance(error, (Py4JNetworkError, OSError)):
                return TaskEnd(error=JobpipeError(f"{said}: Spark is gone: {why}"))
            return TaskEnd(error=LinkError(f"{said}: Spark ended the task: {why}"), is_lost=True)
        if not ends:  # the JVM was lost while it sent it: see collect_rows.py
            return TaskEnd() if stopped() else TaskEnd(error=JobpipeError(f"{said}: Spark is gone"))
        return ends[0]

    def cancel(self) -> None:
        """End the tasks that have not ended by themselves."""
        try:
            self._context.cancelJobGroup(self._group)
        except (Py4JError, PySparkException, OSError) as error:  # the session is gone, and so are they
            log.debug("tasks were not cancelled: %s", error)


def _run(order: TaskOrder, function: Function, setup: Setup | None, _: Iterator[int]) -> Iterator[TaskEnd]:
    """Run the task, in a worker; Spark kills it when the job is cancelled."""
    try:
        yield run_task(order, function, setup, lambda: False)
    except JobpipeError as error:
        yield TaskEnd(error=error)
