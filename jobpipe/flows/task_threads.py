"""Runs the tasks of a flow in threads of this process."""

from __future__ import annotations

import os
from collections.abc import Callable

from jobpipe.flows.flow_task import TaskEnd, TaskOrder, run_task
from jobpipe.flows.user_function import Function, Setup


class ThreadRunner:
    """Runs each task in the thread that asks for it.

    Args:
        function, setup: the user's.
        lanes: how many tasks; one a processor by default.
    """

    in_threads = True

    def __init__(self, function: Function, setup: Setup | None, lanes: int | None = None) -> None:
        self._function = function
        self._setup = setup
        self.lanes = lanes or os.cpu_count() or 1

    def run(self, order: TaskOrder, number: int, stopped: Callable[[], bool]) -> TaskEnd:
        """Run a task to its end."""
        return run_task(order, self._function, self._setup, stopped)

    def cancel(self) -> None:
        """A thread cannot be ended from outside: it ends when the function returns."""
